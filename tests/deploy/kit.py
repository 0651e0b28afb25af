"""Renders the chart and the overlays, and finds objects in what comes out.

The tools' paths are in HELM and KUSTOMIZE.
"""

import os
import pathlib
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/baton"
EXAMPLES = sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))
OVERLAYS = sorted(path.parent for path in (ROOT / "k8s/overlays").glob("*/kustomization.yaml"))
GOLDEN = pathlib.Path(__file__).resolve().parent / "golden"
LATEST = "1.34.0"
ROLES = ("router", "prefill", "decode")


class Refused(Exception):
    """The render failed; the message is all that Helm said."""


def run(*command, text=None):
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(done.stderr + done.stdout)
    return done.stdout


def render_chart(values=None, *, files=(), release="baton", version=LATEST, flags=()):
    """YAML of `helm template`, `values` (a dict) over `files`."""
    command = [os.environ["HELM"], "template", release, CHART, "--kube-version", version, *flags]
    for path in files:
        command += ["--values", path]
    return run(*command, "--values", "-", text=yaml.safe_dump(values or {}))


def render_overlay(path):
    return run(os.environ["KUSTOMIZE"], "build", path)


class Objects:
    """What one render made."""

    def __init__(self, text):
        self.all = [found for found in yaml.safe_load_all(text) if found]

    def kinds(self):
        return sorted({found["kind"] for found in self.all})

    def of(self, kind):
        return [found for found in self.all if found["kind"] == kind]

    def get(self, kind, name):
        found = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} objects {kind}/{name}; there are " + ", ".join(
            f"{one['kind']}/{one['metadata']['name']}" for one in self.all)
        return found[0]

    def has(self, kind, name=None):
        return any(name in (None, one["metadata"]["name"]) for one in self.of(kind))

    def workload(self, role):
        return self.get("Deployment" if role == "router" else "StatefulSet", f"baton-{role}")

    def pod(self, role):
        return self.workload(role)["spec"]["template"]

    def container(self, role):
        return self.pod(role)["spec"]["containers"][0]

    def env(self, role):
        return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in self.container(role)["env"]}

    def options(self, role):
        """The options file of a role, as its processes read it."""
        return yaml.safe_load(self.get("ConfigMap", f"baton-{role}")["data"]["options.yaml"])

    def grace(self, role):
        return self.pod(role)["spec"]["terminationGracePeriodSeconds"]


def chart(values=None, **more):
    return Objects(render_chart(values, **more))
