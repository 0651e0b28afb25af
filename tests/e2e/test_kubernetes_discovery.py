"""`baton router --service-discovery kubernetes` against an API that lists, watches, forgets, breaks, talks
nonsense and changes its tokens. tests/kubernetes has the real one."""

import concurrent.futures
import contextlib
import subprocess

import grpc
import pytest

import cluster as clusters
import fake_kubernetes
from client import Client


@pytest.fixture
def account(tmp_path):
    return fake_kubernetes.make_account(tmp_path / "account")


@pytest.fixture
def api(account):
    with fake_kubernetes.Api(account) as fake:
        yield fake


def discovery_flags(account):
    return ["--service-discovery", "kubernetes", "--selector", fake_kubernetes.SELECTOR,
            "--service-discovery-account", account]


class Found(clusters.Cluster):
    """A cluster whose workers know no router: pods of the fake API say where they are."""

    def __init__(self, model, log_dir, api, account, **shape):
        super().__init__(model, log_dir, flags=["--page-size", 16], environment=api.environment,
                         router_flags=discovery_flags(account), **shape)
        self.api = api
        self.worker_ports = {}
        for name, process in self.processes.items():
            if name == "router":
                continue
            at = process.arguments.index("--router-address")
            process.arguments[at + 1] = ""
            (self.worker_ports[name],) = clusters.free_ports(1)
            process.arguments += ["--grpc-port", str(self.worker_ports[name])]

    def wait_ready(self, seconds=60):
        for name, port in self.worker_ports.items():
            self.api.put(name, port)
        super().wait_ready(seconds)


def test_workers_without_a_routers_address_are_found_and_found_again(tiny_model, tmp_path, api, account):
    def answered(cluster):
        with Client(cluster.target) as client:
            return client.greedy(list(range(40)), 5).error is None

    with Found(tiny_model, tmp_path, api, account, stages=2, decodes=2) as cluster:
        assert answered(cluster)
        # A new life of the router, and one of a worker: both are found without anybody's help.
        cluster.processes["router"].kill()
        cluster.processes["router"].start()
        cluster.processes["decode-0"].kill()
        cluster.processes["decode-0"].start()
        api.put("decode-0", cluster.worker_ports["decode-0"], restarts=1)
        clusters.wait_until(lambda: cluster.get("/readiness")[0] == 200, 30, "the new router")
        cluster.wait_ready()
        assert answered(cluster)


def test_a_worker_with_a_routers_address_joins_no_other(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1) as cluster:
        cluster.processes["decode-0"].wait_log("grpc 127.0.0.1")
        workers = [line for line in cluster.processes["decode-0"].log().splitlines() if "grpc 127.0.0.1" in line]
        address = workers[0].split("grpc ")[1].split()[0]
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/baton.v1.Worker/Announce")(b"\x08\x01", timeout=10)
        assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION


class Announced(grpc.GenericRpcHandler):
    """Stands for a worker: counts announcements and refuses what it is told to."""

    def __init__(self):
        self.count = 0

    def service(self, details):
        if details.method != "/baton.v1.Worker/Announce":
            return None

        def answer(request, context):
            self.count += 1
            return b""
        return grpc.unary_unary_rpc_method_handler(answer)


@contextlib.contextmanager
def fake_worker():
    handler = Announced()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[handler])
    handler.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield handler
    finally:
        server.stop(None)


class Alone(clusters.Cluster):
    """Only a router, which is not ready without workers: the test plays them."""

    def __init__(self, model, log_dir, api, account):
        super().__init__(model, log_dir, stages=0, decodes=0, environment=api.environment,
                         router_flags=discovery_flags(account))

    def wait_ready(self, seconds=60):
        clusters.wait_until(lambda: self.get("/health")[0] == 200, seconds, "the router to run")


@pytest.fixture
def router(tiny_model, tmp_path, api, account):
    with Alone(tiny_model, tmp_path, api, account) as cluster:
        yield cluster.processes["router"]


def wait_announced(worker, more=1):
    target = worker.count + more
    clusters.wait_until(lambda: worker.count >= target, 40, "an announcement")


def test_pods_come_and_go(router, api):
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(fake_worker()) for _ in range(5)]
        for number, worker in enumerate(workers[:3]):
            api.put(f"w-{number}", worker.port)
        for worker in workers[:3]:
            clusters.wait_until(lambda: worker.count >= 1, 30, "an announcement to each listed pod")
        api.wait_for("watch", 1)
        api.put("w-3", workers[3].port)
        clusters.wait_until(lambda: workers[3].count == 1, 10, "an announcement to a pod that is new")
        api.put("w-3", workers[3].port, restarts=1)
        clusters.wait_until(lambda: workers[3].count == 2, 10, "another, since its container was started again")
        api.remove("w-3")
        api.put("w-0", workers[0].port, leaving=True)
        clusters.wait_until(lambda: "names 3 pods, 2 of them" in router.log(), 10, "two that may be workers")
        # Announcements go on for those who stay.
        gone = workers[3].count, workers[0].count
        wait_announced(workers[1], 2)
        assert (workers[3].count, workers[0].count) == gone


@pytest.mark.parametrize("fault", ["cut", "gone", "garbage", "long line", "no kind", "errors", "token", "bookmark"])
def test_discovery_outlives(fault, router, api, account):
    with fake_worker() as first, fake_worker() as second:
        api.put("first", first.port)
        wait_announced(first)
        api.wait_for("watch", 1)
        lists, watches = api.counts["list"], api.counts["watch"]
        if fault == "cut":
            api.break_watches()
        elif fault == "gone":
            api.forget_history()
            api.break_watches()
            api.wait_for("gone", 1)
            api.wait_for("list", lists + 1)
        elif fault == "garbage":
            api.say("{\"type\": \"ADD\n")
        elif fault == "long line":
            api.say("x" * (5 << 20))
        elif fault == "no kind":
            api.say(json_line())
        elif fault == "errors":
            api.fail_next(500, 429, 503)
            api.break_watches()
        elif fault == "token":
            with api.news:
                api.token = "second"
            api.break_watches()
            api.wait_for("refused", 1)
            (account / "token").write_text("second")
        elif fault == "bookmark":
            api.bookmark()
            with api.news:
                api.oldest = api.version  # Only who has seen the bookmark may go on.
            api.break_watches()
        api.wait_for("watch", watches + 1)
        api.put("second", second.port)
        wait_announced(second)
        wait_announced(first)  # What was known has not been forgotten.
        assert router.alive()
        if fault in ("cut", "bookmark"):
            assert api.counts["list"] == lists, "a watch goes on from its last version"


def json_line():
    return '{"type": "ADDED", "object": {"metadata": {"resourceVersion": "1"}}}\n'


def start_and_fail(model, account, environment, *flags):
    flags = flags or discovery_flags(account)
    done = subprocess.run([clusters.BATON, "router", "--model-path", model, "--port", "0", "--grpc-port", "0",
                           "--cluster-port", "0", *flags],
                          capture_output=True, text=True, timeout=30 * clusters.PATIENCE, env=environment)
    return done.returncode, done.stderr


def test_what_is_missing_is_said_at_once(tiny_model, account):
    code, said = start_and_fail(tiny_model, account, {})
    assert code == 2 and "KUBERNETES_SERVICE_HOST" in said
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    code, said = start_and_fail(tiny_model, account / "nowhere", environment)
    assert code == 2 and "service account" in said
    code, said = start_and_fail(tiny_model, account, environment, "--service-discovery", "kubernetes")
    assert code == 2 and "selector" in said


def test_a_missing_role_is_named(tiny_model, tmp_path, api, account):
    (account / "namespace").write_text("elsewhere")
    with Alone(tiny_model, tmp_path, api, account) as cluster:
        router = cluster.processes["router"]
        clusters.wait_until(lambda: "needs a Role with the verbs list and watch on pods in elsewhere" in router.log(),
                            20, "the missing right")
