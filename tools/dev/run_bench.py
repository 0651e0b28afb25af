"""`./dev bench NAME [--json FILE]`: builds and runs one benchmark.

Every benchmark prints a table for people; with --json it also writes one flat JSON object. Figures of the clock want a
machine at rest: what other processes had of it while they were taken is told, and in the object as "busy".
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import rest
from bazel import ROOT, bazel

# name: (Bazel target, what it measures, kind). `google`: Google Benchmark, whose JSON is flattened
# here; `flat`: prints its flat JSON object on standard output itself; `script`: so does a Python script,
# which needs the target.
BENCHES = {
    "admission": ("//tests/bench:admission", "round trips until every stage knows a request, under load", "script"),
    "bound": ("//tests/bench:bound_bench", "planned chunks beside the closed-form bound, in virtual time", "flat"),
    "chain": ("//tests/bench:chain", "bound, timed, pipeline, simulate, admission and load: what they must reach",
              "script"),
    "checksum": ("//common/base:checksum_benchmark", "hashing activations, by the widest instructions", "google"),
    "colocated": ("//services/baton", "chains that decode: time between tokens, prefixes, beside a pair", "script"),
    "cpu": ("//services/baton", "a timed profile of this processor, fitted to real chunks and steps", "script"),
    "engine": ("//tests/bench:engine", "layers of large models beside the limits of the machine", "script"),
    "grammar": ("//tests/bench:grammar_bench", "masks and compiling of structured output, validity of random texts",
                "script"),
    "hops": ("//services/baton", "where the milliseconds go that `timed` finds added, by spans", "script"),
    "kernels": ("//common/engine:engine_benchmark", "kernels beside the FMA peak of the same run", "google"),
    "load": ("//services/baton", "short and long prompts under load, fair and first come, first served", "script"),
    "parallel": ("//tests/bench:parallel", "element types, the seam, row-parallel chunks (root)", "script"),
    "pipeline": ("//services/baton", "what a second stage on a core of its own gains, really computed", "script"),
    "router": ("//tests/bench:router", "the router's choice and heartbeats, 10,000 workers; TTFT by policy, simulated",
               "script"),
    "simulate": ("//services/baton", "what `baton simulate` predicts beside real processes", "script"),
    "tokenizer": ("//common/tokenizer:tokenizer_benchmark", "encode and decode MB/s", "google"),
    "serving": ("//services/baton", "TTFT and TPOT of local clusters, two stages beside one", "script"),
    "policy": ("//services/baton", "time to first token of 128K tokens under each --chunk-policy", "script"),
    "step": ("//tests/bench:step_bench", "what planner and stage cost per decode step", "flat"),
    "tuning": ("//services/baton", "chunk sizes, smoothing factors and the planner's own choice, simulated", "script"),
    "timed": ("//tests/bench:timed", "what a chain of real processes adds to computations of a known length", "script"),
    "tracing": ("//common/tracing:tracing_benchmark", "what a span costs: off, unsampled, sampled", "google"),
    "transport": ("//tests/bench:transport_bench", "data plane GB/s beside a cold memcpy of the same run", "flat"),
}
# In virtual time, or by arithmetic alone: what else the machine does moves none of their figures.
AT_ANY_TIME = {"bound", "load", "tuning"}


def build(target):
    """The command that runs the benchmark, without its arguments."""
    if bazel("build", target) != 0:
        raise SystemExit(f"{target} does not build")
    package, _, name = target[2:].partition(":")
    return [ROOT / "bazel-bin" / package / (name or package.rsplit("/", 1)[-1])]


def run_google(binary):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run([*binary, f"--benchmark_out={out.name}", "--benchmark_out_format=json"], check=True)
        report = json.load(open(out.name, encoding="utf-8"))
    flat = {}
    for row in report["benchmarks"]:
        for key, value in row.items():
            if isinstance(value, (int, float)) and key not in ("repetition_index", "threads", "family_index",
                                                               "per_family_instance_index", "repetitions"):
                flat[f"{row['name']}.{key}"] = value
    return flat


def run_flat(binary):
    """Its object and its exit status: one that failed has said why, and what it did measure counts."""
    ended = subprocess.run(binary, stdout=subprocess.PIPE, text=True, check=False)
    if "{" not in ended.stdout:
        raise SystemExit(ended.returncode or f"{binary[-1]} printed no figures")
    flat = json.loads(ended.stdout[ended.stdout.index("{"):])
    width = max(map(len, flat))
    for key, value in flat.items():
        print(f"{key:<{width}}  {value}")
    return flat, ended.returncode


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(BENCHES))
    parser.add_argument("--json", metavar="FILE", help="write the figures as one flat JSON object")
    arguments = parser.parse_args()
    if arguments.name is None:
        for name, (_, what, _) in sorted(BENCHES.items()):
            print(f"{name:<12} {what}{'' if name in AT_ANY_TIME else '; at rest'}")
        print("\nat rest: its figures want a machine that does nothing else")
        return 0
    target, _, kind = BENCHES[arguments.name]
    command = build(target)
    if kind == "script":
        command = ["/usr/bin/python3", ROOT / "tests" / "bench" / f"{arguments.name}_bench.py"]
    watch = rest.Watch()
    flat, status = (run_google(command), 0) if kind == "google" else run_flat(command)
    if arguments.name not in AT_ANY_TIME:
        verdict = watch.judge()
        flat.update(verdict.flat())
        if line := verdict.line("the figures above"):
            print(f"\n{line}", file=sys.stderr)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(flat, indent=1) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
