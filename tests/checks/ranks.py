"""Ranks of prefill stages and of decode services killed and stopped under load, 20 times each: nobody else is harmed.

    ./dev check ranks
    /usr/bin/python3 tests/checks/ranks.py [--rounds 20] [--module test_decode_ranks]

Victims of both roles, by SIGKILL and by SIGSTOP, each under eight requests: those of another chain or service are
answered; those of the victim's end within four seconds with its name, or are begun again elsewhere where they had no
token yet; and the group forms again and serves. The same tests run once or twice each in `./dev test`. The logs stay
in .cache/ranks.
"""

import argparse
import os
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from bazel import bazel  # noqa: E402
from end_to_end import run_pytest  # noqa: E402
from tally import Tally  # noqa: E402

LOGS = ROOT / ".cache" / "ranks"
MODULES = ("test_tensor_parallel", "test_decode_ranks")
CASES = "kill_of_a_rank or stands_still or only_chain"


def show(report):
    """A line for each victim: what became of its requests."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        said = {one.get("name"): one.get("value") for one in case.iter("property")}
        if said:
            others = (f"; {said['unharmed']} answered, {said['begun_again']} of them begun again"
                      if "unharmed" in said else "")
            print(f"  {case.get('name')}: {said['disruptions']} times, {said['ended']} requests ended, the slowest "
                  f"after {said['slowest_end_s']} s{others}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--module", choices=MODULES, action="append")
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("services/baton does not build")
        return tally.finish()
    environment = dict(os.environ, RANK_CHAOS_ROUNDS=str(arguments.rounds))
    for module in arguments.module or MODULES:
        result = run_pytest(module, [f"tests/e2e/{module}.py", "-k", CASES], LOGS, environment)
        result.count(tally)
        show(LOGS / f"{module}.xml")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
