"""Steps of a healthy release: prompts through the Service, several routers, every metrics target."""

import re
import urllib.request

import release as releases
from kube import is_ready

PROMPTS = ["It is a truth universally acknowledged, that a single man", "She was",
           "My dear Mr. Bennet, said his lady to him one day, have you heard that " * 6]
TOKENS = 48
# What every role says of itself, whatever it is doing.
ALWAYS = ("baton_process_start_time_seconds", "baton_build_info")
SAMPLE = re.compile(r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? \S+( \d+)?$")


def prompts_through_service(release):
    """{prompt: text} of the undisturbed release, asked twice: equal prompts have equal answers."""
    first = release.expected(PROMPTS, TOKENS)
    again = release.expected(PROMPTS, TOKENS)
    if first != again:
        raise AssertionError(f"greedy answers differ: {first} and {again}")
    if not all(first.values()):
        raise AssertionError(f"an answer has no text: {first}")
    return first


def from_a_pod(release, kube, probe_image, name):
    """By the Service's name, out of another namespace."""
    kube.apply([probe_pod(name, probe_image)], namespace="default")
    kube.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s", namespace="default")
    port = release.service()[1]
    service = next(each["metadata"]["name"] for each in kube.items(
        f"/api/v1/namespaces/{release.namespace}/services", labelSelector=release.selector("router"))
        if each["spec"]["clusterIP"] != "None")
    return kube.kubectl("exec", name, "--", "/app", "get",
                        f"http://{service}.{release.namespace}.svc.cluster.local:{port}/readiness",
                        namespace="default").strip()


def probe_pod(name, image, labels=None):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}},
            "spec": {"terminationGracePeriodSeconds": 0, "enableServiceLinks": False, "containers": [
                {"name": "probe", "image": image, "imagePullPolicy": "Never"}]}}


def each_router_answers(release, expected):
    """Asked directly, every router pod answers alike: it knows all workers, not only those that found it."""
    pods = release.pods("router")
    for name, pod in pods.items():
        address = (pod["status"]["podIP"], container_port(pod, "http"))
        release.wait_serving(address=address)
        for prompt, text in expected.items():
            answer = release.complete(prompt, TOKENS, address)
            if answer != text:
                raise AssertionError(f"router {name} answers {answer!r} instead of {text!r}")
    return sorted(pods)


def container_port(pod, name):
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or []:
            if port.get("name") == name:
                return port["containerPort"]
    raise LookupError(f"pod {pod['metadata']['name']} has no port called {name}")


def podmonitor_targets(kube, namespace):
    """[(pod, URL)] that Prometheus Operator would make of the namespace's PodMonitors."""
    targets = []
    for monitor in kube.items(f"/apis/monitoring.coreos.com/v1/namespaces/{namespace}/podmonitors"):
        selector = ",".join(f"{key}={value}" for key, value in monitor["spec"]["selector"]["matchLabels"].items())
        for name, pod in kube.pods(namespace, selector).items():
            ports = {port["name"]: port["containerPort"] for container in pod["spec"]["containers"]
                     for port in container.get("ports") or [] if "name" in port}
            # A port that a pod has not is no target there: one monitor may name those of several roles.
            targets += [(name, f"http://{pod['status']['podIP']}:{ports[end['port']]}{end.get('path', '/metrics')}")
                        for end in monitor["spec"]["podMetricsEndpoints"] if end["port"] in ports]
    return targets


def read_metrics(kube, release):
    """Scrapes every target; names of pods and how many samples they have."""
    targets = podmonitor_targets(kube, release.namespace)
    expected = {name for role in releases.ROLES for name in release.pods(role)}
    found = {name for name, _ in targets}
    if found != expected or len(targets) != len(expected):
        raise AssertionError(f"the PodMonitors' targets are {targets}, the pods {sorted(expected)}")
    counts = {}
    for name, url in targets:
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode("utf-8")
        samples = [line for line in text.splitlines() if line and not line.startswith("#")]
        wrong = [line for line in samples if not SAMPLE.match(line)]
        missing = [metric for metric in ALWAYS if not any(line.startswith(metric) for line in samples)]
        if wrong or missing:
            raise AssertionError(f"{url} of {name}: no sample of {missing}, no sample in {wrong[:2]}")
        counts[name] = len(samples)
    return counts


def all_ready(release):
    return all(is_ready(pod) for role in releases.ROLES for pod in release.pods(role).values())
