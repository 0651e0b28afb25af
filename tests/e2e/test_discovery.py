"""Several routers over the same workers: names that are resolved again and again, restarts of one router that
the streams of the other do not notice."""

import concurrent.futures
import contextlib
import pathlib
import random
import shutil
import signal
import threading
import time
import urllib.request

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client, membership

COUNT = 60


class Routers(clusters.Cluster):
    """A cluster with further routers beside "router", each with ports of its own."""

    def __init__(self, model, log_dir, more=1, name=None, environment=None, **shape):
        """With `name` the routers share the port of their service and differ in the address, as behind a name
        in DNS, and workers are told the name alone."""
        self.routers = {}
        super().__init__(model, log_dir, flags=["--page-size", 16], environment=environment, **shape)
        self.routers["router"] = ("127.0.0.1", self.http_port, self.grpc_port, self.cluster_port)
        for number in range(1, more + 1):
            http, rpc, workers = clusters.free_ports(3)
            host = "127.0.0.1"
            if name is not None:
                host, rpc, workers = f"127.0.0.{1 + number}", self.grpc_port, self.cluster_port
            self.routers[f"router-{number}"] = (host, http, rpc, workers)
            self._add(f"router-{number}", ["router", "--model-path", model, "--host", host, "--port", http,
                                           "--grpc-port", rpc, "--cluster-port", workers])
        address = f"{name}:{self.cluster_port}" if name else ",".join(map(self.cluster_target_of, self.routers))
        self.expected = [] if name else list(self.routers)  # Routers that workers find at first.
        for worker, process in self.processes.items():
            if worker not in self.routers:
                at = process.arguments.index("--router-address")
                process.arguments[at + 1] = address

    def target_of(self, router):
        host, _, rpc, _ = self.routers[router]
        return f"{host}:{rpc}"

    def cluster_target_of(self, router):
        host, _, _, workers = self.routers[router]
        return f"{host}:{workers}"

    def pairs_of(self, router):
        """Ready pairs by the word of one router; -1 while it does not answer."""
        host, http, *_ = self.routers[router]
        try:
            with urllib.request.urlopen(f"http://{host}:{http}/metrics", timeout=5) as reply:
                text = reply.read().decode()
        except OSError:
            return -1
        (line,) = [line for line in text.splitlines() if line.startswith("baton_ready_pairs")]
        return int(float(line.rsplit(" ", 1)[1]))

    def wait_pairs(self, *routers):
        for router in routers:
            clusters.wait_until(lambda: self.pairs_of(router) == self.chains * self.decodes + self.colocated, 30,
                                f"every pair at {router}")

    def wait_ready(self, seconds=60):
        super().wait_ready(seconds)
        self.wait_pairs(*self.expected)


@pytest.fixture
def two_routers(tiny_model, tmp_path):
    with Routers(tiny_model, tmp_path, stages=2, decodes=2) as cluster:
        yield cluster


@contextlib.contextmanager
def streams(target, running=6):
    """Streams on one router, one after the other on each thread, until the block ends; gives the answers."""
    over, first, answers = threading.Event(), threading.Semaphore(0), []

    def keep(client, seed):
        while not over.is_set():
            answer = client.greedy(list(range(seed, seed + 90)), COUNT, on_first=first.release)
            answers.append(answer)
            if answer.error is not None:
                over.wait(0.1)  # A router that is away is not asked in a row.

    with Client(target) as client, concurrent.futures.ThreadPoolExecutor(running) as pool:
        futures = [pool.submit(keep, client, seed) for seed in range(running)]
        try:
            for _ in range(running):
                assert first.acquire(timeout=20 * clusters.PATIENCE), "no first tokens"
            yield answers
        finally:
            over.set()
            for future in futures:
                future.result()


def test_both_routers_serve_with_the_same_workers(two_routers):
    cluster = two_routers
    prompt = list(range(50))
    seen = []
    for router in ("router", "router-1"):
        with Client(cluster.target_of(router)) as client, membership(cluster.cluster_target_of(router)) as members:
            workers = members.List(stubs.cluster.ListRequest()).workers
            assert len(workers) == 4 and all(worker.ready for worker in workers)
            answer = client.greedy(prompt, 5)
            assert answer.error is None
            seen.append(answer.tokens)
    assert seen[0] == seen[1]


def test_a_router_knows_what_chains_have_cached_of_other_routers_prompts(tiny_model, tmp_path):
    drawn = random.Random(1)
    with Routers(tiny_model, tmp_path, stages=1, chains=0, decodes=0, colocated=4,
                 router_flags=["--load-balance-policy", "random"]) as cluster, \
            Client(cluster.target) as one, Client(cluster.target_of("router-1")) as other:
        def all_found():
            """Eight prompts: chance alone sends them to the same chains again once in 65,536 times."""
            prompts = [[drawn.randrange(256) for _ in range(200)] for _ in range(8)]
            for prompt in prompts:
                assert one.greedy(prompt, 1).error is None
            time.sleep(0.6)  # A heartbeat's interval, unless the machine is busy.
            return all(other.greedy(prompt, 1).finished.usage.cached_tokens >= 128 for prompt in prompts)

        clusters.wait_until(all_found, 60, "each prompt to find what is cached of it")


def test_streams_of_a_router_do_not_notice_that_another_dies_and_comes_back(two_routers):
    cluster = two_routers
    victim = cluster.processes["router-1"]
    with streams(cluster.target_of("router-1")) as theirs, streams(cluster.target) as ours:
        for _ in range(5):
            before = len(ours)
            victim.kill()
            clusters.wait_until(lambda: len(ours) >= before + 6, 30, "streams of the other router to go on")
            victim.start()
            cluster.wait_pairs("router-1")
    assert [answer.error for answer in ours if answer.error is not None] == []
    assert all(len(answer.tokens) == COUNT for answer in ours)
    # Its own streams end with it, and are told so.
    failed = [answer for answer in theirs if answer.error is not None]
    assert failed and all(answer.code == grpc.StatusCode.UNAVAILABLE for answer in failed)
    for stage in ("prefill-0-0", "prefill-0-1"):
        assert "breaks" not in cluster.processes[stage].log(), "a chain broke for a router's sake"


def test_a_stopped_router_delays_no_heartbeat_to_the_other(two_routers):
    cluster = two_routers
    cluster.processes["router-1"].signal(signal.SIGSTOP)  # It accepts connections and answers nothing.
    with streams(cluster.target) as answers:
        before = len(answers)
        clusters.wait_until(lambda: len(answers) >= before + 30, 60, "streams to go on")
        with membership(cluster.cluster_target) as members:
            workers = members.List(stubs.cluster.ListRequest()).workers
        assert len(workers) == 4 and all(worker.ready for worker in workers)
    cluster.processes["router-1"].signal(signal.SIGCONT)
    assert all(answer.error is None for answer in answers)
    cluster.wait_pairs("router-1")


def test_one_router_found_twice_is_joined_once(tiny_model, tmp_path):
    with Routers(tiny_model, tmp_path, more=0, stages=1) as cluster:
        for name in ("decode-0", "prefill-0-0"):
            process = cluster.processes[name]
            process.stop()
            at = process.arguments.index("--router-address")
            process.arguments[at + 1] = f"{cluster.cluster_target},localhost:{cluster.cluster_port}"
            process.start()
        cluster.wait_pairs("router")
        with streams(cluster.target, running=2) as answers:
            clusters.wait_until(lambda: len(answers) >= 10, 30, "answers")
        assert all(answer.error is None for answer in answers)
        for name in ("decode-0", "prefill-0-0"):
            assert "registering again" not in cluster.processes[name].log()


def wrapped_names(directory):
    """(hosts file, environment) that give processes names of this test's own: libnss-wrapper stands between them
    and getaddrinfo, so nothing of the machine is touched."""
    libraries = [path for path in pathlib.Path("/usr/lib").glob("*/libnss_wrapper.so")]
    if not libraries or clusters.SANITIZED:
        pytest.skip("names of its own need libnss-wrapper, which sanitizers do not run with")
    hosts = directory / "hosts"
    hosts.write_text("")
    return hosts, {"LD_PRELOAD": str(libraries[0]), "NSS_WRAPPER_HOSTS": str(hosts)}


def name_leads_to(hosts, *addresses):
    """Replaces the file at once: a lookup sees the old or the new one."""
    fresh = hosts.with_suffix(".new")
    fresh.write_text("".join(f"{address} routers.test\n" for address in addresses))
    shutil.move(fresh, hosts)


def test_workers_follow_what_a_name_leads_to(tiny_model, tmp_path):
    hosts, environment = wrapped_names(tmp_path)
    name_leads_to(hosts, "127.0.0.1")
    with Routers(tiny_model, tmp_path, name="routers.test", stages=2, environment=environment) as cluster:
        workers = [process for name, process in cluster.processes.items() if name not in cluster.routers]

        def all_say(message, times=1):
            clusters.wait_until(lambda: all(worker.log().count(message) >= times for worker in workers), 30,
                                f"every worker to say '{message}'")

        clusters.wait_until(lambda: cluster.pairs_of("router-1") >= 0, 30, "the second router to listen")
        assert cluster.pairs_of("router-1") == 0, "no worker has heard of it"
        name_leads_to(hosts, "127.0.0.1", "127.0.0.2")
        cluster.wait_pairs("router-1")
        with streams(cluster.target, running=3) as answers:
            # One that DNS does not name any more is served until it falls silent, and forgotten then.
            name_leads_to(hosts, "127.0.0.1")
            with streams(cluster.target_of("router-1"), running=2) as theirs:
                clusters.wait_until(lambda: len(theirs) >= 10, 30, "answers of a router that DNS has lost")
            assert all(answer.error is None for answer in theirs)
            cluster.processes["router-1"].kill()
            all_say(f"the router at {cluster.cluster_target_of('router-1')} is forgotten")
            # A name that leads nowhere costs nobody a router.
            hosts.unlink()
            all_say("is not resolved")
            before = len(answers)
            clusters.wait_until(lambda: len(answers) >= before + 10, 30, "answers without DNS")
            name_leads_to(hosts, "127.0.0.1", "127.0.0.2")
            cluster.processes["router-1"].start()
            cluster.wait_pairs("router-1")
        assert all(answer.error is None for answer in answers)
