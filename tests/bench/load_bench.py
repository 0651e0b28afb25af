"""What sharing plans is worth under load: prompts of 1K to 128K tokens at 80 % of what eight stages can do, shared
fairly and first come, first served.

By `baton simulate`: the real cores in virtual time, with the costs of common/engine/timed/profiles/qwen3-235b-h20.json.
Prints one flat JSON object. For each mix the 99th percentile of short prompts' time to first token (8,000 tokens or
fewer) and the mean of long ones' under both policies, seconds; load_short_gain: the former, first come over fair, of
the issue's mix; load_long_cost: the latter, fair over first come, the worst of all mixes.
"""

import json
import sys

from simulation import PROFILES, first_token_us, simulate

SHORT = 8000  # Tokens.
MIXES = {  # Prompt lengths with weights, and requests a second.
    "mix_3_to_1": ("1000-8000@3,30000-128000@1", 0.83),
    "mix_9_to_1": ("1000-8000@9,30000-128000@1", 1.95),
    "mix_30_to_1": ("1000-8000@30,30000-128000@1", 4.3),
    "even": ("1000-128000", 0.28),
}


def run(policy, lengths, rate):
    """(99th percentile of the short, mean of the long, share of the time that the last stage computes)."""
    report, rows = simulate(["--timed-profile", PROFILES / "qwen3-235b-h20.json", "--pp-size", 8,
                             "--kv-cache-tokens", "4m", "--requests", 3000, "--request-rate", rate,
                             "--prompt-tokens", lengths, "--output-tokens", 1, "--schedule-policy", policy])
    short, long = ([first_token_us(row) / 1e6 for row in rows if (row["prompt_tokens"] <= SHORT) == is_short]
                   for is_short in (True, False))
    stage = report["chains"][0]["stages"][-1]
    busy = stage["busy_us"] / sum(value for key, value in stage.items() if key.endswith("_us"))
    return sorted(short)[int(0.99 * len(short))], sum(long) / len(long), busy


def main():
    flat = {"stages": 8}
    for name, (lengths, rate) in MIXES.items():
        fair_short, fair_long, busy = run("fair", lengths, rate)
        first_short, first_long, _ = run("fcfs", lengths, rate)
        flat.update({
            f"{name}_busy": round(busy, 3),
            f"{name}_short_p99_s_fair": round(fair_short, 2), f"{name}_short_p99_s_fcfs": round(first_short, 2),
            f"{name}_long_mean_s_fair": round(fair_long, 2), f"{name}_long_mean_s_fcfs": round(first_long, 2),
            f"{name}_short_gain": round(first_short / fair_short, 2),
            f"{name}_long_cost": round(fair_long / first_long, 3)})
    flat["load_short_gain"] = flat["mix_3_to_1_short_gain"]
    flat["load_long_cost"] = max(flat[f"{name}_long_cost"] for name in MIXES)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
