"""All combinations of executors, families, stages, ranks, row-parallel chunks and types beside Hugging Face's tokens.

    ./dev check parity
    /usr/bin/python3 tests/checks/parity.py [--filter 'Rows/*torch_pp3_tp2*']

`./dev test` takes them by pairs (//common/engine:parity_matrix_test), in 24 rows; here are all 3,456, each with 64
greedy tokens of two prompts. A case is one way to prefill with all ways to decode. And real processes: every
chain of tests/e2e/test_decode_stages.py before every decode service, which the suite takes by pairs.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from bazel import bazel  # noqa: E402
from tally import Tally  # noqa: E402

TEST = "//common/engine:parity_product_test"


def count(tally, since):
    """Cases of the shards' reports, that bazel keeps in one folder each."""
    folder = ROOT / "bazel-testlogs" / TEST[2:].replace(":", "/")
    for report in sorted(folder.glob("**/test.xml")):
        if report.stat().st_mtime_ns < since:
            continue
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.get("status") != "notrun":
                tally.step(case.get("name"), case.find("failure") is None and case.find("error") is None)


def check_decode_stages(tally):
    """Without --filter, which is of the cases above."""
    done = subprocess.run(["/usr/bin/python3", "-m", "pytest", "-q", "tests/e2e/test_decode_stages.py", "-k",
                           "text_is_that"], cwd=ROOT, env=dict(os.environ, WHOLE_PARITY="1"), check=False)
    tally.step("decode services of several stages behind every chain", done.returncode == 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="*", help="GoogleTest's, of cases")
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", TEST) != 0:
        tally.fail(f"{TEST} does not build")
        return tally.finish()
    since = time.time_ns()
    code = bazel("test", "--cache_test_results=no", "--test_summary=terse", f"--test_filter={arguments.filter}", TEST)
    count(tally, since)
    if code != 0 and not tally.failed:
        tally.fail(f"bazel test exited with {code}")
    elif tally.passed + tally.failed == 0:
        tally.fail(f"--filter {arguments.filter} is no case's")
    if arguments.filter == "*":
        if bazel("build", "//services/baton") != 0:
            tally.fail("//services/baton does not build")
        else:
            check_decode_stages(tally)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
