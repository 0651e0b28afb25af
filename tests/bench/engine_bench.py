"""Layers of large models, element types, libtorch and llama.cpp beside the machine's own limits; one thread and two.

Runs one program after another, each of which gives a flat JSON object, and prints them as one. A row that has to
reach something is told with it on standard error. Kernels by themselves are `./dev bench kernels`.
"""

import json
import pathlib
import statistics
import subprocess
import sys

import llamacpp

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = [["layers_bench", "1"], ["layers_bench", "2"], ["dtype_bench"]]  # //tests/bench:engine builds them.
LIMITS = {"torch_vs_native_bfloat16": (">=", 1.0), "bf16_gemm_peak": (">=", 0.6), "moe_prefill_peak_512": (">=", 0.45),
          "moe_prefill_peak_2048": (">=", 0.45), "moe_decode_bw_1": (">=", 0.8), "moe_decode_bw_16": (">=", 0.8),
          "fp8_memory": ("<=", 1.05), "fp8_decode_gain": (">=", 1.6), "mla_decode_bw": (">=", 0.7),
          "vs_llamacpp_prefill": (">=", 2.0), "vs_llamacpp_decode": (">=", 1.1)}


def run(program, *arguments):
    output = subprocess.run([ROOT / "bazel-bin" / "tests" / "bench" / program, *arguments], check=True,
                            stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def main():
    flat = {}
    for part in PARTS:
        flat.update(run(*part))
    for name, ratios in (llamacpp.beside(lambda: run("dtype_bench", "alone")) or {}).items():
        key = f"vs_llamacpp_{name}"
        flat[key], flat[key + "_min"], flat[key + "_max"] = statistics.median(ratios), min(ratios), max(ratios)
    for key, (sign, limit) in LIMITS.items():
        if key not in flat:
            continue
        reached = flat[key] >= limit if sign == ">=" else flat[key] <= limit
        print(f"{key} {flat[key]:.3f}, must be {sign} {limit}: {'reached' if reached else 'MISSED'}", file=sys.stderr)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
