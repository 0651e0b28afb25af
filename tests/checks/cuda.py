"""The build with CUDA: libtorch and NCCL from PyPI, the parity tests on that libtorch, and what is said without a GPU.

    ./dev check cuda
    /usr/bin/python3 tests/checks/cuda.py

Fetches what `./dev cuda` does (2.4 GB, once), builds the torch plugin with --config=cuda and runs on the CPU what
the torch executor, Gloo and the device's KV doors are tested by; a GPU is not needed, and none of this shows
that computing on one is right. Then the default build again, which says that it has no CUDA. Where PyPI is not
reached or the disk is too small, a line says so.
"""

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
         "//common/engine/torch/distributed:gloo_connect_test",
         "//common/engine/torch/distributed:gloo_threads_conformance_test",
         "//common/engine/torch/distributed:connect_nccl_test", "//common/collective:device_communicator_test")
# libcudart and libtorch_cuda, but not libicudata, which Debian's libtorch comes to by way of OpenCV.
CUDAS = re.compile(r"lib(\w*_)?(cuda|nccl)")
DEVICE = "cuda:64"  # No host has so many.
MODEL = ROOT / "models/austen"


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
    without_cuda(tally)  # Last: bazel-bin is as it was.
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
