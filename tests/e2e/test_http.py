"""The HTTP front as clients on real sockets meet it: floods, large bodies, leaving early, half-closing,
and the parts of RFC 9110 and 9112 that proxies and browsers rely on."""

import contextlib
import http.client
import json
import resource
import socket
import threading

import pytest

import cluster as clusters
from raw_http import connect, post_bytes, read_all

ORIGIN = "https://chat.example"


@pytest.fixture(scope="module")
def cluster(tiny_model, tmp_path_factory):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=1,
                          flags=["--page-size", 16],
                          router_flags=["--served-model-name", "tiny", "--max-http-connections", 2000,
                                        "--cors-allow-origins", ORIGIN]) as running:
        yield running


def completion(**changes):
    return {"model": "tiny", "prompt": "hello", "max_tokens": 2, **changes}


def router_memory(cluster, field):
    """Bytes of VmRSS (now) or VmHWM (peak) of the router's process."""
    with open(f"/proc/{cluster.processes['router'].popen.pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    raise AssertionError(field)


def test_ten_thousand_idle_connections_lock_nobody_out(cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 11_000:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(10_000):
                stack.enter_context(connect(cluster))
            assert cluster.get("/health")[0] == 200
            assert cluster.get("/readiness")[0] == 200
            status, body = cluster.post("/v1/completions", completion())
            assert status == 200, body
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_large_bodies_leave_room_for_others_and_give_their_memory_back(cluster):
    assert cluster.post("/v1/completions", completion())[0] == 200
    before = router_memory(cluster, "VmRSS")
    body = b'{"model":"tiny","prompt":[' + b"1," * (15 * 1024 * 512) + b"1]}"
    statuses = []

    def send():
        statuses.append(cluster.post("/v1/completions", body, timeout=300)[0])

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    probes = 0
    while any(thread.is_alive() for thread in threads):
        assert cluster.get("/health", timeout=60)[0] == 200
        probes += 1
    for thread in threads:
        thread.join()
    assert statuses == [400] * 6  # Over-long, each of them, and parsed to the end to know it.
    assert probes > 0
    clusters.wait_until(lambda: router_memory(cluster, "VmRSS") < before + (64 << 20), 30,
                        "the router to give its memory back")


@pytest.mark.parametrize("extra", [b"", b"x", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000])
def test_a_client_that_leaves_is_noticed_whatever_it_sent(cluster, extra):
    with connect(cluster) as connection:
        connection.sendall(post_bytes(completion(max_tokens=15_000, ignore_eos=True)))
        clusters.wait_until(lambda: cluster.metric("router", "baton_requests_running") == 1, 30, "it to run")
        connection.sendall(extra)
    clusters.wait_until(lambda: cluster.metric("router", "baton_requests_running") == 0, 30, "it to be cancelled")


@pytest.mark.parametrize("stream", [False, True])
def test_half_closing_clients_get_their_answer(cluster, stream):
    with connect(cluster) as connection:
        connection.sendall(post_bytes(completion(max_tokens=30, ignore_eos=True, stream=stream)))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert b" 200 OK\r\n" in answer
    assert (b"data: [DONE]" in answer) if stream else (b'"completion_tokens":30' in answer)


def test_one_connection_serves_streams_and_everything_else(cluster):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
    connection.connect()
    source = connection.sock.getsockname()
    for _ in range(2):
        connection.request("POST", "/v1/completions", json.dumps(completion(stream=True)))
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
        connection.request("HEAD", "/v1/models")
        head = connection.getresponse()
        assert head.status == 200 and int(head.headers["Content-Length"]) > 0 and head.read() == b""
        connection.request("HEAD", "/v1/completions")
        head = connection.getresponse()
        assert head.status == 405 and head.read() == b""
        connection.request("OPTIONS", "/v1/completions")
        options = connection.getresponse()
        assert options.status == 204 and "POST" in options.headers["Allow"] and options.read() == b""
        connection.request("GET", f"http://127.0.0.1:{cluster.http_port}/health")
        assert connection.getresponse().read() != b""
    assert connection.sock.getsockname() == source, "the connection was opened anew"
    connection.close()


@pytest.mark.parametrize("request_,status", [
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: a-miracle\r\n\r\n", 417),
    (b"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", 413),
])
def test_what_the_server_refuses_has_the_form_of_openais_errors(cluster, request_, status):
    with connect(cluster) as connection:
        connection.sendall(request_)
        answer = read_all(connection)
    header, _, body = answer.partition(b"\r\n\r\n")
    assert header.startswith(f"HTTP/1.1 {status} ".encode()), header
    assert b"Connection: close" in header
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_request_ids_are_taken_and_given(cluster):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(completion()), {"X-Request-Id": "trace-7"})
    answer = connection.getresponse()
    assert answer.headers["X-Request-Id"] == "trace-7"
    assert json.loads(answer.read())["id"].startswith("cmpl-trace-7-")
    connection.request("GET", "/health", headers={"X-Request-Id": "not valid"})
    answer = connection.getresponse()
    answer.read()
    assert answer.headers["X-Request-Id"] not in (None, "not valid")
    connection.close()


def test_browsers_of_allowed_origins_may_call(cluster):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60)
    connection.request("OPTIONS", "/v1/chat/completions", headers={
        "Origin": ORIGIN, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type"})
    preflight = connection.getresponse()
    preflight.read()
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "authorization" in preflight.headers["Access-Control-Allow-Headers"]
    for origin, allowed in ((ORIGIN, ORIGIN), ("https://other.example", None)):
        connection.request("POST", "/v1/completions", json.dumps(completion()), {"Origin": origin})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == allowed
    connection.close()
