"""Compiles what the node is made of, once, into a cache outside the repository.

A tool's folder is named by a digest of everything that goes into it, so a changed pin builds anew and an
unchanged one costs nothing. What is missing on the machine (Go, root, the module proxy, a Debian package)
is a Missing with the reason: the check is then skipped, not failed. A failing compiler is a failure.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import versions
from debian_tools import missing_tools

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "baton-tools" / "kubernetes"
# Names that the node's one binary answers to.
PROGRAMS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"]
COMPILE_SECONDS = 7200
# What Go says when a module is not to be had: the proxy's refusal, or no way to it.
NO_MODULES = re.compile(r"reading https?://|dial tcp|no such host|i/o timeout|module lookup disabled|"
                        r"requires go |server response:")


class Missing(Exception):
    """Something that the machine lacks; the message says what."""


def last_line(text):
    return (text.strip().splitlines() or ["no message"])[-1]


def require_machine():
    """Root, namespaces, the kernel's parts and the Debian packages."""
    if os.geteuid() != 0:
        raise Missing("a Kubernetes node needs root")
    lacking = missing_tools(versions.DEBIAN)
    if lacking:
        raise Missing(lacking)
    probe = subprocess.run(["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "true"],
                           capture_output=True, text=True)
    if probe.returncode != 0:
        raise Missing(f"no namespaces of its own for the node: {last_line(probe.stderr)}")


def require_go():
    if shutil.which("go") is None:
        raise Missing("no Go compiler: Kubernetes is built from its Go modules")
    found = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True).stdout.strip()
    version = re.match(r"go(\d+)\.(\d+)", found)
    if version is None or tuple(map(int, version.groups())) < versions.GO:
        raise Missing(f"Go {'.'.join(map(str, versions.GO))} or newer is needed, this is {found or 'unknown'}")
    return found


def go(directory, *arguments, **environment):
    """Go's own toolchain downloads are off: the compiler that is there is the one that was checked."""
    return subprocess.run(["go", *arguments], cwd=directory, capture_output=True, text=True, timeout=COMPILE_SECONDS,
                          env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", **environment})


def run_go(directory, what, *arguments, **environment):
    """Its output; Missing if modules cannot be had, RuntimeError if the compiler refuses them."""
    done = go(directory, *arguments, **environment)
    said = done.stderr + (done.stdout if done.returncode != 0 else "")  # -json puts errors into its output
    if done.returncode != 0 and NO_MODULES.search(said):
        raise Missing(f"the module proxy does not give {what}: {last_line(said)}")
    if done.returncode != 0:
        raise RuntimeError(f"go {arguments[0]} {what}:\n{said[-4000:]}")
    return done.stdout


def digest(compiler, *parts):
    total = hashlib.sha256(compiler.encode())
    for part in parts:
        total.update(part.read_bytes() if isinstance(part, pathlib.Path) else part.encode())
    return total.hexdigest()[:16]


@contextlib.contextmanager
def locked():
    """One build at a time, also of two checkouts."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cached(name, key, build):
    """The folder CACHE/name-key, which build(folder) fills if it is not there."""
    folder = CACHE / f"{name}-{key}"
    with locked():
        if not folder.is_dir():
            print(f"    building {name} (minutes, once; into {folder})", flush=True)
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=".building-") as scratch:
                build(pathlib.Path(scratch))
                # Whole or not at all: an interrupted build leaves nothing that looks finished.
                pathlib.Path(scratch).chmod(0o755)
                os.rename(scratch, folder)
                pathlib.Path(scratch).mkdir()
    return folder


def module(name, compiler, ldflags, targets):
    """Builds packages ({binary: package}) of the module in this folder's `name`."""
    source = versions.HERE / name
    files = sorted(path for path in source.rglob("*") if path.suffix in (".go", ".mod", ".sum"))

    def build(folder):
        # A copy: minutes are long enough for another branch to be checked out below the compiler.
        copy = pathlib.Path(shutil.copytree(source, folder / "source"))
        for binary, package in targets.items():
            run_go(copy, binary, "build", "-trimpath", "-ldflags", ldflags, "-o", str(folder / binary), package)
        shutil.rmtree(copy)

    return cached(name, digest(compiler, ldflags, *files), build)


def installed(name, compiler, package):
    """`go install PACKAGE@VERSION`, for programs that need no module of ours."""

    def build(folder):
        run_go(folder, package, "install", "-trimpath", "-ldflags", "-s -w", package, GOBIN=str(folder))

    return cached(name, digest(compiler, package), build)


def build_all():
    """{program: binary} of the node, with kubectl, helm and the processes of its own images."""
    compiler = require_go()
    version = versions.kubernetes()
    major, minor, _ = version.lstrip("v").split(".")
    variable = "k8s.io/component-base/version"
    stamp = f"-s -w -X {variable}.gitVersion={version} -X {variable}.gitMajor={major} -X {variable}.gitMinor={minor}"
    node = module("node", compiler, stamp, {"node": ".", "pause": "./pause", "probe": "./probe"})
    dns = module("dns", compiler, "-s -w", {"coredns": "."})
    helm = installed("helm", compiler, versions.HELM)
    return {**{program: node / "node" for program in PROGRAMS},
            "pause": node / "pause", "probe": node / "probe", "coredns": dns / "coredns", "helm": helm / "helm"}


def build_lws():
    """The controller of LeaderWorkerSet and DisaggregatedSet, or Missing."""
    compiler = require_go()
    return installed("lws", compiler, versions.LWS) / "cmd"


def module_folder(module_at_version):
    """Where a module's files lie (CRDs, for example), or Missing."""
    with tempfile.TemporaryDirectory() as scratch:
        return pathlib.Path(json.loads(run_go(scratch, module_at_version, "mod", "download", "-json",
                                              module_at_version))["Dir"])


def crd_files():
    """{module: files of its CRDs}, and {module: why they are not there}."""
    found, missing = {}, {}
    for module_at_version, names in versions.CRDS.items():
        try:
            folder = module_folder(module_at_version)
            found[module_at_version] = [str(folder / name) for name in names]
        except Missing as why:
            missing[module_at_version] = str(why)
    return found, missing
