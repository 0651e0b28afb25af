"""Counting, which every runner of `./dev` shares.

A run closes with one line, `N passed, N failed, N skipped`, and exits with 1 if anything failed.
"""

import dataclasses
import sys


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

    def skip(self, name, why):
        self.skipped += 1
        print(f"SKIPPED {name}: {why}", file=sys.stderr, flush=True)

    def finish(self):
        """Prints the closing line; the exit code of the run."""
        for name in self.failures:
            print(f"FAILED {name}")
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed else 0


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)
