"""The end-to-end tests: which modules of them are due, and running these side by side.

Each module of tests/e2e is a pytest of its own, on one of a few lanes: most of their time is waiting
(for leases, restarts, deadlines), so lanes are more than cores. A module that has passed is not run again
until something that it runs or reads has changed, as Bazel does with unit tests. A skipped case is no
pass: what it needs may be there next time.
"""

import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import time
import xml.etree.ElementTree as ElementTree

from bazel import ROOT
from tally import say

BINARIES = ("services/baton/baton", "examples/cpp/generate", "common/engine/torch/*.so")
# Read by every module. The other top-level folders are read by those modules that name them.
COMMON = re.compile(r"models/|proto/.*\.proto$|tests/oracle/.*\.py$|tools/cluster/.*\.py$|tools/\w+\.supp$|"
                    r"tests/e2e/(?!test_)")
NEVER = re.compile(r"tests/|tools/(?!demo/|observe/)|common/|services/|third_party/|.*\.(cc|h|bazel|bzl)$")
MAX_LANES = 6
# Each took a minute and more: a clean clone, which knows no times, starts with them lest one of them ends alone.
LONG = ("test_experts", "test_parity", "test_tensor_parallel", "test_chaos", "test_observe", "test_decode_ranks",
        "test_kubernetes_discovery", "test_memory_plan")


def module_paths():
    return sorted((ROOT / "tests" / "e2e").glob("test_*.py"))


def repository_files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True)
    return sorted(listed.stdout.split("\n"))


class Inputs:
    """Hashes of all that a module runs and reads, but for Debian's packages, as Bazel has it."""

    def __init__(self, config):
        self.common = hashlib.sha256(str(config).encode())
        self.digests = {}
        self.files = [path for path in repository_files() if path and (ROOT / path).is_file()]
        for pattern in BINARIES:
            for path in sorted((ROOT / "bazel-bin").glob(pattern)):
                self._add(self.common, path)
        for path in self.files:
            if COMMON.match(path):
                self._add(self.common, ROOT / path)

    def _add(self, state, path):
        if path not in self.digests:
            self.digests[path] = hashlib.sha256(path.read_bytes()).digest()
        state.update(f"{path.relative_to(ROOT)} ".encode() + self.digests[path])

    def of(self, module):
        state = self.common.copy()
        self._add(state, module)
        words = set(re.findall(r"\w+", module.read_text(encoding="utf-8")))
        for path in self.files:
            folder, slash, _ = path.partition("/")
            if slash and folder in words and not NEVER.match(path) and not COMMON.match(path):
                self._add(state, ROOT / path)
        return state.hexdigest()


class Passed:
    """{module: what it was run on, and how many cases passed}, kept between runs."""

    def __init__(self, path):
        self.path = path
        try:
            self.modules = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.modules = {}

    def cases(self, name, inputs):
        """Of a module that has passed on just these; None if it has not."""
        known = self.modules.get(name, {})
        return known.get("passed") if known.get("inputs") == inputs else None

    def seconds(self, name):
        """How long its last run took. A module without one counts as endless if it is a long one, else as a minute."""
        return self.modules.get(name, {}).get("seconds", float("inf") if name in LONG else 60)

    def note(self, name, **what):
        self.modules[name] = what
        self.path.parent.mkdir(exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.modules, indent=1, sort_keys=True), encoding="utf-8")
        new.replace(self.path)


class Result:
    """One module's run: its cases, and what it wrote."""

    def __init__(self, name, code, report, log, seconds):
        self.name, self.code, self.log, self.seconds = name, code, log, seconds
        self.passed, self.failures, self.skips = 0, [], []
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
        for case in cases:
            label = f"tests/e2e {case.get('classname', '')}.{case.get('name', '')}"
            if case.find("failure") is not None or case.find("error") is not None:
                self.failures.append(label)
            elif case.find("skipped") is not None:
                self.skips.append((label, case.find("skipped").get("message", "")))
            else:
                self.passed += 1
        if code != 0 and not self.failures:
            self.failures.append(f"{name}: pytest exited with {code}")

    @property
    def clean(self):
        return self.passed > 0 and not self.failures and not self.skips

    def count(self, tally):
        tally.passed += self.passed
        for failure in self.failures:
            tally.fail(failure)
        for label, why in self.skips:
            tally.skip(label, why)
        if self.failures:
            print(self.log, flush=True)
        say(f"{self.name}: {self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped "
            f"in {self.seconds:.0f} s")


def run_pytest(name, arguments, folder, environment=None):
    """The Result of one pytest; its report and log are folder/name.xml and folder/name.log."""
    folder.mkdir(parents=True, exist_ok=True)
    report, log = folder / f"{name}.xml", folder / f"{name}.log"
    report.unlink(missing_ok=True)
    begun = time.monotonic()
    with open(log, "wb") as output:
        code = subprocess.run(["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-ra",
                               "--durations=5", "--durations-min=5", f"--junitxml={report}",
                               "-o", "junit_family=xunit1",  # Which has properties.
                               *arguments],
                              cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
                              check=False).returncode
    return Result(name, code, report, log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - begun)


def run_module(module, environment):
    return run_pytest(module.stem, [module, "-m", "not registry"], ROOT / ".cache" / "e2e", environment)


def run_all(tally, config, environment, again):
    """Counts every case of tests/e2e; with `again` nothing counts as passed before."""
    inputs, passed = Inputs(config), Passed(ROOT / ".cache" / f"e2e-{config or 'plain'}.json")
    hashes = {module: inputs.of(module) for module in module_paths()}
    due = []
    for module, state in hashes.items():
        cases = None if again else passed.cases(module.stem, state)
        if cases is None:
            due.append(module)
        else:
            tally.passed += cases
    if len(due) < len(hashes):
        say(f"end-to-end tests: {len(hashes) - len(due)} of {len(hashes)} modules have passed on just these inputs; "
            "--only=e2e runs them again")
    due.sort(key=lambda module: (-passed.seconds(module.stem), module.stem))
    # Sanitizers multiply memory and time: one after the other.
    lanes = 1 if config else min(MAX_LANES, 1 + (os.cpu_count() or 1))
    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        runs = {pool.submit(run_module, module, environment): module for module in due}
        for done in concurrent.futures.as_completed(runs):
            result = done.result()
            result.count(tally)
            passed.note(result.name, inputs=hashes[runs[done]] if result.clean else "", passed=result.passed,
                        seconds=result.seconds)
