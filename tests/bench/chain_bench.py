"""The chain at its limit: every figure that says how close a chain comes to what its computations alone would take.

Runs one benchmark after the other, each of which gives a flat JSON object and can be run alone, and prints them as one.
A table on standard error says what each figure must reach, and of which the machine was too busy to tell: all but those
in virtual time want one at rest, and PART_busy says whether it was. `chain_bench.py PART...` runs only these.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import rest  # noqa: E402

PARTS = {  # Name: command, and the keys of the table that it gives.
    "bound": [ROOT / "bazel-bin" / "tests" / "bench" / "bound_bench"],
    **{name: ["/usr/bin/python3", HERE / f"{name}_bench.py"]
       for name in ("timed", "pipeline", "simulate", "admission", "load")},
}
AT_ANY_TIME = {"bound", "load"}  # In virtual time.
# Key: the part that measures it, sign, limit.
LIMITS = {
    "P1": ("bound", "<=", 1.005), "P1_plan_ms": ("bound", "<=", 20), "P1_others_over_optimal": ("bound", ">=", 1),
    "P2": ("timed", "<=", 1.02), "P3": ("timed", "<=", 0.3), "P2_real": ("pipeline", ">=", 0.9),
    "P11_mean": ("simulate", "<=", 0.02), "P11_p99": ("simulate", "<=", 0.04),
    "load_admission_rtts": ("admission", "<=", 2), "load_short_gain": ("load", ">=", 5),
    "load_long_cost": ("load", "<=", 1.1),
}


def run(part):
    """Its flat object; empty if it failed, which is said."""
    print(f"==> {part}", file=sys.stderr, flush=True)
    watch = rest.Watch()
    ended = subprocess.run(PARTS[part], stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        print(f"{part} ended with {ended.returncode}", file=sys.stderr)
        return {}
    flat = json.loads(ended.stdout[ended.stdout.index("{"):])
    if part not in AT_ANY_TIME:
        busy = watch.judge()
        flat.update(busy.flat(f"{part}_"))
        if line := busy.line(", ".join(key for key, (of, _, _) in LIMITS.items() if of == part)):
            print(line, file=sys.stderr)
    return flat


def verdict(key, flat):
    part, sign, limit = LIMITS[key]
    value = flat.get(key)
    if value is None:
        return f"{key:<24} {'-':>9}  {sign} {limit:<6} not measured: {part} failed"
    reached = value >= limit if sign == ">=" else value <= limit
    said = "reached" if reached else "MISSED"
    if flat.get(f"{part}_busy"):
        said += ", but the machine was busy" if reached else " on a busy machine, which tells little"
    return f"{key:<24} {value:>9.4g}  {sign} {limit:<6} {said}"


def main():
    parts = sys.argv[1:] or list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise SystemExit(f"there is no part {unknown[0]}; expected some of {', '.join(PARTS)}")
    flat = {}
    for part in parts:
        flat.update(run(part))
    asked = [key for key, (part, _, _) in LIMITS.items() if part in parts]
    print(f"\n{'key':<24} {'measured':>9}  must reach", file=sys.stderr)
    for key in asked:
        print(verdict(key, flat), file=sys.stderr)
    # The table's own keys first, also those that nothing could be said of.
    print(json.dumps({**{key: flat.get(key) for key in asked}, **flat}))
    return 0 if all(key in flat for key in asked) else 1


if __name__ == "__main__":
    sys.exit(main())
