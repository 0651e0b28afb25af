"""KV that outlives its request: prompts that begin alike are computed from where they differ, and answers stay the
oracle's, token for token, in every mode."""

import concurrent.futures
import random

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle
from test_openai import events

PAGE = 16
FLAGS = ["--page-size", PAGE, "--kv-cache-tokens", 2048]
COUNT = 12


def tokens(length, seed):
    return [random.Random(seed * 1000 + i).randrange(256) for i in range(length)]


def cached_of(length):
    """Of a prompt that is cached whole: whole pages, and not the last token."""
    return (length - 1) // PAGE * PAGE


@pytest.fixture(scope="module", params=["colocated", "colocated of two", "apart", "apart of two",
                                        "two ranks", "decode ranks", "decode stages"])
def served(request, tiny_model, tmp_path_factory):
    shapes = {"colocated": dict(stages=1, chains=0, decodes=0, colocated=1),
              "colocated of two": dict(stages=2, chains=0, decodes=0, colocated=1),
              "apart": dict(stages=1), "apart of two": dict(stages=2),
              "two ranks": dict(stages=2, ranks=2), "decode ranks": dict(stages=1, decode_ranks=2),
              "decode stages": dict(stages=1, decode_stages=2)}
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("cache"), flags=FLAGS,
                          router_flags=["--served-model-name", "tiny"], **shapes[request.param]) as cluster, \
            Client(cluster.target) as client:
        yield cluster, client


@pytest.fixture(scope="module")
def oracle(tiny_model):
    return RememberedOracle(tiny_model)


def answer_of(client, oracle, prompt, **more):
    """A greedy answer, which is the oracle's; returns how many tokens of the prompt were cached."""
    answer = client.greedy(prompt, COUNT, **more)
    assert answer.error is None, answer.error
    assert answer.tokens == oracle.greedy(prompt, COUNT)
    return answer.finished.usage.cached_tokens


def test_a_prompt_is_computed_from_where_it_differs(served, oracle):
    cluster, client = served
    long = tokens(200, seed=1)
    assert answer_of(client, oracle, long) == 0
    assert answer_of(client, oracle, long) == cached_of(200)
    assert answer_of(client, oracle, long + tokens(50, seed=2)) >= cached_of(200)
    for shared in (0, 1, PAGE - 1, PAGE, PAGE + 1, 100, 199):
        prompt = long[:shared] + [(token + 1) % 256 for token in long[shared:]]
        assert answer_of(client, oracle, prompt) >= shared // PAGE * PAGE
    for length in (1, PAGE, PAGE + 1, 2 * PAGE):
        assert answer_of(client, oracle, long[:length]) == cached_of(length)
    clusters.wait_until(cluster.idle, 30, "all pages but cached ones to be free")


def test_a_conversation_goes_on(served, oracle):
    _, client = served
    context = tokens(60, seed=3)
    for _ in range(4):
        answer = client.greedy(context, COUNT)
        assert answer.error is None, answer.error
        assert answer.tokens == oracle.greedy(context, COUNT)
        assert answer.finished.usage.cached_tokens <= cached_of(len(context))
        last = cached_of(len(context))
        context = context + answer.tokens + tokens(20, seed=len(context))
        assert answer_of(client, oracle, context) >= last


def test_company_shares_and_nothing_is_mixed_up(served, oracle):
    """More prompts than the cache holds, many at once, of three families."""
    cluster, client = served
    prompts = [tokens(150, seed=family)[:cut] + tokens(60, seed=100 + cut)
               for family in (4, 5, 6) for cut in range(10, 150, 17)]
    expected = [oracle.greedy(prompt, COUNT) for prompt in prompts]
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda prompt: client.greedy(prompt, COUNT), prompts))
        assert [answer.error for answer in answers] == [None] * len(prompts)
        assert [answer.tokens for answer in answers] == expected
    assert sum(answer.finished.usage.cached_tokens for answer in answers) > 0
    clusters.wait_until(cluster.idle, 30, "all pages but cached ones to be free")


def test_decode_is_sent_only_the_pages_that_it_lacks(served, oracle):
    cluster, client = served
    decode = next((name for name in cluster.processes if name in ("decode-0", "decode-0-0")), None)
    if decode is None:
        pytest.skip("the chain decodes itself, and sends no KV")

    def sent_by(prompt):
        """Bytes of KV that the stages sent for it, and pages that decode held."""
        def counted():
            sent = sum(cluster.metric(name, "baton_kv_transfer_bytes_total")
                       for name in cluster.processes if name.startswith("prefill"))
            return sent, cluster.metric(decode, "baton_kv_reused_pages_total")
        before = counted()
        answer_of(client, oracle, prompt)
        clusters.wait_until(cluster.idle, 30, "the request to be over everywhere")
        return tuple(now - then for now, then in zip(counted(), before))
    prompt = tokens(10 * PAGE, seed=12)
    bytes_total, reused = sent_by(prompt)
    assert reused == 0
    page_bytes = bytes_total / 10
    assert sent_by(prompt) == (page_bytes, 9), "the last page is always sent"
    assert sent_by(prompt[:5 * PAGE] + tokens(2 * PAGE, seed=13)) == (2 * page_bytes, 5)


def test_salts_keep_prompts_apart(served, oracle):
    cluster, client = served
    prompt = tokens(100, seed=7)
    assert answer_of(client, oracle, prompt) == 0
    assert answer_of(client, oracle, prompt, cache_salt="mine") == 0
    assert answer_of(client, oracle, prompt, cache_salt="mine") == cached_of(100)
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
    for field, cached in (({}, cached_of(100)), ({"cache_salt": "mine"}, cached_of(100)), ({"cache_salt": "other"}, 0),
                          ({"extra_key": "mine"}, 0), ({"extra_key": "mine"}, cached_of(100))):
        status, answer = cluster.post("/v1/completions", {**body, **field})
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached, field
    status, answer = cluster.post("/v1/completions", {**body, "cache_salt": "s" * 1_000_000})
    assert status == 400 and answer["error"]["param"] == "cache_salt", answer
    status, answer = cluster.post("/v1/completions", {**body, "cache_salt": 7})
    assert status == 400 and answer["error"]["param"] == "cache_salt", answer


def test_a_flush_empties_it(served, oracle):
    cluster, client = served
    prompt = tokens(100, seed=8)
    answer_of(client, oracle, prompt)
    for method in ("POST", "GET"):
        assert answer_of(client, oracle, prompt) == cached_of(100)
        clusters.wait_until(cluster.idle, 30, "the request to be over on every stage")  # Pages in use are kept.
        status, text = cluster.post("/flush_cache", {}) if method == "POST" else cluster.get("/flush_cache")
        assert status == 200 and "pages are free" in text, text
        assert answer_of(client, oracle, prompt) == 0


def test_log_probabilities_of_a_cached_prompt_are_told(served):
    cluster, _ = served
    prompt = tokens(70, seed=9)
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    first, second = (cluster.post("/v1/completions", body) for _ in range(2))
    assert first[0] == second[0] == 200, second
    assert first[1]["choices"] == second[1]["choices"]
    assert second[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_metrics_and_streams_tell_of_it(served):
    cluster, _ = served
    name = next(name for name in cluster.processes if name.startswith(("prefill-0-0", "colocated-0-0")))
    before = cluster.metric(name, "baton_cached_prompt_tokens_total")
    body = {"model": "tiny", "prompt": tokens(80, seed=10), "max_tokens": 2, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    for cached in (0, cached_of(80)):
        status, text = cluster.post("/v1/completions", body)
        assert status == 200, text
        last = events(text)[-1]
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
    assert cluster.metric(name, "baton_cached_prompt_tokens_total") == before + cached_of(80)
    assert cluster.metric(name, "baton_prefix_cache_pages") > 0
    assert cluster.metric(name, "baton_prefix_cache_evicted_pages_total") > 0, "by the company above"


def test_it_can_be_turned_off(tiny_model, tmp_path, oracle):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, chains=0, decodes=0, colocated=1,
                          flags=[*FLAGS, "--disable-radix-cache"]) as cluster, Client(cluster.target) as client:
        prompt = tokens(100, seed=11)
        assert [answer_of(client, oracle, prompt) for _ in range(2)] == [0, 0]
        assert cluster.get("/flush_cache")[0] == 200
