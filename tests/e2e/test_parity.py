"""Greedy output through the whole cluster equals the oracle's, token for token, however the work is
split: stages, chunk sizes and the rules that set them, plans in flight, page sizes, one or sixteen requests at once,
shared memory or TCP."""

import random

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle

COUNT = 12
PARTITIONS = {1: None, 2: None, 3: "1,2,3", 4: None, 6: None}
MIXED = [1, 15, 16, 17, 63, 64, 65, 100, 200, 255, 256, 257, 400, 512, 777, 1000]
LONG = 8000
PAGES = [16, 64]
CHUNKS = [64, 256, -1]
POLICIES = ["fixed", "sglang", "optimal"]


def prompt_of(length):
    return [random.Random(length).randrange(256) for _ in range(length)]


@pytest.fixture(scope="module")
def expected(tiny_model):
    """The oracle's answers by prompt length, computed once."""
    oracle, answers = RememberedOracle(tiny_model), {}

    def answer(length):
        if length not in answers:
            answers[length] = oracle.greedy(prompt_of(length), COUNT)
        return answers[length]
    return answer


def check(client, expected, lengths, at_once):
    prompts = [prompt_of(length) for length in lengths]
    answers = (client.greedy_at_once(prompts, COUNT) if at_once
               else [client.greedy(prompt, COUNT) for prompt in prompts])
    for length, answer in zip(lengths, answers):
        assert answer.error is None, f"prompt of {length} tokens: {answer.error}"
        assert answer.tokens == expected(length), f"prompt of {length} tokens"
        assert answer.finished.usage.prompt_tokens == length
        assert answer.finished.usage.completion_tokens == COUNT


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("stages", sorted(PARTITIONS))
def test_equals_the_oracle(tiny_model, expected, tmp_path, stages, chunk, page, transport):
    flags = ["--page-size", page, "--kv-cache-tokens", 16384]
    # Every rule with every chunk size and transport, and each of one to four plans, on some number of stages.
    policy = POLICIES[(stages + PAGES.index(page)) % len(POLICIES)]
    plans = 1 + (stages + CHUNKS.index(chunk)) % 4
    with clusters.Cluster(tiny_model, tmp_path, stages=stages, partition=PARTITIONS[stages], flags=flags,
                          prefill_flags=["--chunked-prefill-size", chunk, "--chunk-policy", policy,
                                         "--plans-in-flight", plans],
                          decode_flags=["--max-running-requests", 16],
                          environment={"UCX_TLS": f"{transport},self"}) as cluster, \
            Client(cluster.target) as client:
        check(client, expected, [1, page], at_once=False)
        check(client, expected, MIXED, at_once=True)
        # The longest prompt once for each number of stages and transport, under every chunk size.
        if page == 64:
            check(client, expected, [LONG], at_once=False)
