"""Real processes beside Hugging Face's own tokens (common/engine/testdata/parity): both executors on either side of the
hand-off, the families, stages and ranks, row-parallel chunks and types of elements. Every value of every axis, and
every executor with every number of ranks; //common/engine:parity_matrix_test has all pairs in one process."""

import itertools
import json
import pathlib
import platform
import shutil

import numpy as np
import pytest

import cluster as clusters
import oracle
from client import Client
from remembered import RememberedOracle
from test_element_types import LEAD

FIXTURES = clusters.ROOT / "common" / "engine" / "testdata" / "parity"
STEPS = 64
PARTITIONS = {1: None, 2: None, 3: "1,2,1"}
# Family; prefill: executor, stages, ranks, row-parallel chunks; decode: executor, ranks; types of weights and of KV.
ROWS = [
    ("llama3", "native", 1, 1, 1, "torch", 4, "float32", "float32"),
    ("qwen2", "torch", 1, 2, 4, "native", 2, "float32", "float32"),
    ("qwen3", "torch", 2, 2, 8, "torch", 2, "bfloat16", "bfloat16"),
    ("qwen2", "torch", 1, 4, 2, "native", 1, "float32", "bfloat16"),
    ("llama3", "native", 3, 2, 4, "native", 4, "float32", "float32"),
    ("qwen3", "torch", 2, 1, 1, "torch", 1, "bfloat16", "float32"),
    ("qwen2", "native", 1, 4, 8, "native", 2, "bfloat16", "bfloat16"),
]


def test_every_value_of_every_axis_is_in_some_row():
    axes = [{"llama3", "qwen2", "qwen3"}, {"native", "torch"}, None, None, {1, 2, 4, 8}, {"native", "torch"}, {1, 2, 4},
            {"float32", "bfloat16"}, {"float32", "bfloat16"}]
    for at, values in enumerate(axes):
        assert values is None or {row[at] for row in ROWS} == values, at
    assert {row[2:4] for row in ROWS} == {(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (3, 2)}
    # Alone or one of several, which is what an executor sees.
    both = set(itertools.product(["native", "torch"], [False, True]))
    assert {(row[1], row[3] > 1) for row in ROWS} == {(row[5], row[6] > 1) for row in ROWS} == both


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The fixtures' directories with a tokenizer, which a router needs, by family."""
    folder = tmp_path_factory.mktemp("models")
    bytes_of = pathlib.Path(clusters.make_model(folder / "bytes", layers=1, vocab_size=300))
    made = {}
    for family in ("llama3", "qwen2", "qwen3"):
        made[family] = folder / family
        shutil.copytree(FIXTURES / family, made[family])
        for path in bytes_of.glob("tokenizer*"):
            shutil.copy(path, made[family])
    return made


def first_difference(tokens, others):
    return next((i for i, (mine, other) in enumerate(zip(tokens, others)) if mine != other), len(tokens))


def rounding(executors):
    """What rounding moves a logit by, of the largest. Without AVX-512 libtorch 1.13 multiplies by loops of its own,
    which round more often (common/engine/testing/parity_fixtures.h)."""
    features = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    loops = platform.machine() != "x86_64" or "avx512bw" not in features
    return 0.07 if "torch" in executors and loops else LEAD


def check_but_for_ties(exact, prompt, tokens, hugging_faces, lead):
    """Rounding may turn near ties: until then the tokens are Hugging Face's, and each is one that the float32 oracle's
    logits, after the tokens before it, have less than rounding's error below the best."""
    cache, begin, whole = {}, 0, list(prompt)
    turned = first_difference(tokens, hugging_faces)
    for step, token in enumerate(tokens):
        logits = exact.logits(whole[begin:], begin, cache)
        error = lead * np.abs(logits).max()
        assert logits[token] > logits.max() - error, f"step {step}"
        if step == turned:
            assert abs(logits[token] - logits[hugging_faces[step]]) < error, f"step {step} is no near tie"
        begin = len(whole)
        whole.append(token)
    return turned


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_tokens_are_hugging_faces(models, tmp_path, row, record_property):
    family, prefill, stages, ranks, chunks, decode, decode_ranks, dtype, kv = row
    model = models[family]
    cases = json.loads((model / "expected.json").read_text(encoding="utf-8"))["cases"]
    with clusters.Cluster(model, tmp_path, stages=stages, ranks=ranks, decode_ranks=decode_ranks,
                          partition=PARTITIONS[stages],
                          flags=["--page-size", 16, "--kv-cache-tokens", 2048, "--dtype", dtype,
                                 "--kv-cache-dtype", kv],
                          prefill_flags=["--executor", prefill, "--chunked-prefill-size", 64, "--row-parallel-chunks",
                                         chunks, "--row-parallel-chunk-threshold", 1],
                          decode_flags=["--executor", decode]) as cluster, Client(cluster.target) as client:
        answers = client.greedy_at_once([case["prompt"] for case in cases], STEPS)
        clusters.wait_until(cluster.idle, 10, "pages to come back")
    exact = oracle.Oracle(model)
    turned = []
    for case, answer in zip(cases, answers):
        assert answer.error is None, answer.error
        assert len(answer.tokens) == STEPS
        if (dtype, kv) == ("float32", "float32"):
            assert answer.tokens == case["greedy"], f"prompt of {len(case['prompt'])} tokens"
            assert answer.tokens == RememberedOracle(model).greedy(case["prompt"], STEPS)
            continue
        theirs = case["greedy"] if dtype == "float32" else case["bfloat16"]["greedy"]
        turned.append(check_but_for_ties(exact, case["prompt"], answer.tokens, theirs, rounding({prefill, decode})))
    record_property("equal_until_step", turned)
