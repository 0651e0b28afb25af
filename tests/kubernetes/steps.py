"""Runs the steps of a scenario: times each, counts it, and shows once what a user would see of a failure."""

import contextlib
import time
import traceback

import processes
from tally import Tally


class Abandoned(Exception):
    """A step that the following ones need has failed."""


class Skip(Exception):
    """What a step needs is not on this machine; the message says what."""


EXPECTED = (TimeoutError, RuntimeError, OSError, AssertionError, LookupError, ValueError, processes.Died)


class Steps:
    def __init__(self, only=()):
        self.tally = Tally()
        self.only = only
        self.begun = time.monotonic()

    def wanted(self, name):
        return not self.only or any(word in name for word in self.only)

    @contextlib.contextmanager
    def step(self, name, diagnose=None, needed=False):
        """`diagnose()` is text for the report of a failure; `needed`: without it there is no going on."""
        print(f"==> {name}", flush=True)
        started = time.monotonic()
        try:
            yield
        except Skip as why:
            self.tally.skip(name, str(why))
        except EXPECTED as error:
            self._report(name, error, time.monotonic() - started, diagnose)
            if needed:
                raise Abandoned(name) from error
        else:
            self.tally.step(name, True)
            print(f"    ok, {time.monotonic() - started:.1f} s", flush=True)

    def _report(self, name, error, seconds, diagnose):
        self.tally.step(name, False)
        print(f"    FAILED after {seconds:.1f} s: {error}", flush=True)
        if not isinstance(error, (TimeoutError, RuntimeError, AssertionError)):
            traceback.print_exception(error)
        if diagnose is not None:
            try:
                print("\n".join("    | " + line for line in diagnose().splitlines()), flush=True)
            except EXPECTED as other:
                print(f"    (nothing more is known: {other})", flush=True)

    def note(self, text):
        print("\n".join("    " + line for line in text.splitlines()), flush=True)
