"""Bazel as `./dev` calls it: `bazel.py build //services/baton`, or bazel() from the other runners."""

import functools
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("//common/...", "//services/...", "//tests/...", "//tools/...", "//examples/...")


@functools.lru_cache(maxsize=None)
def compiler_flags():
    """Warnings are errors under GCC 12 only: .bazelrc says why."""
    try:
        version = subprocess.run(["gcc", "-dumpversion"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return () if version.strip().split(".")[0] == "12" else ("--config=lenient",)


def bazel(command, *arguments):
    """Its exit code. Progress as Bazel shows it on a terminal, plain lines otherwise."""
    flags = ["--noshow_loading_progress", *compiler_flags()]
    flags += ["--curses=yes"] if sys.stderr.isatty() else ["--curses=no", "--show_progress_rate_limit=15"]
    return subprocess.run(["bazel", command, *flags, *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(bazel(*sys.argv[1:]))
