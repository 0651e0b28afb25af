"""Judges mutants: by the cores' unit tests and by 2,000 seeds of the simulation, each on its own.

Both always run, since the question is not only whether somebody notices but who. Each stops at its first failure. A
program is ended after a multiple of the processor time that the unmutated one takes, which other work on the machine
does not change, and in a limited address space.
"""

import dataclasses
import os
import re
import resource
import signal
import subprocess
import threading

from workshop import SIMULATION, BuildError, file_name

SEEDS = 2000
# A mutant that hangs costs the time limit of one batch and not of all seeds.
SEEDS_PER_BATCH = 250
MEMORY_BYTES = 4 << 30
SLOWER = 4  # Times the unmutated program's time, and then some seconds.
SOME_SECONDS = 6
# For a program that waits instead of computing; generous, since the machine may do other work.
WALL_S = 900


class Interrupted(Exception):
    """Somebody pressed Ctrl-C: what a program that was killed said is no verdict."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Processor time in seconds of each program, as the unmutated tree took it."""

    tests: dict  # {label: seconds}
    batches: list  # Of the simulation.


class Programs:
    """Runs programs and can end all of them."""

    def __init__(self):
        self._lock = threading.Lock()
        self._running = set()
        self._stopped = False

    def stop(self):
        with self._lock:
            self._stopped = True
            for program in self._running:
                program.kill()

    def run(self, program, library, arguments, cpu_s):
        """(exit code, output). The code is negative for a signal, as subprocess has it."""
        environment = {"LD_LIBRARY_PATH": str(library), "PATH": os.environ.get("PATH", "")}
        limits = ["prlimit", f"--as={MEMORY_BYTES}", f"--cpu={int(cpu_s) + 1}", "--core=0", "--"]
        with self._lock:
            if self._stopped:
                raise Interrupted
            # A session of its own: a terminal's Ctrl-C is for us, and an ended program would look like a killed mutant.
            child = subprocess.Popen([*limits, program, *arguments], env=environment, cwd=library,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     start_new_session=True)
            self._running.add(child)
        try:
            output, _ = child.communicate(timeout=WALL_S)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        finally:
            with self._lock:
                self._running.discard(child)
        if self._stopped:
            raise Interrupted
        return child.returncode, output.decode(errors="replace")


_QUIET = ["--gtest_brief=1", "--gtest_fail_fast"]


def _batch(number):
    return [f"--seed={1 + number * SEEDS_PER_BATCH}", f"--seeds={SEEDS_PER_BATCH}"]


def measure(workshop, programs):
    """The limits, from a run of everything without a mutant, one program at a time; BuildError if something fails."""
    def run(label, arguments):
        before = _processor_s()
        code, output = programs.run(workshop.base / file_name(label), workshop.base, arguments, WALL_S)
        if code != 0:
            raise BuildError(f"{label} {' '.join(arguments)} fails without a mutant:\n{output[-2000:]}")
        return round(_processor_s() - before, 2)

    tests = {label: run(label, _QUIET) for label in workshop.executables if label != SIMULATION}
    batches = range(SEEDS // SEEDS_PER_BATCH if SIMULATION in workshop.executables else 0)
    return Limits(tests, [run(SIMULATION, _batch(number)) for number in batches])


def _processor_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_units(bench, programs, limits, path):
    """What noticed the mutant that stands on the bench, or None. Tests of the mutated package come first."""
    package = "//" + os.path.dirname(path) + ":"
    for label in sorted(limits.tests, key=lambda label: (not label.startswith(package), label)):
        code, output = programs.run(*bench.program(label), _QUIET, _allowed_s(limits.tests[label]))
        if code != 0:
            failed = re.search(r"\[  FAILED  \] (\S+?)(?:,| \(|$)", output, re.MULTILINE)
            return f"{label} {failed.group(1) if failed else _end(code, output)}"
    return None


def by_simulation(bench, programs, limits):
    """The first broken promise, or None."""
    for number, seconds in enumerate(limits.batches):
        code, output = programs.run(*bench.program(SIMULATION), _batch(number), _allowed_s(seconds))
        if code == 0:
            continue
        broken = re.search(r"^seed \d+: .*$", output, re.MULTILINE)
        seeds = f"seeds {1 + number * SEEDS_PER_BATCH} to {(number + 1) * SEEDS_PER_BATCH}"
        return broken.group(0)[:200] if broken else f"{seeds}: {_end(code, output)}"
    return None


def _allowed_s(unmutated_s):
    return SLOWER * unmutated_s + SOME_SECONDS


def _end(code, output):
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "took too long"
    last = output.strip().splitlines()[-1] if output.strip() else "no output"
    return f"ended with {code}: {last[:160]}"
