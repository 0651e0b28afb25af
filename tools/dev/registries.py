"""Packages from PyPI, npm and Go's proxy, for checks that may do without them: into a folder of the caller's.

Where a registry is not reached NotReached says so in a line; a package that exists and does not install
is the same to a check: it was not run, and why stands beside it.
"""

import pathlib
import shutil
import subprocess

TIMEOUT_S = 1200


class NotReached(Exception):
    """Why a package is not to be had here."""


def _run(what, command, **more):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReached(f"{what}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise NotReached(f"{what}: {said[-1]}")


def venv(directory, *requirements):
    """The Python of a new virtual environment with `requirements` from PyPI."""
    python = pathlib.Path(directory) / "bin" / "python"
    _run("a virtual environment", ["/usr/bin/python3", "-m", "venv", str(directory)])
    if requirements:
        install(python, *requirements)
    return python


def install(python, *requirements, flags=()):
    _run(f"PyPI ({', '.join(requirements)})",
         [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "30",
          *flags, *requirements])


def download(python, directory, requirements_file, python_version):
    """The wheels that a file lists, with their checksums, and none that they depend on."""
    _run(f"PyPI ({requirements_file.name})",
         [python, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--progress-bar", "off", "--retries",
          "1", "--timeout", "30", "--no-deps", "--only-binary=:all:", "--require-hashes", "--python-version",
          python_version, "-d", str(directory), "-r", str(requirements_file)])


def npm_install(directory, *packages):
    if shutil.which("npm") is None:
        raise NotReached("npm is not installed")
    _run(f"npm ({', '.join(packages)})",
         ["npm", "install", "--silent", "--no-audit", "--no-fund", "--fetch-retries=1", "--prefix", str(directory),
          *packages])


def go(directory, *arguments):
    """`go ARGUMENTS` in a module's folder; its modules come from the proxy that the environment names."""
    if shutil.which("go") is None:
        raise NotReached("Go is not installed")
    _run(f"go {arguments[0]}", ["go", *arguments], cwd=directory)
