"""Clusters whose weights, activations and KV are bfloat16: greedy output equals the float32 oracle's where its
logits are apart, and does not depend on the number of stages; processes of different types refuse each other."""

import random

import numpy as np
import pytest

import cluster as clusters
import oracle
from client import Client

COUNT = 16
LONG_COUNT = 64
LENGTHS = [17, 64, 100, 300]
LEAD = 0.04  # Of the largest logit: what rounding moves a logit by, and room.
FLAGS = ["--page-size", 16, "--kv-cache-tokens", 8192]


@pytest.fixture(scope="module")
def narrow_model(tmp_path_factory):
    return clusters.make_model(tmp_path_factory.mktemp("narrow") / "tiny", layers=6, dtype="bfloat16")


def greedy_while_apart(model, prompt):
    """The oracle's next tokens up to the first that another one comes near."""
    tokens, cache, begin = list(prompt), {}, 0
    while len(tokens) < len(prompt) + COUNT:
        logits = model.logits(tokens[begin:], begin, cache)
        second, first = np.sort(logits)[-2:]
        if first - second < LEAD * np.abs(logits).max():
            break
        begin = len(tokens)
        tokens.append(int(np.argmax(logits)))
    return tokens[len(prompt):]


@pytest.fixture(scope="module")
def expected(narrow_model):
    """Prompts and what follows each; of those that were drawn the most decided of each length."""
    model = oracle.Oracle(narrow_model)
    chosen = []
    for length in LENGTHS:
        draws = [[random.Random(1000 * length + i).randrange(256) for _ in range(length)] for i in range(6)]
        chosen.append(max(((prompt, greedy_while_apart(model, prompt)) for prompt in draws),
                          key=lambda pair: len(pair[1])))
    assert sum(len(tokens) for _, tokens in chosen) >= 20, "the logits are near ties: this tests nothing"
    return chosen


def long_answers(model, directory, stages, flags):
    directory.mkdir()
    with clusters.Cluster(model, directory, stages=stages, flags=[*FLAGS, *flags],
                          prefill_flags=["--chunked-prefill-size", 64]) as cluster, Client(cluster.target) as client:
        prompts = [[random.Random(i).randrange(256) for _ in range(LENGTHS[i])] for i in range(len(LENGTHS))]
        answers = client.greedy_at_once(prompts, LONG_COUNT)
        assert all(answer.error is None for answer in answers), answers
        return cluster, [answer.tokens for answer in answers]


@pytest.mark.parametrize("kv", ["bfloat16", "float32"])
def test_equals_the_oracle_where_its_logits_are_apart(narrow_model, expected, tmp_path, kv):
    flags = [*FLAGS, "--dtype", "bfloat16", "--kv-cache-dtype", kv]
    with clusters.Cluster(narrow_model, tmp_path, stages=3, flags=flags,
                          prefill_flags=["--chunked-prefill-size", 64]) as cluster, Client(cluster.target) as client:
        answers = client.greedy_at_once([prompt for prompt, _ in expected], COUNT)
        for (prompt, tokens), answer in zip(expected, answers):
            assert answer.error is None, answer.error
            assert answer.tokens[:len(tokens)] == tokens, f"prompt of {len(prompt)} tokens"
        cluster.processes["decode-0"].wait_log(f"MiB of {kv})")


def test_stages_change_no_token_and_auto_is_the_checkpoints_type(narrow_model, tmp_path):
    explicit = ["--dtype=bfloat16", "--kv-cache-dtype=bfloat16"]
    cluster, alone = long_answers(narrow_model, tmp_path / "one", 1, explicit)
    _, chain = long_answers(narrow_model, tmp_path / "three", 3, [])
    assert chain == alone
    cluster.processes["decode-0"].wait_log("of 6 in bfloat16, KV cache")


@pytest.mark.parametrize("flag,why", [
    ("--kv-cache-dtype=float32", "type of KV (bytes per element) differs: stranger has float32 (4), "),
    ("--dtype=float32", "dtype differs: stranger has float32, "),
])
def test_another_type_is_refused_at_join_with_both_sides(narrow_model, tmp_path, flag, why):
    flags = [*FLAGS, "--kv-cache-dtype=bfloat16"]
    with clusters.Cluster(narrow_model, tmp_path, flags=flags) as cluster:
        decode = cluster.processes["decode-0"]
        arguments = ["stranger" if argument == "decode-0" else argument for argument in decode.arguments[1:]]
        port = clusters.free_ports(1)[0]
        arguments[arguments.index("--metrics-port") + 1] = str(port)
        stranger = clusters.Process("stranger", [*arguments, flag], cluster.log_dir, cluster.environment)
        stranger.start()
        try:
            clusters.wait_until(lambda: why in stranger.log() and "has bfloat16" in stranger.log(), 30,
                                f"the stranger to say why:\n{stranger.log()}")
        finally:
            stranger.stop()
