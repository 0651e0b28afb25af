"""Drains and rolling upgrades of real processes: what runs is finished, what waits is served by the
successor, and what outlives the drain says so: to its client, in a metric, in the log."""

import concurrent.futures
import http.client
import json
import signal
import threading

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client, membership
from load import Load, retry_info
from test_chaos import wait_joined
from test_cluster import SERVING, health, listed

PROMPT = list(range(100))
SLOW = ["--failpoints", "decode.step=delay:20"]  # 50 tokens a second.


def stream(pool, client, count, prompt=None):
    """(future of the answer, event of its first token) of a request that runs."""
    first = threading.Event()
    answer = pool.submit(client.greedy, prompt or PROMPT, count, on_first=first.set)
    assert first.wait(30 * clusters.PATIENCE)
    return answer


def ended(process, seconds=20):
    process.popen.wait(seconds * clusters.PATIENCE)
    return process.popen.returncode


def drained(cluster, name, cause):
    return cluster.metric(name, "baton_drain_ended_requests_total", cause=cause)


@pytest.fixture
def upgraded(tiny_model, tmp_path):
    flags = ["--pairing-timeout-ms", 60000]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, chains=1, decodes=2, flags=["--page-size", 16],
                          router_flags=flags) as cluster:
        yield cluster


def test_every_worker_is_replaced_under_load_and_nothing_fails(upgraded):
    """Stop, then start by the same name, as a StatefulSet does; the only chain too, stage by stage."""
    prompts = [(list(range(20 + 30 * i)), 12, None) for i in range(4)]
    with Client(upgraded.target) as client:
        prompts = [(ids, count, client.greedy(ids, count).tokens) for ids, count, _ in prompts]
    with Load(lambda: upgraded.target, prompts) as load:
        load.wait_for(8, 60)
        for name in ("decode-0", "prefill-0-1", "prefill-0-0", "decode-1"):
            process = upgraded.processes[name]
            assert process.stop(30) == 0, process.log()
            assert name not in listed(upgraded), "it has left"
            process.start()
            wait_joined(upgraded, 60, f"{name} to join again")
            load.wait_for(8, 60)
    assert load.failures == [] and load.wrong == 0
    clusters.wait_until(upgraded.idle, 10, "all pages to be free")
    assert "drain ends after" in upgraded.processes["prefill-0-1"].log()


def test_a_successor_that_comes_first_takes_over(tiny_model, tmp_path):
    """As a Deployment does: the new one is there before the old one goes."""
    with clusters.Cluster(tiny_model, tmp_path, stages=1) as cluster:
        with Load(lambda: cluster.target, [(PROMPT, 12, None)]) as load:
            load.wait_for(8, 60)
            cluster.add_decode("decode-new").start()
            clusters.wait_until(lambda: cluster.metric("router", "baton_ready_pairs") == 2, 30, "the new decode")
            assert cluster.processes["decode-0"].stop(30) == 0
            load.wait_for(8, 60)
        assert load.failures == []
        assert set(listed(cluster)) == {"prefill-0-0", "decode-new"}


def test_a_draining_decode_finishes_its_streams_and_takes_no_more(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decodes=1, flags=SLOW + ["--drain-timeout-ms", 60000]) \
            as cluster, Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        address = listed(cluster)["decode-0"].worker.grpc_address
        answer = stream(pool, client, 100)
        decode = cluster.processes["decode-0"]
        decode.ask_to_stop()
        port = cluster.metrics_ports["decode-0"]
        clusters.wait_until(lambda: cluster.get("/readiness", port)[0] == 503, 10, "it to be unready")
        assert cluster.get("/health", port)[0] == 200 and health(address) == SERVING
        clusters.wait_until(lambda: health(address, "baton.v1.Decode") != SERVING, 10, "its service to say so")
        assert cluster.metric("decode-0", "baton_draining") == 1
        clusters.wait_until(lambda: cluster.metric("router", "baton_workers", worker_role="decode",
                                                   state="draining") == 1, 10, "the router to know")
        assert answer.result().error is None and len(answer.result().tokens) == 100
        assert ended(decode) == 0, decode.log()


def test_what_outlives_the_drain_hears_when_to_try_again(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decodes=1, flags=SLOW, decode_flags=[
            "--drain-timeout-ms", 500], router_flags=["--pairing-timeout-ms", 500]) as cluster, \
            Client(cluster.target) as client, \
            concurrent.futures.ThreadPoolExecutor(2) as pool:
        answer = stream(pool, client, 5000)
        connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60 * clusters.PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({
            "model": cluster.model.rsplit("/", 1)[-1], "prompt": PROMPT, "max_tokens": 5000, "stream": True,
            "ignore_eos": True, "temperature": 0}), {"Content-Type": "application/json"})
        events = connection.getresponse()
        assert events.status == 200 and events.readline().startswith(b"data: ")
        decode = cluster.processes["decode-0"]
        assert decode.stop(20) == 0, decode.log()
        error = answer.result().error
        assert error.code() == grpc.StatusCode.UNAVAILABLE and retry_info(error), error
        assert "--drain-timeout-ms" in error.details()
        with pytest.raises(http.client.IncompleteRead) as cut:  # An error breaks off the stream after its event.
            events.read()
        last = [line for line in cut.value.partial.splitlines() if line.startswith(b"data: ")][-1]
        said = json.loads(last[len(b"data: "):])["error"]
        assert said["code"] == "draining" and said["type"] == "server_error", said
        clusters.wait_until(lambda: drained(cluster, "router", "worker") == 2, 10, "the router to count them")
        assert "ended 2 requests that were not done in time" in decode.log() and "time_over=2" in decode.log()

        def told():
            lines = [line for line in cluster.processes["router"].log().splitlines() if "--drain-timeout-ms" in line]
            return [line for line in lines if " request id=" in line and "status=UNAVAILABLE" in line]
        clusters.wait_until(lambda: len(told()) == 2, 30, "the router to tell of both")


def test_the_drain_rpc_is_sigterm(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=2, decodes=2, flags=SLOW) as cluster, \
            Client(cluster.target) as client, membership(cluster.cluster_target) as router, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = stream(pool, client, 40)
        taken = [name for name in ("decode-0", "decode-1") if cluster.metric(name, "baton_requests_running") > 0]
        assert len(taken) == 1
        router.Drain(stubs.cluster.DrainRequest(instance_id=taken[0]))
        assert listed(cluster)[taken[0]].draining
        for _ in range(2):
            assert client.greedy(PROMPT, 3).finished.decode_instance != taken[0]
        assert answer.result().error is None and len(answer.result().tokens) == 40
        assert ended(cluster.processes[taken[0]]) == 0
        assert taken[0] not in listed(cluster)
        with pytest.raises(grpc.RpcError) as raised:
            router.Drain(stubs.cluster.DrainRequest(instance_id="nobody"))
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_second_signal_ends_a_drain_at_once(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=SLOW + ["--drain-timeout-ms", 600000]) as cluster, \
            Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = stream(pool, client, 5000)
        decode = cluster.processes["decode-0"]
        decode.ask_to_stop()
        clusters.wait_until(lambda: "drain begins" in decode.log(), 10, "the drain")
        decode.signal(signal.SIGTERM)
        assert ended(decode) == 1
        assert answer.result().code == grpc.StatusCode.UNAVAILABLE


def test_a_router_settles_then_refuses_and_finishes_what_runs(tiny_model, tmp_path):
    flags = ["--drain-settle-ms", 2000, "--drain-timeout-ms", 60000]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=SLOW, router_flags=flags) as cluster, \
            Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = stream(pool, client, 200)
        router = cluster.processes["router"]
        router.ask_to_stop()
        clusters.wait_until(lambda: cluster.get("/readiness")[0] == 503, 10, "it to be unready")
        assert "draining" in cluster.get("/readiness")[1] and cluster.get("/health")[0] == 200
        assert client.greedy(PROMPT, 2).error is None, "endpoints have not changed everywhere yet"
        body = {"model": cluster.model.rsplit("/", 1)[-1], "prompt": PROMPT, "max_tokens": 1}

        def refused():
            return cluster.post("/v1/completions", body)[0] == 503
        clusters.wait_until(refused, 20, "it to refuse")
        connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=20 * clusters.PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 503 and int(reply.headers["Retry-After"]) >= 1
        assert reply.headers["Connection"] == "close"
        refusal = client.greedy(PROMPT, 2).error
        assert refusal.code() == grpc.StatusCode.UNAVAILABLE and retry_info(refusal)
        clusters.wait_until(lambda: drained(cluster, "router", "refused") >= 3, 10, "the router to count them")
        assert cluster.metric("router", "baton_draining") == 1
        assert answer.result().error is None and len(answer.result().tokens) == 200
        assert ended(router) == 0, router.log()


def test_one_stage_that_leaves_drains_its_chain(tiny_model, tmp_path):
    """The last stage is told to go while a long prompt is on its way: it stays for all of it."""
    flags = ["--chunked-prefill-size", 16, "--failpoints", "prefill.compute=delay:20"]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16], prefill_flags=flags,
                          router_flags=["--pairing-timeout-ms", 60000]) as cluster, \
            Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(2) as pool:
        prompt = [i % 256 for i in range(600)]
        answers = [pool.submit(client.greedy, prompt, 3) for _ in range(2)]
        clusters.wait_until(lambda: cluster.metric("prefill-0-1", "baton_plans_total") > 2, 30, "the chain to run")
        last = cluster.processes["prefill-0-1"]
        assert last.stop(30) == 0, last.log()
        for answer in answers:
            assert answer.result().error is None and answer.result().finished.attempts == 1, answer.result()
        waiting = pool.submit(client.greedy, PROMPT, 3)
        clusters.wait_until(lambda: cluster.metric("router", "baton_requests_waiting") == 1, 10, "a request to wait")
        last.start()
        assert waiting.result().error is None
