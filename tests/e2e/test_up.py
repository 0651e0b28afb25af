"""`baton up` on real processes: what it refuses, says, survives and leaves behind."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading

import pytest

import cluster as clusters

NAMES = ["router", "prefill-0-0", "prefill-0-1", "decode-0"]
PLUGIN = clusters.ROOT / "bazel-bin" / "common" / "engine" / "torch" / "libbaton_torch.so"


class Up:
    """`baton up` with two stages and one decode; its output is collected as it comes.

    `command`: what stands in the place of `up --model-path MODEL`."""

    def __init__(self, model, *flags, baton=clusters.BATON, prefix=(), command=None,
                 ports=("--port=0", "--grpc-port=0", "--cluster-port=0")):
        command = [*prefix, str(baton), *(command or ["up", "--model-path", str(model), "--pp-size=2"]),
                   "--served-model-name", "tiny", "--page-size=16", "--threads=1", *ports, *map(str, flags)]
        self.popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      stdin=subprocess.DEVNULL, start_new_session=True)
        self.lines = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.popen.poll() is None:
            self.popen.kill()  # Its children are told by the kernel.
        self.popen.wait()
        self.reader.join()

    @property
    def text(self):
        return "\n".join(self.lines)

    def wait_line(self, pattern, seconds=60):
        """The match of the first line with `pattern`."""
        def found():
            for line in list(self.lines):
                match = re.search(pattern, line)
                if match:
                    return match
            assert self.popen.poll() is None, self.text
            return None
        return clusters.wait_until(found, seconds, f"{pattern!r} in\n{self.text}")

    def wait_ready(self):
        ready = self.wait_line(r"cluster ready: http=(\S+) grpc=(\S+)")
        self.wait_line(r"^    -d '")  # The last line of what it prints then.
        return ready.group(1), ready.group(2)

    def wait_end(self, seconds=60):
        code = self.popen.wait(seconds * clusters.PATIENCE)
        self.reader.join()
        return code

    def children(self):
        """The processes that it has started, by name."""
        listed = subprocess.run(["pgrep", "-P", str(self.popen.pid)], capture_output=True, text=True).stdout
        found = {}
        for pid in map(int, listed.split()):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended since, before it was opened or before it was read.
            if words == [""]:
                continue  # Ended, and not waited for yet.
            own = [word.split("=", 1)[1] for word in words if word.startswith("--instance-id=")]
            found[own[0] if own else "router"] = pid
        return found

    def table(self):
        """Rows of the table that is printed when the cluster is ready, by process."""
        start = next(i for i, line in enumerate(self.lines) if line.startswith("  process"))
        keys = re.split(r"  +", self.lines[start].strip())
        rows = {}
        for line in self.lines[start + 1:]:
            if not line.strip():
                break
            cells = re.split(r"  +", line.strip())
            rows[cells[0]] = dict(zip(keys, cells))
        return rows

    def curl_line(self):
        start = next(i for i, line in enumerate(self.lines) if line.startswith("  curl "))
        return "\n".join(self.lines[start:start + 2])


def answer_of(curl_line, prefix=()):
    """What the printed line gives in a shell."""
    done = subprocess.run([*prefix, "bash", "-c", curl_line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_answers(curl_line, prefix=()):
    answer = answer_of(curl_line, prefix)
    assert answer["model"] == "tiny"
    assert 1 <= answer["usage"]["completion_tokens"] <= 32  # A random model may end early.


def assert_nobody_left(children):
    for name, pid in children.items():
        assert not os.path.exists(f"/proc/{pid}"), f"{name} outlived its supervisor"


def test_ready_shows_a_table_and_a_line_that_works(tiny_model):
    with Up(tiny_model) as up:
        http, grpc = up.wait_ready()
        rows = up.table()
        assert list(rows) == NAMES
        assert [row["role"] for row in rows.values()] == ["router", "prefill", "prefill", "decode"]
        assert [row["layers"] for row in rows.values()] == ["-", "0 to 2", "3 to 5", "0 to 5"]
        assert rows["decode-0"]["KV tokens"] == "65536"
        assert (rows["router"]["metrics"], rows["router"]["grpc"]) == (http, grpc)
        for name in NAMES:
            host, port = rows[name]["metrics"].rsplit(":", 1)
            assert host == "127.0.0.1"
            with socket.create_connection((host, int(port)), timeout=10):
                pass
        assert_answers(up.curl_line())


def test_every_line_of_a_child_names_it_once(tiny_model):
    with Up(tiny_model) as up:
        up.wait_ready()
        lines = up.lines[:next(i for i, line in enumerate(up.lines) if "cluster ready" in line)]
        lines = [line for line in lines if not line.startswith("cluster starting: ")]
        assert lines
        for line in lines:
            name, rest = re.match(r"(\S+) +\| \d{4}-\d\d-\d\d [\d:.]+ (.*)", line).groups()
            assert name in NAMES
            assert not re.match(rf"[DIWE] {name} ", rest), line


def test_ctrl_c_is_quiet_and_leaves_nobody(tiny_model):
    with Up(tiny_model) as up:
        up.wait_ready()
        children = up.children()
        assert sorted(children) == sorted(NAMES)
        printed = len(up.lines)
        up.popen.send_signal(signal.SIGINT)
        assert up.wait_end() == 0
        assert_nobody_left(children)
        loud = [line for line in up.lines[printed:] if re.search(r"\| \S+ \S+ [WE] |error|fail|kill", line)]
        assert not loud, "\n".join(loud)


def test_a_second_ctrl_c_kills(tiny_model):
    with Up(tiny_model) as up:
        up.wait_ready()
        children = up.children()
        os.kill(children["decode-0"], signal.SIGSTOP)  # It will not stop by itself.
        up.popen.send_signal(signal.SIGINT)
        clusters.wait_until(lambda: "decode-0" in up.children() and len(up.children()) == 1, 30, "the others to end")
        up.popen.send_signal(signal.SIGINT)
        assert up.wait_end() == 1
        assert up.lines[-1] == "baton up: killed on a second signal"
        assert_nobody_left(children)


def test_ctrl_c_while_starting_ends_it(tiny_model):
    with Up(tiny_model) as up:
        clusters.wait_until(lambda: len(up.children()) == 4, 30, "the children")
        up.popen.send_signal(signal.SIGINT)
        assert up.wait_end() == 0
        assert "did not stop" not in up.text


def test_a_worker_started_again_keeps_its_metrics_port(tiny_model):
    with Up(tiny_model) as up:
        up.wait_ready()
        port = up.table()["decode-0"]["metrics"]
        first = up.children()["decode-0"]
        os.kill(first, signal.SIGKILL)
        up.wait_line(r"decode-0 +\| was ended by signal 9 \(Killed\); starting it again in 500 ms")
        second = clusters.wait_until(lambda: up.children().get("decode-0"), 30, "another decode-0")
        assert second != first

        def metrics():
            done = subprocess.run(["curl", "-s", f"http://{port}/metrics"], capture_output=True, text=True)
            return "baton_" in done.stdout
        clusters.wait_until(metrics, 30, "metrics at the old port")


@pytest.mark.parametrize("flags,said", [
    (["--pp-layer-partition=3,4"], "6"),
    (["--host=203.0.113.9"], "host: '203.0.113.9' is no address of this machine"),
    (["--host=no such name"], "is neither an address nor a known name"),
    (["--metrics-port=65534"], "port 65536 does not exist"),
])
def test_what_cannot_work_is_one_message(tiny_model, flags, said):
    with Up(tiny_model, *flags) as up:
        assert up.wait_end() in (2, 3)
        assert len(up.lines) == 1, up.text
        assert up.lines[0].startswith("baton up: ") and said in up.lines[0]


def test_a_worker_that_does_not_fit_waits_until_it_does(tiny_model, tmp_path):
    """Its weights have changed since the others read theirs: it says so, and ends nothing."""
    weights = tmp_path / "model" / "model.safetensors"
    shutil.copytree(tiny_model, weights.parent)
    other = clusters.make_model(tmp_path / "other", layers=6, seed=2)
    with Up(weights.parent) as up:
        up.wait_ready()
        shutil.move(weights, tmp_path / "kept")
        shutil.copy(os.path.join(other, weights.name), weights)
        os.kill(up.children()["decode-0"], signal.SIGKILL)
        up.wait_line(r"decode-0 +\| .*refuses this worker for now and is asked again: weights of layer 0")
        os.replace(tmp_path / "kept", weights)
        os.kill(up.children()["decode-0"], signal.SIGKILL)
        assert_answers(up.curl_line())


def test_a_start_that_takes_too_long_says_what_was_missing(tiny_model):
    with Up(tiny_model, "--start-timeout-ms=1") as up:
        assert up.wait_end() == 1
        assert up.lines[-1].startswith("baton up: not ready after 1 ms (--start-timeout-ms): "), up.text


@pytest.mark.parametrize("host,shown", [("127.0.0.2", "127.0.0.2"), ("localhost", None), ("::1", "[::1]")])
def test_any_local_address_or_name(tiny_model, host, shown):
    with Up(tiny_model, f"--host={host}") as up:
        http, _ = up.wait_ready()
        if shown:
            assert http.startswith(shown + ":")
            assert all(row["grpc"].startswith(shown + ":") for row in up.table().values())
        assert_answers(up.curl_line())


@pytest.fixture
def network():
    """A network namespace of our own with an address besides loopback, and the prefix of commands in it."""
    name = f"baton-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        pytest.skip("needs the right to make a network namespace")
    inside = ["ip", "netns", "exec", name]
    try:
        for command in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", "10.77.0.1/24", "dev", "lo"],
                        ["ip", "route", "add", "default", "dev", "lo", "src", "10.77.0.1"]):
            subprocess.run([*inside, *command], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_listening_everywhere_registers_a_reachable_address(tiny_model, network, host):
    with Up(tiny_model, f"--host={host}", prefix=network) as up:
        http, grpc = up.wait_ready()
        assert http.startswith("10.77.0.1:") and grpc.startswith("10.77.0.1:")
        assert all(row["grpc"].startswith("10.77.0.1:") for row in up.table().values())
        assert_answers(up.curl_line(), network)
        up.popen.send_signal(signal.SIGINT)
        assert up.wait_end() == 0


def test_libtorch_is_linked_by_nobody_and_found_by_an_installation(tiny_model, tmp_path):
    linked = subprocess.run(["ldd", clusters.BATON], capture_output=True, text=True, check=True).stdout
    assert "libtorch" not in linked
    (tmp_path / "bin").mkdir()
    baton = shutil.copy(clusters.BATON, tmp_path / "bin" / "baton")
    with Up(tiny_model, "--linear-backend=torch", baton=baton) as up:
        assert up.wait_end() == 2
        assert re.search(r"^baton up: linear_backend: got torch, and the torch backend is not installed: install the "
                         r"package baton-torch", up.lines[-1]), up.text
    with Up(tiny_model, "--tp-size=2", baton=baton) as up:  # Ranks need none.
        up.wait_ready()
    worker = [baton, "worker", "--disaggregation-mode=prefill", "--executor=torch", "--model-path", tiny_model]
    done = subprocess.run(worker, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "the torch backend is not installed" in done.stderr, done
    (tmp_path / "lib" / "baton").mkdir(parents=True)
    shutil.copy(PLUGIN, tmp_path / "lib" / "baton")
    with Up(tiny_model, "--linear-backend=torch", baton=baton) as up:
        up.wait_ready()
        assert_answers(up.curl_line())
