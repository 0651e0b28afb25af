"""Membership, health, reflection, start-up and stop of real processes."""

import concurrent.futures
import json
import os
import re
import subprocess
import time

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import cluster as clusters
import stubs
from client import Client, membership

SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse{status: SERVING}


def raw_call(target, method, request):
    """A unary call of bytes, for services whose Python modules Debian doesn't package."""
    with grpc.insecure_channel(target) as channel:
        return channel.unary_unary(method)(request, timeout=10)


def health(target, service=""):
    name = service.encode()
    return raw_call(target, "/grpc.health.v1.Health/Check", b"\x0a" + bytes([len(name)]) + name)


def fields(message):
    """(number, bytes) of every length-delimited field of a message, varints left out."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        length = varint()
        if key & 7 == 2:
            yield key >> 3, message[at:at + length]
            at += length


def reflect(target, request):
    """The answer of server reflection to one request, as {field: [bytes]}."""
    with grpc.insecure_channel(target) as channel:
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        reply = next(call(iter([request]), timeout=10))
    answer = {}
    for number, value in fields(reply):
        answer.setdefault(number, []).append(value)
    return answer


def services_of(target):
    (services,) = reflect(target, b"\x3a\x00")[6]  # list_services
    return {name.decode() for _, service in fields(services) for _, name in fields(service)}


def described(target, symbol):
    """A pool with the file that declares `symbol` and all that it imports, as grpcurl would ask for it."""
    name = symbol.encode()
    answer = reflect(target, b"\x22" + bytes([len(name)]) + name)  # file_containing_symbol
    assert 4 in answer, f"{symbol}: {answer}"
    pool = descriptor_pool.DescriptorPool()
    files = [descriptor_pb2.FileDescriptorProto.FromString(file) for _, file in fields(answer[4][0])]
    waiting = {file.name: file for file in files}

    def add(file):
        for name in file.dependency:
            if name in waiting:
                add(waiting.pop(name))
        pool.Add(file)
    while waiting:
        add(waiting.pop(next(iter(waiting))))
    return pool


def listed(cluster):
    with membership(cluster.cluster_target) as router:
        return {w.worker.instance.instance_id: w for w in router.List(stubs.cluster.ListRequest()).workers}


def refused(cluster):
    with membership(cluster.cluster_target) as router:
        return {w.worker.instance.instance_id: w for w in router.List(stubs.cluster.ListRequest()).refused}


def test_list_says_who_is_here(small_cluster):
    workers = listed(small_cluster)
    assert set(workers) == {"prefill-0-0", "prefill-0-1", "decode-0"}
    assert all(w.ready and w.lease_remaining_ms > 0 for w in workers.values())
    layers = [(w.worker.layers.begin, w.worker.layers.end) for _, w in sorted(workers.items())]
    assert layers == [(0, 6), (0, 3), (3, 6)]


def test_health_and_reflection_on_every_role(small_cluster):
    workers = listed(small_cluster)
    roles = {small_cluster.target: ["baton.v1.Inference"],
             small_cluster.cluster_target: ["baton.v1.Cluster"],
             workers["decode-0"].worker.grpc_address: ["baton.v1.Decode"],
             workers["prefill-0-0"].worker.grpc_address: ["baton.v1.Prefill"]}
    for target, services in roles.items():
        assert health(target) == SERVING
        assert set(services) <= services_of(target)
        for service in services:
            assert health(target, service) == SERVING, service
        with pytest.raises(grpc.RpcError) as raised:
            health(target, "no.such.Service")
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_reflection_describes_everything_that_it_lists(small_cluster):
    workers = listed(small_cluster)
    for target in (small_cluster.target, *(w.worker.grpc_address for w in workers.values())):
        for service in services_of(target):
            assert described(target, service).FindServiceByName(service).methods


def test_a_client_that_knows_only_reflection_checks_health(small_cluster):
    pool = described(small_cluster.target, "grpc.health.v1.Health")
    check = pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["Check"]
    factory = message_factory.MessageFactory(pool)
    request = factory.GetPrototype(check.input_type)(service="baton.v1.Inference")
    reply = raw_call(small_cluster.target, "/grpc.health.v1.Health/Check", request.SerializeToString())
    assert factory.GetPrototype(check.output_type).FromString(reply).status == 1  # SERVING


def test_tokenize_and_back(small_cluster):
    text = "naïve café — 漢字 🎵\n"
    with Client(small_cluster.target) as client:
        ids = client.inference.Tokenize(stubs.inference.TokenizeRequest(text=text)).token_ids
        back = client.inference.Detokenize(stubs.inference.DetokenizeRequest(token_ids=ids)).text
        info = client.inference.GetModelInfo(stubs.inference.GetModelInfoRequest())
    assert back == text and len(ids) == len(text.encode())
    assert info.served_model_name == "tiny" and info.vocab_size == 320


@pytest.mark.parametrize("what,model_options,flags,fragments", [
    ("page size", {}, ["--page-size", 64], ["page", "64", "16"]),
    ("other weights", {"seed": 2}, ["--page-size", 16], ["layer 0", "stranger-other-weights has", "decode-0 has"]),
    ("other shape", {"layers": 5}, ["--page-size", 16], []),
    ("other maths", {"family": "llama"}, ["--page-size", 16], []),
])
def test_a_worker_that_does_not_fit_waits_outside(small_cluster, tmp_path, what, model_options, flags, fragments):
    model = clusters.make_model(tmp_path / "other", **{"layers": 6, **model_options})
    port = clusters.free_ports(1)[0]
    name = "stranger-" + what.replace(" ", "-")  # The router remembers for a while who asked.
    stranger = clusters.Process(
        name, ["worker", "--model-path", model, "--router-address", small_cluster.cluster_target,
               "--disaggregation-mode", "decode", "--instance-id", name, "--metrics-port", port, *flags],
        tmp_path, dict(os.environ))
    stranger.start()
    try:
        clusters.wait_until(lambda: name in refused(small_cluster), 30, f"{what}: the refusal")
        reason = refused(small_cluster)[name].reason
        for fragment in fragments:
            assert fragment in reason, f"{what}: {reason}"
        clusters.wait_until(lambda: reason in small_cluster.get("/readiness", port)[1], 30, "the worker to say why")
        assert small_cluster.get("/readiness", port)[0] == 503
        stranger.wait_log(reason)
        assert set(listed(small_cluster)) == {"prefill-0-0", "prefill-0-1", "decode-0"}
    finally:
        code = stranger.stop()
    assert code == 0, stranger.log()


def test_the_clients_port_serves_no_workers(small_cluster, tmp_path, tiny_model):
    assert services_of(small_cluster.target) == {"baton.v1.Inference", "grpc.health.v1.Health",
                                                 "grpc.reflection.v1alpha.ServerReflection"}
    with membership(small_cluster.target) as router, pytest.raises(grpc.RpcError) as raised:
        router.Drain(stubs.cluster.DrainRequest(instance_id="decode-0"))
    assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
    (port,) = clusters.free_ports(1)
    astray = clusters.Process(
        "astray", ["worker", "--model-path", tiny_model, "--router-address", small_cluster.target,
                   "--disaggregation-mode", "decode", "--metrics-port", port], tmp_path, dict(os.environ))
    astray.start()
    try:
        clusters.wait_until(lambda: "takes the router's --cluster-port" in astray.log(), 30, "the worker to say so")
    finally:
        assert astray.stop() == 0, astray.log()


def drain(cluster, instance, target=None):
    """`baton drain`, by way of the cluster's router."""
    return subprocess.run([clusters.BATON, "drain", "--router-address", target or cluster.cluster_target,
                           "--instance-id", instance],
                          capture_output=True, text=True, timeout=60 * clusters.PATIENCE, check=False)


def test_drain_takes_a_worker_out_and_ends_it(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decodes=2) as cluster, Client(cluster.target) as client:
        done = drain(cluster, "decode-0")
        assert done.returncode == 0 and "decode-0 has left after" in done.stdout, done
        assert set(listed(cluster)) == {"prefill-0-0", "decode-1"}
        decode = cluster.processes["decode-0"]
        assert decode.popen.wait(20 * clusters.PATIENCE) == 0, decode.log()
        for _ in range(4):
            answer = client.greedy(list(range(40)), 3)
            assert answer.error is None and answer.finished.decode_instance == "decode-1"


def test_drain_at_the_clients_port_says_which_it_takes(small_cluster):
    done = drain(small_cluster, "decode-0", small_cluster.target)
    assert done.returncode != 0 and "takes the router's --cluster-port" in done.stderr, done


@pytest.mark.parametrize("instance, words", [("decode-7", "no worker decode-7 is registered"), ("", "which worker?")])
def test_drain_of_nobody_says_so(tiny_model, tmp_path, instance, words):
    with clusters.Cluster(tiny_model, tmp_path, stages=1) as cluster:
        done = drain(cluster, instance)
        assert done.returncode != 0 and words in done.stderr, done
        assert "decode-0" in listed(cluster)


def test_drain_without_a_router_says_so():
    done = subprocess.run([clusters.BATON, "drain", "--router-address", "127.0.0.1:1", "--instance-id", "decode-0"],
                          capture_output=True, text=True, timeout=60 * clusters.PATIENCE, check=False)
    assert done.returncode != 0 and "127.0.0.1:1" in done.stderr, done


def no_pair(cluster):
    return cluster.metric("router", "baton_ready_pairs") == 0


def test_a_killed_decode_is_waited_for(tiny_model, tmp_path):
    # The lease outlives the test: what takes the dead decode out is the end of its connection.
    flags = ["--lease-ms", 300000, "--pairing-timeout-ms", 300000]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, router_flags=flags) as cluster, \
            Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        # Connected: who dies in the milliseconds of its connecting may take its peer along (UCX 1.13).
        assert client.greedy(list(range(40)), 3).error is None
        cluster.processes["decode-0"].kill()
        clusters.wait_until(lambda: no_pair(cluster), 20, "the death to be noticed")
        assert cluster.get("/readiness")[0] == 200
        answer = pool.submit(client.greedy, list(range(40)), 3)
        clusters.wait_until(lambda: cluster.metric("router", "baton_requests_waiting") == 1, 20, "the request to wait")
        cluster.processes["decode-0"].start()
        assert answer.result().error is None and len(answer.result().tokens) == 3


def test_nobody_waits_for_ever(tiny_model, tmp_path):
    flags = ["--pairing-timeout-ms", 200]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, router_flags=flags) as cluster, \
            Client(cluster.target) as client:
        cluster.processes["decode-0"].kill()

        def nothing_expected():  # In one answer: a router that has stood still hopes again for a while.
            code, text = cluster.get("/readiness")
            return code == 503 and "decode-0" in text

        clusters.wait_until(nothing_expected, 20, "nothing to be expected")
        answer = client.greedy(list(range(40)), 3)
        assert answer.code == grpc.StatusCode.UNAVAILABLE and "no pair" in answer.error.details()


def test_a_cluster_is_wired_by_notices_alone(tiny_model, tmp_path):
    # With a minute between heartbeats every step of joining must be news.
    flags = ["--heartbeat-interval-ms", 60000, "--lease-ms", 300000]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=flags, router_flags=flags) as cluster, \
            Client(cluster.target) as client:
        assert client.greedy(list(range(40)), 3).error is None


def log_lines(process, message):
    lines = [json.loads(line) for line in process.log().splitlines()]
    return [line for line in lines if line["message"] == message]


def test_logs_are_json_and_every_request_has_its_line(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--log-format", "json"],
                          router_flags=["--log-format", "json"]) as cluster, Client(cluster.target) as client:
        request = client.request(list(range(40)), temperature=0, max_tokens=3, ignore_eos=True)
        request.request_id = "mine"
        assert client.generate(None, request=request).error is None
        assert client.generate([]).code == grpc.StatusCode.INVALID_ARGUMENT
        router = cluster.processes["router"]
        clusters.wait_until(lambda: len(log_lines(router, "request")) == 2, 10, "the lines of both requests")
        # In no order: a request's line is written after its answer, by another thread than a refusal's.
        done, refused = sorted(log_lines(router, "request"), key=lambda line: line["id"] != "mine")
        assert (done["id"], done["endpoint"], done["status"], done["finish"]) == ("mine", "generate", "OK", "length")
        assert (done["tokens_in"], done["tokens_out"], done["cached"], done["attempts"]) == (40, 3, 0, 1)
        assert (done["chain"], done["decode"], done["process"]) == ("chain-0", "decode-0", "router")
        assert 0 < done["ttft_ms"] <= done["e2e_ms"] and done["tpot_ms"] > 0
        assert refused["status"] == "INVALID_ARGUMENT" and refused["error"]
        for process in cluster.processes.values():
            for line in process.log().splitlines():
                assert json.loads(line)["process"] == process.name
                assert "[baton.dev/" not in line


def test_a_worker_stops_in_time_and_cleanly(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=2) as cluster, Client(cluster.target) as client:
        # In milliseconds after joining a stop can meet a fault of UCX 1.13 (common/transport/README.md).
        assert client.greedy(list(range(40)), 3).error is None
        for name, process in cluster.processes.items():
            assert process.stop(20) == 0, f"{name}:\n{process.log()}"


def test_validate_shows_the_plan_and_where_options_come_from(tiny_model):
    shown = subprocess.run([clusters.BATON, "validate", "--model-path", tiny_model, "--pp-size", "3",
                            "--pp-layer-partition", "1,2,3"], capture_output=True, text=True,
                           env=dict(os.environ, BATON_PAGE_SIZE="32"))
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"page_size\s+32\s+.*BATON_PAGE_SIZE", shown.stdout)
    assert re.search(r"prefill 2\s+1\s+\[3, 6\)", shown.stdout)
    assert "longest prompt that fits" in shown.stdout


def test_a_thousand_streams_at_once(tiny_model, tmp_path):
    """Every one of 1,000 concurrent streams is answered, over one router."""
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decode_flags=["--max-running-requests", 64,
                                                                        "--max-queued-requests", 2000]) as cluster, \
            Client(cluster.target) as client:
        calls = [client.inference.Generate(client.request(list(range(8)), temperature=0, max_tokens=3,
                                                          ignore_eos=True)) for _ in range(1000)]
        answers = set()
        for call in calls:
            answers.add(tuple(token for response in call for token in response.tokens.token_ids))
        assert len(answers) == 1 and len(answers.pop()) == 3
        deadline = time.monotonic() + 20
        while cluster.metric("decode-0", "baton_kv_pages_used") != 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert cluster.metric("decode-0", "baton_kv_pages_used") == 0
