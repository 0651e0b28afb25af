"""Runs every check of the repository in order and closes with one line: `N passed, N failed, N skipped`.

Steps go on after a failure, so that one run shows all that is wrong. Counts are of test cases: those
of GoogleTest and pytest as their XML reports say, and one for each of the lint steps.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

from bazel import PACKAGES, ROOT, bazel
from end_to_end import run_all
from tally import Tally, say

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lint"))

from lint import lint  # noqa: E402

# Of sources that cost one compiler call, and caught by an early seed.
SAMPLED_BUGS = ("lease-ignores-checksum", "stage-closes-twice", "router-retries-once-more", "cache-ignores-salts")


def run(command, **kwargs):
    return subprocess.run(command, cwd=ROOT, check=False, **kwargs)


def count_report(path, label, tally):
    """Adds the cases of one JUnit-style report; returns how many there were."""
    cases = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        cases += 1
        name = f"{label} {case.get('classname', '')}.{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            tally.fail(name)
        elif case.find("skipped") is not None:
            tally.skip(name, case.find("skipped").get("message", ""))
        elif case.get("status") != "notrun":
            tally.passed += 1
    return cases


class Laps:
    """What each part of the run took, for the last line."""

    def __init__(self):
        self.begun = self.last = time.monotonic()
        self.parts = []

    def end(self, part):
        now = time.monotonic()
        self.parts.append(f"{part} {now - self.last:.0f} s")
        self.last = now

    def __str__(self):
        return f"took {time.monotonic() - self.begun:.0f} s: {', '.join(self.parts)}"


def unit(tally, config, laps):
    flags = [f"--config={config}"] if config else []
    say("build" + (f" ({config})" if config else ""))
    built = bazel("build", *flags, "--keep_going", *PACKAGES) == 0
    tally.step("build", built)
    laps.end("build")
    say("unit and simulation tests")
    code = bazel("test", *flags, "--keep_going", "--test_summary=terse", *PACKAGES)
    query = run(["bazel", "query", "--noshow_progress", "tests(" + " + ".join(PACKAGES) + ") except attr(tags, manual, "
                 + " + ".join(PACKAGES) + ")"],
                capture_output=True, text=True)
    logs = ROOT / "bazel-testlogs"
    failed_before = tally.failed
    for label in query.stdout.split():
        # Those of an earlier --runs_per_test lie there still.
        reports = [report for report in sorted((logs / label[2:].replace(":", "/")).glob("**/test.xml"))
                   if not report.parent.name.startswith("run_")]
        if sum(count_report(report, label, tally) for report in reports) == 0 and config != "tsan":
            tally.fail(f"{label} ran no test")
    if code not in (0, 4) and tally.failed == failed_before:
        tally.fail(f"bazel test exited with {code}")
    laps.end("unit tests")


def planted_bugs(tally):
    """A sample; `./dev check planted` is all of them."""
    say("planted bugs")
    command = ["/usr/bin/python3", "tests/checks/planted.py", *(f"--only={name}" for name in SAMPLED_BUGS)]
    tally.step("planted bugs are caught", run(command).returncode == 0)


def tools(tally):
    """The tests of the tools that decide what the other steps look at."""
    say("tests of the tools")
    pytest(tally, "tests/tools", "tools")


def pytest(tally, folder, name):
    """Counts the cases of a folder."""
    report = ROOT / ".cache" / f"{name}.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    failed_before = tally.failed
    code = run(["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
                folder]).returncode
    if not report.exists() or count_report(report, folder, tally) == 0:
        tally.fail(f"{folder} ran no test (pytest exited with {code})")
    elif code != 0 and tally.failed == failed_before:
        tally.fail(f"pytest {folder} exited with {code}")


def end_to_end(tally, config, again):
    say("end-to-end tests")
    flags = [f"--config={config}"] if config else []
    if bazel("build", *flags, "//services/baton", "//examples/cpp:generate") != 0:
        tally.fail("build of //services/baton")
        return
    # Not BATON_*: the processes under test refuse variables of that name that are no options.
    environment = dict(os.environ, SANITIZER=config or "")
    if config == "asan":  # As .bazelrc sets them for the unit tests.
        environment["ASAN_OPTIONS"] = "detect_leaks=1:halt_on_error=1:detect_odr_violation=0"
        environment["LSAN_OPTIONS"] = f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0"
        environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
    run_all(tally, config, environment, again)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=["asan", "tsan"], help="build with sanitizers")
    parser.add_argument("--only", choices=["lint", "unit", "e2e"], help="one part alone")
    arguments = parser.parse_args()
    tally, laps = Tally(), Laps()
    if arguments.only in (None, "lint") and not arguments.config:
        lint(tally)
        tools(tally)
        laps.end("lint and tools")
    if arguments.only in (None, "unit"):
        unit(tally, arguments.config, laps)
        if not arguments.config:
            planted_bugs(tally)
            laps.end("planted bugs")
    # Torch is not built for ThreadSanitizer, so whole processes don't run under it.
    if arguments.only in (None, "e2e") and arguments.config != "tsan":
        end_to_end(tally, arguments.config, again=arguments.only == "e2e")
        laps.end("end to end")
    print(laps, file=sys.stderr)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
