"""The default render and the colocated one, run: real processes read the chart's option files and variables, answer
its probes, and serve.

What Kubernetes would do is done here by hand: each pod is a process on loopback, which is told by flags what differs
from a pod (addresses, ports, where the model lies). `./dev check kubernetes` does it in a cluster.
"""

import os
import pathlib
import signal
import subprocess
import time

import grpc
import pytest
import requests
import yaml

from cluster import free_ports
from kit import EXAMPLES, GOLDEN, ROLES, ROOT, chart

MODEL = ROOT / "models/austen"
SERVING = b"\x08\x01"
CHAIN = (("router", 0), ("prefill", 0), ("prefill", 1))
PODS = {"disaggregated": (*CHAIN, ("decode", 0)), "colocated": CHAIN}
START_SECONDS_MAX = 120


class Pod:
    """A process with the options, variables and probes of a rendered pod."""

    def __init__(self, rendered, role, index, router_port, folder):
        self.container = rendered.container(role)
        self.grpc_port, self.http_port = free_ports(2)
        config = folder / f"{role}-{index}.yaml"
        config.write_text(rendered.get("ConfigMap", f"baton-{role}")["data"]["options.yaml"], encoding="utf-8")
        arguments = [f"--config={config}" if one.startswith("--config") else one for one in self.container["args"]]
        own = [f"--port={self.http_port}", f"--cluster-port={router_port}"] if role == "router" else [
            f"--metrics-port={self.http_port}", f"--router-address=127.0.0.1:{router_port}", "--kv-cache-tokens=8192"]
        self.log = folder / f"{role}-{index}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [os.environ["BATON"], *arguments, f"--model-path={MODEL}", "--host=127.0.0.1",
                 f"--grpc-port={self.grpc_port}", *own],
                env=self.environment(rendered, role, index), stdout=log, stderr=subprocess.STDOUT)

    @staticmethod
    def environment(rendered, role, index):
        fields = {"metadata.name": f"baton-{role}-{index}", "status.podIP": "127.0.0.1",
                  "metadata.labels['apps.kubernetes.io/pod-index']": str(index)}
        made = {"PATH": os.environ["PATH"]}
        for name, value in rendered.env(role).items():
            if isinstance(value, dict):
                value = fields[value["fieldRef"]["fieldPath"]] if "fieldRef" in value else "1"
            made[name] = value
        return made

    def grpc_probe(self, name):
        """Whether the kubelet would find the probe passed."""
        service = self.container[name]["grpc"].get("service", "").encode()
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            ask = channel.unary_unary("/grpc.health.v1.Health/Check",
                                      request_serializer=lambda text: b"\x0a" + bytes([len(text)]) + text,
                                      response_deserializer=bytes)
            try:
                return ask(service, timeout=5) == SERVING
            except grpc.RpcError:
                return False

    def alive(self):
        path = self.container["livenessProbe"]["httpGet"]["path"]
        return requests.get(f"http://127.0.0.1:{self.http_port}{path}", timeout=5).status_code == 200


def await_true(condition, what, pods):
    end = time.monotonic() + START_SECONDS_MAX
    while not condition():
        assert all(pod.process.poll() is None for pod in pods), "\n".join(
            pod.log.read_text(encoding="utf-8")[-1500:] for pod in pods)
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture(scope="module", params=sorted(PODS))
def pods(request, tmp_path_factory):
    rendered, folder = chart({"mode": request.param}), tmp_path_factory.mktemp("pods")
    [router_port] = free_ports(1)
    started = []
    try:
        for role, index in PODS[request.param]:
            started.append(Pod(rendered, role, index, router_port, folder))
        yield started
    finally:
        for pod in started:
            pod.process.kill()
            pod.process.wait()


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
def test_every_pod_passes_its_probe(pods, probe):
    for pod in pods:
        await_true(lambda pod=pod: pod.grpc_probe(probe), f"{probe} of {pod.container['name']}", pods)


def test_every_pod_is_alive(pods):
    assert all(pod.alive() for pod in pods)


def test_a_probe_of_an_unknown_service_fails(pods):
    pod = pods[0]
    wrong = dict(pod.container, readinessProbe={"grpc": {"port": 1, "service": "baton.v1.Nothing"}})
    right, pod.container = pod.container, wrong
    try:
        assert not pod.grpc_probe("readinessProbe")
    finally:
        pod.container = right


def test_the_cluster_serves(pods):
    await_true(lambda: pods[0].grpc_probe("readinessProbe"), "router ready", pods)
    answer = requests.post(f"http://127.0.0.1:{pods[0].http_port}/v1/completions", timeout=60, json={
        "model": "austen", "prompt": "It is a truth", "max_tokens": 8, "ignore_eos": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_pods_end_on_sigterm(pods):
    """Last: nothing is left to do, so that a drain is short."""
    for pod in pods:
        pod.process.send_signal(signal.SIGTERM)
    for pod in pods:
        assert pod.process.wait(timeout=60) == 0, pod.log.read_text(encoding="utf-8")[-1500:]


RENDERS = [f"chart/{path.stem}" for path in EXAMPLES]
RENDERS += [f"overlays/{path.stem}" for path in sorted((GOLDEN / "overlays").glob("*.yaml"))]


@pytest.mark.parametrize("render", RENDERS)
def test_processes_take_every_option_file(render, tmp_path):
    """`baton validate` reads an option file as the processes of its role do."""
    found = 0
    for one in yaml.safe_load_all((GOLDEN / f"{render}.yaml").read_text(encoding="utf-8")):
        if one["kind"] != "ConfigMap" or "options.yaml" not in one["data"]:
            continue
        options = tmp_path / f"{one['metadata']['name']}.yaml"
        options.write_text(one["data"]["options.yaml"], encoding="utf-8")
        # No GPU is here to plan for.
        gpus = ["--device-memory=80000"] if 'device: "cuda"' in options.read_text(encoding="utf-8") else []
        # The shipped model has 6 layers: a split for another one's is left out.
        done = subprocess.run([os.environ["BATON"], "validate", f"--config={options}", f"--model-path={MODEL}",
                               "--memory-check=off", "--pp-layer-partition=", "--api-key=x", *gpus],
                              capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]})
        assert done.returncode == 0, done.stderr
        assert pathlib.Path(options).name in done.stdout, "the values come from the file"
        found += 1
    assert found == (len(ROLES) if "colocated" not in render else 2)
