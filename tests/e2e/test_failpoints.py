"""Every failpoint of the services, armed once in a real process: the request that meets it ends well or
with a clear status, the next one is answered rightly, and nothing is held."""

import concurrent.futures
import random
import signal
import threading

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client, membership
from remembered import RememberedOracle

COUNT = 8
PROMPT = [random.Random(5).randrange(256) for _ in range(150)]
# What a client may be told; anything else would be a mistake of ours shown to a user.
CLEAR = {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}

ROUTER = ["router.reserve", "router.start", "router.token"]
PREFILL = ["prefill.start", "prefill.plan", "prefill.compute", "prefill.activations_send", "prefill.kv_export",
           "prefill.kv_send", "prefill.commit_send", "prefill.link", "prefill.mailbox"]
DECODE = ["decode.reserve", "decode.kv_header", "decode.kv_placed", "decode.commit", "decode.step", "decode.emit",
          "decode.mailbox"]


@pytest.fixture(scope="module")
def expected(tiny_model):
    return RememberedOracle(tiny_model).greedy(PROMPT, COUNT)


@pytest.mark.parametrize("name", ROUTER + PREFILL + DECODE)
def test_an_error_at(tiny_model, expected, tmp_path, name):
    role = name.split(".")[0]
    arms = {f"{role}_flags": ["--failpoints", f"{name}=error@1"]}
    arms.setdefault("router_flags", []).extend(["--request-timeout-ms", int(3000 * clusters.PATIENCE)])
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16], **arms) as cluster, \
            Client(cluster.target) as client:
        answer = client.greedy(PROMPT, COUNT)
        assert answer.code in CLEAR, answer.error
        assert answer.tokens == expected[:len(answer.tokens)]
        assert answer.error is None or answer.error.details(), "an error must say something"

        def answered():
            again = client.greedy(PROMPT, COUNT)
            assert again.code in CLEAR, again.error
            return again.error is None and again.tokens == expected
        clusters.wait_until(answered, 15, "the cluster to serve again")
        clusters.wait_until(cluster.idle, 10, "pages to come back")


# What UCX reports sent, and that never arrives, by who sends it; and whether that costs the request.
LOST = {"prefill.activations_lost": True, "prefill.activation_sum_lost": True, "prefill.credit_lost": False,
        "prefill.kv_lost": True, "prefill.commit_lost": False, "decode.receipt_lost": False}


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_after_it_was_sent_stops_nothing_for_long(tiny_model, expected, tmp_path, name):
    """The request that it belonged to ends long before its deadline, with an answer or with what was lost, and
    the chain serves on."""
    role = name.split(".")[0]
    arms = {"prefill_flags": ["--chunked-prefill-size", 16]}
    arms.setdefault(f"{role}_flags", []).extend(["--failpoints", f"{name}=error@1"])
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16], **arms) as cluster, \
            Client(cluster.target) as client:
        answer = client.greedy(PROMPT, COUNT, timeout=600)
        if answer.error is None:
            assert answer.tokens == expected
        else:
            assert LOST[name], f"this can be made good: {answer.error.details()}"
            assert answer.code == grpc.StatusCode.UNAVAILABLE and "lost" in answer.error.details(), answer.error
        wait_any_log(cluster, f"failpoint {name}:")
        again = client.greedy(PROMPT, COUNT)
        assert again.error is None and again.tokens == expected, again.error
        clusters.wait_until(cluster.idle, 10, "pages to come back")


def wait_any_log(cluster, text):
    clusters.wait_until(lambda: any(text in process.log() for process in cluster.processes.values()), 30,
                        f"{text!r} in some log")


def times_given_up(cluster):
    return sum("data plane: peer" in line and "is given up: " in line
               for process in cluster.processes.values() for line in process.log().splitlines())


def serves_and_rests(cluster, client, expected):
    def answered():
        again = client.greedy(PROMPT, COUNT, timeout=60)
        return again.error is None and again.tokens == expected
    clusters.wait_until(answered, 15, "the cluster to serve again")
    clusters.wait_until(cluster.idle, 30, "pages to come back")


def test_a_send_that_never_ends_is_ended(tiny_model, expected, tmp_path):
    """A payload that is offered and never fetched. Its request ends, and the connection is opened again."""
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 128],  # Large enough to be offered.
                          decode_flags=["--failpoints", "transport.offer_lost=error@1"]) as cluster, \
            Client(cluster.target) as client:
        def lost():
            answer = client.greedy(PROMPT, COUNT, timeout=60)
            assert answer.code in {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, answer.error
            return "failpoint transport.offer_lost:" in cluster.processes["decode-0"].log()
        # Payloads are sent, and not offered, until decode has told the stages that it reads their memory.
        clusters.wait_until(lost, 30, "an offer to be lost")
        assert times_given_up(cluster) > 0, cluster.logs()
        serves_and_rests(cluster, client, expected)


def test_a_connection_without_a_way_back_is_opened_again(tiny_model, expected, tmp_path):
    """Two processes that had parted connect again, and one's greeting is lost: it looks open, and is not."""
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16],
                          decode_flags=["--failpoints", "transport.greeting_lost=error@3"]) as cluster, \
            Client(cluster.target) as client:
        serves_and_rests(cluster, client, expected)
        decode = cluster.processes["decode-0"]
        decode.signal(signal.SIGSTOP)  # The stages close their endpoints to it, and open them again.
        clusters.wait_until(lambda: times_given_up(cluster) == 2, 30, "the stages to notice")
        decode.signal(signal.SIGCONT)
        clusters.wait_until(lambda: "failpoint transport.greeting_lost:" in decode.log(), 30, "a greeting to be lost")
        clusters.wait_until(lambda: times_given_up(cluster) > 2, 30, "the silence to be noticed")
        serves_and_rests(cluster, client, expected)


# Where a drain's word gets lost: the router's to the worker, the router's answer to a worker that drains, and
# the worker's last one.
DRAIN = [("router", "router.ask_drain=error@1"), ("decode", "worker.drain_heartbeat=error@1"),
         ("decode", "worker.heartbeat=error@3"), ("decode", "worker.leave=error")]


@pytest.mark.parametrize("role, failpoint", DRAIN)
def test_a_drain_survives(tiny_model, expected, tmp_path, role, failpoint):
    """A stream runs to its end, its worker ends by itself, nobody is sent to it, and its successor joins."""
    arms = {"decode_flags": ["--failpoints", "decode.step=delay:20"]}
    if role == "decode":
        arms["decode_flags"][1] += ";" + failpoint
    else:
        arms["router_flags"] = ["--failpoints", failpoint]
    arms.setdefault("router_flags", []).extend(["--pairing-timeout-ms", 60000])
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--drain-timeout-ms", 60000], **arms) as cluster, \
            Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = threading.Event()
        answer = pool.submit(client.greedy, PROMPT, 40, on_first=first.set)
        assert first.wait(30 * clusters.PATIENCE)
        with membership(cluster.cluster_target) as router:
            router.Drain(stubs.cluster.DrainRequest(instance_id="decode-0"))
        decode = cluster.processes["decode-0"]
        assert decode.popen.wait(30 * clusters.PATIENCE) == 0, decode.log()
        assert answer.result().error is None and len(answer.result().tokens) == 40
        waiting = pool.submit(client.greedy, PROMPT, COUNT)
        decode.start()
        assert waiting.result().tokens == expected
        clusters.wait_until(cluster.idle, 10, "pages to come back")


def test_workers_of_a_large_cluster_find_one_another(tiny_model, expected, tmp_path):
    """They are told of their own chain alone, as beyond 64 workers, and connect when a request needs it: also to
    the next life of a decode service, and after a look-up that was lost."""
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16],
                          router_flags=["--failpoints", "router.tells_few=error"],
                          prefill_flags=["--failpoints", "worker.find=error@1"]) as cluster, \
            Client(cluster.target) as client:
        serves_and_rests(cluster, client, expected)
        wait_any_log(cluster, "failpoint worker.find:")
        decode = cluster.processes["decode-0"]
        decode.kill()
        decode.start()
        serves_and_rests(cluster, client, expected)
