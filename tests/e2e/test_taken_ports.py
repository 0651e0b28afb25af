"""Ports that somebody else has: a start ends with one line that names the port, before it says or starts anything, and
who has the port notices nothing."""

import contextlib
import http.server
import json
import socket
import subprocess
import threading
import urllib.request

import pytest

import cluster as clusters
from test_up import Up

OPTIONS = ["--port", "--grpc-port", "--metrics-port"]


@contextlib.contextmanager
def listener(address="127.0.0.1", shares=False, port=0):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((address, port or clusters.free_ports(1)[0]))
        other.listen()
        yield other.getsockname()[1]


def assert_one_line(up, option, port):
    assert up.wait_end() == 1, up.text
    assert len(up.lines) == 1, up.text
    assert up.lines[0].startswith("baton up: cannot listen on ") and f":{port}: " in up.lines[0]
    assert up.lines[0].endswith(f"Address already in use ({option})")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("theirs,ours", [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"),
                                         ("127.0.0.1", "0.0.0.0")])
def test_up_names_the_port_that_is_taken(tiny_model, option, theirs, ours):
    with listener(theirs) as port, Up(tiny_model, f"{option}={port}", f"--host={ours}") as up:
        assert_one_line(up, option, port)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_port_that_could_be_shared_is_not(tiny_model, option):
    with listener(shares=True) as port, Up(tiny_model, f"{option}={port}") as up:
        assert_one_line(up, option, port)


def test_the_port_of_a_later_worker_is_looked_at_as_well(tiny_model):
    first = clusters.free_ports(1)[0]
    with listener(port=first + 2), Up(tiny_model, f"--metrics-port={first}") as up:
        assert_one_line(up, "--metrics-port", first + 2)


class SaysReady(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ready\n")

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_stranger_that_says_ready_is_not_believed(tiny_model, option):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SaysReady) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        with Up(tiny_model, f"{option}={stranger.server_port}") as up:
            assert_one_line(up, option, stranger.server_port)
        stranger.shutdown()


def test_a_second_up_leaves_the_first_one_alone(tiny_model):
    ports = clusters.free_ports(2)
    flags = (f"--port={ports[0]}", f"--grpc-port={ports[1]}")
    body = json.dumps({"prompt": "It is", "max_tokens": 8, "ignore_eos": True}).encode()
    with Up(tiny_model, ports=flags) as first:
        http_address, _ = first.wait_ready()
        before = first.children()
        over, failures, served = threading.Event(), [], []

        def load():
            request = urllib.request.Request(f"http://{http_address}/v1/completions", body,
                                             {"Content-Type": "application/json"})
            while not over.is_set():
                try:
                    with urllib.request.urlopen(request, timeout=60) as reply:
                        served.append(reply.status)
                except OSError as error:
                    failures.append(repr(error))
        client = threading.Thread(target=load)
        client.start()
        with Up(tiny_model, ports=flags) as second:
            assert_one_line(second, "--port", ports[0])
        done = len(served)
        clusters.wait_until(lambda: len(served) > done + 3 or failures, 60, "the first one's answers")
        over.set()
        client.join()
        assert not failures
        assert first.children() == before


def test_processes_on_their_own_say_what_is_taken(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--page-size", 16]) as cluster:
        taken = {"router": [("--port", cluster.http_port, ["--grpc-port", 0, "--cluster-port", 0]),
                            ("--grpc-port", cluster.grpc_port, ["--port", 0, "--cluster-port", 0])],
                 "worker": [("--metrics-port", cluster.metrics_ports["decode-0"], []),
                            ("--grpc-port", cluster.grpc_port, [])]}
        for command, cases in taken.items():
            for option, port, others in cases:
                role = []
                if command == "worker":
                    role = ["--disaggregation-mode", "decode", "--router-address", cluster.cluster_target]
                done = subprocess.run([str(clusters.BATON), command, "--model-path", str(tiny_model), *role, option,
                                       str(port), *map(str, others), "--log-level", "error"], capture_output=True,
                                      text=True, timeout=60, check=False)
                assert done.returncode == 1, done.stderr
                assert len(done.stderr.splitlines()) == 1, done.stderr
                assert f":{port}: Address already in use" in done.stderr
        assert cluster.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


def test_a_node_names_the_port_that_is_taken(tiny_model):
    with listener() as port:
        done = subprocess.run([str(clusters.BATON), "worker", "--model-path", str(tiny_model), "--disaggregation-mode",
                               "prefill", "--pp-size", "2", "--nnodes", "1", "--node-rank", "0", "--dist-init-addr",
                               f"127.0.0.1:{clusters.free_ports(1)[0]}", "--router-address", "127.0.0.1:1",
                               "--host", "127.0.0.1", "--metrics-port", str(port)], capture_output=True, text=True,
                              timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines() == [
        f"baton worker: cannot listen on 127.0.0.1:{port}: Address already in use (--metrics-port)"]
