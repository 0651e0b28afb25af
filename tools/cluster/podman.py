"""Debian's podman with a storage of its own: builds Containerfiles without a registry, leaves nothing.

Every call runs in mount and process namespaces of its own, so that mounts and daemons which a build leaves
behind end with it. Steps of a build share the host's network, and are confined by a chroot alone: that works
in sandboxes, too, where container networks and control groups are not to be had. Needs root.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile

COMMANDS = {"podman": "podman"}  # And the package that has it.
BUILD_SECONDS_MAX = 7200
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# What apt says when a mirror is away.
NO_MIRROR = re.compile(r"Failed to fetch|Could not resolve|Unable to fetch|Temporary failure resolving")


class NotReached(Exception):
    """The build needs Debian's mirror, which is not reached; the message is apt's."""


class Podman:
    """Removed with its images when the context ends."""

    def __init__(self):
        self.folder = None
        self.driver = "overlay"

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-podman-", dir="/var/tmp"))
        # Where that directory is itself an overlay, layers are copied instead.
        if self._run("info").returncode != 0:
            shutil.rmtree(self.folder / "root", ignore_errors=True)
            self.driver = "vfs"
        return self

    def __exit__(self, kind, value, trace):
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *arguments, **more):
        command = [*NAMESPACES, "podman", "--root", self.folder / "root", "--runroot", self.folder / "run",
                   "--tmpdir", self.folder / "tmp", "--storage-driver", self.driver, "--cgroup-manager", "cgroupfs",
                   "--events-backend", "file", *arguments]
        return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)

    def _must(self, *arguments):
        done = self._run(*arguments)
        if done.returncode != 0:
            raise RuntimeError(f"podman {arguments[0]}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def import_root(self, archive, name):
        """A tar of a root file system as the image `name`, instead of pulling that."""
        self._must("import", archive, name)

    def build(self, containerfile, context, name, volumes):
        """As its user would; (exit code, all that was said). `volumes`: {path here: path in every step}."""
        mounts = [f"--volume={source}:{target}" for source, target in volumes.items()]
        done = self._run("build", "--pull=never", "--isolation=chroot", "--network=host", *mounts,
                         "-f", containerfile, "-t", name, context, timeout=BUILD_SECONDS_MAX)
        said = done.stdout + done.stderr
        if done.returncode != 0 and NO_MIRROR.search(said):
            raise NotReached("\n".join(said.strip().splitlines()[-3:]))
        return done.returncode, said

    def config(self, name):
        """How containers of an image run, in the words of the OCI image specification."""
        return json.loads(self._must("image", "inspect", name))[0]["Config"]

    def save(self, name, archive):
        self._must("save", "--quiet", "--format", "oci-archive", "-o", archive, name)
