"""Runs every check of the repository in order and closes with one line: `N passed, N failed`.

Steps go on after a failure, so that one run shows all that is wrong. Counts are of test cases: those
of GoogleTest and pytest as their XML reports say, and one for each of the lint steps.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ["//common/...", "//services/...", "//tests/...", "//tools/...", "//examples/..."]


@dataclasses.dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list = dataclasses.field(default_factory=list)

    def step(self, name, ok):
        if ok:
            self.passed += 1
        else:
            self.fail(name)

    def fail(self, name):
        self.failed += 1
        self.failures.append(name)


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def run(command, **kwargs):
    return subprocess.run(command, cwd=ROOT, check=False, **kwargs)


def bazel(command, *arguments):
    flags = ["--noshow_loading_progress"]
    flags += ["--curses=yes"] if sys.stderr.isatty() else ["--curses=no", "--show_progress_rate_limit=15"]
    return run(["bazel", command, *flags, *arguments])


def lint(tally):
    say("clang-format")
    files = run(["git", "ls-files", "--", "*.cc", "*.h"], capture_output=True, text=True).stdout.split()
    tally.step("clang-format", run(["clang-format", "--dry-run", "-Werror", *files]).returncode == 0)
    say("clang-tidy")
    tidy = bazel("build", "--config=lint", "--keep_going", *PACKAGES)
    tally.step("clang-tidy", tidy.returncode == 0)


def count_report(path, label, tally):
    """Adds the cases of one JUnit-style report; returns how many there were."""
    cases = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        cases += 1
        name = f"{label} {case.get('classname', '')}.{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            tally.fail(name)
        elif case.find("skipped") is not None:
            tally.skipped += 1
        elif case.get("status") != "notrun":
            tally.passed += 1
    return cases


def unit(tally, config):
    flags = [f"--config={config}"] if config else []
    say("build" + (f" ({config})" if config else ""))
    built = bazel("build", *flags, "--keep_going", *PACKAGES).returncode == 0
    tally.step("build", built)
    say("unit and simulation tests")
    code = bazel("test", *flags, "--keep_going", "--test_summary=terse", *PACKAGES).returncode
    query = run(["bazel", "query", "--noshow_progress", "tests(" + " + ".join(PACKAGES) + ") except attr(tags, manual, "
                 + " + ".join(PACKAGES) + ")"],
                capture_output=True, text=True)
    logs = ROOT / "bazel-testlogs"
    failed_before = tally.failed
    for label in query.stdout.split():
        reports = sorted((logs / label[2:].replace(":", "/")).glob("**/test.xml"))
        if sum(count_report(report, label, tally) for report in reports) == 0 and config != "tsan":
            tally.fail(f"{label} ran no test")
    if code not in (0, 4) and tally.failed == failed_before:
        tally.fail(f"bazel test exited with {code}")


def end_to_end(tally, config):
    say("end-to-end tests")
    flags = [f"--config={config}"] if config else []
    if bazel("build", *flags, "//services/baton").returncode != 0:
        tally.fail("build of //services/baton")
        return
    report = ROOT / ".cache" / "e2e.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    # Not BATON_*: the processes under test refuse variables of that name that are no options.
    environment = dict(os.environ, SANITIZER=config or "")
    if config == "asan":  # As .bazelrc sets them for the unit tests.
        environment["ASAN_OPTIONS"] = "detect_leaks=1:halt_on_error=1:detect_odr_violation=0"
        environment["LSAN_OPTIONS"] = f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0"
        environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
    code = run(["/usr/bin/python3", "-m", "pytest", "-q", "-ra", "--durations=10", "-p", "no:cacheprovider",
                f"--junitxml={report}", "tests/e2e"], env=environment).returncode
    if not report.exists() or count_report(report, "tests/e2e", tally) == 0:
        tally.fail(f"tests/e2e ran no test (pytest exited with {code})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", choices=["asan", "tsan"], help="build with sanitizers")
    parser.add_argument("--only", choices=["lint", "unit", "e2e"], help="one part alone")
    arguments = parser.parse_args()
    start = time.monotonic()
    tally = Tally()
    if arguments.only in (None, "lint") and not arguments.config:
        lint(tally)
    if arguments.only in (None, "unit"):
        unit(tally, arguments.config)
    # Torch is not built for ThreadSanitizer, so whole processes don't run under it.
    if arguments.only in (None, "e2e") and arguments.config != "tsan":
        end_to_end(tally, arguments.config)
    for name in tally.failures:
        print(f"FAILED {name}")
    print(f"took {time.monotonic() - start:.0f} s", file=sys.stderr)
    skipped = f", {tally.skipped} skipped" if tally.skipped else ""
    print(f"{tally.passed} passed, {tally.failed} failed{skipped}", flush=True)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
