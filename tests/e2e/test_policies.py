"""Where requests go: to whom has their beginning cached, unless that chain is busy; to the chain of their key."""

import collections
import concurrent.futures
import random
import signal
import subprocess

import pytest

import cluster as clusters
from client import Client

PAGE = 16
FLAGS = ["--page-size", PAGE, "--kv-cache-tokens", 16384]
SHAPE = dict(stages=1, chains=0, decodes=0, colocated=2)
LEASE = ["--lease-ms", 60000]  # A chain may stand still for a while and stay a member.
ANSWERED = collections.Counter()  # Requests of `served` by cluster.


def tokens(length, seed):
    return [random.Random(seed * 100000 + i).randrange(256) for i in range(length)]


def started(tiny_model, logs, *router_flags):
    return clusters.Cluster(tiny_model, logs, flags=[*FLAGS, *LEASE],
                            router_flags=["--served-model-name", "tiny", *LEASE, *router_flags], **SHAPE)


@pytest.fixture(scope="module")
def by_cost(tiny_model, tmp_path_factory):
    with started(tiny_model, tmp_path_factory.mktemp("cost")) as cluster:
        yield cluster


def served(cluster, prompt, metadata=()):
    """(The chain, how many tokens of the prompt it had cached.)"""
    with Client(cluster.target) as client:
        call = client.inference.Generate(
            client.request(prompt, temperature=0, max_tokens=4, ignore_eos=True), timeout=60, metadata=metadata)
        finished = [message.finished for message in call if message.HasField("finished")][0]
    ANSWERED[cluster] += 1
    return finished.prefill_chain, finished.usage.cached_tokens


def computed(cluster):
    """Prompt tokens, by chain."""
    return {f"colocated-{i}": cluster.metric(f"colocated-{i}-0", "baton_prefill_tokens_total") for i in range(2)}


def choices(cluster, prediction):
    return cluster.metric("router", "baton_router_choices_total", prediction=prediction)


def predicted_tokens(cluster):
    """Prompt tokens predicted to be cached, all answered requests counted. The router's counts follow at moments of its
    own: first all its choices, one a request, then that none runs."""
    def counted():
        return (cluster.metric("router", "baton_router_choices_total") >= ANSWERED[cluster]
                and cluster.metric("router", "baton_requests_running") == 0)
    clusters.wait_until(counted, 10, "the choices to be counted")
    return cluster.metric("router", "baton_router_predicted_cached_tokens_total")


def test_a_prompt_goes_back_to_its_holder(by_cost):
    prompts = [tokens(300, seed) for seed in range(8)]
    first = [served(by_cost, prompt) for prompt in prompts]
    assert all(cached == 0 for _, cached in first)
    assert len({chain for chain, _ in first}) == 2, "one chain was given them all"
    went_back = 0
    for prompt, (chain, _) in zip(prompts, first):
        for asked, in_cache in ((prompt, 299 // PAGE * PAGE), (prompt + tokens(100, seed=99), 288)):
            chosen, cached = served(by_cost, asked)
            went_back += chosen == chain
            assert chosen != chain or cached >= in_cache
    # A cost is learned from times, so a chain that the machine held up may be passed over, now and then.
    assert went_back >= 13
    predicted = predicted_tokens(by_cost)
    assert choices(by_cost, "cached") >= went_back
    actual = by_cost.metric("router", "baton_router_cached_tokens_total")
    assert 0 < predicted <= actual, "a prediction is cautious: whole steps of 64 tokens"


def test_what_is_flushed_is_not_predicted(by_cost):
    prompt = tokens(300, seed=20)
    chain, _ = served(by_cost, prompt)
    assert served(by_cost, prompt)[1] > 0
    assert by_cost.post("/flush_cache", {})[0] == 200
    predicted = predicted_tokens(by_cost)
    assert served(by_cost, prompt)[1] == 0
    assert predicted_tokens(by_cost) == predicted
    assert chain.startswith("colocated-")


def test_a_busy_holder_is_passed_over(by_cost):
    known = tokens(2000, seed=30)
    chain, _ = served(by_cost, known)
    assert served(by_cost, known)[0] == chain
    before = choices(by_cost, "passed_over")
    holder = by_cost.processes[chain + "-0"]
    holder.signal(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # The first goes to the holder, which has its beginning, and stays there as work before the second.
            busy = pool.submit(served, by_cost, known + tokens(9000, seed=31))
            clusters.wait_until(lambda: by_cost.metric("router", "baton_requests_running") == 1, 10, "a request to run")
            other, cached = served(by_cost, known[:1500] + tokens(50, seed=32))
            assert (other != chain, cached) == (True, 0)
            holder.signal(signal.SIGCONT)
            assert busy.result() == (chain, 2000 // PAGE * PAGE)
    finally:
        holder.signal(signal.SIGCONT)
    clusters.wait_until(lambda: choices(by_cost, "passed_over") > before, 10, "the choice to be counted")


def test_a_chain_that_caches_nothing_is_soon_not_predicted(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, flags=[*FLAGS, "--disable-radix-cache"], **SHAPE) as cluster:
        prompt = tokens(300, seed=40)
        for _ in range(12):
            assert served(cluster, prompt)[1] == 0
        predicted = predicted_tokens(cluster)
        assert served(cluster, prompt)[1] == 0
        assert predicted_tokens(cluster) == predicted
        assert choices(cluster, "uncached") > 0


def test_a_key_stays_with_its_chain(tiny_model, tmp_path):
    with started(tiny_model, tmp_path, "--policy", "consistent_hash", "--hash-header", "X-Session") as cluster:
        chains = {}
        for repeat in range(3):
            for key in range(12):
                chain, _ = served(cluster, tokens(100, seed=50 + 20 * repeat + key), [("x-session", f"session {key}")])
                assert chains.setdefault(key, chain) == chain
        assert len(set(chains.values())) == 2

        def over_http(body, **headers):
            body = {"model": "tiny", "max_tokens": 2, **body}
            status, answer = cluster.post("/v1/completions", body, headers=headers)
            assert status == 200, answer
            return answer
        for key in range(6):
            before = computed(cluster)
            for seed in range(3):
                over_http({"prompt": tokens(100, seed=200 + 10 * key + seed)}, **{"X-Session": f"session {key}"})
                over_http({"prompt": tokens(100, seed=300 + 10 * key + seed), "user": f"session {key}"})
            wanted = {chain: before[chain] + (600 if chain == chains[key] else 0) for chain in before}
            clusters.wait_until(lambda: computed(cluster) == wanted, 10, f"all six on {chains[key]}")


@pytest.mark.parametrize("flags, words", [
    (["--load-balance-policy", "best"], ["load-balance-policy", "best", "cost", "consistent_hash"]),
    (["--hash-header", "no good"], ["hash-header", "no good"]),
    (["--prefill-policy", "cache_aware"], ["prefill-policy", "--load-balance-policy"]),
])
def test_what_is_wrong_is_refused_by_name(tiny_model, flags, words):
    ended = subprocess.run([str(clusters.BATON), "router", "--model-path", tiny_model, *flags], capture_output=True,
                           text=True, timeout=60, check=False)
    assert ended.returncode != 0
    for word in words:
        assert word in ended.stderr, ended.stderr
