"""The router's HTTP port with --ssl-certfile: every answer as over plain HTTP, and what only TLS has."""

import contextlib
import shutil
import ssl
import subprocess

import pytest

import cluster as clusters
from raw_http import connect, post_bytes, read_all


def make_certificate(directory, name):
    """A certificate that signs itself, for localhost and 127.0.0.1: (certificate, key)."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(directory, "first")
    served = directory / "tls.crt", directory / "tls.key"
    shutil.copy(certificate, served[0])
    shutil.copy(key, served[1])
    return served


@pytest.fixture(scope="module")
def cluster(tiny_model, files, tmp_path_factory):
    flags = ["--served-model-name", "tiny", "--ssl-certfile", files[0], "--ssl-keyfile", files[1]]
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=1, flags=["--page-size", 16],
                          router_flags=flags, tls=ssl.create_default_context(cafile=files[0])) as running:
        yield running


def completion(**changes):
    return {"model": "tiny", "prompt": "hello", "max_tokens": 8, "ignore_eos": True, **changes}


def connect_tls(cluster):
    return cluster.tls.wrap_socket(connect(cluster), server_hostname="localhost", suppress_ragged_eofs=False)


def peer_name(cluster):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(connect(cluster)) as connection:
        text = ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True))
    shown = subprocess.run(["openssl", "x509", "-noout", "-subject"], input=text, text=True, check=True,
                           capture_output=True)
    return shown.stdout.split("CN = ")[1].strip()


@pytest.mark.parametrize("stream", [False, True])
def test_answers_end_with_a_close_notify(cluster, stream):
    with connect_tls(cluster) as connection:
        connection.sendall(post_bytes(completion(stream=stream), headers="Connection: close\r\n"))
        answer = read_all(connection)  # An end without close_notify would be an SSLEOFError.
    assert b" 200 OK\r\n" in answer
    assert (b"data: [DONE]" in answer) if stream else (b'"completion_tokens":8' in answer)


def test_a_large_body_and_many_requests_on_one_connection(cluster):
    ids = [ord("a")] * 4000
    with connect_tls(cluster) as connection:
        for _ in range(3):
            connection.sendall(post_bytes(completion(prompt=ids, max_tokens=1)))
            answer = b""
            while b'"prompt_tokens":4000' not in answer:
                part = connection.recv(65536)
                assert part, answer
                answer += part
    assert cluster.post("/v1/completions", b"[" * 100)[0] == 400


def test_a_client_that_leaves_is_noticed(cluster):
    with connect_tls(cluster) as connection:
        connection.sendall(post_bytes(completion(max_tokens=15_000)))
        clusters.wait_until(lambda: cluster.metric("router", "baton_requests_running") == 1, 30, "it to run")
    clusters.wait_until(lambda: cluster.metric("router", "baton_requests_running") == 0, 30, "it to be cancelled")


def test_plain_http_is_told_what_is_spoken_here(cluster):
    with connect(cluster) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"this port speaks HTTPS" in answer


@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\x16\x03\x01\x40\x00" + b"\x01" * 16384, b""])
def test_what_is_no_handshake_harms_nobody(cluster, garbage):
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connect(cluster)).sendall(garbage)
        assert cluster.get("/health")[0] == 200
    assert cluster.post("/v1/completions", completion())[0] == 200


def test_a_new_certificate_is_served_without_a_restart(cluster, files, tmp_path):
    assert peer_name(cluster) == "first"
    made = make_certificate(tmp_path, "second")
    for new, served in zip(made, files):
        (served.parent / "new").write_bytes(new.read_bytes())
        (served.parent / "new").replace(served)
    clusters.wait_until(lambda: peer_name(cluster) == "second", 30, "the new certificate")


def test_up_serves_https_and_prints_how_to_ask(tiny_model, files, tmp_path):
    with subprocess.Popen([clusters.BATON, "up", "--model-path", tiny_model, "--port", "0", "--grpc-port", "0",
                           "--cluster-port", "0",
                           "--ssl-certfile", files[0], "--ssl-keyfile", files[1]], text=True,
                          stdout=subprocess.PIPE, stderr=open(tmp_path / "up.log", "w")) as up:
        line = next((line for line in up.stdout if line.strip().startswith("curl")), None)
        up.terminate()
        assert line is not None, (tmp_path / "up.log").read_text()
        assert f"--cacert {files[0]} https://" in line
        up.stdout.read()
    assert up.returncode == 0


@pytest.mark.parametrize("flags, message", [
    (["--ssl-certfile", "{crt}"], "ssl_keyfile: required beside ssl_certfile"),
    (["--ssl-certfile", "{dir}/none.crt", "--ssl-keyfile", "{key}"], "none.crt: not a certificate in PEM"),
    (["--ssl-certfile", "{crt}", "--ssl-keyfile", "{crt}"], "tls.crt: not a private key"),
])
def test_bad_files_are_named_before_anything_starts(tiny_model, files, flags, message):
    places = {"crt": files[0], "key": files[1], "dir": files[0].parent}
    ended = subprocess.run([clusters.BATON, "router", "--model-path", tiny_model, "--port", "0", "--grpc-port", "0",
                           "--cluster-port", "0",
                            *(flag.format(**places) for flag in flags)], capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert message in ended.stderr
