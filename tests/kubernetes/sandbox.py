"""A world of its own for the node: mount, network, process and host name namespaces, which die as one.

    code = sandbox.run([python, script, ...], work)

runs the command as root in there, and cleans up after it however it ended. Everything that a Kubernetes
node does to its host happens inside: its interfaces and packet filter, its mounts, its containers and
the processes that outlive their parents. The kernel removes all of it with the namespaces, also when this
program is killed; only control groups and a few sysctls belong to the whole machine, and those this module
takes back. (A take-down that undoes the steps one by one was the alternative: it misses what an
interrupted bring-up had not written down yet.)
"""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

NODE_IP = "10.77.0.1"
CGROUPS = pathlib.Path("/sys/fs/cgroup")
PREFIX = "baton-kubernetes-"
WORK_PREFIX = "bk8s-"
# What kubelet changes for the whole machine; what it changes under net/ is the namespace's own.
SYSCTLS = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
           "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"]
INSIDE = "BATON_KUBERNETES_CGROUP"
PR_SET_PDEATHSIG = 1
REMOVE_SECONDS = 20


def cgroup_roots():
    """The control group hierarchies of this machine: one (v2), or one per controller (v1)."""
    roots = []
    for line in pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, where, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and where.startswith(str(CGROUPS)):
            roots.append(pathlib.Path(where))
    return roots


def make_cgroups(name):
    for root in cgroup_roots():
        group = root / name
        group.mkdir()
        for inherited in ("cpuset.cpus", "cpuset.mems"):  # v1 starts them empty
            if (root / inherited).exists():
                (group / inherited).write_text((root / inherited).read_text())


def kill_cgroup(group):
    for processes in group.rglob("cgroup.procs"):
        for pid in processes.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def remove_cgroups(name):
    """What could not be removed."""
    left = []
    for root in cgroup_roots():
        group = root / name
        if not group.is_dir():
            continue
        deadline = time.monotonic() + REMOVE_SECONDS
        while group.is_dir() and time.monotonic() < deadline:
            kill_cgroup(group)
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):  # a process of it is still on its way out
                    os.rmdir(folder)
            if group.is_dir():
                time.sleep(0.05)
        if group.is_dir():
            left.append(str(group))
    return left


def remove_stale_cgroups():
    """Those of a run that was killed with SIGKILL."""
    for name in {path.name for root in cgroup_roots() for path in root.glob(PREFIX + "*")}:
        if not pathlib.Path("/proc", name[len(PREFIX):]).exists():
            remove_cgroups(name)


def make_work():
    """An empty folder for one run; those of runs that were killed go. Its path is short: unix sockets below
    it may have 107 characters, and kubelet's are deep."""
    for old in pathlib.Path("/tmp").glob(WORK_PREFIX + "*"):
        if not pathlib.Path("/proc", old.name[len(WORK_PREFIX):]).exists():
            shutil.rmtree(old, ignore_errors=True)
    work = pathlib.Path(f"/tmp/{WORK_PREFIX}{os.getpid()}")
    work.mkdir(mode=0o700)
    return work


def read_sysctls():
    return {name: pathlib.Path("/proc/sys", name).read_text() for name in SYSCTLS
            if pathlib.Path("/proc/sys", name).exists()}


def write_sysctls(values):
    for name, value in values.items():
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/sys", name).write_text(value)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Terminated(BaseException):
    """SIGTERM or SIGHUP: end at once, but clean up."""


def terminate(*_):
    raise Terminated


def wait(child):
    """Ctrl-C reaches the child too, and it may need time to say what it knows; a second one does not wait."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt, Terminated, subprocess.TimeoutExpired):
            child.wait(timeout=30)
        return 130
    except Terminated:
        return 143
    finally:
        child.kill()
        child.wait()


def run(command, work):
    """Runs `command` in the sandbox and removes `work`'s mounts and groups with it; its exit status."""
    remove_stale_cgroups()
    name = f"{PREFIX}{os.getpid()}"
    sysctls = read_sysctls()
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGHUP, terminate)
    try:
        make_cgroups(name)
        child = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc",
             "--kill-child=SIGKILL", "--propagation", "private", sys.executable, __file__, str(work), *command],
            env={**os.environ, INSIDE: name}, preexec_fn=die_with_parent)
        return wait(child)
    finally:
        left = remove_cgroups(name)
        write_sysctls(sysctls)
        if left:
            print(f"left behind: {' '.join(left)}", file=sys.stderr)


def cgroup():
    """Inside: the control group under which the node's pods are to run."""
    return "/" + os.environ[INSIDE]


def sh(*command):
    subprocess.run(command, check=True)


def furnish(work):
    """Inside: private copies of the host's folders that the node writes to, and a network."""
    # Containers ask for mounts that follow their host's; this makes the namespace's root such a host.
    sh("mount", "--make-rshared", "/")
    sh("mount", "-t", "tmpfs", "tmpfs", "/run")
    for path in ("/var/lib", "/var/log"):
        layers = work / "overlay" / path.replace("/", "-")
        for layer in ("upper", "work"):
            (layers / layer).mkdir(parents=True, exist_ok=True)
        sh("mount", "-t", "overlay", "overlay", "-o",
           f"lowerdir={path},upperdir={layers}/upper,workdir={layers}/work", path)
    sh("hostname", "baton-node")
    sh("ip", "link", "set", "lo", "up")
    # A pair of which nobody uses the other end: not every kernel has dummy devices.
    sh("ip", "link", "add", "node0", "type", "veth", "peer", "name", "node0-peer")
    sh("ip", "link", "set", "node0-peer", "up")
    sh("ip", "address", "add", f"{NODE_IP}/24", "dev", "node0")
    sh("ip", "link", "set", "node0", "up")
    # Nothing lies behind it, but programs look for a default route to know their own address.
    sh("ip", "route", "add", "default", "dev", "node0")
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def serve_as_init(command):
    """The namespace's first process: reaps what containers leave, and ends with the command."""
    child = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child has it too, and decides
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def main():
    work = pathlib.Path(sys.argv[1])
    furnish(work)
    code = serve_as_init(sys.argv[2:])
    return code if code >= 0 else 128 - code


def remove(work):
    """Outside, at the end: the files. The namespaces are gone, so nothing is mounted there."""
    shutil.rmtree(work, ignore_errors=True)
    return not work.exists()


if __name__ == "__main__":
    sys.exit(main())
