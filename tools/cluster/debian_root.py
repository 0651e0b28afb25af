"""A Debian system in a directory: packages are installed in it, and its systemd is booted in namespaces.

Nothing reaches the host: mounts, processes, network and control groups are namespaces' own and end with the
process that holds them. Needs root.
"""

import pathlib
import shutil
import subprocess
import tempfile
import time

SUITE = "bookworm"
BOOT_SECONDS = 120

# In namespaces of its own; $1 is the root.
CHROOT = """set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount --bind /dev "$1/dev"
root=$1
shift
exec chroot "$root" "$@"
"""

# The same with a systemd as process 1: it gets a control group hierarchy for itself, a network with loopback
# alone, and a root that it can make further namespaces from, which a chroot would not be.
BOOT = """set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
if [[ $(stat -fc %T /sys/fs/cgroup) == cgroup2fs ]]; then
  mount -t cgroup2 cgroup2 sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
  mkdir sys/fs/cgroup/systemd
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
  touch "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ip link set lo up
pivot_root . mnt
umount -l /mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd systemd.unit=multi-user.target
"""


class Unusable(Exception):
    """No such system can be made here; the message says why."""


def make_base(cache, include=()):
    """Writes a tar of the bare system with the packages `include` to `cache`, if that is absent."""
    cache = pathlib.Path(cache)
    if cache.exists():
        return
    cache.parent.mkdir(parents=True, exist_ok=True)
    partial = cache.with_name("partial-" + cache.name)
    packages = [f"--include={','.join(include)}"] if include else []
    done = subprocess.run(["mmdebstrap", "--mode=root", "--variant=minbase", *packages, SUITE, str(partial)],
                          capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        raise Unusable(f"mmdebstrap: {done.stderr.strip()[-400:]}")
    partial.replace(cache)


class DebianRoot:
    """Removed with all its processes when the context ends."""

    def __init__(self, include, cache):
        """`cache` keeps the bare system with the packages `include`; it is made when it is absent."""
        self.cache = pathlib.Path(cache)
        self.include = include
        self.folder = None
        self.init = None  # unshare, whose child is systemd.

    def __enter__(self):
        make_base(self.cache, self.include)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-root-", dir="/var/tmp"))
        subprocess.run(["tar", "-x", "--numeric-owner", "-C", self.folder, "-f", self.cache], check=True)
        return self

    def __exit__(self, kind, value, trace):
        self.halt()
        shutil.rmtree(self.folder)

    def run(self, *command):
        """In the system while it does not run: with the host's network, for apt."""
        return self._run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", CHROOT, "chroot",
                          self.folder, *command])

    def boot(self):
        self.init = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup",
             "bash", "-c", BOOT, "boot", str(self.folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < deadline:
            if self.init.poll() is not None:
                raise Unusable(f"systemd did not start: {self.init.stderr.read().strip()[-400:]}")
            # `running` when every unit is well, `degraded` when one of the system's own is not.
            state = self.inside("systemctl", "is-system-running").stdout.strip() if self.init_pid() else ""
            if state in ("running", "degraded"):
                return
            time.sleep(0.1)
        raise Unusable(f"systemd was not up after {BOOT_SECONDS} s")

    def halt(self):
        if self.init is not None:
            # Its children end with it: it is process 1 of their namespace.
            self.init.kill()
            self.init.wait()
            self.init.stderr.close()
            self.init = None

    def inside(self, *command):
        """In the booted system."""
        return self._run(["nsenter", "-t", self.init_pid(), "-m", "-p", "-u", "-i", "-n", "-C", *command])

    def network(self, *command):
        """A program of the host in the booted system's network."""
        return self._run(["nsenter", "-t", self.init_pid(), "-n", *command])

    def files(self):
        """Paths of all that is in the system, but for what package tools and services keep as records."""
        records = ("/proc/", "/sys/", "/dev/", "/run/", "/tmp/", "/var/cache/", "/var/log/", "/var/lib/dpkg/",
                   "/var/lib/apt/", "/var/lib/systemd/", "/var/lib/dbus/", "/var/tmp/", "/root/")
        paths = ("/" + str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))
        return {path for path in paths if not (path + "/").startswith(records)}

    def init_pid(self):
        """Of the booted system's process 1, as the host has it; empty before there is one."""
        with open(f"/proc/{self.init.pid}/task/{self.init.pid}/children", encoding="ascii") as children:
            return children.read().strip()

    @staticmethod
    def _run(command):
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL)
