"""`./dev cuda`: libtorch with CUDA and NCCL from PyPI's wheels, for builds with --config=cuda; nothing else needs it.

third_party/cuda/wheels.txt names the wheels with their checksums. What a compiler and a linker want of them is
unpacked into .cache/cuda/site as a Python environment would have it, since the libraries find one another by their
places. It is done again only if the list has changed, or another is asked for (`--wheels`).
"""

import argparse
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/dev"))

import registries  # noqa: E402
from tally import say  # noqa: E402

WHEELS = ROOT / "third_party/cuda/wheels.txt"
FOLDER = ROOT / ".cache/cuda"
SITE = FOLDER / "site"
READY = SITE / "READY"  # The digest of the list that it was made from. third_party/cuda/cuda.bzl looks for it.
# Wheels and what is unpacked of them, side by side for a moment.
NEEDED_BYTES = 8 << 30
# Whose wheel of torch the list names.
PYTHON_VERSION = "3.11"
# One file of each kind without which nothing compiles, links or loads.
EXPECTED = (
    "torch/include/torch/headeronly/version.h",
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libc10_cuda.so",
    "nvidia/cu13/include/cuda_runtime_api.h",
    "nvidia/cu13/include/crt/host_config.h",
    "nvidia/nccl/include/nccl.h",
    "nvidia/nccl/lib/libnccl.so.2",
)


class Unusable(Exception):
    """Why there is no libtorch with CUDA here."""


def digest(wheels):
    return hashlib.sha256(wheels.read_bytes()).hexdigest()


def is_there(wheels=WHEELS):
    return READY.exists() and READY.read_text(encoding="ascii").strip() == digest(wheels)


def wanted(name):
    """Of a wheel's files: headers and shared libraries, but nothing of Python's."""
    path = pathlib.PurePosixPath(name)
    if path.parts[0] == "torch" and (len(path.parts) < 2 or path.parts[1] not in ("include", "lib")):
        return False
    if path.name.startswith("libtorch_python"):
        return False
    return "include" in path.parts or ".so" in path.name or path.name.upper().startswith("LICENSE")


def unpack(wheel, site):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and wanted(name)]
        if any(pathlib.PurePosixPath(name).is_absolute() or ".." in name.split("/") for name in names):
            raise Unusable(f"{wheel.name} has files outside of its folder")
        archive.extractall(site, names)  # Compares every file with its checksum.


def check(site):
    """What the build will look for is there, and the libraries find all of theirs."""
    missing = [name for name in EXPECTED if not (site / name).is_file()]
    if missing:
        raise Unusable(f"the wheels lack {', '.join(missing)}, which --config=cuda is built with")
    for library in ("libtorch_cuda.so", "libtorch_cpu.so"):
        done = subprocess.run(["ldd", str(site / "torch/lib" / library)], capture_output=True, text=True, check=False)
        lost = [line.strip() for line in done.stdout.splitlines() if "not found" in line]
        if done.returncode != 0 or lost:
            raise Unusable(f"{library} does not find {', '.join(lost) or done.stderr.strip()}")
    names = subprocess.run(["nm", "-D", "--defined-only", str(site / "torch/lib/libc10.so")], capture_output=True,
                           text=True, check=True).stdout
    if "__cxx11" not in names:
        raise Unusable("libc10.so has the C++ ABI of before GCC 5, and Baton has today's")


def fetch(wheels=WHEELS):
    """Fetches, unpacks and checks, unless that has been done. Unusable or registries.NotReached say why not."""
    if is_there(wheels):
        return
    if not wheels.is_file():
        raise Unusable(f"{wheels} is no list of wheels")
    FOLDER.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(FOLDER).free
    if free < NEEDED_BYTES:
        raise Unusable(f"{FOLDER} has {free / 2**30:.1f} GiB free, and fetching takes {NEEDED_BYTES >> 30}")
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="fetch-") as folder:
        folder = pathlib.Path(folder)
        say(f"fetching the wheels of {wheels} from PyPI")
        python = registries.venv(folder / "venv")
        registries.download(python, folder / "wheels", wheels, PYTHON_VERSION)
        site = folder / "site"
        for wheel in sorted((folder / "wheels").glob("*.whl")):
            say(f"unpacking {wheel.name}")
            unpack(wheel, site)
            wheel.unlink()
        check(site)
        (site / READY.name).write_text(digest(wheels) + "\n", encoding="ascii")
        shutil.rmtree(SITE, ignore_errors=True)
        site.rename(SITE)


def add_option(parser):
    parser.add_argument("--wheels", type=pathlib.Path, default=WHEELS, help="another list, for another torch")


def main():
    parser = argparse.ArgumentParser(prog="./dev cuda", description=__doc__.split("\n\n", maxsplit=1)[0])
    add_option(parser)
    try:
        fetch(parser.parse_args().wheels)
    except (Unusable, registries.NotReached) as reason:
        print(f"cuda: {reason}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    say(f"libtorch with CUDA is in {SITE.relative_to(ROOT)} ({size / 2**30:.1f} GiB): for builds with --config=cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
