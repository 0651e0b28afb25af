"""What a process prints holds up nobody: a reader that stands still or goes, a disk that is full, descriptors that are
closed. Requests are served all the same."""

import fcntl
import json
import os
import subprocess
import threading
import urllib.request

import pytest

import cluster as clusters

F_SETPIPE_SZ = 1031
REQUESTS = 60  # Each is a line of the log; the pipe holds a page of them.


class Served:
    """`baton up` of one stage, whose output goes where the test says."""

    def __init__(self, model, stdout, stderr, *flags, prefix=()):
        self.port, grpc_port = clusters.free_ports(2)
        self.popen = subprocess.Popen(
            [*prefix, str(clusters.BATON), "up", "--model-path", str(model), "--page-size=16", "--threads=1",
             f"--port={self.port}", f"--grpc-port={grpc_port}", *flags],
            stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        try:
            clusters.wait_until(self.ready, 60, "the cluster to be ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def ready(self):
        assert self.popen.poll() is None, f"ended with {self.popen.returncode}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readiness", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def complete(self, number):
        body = {"prompt": "It is", "max_tokens": 1, "request_id": "r" * 90 + str(number)}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30 * clusters.PATIENCE) as reply:
            return reply.status

    def assert_serves(self):
        for i in range(REQUESTS):
            assert self.complete(i) == 200
        assert self.popen.poll() is None


@pytest.fixture
def small_pipe():
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    ends = {"reader": reader, "writer": writer}
    yield ends
    for end in ends.values():
        if end is not None:
            os.close(end)


@pytest.mark.parametrize("flags", [[], ["--log-format=json"]])
def test_a_reader_that_stands_still_holds_up_nobody(tiny_model, small_pipe, flags):
    with Served(tiny_model, small_pipe["writer"], small_pipe["writer"], *flags) as served:
        served.assert_serves()
        # And what it missed comes when it reads again, in order.
        os.close(small_pipe["writer"])
        small_pipe["writer"] = None
        served.popen.terminate()
        with os.fdopen(small_pipe["reader"], encoding="utf-8", errors="replace") as log:
            small_pipe["reader"] = None
            text = log.read()
        assert served.popen.wait(60) == 0
    places = [text.find("r" * 90 + str(i)) for i in range(REQUESTS)]
    assert min(places) >= 0 and places == sorted(places), text


def test_a_reader_that_goes_ends_nobody(tiny_model, small_pipe):
    with Served(tiny_model, small_pipe["writer"], small_pipe["writer"]) as served:
        os.close(small_pipe["reader"])
        small_pipe["reader"] = None
        served.assert_serves()
        served.popen.terminate()
        assert served.popen.wait(60 * clusters.PATIENCE) == 0


def test_a_full_disk_ends_nobody(tiny_model):
    with open("/dev/full", "wb") as full, Served(tiny_model, full, full) as served:
        served.assert_serves()


@pytest.mark.parametrize("closed", ["2>&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_closed_descriptors_are_nobodys_files(tiny_model, closed):
    """Else the first socket that is opened would be standard error."""
    prefix = ["bash", "-c", f'exec "$@" {closed}', "bash"]
    with Served(tiny_model, subprocess.DEVNULL, subprocess.DEVNULL, prefix=prefix) as served:
        served.assert_serves()


def test_lines_that_are_lost_are_counted(tiny_model, tmp_path):
    with open("/dev/full", "wb") as full:
        cluster = clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--page-size", 16])
        router = cluster.processes["router"]
        router.start = lambda: setattr(router, "popen", subprocess.Popen(
            router.arguments, stdout=full, stderr=full, env=router.environment, stdin=subprocess.DEVNULL))
        with cluster:
            before = cluster.metric("router", "baton_log_lines_dropped_total")
            assert cluster.post("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
            clusters.wait_until(lambda: cluster.metric("router", "baton_log_lines_dropped_total") > max(before, 0), 30,
                                "the lost line")


def test_the_end_comes_though_nobody_reads(tiny_model, small_pipe):
    """Its last line has no room, and is given up after a second."""
    with Served(tiny_model, small_pipe["writer"], small_pipe["writer"]) as served:
        served.assert_serves()
        served.popen.terminate()
        assert served.popen.wait(60 * clusters.PATIENCE) == 0


def test_an_error_before_the_start_comes_out_whole(tiny_model, small_pipe):
    text = []
    reader = threading.Thread(target=lambda: text.append(os.read(small_pipe["reader"], 65536).decode()))
    reader.start()
    done = subprocess.run([str(clusters.BATON), "router", "--model-path", str(tiny_model), "--host", "no such name"],
                          stdout=small_pipe["writer"], stderr=small_pipe["writer"], timeout=60, check=False)
    reader.join()
    assert done.returncode == 2 and "no such name" in text[0]
