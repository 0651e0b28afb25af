"""What a release leaves behind: in its namespace after `helm uninstall`, on the host after the node's end."""

import pathlib

import sandbox
from kube import command
from processes import wait_until

# Every namespace has them, and events are its history.
OF_EVERY_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def in_namespace(kube, namespace):
    """Names of all objects of all kinds, but for those of every namespace."""
    kinds = [kind for kind in command("kubectl", "api-resources", "--verbs=list", "--namespaced", "-o",
                                      "name").split() if not kind.startswith(("events", "events.events"))]
    listed = kube.kubectl("get", ",".join(kinds), "-o", "name", "--ignore-not-found", namespace=namespace).split()
    return sorted(set(listed) - OF_EVERY_NAMESPACE)


def of_cluster(kube, release):
    """Objects outside namespaces that carry the release's label."""
    kinds = command("kubectl", "api-resources", "--verbs=list", "--namespaced=false", "-o", "name").split()
    kinds = [kind for kind in kinds if not kind.startswith(("componentstatuses",))]
    return sorted(kube.kubectl("get", ",".join(kinds), "-l", f"app.kubernetes.io/instance={release}", "-o", "name",
                               "--ignore-not-found").split())


def wait_gone(kube, release, seconds=400):
    """Until a release that was uninstalled has left nothing: helm does not wait for pods that drain."""
    left = []

    def gone():
        left[:] = in_namespace(kube, release.namespace) + of_cluster(kube, release.name)
        return not left
    try:
        wait_until(gone, seconds, "the release to be gone", 1.0)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {left}") from error


def command_line(process):
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def on_host(work, sysctls):
    """Mounts, control groups, processes and settings that were not there before; empty is right."""
    left = [f"mount {line.split()[1]}" for line in pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
            if str(work) in line]
    left += [f"control group {path}" for root in sandbox.cgroup_roots() for path in root.glob(sandbox.PREFIX + "*")
             if not pathlib.Path("/proc", path.name[len(sandbox.PREFIX):]).exists()]
    left += [f"process {process.name}: {command_line(process)[:80]}" for process in pathlib.Path("/proc").glob("[0-9]*")
             if f"{work}/" in command_line(process)]
    left += [f"sysctl {name}: {now.strip()}, was {sysctls[name].strip()}"
             for name, now in sandbox.read_sysctls().items() if now != sysctls.get(name)]
    return left
