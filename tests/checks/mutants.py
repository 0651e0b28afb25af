"""Mutation testing: do the cores' unit tests, and 2,000 seeds of the simulation, notice small mistakes in the cores?

    ./dev check mutants [--seed S] [--sample N] [--json FILE] [--jobs J] [--directory DIR] [--only TEXT]
                        [--units-only] [--again FILE | --named]

Draws N mutants of services/*/core, common/kv and common/chunking by the seed, and judges each by every unit test of
these folders and by 2,000 seeds of the simulation (tools/mutants/README.md). Fails if both together notice less than
97 % of them, or the simulation alone less than 80 %, or if an entry of tools/mutants/equivalent.yaml is of no source
any more. --again judges once more, by the tests of today, what was alive in a --json of before; --named makes the
mistakes of tools/mutants/named.yaml, each of which both kinds of test must notice. Interrupted, it goes on where it
was when it is run again. 60 mutants take at most 40 minutes on two quiet cores.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import queue
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(ROOT / "tools" / "mutants")]

import debian_tools  # noqa: E402
import report  # noqa: E402
import yaml  # noqa: E402
from bazel import compiler_flags  # noqa: E402
from judge import SEEDS, Interrupted, Limits, Programs, by_simulation, by_units, measure  # noqa: E402
from mutations import Equivalents, Mutation, named, order  # noqa: E402
from state import State, cached  # noqa: E402
from tally import Tally, say  # noqa: E402
from workshop import Bench, BuildError, Workshop, alone, bazel_in  # noqa: E402

NEEDED_TOGETHER = 0.97
NEEDED_BY_SIMULATION = 0.80


def packages():
    cores = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("services/*/core"))
    return [*cores, "common/chunking", "common/kv"]


# ---- What can be mutated ----

def is_mutated(path):
    name = pathlib.Path(path).name
    return name.endswith((".cc", ".h")) and not (name.endswith(("_test.cc", "_fixture.h")) or name.startswith("test_"))


def _read_one(directory, path, flags):
    """The mutations of one file, in a process of its own."""
    import sites
    os.chdir(directory)
    found, calls = sites.find(path, pathlib.Path(path).read_bytes(), flags)
    return [[usr, vars(mutation)] for usr, mutation in found], calls


def read_sources(workshop, jobs, only):
    """Every mutation of the files with `only` in their paths."""
    from sites import what_only_checks_call
    tool = hashlib.sha256(b"".join((ROOT / "tools/mutants" / name).read_bytes()
                                   for name in ("mutations.py", "sites.py", "text.py")))
    paths = [str(path.relative_to(workshop.sources)) for package in packages()
             for path in sorted((workshop.sources / package).glob("*")) if is_mutated(path)]
    # Who calls what is a matter of one folder.
    folders = {os.path.dirname(path) for path in paths if only in path}
    paths = [path for path in paths if os.path.dirname(path) in folders]
    found, calls = [], {}
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        waiting = {}
        for path in paths:
            digest = tool.copy()
            for used in sorted(workshop.includes(path)):
                digest.update((workshop.sources / used).read_bytes())
            at = workshop.directory / "sites" / f"{path.replace('/', '%')}.{digest.hexdigest()[:16]}.json"
            flags = workshop.flags_of(path)
            waiting[path] = at, None if at.exists() else pool.submit(_read_one, workshop.sources, path, flags)
        for path, (at, task) in waiting.items():
            mutations, called = cached(at, lambda task=task: task.result())
            found += mutations
            calls.update(called)
    outside = {used for path in workshop.commands for used in workshop.includes(path)
               if os.path.dirname(used) != os.path.dirname(path)}
    checks = what_only_checks_call(calls, lambda declared: declared not in outside)
    return [Mutation(**fields) for usr, fields in found if usr not in checks and only in fields["path"]]


# ---- Judging ----

def judge(workshop, bench, programs, limits, mutation, simulated):
    """{"outcome": "judged" | "equivalent" | "refused", ...}."""
    verdict = {"outcome": bench.build(mutation), "units": None, "simulation": None}
    if verdict["outcome"] == "ok":
        verdict["outcome"] = "judged"
        verdict["units"] = by_units(bench, programs, limits, mutation.path)
        # What the simulation's binary does not contain it can't notice.
        if simulated and any(source in workshop.simulated for source in workshop.users(mutation.path)):
            verdict["simulation"] = by_simulation(bench, programs, limits)
    return verdict


class Sample:
    """Judges mutants, and remembers verdicts."""

    def __init__(self, workshop, limits, arguments):
        self._workshop, self._limits = workshop, limits
        self._size, self._jobs, self._simulated = 0, arguments.jobs, not arguments.units_only
        self._state = State(workshop.directory, workshop.fingerprint + ("" if self._simulated else "-units"))
        self._programs = Programs()
        self._benches = queue.SimpleQueue()
        self._sources = {}
        self.verdicts = []
        self.left_out = {"equivalent": 0, "refused": 0}

    def source(self, path):
        if path not in self._sources:
            self._sources[path] = (self._workshop.sources / path).read_bytes()
        return self._sources[path]

    def run(self, mutations, size):
        """In their order, until `size` of them count."""
        self._size = size
        for number in range(self._jobs):
            self._benches.put(Bench(self._workshop, f"bench-{number}"))
        pool = concurrent.futures.ThreadPoolExecutor(self._jobs)
        try:
            todo = iter(mutations)
            ahead = []
            while len(self.verdicts) < self._size:
                ahead += [pool.submit(self._judge, m) for _, m in zip(range(self._jobs - len(ahead)), todo)]
                if not ahead:
                    break
                self._take(ahead.pop(0).result())
        except KeyboardInterrupt:
            self._programs.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _judge(self, mutation):
        source = self.source(mutation.path)
        key = mutation.key(source)
        if key in self._state.verdicts:
            return self._state.verdicts[key]
        bench = self._benches.get()
        try:
            verdict = judge(self._workshop, bench, self._programs, self._limits, mutation, self._simulated)
        finally:
            self._benches.put(bench)
        verdict = {"key": key, "path": mutation.path, "line": mutation.line(source), "kind": mutation.kind,
                   "function": mutation.function, "diff": mutation.diff(source), **verdict}
        self._state.add(verdict)
        return verdict

    def _take(self, verdict):
        where = f"{verdict['path']}:{verdict['line']} {verdict['kind']}"
        if verdict["outcome"] != "judged":
            self.left_out[verdict["outcome"]] += 1
            return
        self.verdicts.append(verdict)
        print(f"[{len(self.verdicts)}/{self._size}] {where}: units: {verdict['units'] or 'SURVIVED'}"
              + (f"; simulation: {verdict['simulation'] or 'SURVIVED'}" if self._simulated else ""),
              file=sys.stderr, flush=True)


def alive(path, mutations, source):
    """The mutations of today that an earlier run's JSON calls alive."""
    lived = {(v["path"], v["kind"], v["function"], v["diff"]) for v in json.loads(path.read_text())["verdicts"]
             if not (v["units"] and v["simulation"])}
    found = [m for m in mutations if (m.path, m.kind, m.function) in {name[:3] for name in lived}]

    def changed(diff):
        """Its lines without their numbers, which what stands above moves."""
        return [line for line in diff.splitlines()[2:] if line[:1] in "+-"]
    wanted = {(name[:3], tuple(changed(name[3]))) for name in lived}
    return [m for m in found
            if ((m.path, m.kind, m.function), tuple(changed(m.diff(source(m.path))))) in wanted], len(wanted)


def parse():
    parser = argparse.ArgumentParser(prog="./dev check mutants", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", default="1", help="draws the sample (default: 1)")
    parser.add_argument("--sample", type=int, default=60, metavar="N", help="mutants to judge (default: 60)")
    parser.add_argument("--json", metavar="FILE", help="writes the counts and every verdict")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time (default: one per core)")
    parser.add_argument("--directory", default=ROOT / ".cache" / "mutants", type=pathlib.Path,
                        help="for copies, objects and verdicts (default: .cache/mutants)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose path has TEXT in it")
    parser.add_argument("--again", metavar="FILE", type=pathlib.Path,
                        help="no sample: the mutants that lived in this --json, units or simulation, as far as their "
                             "lines still stand")
    parser.add_argument("--named", action="store_true", help="no sample: the mistakes of tools/mutants/named.yaml")
    parser.add_argument("--units-only", action="store_true",
                        help="no simulation: what do the unit tests alone miss? Seconds for each mutant")
    return parser.parse_args()


def read_yaml(name):
    return yaml.safe_load((ROOT / "tools/mutants" / name).read_text(encoding="utf-8"))


def choose(arguments, mutations, equivalents, source):
    """(the mutants to judge, in their order; a sentence that says what they are)."""
    if arguments.named:
        drawn = named(read_yaml("named.yaml"), source)
        return drawn, f"judging the {len(drawn)} named mutants"
    if arguments.again is not None:
        found, lived = alive(arguments.again, mutations, source)
        drawn = [m for m in found if equivalents.why(m, source(m.path)) is None]
        return drawn, f"{lived} mutants lived; judging the {len(drawn)} that can be made today and are not equivalent"
    drawn = [m for m in order(mutations, arguments.seed) if equivalents.why(m, source(m.path)) is None]
    return drawn, (f"{len(mutations)} mutations at {len(drawn)} places; "
                   f"judging {arguments.sample} of seed {arguments.seed}")


def interrupt(*_):
    raise KeyboardInterrupt


def run(arguments, tally):
    lock = alone(arguments.directory)  # noqa: F841 (held to the end)
    workshop = Workshop(ROOT, arguments.directory.resolve(), bazel_in(ROOT, compiler_flags()))
    say("building the tree without mutants")
    workshop.prepare(packages(), simulated=not arguments.units_only)
    say("running every test without a mutant")
    limits = Limits(**cached(workshop.directory / "limits" / f"{workshop.fingerprint}.json",
                             lambda: vars(measure(workshop, Programs()))))
    mutations = []
    if not arguments.named:
        say("reading the sources")
        mutations = read_sources(workshop, arguments.jobs, arguments.only)
    sample = Sample(workshop, limits, arguments)
    equivalents = Equivalents(read_yaml("equivalent.yaml"))
    drawn, what = choose(arguments, mutations, equivalents, sample.source)
    say(what)
    sample.run(drawn, len(drawn) if arguments.named or arguments.again is not None else arguments.sample)
    of = report.counts(sample.verdicts)
    print(report.text(sample.verdicts, not arguments.units_only))
    print(f"left out: {sample.left_out['equivalent']} with the original's object code, "
          f"{sample.left_out['refused']} that do not compile")
    if arguments.json:
        report.write_json(arguments.json, sample.verdicts, {"seed": arguments.seed, "seeds": SEEDS, **sample.left_out})
    if arguments.again is not None:
        return  # Of those that lived any rate is a matter of which they are.
    if arguments.named:
        for verdict in sample.verdicts:
            tally.step(f"noticed by both: {verdict['function']}", verdict["units"] and verdict["simulation"])
        return
    tally.step(f"{NEEDED_TOGETHER:.0%} of the mutants are noticed", of["killed"] >= NEEDED_TOGETHER * of["mutants"] > 0)
    if not arguments.units_only:
        tally.step(f"{NEEDED_BY_SIMULATION:.0%} of the mutants are noticed by the simulation",
                   of["killed_by_simulation"] >= NEEDED_BY_SIMULATION * of["mutants"] > 0)
    if not arguments.only:
        sources = {m.path: sample.source(m.path) for m in mutations}
        for entry in equivalents.stale(mutations, sources):
            tally.fail(f"stale entry of equivalent.yaml: {json.dumps(entry)}")


def main():
    arguments = parse()
    tally = Tally()
    why = debian_tools.missing_modules({"clang.cindex": "python3-clang"})
    if why:
        tally.skip("mutants", why)
        return tally.finish()
    # SIGINT too: a shell lets it be ignored in what it starts in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        run(arguments, tally)
    except BuildError as error:
        print(error)
        tally.fail("the tree without mutants")
    except (KeyboardInterrupt, Interrupted):
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
