"""One Kubernetes node out of a work folder: brought up until it is Ready, asked for images, shut down.

Runs inside sandbox.py's namespaces, which are also its take-down for whatever shut_down() doesn't reach.
"""

import os
import pathlib
import subprocess
import urllib.request

import configs
import images
import pki
import processes
import sandbox
import versions
from kube import Kube
from processes import wait_until

READY_SECONDS = 600  # 5 s on a free machine


def cannot_lower_oom_score():
    """Without CAP_SYS_RESOURCE runc dies on the sandbox's oom_score_adj, unless containerd lets it be."""
    path = pathlib.Path("/proc/self/oom_score_adj")
    before = path.read_text()
    try:
        path.write_text("-998")
    except OSError:
        return True
    path.write_text(before)
    return False


class Node:
    """`tools` is toolchain.build_all()'s table; `work` an empty folder with a short path."""

    def __init__(self, tools, work):
        self.tools, self.work, self.ip = tools, pathlib.Path(work), sandbox.NODE_IP
        for folder in ("bin", "conf", "log", "cni", "kubelet", "pod-logs"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        for name, binary in tools.items():
            (self.work / "bin" / name).symlink_to(binary)
        self.processes = processes.Processes(self.work / "log")
        self.kubeconfig = self.work / "conf" / "admin.conf"
        os.environ["KUBECONFIG"] = str(self.kubeconfig)
        os.environ["PATH"] = f"{self.work / 'bin'}:{os.environ['PATH']}"
        self.kube = None

    def binary(self, name):
        return self.work / "bin" / name

    def start(self, name, arguments, program=None):
        self.processes.start(name, self.binary(program or name), *arguments)

    def ctr(self, *arguments):
        done = subprocess.run(["ctr", "-a", "/run/containerd.sock", "-n", "k8s.io", *map(str, arguments)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"ctr {arguments[0]} {arguments[1]}: {done.stderr.strip()}")
        return done.stdout

    def up(self):
        server = f"https://127.0.0.1:{configs.API_PORT}"
        authority = self.work / "pki" / "ca.crt"
        tokens = pki.make_all(self.work / "pki", configs.NODE, self.ip, configs.API_SERVICE)
        for name, token in tokens.items():
            pki.kubeconfig(self.work / "conf" / f"{name}.conf", server, authority, token)
        configs.write_all(self.work, sandbox.cgroup(), self.ip, versions.CNI_BIN, cannot_lower_oom_score())
        self.kube = Kube(server, authority, tokens["admin"])
        self._start_control_plane()
        self._start_kubelet()

    def _start_control_plane(self):
        self.processes.start("containerd", "containerd", "--config", self.work / "conf" / "containerd.toml")
        self.start("etcd", configs.etcd_command(self.work))
        self.start("kube-apiserver", configs.apiserver_command(self.work, self.ip))
        self.processes.wait_ready("containerd", lambda: self._quiet(lambda: self.ctr("images", "ls")), READY_SECONDS)
        images.pack_single(self.tools["pause"], configs.PAUSE_IMAGE, self.work / "pause.tar")
        self.import_image(self.work / "pause.tar")
        self.processes.wait_ready("kube-apiserver", lambda: self.kube.text("/readyz") == "ok", READY_SECONDS)
        self.start("kube-controller-manager", configs.controllers_command(self.work))
        self.start("kube-scheduler", configs.scheduler_command(self.work))

    def _start_kubelet(self):
        self.start("kubelet", configs.kubelet_command(self.work, self.ip))
        self.start("kube-proxy", ["--config", self.work / "conf" / "proxy.yaml"])
        self.kube.apply(configs.dns_objects(self.ip))
        self.start("coredns", ["-conf", self.work / "conf" / "Corefile"])
        self.processes.wait_ready("kubelet", self._node_is_ready, READY_SECONDS)
        self.processes.wait_ready("coredns", lambda: urllib.request.urlopen(
            f"http://127.0.0.1:{configs.DNS_READY_PORT}/ready", timeout=2).status == 200, READY_SECONDS)
        # A pod that comes before its namespace's account is refused.
        wait_until(lambda: self.kube.get("/api/v1/namespaces/default/serviceaccounts/default"), READY_SECONDS,
                   "the default service account")

    def _node_is_ready(self):
        conditions = self.kube.get(f"/api/v1/nodes/{configs.NODE}")["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    @staticmethod
    def _quiet(action):
        try:
            action()
            return True
        except RuntimeError:
            return False

    def import_image(self, archive):
        self.ctr("images", "import", archive)

    def tag_image(self, old, new):
        self.ctr("images", "tag", old, new)

    def shut_down(self):
        """Orderly, so that processes can write down why they would not; the sandbox's end is the safety net."""
        self.processes.stop_all()
