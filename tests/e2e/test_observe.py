"""Dashboards, recording rules and alerts against a real Prometheus that scrapes a real cluster.

A panel whose expression yields nothing is how dashboards rot: a renamed metric, a label that nobody
sends. So every expression of the shipped files is evaluated here after some load, and must yield
numbers. A number may be zero by mistake as well: so everything goes wrong once that the panels are
there to show, and then every one of them must have shown something else than zero.
"""

import concurrent.futures
import contextlib
import http.server
import json
import re
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import yaml

import cluster as clusters
import raw_http
from client import Client
from otlp_collector import Collector
from test_chaos import incarnations, wait_joined

DEPLOY = clusters.ROOT / "deploy"
sys.path[:0] = [str(DEPLOY / "grafana"), str(clusters.ROOT / "tools" / "observe")]
import generate  # noqa: E402
import prometheus as observing  # noqa: E402

ALERTS = DEPLOY / "prometheus" / "rules" / "baton.alerts.yaml"
RECORDING = DEPLOY / "prometheus" / "rules" / "baton.recording.yaml"
RUNBOOK = clusters.ROOT / "docs" / "runbook.md"
COMPARISON = re.compile(r"\s(?:>|<|==|!=|>=|<=)\s[-\d.]+(?:\s\*\s[\d.]+)?$")


HTTP_CONNECTIONS = 4


def rules_of(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def operands(expression):
    """What an alert compares: `a > 1 and b > 2` has the operands a and b."""
    return [COMPARISON.sub("", part.strip()) for part in expression.split(" and ")]


class Prometheus(observing.Prometheus):
    def numbers(self, expression):
        return [value for _, value in self.samples(expression)]

    def wait_numbers(self, expression, seconds=30):
        return clusters.wait_until(lambda: self.numbers(expression), seconds, f"data for {expression}")


def flat(prometheus, panels):
    """Titles of those that have shown nothing but zero. The last step of such a query is up to a second old."""
    return {title for title, expression in panels
            if not any(prometheus.numbers(f"max_over_time(({expression})[10m:1s]) != 0"))}


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """(cluster, prometheus, client, collector) after a little load on two stages and two decodes."""
    directory = tmp_path_factory.mktemp("observed")
    model = clusters.make_model(directory / "model")
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(Collector())
        traced = ["--otlp-traces-endpoint", collector.endpoint]
        # The router's lease is longer than that of a hand-off, or nobody would ever see the latter run out.
        cluster = stack.enter_context(clusters.Cluster(
            model, directory, stages=2, decodes=2, decode_flags=["--max-queued-requests", 1],
            # Nothing is cached, so that prompts wait.
            flags=["--kv-cache-tokens", 8192, "--disable-radix-cache", "--lease-ms", 5000, *traced],
            # Texts end with their workers, so that errors are seen.
            router_flags=["--max-http-connections", HTTP_CONNECTIONS, "--max-queued-requests", 4,
                          "--max-resumes", 0, "--lease-ms", 5000, *traced]))
        targets = [f"127.0.0.1:{port}" for port in (cluster.http_port, *cluster.metrics_ports.values())]
        prometheus = stack.enter_context(Prometheus(directory, targets, clusters.free_ports(1)[0]))
        client = stack.enter_context(Client(cluster.target))
        prometheus.wait_numbers("sum(up) == 5")
        for length in (40, 600, 200, 900):
            assert client.greedy([7] * length, 6).error is None
        yield cluster, prometheus, client, collector


# Dashboards whose panels have tests of their own, with what shows them.
COLOCATED, GPUS = "baton-colocated", "baton-gpu"


def panel_expressions(only=None):
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        if path.stem != only if only else path.stem in (COLOCATED, GPUS):
            continue
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", "1m")
                yield f"{path.stem}: {panel['title']}", re.sub(r"\$(namespace|model)\b", ".*", expression)


def test_dashboards_are_what_their_generator_writes():
    for name, text in generate.dashboards().items():
        assert (DEPLOY / "grafana" / "dashboards" / name).read_text() == text, \
            f"{name} is stale: run python3 deploy/grafana/generate.py"


def test_a_renamed_metric_breaks_the_generator(monkeypatch):
    known = generate.known_metrics()
    monkeypatch.setattr(generate, "known_metrics", lambda: known - {"baton_ready_pairs"})
    with pytest.raises(SystemExit, match="Ready pairs.*baton_ready_pairs"):
        generate.dashboards()


def test_rules_name_metrics_and_runbook_sections_that_exist():
    known = generate.known_metrics() | generate.known_records()
    sections = set(re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.M))
    alerts = rules_of(ALERTS)
    for rule in rules_of(RECORDING) + alerts:
        assert generate.names_of(rule["expr"]) <= known, rule
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["annotations"]["runbook_url"] == f"docs/runbook.md#{alert['alert'].lower()}"
    assert {alert["alert"] for alert in alerts} == sections


def test_promtool_finds_each_alert_firing_and_quiet():
    promtool = shutil.which("promtool")
    assert promtool, "promtool comes with Debian's package prometheus (third_party/packages.txt)"
    path = DEPLOY / "prometheus" / "tests" / "alerts.test.yaml"
    cases = {test["name"] for test in yaml.safe_load(path.read_text())["tests"]}
    for alert in rules_of(ALERTS):
        assert {f"{alert['alert']} fires", f"{alert['alert']} quiet"} <= cases
    run = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_panel_shows_numbers(observed):
    _, prometheus, _, _ = observed
    empty = []
    for title, expression in panel_expressions():
        try:
            prometheus.wait_numbers(expression, 20)
        except AssertionError:
            empty.append(f"{title}: {expression}")
    assert not empty, "\n".join(empty)


def test_every_rule_has_something_to_judge(observed):
    _, prometheus, _, _ = observed
    for rule in rules_of(RECORDING):
        prometheus.wait_numbers(rule["expr"])
    for alert in rules_of(ALERTS):
        for operand in operands(alert["expr"]):
            prometheus.wait_numbers(operand)
    assert prometheus.numbers('ALERTS{alertstate="firing",severity="critical"}') == []


# Panels that stay at zero in all of this, and why that is right.
STAY_ZERO = {
    "baton-process: Requests that drains ended within 5 minutes": "nobody is told to stop while it serves",
    "baton-process: Lines lost within 5 minutes": "every process's output is read",
    "baton-process: Requests beyond a tenant's limit within 5 minutes": "no limits; test_tenants counts them",
}
MAY_STAY_ZERO = {
    "baton-process: Texts that were to go on elsewhere within 5 minutes":
        "--max-resumes 0, so that only those do which give their pages to older ones; test_resume counts them",
    "baton-kv-handoff: Pages in quarantine":
        "a placement must be under way at the very moment at which its grant ends; tests/sim brings it about",
    "baton-process: Draining": "one decode service is told to stop, and is through with that at once",
}


def crowd(cluster):
    """More idle connections than the router's front has room for, then more that are being served."""
    with contextlib.ExitStack() as stack:
        for _ in range(HTTP_CONNECTIONS + 4):
            stack.enter_context(raw_http.connect(cluster))
        clusters.wait_until(lambda: cluster.metric("router", "baton_http_connections_evicted_total") > 0, 10,
                            "evictions")
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        for _ in range(10 * HTTP_CONNECTIONS):  # One may give way to a scrape, or have ended.
            stream = stack.enter_context(raw_http.connect(cluster))
            stream.sendall(raw_http.post_bytes(body))
            with contextlib.suppress(ConnectionError):
                stream.recv(12)
            if cluster.get("/v1/models")[0] == 503:
                break
        else:
            raise AssertionError("there was always room for one more")


@contextlib.contextmanager
def slow_steps(cluster, name):
    """Its streams last, so that whenever it is killed it has some whose clients have seen tokens."""
    process = cluster.processes[name]
    arguments = process.arguments
    former = (name, incarnations(cluster).get(name))
    process.stop()
    process.arguments = [*arguments, "--failpoints", "decode.step=delay:100"]
    process.start()
    try:
        # By its incarnation: for as long as a lease the router counts on the former one, if that had to be killed.
        wait_joined(cluster, 60, f"{name} with slow steps", former)
        yield
    finally:
        process.kill()
        process.arguments = arguments
        process.start()


def lose_a_decode(cluster, prometheus, client):
    """More than the KV caches and queues take, and a decode service that dies while it streams and receives."""
    killed = threading.Event()

    def ask_until_it_is_dead():  # However long Prometheus takes to see it: the victim has streams all the time.
        codes = []
        while not codes or not killed.wait(0.05):
            codes.append(client.greedy([7] * 2000, 1000).code.name)
        return codes

    def steps():
        return cluster.metric("decode-1", "baton_decode_steps_total")

    with slow_steps(cluster, "decode-1"):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            calls = [pool.submit(ask_until_it_is_dead) for _ in range(16)]
            try:
                clusters.wait_until(lambda: steps() > 3, 30, "streams")
                prometheus.wait_numbers('baton_requests_waiting{role="decode"} > 0')
                cluster.processes["decode-1"].kill()
            finally:
                killed.set()
            ended = [code for call in calls for code in call.result()]
        assert {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"} <= set(ended), ended
        prometheus.wait_numbers("up == 0")
        prometheus.wait_numbers("baton_membership_leases_expired_total > 0")
    cluster.wait_ready()


def abort(cluster, client):
    """Prompts that their clients give up in the middle of the hand-off, until one of them shows as refused."""
    for number in range(30):
        call = client.inference.Generate(client.request([7] * 6000, max_tokens=4), timeout=60)
        before = cluster.metric("prefill-0-1", "baton_kv_transfer_bytes_total")
        clusters.wait_until(lambda: cluster.metric("prefill-0-1", "baton_kv_transfer_bytes_total") > before, 30,
                            "the hand-off's begin")
        call.cancel()
        if sum(cluster.metric(f"decode-{i}", "baton_kv_messages_refused_total") for i in range(2)) > 0:
            return
    raise AssertionError("thirty aborted prompts left nothing to refuse")


def stop_a_stage(cluster, client):
    """A stage that falls silent in the middle of a hand-off while prompts queue up behind it, and comes back.

    Stage 0 misses its answers as soon as decode misses its heartbeats; whoever is first ends the requests. So until
    it was decode."""
    def noticed():
        return sum(cluster.metric(f"decode-{i}", "baton_kv_leases_expired_total") for i in range(2)) > 0
    stage = cluster.processes["prefill-0-1"]
    for _ in range(10):
        before = cluster.metric("prefill-0-1", "baton_kv_transfer_bytes_total")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            calls = [pool.submit(client.greedy, [7] * 3500, 4) for _ in range(4)]
            clusters.wait_until(lambda before=before:
                                cluster.metric("prefill-0-1", "baton_kv_transfer_bytes_total") > before, 30,
                                "the hand-off's begin")
            stage.signal(signal.SIGSTOP)
            try:
                clusters.wait_until(lambda calls=calls: noticed() or all(call.done() for call in calls), 30,
                                    "the silence to be noticed")
            finally:
                stage.signal(signal.SIGCONT)
        cluster.wait_ready()
        if noticed():
            return
    raise AssertionError("ten silent stages, and decode was never the first to notice")


def test_faults_show_where_they_should(observed):
    """The last test of the module: all panels but those of STAY_ZERO show something, and alerts see the faults."""
    cluster, prometheus, client, collector = observed
    # Exporters send every few seconds: a collector that stops before that has seen no span.
    prometheus.wait_numbers('sum(rate(baton_trace_spans_total{fate="exported"}[1m])) > 0', 60)
    collector.stop()  # While all the rest goes wrong exporters lose their patience.
    crowd(cluster)
    lose_a_decode(cluster, prometheus, client)
    abort(cluster, client)
    stop_a_stage(cluster, client)
    for alert in ("BatonWorkerLost", "BatonKvLeasesExpire"):
        prometheus.wait_numbers(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
    for alert in ("BatonTargetDown", "BatonErrorBudgetBurnsFast", "BatonKvTransfersFail"):
        prometheus.wait_numbers(f'max_over_time(ALERTS{{alertname="{alert}"}}[10m])')
    prometheus.wait_numbers('sum by (role) (baton_trace_spans_total{fate="failed"}) > 0', 60)

    def shown():
        return flat(prometheus, panel_expressions()) - set(MAY_STAY_ZERO)
    with contextlib.suppress(AssertionError):
        clusters.wait_until(lambda: shown() == set(STAY_ZERO), 10, "every panel to show something")
    assert shown() == set(STAY_ZERO), shown() ^ set(STAY_ZERO)


class GpuWorker(http.server.BaseHTTPRequestHandler):
    """What a worker on a GPU would say; services/baton/gpu_monitor_test.cc has it from the real registry."""

    def do_GET(self):
        labels = 'model_name="m",role="decode",instance_id="decode-0",device="cuda:0"'
        values = {"memory_used_bytes": 3e10, "memory_total_bytes": 8e10, "utilization_ratio": 0.5}
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write("".join(f"baton_device_{name}{{{labels}}} {value}\n"
                                 for name, value in values.items()).encode())

    def log_message(self, *_):
        pass


def test_panels_of_gpus_show_what_their_workers_say(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), GpuWorker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Prometheus(tmp_path, [f"127.0.0.1:{server.server_port}"], clusters.free_ports(1)[0]) as prometheus:
            shown = {title: prometheus.wait_numbers(expression)[0] for title, expression in panel_expressions(GPUS)}
        server.shutdown()
    assert shown == {"baton-gpu: Memory in use": 0.375, "baton-gpu: Memory in use, bytes": 3e10, "baton-gpu: Busy": 0.5}


def test_panels_of_colocated_chains_and_caches_show_what_happens(tiny_model, tmp_path):
    """A pool that is too small for what is asked at once, prompts in many chunks, and each comes again at once.

    The last prompt of a turn that the pair served comes back while its pages are still held on both sides, and while
    the colocated chain decodes; an earlier one may have lost its pages by then to those that waited."""
    slow = ["--chunked-prefill-size", 32, "--failpoints", "prefill.compute=delay:10"]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, colocated=1, prefill_flags=slow,
                          flags=["--page-size", 16, "--kv-cache-tokens", 1024],
                          colocated_flags=[*slow, "--num-reserved-decode-tokens", 16]) as cluster, \
            Client(cluster.target) as client:
        targets = [f"127.0.0.1:{port}" for port in (cluster.http_port, *cluster.metrics_ports.values())]
        with Prometheus(tmp_path, targets, clusters.free_ports(1)[0]) as prometheus, \
                concurrent.futures.ThreadPoolExecutor(12) as pool:
            prometheus.wait_numbers("sum(up) == 4")

            def ask_twice(prompt):
                return [client.greedy(prompt, max_tokens).error for max_tokens in (150, 4)]
            for turn in range(20):
                for errors in pool.map(ask_twice, [[family] * (100 + 10 * turn) for family in range(12)]):
                    assert errors == [None, None], errors
                if not flat(prometheus, panel_expressions(COLOCATED)):
                    return
            assert flat(prometheus, panel_expressions(COLOCATED)) == set()
