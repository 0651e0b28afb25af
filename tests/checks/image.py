"""The container image, run by Debian's containerd and runc: tokens come out of it, with no root and no writes.

    ./dev check image
    /usr/bin/python3 tests/checks/image.py

    /usr/bin/python3 tests/checks/image.py --only containerfile

Router, one chain of two prefill stages and a decode service, each a container of the one image, on the
host's loopback; then `baton up` in one container; then what an image without the model says.

Then the same cluster from the image that podman builds of the Containerfile. Its base is a Debian 12 made
here, so no registry is asked; Baton is compiled inside, for which user.bazelrc and the disk cache that it
names are lent to the build. Without podman, or without Debian's mirror, that part is skipped.
"""

import argparse
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tools/dev", "tools/cluster", "deploy/image"):
    sys.path.insert(0, str(ROOT / folder))

from bazel import bazel  # noqa: E402
from build import RUN, USER  # noqa: E402
from cluster import Cluster, free_ports  # noqa: E402
from containers import Runtime, confinement, usable  # noqa: E402
from debian_root import Unusable, make_base  # noqa: E402
from debian_tools import missing_tools  # noqa: E402
from podman import COMMANDS, NotReached, Podman  # noqa: E402
from tally import Tally, say  # noqa: E402

MODEL = "/models/austen"
NAME = "localhost/baton-check"
CONTAINERFILE = ROOT / "deploy/image/Containerfile"
BASE = ROOT / ".cache" / "debian-12-bare.tar"
PROMPT = {"model": "austen", "prompt": "It is a truth universally", "max_tokens": 24, "temperature": 0,
          "ignore_eos": True}


class ContainerProcess:
    """A cluster.Process in a container of its own."""

    def __init__(self, process, runtime, image, mounts):
        self.name, self.arguments = process.name, process.arguments[1:]
        self.runtime, self.image, self.mounts = runtime, image, mounts
        self.container = self.popen = None
        self.asked = False  # To stop. Asked twice it would not finish what it has begun.

    def start(self):
        self.container = self.runtime.start(self.image, self.name, *self.arguments, mounts=self.mounts)
        self.popen = self.container.popen

    def alive(self):
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number):
        self.runtime.ctr("tasks", "kill", "--signal", number.name, self.name)

    def ask_to_stop(self):
        if self.alive() and not self.asked:
            self.asked = True
            self.signal(signal.SIGTERM)

    def stop(self, seconds=15):
        self.ask_to_stop()
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.container.stop()

    def log(self):
        return self.container.log() if self.container else ""


def build_image(folder, name, *flags):
    """Runs the builder; (path, all that it said)."""
    out = folder / f"{name}.tar"
    done = subprocess.run([sys.executable, ROOT / "deploy/image/build.py", *flags, "--out", out],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return out, done.stderr


def cluster_of(runtime, image, mounts, log_dir):
    """A cluster whose processes are containers."""
    cluster = Cluster(MODEL, log_dir, stages=2)
    cluster.processes = {name: ContainerProcess(process, runtime, image, mounts)
                         for name, process in cluster.processes.items()}
    return cluster


def check_cluster(tally, runtime, image, log_dir, what, mounts=None):
    start = time.monotonic()
    with cluster_of(runtime, image, mounts, log_dir) as cluster:
        ready = time.monotonic() - start
        status, answer = cluster.post("/v1/completions", PROMPT)
        tokens = answer["usage"]["completion_tokens"] if status == 200 else 0
        tally.step(f"{what}: {PROMPT['max_tokens']} tokens expected, got {tokens}: {answer}",
                   tokens == PROMPT["max_tokens"])
        if status == 200:
            print(f"{what}: ready after {ready:.1f} s; {PROMPT['prompt']}{answer['choices'][0]['text']!r}")
        for name, process in cluster.processes.items():
            seen = confinement(process.container.host_pid())
            expected = {"uids": [str(USER)], "capabilities": 0, "no_new_privileges": True, "seccomp": True,
                        "root": "ro"}
            tally.step(f"{what}: {name} is {seen}, expected {expected}", seen == expected)
    # Leaving the cluster has asserted that SIGTERM ended every container with code 0.
    tally.step(f"{what}: ended", True)


def check_up(tally, runtime, image):
    """`up` supervises the others inside of one container."""
    http, grpc = free_ports(2)
    container = runtime.start(image, "up", "up", "--model-path", MODEL, "--port", http, "--grpc-port", grpc,
                              "--threads", 1)
    deadline = time.monotonic() + 60
    while "cluster ready" not in container.log() and time.monotonic() < deadline and container.popen.poll() is None:
        time.sleep(0.05)
    tally.step(f"up is ready:\n{container.log()}", "cluster ready" in container.log())
    code = container.stop()
    tally.step(f"up ends with {code}, expected 0:\n{container.log()}", code == 0)


def check_messages(tally, runtime, without):
    """One line and an exit code that says whether a new start could help."""
    for name, arguments in {
        "no-model-router": ["router", "--model-path", MODEL],
        "no-model-decode": ["worker", "--disaggregation-mode", "decode", "--model-path", MODEL],
        "no-model-up": ["up", "--model-path", MODEL],
    }.items():
        done = runtime.run(without, name, *arguments)
        lines = (done.stdout + done.stderr).strip().splitlines()
        print(f"image without the model, exit code {done.returncode}: {' | '.join(lines)}")
        tally.step(f"{name}: {done.returncode}, {lines}",
                   done.returncode == 2 and len(lines) == 1 and f"there is no directory '{MODEL}'" in lines[0])
    done = runtime.run(without, "usage")
    tally.step(f"without arguments usage is shown: {done}", done.returncode == 0 and "usage: baton" in done.stdout)


def check_archives(tally, folder):
    with_model, said = build_image(folder, "model", "--tag", f"{NAME}:model")
    print(said, end="")
    without, said = build_image(folder, "no-model", "--without-model", "--tag", f"{NAME}:no-model")
    again, _ = build_image(folder, "again", "--without-model", "--tag", f"{NAME}:no-model")
    tally.step("a second build gives the same bytes", without.read_bytes() == again.read_bytes())
    with Runtime() as runtime:
        say(f"containerd in {runtime.folder}, snapshotter {runtime.snapshotter}")
        for archive in (with_model, without):
            runtime.import_image(archive)
        check_cluster(tally, runtime, f"{NAME}:model", folder, "image with the model")
        check_cluster(tally, runtime, f"{NAME}:no-model", folder, "image with a mounted model",
                      mounts={ROOT / "models/austen": MODEL})
        check_up(tally, runtime, f"{NAME}:model")
        check_messages(tally, runtime, f"{NAME}:no-model")
    tally.step(f"{runtime.folder} is gone", not runtime.folder.exists())


def bazel_settings():
    """What makes a build in a container as quick as one here: {path here: path there}."""
    settings = ROOT / "user.bazelrc"
    if not settings.is_file():
        return {}
    caches = re.findall(r"--disk_cache=(/\S+)", settings.read_text(encoding="utf-8"))
    return {settings: "/root/.bazelrc:ro", **{path: path for path in caches if pathlib.Path(path).is_dir()}}


def check_containerfile(tally, folder):
    base = re.search(r"^ARG DEBIAN=(\S+)$", CONTAINERFILE.read_text(encoding="utf-8"), re.M).group(1)
    archive, name = folder / "containerfile.tar", f"{NAME}:containerfile"
    make_base(BASE)
    with Podman() as podman:
        podman.import_root(BASE, base)
        say(f"podman build in {podman.folder}, storage {podman.driver}")
        code, said = podman.build(CONTAINERFILE, ROOT, name, bazel_settings())
        tally.step(f"podman build ends with {code}: {said[-4000:]}", code == 0)
        if code != 0:
            return
        config = podman.config(name)
        different = {key: config.get(key) for key in RUN if config.get(key) != RUN[key]}
        tally.step(f"containers of it run otherwise than ./dev image says: {different}", not different)
        podman.save(name, archive)
    with Runtime() as runtime:
        runtime.import_image(archive)
        check_cluster(tally, runtime, name, folder, "image by podman build")


def try_containerfile(tally, folder):
    unusable = missing_tools({**COMMANDS, "mmdebstrap": "mmdebstrap"})
    if unusable:
        return tally.skip("Containerfile", unusable)
    try:
        check_containerfile(tally, folder)
    except (Unusable, NotReached) as reason:
        tally.skip("Containerfile", str(reason))


PARTS = {"archive": check_archives, "containerfile": try_containerfile}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="one part")
    only = parser.parse_args().only
    tally = Tally()
    unusable = usable() or missing_tools({"containerd": "containerd", "ctr": "containerd", "runc": "runc"})
    if unusable:
        tally.skip("image", unusable)
        return tally.finish()
    if bazel("build", "//services/baton") != 0:
        tally.fail("//services/baton does not build")
        return tally.finish()
    for name, part in PARTS.items():
        if only in (None, name):
            with tempfile.TemporaryDirectory(prefix="baton-image-") as folder:
                part(tally, pathlib.Path(folder))
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
