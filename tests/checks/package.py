"""The Debian packages: lintian, hardened units under a real systemd of Debian 12, a prompt, a clean removal.

    ./dev check package
    /usr/bin/python3 tests/checks/package.py

Installs them in a bare Debian 12 (mmdebstrap; .cache keeps it), boots that system's own systemd in
namespaces, starts router, stage and decode service by their units, gets tokens through HTTP, looks at what
the processes may do, asks bash and zsh for completions and man for the page, and purges it all.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tools/dev", "tools/cluster"):
    sys.path.insert(0, str(ROOT / folder))

from bazel import bazel  # noqa: E402
from containers import confinement  # noqa: E402
from debian_root import DebianRoot, Unusable  # noqa: E402
from debian_tools import missing_tools  # noqa: E402
from tally import Tally, say  # noqa: E402

TARGETS = ("//services/baton", "//common/engine/torch:libbaton_torch.so", "//tools/docs:generate_docs")
INCLUDE = ("bash-completion", "dbus", "man-db", "systemd", "zsh")
BASE = ROOT / ".cache" / "debian-12-base.tar"
UNITS = ("baton-router", "baton-prefill@0", "baton-decode@0")
# systemd's own measure, from 0 (confined) to 10, in tenths.
EXPOSURE_MAX = 20
READY_SECONDS = 60
PROMPT = {"model": "austen", "prompt": "It is a truth", "max_tokens": 16}
BASH_QUESTION = """source /usr/share/bash-completion/bash_completion
source /usr/share/bash-completion/completions/baton
COMP_WORDS=(baton worker --page-size "") COMP_CWORD=3
_baton
echo "${COMPREPLY[*]}"
"""
# zsh completes for a line editor alone, so one is run on a terminal of zsh's own, and what it shows is awaited.
ZSH_QUESTION = """zmodload zsh/zpty
zpty z zsh -f
zpty -w z 'fpath=(/usr/share/zsh/vendor-completions $fpath); autoload -Uz compinit; compinit -u; print load""ed'
zpty -r z line '*loaded*'
zpty -w -n z $'baton worker --page-size \\t'
zpty -r z answer '*128*64*'
print -r -- "$answer"
"""


def check_lint(tally, packages):
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", *map(str, packages)],
                          capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    tally.step(f"lintian: {done.stdout}{done.stderr}", done.returncode == 0)


def check_install(tally, root, packages):
    for path in packages:
        (root.folder / "root" / path.name).write_bytes(path.read_bytes())
    names = [f"/root/{path.name}" for path in packages if not path.name.startswith("baton-torch")]
    root.run("apt-get", "update", "-qq")
    done = root.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq",
                    "--no-install-recommends", *names)
    if re.search(r"Failed to fetch|Could not resolve|Unable to fetch", done.stderr):
        raise Unusable(f"dependencies: {done.stderr.strip()[-400:]}")
    tally.step(f"installation: {done.stderr[-2000:]}", done.returncode == 0)


def check_units_offline(tally, root):
    for unit in UNITS:
        done = root.run("systemd-analyze", "verify", f"{unit}.service")
        tally.step(f"systemd-analyze verify {unit}: {done.stderr}", done.returncode == 0 and not done.stderr.strip())
        done = root.run("env", "SYSTEMD_COLORS=0", "SYSTEMD_URLIFY=0", "systemd-analyze", "security",
                        "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", f"{unit}.service")
        print(done.stdout.strip().splitlines()[-1])
        tally.step(f"systemd-analyze security {unit}: {done.stdout[-3000:]}", done.returncode == 0)


def check_page_and_shells(tally, root):
    page = root.inside("env", "MANWIDTH=100", "LC_ALL=C.UTF-8", "man", "--warnings", "--encoding=UTF-8", "baton")
    tally.step(f"man baton: {page.stderr}", page.returncode == 0 and not page.stderr.strip())
    flags = set(re.findall(r"`(--[a-z0-9-]+)`", (ROOT / "docs/options.md").read_text(encoding="utf-8")))
    missing = sorted(flag for flag in flags if flag not in page.stdout)
    tally.step(f"the man page lacks {missing}", not missing and len(flags) > 50)
    tally.step("whatis knows baton", "serve large language models" in root.inside("whatis", "baton").stdout)
    bash = root.inside("bash", "-c", BASH_QUESTION)
    tally.step(f"bash completes: {bash}", bash.stdout.strip() == "16 32 64 128")
    zsh = root.inside("timeout", 60, "env", "TERM=xterm", "zsh", "-fc", ZSH_QUESTION)
    tally.step(f"zsh completes: {zsh}", re.search(r"128\s+16\s+32\s+64", zsh.stdout) is not None)


def ask(root):
    """(status, body) of the prompt."""
    done = root.network("curl", "-s", "-m", 20, "-w", "\n%{http_code}", "localhost:30000/v1/completions", "-H",
                        "Content-Type: application/json", "-d", json.dumps(PROMPT))
    body, _, status = done.stdout.rpartition("\n")
    return status, body


def check_service(tally, root):
    done = root.inside("systemctl", "start", *UNITS)
    tally.step(f"systemctl start: {done.stderr}", done.returncode == 0)
    deadline, answer = time.monotonic() + READY_SECONDS, ("", "")
    while answer[0] != "200" and time.monotonic() < deadline:
        answer = ask(root)
        time.sleep(0.1)
    journal = root.inside("journalctl", "--no-pager", "-u", "baton-*").stdout
    tally.step(f"tokens from the installed units: {answer}\n{journal}",
               answer[0] == "200" and json.loads(answer[1])["usage"]["completion_tokens"] == PROMPT["max_tokens"])
    print(f"{PROMPT['prompt']}{json.loads(answer[1])['choices'][0]['text']!r}" if answer[0] == "200" else journal)
    tally.step(f"nothing is logged as an error:\n{journal}", " ERROR " not in journal and " E " not in journal)
    for unit in UNITS:
        pid = root.inside("systemctl", "show", "-p", "MainPID", "--value", unit).stdout.strip()
        host_pid = next((path.parent.name for path in pathlib.Path("/proc").glob("[0-9]*/status")
                         if in_namespace(path, root, pid)), None)
        seen = confinement(host_pid)
        print(f"{unit}: {seen}")
        tally.step(f"{unit} is {seen}", "0" not in seen["uids"] and seen["capabilities"] == 0
                   and seen["no_new_privileges"] and seen["seccomp"] and seen["root"] == "ro")
    done = root.inside("systemctl", "stop", *UNITS)
    for unit in UNITS:
        result = root.inside("systemctl", "show", "-p", "Result,ExecMainStatus", unit).stdout.split()
        tally.step(f"{unit} has ended with {result}", sorted(result) == ["ExecMainStatus=0", "Result=success"])


def in_namespace(status, root, pid):
    """Whether the process of a /proc/PID/status is `pid` in the booted system."""
    try:
        ours = os.readlink(status.parent / "ns/pid") == os.readlink(f"/proc/{root.init_pid()}/ns/pid")
        return ours and re.search(rf"^NSpid:.*\s{pid}$", status.read_text(encoding="ascii", errors="replace"), re.M)
    except OSError:  # It has ended meanwhile.
        return False


def check_absent_model(tally, root):
    """One line in the journal, and no restarts of what can't work."""
    config = root.folder / "etc/baton/baton.yaml"
    text = config.read_text()
    config.write_text(text.replace("/usr/share/baton/models/austen", "/srv/models/absent"))
    root.inside("systemctl", "start", "baton-router")
    deadline = time.monotonic() + READY_SECONDS
    while root.inside("systemctl", "is-failed", "baton-router").stdout.strip() != "failed" \
            and time.monotonic() < deadline:
        time.sleep(0.1)
    shown = root.inside("systemctl", "show", "-p", "NRestarts,ExecMainStatus", "baton-router").stdout.split()
    journal = root.inside("journalctl", "--no-pager", "-o", "cat", "-u", "baton-router", "-t", "baton").stdout
    last = journal.strip().splitlines()[-1:]
    print(f"without its model: {last}")
    tally.step(f"a model that is not there: {shown}, {last}",
               sorted(shown) == ["ExecMainStatus=2", "NRestarts=0"] and "there is no directory" in last[0])
    config.write_text(text)


def check_removal(tally, root, before):
    """Purged while its units run: they are stopped, and nothing stays."""
    root.inside("systemctl", "reset-failed")
    root.inside("systemctl", "start", *UNITS)
    done = root.inside("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "purge", "-y", "-qq", "baton",
                       "baton-model-austen")
    tally.step(f"purge: {done.stderr}", done.returncode == 0)
    running = root.inside("sh", "-c", "cat /proc/[0-9]*/comm").stdout.split().count("baton")
    tally.step(f"{running} processes are left", running == 0)
    done = root.inside("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "autoremove", "--purge", "-y", "-qq")
    tally.step(f"autoremove: {done.stderr}", done.returncode == 0)
    left = sorted(root.files() - before)
    tally.step(f"left after the purge: {left}", not left)


def check(tally, folder):
    done = subprocess.run([sys.executable, ROOT / "deploy/debian/build.py", "--out", folder], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        tally.fail(f"packages do not build: {done.stderr}")
        return
    packages = [pathlib.Path(line) for line in done.stdout.split()]
    for path in packages:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    check_lint(tally, packages)
    say("a bare Debian 12")
    with DebianRoot(INCLUDE, BASE) as root:
        before = root.files()
        say("installation and offline checks")
        check_install(tally, root, packages)
        check_units_offline(tally, root)
        say("its systemd")
        root.boot()
        check_page_and_shells(tally, root)
        check_service(tally, root)
        check_absent_model(tally, root)
        check_removal(tally, root, before)


def main():
    tally = Tally()
    tools = {"mmdebstrap": "mmdebstrap", "lintian": "lintian", "dh": "debhelper", "dpkg-buildpackage": "dpkg-dev"}
    unusable = missing_tools(tools) or ("" if os.geteuid() == 0 else "a system of its own needs root")
    if unusable:
        tally.skip("package", unusable)
        return tally.finish()
    if bazel("build", *TARGETS) != 0:
        tally.fail("what is packaged does not build")
        return tally.finish()
    with tempfile.TemporaryDirectory(prefix="baton-package-") as folder:
        try:
            check(tally, pathlib.Path(folder))
        except Unusable as reason:
            tally.skip("the installed packages", str(reason))
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
