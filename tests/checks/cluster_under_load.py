"""The end-to-end tests of the cluster 30 times beside two busy loops: no run may fail.

    ./dev check cluster_under_load
    /usr/bin/python3 tests/checks/cluster_under_load.py [--runs 30] [--loops 2] [--module test_cluster]

A test that fails by timing is a defect of the product or of the test, never of the machine. The logs of
runs that failed stay in .cache/cluster_under_load.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from bazel import bazel  # noqa: E402
from end_to_end import run_pytest  # noqa: E402
from tally import Tally  # noqa: E402

LOGS = ROOT / ".cache" / "cluster_under_load"


@contextlib.contextmanager
def busy_loops(count):
    """Processes that compute for as long as this one lives."""
    # Its standard input ends with this process, however that ends.
    loop = "import select, sys\nwhile not select.select([sys.stdin], [], [], 0)[0]: sum(range(1000000))"
    loops = [subprocess.Popen([sys.executable, "-c", loop], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in loops:
            process.kill()
            process.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--module", default="test_cluster")
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("services/baton does not build")
        return tally.finish()
    with busy_loops(arguments.loops):
        for run in range(1, arguments.runs + 1):
            result = run_pytest(f"{arguments.module}-{run}", [f"tests/e2e/{arguments.module}.py"], LOGS)
            tally.step(f"run {run}: {', '.join(result.failures)}", not result.failures and result.passed > 0)
            print(f"run {run} of {arguments.runs}: {result.passed} passed, {len(result.failures)} failed in "
                  f"{result.seconds:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
            if result.failures:
                print(result.log, flush=True)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
