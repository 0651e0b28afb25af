"""Baton on a real Kubernetes node of its own: chart, overlays, upgrades, deletions and bad input, under load.

    ./dev check kubernetes
    /usr/bin/python3 tests/checks/kubernetes.py [--only accept|serve|refuse|overlays|groups ...] [--keep] [--shell]

Kubernetes itself is compiled from its Go modules, once (10 minutes of CPU time), and runs in namespaces
that end with the check: see tests/kubernetes. Without root, Go, the module proxy or the Debian packages of
a container runtime it is skipped and says so.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "kubernetes"
sys.path[:0] = [str(HERE), str(ROOT / "tools" / "dev")]

import leftovers  # noqa: E402
import sandbox  # noqa: E402
import toolchain  # noqa: E402
from bazel import bazel  # noqa: E402
from tally import Tally, say  # noqa: E402

GROUPS = ("accept", "serve", "refuse", "overlays", "groups")
LOGS = ROOT / ".cache" / "kubernetes-check"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=[], help="a part of the steps")
    parser.add_argument("--keep", action="store_true", help=f"keep the logs in {LOGS} even if all passes")
    parser.add_argument("--shell", action="store_true", help="bring the node up and start a shell there")
    return parser.parse_args()


def build_images(work):
    """Baton's image with and without the model it ships with: two archives."""
    if bazel("build", "//services/baton") != 0:
        raise RuntimeError("//services/baton does not build")
    archives = []
    for tag, flags in (("check", []), ("without-model", ["--without-model"])):
        out = work / f"baton-{tag}.tar"
        subprocess.run([sys.executable, ROOT / "deploy" / "image" / "build.py", *flags, "--out", out,
                        "--tag", f"localhost/baton:{tag}"], check=True, stdout=subprocess.DEVNULL)
        archives.append(str(out))
    return archives


def plan_of(arguments, work):
    """Everything that needs the network or the checkout's build, as files that the sandbox sees."""
    say("tools: Kubernetes, CoreDNS, helm")
    tools = toolchain.build_all()
    missing = {}
    try:
        tools["lws"] = toolchain.build_lws()
    except toolchain.Missing as why:
        missing["lws"] = str(why)
    crds, absent = toolchain.crd_files()
    for module, why in absent.items():
        print(f"    no CRDs of {module}: {why}", flush=True)
    say("image")
    return {"tools": {name: str(path) for name, path in tools.items()}, "missing": missing,
            "crds": crds, "images": build_images(work),
            "only": arguments.only, "shell": arguments.shell}


def read_tally(work):
    tally = Tally()
    try:
        counted = json.loads((work / "tally.json").read_text(encoding="utf-8"))
    except OSError:
        tally.fail("the scenario ended without a result")
        return tally
    tally.passed, tally.failed, tally.skipped = counted["passed"], counted["failed"], counted["skipped"]
    tally.failures = counted["failures"]
    return tally


def keep_logs(work):
    shutil.rmtree(LOGS, ignore_errors=True)
    shutil.copytree(work / "log", LOGS)
    say(f"the node's logs are kept in {LOGS}")


def check(arguments, work):
    sysctls = sandbox.read_sysctls()
    (work / "plan.json").write_text(json.dumps(plan_of(arguments, work)), encoding="utf-8")
    say("a node in namespaces of its own")
    sandbox.run([sys.executable, str(HERE / "scenario.py"), str(work)], work)
    tally = read_tally(work)
    left = leftovers.on_host(work, sysctls)
    tally.step(f"nothing is left on the host: {left}" if left else "nothing is left on the host", not left)
    if (tally.failed or arguments.keep) and (work / "log").is_dir():
        keep_logs(work)
    return tally


def main():
    arguments = parse_arguments()
    try:
        toolchain.require_machine()
        toolchain.require_go()
    except toolchain.Missing as why:
        tally = Tally()
        tally.skip("kubernetes", str(why))
        return tally.finish()
    work = sandbox.make_work()
    try:
        tally = check(arguments, work)
    except toolchain.Missing as why:
        tally = Tally()
        tally.skip("kubernetes", str(why))
    except sandbox.Terminated:
        return 143
    except KeyboardInterrupt:
        return 130
    finally:
        if not sandbox.remove(work):
            print(f"could not remove {work}", file=sys.stderr)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
