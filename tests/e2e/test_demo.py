"""`./dev demo --observe`: Prometheus with what deploy has for it beside a cluster, and nothing left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

import cluster as clusters

SCRIPT = clusters.ROOT / "tools" / "demo" / "demo.py"
sys.path.insert(0, str(clusters.ROOT / "tools" / "observe"))
import prometheus  # noqa: E402


def demo(directory, port, *flags, **environment):
    """The running script with a short document; its output goes to a file."""
    document = directory / "document.txt"
    document.write_text("It is a truth universally acknowledged. " * 20, encoding="utf-8")
    with open(directory / "output.txt", "wb") as output:
        return subprocess.Popen(
            ["/usr/bin/python3", SCRIPT, "--baton", clusters.BATON, "--observe", "--prometheus-port", str(port),
             "--prompt", document, "--max-tokens", "5", "--log", directory / "demo.log", "--threads", "1", *flags],
            stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **environment},
            # A shell has what it runs in the background ignore Ctrl-C, and its children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


@pytest.fixture(scope="module")
def observed_demo(tmp_path_factory):
    """(process, what it printed, address of Prometheus) once it says what to open."""
    directory, port = tmp_path_factory.mktemp("demo"), clusters.free_ports(1)[0]
    process = demo(directory, port, "--decodes", "2")
    output = directory / "output.txt"

    def told():
        assert process.poll() is None, output.read_text()
        return "Ctrl-C stops it" in output.read_text()
    try:
        clusters.wait_until(told, 120, "the demo's last words")
        yield process, output.read_text(), f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            process.terminate()  # Not a kill: its cluster would outlive it.
        process.wait(60 * clusters.PATIENCE)


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def query(server, expression):
    return json.loads(fetch(f"{server}/api/v1/query?query={expression}"))["data"]["result"]


def test_every_process_is_scraped_and_judged(observed_demo):
    _, output, server = observed_demo
    assert "scrapes 5 processes (router, prefill-0-0, prefill-0-1, decode-0, decode-1)" in output
    clusters.wait_until(lambda: len(query(server, "up==1")) == 5, 30, "five targets")
    rules = json.loads(fetch(f"{server}/api/v1/rules"))["data"]["groups"]
    assert any(rule["name"] == "BatonTargetDown" for group in rules for rule in group["rules"])
    clusters.wait_until(lambda: query(server, "baton_requests_finished_total>1"), 30, "requests of its own load")


def test_what_it_says_to_open_is_there(observed_demo):
    _, output, server = observed_demo
    urls = re.findall(r"http://\S+", output)
    dashboard = next(url for url in urls if "dashboard=" in url)
    assert dashboard.startswith(server) and "viewer.js" in fetch(dashboard)
    for path in ("viewer.js", "panels.js", "units.js", "viewer.css", "dashboards/baton-overview.json"):
        assert fetch(f"{server}/user/{path}")
    for url in urls:
        if "/alerts" in url or "/graph" in url:
            assert fetch(url)


def test_ctrl_c_leaves_nothing(observed_demo):
    """The last test of the module that uses the demo."""
    process, _, server = observed_demo
    ours = [int(pid) for pid in subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True,
                                               text=True).stdout.split()]
    assert len(ours) == 2, "`baton up` and Prometheus"
    process.send_signal(signal.SIGINT)
    assert process.wait(60 * clusters.PATIENCE) == 0
    for pid in ours:
        assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(OSError):
        fetch(server)


def test_without_flags_it_ends_with_one_chain_that_also_decodes(tmp_path):
    document = tmp_path / "document.txt"
    document.write_text("It is a truth universally acknowledged. " * 20, encoding="utf-8")
    done = subprocess.run(
        ["/usr/bin/python3", SCRIPT, "--baton", clusters.BATON, "--prompt", document, "--max-tokens", "8", "--log",
         tmp_path / "demo.log"], capture_output=True, text=True, timeout=120 * clusters.PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    apart, together = done.stdout.split("baton serve models/austen")
    assert "KV hand-off" in apart and "no KV sent" in together
    # The same seed gives the same text.
    texts = [part.split("universally acknowledged.")[-1].strip().split("\n\n")[0] for part in (apart, together)]
    assert texts[0] == texts[1] and texts[0]


def test_a_taken_port_is_named_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert demo(tmp_path, port).wait(60) == 1
    said = (tmp_path / "output.txt").read_text()
    assert f"port {port} of 127.0.0.1 is not free for Prometheus" in said and "--prometheus-port" in said
    assert not (tmp_path / "demo.log").exists()


def test_a_missing_prometheus_is_named_before_anything_starts(tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("protoc", "grpc_python_plugin"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    assert demo(tmp_path, clusters.free_ports(1)[0], PATH=str(tmp_path / "bin")).wait(60) == 1
    assert prometheus.MISSING in (tmp_path / "output.txt").read_text()
    assert not (tmp_path / "demo.log").exists()
