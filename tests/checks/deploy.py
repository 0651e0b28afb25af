"""Chart and overlays: rendered, compared, held against Kubernetes' and the CRDs' schemas, run as processes.

    ./dev check deploy
    /usr/bin/python3 tests/checks/deploy.py [--goldens]      --goldens rewrites tests/deploy/golden first

Helm and kustomize are built through the Go module proxy, schemas come from it and from PyPI, once
(tests/deploy/deploy_tools.py); what cannot be had is skipped and counted so.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "deploy"
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(TESTS)]

from bazel import bazel  # noqa: E402
from deploy_tools import gather  # noqa: E402
from tally import Tally, say  # noqa: E402


def count(report, tally):
    """Adds pytest's cases; those that are skipped for one reason are told in one line."""
    reasons = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.fail(name)
        elif skipped is not None:
            reasons[skipped.get("message", "")] = reasons.get(skipped.get("message", ""), 0) + 1
        else:
            tally.passed += 1
    for why, cases in reasons.items():
        tally.skip(f"{cases} tests of tests/deploy", why)
        tally.skipped += cases - 1


def main():
    say("Helm, kustomize and schemas (built and downloaded once, a few minutes)")
    found, missing = gather()
    for variable, path in found.items():
        say(f"{variable}={path}")
    tally = Tally()
    say("build: //services/baton, which shall read what the chart writes")
    tally.step("build of //services/baton", bazel("build", "//services/baton") == 0)
    found["BATON"] = str(ROOT / "bazel-bin/services/baton/baton")
    environment = dict(os.environ, **found, **{f"{name}_MISSING": why for name, why in missing.items()})
    if "--goldens" in sys.argv[1:]:
        subprocess.run([sys.executable, TESTS / "goldens.py"], env=environment, check=True)
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                               f"--junitxml={report.name}", TESTS], cwd=ROOT, env=environment, check=False).returncode
        if code in (0, 1):
            count(report.name, tally)
        else:
            tally.fail(f"pytest tests/deploy exited with {code}")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
