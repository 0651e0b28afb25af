"""Debian's Prometheus on loopback with the rules of deploy/prometheus and a page that draws the dashboards."""

import json
import math
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

HERE = pathlib.Path(__file__).resolve().parent
DEPLOY = HERE.parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
DASHBOARDS = DEPLOY / "grafana" / "dashboards"
START_SECONDS = 60
MISSING = "Prometheus is not installed; on Debian: apt install prometheus"


class Unavailable(Exception):
    """Why there can be no Prometheus here, in words for a user."""


def check(port, flag=None):
    """Raises Unavailable where a Prometheus could not start; `flag` is the user's way to another port."""
    if shutil.which("prometheus") is None:
        raise Unavailable(MISSING)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            hint = f"; {flag} chooses another" if flag else ""
            raise Unavailable(
                f"port {port} of 127.0.0.1 is not free for Prometheus: {error.strerror}{hint}") from error


class Prometheus:
    """Scrapes `targets` ("host:port") every `interval_s` seconds and evaluates all rules as often.

    Everything it writes is below `directory`, which the caller owns. It ends with its owner, even
    when that one is killed."""

    def __init__(self, directory, targets, port, interval_s=1):
        check(port)
        self.port = port
        self.log_path = directory / "prometheus.log"
        (directory / "rules").mkdir()
        for path in RULES.glob("*.yaml"):
            groups = yaml.safe_load(path.read_text(encoding="utf-8"))
            for group in groups["groups"]:
                group["interval"] = f"{interval_s}s"  # A cluster's is longer than a demo's patience.
            (directory / "rules" / path.name).write_text(yaml.safe_dump(groups), encoding="utf-8")
        config = {"global": {"scrape_interval": f"{interval_s}s", "evaluation_interval": f"{interval_s}s"},
                  "rule_files": [str(directory / "rules" / "*.yaml")],
                  "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": list(targets)}]}]}
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self._copy_viewer(directory / "viewer")
        with open(self.log_path, "wb") as log:
            self.popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "prometheus", f"--config.file={directory}/prometheus.yml",
                 f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}",
                 f"--web.user-assets={directory}/viewer"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @staticmethod
    def _copy_viewer(directory):
        shutil.copytree(HERE / "viewer", directory)
        shutil.copytree(DASHBOARDS, directory / "dashboards")
        names = sorted(path.stem for path in DASHBOARDS.glob("*.json"))
        (directory / "dashboards" / "index.json").write_text(json.dumps(names), encoding="utf-8")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def dashboard_url(self, name, **parameters):
        return f"{self.url}/user/?" + urllib.parse.urlencode({"dashboard": name, **parameters})

    def wait_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.popen.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.05)
        tail = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise Unavailable("Prometheus did not start; the end of its log:\n" + "\n".join(tail))

    def stop(self):
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()

    def api(self, path, **parameters):
        """`data` of an answer; [] while it does not listen yet or replays its log."""
        url = f"{self.url}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []
            raise ValueError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return []

    def samples(self, expression):
        """[(labels, value)] of an instant query; values that are no numbers are left out."""
        data = self.api("query", query=expression)
        if not data:
            return []
        pairs = [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]
        return [(labels, value) for labels, value in pairs if math.isfinite(value)]
