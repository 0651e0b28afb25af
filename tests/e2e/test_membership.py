"""Who is a member: workers that are restarted, that do not fit, or that come in the wrong order."""

import queue
import signal
import threading

import pytest

import cluster as clusters
import stubs
from client import membership


@pytest.fixture(scope="module")
def cluster(tiny_model, tmp_path_factory):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=2) as started:
        yield started


def listing(cluster):
    """({id: member}, {id: refused}) by the router's word; nothing while it is away."""
    try:
        with membership(cluster.cluster_target) as router:
            listed = router.List(stubs.cluster.ListRequest())
    except Exception:  # gRPC raises its own for a router that is away.
        return {}, {}
    return ({w.worker.instance.instance_id: w for w in listed.workers},
            {w.worker.instance.instance_id: w for w in listed.refused})


def answer(cluster):
    status, reply = cluster.post("/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 4,
                                                     "temperature": 0})
    assert status == 200, reply
    return reply["choices"][0]["text"]


def like(cluster, name, new_name, **replaced):
    """The process of that name as somebody else would start it, under another name."""
    old = cluster.processes[name]
    arguments = [new_name if argument == name else argument for argument in old.arguments[1:]]
    for flag, value in replaced.items():
        arguments[arguments.index("--" + flag.replace("_", "-")) + 1] = str(value)
    return clusters.Process(new_name, arguments, cluster.log_dir, cluster.environment)


def test_a_stage_that_is_killed_and_started_at_once_joins_by_itself(cluster):
    """Its successor has another name, so that its rank is taken until the lease is over."""
    before = answer(cluster)
    successor = like(cluster, "prefill-0-1", "successor")
    cluster.processes.pop("prefill-0-1").kill()
    successor.start()
    cluster.processes["successor"] = successor
    cluster.metrics_ports["successor"] = cluster.metrics_ports.pop("prefill-0-1")
    clusters.wait_until(lambda: "successor" in listing(cluster)[0], 30, "the successor to be a member")
    successor.wait_log("rank 1 of chain chain-0 is taken")
    cluster.wait_ready()
    assert set(listing(cluster)[0]) == {"prefill-0-0", "successor", "decode-0"}
    assert answer(cluster) == before


def test_a_stranger_that_comes_first_after_a_routers_restart_turns_nobody_out(cluster, tmp_path):
    before = answer(cluster)
    fleet = {name: process for name, process in cluster.processes.items() if name != "router"}
    for process in fleet.values():
        process.signal(signal.SIGSTOP)
    router = cluster.processes["router"]
    router.kill()
    router.start()
    port = clusters.free_ports(1)[0]
    stranger = like(cluster, "decode-0", "stranger", metrics_port=port,
                    model_path=clusters.make_model(tmp_path / "other", layers=6, seed=2))
    stranger.start()
    try:
        clusters.wait_until(lambda: set(listing(cluster)[0]) == {"stranger"}, 30, "the stranger to be alone")
        for process in fleet.values():
            process.signal(signal.SIGCONT)
        cluster.wait_ready()
        assert set(listing(cluster)[0]) == set(fleet)
        clusters.wait_until(lambda: "stranger" in listing(cluster)[1], 30, "the stranger to ask again")
        reason = listing(cluster)[1]["stranger"].reason
        assert "weights of layer 0 (hash) differs: stranger has" in reason, reason
        clusters.wait_until(lambda: reason in cluster.get("/readiness", port)[1], 30, "the stranger to say why")
        assert cluster.metric("router", "baton_workers", worker_role="decode", state="refused") == 1
        assert 'baton_refusing_routers' in cluster.get("/metrics", port)[1]
        assert answer(cluster) == before
        assert all(process.alive() for process in fleet.values()), cluster.logs()
    finally:
        for process in fleet.values():
            process.signal(signal.SIGCONT)
        assert stranger.stop() == 0, stranger.log()


def test_a_second_process_of_a_name_waits_while_the_first_lives(cluster):
    """A second `up`, or a pod that was replaced by force: nobody hears of it, and it succeeds who is gone."""
    before = answer(cluster)
    elder = cluster.processes["decode-0"]
    port = clusters.free_ports(1)[0]
    twin = like(cluster, "decode-0", "decode-0", metrics_port=port)
    twin.log_path = twin.log_path.with_name("twin.log")
    incarnation = listing(cluster)[0]["decode-0"].worker.instance.incarnation
    twin.start()
    try:
        clusters.wait_until(lambda: "another process of the name decode-0 lives" in cluster.get("/readiness", port)[1],
                            30, "the twin to say why it waits")
        assert "decode-0" in listing(cluster)[1], "an operator sees that it asks"
        for _ in range(10):
            assert answer(cluster) == before
        assert listing(cluster)[0]["decode-0"].worker.instance.incarnation == incarnation
        elder.kill()
        clusters.wait_until(lambda: "decode-0" in listing(cluster)[0]
                            and listing(cluster)[0]["decode-0"].worker.instance.incarnation != incarnation,
                            30, "the twin to take the place")
        elder.start()
        clusters.wait_until(lambda: "another process of the name" in elder.log(), 30, "the elder to wait in its turn")
        clusters.wait_until(lambda: cluster.metric("router", "baton_ready_pairs") == 1, 30, "the twin to be paired")
        assert answer(cluster) == before
    finally:
        assert twin.stop() == 0, twin.log()
    cluster.wait_ready()
    assert answer(cluster) == before


class Unreachable(threading.Thread):
    """Registers as a decode service would, with addresses that lead nowhere, says that it is ready, and keeps its
    lease."""

    def __init__(self, cluster):
        super().__init__(daemon=True)
        self.target = cluster.cluster_target
        self.over = threading.Event()
        self.beats = 0
        like_it = listing(cluster)[0]["decode-0"].worker
        self.worker = type(like_it)()
        self.worker.CopyFrom(like_it)
        self.worker.instance.instance_id = "unreachable"
        self.worker.instance.incarnation = 77
        self.worker.grpc_address = f"127.0.0.1:{clusters.free_ports(1)[0]}"
        self.worker.data_address = b"nowhere"

    def run(self):
        with membership(self.target) as router:
            said = queue.SimpleQueue()
            said.put(stubs.cluster.LeaseRequest(registration=stubs.cluster.RegisterRequest(worker=self.worker)))
            for answer in router.Lease(iter(said.get, None)):
                if not answer.WhichOneof("said"):
                    continue  # Wants a heartbeat sooner.
                self.beats += answer.HasField("heartbeat")
                beat = stubs.cluster.LeaseRequest(heartbeat=stubs.cluster.HeartbeatRequest(ready=True))
                if self.over.wait(0.2):
                    said.put(None)
                    return
                said.put(beat)


def test_a_peer_that_nobody_can_connect_to_keeps_no_later_joiner_from_serving(cluster):
    before = answer(cluster)
    lonely = Unreachable(cluster)
    lonely.start()
    try:
        clusters.wait_until(lambda: lonely.beats > 2, 30, "the unreachable worker to be a member")
        late = cluster.add_decode("late")
        late.start()
        clusters.wait_until(lambda: "late" in listing(cluster)[0] and listing(cluster)[0]["late"].ready, 30,
                            "the late one to be ready")
        assert "unreachable" in listing(cluster)[0]
        # The one that was there first goes: all requests are the late one's now.
        cluster.processes.pop("decode-0").stop()
        assert all(answer(cluster) == before for _ in range(4))
    finally:
        lonely.over.set()
        lonely.join()
