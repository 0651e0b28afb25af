"""What carries KV and activations between processes of one host: reads of the sender's memory where the system allows
them, UCX where not, and the same answer either way."""

import contextlib
import os
import pathlib
import random
import signal
import subprocess

import pytest

import cluster as clusters
from client import Client

PROMPT = [random.Random(3).randrange(256) for _ in range(1500)]  # A chunk is 128 KiB of activations.
RECEIVERS = ("prefill-0-1", "decode-0")
# Where one process's number means another process, or none, to the others; as between pods.
APART = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@contextlib.contextmanager
def started(model, logs, flags=(), apart=()):
    cluster = clusters.Cluster(model, logs, stages=2, flags=["--page-size", 16, *flags])
    for name in apart:
        process = cluster.processes[name]
        process.arguments = [*APART, *process.arguments]
    with cluster:
        yield cluster
        for name in apart:  # unshare passes no signal on, but the code that its child ends with.
            pid = cluster.processes[name].popen.pid
            child = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0]
            os.kill(int(child), signal.SIGTERM)
            assert cluster.processes[name].popen.wait(30) == 0, name


def answer_of(cluster):
    with Client(cluster.target) as client:
        answers = [client.greedy(PROMPT, 12) for _ in range(3)]
    assert not [answer.error for answer in answers if answer.error is not None]
    return [answer.tokens for answer in answers]


def pulls(cluster):
    """Who has said that it reads a peer's memory."""
    return [name for name in RECEIVERS if "its payloads are read there" in cluster.processes[name].log()]


@pytest.fixture(scope="module")
def by_tcp(tiny_model, tmp_path_factory):
    with started(tiny_model, tmp_path_factory.mktemp("tcp"), ["--kv-transport", "tcp"]) as cluster:
        tokens = answer_of(cluster)
        assert not pulls(cluster)
    return tokens


def test_processes_of_one_host_read_each_others_memory(tiny_model, tmp_path, by_tcp):
    with started(tiny_model, tmp_path) as cluster:
        assert answer_of(cluster) == by_tcp
        assert pulls(cluster) == list(RECEIVERS)


def test_processes_that_may_not_are_served_all_the_same(tiny_model, tmp_path, by_tcp):
    if subprocess.run([*APART, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this system gives no pid namespaces to its users")
    with started(tiny_model, tmp_path, apart=RECEIVERS) as cluster:
        assert answer_of(cluster) == by_tcp
        assert not pulls(cluster)
