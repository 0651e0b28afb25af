"""Decode services that are pipelines of stages, of one or several ranks each: their text is that of one process behind
any chain, whatever else a request asks for; a stage that dies or stands still ends its own service's requests alone,
and routers go on with them; what cannot be is refused before anything starts."""

import itertools
import os
import signal
import subprocess

import pytest

import cluster as clusters
import test_growth as growth
from client import Client
from remembered import RememberedOracle
from test_tensor_parallel import (CHUNK, COUNT, FLAGS, LENGTHS, bystanders, check_stranger, greedy_text, kill_rounds,
                                  prompts_of, standstill_rounds)
from test_up import Up

ROUNDS = 2
# Stages and ranks of each; the model has four heads and two KV heads.
PREFILLS = [(1, 1), (2, 1), (1, 2), (4, 1)]
DECODES = [(2, 1), (2, 2), (3, 1)]
# Every chain and every service in some row; `./dev check parity` has all pairs.
PAIRS = [((1, 1), (2, 1)), ((2, 1), (2, 2)), ((1, 2), (3, 1)), ((4, 1), (2, 2)), ((4, 1), (3, 1)), ((1, 2), (2, 1))]
ROWS = list(itertools.product(PREFILLS, DECODES)) if os.environ.get("WHOLE_PARITY") else PAIRS


def members_of(stages, ranks, decode=0):
    return [f"decode-{decode}-{stage}" + (f"-{rank}" if ranks > 1 else "")
            for stage, rank in itertools.product(range(stages), range(ranks))]


@pytest.mark.parametrize("prefill, decode", ROWS, ids=lambda shape: "x".join(map(str, shape)))
def test_text_is_that_of_one_process(tiny_model, tmp_path, prefill, decode):
    model, prompts = RememberedOracle(tiny_model), prompts_of(LENGTHS)
    with clusters.Cluster(tiny_model, tmp_path, stages=prefill[0], ranks=prefill[1], decode_stages=decode[0],
                          decode_ranks=decode[1], flags=FLAGS, prefill_flags=CHUNK) as cluster, \
            Client(cluster.target) as client:
        answers = client.greedy_at_once(prompts, COUNT)
        assert all(answer.error is None for answer in answers), answers
        assert [answer.tokens for answer in answers] == [model.greedy(prompt, COUNT) for prompt in prompts]
        clusters.wait_until(cluster.idle, 10, "pages to come back")
        for member in members_of(*decode):
            assert cluster.metric(member, "baton_kv_transfer_bytes_total") > 0


# What the last stage draws with comes by way of the first: grammars, penalties, seeds, and texts that gave way.
def test_what_a_request_asks_for_reaches_the_stage_that_draws(tiny_model, tmp_path):
    oracle, prompts = RememberedOracle(tiny_model), [growth.prompt_of(length) for length in growth.LENGTHS]
    router = ["--served-model-name", "tiny"]
    with clusters.Cluster(tiny_model, tmp_path / "whole", stages=1, flags=FLAGS, router_flags=router) as cluster:
        whole = {kind: growth.choices_of(cluster, **fields) for kind, fields in growth.SPECIAL.items()}
    with clusters.Cluster(tiny_model, tmp_path / "staged", stages=2, decode_stages=2, flags=growth.FLAGS,
                          router_flags=router, decode_flags=growth.GROWING) as cluster, \
            Client(cluster.target) as client:
        assert {kind: growth.choices_of(cluster, **fields) for kind, fields in growth.SPECIAL.items()} == whole
        answers = client.greedy_at_once(prompts, growth.COUNT)
        for prompt, answer in zip(prompts, answers):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, growth.COUNT)
        clusters.wait_until(lambda: growth.retractions(cluster, "decode-0-0") > 0, 5, "a retraction")
        clusters.wait_until(cluster.idle, 10, "pages to come back")


@pytest.fixture(scope="module")
def two_decodes(tiny_model, tmp_path_factory):
    with bystanders(tiny_model, tmp_path_factory, decodes=2, decode_stages=2) as group:
        yield group


VICTIMS = ["decode-0-0", "decode-1-1"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_kill_of_a_stage_harms_only_its_own_service(two_decodes, victim, record_property):
    kill_rounds(two_decodes, victim, ROUNDS, record_property)


def test_a_stage_that_stands_still_is_noticed(two_decodes, record_property):
    standstill_rounds(two_decodes, VICTIMS[1], 1, record_property)


@pytest.mark.parametrize("more, words", [
    ([], ["rank 1 of decode service 0 is taken", "stranger wants it, decode-0-1 has it"]),
    (["--pp-size=3"], ["pp_size of decode service 0 differs: stranger has 3, decode-0-", "has 2"]),
    (["--pp-layer-partition=2,4"], ["layers", "of decode service 0", "stranger", "[2, 6)", "decode-0-", "[0, 3)"]),
    (["--page-size=64"], ["page size differs: stranger has 64", "has 16"]),
], ids=["the same place", "another size", "other layers", "other pages"])
def test_a_stage_that_does_not_fit_is_refused_with_both_sides(two_decodes, more, words):
    check_stranger(two_decodes[0], "decode-0-1", more, words)


@pytest.mark.parametrize("command, flags, words", [
    ("validate", ["--decode-pp-size=7"], ["decode_pp_size", "7 stages for 6 layers"]),
    ("up", ["--decode-pp-size=7"], ["decode_pp_size", "7 stages for 6 layers"]),
    ("up", ["--decode-pp-size=2", "--decode-pp-layer-partition=4,3"], ["decode_pp_layer_partition", "sums to 7"]),
    ("validate", ["--decode-pp-size=2", "--decode-pp-layer-partition=6"], ["decode_pp_layer_partition", "1 stages"]),
    ("validate", ["--decode-pp-size=2", "--decode-pp-layer-partition=auto"], ["decode_pp_layer_partition", "got auto"]),
    ("serve", ["--decode-pp-size=2"], ["decode_pp_size"]),
    ("worker", ["--pp-size=7"], ["pp_size", "7 stages for 6 layers"]),
    ("worker", ["--pp-size=2", "--pp-rank=2"], ["pp_rank", "less than pp_size = 2"]),
    ("worker", ["--pp-size=2", "--pp-layer-partition=2,2"], ["pp_layer_partition", "sums to 4", "6 layers"]),
    ("worker", ["--pp-size=2", "--pp-layer-partition=2,2,2"], ["pp_layer_partition", "3 stages", "pp_size = 2"]),
    ("worker", ["--pp-size=2", "--pp-layer-partition=auto"], ["pp_layer_partition", "auto", "decode service"]),
    ("worker", ["--decode-index=3", "--pp-size=2", "--pp-rank=1"], ["decode_index", "pp_rank = 1"]),
])
def test_stages_that_cannot_be_are_refused_before_a_start(tiny_model, command, flags, words):
    mode = ["--disaggregation-mode=decode"] if command == "worker" else []
    done = subprocess.run([clusters.BATON, command, "--model-path", tiny_model, *mode, *flags], capture_output=True,
                          text=True, timeout=60 * clusters.PATIENCE, check=False)
    assert done.returncode != 0
    for word in words:
        assert word in done.stdout + done.stderr, done


def test_up_starts_every_stage_of_a_decode_service(tiny_model):
    stages = ["decode-0-0", "decode-0-1"]
    with Up(tiny_model, "--pp-size=3", "--pp-layer-partition=1,2,3", "--decode-pp-size=2",
            "--decode-pp-layer-partition=5,1") as up:
        http, _ = up.wait_ready()
        assert list(up.table()) == ["router", "prefill-0-0", "prefill-0-1", "prefill-0-2", *stages]
        before = greedy_text(http)
        assert before
        old = up.children()["decode-0-1"]
        os.kill(old, signal.SIGKILL)
        up.wait_line(r"decode-0-1 +\| was ended by signal 9")
        clusters.wait_until(lambda: up.children().get("decode-0-1", old) != old, 30, "another stage")
        assert greedy_text(http) == before


def test_validate_tells_the_memory_of_each_stage(tiny_model):
    for more, middle in [([], 3), (["--decode-pp-layer-partition=4,2"], 4)]:
        done = subprocess.run([clusters.BATON, "validate", "--model-path", tiny_model, "--decode-pp-size=2", *more],
                              capture_output=True, text=True, timeout=60 * clusters.PATIENCE, check=False)
        assert "1 decode of 2 stages" in done.stdout, done
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith("decode ")]
        assert [row[:2] for row in rows] == [["decode", "0"], ["decode", "1"]], done
        assert ["[0,", f"{middle})"] == rows[0][3:5] and [f"[{middle},", "6)"] == rows[1][3:5], rows
