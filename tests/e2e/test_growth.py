"""A decode service with pages for few of its texts: the youngest give way, are read again there, and go on."""

import concurrent.futures

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle

COUNT = 200
LENGTHS = (10, 20, 30, 40, 50, 17, 33, 16)
FLAGS = ["--page-size", 16, "--kv-cache-tokens", 640]
GROWING = ["--num-reserved-decode-tokens", 8, "--failpoints", "decode.step=delay:2"]


def prompt_of(length):
    return [(7 * i + length) % 256 for i in range(length)]


def retractions(cluster, decode):
    return cluster.metric(decode, "baton_retractions_total")


def choices_of(cluster, **fields):
    status, body = cluster.post("/v1/completions", {"model": "tiny", "prompt": "Tell me", "max_tokens": COUNT,
                                                    **fields})
    assert status == 200, body
    return [choice["text"] for choice in sorted(body["choices"], key=lambda choice: choice["index"])]


SPECIAL = {
    "penalised": {"temperature": 0, "presence_penalty": 1.5, "repetition_penalty": 1.3},
    "structured": {"temperature": 1, "seed": 3, "guided_regex": "([a-z]+, ){20,}[A-Z]{9}"},
    "several": {"temperature": 1, "seed": 5, "n": 3},
}


@pytest.mark.parametrize("ranks, resumes", [(1, 3), (1, 0), (2, 0)])
def test_texts_that_give_way_are_the_same(tiny_model, tmp_path, ranks, resumes):
    """With --max-resumes 0, too: routers notice nothing. The texts want several times the pages that there are."""
    oracle = RememberedOracle(tiny_model)
    prompts = [prompt_of(length) for length in LENGTHS]
    decode = "decode-0" if ranks == 1 else "decode-0-0"
    with clusters.Cluster(tiny_model, tmp_path, stages=2, decode_ranks=ranks, flags=FLAGS, decode_flags=GROWING,
                          router_flags=["--served-model-name", "tiny", "--max-resumes", resumes]) as cluster, \
            Client(cluster.target) as client:
        alone = {kind: choices_of(cluster, **fields) for kind, fields in SPECIAL.items()}
        before = retractions(cluster, decode)
        with concurrent.futures.ThreadPoolExecutor(len(SPECIAL)) as pool:
            beside = {kind: pool.submit(choices_of, cluster, **fields) for kind, fields in SPECIAL.items()}
            answers = client.greedy_at_once(prompts, COUNT)
            for kind, texts in beside.items():
                assert texts.result() == alone[kind], kind
        for prompt, answer in zip(prompts, answers):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, COUNT)
        clusters.wait_until(lambda: retractions(cluster, decode) > before, 5, "a retraction")
        assert cluster.metric("router", "baton_request_retries_total", leg="decode", reason="failure") == 0
        clusters.wait_until(cluster.idle, 10, "pages to come back")


def test_texts_without_a_bound_run_beside_one_another(tiny_model, tmp_path):
    """A request without max_tokens may have the whole pool. It does not hold it before it has the text."""
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=FLAGS, decode_flags=GROWING,
                          router_flags=["--served-model-name", "tiny"]) as cluster, \
            concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = [pool.submit(choices_of, cluster, max_tokens=None, temperature=1, seed=seed, guided_regex="[a-z]{150}")
                 for seed in range(4)]
        clusters.wait_until(lambda: cluster.metric("decode-0", "baton_requests_running") >= 3, 30, "three at once")
        assert all(len(text.result()[0]) == 150 for text in texts)
