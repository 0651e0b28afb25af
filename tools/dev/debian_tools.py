"""Debian packages that only some checks need: not in third_party/packages.txt, which everybody installs."""

import os
import shutil
import subprocess

from tally import say


def missing_tools(tools):
    """Installs the packages of the commands that are not there, {command: package}, if that is allowed.

    Returns why it can't be done, or an empty text."""
    def absent():
        # Some lie in sbin, which a user's path may lack.
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        return sorted(package for command, package in tools.items() if shutil.which(command, path=path) is None)
    if not absent():
        return ""
    packages = " ".join(absent())
    if os.geteuid() != 0:
        return f"it needs the Debian packages {packages}; as root they are installed when missing"
    say(f"installing with apt: {packages}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
    done = subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent()], check=False,
                          capture_output=True, text=True, env=environment)
    return f"apt-get install {packages}: {done.stderr.strip()}" if absent() else ""
