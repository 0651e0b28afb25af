"""Time to first token and between tokens of real local clusters, one stage beside two, interleaved.

Prints one flat JSON object: medians with minimum and maximum, and the ratio of the two, pair by pair.
The same document, the same seed and the same chunk size for both; every process computes on one thread.
"""

import json
import pathlib
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "cluster"))

import cluster as clusters  # noqa: E402
from client import Client  # noqa: E402

MODEL = ROOT / "models" / "austen"
ROUNDS = 9
NEW_TOKENS = 64
CHUNK = 512


def measure(client, prompt):
    """(TTFT ms, TPOT ms, whole prefill's compute ms of the busiest stage) of one request."""
    answer = client.generate(prompt, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    if answer.error is not None:
        raise SystemExit(f"the request failed: {answer.error}")
    timing = answer.finished.timing
    stages = {}
    for chunk in timing.prefill.chunks:
        for stage in chunk.stages:
            stages[stage.stage] = stages.get(stage.stage, 0) + stage.compute_us
    return (timing.ttft_us / 1e3, (timing.e2e_us - timing.ttft_us) / 1e3 / (NEW_TOKENS - 1),
            sum(stages.values()) / 1e3)


def spread(flat, key, values):
    flat[key] = round(statistics.median(values), 3)
    flat[key + "_min"], flat[key + "_max"] = round(min(values), 3), round(max(values), 3)


def main():
    prompt = (MODEL / "demo_prompt.txt").read_text(encoding="utf-8")
    results = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        options = {"flags": ["--disable-radix-cache"], "prefill_flags": ["--chunked-prefill-size", CHUNK]}
        with clusters.Cluster(str(MODEL), one, stages=1, **options) as single, \
                clusters.Cluster(str(MODEL), two, stages=2, **options) as pair, \
                Client(single.target) as client_one, Client(pair.target) as client_two:
            clients = {1: client_one, 2: client_two}
            for client in clients.values():  # A warm-up that is not counted.
                measure(client, prompt)
            for _ in range(ROUNDS):
                for stages, client in clients.items():
                    results[stages].append(measure(client, prompt))
    flat = {"rounds": ROUNDS, "chunk_tokens": CHUNK}
    for stages, rows in results.items():
        spread(flat, f"ttft_ms_p{stages}", [row[0] for row in rows])
        spread(flat, f"tpot_ms_p{stages}", [row[1] for row in rows])
        spread(flat, f"compute_ms_p{stages}", [row[2] for row in rows])
    spread(flat, "ttft_speedup_p2", [a[0] / b[0] for a, b in zip(results[1], results[2])])
    spread(flat, "ttft_over_compute_p1", [row[0] / row[2] for row in results[1]])
    print(json.dumps(flat, indent=1))


if __name__ == "__main__":
    main()
