"""The router's choice: what it takes, and what it gains.

choice_us, choice_growth, heartbeat_us: the core's times at 10,000 workers, and over 64 (router_bench.cc).
cost_gain_*: `baton simulate` of a trace in the form of Mooncake's, whose prompts share system prompts and grow turn by
turn: the mean time to first token of --load-balance-policy cost over that of another policy. Below 1 cost is sooner.
"""

import json
import random
import subprocess
import sys

from simulation import PROFILES, ROOT, first_token_us, simulate

CLUSTER = ["--timed-profile", PROFILES / "qwen3-235b-h20.json", "--prefill-chains", 4, "--pp-size", 4, "--decodes", 4,
           "--kv-cache-tokens", 1 << 20, "--decode-kv-cache-tokens", 1 << 22, "--max-running-requests", 512]
BLOCK = 512
SECONDS = 60
SESSIONS_PER_SECOND = 4
SYSTEM_PROMPTS = 24
POLICIES = ("cost", "cache_aware", "least_load", "round_robin")


def conversations(seed=31):
    """Rows of a trace: arrival, ms; tokens of prompt and output; hashes of the prompt's blocks."""
    drawn = random.Random(seed)
    fresh = iter(range(10 ** 6, 10 ** 9))
    systems = [[next(fresh) for _ in range(drawn.randrange(1, 12))] for _ in range(SYSTEM_PROMPTS)]
    popular = [1 / (1 + rank) for rank in range(SYSTEM_PROMPTS)]
    rows, at = [], 0.0
    while at < SECONDS * 1e3:
        at += drawn.expovariate(SESSIONS_PER_SECOND / 1e3)
        hashes, turn_at = list(drawn.choices(systems, popular)[0]), at
        for _ in range(drawn.randrange(1, 8)):
            hashes += [next(fresh) for _ in range(drawn.randrange(1, 14))]
            rows.append((round(turn_at, 3), BLOCK * len(hashes), drawn.randrange(16, 128), list(hashes)))
            turn_at += 1e3 * drawn.uniform(2, 10)
    return sorted(rows, key=lambda row: row[0])


def main():
    core = subprocess.run([ROOT / "bazel-bin/tests/bench/router_bench"], check=True, stdout=subprocess.PIPE, text=True)
    flat = json.loads(core.stdout)
    trace = conversations()
    flat["requests"] = len(trace)
    means = {}
    for policy in POLICIES:
        _, rows = simulate([*CLUSTER, "--load-balance-policy", policy], trace)
        means[policy] = sum(map(first_token_us, rows)) / len(rows) / 1e3
        flat[f"ttft_{policy}_ms"] = round(means[policy], 2)
    for policy in POLICIES[1:]:
        flat[f"cost_gain_{policy}"] = round(means["cost"] / means[policy], 3)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
