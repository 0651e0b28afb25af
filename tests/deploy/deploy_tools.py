"""What proves chart and overlays and Debian has not: Helm, kustomize, Kubernetes' schemas, the CRDs' definitions.

Built or downloaded once through the Go module proxy and PyPI, kept outside of the repository in
${XDG_CACHE_HOME:-~/.cache}/baton-tools. Each function returns a path, or raises Missing with the reason.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "baton-tools"
BUILD_SECONDS_MAX = 1200

HELM = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.19.5")
KUSTOMIZE = ("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", "v5.7.1")
VALIDATOR = "kubernetes-validate==1.37.0"
# {module: (version, files in it)}
CRDS = {
    "github.com/prometheus-operator/prometheus-operator": ("v0.85.0", [
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"]),
    "github.com/kedacore/keda/v2": ("v2.17.2", ["config/crd/bases/keda.sh_scaledobjects.yaml"]),
    "sigs.k8s.io/lws": ("v0.9.0", ["config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
                                   "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml"]),
    "sigs.k8s.io/gateway-api": ("v1.3.0", ["config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
                                           "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"]),
}


class Missing(Exception):
    """The tool cannot be had here; the message is one line that says why."""


def _run(*command, **more):
    """Its standard output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exited with {done.returncode}"]
        raise Missing(f"{' '.join(map(str, command[:3]))}: {lines[-1]}")
    return done.stdout


def _go():
    found = shutil.which("go")
    if not found:
        raise Missing("there is no Go compiler (1.24 or later) in PATH")
    return found


def _go_tool(name, package, version):
    folder = CACHE / f"{name}-{version}"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        # -s -w: without tables for debuggers, half the size.
        _run(_go(), "install", "-ldflags=-s -w", f"{package}@{version}", env=dict(os.environ, GOBIN=str(folder)),
             cwd=folder)
    return folder / name


def helm():
    return _go_tool(*HELM)


def kustomize():
    return _go_tool(*KUSTOMIZE)


def validator():
    """kubernetes-validate, which brings the schemas of Kubernetes' releases along."""
    folder = CACHE / VALIDATOR.replace("==", "-")
    program = folder / "bin" / "kubernetes-validate"
    if not program.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", folder)
        try:
            _run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", VALIDATOR)
        except Missing:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return program


def crds():
    """A folder with the CRDs' files."""
    versions = "-".join(version for version, _ in CRDS.values())
    folder = CACHE / f"crds-{versions}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for module, (version, files) in CRDS.items():
            found = json.loads(_run(_go(), "mod", "download", "-json", f"{module}@{version}", cwd=partial))
            for path in files:
                shutil.copyfile(pathlib.Path(found["Dir"]) / path, partial / pathlib.Path(path).name)
        partial.rename(folder)
    return folder


TOOLS = {"HELM": helm, "KUSTOMIZE": kustomize, "KUBERNETES_VALIDATE": validator, "CRDS": crds}


def gather():
    """({variable: path}, {variable: why it is missing})."""
    found, missing = {}, {}
    for variable, tool in TOOLS.items():
        try:
            found[variable] = os.environ.get(variable) or str(tool())
        except Missing as reason:
            missing[variable] = str(reason)
    return found, missing
