"""The build with CUDA: libtorch and NCCL from PyPI, the parity tests on that libtorch, and what is said without a GPU.

    ./dev check cuda
    /usr/bin/python3 tests/checks/cuda.py

Fetches what `./dev cuda` does (2.4 GB, once), builds the torch plugin with --config=cuda and runs on the CPU what
the torch executor, Gloo and the device's KV doors are tested by; a GPU is not needed, and none of this shows
that computing on one is right. The file tree of `./dev image --with-cuda` has all that it needs but the driver, and
its worker says that there is no GPU; for that it takes root. Then the default build again, which says that it has no
CUDA. Where PyPI is not reached or the disk is too small, a line says so.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tools/dev", "tools/cluster", "tools/cuda"):
    sys.path.insert(0, str(ROOT / folder))

import cluster as clusters  # noqa: E402
import fetch  # noqa: E402
import registries  # noqa: E402
from bazel import bazel  # noqa: E402
from tally import Tally, say  # noqa: E402

PLUGIN = "//common/engine/torch:libbaton_torch.so"
TESTS = ("//common/engine/torch:all", "//common/engine:parity_test", "//common/engine:tensor_parallel_parity_test",
         "//common/engine/torch/distributed:connect_nccl_test", "//common/collective:device_communicator_test")
# libcudart and libtorch_cuda, but not libicudata, which Debian's libtorch comes to by way of OpenCV.
CUDAS = re.compile(r"lib(\w*_)?(cuda|nccl)")
DEVICE = "cuda:64"  # No host has so many.
MODEL = ROOT / "models/austen"
DRIVERS = {"libcuda.so.1"}  # The one library that an image has from the machine.


def libraries():
    """What the built plugin is linked with, as the loader finds it; the names alone."""
    done = subprocess.run(["ldd", ROOT / "bazel-bin/common/engine/torch/libbaton_torch.so"], capture_output=True,
                          text=True, check=True)
    lost = [line.strip() for line in done.stdout.splitlines() if "not found" in line]
    return {line.split()[0] for line in done.stdout.splitlines()}, lost


def refusal():
    """What a worker on a device that is not there ends with."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [clusters.BATON, "worker", "--model-path", MODEL, "--disaggregation-mode", "decode",
                     "--router-address", "127.0.0.1:1", "--metrics-port", clusters.free_ports(1)[0],
                     "--executor", "torch", "--device", DEVICE]
        done = subprocess.run([*map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=120,
                              check=False)
    print(done.stderr.strip().splitlines()[-1:], flush=True)
    return done


def with_cuda(tally):
    if bazel("build", "--config=cuda", PLUGIN, "//services/baton") != 0:
        tally.fail("the torch plugin does not build with --config=cuda")
        return
    names, lost = libraries()
    tally.step(f"the plugin finds its libraries: {lost}", not lost)
    tally.step("it is linked with CUDA's libtorch and NCCL", {"libtorch_cuda.so", "libnccl.so.2"} <= names)
    done = refusal()
    tally.step(f"a device that is not there is named beside what is: {done.stderr}",
               done.returncode != 0 and f"asked for device {DEVICE}; libtorch 2." in done.stderr
               and "with CUDA finds" in done.stderr and "on this host" in done.stderr)
    say("tests on the CPU, by the libtorch with CUDA")
    tally.step("tests with --config=cuda", bazel("test", "--config=cuda", *TESTS) == 0)


def lost_libraries(root):
    """What libraries of an image with CUDA do not find in it."""
    loader = "/" + str(next(root.glob("lib*/ld-linux*.so.*")).relative_to(root))
    lost = set()
    for path in sorted((root / "usr/lib/baton").rglob("*.so*")):
        done = subprocess.run(["chroot", root, loader, "--list", "/" + str(path.relative_to(root))],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            found = re.search(r"(\S+): cannot open shared object file", done.stderr)
            lost.add(found.group(1) if found else f"{path.name}: {done.stderr.strip()}")
    return lost


def run_in(root, *arguments):
    """Baton in that file tree, as the image's user; mounts end with it."""
    script = (f"mount --rbind /dev {root}/dev && mount -t proc proc {root}/proc && "
              f'exec chroot --userspec=65532:65532 {root} /usr/bin/baton "$@"')
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh",
                           *arguments], capture_output=True, text=True, timeout=300, check=False,
                          env={"PATH": os.environ["PATH"]})


def image(tally):
    if os.geteuid() != 0:
        tally.skip("the image with CUDA", "to run what is in it takes root")
        return
    say("the file tree of ./dev image --with-cuda")
    with tempfile.TemporaryDirectory(prefix="baton-cuda-image-") as folder:
        root = pathlib.Path(folder) / "root"
        built = subprocess.run([sys.executable, ROOT / "deploy/image/build.py", "--with-cuda", "--root", root],
                               capture_output=True, text=True, check=False)
        print(built.stderr, end="", flush=True)
        tally.step("build.py --with-cuda", built.returncode == 0)
        if built.returncode != 0:
            return
        lost = lost_libraries(root)
        tally.step(f"libraries find all but the driver's: {lost}", lost <= DRIVERS)
        tally.step("there are no headers", not list(root.rglob("*.h")))
        done = run_in(root, "worker", "--model-path", "/models/austen", "--disaggregation-mode", "decode",
                      "--router-address", "127.0.0.1:1", "--metrics-port", str(clusters.free_ports(1)[0]),
                      "--executor", "torch", "--device", "cuda")
        print(done.stderr.strip().splitlines()[-1:], flush=True)
        tally.step(f"a worker says that there is no GPU: {done.stderr}",
                   done.returncode != 0 and "with CUDA finds no GPU on this host" in done.stderr)


def without_cuda(tally):
    if bazel("build", PLUGIN, "//services/baton") != 0:
        tally.fail("the torch plugin does not build")
        return
    names, _ = libraries()
    cudas = [name for name in names if CUDAS.match(name)]
    tally.step(f"the default plugin has nothing of CUDA's: {cudas}", not cudas)
    done = refusal()
    tally.step(f"the default build says that it has no CUDA: {done.stderr}",
               done.returncode != 0 and f"asked for device {DEVICE}; libtorch " in done.stderr
               and "computes on the CPU alone: --config=cuda builds with CUDA" in done.stderr)


def main():
    tally = Tally()
    try:
        fetch.fetch()
    except (fetch.Unusable, registries.NotReached) as reason:
        tally.skip("the build with CUDA", str(reason))
    else:
        with_cuda(tally)
        image(tally)
    without_cuda(tally)  # Last: bazel-bin is as it was.
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
