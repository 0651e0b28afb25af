"""What a chain of real processes adds to its computations: time to first token of 128K tokens through timed stages
beside what the profile's costs give by themselves.

Calls, transfers and buffers are real, activations of 7,168 bfloat16 a token; computations are waits as long as
common/engine/timed/profiles/qwen3-235b-h20.json says. Prints one flat JSON object, each figure the worse one of 4 and 8
stages:
- P2, the time to first token over the flow shop of the profile's costs, transfers and all;
- P3, the milliseconds that each chunk takes longer in each stage that it passes on the longest way through the chain
  (chunks + stages - 1 steps), beyond what its bytes take there at the bandwidth of the data plane. Chunks take longer
  the further on they are, so the longest way is every chunk on stage 0 and the last one through the others: only its
  transfers are not behind a computation. The bandwidth is that between two threads alone, of messages as large as the
  pieces in which activations travel and in memory like theirs, by what carries them in the cluster, in turn with the
  prompts; P3_pN_memcpy_gb_per_s is what plain copies of the same bytes by one thread had there.
"""

import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

from timed_cluster import ROOT, TOKENS, Client, played_profile, timed_cluster, timing_of

CHUNK = 4096
ROUNDS = 3
HIDDEN_SIZE = 7168  # The widest model's activations,
ROW_BYTES = 2 * HIDDEN_SIZE  # in bfloat16.
PIECE_KIB = 4096  # kActivationPieceBytes


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


def transport_of(cluster, stages):
    """What `--kv-transport auto` has taken between the stages: reads of the sender's memory, or TCP."""
    logs = [cluster.processes[f"prefill-0-{stage}"].log() for stage in range(1, stages)]
    pulls = ["its payloads are read there" in log for log in logs]
    if any(pulls) != all(pulls):
        raise SystemExit(f"stages differ in how they receive: {pulls}")
    return "pull" if all(pulls) else "tcp"


def bytes_per_us(transport):
    """(of the data plane, of memcpy) over loopback."""
    program = ROOT / "bazel-bin" / "tests" / "bench" / "transport_bench"
    output = json.loads(subprocess.run(
        [program, f"--transport={transport}", "--rounds=3", f"--kib={PIECE_KIB}"], check=True,
        env={**os.environ, "UCX_TLS": "tcp,self"}, stdout=subprocess.PIPE, text=True).stdout)
    name = f"{transport}_{PIECE_KIB}kib_gb_per_s"
    return output[name] * 1e3, output["memcpy_beside_" + name] * 1e3


def measure(client, profile, stages, prompt):
    """(TTFT, predicted by the profile, predicted by what the computations took), microseconds; and chunks."""
    timing = timing_of(client, prompt)
    layers = profile["model"]["layers"] // stages
    predicted = [[chunk_us(profile, layers, chunk.token_begin, chunk.token_count)] * stages
                 for chunk in timing.prefill.chunks]
    took = [[stage.compute_us for stage in chunk.stages] for chunk in timing.prefill.chunks]
    return timing.ttft_us, flow_shop_us(predicted), flow_shop_us(took), len(predicted)


def figures(cluster, client, profile, stages, drawn):
    """Medians of some prompts."""
    measure(client, profile, stages, [7] * (2 * CHUNK))  # A warm-up that is not counted.
    transport = transport_of(cluster, stages)
    rows = []
    for _ in range(ROUNDS):
        sent, copied = bytes_per_us(transport)
        ttft, predicted, took, chunks = measure(client, profile, stages, [drawn.randrange(4000) for _ in range(TOKENS)])
        steps = chunks + stages - 1
        hops_us = (stages - 1) * CHUNK * ROW_BYTES / sent
        rows.append({f"P2_p{stages}": ttft / predicted, f"P2_p{stages}_of_taken": ttft / took,
                     f"P3_p{stages}_ms": (ttft - predicted - hops_us) / steps / 1e3,
                     f"P3_p{stages}_with_transfers_ms": (ttft - predicted) / steps / 1e3,
                     f"P3_p{stages}_gb_per_s": sent / 1e3, f"P3_p{stages}_memcpy_gb_per_s": copied / 1e3,
                     f"ttft_s_p{stages}": ttft / 1e6})
    medians = {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0]}
    return {f"P3_p{stages}_transport": transport, **medians}


def main():
    flat = {"tokens": TOKENS, "chunk_tokens": CHUNK, "rounds": ROUNDS, "cores": len(os.sched_getaffinity(0))}
    drawn = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "profile.json"
        profile = played_profile(path, hidden_size=HIDDEN_SIZE)
        for stages in (4, 8):
            with timed_cluster(directory, path, stages, ["--chunk-policy", "fixed", "--chunked-prefill-size", CHUNK]) \
                    as cluster, Client(cluster.target) as client:
                flat.update(figures(cluster, client, profile, stages, drawn))
    flat["P2"] = max(flat["P2_p4"], flat["P2_p8"])
    flat["P3"] = max(flat["P3_p4_ms"], flat["P3_p8_ms"])
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
