"""Planted bugs: does the simulation catch each mistake of tools/mutants/planted.yaml?

    ./dev check planted [--only NAME]... [--sample N [--seed S]] [--jobs J] [--directory DIR]

Applies each patch to a copy of the sources (tools/mutants/workshop.py), builds the simulation with it, and runs seeds 1
to 3,000 until one of them breaks a promise. A bug under which all of them keep every promise, or under which the
simulation crashes or hangs, is not caught. A patch costs one compiler call for each source that it changes.
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(ROOT / "tools" / "mutants")]

import yaml  # noqa: E402
from bazel import compiler_flags  # noqa: E402
from judge import Interrupted, Programs  # noqa: E402
from mutations import planted  # noqa: E402
from tally import Tally, say  # noqa: E402
from workshop import SIMULATION, Bench, BuildError, Workshop, alone, bazel_in  # noqa: E402

SEEDS = 3000
# Of the processor, for all seeds: several times what the cores as they are take on a slow machine.
LIMIT_S = 1800


def read_entries():
    return yaml.safe_load((ROOT / "tools/mutants/planted.yaml").read_text(encoding="utf-8"))


def read_bugs(sources):
    return planted(read_entries(), lambda path: (sources / path).read_bytes())


def catch(bench, programs, mutations, *options):
    """(caught, what happened). The simulation takes `options` beside its seeds."""
    built = bench.build(*mutations)
    if built != "ok":
        return False, {"equivalent": "the patch changes nothing", "refused": "the patch does not compile"}[built]
    code, output = programs.run(*bench.program(SIMULATION), ["--seed=1", f"--seeds={SEEDS}", *options], LIMIT_S)
    broken = re.search(r"^seed (\d+): (.*)$", output, re.MULTILINE)
    if code == 1 and broken:
        return True, f"seed {broken.group(1)}: {broken.group(2)[:160]}"
    if code == 0:
        return False, f"{SEEDS} seeds keep every promise"
    last = output.strip().splitlines()[-1:] or ["no output"]
    return False, f"the simulation ended with {code}: {last[0][:160]}"


def judge_all(workshop, bugs, jobs, tally):
    benches, programs = queue.SimpleQueue(), Programs()
    of_chains = {entry["name"] for entry in read_entries() if entry.get("chain")}
    for number in range(jobs):
        benches.put(Bench(workshop, f"bench-{number}"))

    def judge(name):
        bench = benches.get()
        try:
            return name, *catch(bench, programs, bugs[name], *(["--chain"] if name in of_chains else []))
        finally:
            benches.put(bench)

    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        for name, caught, what in pool.map(judge, bugs):
            print(f"{'caught' if caught else 'MISSED'} {name}: {what}", flush=True)
            tally.step(f"{name} is caught", caught)
    except KeyboardInterrupt:
        programs.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def parse():
    parser = argparse.ArgumentParser(prog="./dev check planted", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="this bug; may be given several times")
    parser.add_argument("--sample", type=int, metavar="N", help="N bugs that the seed draws (default: all)")
    parser.add_argument("--seed", default="1", help="of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="bugs at a time (default: one per core)")
    parser.add_argument("--directory", default=ROOT / ".cache" / "planted", type=pathlib.Path,
                        help="for copies and objects (default: .cache/planted)")
    arguments = parser.parse_args()
    if arguments.jobs < 1 or (arguments.sample is not None and arguments.sample < 1):
        parser.error("--jobs and --sample are at least 1")
    return parser, arguments


def choose(parser, arguments, bugs):
    for name in arguments.only or ():
        if name not in bugs:
            parser.error(f"no planted bug is called {name}; there are {', '.join(bugs)}")
    names = arguments.only or list(bugs)
    if arguments.sample is not None and arguments.sample < len(names):
        names = random.Random(arguments.seed).sample(names, arguments.sample)
    return {name: bugs[name] for name in names}


def main():
    parser, arguments = parse()
    tally = Tally()
    choose(parser, arguments, read_bugs(ROOT))  # A wrong name is told before anything is built.
    try:
        lock = alone(arguments.directory)  # noqa: F841 (held to the end)
        workshop = Workshop(ROOT, arguments.directory.resolve(), bazel_in(ROOT, compiler_flags()))
        say("building the simulation without a bug")
        workshop.prepare([], simulated=True)
        bugs = choose(parser, arguments, read_bugs(workshop.sources))
        say(f"planting {len(bugs)} bugs")
        judge_all(workshop, bugs, arguments.jobs, tally)
    except BuildError as error:
        print(error)
        tally.fail("the simulation without a bug")
    except (KeyboardInterrupt, Interrupted):
        print("interrupted", file=sys.stderr)
        return 130
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
