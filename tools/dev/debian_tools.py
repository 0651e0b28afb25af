"""Debian packages that only some checks need: not in third_party/packages.txt, which everybody installs."""

import importlib
import importlib.util
import os
import shutil
import subprocess

from tally import say


def missing_tools(tools):
    """Installs the packages of the commands that are not there, {command: package}, if that is allowed.

    Returns why it can't be done, or an empty text."""
    # Some lie in sbin, which a user's path may lack.
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return _install(lambda: [package for command, package in tools.items()
                             if shutil.which(command, path=path) is None])


def missing_modules(modules):
    """The same for Python's, {module: package}."""
    def is_there(module):
        importlib.invalidate_caches()
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # Of the package that the module lies in.
            return False
    return _install(lambda: [package for module, package in modules.items() if not is_there(module)])


def missing_unless(usable, package):
    """The same for a package that has no command or module to be known by: `usable()` says whether it is there."""
    return _install(lambda: [] if usable() else [package])


def _install(absent):
    """`absent()` names the packages that are still missing."""
    packages = sorted(absent())
    if not packages:
        return ""
    if os.geteuid() != 0:
        return f"it needs the Debian packages {' '.join(packages)}; as root they are installed when missing"
    say(f"installing with apt: {' '.join(packages)}")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
    done = subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], check=False,
                          capture_output=True, text=True, env=environment)
    return f"apt-get install {' '.join(packages)}: {done.stderr.strip()}" if absent() else ""
