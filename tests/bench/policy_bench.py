"""What --chunk-policy is worth: time to first token of 128K tokens under each rule, beside the closed-form bound.

Through real processes, whose computations are waits as long as common/engine/timed/profiles/qwen3-235b-h20.json says.
Rules that learn what chunks cost have seen three prompts of other lengths before; fixed sizes are the sweep that a user
would run by hand. Prints one flat JSON object, of seconds, and of each as a ratio to the bound.
"""

import json
import os
import pathlib
import random
import sys
import tempfile

from timed_cluster import TOKENS, Client, bound_us, played_profile, timed_cluster, timing_of

LEARN_FROM = (50000, 3000, 20000)  # Tokens of the prompts before.
STAGES = 4
RULES = {
    "fixed_2048": ["--chunk-policy", "fixed", "--chunked-prefill-size", 2048],
    "fixed_4096": ["--chunk-policy", "fixed", "--chunked-prefill-size", 4096],
    "fixed_8192": ["--chunk-policy", "fixed", "--chunked-prefill-size", 8192],
    "fixed_16384": ["--chunk-policy", "fixed", "--chunked-prefill-size", 16384],
    "sglang_18432": ["--chunk-policy", "sglang", "--chunked-prefill-size", 18432,
                     "--dynamic-chunking-smooth-factor", "0.8"],
    "optimal": [],  # Nothing set.
}


def main():
    names = sys.argv[1:] or list(RULES)
    flat = {"tokens": TOKENS, "stages": STAGES, "cores": len(os.sched_getaffinity(0))}
    drawn = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "profile.json"
        profile = played_profile(path, hidden_size=64)  # Narrow, so that computing is all that takes time.
        flat["bound_s"] = round(bound_us(profile, STAGES) / 1e6, 3)
        for name in names:
            with timed_cluster(directory, path, STAGES, RULES[name]) as cluster, Client(cluster.target) as client:
                for tokens in (*LEARN_FROM, TOKENS):
                    timing = timing_of(client, [drawn.randrange(4000) for _ in range(tokens)])
            flat[f"{name}_s"] = round(timing.ttft_us / 1e6, 3)
            flat[f"{name}_over_bound"] = round(timing.ttft_us / bound_us(profile, STAGES), 4)
            flat[f"{name}_chunks"] = len(timing.prefill.chunks)
            print(f"{name:14} {flat[f'{name}_s']:8.3f} s  {flat[f'{name}_over_bound']:.4f} of the bound  "
                  f"{flat[f'{name}_chunks']} chunks", file=sys.stderr)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
