"""The archive for a machine with a GPU: it is made, and its session runs here on the CPU from nothing else.

    ./dev check gpu
    /usr/bin/python3 tests/checks/gpu.py

Needs what `./dev cuda` fetches. The session runs in a file tree that has the archive, the C library, Python and the
wheels of torch, as a root that may not look outside (unshare, chroot); none of Baton's packages are there. It shows
that the archive is complete, not that anything is right on a GPU.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tools/dev", "tools/cuda"):
    sys.path.insert(0, str(ROOT / folder))

import fetch  # noqa: E402
from tally import Tally, say  # noqa: E402

PYTHON = "/usr/bin/python3"
SITE = "/site"
# What a machine with torch has: the C library, the compiler's, Python with what it is linked with, and names.
BASE = ("/bin/sh", PYTHON, "/usr/bin/env")
MACHINES_OWN = ("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libresolv.so.2",
                "libutil.so.1", "libnss_files.so.2")
PARTS = ("machine", "blocks", "parity", "kernels", "experts", "steps", "hand_off",
         "serving")


def copy(path, root):
    """A file, under its own name and as it is, and what a link names."""
    target = root / str(path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(path, target)


def linked(path):
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        for word in line.split():
            if word.startswith("/"):
                yield word


def make_root(root):
    library = next(pathlib.Path("/lib").glob("*-linux-gnu"))
    for path in (*BASE, *(library / name for name in MACHINES_OWN)):
        if not pathlib.Path(path).exists():
            continue
        copy(path, root)
        for one in linked(path):
            copy(one, root)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(f"/usr/lib/{version}", root / "usr/lib" / version, dirs_exist_ok=True, symlinks=True,
                    ignore=shutil.ignore_patterns("test", "__pycache__", "dist-packages"))
    for module in (root / "usr/lib" / version / "lib-dynload").glob("*.so"):
        for one in linked(module):
            copy(one, root)
    for name in ("dev", "proc", "sys", "tmp", "etc", SITE[1:]):
        (root / name).mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n", encoding="ascii")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n", encoding="ascii")


def run_session(root):
    """In namespaces of its own: mounts end with it, and there is no network but loopback."""
    script = (f"mount --bind {fetch.SITE.resolve()} {root}{SITE} && mount --rbind /dev {root}/dev && "
              f"mount -t proc proc {root}/proc && mount -t sysfs sysfs {root}/sys && (ip link set lo up || true) && "
              f"exec chroot {root} {PYTHON} /baton-gpu/session --device cpu --site {SITE} --json /result.json")
    return subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", script],
                          check=False, timeout=900, env={"PATH": os.environ["PATH"], "HOME": "/"})


def main():
    tally = Tally()
    if os.geteuid() != 0:
        tally.skip("the archive", "a bare file tree takes root")
        return tally.finish()
    with tempfile.TemporaryDirectory(prefix="baton-gpu-check-") as scratch:
        root = pathlib.Path(scratch) / "root"
        root.mkdir()
        archive = pathlib.Path(scratch) / "baton-gpu.tar.xz"
        packed = subprocess.run([ROOT / "tools/gpu/pack", "--out", archive], capture_output=True, text=True,
                                check=False)
        sys.stderr.write(packed.stderr)
        if packed.returncode != 0 and not fetch.is_there():
            tally.skip("the archive", packed.stderr.strip().splitlines()[-1])
            return tally.finish()
        tally.step("tools/gpu/pack", packed.returncode == 0)
        if packed.returncode != 0:
            return tally.finish()
        make_root(root)
        subprocess.run(["tar", "-C", root, "-xf", archive], check=True)
        say("the session, on the CPU, in a bare file tree")
        done = run_session(root)
        result = root / "result.json"
        told = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        for part in PARTS:
            why = told.get(part, {"failed": "was not run"}).get("failed")
            tally.step(f"{part}: {why}", why is None)
        tally.step("the session's exit code", done.returncode == 0)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
