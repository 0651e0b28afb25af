"""Decode services of several processes: their text is that of one process, whatever the number of ranks on either
side; a rank that dies or stands still ends its own service's requests alone, in time and by name, and the service
comes back."""

import os
import signal
import subprocess
import threading

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle
from test_chaos import run_under_load
from test_cluster import drain, listed
from test_tensor_parallel import (CHUNK, COUNT, FLAGS, LENGTHS, ROUNDS, bystanders, check_stranger, greedy_text,
                                  kill_rounds, prompts_of, standstill_rounds)
from test_up import Up

# (stages, ranks of each, ranks of decode); the model has four heads and two KV heads.
SHAPES = {
    "one to two": (1, 1, 2),
    "two to two": (2, 2, 2),
    "one to four": (2, 1, 4),
    "two to four": (1, 2, 4),
    "four to two": (1, 4, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_text_is_that_of_one_process(tiny_model, tmp_path, shape):
    stages, ranks, decode_ranks = SHAPES[shape]
    model, prompts = RememberedOracle(tiny_model), prompts_of(LENGTHS)
    with clusters.Cluster(tiny_model, tmp_path, stages=stages, ranks=ranks, decode_ranks=decode_ranks, flags=FLAGS,
                          prefill_flags=CHUNK) as cluster, Client(cluster.target) as client:
        answers = client.greedy_at_once(prompts, COUNT)
        assert all(answer.error is None for answer in answers), answers
        assert [answer.tokens for answer in answers] == [model.greedy(prompt, COUNT) for prompt in prompts]
        clusters.wait_until(cluster.idle, 10, "pages to come back")
        for rank in range(decode_ranks):
            assert cluster.metric(f"decode-0-{rank}", "baton_kv_transfer_bytes_total") > 0


@pytest.fixture(scope="module")
def two_decodes(tiny_model, tmp_path_factory):
    with bystanders(tiny_model, tmp_path_factory, decodes=2, decode_ranks=2) as group:
        yield group


VICTIMS = ["decode-0-0", "decode-1-1"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_kill_of_a_rank_harms_only_its_own_service(two_decodes, victim, record_property):
    kill_rounds(two_decodes, victim, ROUNDS, record_property)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_rank_that_stands_still_is_noticed(two_decodes, victim, record_property):
    standstill_rounds(two_decodes, victim, ROUNDS, record_property)


def test_a_rank_that_drains_drains_its_service(tiny_model, tmp_path):
    prompts = prompts_of([150 + 40 * i for i in range(8)])
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decodes=2, decode_ranks=2, flags=FLAGS,
                          prefill_flags=CHUNK) as cluster:
        done = []
        drains = threading.Thread(target=lambda: done.append(drain(cluster, "decode-1-1")))
        answers, _ = run_under_load(cluster, prompts, drains.start)
        drains.join()
        assert all(answer.error is None for answer in answers), [answer.error for answer in answers]
        assert done[0].returncode == 0 and "decode-1-1 has left after" in done[0].stdout, done
        assert "decode-1-1" not in listed(cluster)
        assert cluster.processes["decode-1-1"].popen.wait(20 * clusters.PATIENCE) == 0
        assert cluster.metric("router", "baton_ready_pairs") == 1


@pytest.mark.parametrize("more, words", [
    ([], ["tensor-parallel rank 1 of decode service 0 is taken", "stranger wants it, decode-0-1 has it"]),
    (["--tp-size=4"], ["tp_size of decode service 0 differs: stranger has 4, decode-0-", "has 2"]),
], ids=["the same place", "another size"])
def test_a_rank_that_does_not_fit_is_refused_with_both_sides(two_decodes, more, words):
    check_stranger(two_decodes[0], "decode-0-1", more, words)


def test_up_starts_every_rank_of_a_decode_service(tiny_model):
    ranks = ["decode-0-0", "decode-0-1"]
    with Up(tiny_model, "--tp-size=2", "--pp-size=1", "--decode-tp-size=2") as up:
        http, _ = up.wait_ready()
        assert list(up.table()) == ["router", "prefill-0-0-0", "prefill-0-0-1", *ranks]
        before = greedy_text(http)
        assert before
        old = up.children()["decode-0-1"]
        os.kill(old, signal.SIGKILL)
        up.wait_line(r"decode-0-1 +\| was ended by signal 9")
        clusters.wait_until(lambda: up.children().get("decode-0-1", old) != old, 30, "another rank")
        assert greedy_text(http) == before


def test_validate_tells_the_memory_of_each_rank(tiny_model):
    done = subprocess.run([clusters.BATON, "validate", "--model-path", tiny_model, "--decode-tp-size=2"],
                          capture_output=True, text=True, timeout=60 * clusters.PATIENCE, check=False)
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "decode.0" in lines and "decode.>0" in lines, done
