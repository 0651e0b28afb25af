"""What the seam between services and engine costs and gains: the asynchronous call, element types, ranks.

Runs one program after another, each of which gives a flat JSON object, and prints them as one. A row that
has to reach something is told with it on standard error.
"""

import json
import os
import pathlib
import subprocess
import sys

import row_parallel_bench
import slice_bench

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ["seam_bench", "dtype_bench"]  # In tests/bench, which //tests/bench:parallel builds.
LIMITS = {"seam_cost": ("<=", 20), "decode_bf16_gain": (">=", 1.7), "bf16_memory": ("<=", 1.1),
          "rowpar_gain": (">=", 1.5), "rowpar_auto": (">=", 0.95), "slice_bytes": ("<=", 0.51)}


def main():
    flat = {}
    for part in PARTS:
        output = subprocess.run([ROOT / "bazel-bin" / "tests" / "bench" / part], check=True, stdout=subprocess.PIPE,
                                text=True).stdout
        flat.update(json.loads(output))
    flat.update(slice_bench.measure())
    if os.geteuid() == 0:
        flat.update(row_parallel_bench.measure()[0])
        small = row_parallel_bench.measure("0.6b")[0]
        flat.update({key.replace("rowpar", "rowpar_small"): value for key, value in small.items()})
    else:
        print("rowpar_gain, rowpar_auto: not measured, since network namespaces need root", file=sys.stderr)
    for key, (sign, limit) in LIMITS.items():
        if key not in flat:
            continue
        reached = flat[key] >= limit if sign == ">=" else flat[key] <= limit
        print(f"{key} {flat[key]:.3f}, must be {sign} {limit}: {'reached' if reached else 'MISSED'}",
              file=sys.stderr)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
