"""Dashboards, recording rules and alerts against a real Prometheus that scrapes a real cluster.

A panel whose expression yields nothing is how dashboards rot: a renamed metric, a label that nobody
sends. So every expression of the shipped files is evaluated here after some load, and must yield
numbers; what only a fault brings is looked at again after one.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml

import cluster as clusters
from client import Client

DEPLOY = clusters.ROOT / "deploy"
sys.path.insert(0, str(DEPLOY / "grafana"))
import generate  # noqa: E402

ALERTS = DEPLOY / "prometheus" / "rules" / "baton.alerts.yaml"
RECORDING = DEPLOY / "prometheus" / "rules" / "baton.recording.yaml"
RUNBOOK = clusters.ROOT / "docs" / "runbook.md"
COMPARISON = re.compile(r"\s(?:>|<|==|!=|>=|<=)\s[-\d.]+(?:\s\*\s[\d.]+)?$")


def rules_of(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def operands(expression):
    """What an alert compares: `a > 1 and b > 2` has the operands a and b."""
    return [COMPARISON.sub("", part.strip()) for part in expression.split(" and ")]


class Prometheus:
    """Debian's Prometheus on a free port of loopback, with the shipped rules, evaluated every second."""

    def __init__(self, directory, targets):
        self.port = clusters.free_ports(1)[0]
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                  "rule_files": [str(ALERTS), str(directory / "recording.yaml")],
                  "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": targets}]}]}
        # The shipped groups evaluate every 15 s, which only makes a test longer.
        (directory / "recording.yaml").write_text(RECORDING.read_text().replace("interval: 15s", "interval: 1s"))
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        with open(directory / "prometheus.log", "wb") as log:
            self.popen = subprocess.Popen(
                ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
                 f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.terminate()
        self.popen.wait(20)

    def numbers(self, expression):
        """The values of an instant query that are numbers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                result = json.load(reply)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []  # Still replaying its log.
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except OSError:
            return []  # Not listening yet.
        return [value for value in (float(sample["value"][1]) for sample in result) if math.isfinite(value)]

    def wait_numbers(self, expression, seconds=30):
        return clusters.wait_until(lambda: self.numbers(expression), seconds, f"data for {expression}")


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """(cluster, prometheus) after a little load on two stages and two decodes."""
    directory = tmp_path_factory.mktemp("observed")
    model = clusters.make_model(directory / "model")
    with clusters.Cluster(model, directory, stages=2, decodes=2) as cluster:
        targets = [f"127.0.0.1:{port}" for port in (cluster.http_port, *cluster.metrics_ports.values())]
        with Prometheus(directory, targets) as prometheus, Client(cluster.target) as client:
            prometheus.wait_numbers("sum(up) == 5")
            for length in (40, 600, 200, 900):
                assert client.greedy([7] * length, 6).error is None
            yield cluster, prometheus


def panel_expressions():
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
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
    _, prometheus = observed
    empty = []
    for title, expression in panel_expressions():
        try:
            prometheus.wait_numbers(expression, 20)
        except AssertionError:
            empty.append(f"{title}: {expression}")
    assert not empty, "\n".join(empty)


def test_every_rule_has_something_to_judge(observed):
    _, prometheus = observed
    for rule in rules_of(RECORDING):
        prometheus.wait_numbers(rule["expr"])
    for alert in rules_of(ALERTS):
        for operand in operands(alert["expr"]):
            prometheus.wait_numbers(operand)
    assert prometheus.numbers('ALERTS{alertstate="firing",severity="critical"}') == []


def test_a_killed_worker_raises_its_alert(observed):
    """The last test of the module: it takes a decode service away."""
    cluster, prometheus = observed
    cluster.processes["decode-1"].kill()
    prometheus.wait_numbers('ALERTS{alertname="BatonWorkerLost",alertstate="firing"}')
    prometheus.wait_numbers('ALERTS{alertname="BatonTargetDown",alertstate="pending"}')
