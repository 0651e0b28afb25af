"""Clusters whose layers libtorch computes: the oracle's tokens, alone and in one cluster with Baton's own kernels."""

import random
import subprocess

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle

COUNT = 12
LENGTHS = [1, 17, 64, 300]
TORCH = ["--executor", "torch"]


@pytest.fixture(scope="module")
def expected(tiny_model):
    oracle = RememberedOracle(tiny_model)
    prompts = [[random.Random(length).randrange(256) for _ in range(length)] for length in LENGTHS]
    return [(prompt, oracle.greedy(prompt, COUNT)) for prompt in prompts]


@pytest.mark.parametrize("prefill,decode", [(TORCH, TORCH), (TORCH, []), ([], TORCH)],
                         ids=["everywhere", "prefill", "decode"])
def test_greedy_tokens_are_the_oracles(tiny_model, expected, tmp_path, prefill, decode):
    flags = ["--page-size", 16, "--dtype", "float32", "--kv-cache-dtype", "float32"]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=flags,
                          prefill_flags=["--chunked-prefill-size", 64, *prefill],
                          decode_flags=decode) as cluster, Client(cluster.target) as client:
        answers = client.greedy_at_once([prompt for prompt, _ in expected], COUNT)
        for (prompt, tokens), answer in zip(expected, answers):
            assert answer.error is None, answer.error
            assert answer.tokens == tokens, f"prompt of {len(prompt)} tokens"


def test_a_device_that_is_not_there_ends_the_start_with_its_name(tiny_model):
    arguments = [clusters.BATON, "worker", "--model-path", tiny_model, "--disaggregation-mode", "decode",
                 "--router-address", "127.0.0.1:1", "--metrics-port", clusters.free_ports(1)[0], *TORCH, "--device"]
    refused = subprocess.run([*map(str, arguments), "cuda:3"], capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode != 0
    assert "cuda:3" in refused.stderr and "computes on the CPU alone" in refused.stderr, refused.stderr
