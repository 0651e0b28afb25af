"""What a chain of real processes adds to its computations: time to first token of 128K tokens through timed stages
beside what the profile's costs give by themselves.

Calls, transfers and buffers are real, activations of 7,168 bfloat16 a token; computations are waits as long as
common/engine/timed/profiles/qwen3-235b-h20.json says. Prints one flat JSON object: P2, the time to first token over the
prediction, and P3, the milliseconds that each chunk takes longer in each stage that it passes on the longest way
through the chain (chunks + stages - 1 steps), the transfer of its activations included; each the worse one of 4 and 8
stages.
"""

import json
import os
import pathlib
import random
import statistics
import sys
import tempfile

from timed_cluster import TOKENS, Client, played_profile, timed_cluster, timing_of

CHUNK = 4096
ROUNDS = 3


def chunk_us(profile, layers, prefix, tokens):
    cost, share = profile["prefill"], layers / profile["model"]["layers"]
    return cost["stage_overhead_us"] + share * (
        cost["overhead_us"] + cost["token_us"] * tokens
        + cost["attention_us"] * (2 * prefix * tokens + tokens * tokens))


def flow_shop_us(rows):
    """When the last stage is done with the last chunk; rows[chunk][stage] is what it takes there."""
    ends = [0.0] * len(rows[0])
    for row in rows:
        before = 0.0
        for stage, takes in enumerate(row):
            before = ends[stage] = max(before, ends[stage]) + takes
    return ends[-1]


def measure(client, profile, stages, prompt):
    """(TTFT, predicted by the profile, predicted by what the computations took), microseconds; and chunks."""
    timing = timing_of(client, prompt)
    layers = profile["model"]["layers"] // stages
    predicted = [[chunk_us(profile, layers, chunk.token_begin, chunk.token_count)] * stages
                 for chunk in timing.prefill.chunks]
    took = [[stage.compute_us for stage in chunk.stages] for chunk in timing.prefill.chunks]
    return timing.ttft_us, flow_shop_us(predicted), flow_shop_us(took), len(predicted)


def main():
    flat = {"tokens": TOKENS, "chunk_tokens": CHUNK, "rounds": ROUNDS, "cores": len(os.sched_getaffinity(0))}
    drawn = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "profile.json"
        profile = played_profile(path, hidden_size=7168)  # The widest model's activations.
        for stages in (4, 8):
            with timed_cluster(directory, path, stages, ["--chunk-policy", "fixed", "--chunked-prefill-size", CHUNK]) \
                    as cluster, Client(cluster.target) as client:
                measure(client, profile, stages, [7] * (2 * CHUNK))  # A warm-up that is not counted.
                rows = [measure(client, profile, stages, [drawn.randrange(4000) for _ in range(TOKENS)])
                        for _ in range(ROUNDS)]
            steps = rows[0][3] + stages - 1
            flat[f"P2_p{stages}"] = round(statistics.median(ttft / predicted for ttft, predicted, _, _ in rows), 4)
            flat[f"P2_p{stages}_of_taken"] = round(statistics.median(ttft / took for ttft, _, took, _ in rows), 4)
            flat[f"P3_p{stages}_ms"] = round(
                statistics.median((ttft - predicted) / steps / 1e3 for ttft, predicted, _, _ in rows), 3)
            flat[f"ttft_s_p{stages}"] = round(statistics.median(ttft for ttft, _, _, _ in rows) / 1e6, 3)
    flat["P2"] = max(flat["P2_p4"], flat["P2_p8"])
    flat["P3"] = max(flat["P3_p4_ms"], flat["P3_p8_ms"])
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
