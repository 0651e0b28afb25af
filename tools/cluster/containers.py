"""A containerd of a check's own, with runc below it: imports images, runs containers, leaves nothing.

Nothing of a containerd that may run here already is touched: sockets, state and images are in one
temporary directory.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

NAMESPACE = "baton-check"
START_SECONDS = 30
STOP_SECONDS = 20

CONFIG = """version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/containerd.sock"
"""


class Container:
    """A running container; its output goes to a file."""

    def __init__(self, runtime, name, popen, log_path):
        self.runtime, self.name, self.popen, self.log_path = runtime, name, popen, log_path

    def log(self):
        return self.log_path.read_text(errors="replace")

    def host_pid(self):
        """Of the container's first process, as the host sees it."""
        for line in self.runtime.ctr("tasks", "ls").stdout.splitlines()[1:]:
            fields = line.split()
            if fields[0] == self.name:
                return int(fields[1])
        raise RuntimeError(f"{self.name} does not run:\n{self.log()}")

    def stop(self):
        """SIGTERM, then SIGKILL; the exit code."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.runtime.ctr("tasks", "kill", "--signal", number.name, self.name)
            try:
                return self.popen.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        self.popen.kill()
        return self.popen.wait()


class Runtime:
    def __init__(self):
        # Short: sockets lie in it.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-ctr-", dir="/tmp"))
        self.daemon = None
        self.snapshotter = "overlayfs"
        self.containers = []

    def ctr(self, *arguments):
        command = ["ctr", "-a", self.folder / "containerd.sock", "-n", NAMESPACE, *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)

    def __enter__(self):
        config = self.folder / "config.toml"
        config.write_text(CONFIG.format(folder=self.folder))
        with open(self.folder / "containerd.log", "wb") as log:
            self.daemon = subprocess.Popen(["containerd", "-c", str(config)], stdout=log, stderr=log,
                                           start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while True:
            plugins = self.ctr("plugins", "ls")
            if plugins.returncode == 0:
                break
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "containerd.log").read_text()
                self.__exit__(None, None, None)
                raise RuntimeError(f"containerd did not start:\n{log[-2000:]}")
            time.sleep(0.05)
        # Where /tmp is itself an overlay, layers are copied instead.
        if not any("overlayfs" in line and line.split()[-1] == "ok" for line in plugins.stdout.splitlines()):
            self.snapshotter = "native"
        return self

    def __exit__(self, kind, value, trace):
        for container in self.containers:
            if container.popen.poll() is None:
                container.stop()
        self.daemon.send_signal(signal.SIGTERM)
        try:
            self.daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            left = [line.split()[1] for line in mounts if line.split()[1].startswith(f"{self.folder}/")]
        for path in reversed(left):
            subprocess.run(["umount", path], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def import_image(self, archive):
        """Raises with containerd's words if it refuses."""
        done = self.ctr("images", "import", "--snapshotter", self.snapshotter, archive)
        if done.returncode != 0:
            raise RuntimeError(f"ctr images import {archive}: {done.stderr.strip()}")

    def _command(self, image, name, arguments, mounts):
        command = ["ctr", "-a", str(self.folder / "containerd.sock"), "-n", NAMESPACE, "run", "--rm", "--read-only",
                   "--net-host", "--seccomp", "--snapshotter", self.snapshotter, "--cwd", "/"]
        for source, target in mounts.items():
            command += ["--mount", f"type=bind,src={source},dst={target},options=rbind:ro"]
        return [*command, image, name, *(["/usr/bin/baton", *map(str, arguments)] if arguments else [])]

    def run(self, image, name, *arguments, mounts=None):
        """To its end: read-only root, the image's own user, the default seccomp profile."""
        return subprocess.run(self._command(image, name, arguments, mounts or {}), capture_output=True, text=True,
                              check=False, timeout=60)

    def start(self, image, name, *arguments, mounts=None):
        log_path = self.folder / f"{name}.log"
        with open(log_path, "wb") as log:
            popen = subprocess.Popen(self._command(image, name, arguments, mounts or {}), stdout=log, stderr=log,
                                     stdin=subprocess.DEVNULL, start_new_session=True)
        container = Container(self, name, popen, log_path)
        self.containers.append(container)
        return container


def confinement(pid):
    """What a process may do: {"uids", "capabilities" (effective), "no_new_privileges", "seccomp", "root"}."""
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        fields[key] = value.strip()
    root = ""
    for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines():
        parts = line.split()
        if parts[4] == "/":
            root = parts[5].split(",")[0]
    return {"uids": sorted(set(fields["Uid"].split())), "capabilities": int(fields["CapEff"], 16),
            "no_new_privileges": fields["NoNewPrivs"] == "1", "seccomp": fields["Seccomp"] == "2", "root": root}


def usable():
    """Why containers can't be run here, or an empty text."""
    return "" if os.geteuid() == 0 else "containers are run as root here, with their own user inside"
