"""More than a cluster can take: everybody is served in the end, or told at once to come back, nobody's
answer suffers, and a short prompt does not wait for a long one."""

import concurrent.futures
import random
import threading

import grpc
import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle

PAGE = 16
BURST = 48
KINDS = 6
TOKENS = 12
# Prompts of 6 to 16 pages: the chain has room for about three, the decode services for about four each.
FLAGS = ["--page-size", PAGE]
PREFILL = ["--chunked-prefill-size", 64, "--kv-cache-tokens", 32 * PAGE, "--context-length", 32 * PAGE]
DECODE = ["--kv-cache-tokens", 48 * PAGE, "--context-length", 32 * PAGE]


@pytest.fixture(scope="module")
def wanted(tiny_model):
    oracle = RememberedOracle(tiny_model)
    prompts = [[random.Random(i).randrange(256) for _ in range(PAGE * (6 + 2 * i))] for i in range(KINDS)]
    return prompts, [oracle.greedy(prompt, TOKENS) for prompt in prompts]


def burst(cluster, prompts):
    """Answers to BURST requests at once, the i-th to prompt i % KINDS."""
    with Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(BURST) as pool:
        return list(pool.map(lambda i: client.greedy(prompts[i % KINDS], TOKENS), range(BURST)))


def test_a_burst_is_served_where_there_is_room(tiny_model, wanted, tmp_path):
    prompts, answers = wanted
    with clusters.Cluster(tiny_model, tmp_path, stages=2, decodes=2, flags=FLAGS, decode_flags=DECODE,
                          prefill_flags=[*PREFILL, "--failpoints", "prefill.compute=delay:10"]) as cluster:
        most = {"router": 0.0, "prefill-0-0": 0.0, "decode-0": 0.0, "decode-1": 0.0}
        over = threading.Event()

        def watch():
            while not over.wait(0.02):
                for name in most:
                    most[name] = max(most[name], cluster.metric(name, "baton_requests_waiting"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            served = burst(cluster, prompts)
        finally:
            over.set()
            watcher.join()
        for i, answer in enumerate(served):
            assert answer.code == grpc.StatusCode.OK, answer.error
            assert answer.tokens == answers[i % KINDS]
        # They waited with the router, which binds one to each full decode service and gives the chain no
        # more than fills it: prompts that wait there hold decode's pages.
        assert most["router"] >= BURST / 2, most
        assert max(most["decode-0"], most["decode-1"]) <= 1, most
        assert most["prefill-0-0"] <= 32 / 6 + 1, most
        clusters.wait_until(cluster.idle, 10, "every page to be free")


def test_who_finds_the_queue_full_hears_so_at_once(tiny_model, wanted, tmp_path):
    prompts, answers = wanted
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=FLAGS, decode_flags=DECODE,
                          prefill_flags=[*PREFILL, "--failpoints", "prefill.compute=delay:10"],
                          router_flags=["--max-queued-requests", 4]) as cluster:
        served = burst(cluster, prompts)
        refused = [answer for answer in served if answer.error is not None]
        for answer in refused:
            assert answer.code == grpc.StatusCode.RESOURCE_EXHAUSTED, answer.error
            assert "--max-queued-requests" in answer.error.details()
            assert not answer.tokens
            assert any("retryinfo" in value.decode(errors="replace").lower()
                       for key, value in answer.error.trailing_metadata() if key == "grpc-status-details-bin")
        for i, answer in enumerate(served):
            assert answer.error is not None or answer.tokens == answers[i % KINDS]
        assert 4 <= BURST - len(refused) < BURST
        clusters.wait_until(cluster.idle, 10, "every page to be free")
        with Client(cluster.target) as client:
            assert client.greedy(prompts[0], TOKENS).tokens == answers[0]


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny_model, wanted, tmp_path):
    """Sixty plans of 20 ms for the long one; the short one's fit into seven of them."""
    prompts, answers = wanted
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=FLAGS,
                          prefill_flags=["--chunked-prefill-size", 64,
                                         "--failpoints", "prefill.compute=delay:20"]) as cluster, \
            Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        order = []
        long = pool.submit(client.greedy, [i % 256 for i in range(60 * 64)], 1,
                           on_first=lambda: order.append("long"))
        clusters.wait_until(lambda: cluster.metric("prefill-0-0", "baton_kv_pages_used") > 0, 10,
                            "the long prompt to begin")
        short = pool.submit(client.greedy, prompts[0], TOKENS, on_first=lambda: order.append("short"))
        assert short.result().tokens == answers[0]
        assert long.result().code == grpc.StatusCode.OK
        assert order == ["short", "long"]
