"""Chains whose stages are several processes: their text is that of one process and depends on no way to cut the work,
a rank that dies or stands still harms its own chain alone, and what does not fit is refused with both sides."""

import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest

import cluster as clusters
import oracle
from client import Client
from remembered import RememberedOracle
from test_chaos import END_SECONDS, incarnations, run_under_load, wait_joined
from test_cluster import drain, listed
from test_element_types import greedy_while_apart
from test_membership import like
from test_up import Up

# Of each disruption of each victim; `./dev check ranks` has more.
ROUNDS = int(os.environ.get("RANK_CHAOS_ROUNDS", "2"))
ONLY_CHAIN_ROUNDS = int(os.environ.get("RANK_CHAOS_ROUNDS", "1"))
COUNT = 60
LENGTHS = [17, 64, 100, 300]
FLAGS = ["--page-size", 16]
CHUNK = ["--chunked-prefill-size", 64]
# (stages, ranks, flags of the prefill workers); the model has four heads and two KV heads, so with four ranks each
# two compute the same keys and values, and one of them hands them over.
SHAPES = {
    "slices": (2, 2, []),
    "whole activations": (2, 2, ["--pp-send-slice=false"]),
    "rows in four": (2, 2, ["--row-parallel-chunks", 4, "--row-parallel-chunk-threshold", 16]),
    "one stage": (1, 2, []),
    "more ranks than KV heads": (2, 4, []),
}


def prompts_of(lengths):
    return [[random.Random(i).randrange(256) for _ in range(length)] for i, length in enumerate(lengths)]


def answers_of(model, directory, shape, prompts, count, flags=()):
    """Tokens by a new cluster of this shape, all prompts at once."""
    stages, ranks, own = SHAPES[shape]
    directory.mkdir()
    with clusters.Cluster(model, directory, stages=stages, ranks=ranks, flags=[*FLAGS, *flags],
                          prefill_flags=[*CHUNK, *own]) as cluster, Client(cluster.target) as client:
        answers = client.greedy_at_once(prompts, count)
        assert all(answer.error is None for answer in answers), answers
        clusters.wait_until(cluster.idle, 10, "pages to come back")
        return [answer.tokens for answer in answers]


@pytest.mark.parametrize("shape", SHAPES)
def test_text_is_that_of_one_process(tiny_model, tmp_path, shape):
    model, prompts = RememberedOracle(tiny_model), prompts_of(LENGTHS)
    answers = answers_of(tiny_model, tmp_path / "cluster", shape, prompts, COUNT)
    assert answers == [model.greedy(prompt, COUNT) for prompt in prompts]


def test_in_bfloat16_nothing_but_the_number_of_ranks_moves_a_token(tmp_path):
    """bfloat16 rounds, so that any sum in another order would show; the oracle decides where its logits are apart."""
    model = clusters.make_model(tmp_path / "narrow", layers=6, dtype="bfloat16")
    prompts = prompts_of(LENGTHS)
    answers = {shape: answers_of(model, tmp_path / shape, shape, prompts, COUNT)
               for shape in SHAPES if SHAPES[shape][1] == 2}
    assert all(tokens == answers["slices"] for tokens in answers.values()), answers
    exact = oracle.Oracle(model)
    decided = [greedy_while_apart(exact, prompt) for prompt in prompts]
    assert sum(map(len, decided)) >= 4, "the logits are near ties: this tests nothing"
    for wanted, tokens in zip(decided, answers["slices"]):
        assert tokens[:len(wanted)] == wanted


@contextlib.contextmanager
def bystanders(model, tmp_path_factory, **shape):
    """A cluster of two chains or two decode services, so that a victim always has bystanders; prompts for it, and
    their tokens."""
    prompts = prompts_of([150 + 40 * i for i in range(8)])
    oracle = RememberedOracle(model)
    with clusters.Cluster(model, tmp_path_factory.mktemp("logs"), stages=2, flags=FLAGS, prefill_flags=CHUNK,
                          router_flags=["--load-balance-policy", "round_robin"], **shape) as cluster:
        expected = [oracle.greedy(prompt, COUNT) for prompt in prompts]
        check_serves(cluster, prompts, expected)  # Each pair connects when it is used first.
        yield cluster, prompts, expected


@pytest.fixture(scope="module")
def two_chains(tiny_model, tmp_path_factory):
    with bystanders(tiny_model, tmp_path_factory, ranks=2, chains=2) as group:
        yield group


def begun_again(cluster):
    """Requests that the router has begun again, since whoever had them failed before their first token."""
    return int(cluster.metric("router", "baton_request_retries_total", reason="failure"))


class Ends:
    """What became of the requests that a victim's ends met, over all rounds; the report of the run has it."""

    def __init__(self, victim, expected, cluster):
        self.victim, self.expected, self.cluster = victim, expected, cluster
        self.disruptions, self.seconds, self.unharmed = 0, [], 0
        self.begun_again_before = begun_again(cluster)
        self.sockets_before = self.sockets()

    def sockets(self):
        """Of each worker but the victim."""
        return {name: process.sockets() for name, process in self.cluster.processes.items()
                if name not in (self.victim, "router")}

    def check(self, answers, seconds):
        failed = [answer.error is not None for answer in answers]
        for tokens, answer, took in zip(self.expected, answers, seconds):
            if answer.error is None:
                assert answer.tokens == tokens, "a wrong answer"
                continue
            assert answer.code == grpc.StatusCode.UNAVAILABLE, answer.error
            assert self.victim in answer.error.details(), answer.error.details()
            assert answer.tokens == tokens[:len(answer.tokens)]
            assert took < END_SECONDS * clusters.PATIENCE, f"{took:.1f} s"
            self.seconds.append(took)
        # Round robin spreads them over both: at most half of them can be the victim's.
        assert sum(failed) <= len(answers) // 2
        self.disruptions += 1
        self.unharmed += len(answers) - sum(failed)

    def record(self, record_property):
        # No connection is left of those who went. A few come and go by themselves.
        clusters.wait_until(lambda: all(count <= self.sockets_before[name] + 3
                                        for name, count in self.sockets().items()), 10,
                            f"connections to go, to three more than {self.sockets_before}")
        record_property("disruptions", self.disruptions)
        record_property("ended", len(self.seconds))
        record_property("slowest_end_s", f"{max(self.seconds, default=0):.2f}")
        record_property("unharmed", self.unharmed)
        record_property("begun_again", begun_again(self.cluster) - self.begun_again_before)


def check_serves(cluster, prompts, expected):
    answers, _ = run_under_load(cluster, prompts, lambda: None)
    for answer, tokens in zip(answers, expected):
        assert answer.error is None, answer.error
        assert answer.tokens == tokens
    clusters.wait_until(cluster.idle, 15, "pages to come back")


def kill_rounds(group, victim, rounds, record_property):
    """The victim is killed under load, and started again: only requests that it had may end."""
    cluster, prompts, expected = group
    ends = Ends(victim, expected, cluster)
    for _ in range(rounds):
        old = (victim, incarnations(cluster)[victim])
        answers, seconds = run_under_load(cluster, prompts, cluster.processes[victim].kill)
        ends.check(answers, seconds)
        cluster.processes[victim].start()
        wait_joined(cluster, 30, f"{victim} to be in its group again", old)
        check_serves(cluster, prompts, expected)
    ends.record(record_property)


def standstill_rounds(group, victim, rounds, record_property):
    """The same where the victim stands still, and goes on when it has been given up."""
    cluster, prompts, expected = group
    ends = Ends(victim, expected, cluster)
    process = cluster.processes[victim]
    for _ in range(rounds):
        answers, seconds = run_under_load(cluster, prompts, lambda: process.signal(signal.SIGSTOP))
        try:
            ends.check(answers, seconds)
            clusters.wait_until(lambda: victim not in incarnations(cluster), 10, f"{victim} to be given up")
        finally:
            process.signal(signal.SIGCONT)
        wait_joined(cluster, 30, f"{victim} to come back")
        check_serves(cluster, prompts, expected)
    ends.record(record_property)


def check_stranger(cluster, place, more, words):
    """Another process that wants this one's place, with other options, is refused in these words."""
    stranger = like(cluster, place, "stranger", metrics_port=clusters.free_ports(1)[0])
    stranger.arguments.extend(more)
    stranger.start()
    try:
        clusters.wait_until(lambda: all(word in stranger.log() for word in words) or not stranger.alive(), 30,
                            f"the stranger to say why:\n{stranger.log()}")
        for word in words:
            assert word in stranger.log(), stranger.log()
        assert set(listed(cluster)) == set(cluster.processes) - {"router"}
    finally:
        stranger.stop()


VICTIMS = ["prefill-0-0-1", "prefill-1-1-0", "prefill-1-1-1"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_kill_of_a_rank_harms_only_its_own_chain(two_chains, victim, record_property):
    kill_rounds(two_chains, victim, ROUNDS, record_property)


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_rank_that_stands_still_is_noticed(two_chains, victim, record_property):
    standstill_rounds(two_chains, victim, ROUNDS, record_property)


def end_in_prefill(cluster, victim, act):
    """Eight long prompts of which those that the victim's end fails end in time, with a status that names it."""
    prompts = prompts_of([3000] * 8)
    with Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        def one(prompt):
            answer = client.greedy(prompt, 2)
            return answer, time.monotonic()
        futures = [pool.submit(one, prompt) for prompt in prompts]
        clusters.wait_until(lambda: cluster.metric("prefill-0-0-0", "baton_kv_pages_used") > 0, 20, "a prompt to run")
        act()
        acted = time.monotonic()
        done = [future.result() for future in futures]
    failed = [(answer, at) for answer, at in done if answer.error is not None]
    assert failed, "it met no running request"
    for answer, at in failed:
        assert answer.code == grpc.StatusCode.UNAVAILABLE, answer.error
        assert victim in answer.error.details(), answer.error.details()
        assert at - acted < END_SECONDS * clusters.PATIENCE, f"{at - acted:.1f} s"
    return [at - acted for _, at in failed]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", ["prefill-0-0-1", "prefill-0-1-0", "prefill-0-1-1"])
def test_requests_of_the_only_chain_end_with_the_ranks_name(tiny_model, tmp_path, victim, number, record_property):
    """Nobody else could take them, and nobody waits for the chain."""
    prompt, ended = prompts_of([100])[0], []
    with clusters.Cluster(tiny_model, tmp_path, stages=2, ranks=2, flags=FLAGS, prefill_flags=CHUNK,
                          router_flags=["--pairing-timeout-ms", 0]) as cluster:
        for _ in range(ONLY_CHAIN_ROUNDS):
            process = cluster.processes[victim]
            old = (victim, incarnations(cluster)[victim])
            try:
                ended += end_in_prefill(cluster, victim, lambda: process.signal(number))
            finally:
                if number == signal.SIGSTOP:
                    process.signal(signal.SIGCONT)
                else:
                    process.kill()  # Waits for it.
                    process.start()
            wait_joined(cluster, 30, f"{victim} to be in its group again", old if number == signal.SIGKILL else None)
            with Client(cluster.target) as client:
                assert client.greedy(prompt, COUNT).tokens == RememberedOracle(tiny_model).greedy(prompt, COUNT)
            clusters.wait_until(cluster.idle, 15, "pages to come back")
    record_property("disruptions", ONLY_CHAIN_ROUNDS)
    record_property("ended", len(ended))
    record_property("slowest_end_s", f"{max(ended):.2f}")


def test_a_rank_that_drains_drains_its_chain(tiny_model, tmp_path):
    prompts = prompts_of([150 + 40 * i for i in range(8)])
    with clusters.Cluster(tiny_model, tmp_path, stages=2, ranks=2, chains=2, flags=FLAGS,
                          prefill_flags=CHUNK) as cluster:
        done = []
        drains = threading.Thread(target=lambda: done.append(drain(cluster, "prefill-1-1-1")))
        answers, _ = run_under_load(cluster, prompts, drains.start)
        drains.join()
        assert all(answer.error is None for answer in answers), [answer.error for answer in answers]
        assert done[0].returncode == 0 and "prefill-1-1-1 has left after" in done[0].stdout, done
        assert "prefill-1-1-1" not in listed(cluster)
        assert cluster.processes["prefill-1-1-1"].popen.wait(20 * clusters.PATIENCE) == 0
        assert cluster.metric("router", "baton_ready_pairs") == 1


@pytest.fixture(scope="module")
def one_chain(tiny_model, tmp_path_factory):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=2, ranks=2, flags=FLAGS) as cluster:
        yield cluster


@pytest.mark.parametrize("more, words", [
    ([], ["tensor-parallel rank 1 of chain chain-0 is taken", "stranger wants it, prefill-0-1-1 has it and is alive"]),
    (["--row-parallel-chunks=4"],
     ["row_parallel_chunks of chain chain-0 differs: stranger has 4, prefill-0-", "has 1"]),
    (["--pp-send-slice=false"], ["pp_send_slice of chain chain-0 differs: stranger has false, prefill-0-", "has true"]),
    (["--tp-size=4"], ["tp_size of chain chain-0 differs: stranger has 4, prefill-0-", "has 2"]),
], ids=["the same place", "other cuts", "other slices", "another size"])
def test_a_rank_that_does_not_fit_is_refused_with_both_sides(one_chain, more, words):
    check_stranger(one_chain, "prefill-0-1-1", more, words)
    with Client(one_chain.target) as client:
        assert client.greedy(list(range(40)), 3).error is None


@pytest.mark.parametrize("command, flags, words", [
    ("validate", ["--tp-size=3"], ["tp_size", "is 3, which does not divide the model's 4 attention heads"]),
    ("up", ["--tp-size=3"], ["tp_size", "is 3, which does not divide the model's 4 attention heads"]),
    ("worker", ["--disaggregation-mode=prefill", "--tp-size=3"], ["tp_size", "does not divide the model's 4"]),
    ("worker", ["--disaggregation-mode=prefill", "--tp-size=2", "--tp-rank=2"], ["tp_rank", "tp_size = 2"]),
    ("worker", ["--disaggregation-mode=decode", "--tp-size=2", "--tp-rank=2"], ["tp_rank", "tp_size = 2"]),
    ("worker", ["--disaggregation-mode=decode", "--tp-size=3"], ["tp_size", "does not divide the model's 4"]),
    ("up", ["--decode-tp-size=3"], ["decode_tp_size", "is 3, which does not divide the model's 4 attention heads"]),
    ("up", ["--tp-size=2", "--executor=torch", "--device=cuda:0"], ["tp_size", "cuda:0 is one for all"]),
    ("up", ["--decode-tp-size=2", "--executor=torch", "--device=cuda:0"], ["decode_tp_size", "cuda:0 is one for all"]),
])
def test_ranks_that_cannot_be_are_refused_before_a_start(tiny_model, command, flags, words):
    done = subprocess.run([clusters.BATON, command, "--model-path", tiny_model, *flags], capture_output=True,
                          text=True, timeout=60 * clusters.PATIENCE, check=False)
    assert done.returncode != 0
    for word in words:
        assert word in done.stdout + done.stderr, done


def greedy_text(http):
    body = {"model": "tiny", "prompt": "It is a truth", "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(f"http://{http}/v1/completions", data=json.dumps(body).encode(), method="POST",
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60 * clusters.PATIENCE) as reply:
        return json.loads(reply.read())["choices"][0]["text"]


def test_up_starts_every_rank_and_starts_a_killed_one_again_in_its_place(tiny_model):
    ranks = [f"prefill-0-{stage}-{rank}" for stage in range(2) for rank in range(2)]
    with Up(tiny_model, "--tp-size=2") as up:
        http, _ = up.wait_ready()
        told = [re.fullmatch(r"cluster starting: chain-0: (\d) of 4 ranks ready(?:, (\d) registered)?; "
                             r"decode: \d of 1 services ready(?:, 1 registered)?", line)
                for line in up.lines if line.startswith("cluster starting: ")]
        assert all(told), up.text
        assert len(told) > 1 and told[-1].groups() == ("4", None), "more come, until all are ready"
        rows = up.table()
        assert list(rows) == ["router", *ranks, "decode-0"]
        assert [rows[name]["layers"] for name in ranks] == ["0 to 2", "0 to 2", "3 to 5", "3 to 5"]
        before = greedy_text(http)
        assert before
        with urllib.request.urlopen(f"http://{rows['prefill-0-1-1']['metrics']}/metrics", timeout=10) as reply:
            assert re.search(r'^baton_up\{.*rank="1".*stage="1"', reply.read().decode(), re.MULTILINE)
        old = up.children()["prefill-0-1-1"]
        os.kill(old, signal.SIGKILL)
        up.wait_line(r"prefill-0-1-1 +\| was ended by signal 9")
        clusters.wait_until(lambda: up.children().get("prefill-0-1-1", old) != old, 30, "another rank")
        # Requests wait for the chain; those that were on their way when it broke are begun again.
        assert greedy_text(http) == before
