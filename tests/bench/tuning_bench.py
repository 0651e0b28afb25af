"""The case study of docs/tuning.md: time to first token of 128K tokens that have the chain for themselves, under fixed
chunk sizes, SGLang's rule with its smoothing factors, and the planner's own.

By `baton simulate`: the real cores in virtual time, with the costs of the profiles in common/engine/timed/profiles,
which the stages know from their sweep at the start (--chunk-sweep-ms), as SGLang's do. Prints one flat JSON object, of
seconds and of ratios to the closed-form bound of equal stages. `--svg DIRECTORY` draws the planner's and
the published rule's runs.
"""

import argparse
import json
import pathlib
import sys

from simulation import PROFILES, first_token_us, simulate
from timed_cluster import TOKENS, bound_us

# Name: profile, stages, SGLang's tuned base size for it.
CASES = {
    "qwen3_235b_p8": ("qwen3-235b-h20.json", 8, 18432),
    "qwen3_235b_p4": ("qwen3-235b-h20.json", 4, 18432),
    "deepseek_v31_p4": ("deepseek-v3.1-h20.json", 4, 12288),
}
PICTURES = {("qwen3_235b_p8", "optimal"): "tuning-optimal.svg",
            ("qwen3_235b_p8", "sglang_18432_0.8"): "tuning-sglang.svg"}


def rules(base):
    for size in (2048, 4096, 6144, 8192, 12288, 16384):
        yield f"fixed_{size}", ["--chunk-policy", "fixed", "--chunked-prefill-size", str(size)]
    for factor in ("0.6", "0.65", "0.75", "0.8", "0.85", "1.0"):
        yield f"sglang_{base}_{factor}", ["--chunk-policy", "sglang", "--chunked-prefill-size", str(base),
                                          "--dynamic-chunking-smooth-factor", factor]
    yield "optimal", []  # Nothing set.


def run(profile, stages, flags, svg=None):
    """Seconds to the first token."""
    drawn = ["--svg", svg] if svg else []
    _, rows = simulate(["--timed-profile", PROFILES / profile, "--pp-size", stages, "--kv-cache-tokens", "256k",
                        *flags, *drawn], [(0, TOKENS, 1)])
    return first_token_us(rows[0]) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=pathlib.Path, help="a directory for pictures")
    arguments = parser.parse_args()
    flat = {"tokens": TOKENS}
    for case, (profile, stages, base) in CASES.items():
        bound = bound_us(json.loads((PROFILES / profile).read_text(encoding="utf-8")), stages) / 1e6
        flat[f"{case}_bound_s"] = round(bound, 2)
        for rule, flags in rules(base):
            draw = arguments.svg is not None and (case, rule) in PICTURES
            seconds = run(profile, stages, flags, arguments.svg.resolve() / PICTURES[case, rule] if draw else None)
            flat[f"{case}_{rule}_s"] = round(seconds, 2)
            flat[f"{case}_{rule}_over_bound"] = round(seconds / bound, 3)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
