"""`baton worker --nnodes N --node-rank R`: each node starts its share of a chain or a decode service, all nodes
together are one, a rank that dies comes back in its place, a node that is told to stop drains, and what cannot be is
refused naming both sides."""

import concurrent.futures
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import threading

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle
from test_chaos import incarnations
from test_cluster import listed

COUNT = 40
SHAPE = ["--disaggregation-mode", "prefill", "--pp-size", 2, "--tp-size", 2]
DECODE_SHAPE = ["--disaggregation-mode", "decode", "--tp-size", 4]


def prompt_of(length):
    return [random.Random(length).randrange(256) for _ in range(length)]


class TwoNodes:
    """A chain of two stages of two ranks, or a decode service of four, that two commands start, a node each; a router
    and the other side of the hand-off."""

    def __init__(self, model, log_dir, role="prefill"):
        self.model, self.role = model, role
        # What the nodes run is not the cluster's own.
        others = {"chains": 0} if role == "prefill" else {"stages": 1, "decodes": 0}
        self.cluster = clusters.Cluster(model, log_dir, flags=["--page-size", 16], **others)
        # A host alone names a group as well as one with a port.
        self.address = f"127.0.0.1:{clusters.free_ports(1)[0]}" if role == "prefill" else "127.0.0.1"
        self.group = self.address.replace(":", "-")
        self.nodes = [clusters.Process(f"node-{rank}", self.arguments(rank), log_dir, self.cluster.environment)
                      for rank in range(2)]

    def arguments(self, rank):
        shape = [*SHAPE, "--chunked-prefill-size", 64] if self.role == "prefill" else DECODE_SHAPE
        return ["worker", "--model-path", self.model, *shape, "--nnodes", 2, "--node-rank", rank, "--dist-init-addr",
                self.address, "--router-address", self.cluster.cluster_target, "--page-size", 16, "--threads", 1,
                "--drain-timeout-ms", 60000]  # A bound, far from what a busy machine takes.

    def __enter__(self):
        for process in self.cluster.processes.values():
            process.start()
        return self

    def __exit__(self, kind, value, trace):
        for process in [*self.nodes, *self.cluster.processes.values()]:
            process.ask_to_stop()
        codes = [process.stop() for process in self.nodes]
        for process in self.cluster.processes.values():
            process.stop()
        if kind is not None:
            print(self.cluster.logs(), *(node.log()[-6000:] for node in self.nodes), sep="\n")
        assert kind is not None or not any(codes), f"nodes ended with {codes}"

    def wait_log(self, rank, pattern, times=1):
        def found():
            assert self.nodes[rank].alive(), self.nodes[rank].log()
            return len(re.findall(pattern, self.nodes[rank].log(), re.MULTILINE)) >= times
        clusters.wait_until(found, 60, f"{pattern!r} in the log of node {rank}:\n{self.nodes[rank].log()}")

    def ranks(self, rank):
        """Process ids of a node's workers, by the end of their name: "1-0"."""
        done = subprocess.run(["pgrep", "-P", str(self.nodes[rank].popen.pid)], capture_output=True, text=True,
                              check=False)
        found = {}
        for pid in map(int, done.stdout.split()):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            names = [word for word in words if word.startswith("--instance-id=")]
            if names:
                found[names[-1].removeprefix(f"--instance-id={self.role}-{self.group}-")] = pid
        return found

    def check_answers(self):
        """Once all stand, which takes a process that has to load."""
        clusters.wait_until(lambda: self.cluster.metric("router", "baton_ready_pairs") == 1, 60, "all to stand")
        prompt = prompt_of(300)
        with Client(self.cluster.target) as client:
            answer = client.greedy(prompt, COUNT)
        assert answer.error is None, answer.error
        assert answer.tokens == RememberedOracle(self.model).greedy(prompt, COUNT)


@pytest.fixture(scope="module")
def two_nodes(tiny_model, tmp_path_factory):
    """The first node has loaded, and waits, before the other is started."""
    with TwoNodes(tiny_model, tmp_path_factory.mktemp("logs")) as nodes:
        nodes.nodes[0].start()
        # Stage 0's rank 0 is ready when its chain stands.
        nodes.wait_log(0, rf"^node starting: {nodes.group}: 1 of 2 ranks of this node ready, 2 loaded$")
        assert "node ready: " not in nodes.nodes[0].log()
        nodes.nodes[1].start()
        for rank in range(2):
            nodes.wait_log(rank, rf"^node ready: node {rank} of 2: stage {rank} rank 0 to stage {rank} rank 1 of "
                                 rf"{nodes.group}, 2 stages of 2 ranks, after [0-9.]+ s"
                                 + (": the chain stands$" if rank == 0 else "$"))
        yield nodes


def test_two_nodes_are_one_chain_whose_text_is_that_of_one_process(two_nodes):
    nodes = two_nodes
    assert set(nodes.ranks(0)) == {"0-0", "0-1"} and set(nodes.ranks(1)) == {"1-0", "1-1"}
    assert set(listed(nodes.cluster)) == {"decode-0", *(f"prefill-{nodes.group}-{stage}-{rank}"
                                                        for stage in range(2) for rank in range(2))}
    nodes.check_answers()


def check_started_again(nodes, node, victim):
    others = nodes.ranks(1 - node)
    old = nodes.ranks(node)[victim]
    name = f"{nodes.role}-{nodes.group}-{victim}"

    def incarnation():
        return incarnations(nodes.cluster).get(name)
    before = incarnation()
    os.kill(old, signal.SIGKILL)
    nodes.wait_log(node, rf"-{victim} +\| was ended by signal 9 \(Killed\); starting it again in 500 ms")
    clusters.wait_until(lambda: nodes.ranks(node).get(victim, old) != old, 30, "another rank")
    clusters.wait_until(lambda: incarnation() not in (None, before), 60, "another life of it at the router")
    nodes.check_answers()
    assert nodes.ranks(1 - node) == others, "the other node's ranks live on"


@pytest.mark.parametrize("node, victim", [(0, "0-0"), (1, "1-1")])
def test_a_rank_that_dies_is_started_again_in_its_place(two_nodes, node, victim):
    check_started_again(two_nodes, node, victim)


def test_a_node_that_is_told_to_stop_finishes_what_it_has_begun(two_nodes):
    nodes, cluster = two_nodes, two_nodes.cluster
    prompts = [prompt_of(2500 + i) for i in range(4)]
    ranks = nodes.ranks(1)
    admitted = cluster.metric("router", "baton_prompt_tokens_total") + sum(map(len, prompts))
    with Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = [pool.submit(client.greedy, prompt, 2) for prompt in prompts]
        # Who comes later finds no chain.
        clusters.wait_until(lambda: cluster.metric("router", "baton_prompt_tokens_total") == admitted, 20,
                            "all prompts to be admitted")
        assert not any(future.done() for future in answers), "too short to be interrupted"
        nodes.nodes[1].ask_to_stop()
        for future in answers:
            assert future.result().error is None, future.result().error
    assert nodes.nodes[1].popen.wait(90 * clusters.PATIENCE) == 0, nodes.nodes[1].log()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks.values())
    nodes.nodes[1].start()
    nodes.check_answers()


@pytest.fixture(scope="module")
def two_decode_nodes(tiny_model, tmp_path_factory):
    """The second node first: its ranks wait for rank 0."""
    with TwoNodes(tiny_model, tmp_path_factory.mktemp("logs"), role="decode") as nodes:
        nodes.nodes[1].start()
        nodes.wait_log(1, rf"^node ready: node 1 of 2: rank 2 to rank 3 of decode service {nodes.group}, 4 ranks, "
                          "after [0-9.]+ s$")
        nodes.nodes[0].start()
        nodes.wait_log(0, rf"^node ready: node 0 of 2: rank 0 to rank 1 of decode service {nodes.group}, 4 ranks, "
                          "after [0-9.]+ s: the service stands$")
        yield nodes


def test_two_nodes_are_one_decode_service_whose_text_is_that_of_one_process(two_decode_nodes):
    nodes = two_decode_nodes
    assert set(nodes.ranks(0)) == {"0", "1"} and set(nodes.ranks(1)) == {"2", "3"}
    assert set(listed(nodes.cluster)) == {"prefill-0-0", *(f"decode-{nodes.group}-{rank}" for rank in range(4))}
    nodes.check_answers()


@pytest.mark.parametrize("node, victim", [(0, "0"), (1, "3")])
def test_a_decode_rank_that_dies_is_started_again_in_its_place(two_decode_nodes, node, victim):
    check_started_again(two_decode_nodes, node, victim)


def test_a_node_of_a_decode_service_that_is_told_to_stop_finishes_what_it_has_begun(two_decode_nodes):
    nodes, cluster = two_decode_nodes, two_decode_nodes.cluster
    prompts = [prompt_of(100 + i) for i in range(4)]
    ranks = nodes.ranks(1)
    with Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        started = threading.Semaphore(0)
        answers = [pool.submit(client.greedy, prompt, COUNT, on_first=started.release) for prompt in prompts]
        for _ in prompts:
            assert started.acquire(timeout=20 * clusters.PATIENCE), "no request decodes"
        nodes.nodes[1].ask_to_stop()
        for future in answers:
            assert future.result().error is None, future.result().error
    assert nodes.nodes[1].popen.wait(90 * clusters.PATIENCE) == 0, nodes.nodes[1].log()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks.values())
    nodes.nodes[1].start()
    nodes.check_answers()


def run(command, model, *flags):
    return subprocess.run(list(map(str, [clusters.BATON, command, "--model-path", model, *flags])),
                          capture_output=True, text=True, timeout=60 * clusters.PATIENCE, check=False)


@pytest.mark.parametrize("flags, words", [
    (["--nnodes=3", "--node-rank=0"], ["nnodes", "got 3", "the 4 processes of a chain: pp_size = 2 times tp_size = 2"]),
    (["--nnodes=2", "--node-rank=2"], ["node_rank", "got 2; expected less than nnodes = 2"]),
    (["--nnodes=2"], ["node_rank", "required beside nnodes = 2"]),
    (["--node-rank=1"], ["node_rank", "give --nnodes as well"]),
    (["--nnodes=-1"], ["nnodes", "'-1'"]),
    (["--nnodes=2", "--node-rank=0", "--pp-rank=1"], ["nnodes", "pp_rank = 1 (flag --pp-rank)"]),
    (["--nnodes=2", "--node-rank=0", "--dist-init-addr=node-0:many"],
     ["dist_init_addr", "'node-0:many'; expected HOST or HOST:PORT"]),
])
def test_nodes_that_cannot_be_are_refused_before_a_start(tiny_model, flags, words):
    for command in ("worker", "validate"):
        done = run(command, tiny_model, *SHAPE, *flags)
        assert done.returncode == 2, done
        for word in words:
            assert word in done.stderr, done.stderr


@pytest.mark.parametrize("flags, words", [
    (["--nnodes=3", "--node-rank=0"],
     ["nnodes", "got 3", "the 4 processes of a decode service: pp_size = 1 times tp_size = 4"]),
    (["--nnodes=2"], ["node_rank", "required beside nnodes = 2"]),
    (["--nnodes=2", "--node-rank=0", "--tp-rank=1"], ["nnodes", "tp_rank = 1 (flag --tp-rank)"]),
])
def test_nodes_of_a_decode_service_that_cannot_be_are_refused_before_a_start(tiny_model, flags, words):
    for command in ("worker", "validate"):
        done = run(command, tiny_model, *DECODE_SHAPE, *flags)
        assert done.returncode == 2, done
        for word in words:
            assert word in done.stderr, done.stderr


def test_validate_shows_what_a_node_of_a_decode_service_runs(tiny_model):
    done = run("validate", tiny_model, *DECODE_SHAPE, "--nnodes=2", "--node-rank=1", "--dist-init-addr=10.0.0.2:25000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("OK: node 1 of 2: rank 2 to rank 3 of decode service 10.0.0.2-25000, 4 ranks\n")
    assert re.findall(r"^(decode\.\d) ", done.stdout, re.MULTILINE) == ["decode.2", "decode.3"], done.stdout


def test_validate_shows_what_a_node_runs_with_the_memory_of_each_rank(tiny_model):
    done = run("validate", tiny_model, *SHAPE, "--nnodes=2", "--node-rank=1", "--dist-init-addr=10.0.0.2:25000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("OK: node 1 of 2: stage 1 rank 0 to stage 1 rank 1 of 10.0.0.2-25000, "
                                  "2 stages of 2 ranks\n")
    rows = re.findall(r"^(prefill \d\.\d|this host|router|decode) +(.*)$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["prefill 1.0", "prefill 1.1", "this host"]
    together = [float(row.split()[-1]) for _, row in rows]
    assert together[0] > 0 and abs(sum(together[:2]) - together[2]) < 0.2
    assert re.search(r"chain_id +10\.0\.0\.2-25000 .*derived from --dist-init-addr", done.stdout), done.stdout


def test_a_start_that_cannot_work_ends_the_node_with_the_reason(tiny_model):
    taken = clusters.free_ports(1)[0]
    with socket.socket() as other:
        other.bind(("127.0.0.1", taken))
        other.listen()
        done = run("worker", tiny_model, *SHAPE, "--nnodes=2", "--node-rank=1", f"--metrics-port={taken}")
    assert done.returncode != 0
    assert done.stderr == (f"baton worker: cannot listen on 127.0.0.1:{taken}: Address already in use "
                           "(--metrics-port)\n"), done
