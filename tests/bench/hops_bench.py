"""Where the milliseconds go that a chain adds to its computations: prompts as timed_bench.py's, by their spans.

Prints one flat JSON object, of 4 and of 8 stages: medians of the prompts, for hops of all hops that a prompt's last
chunk takes, which alone are not behind a computation.
- hops_start_ms_pN: from the request's arrival at the router to its first chunk on stage 0;
- hops_between_ms_pN: what stage 0's chunks and the last chunk's steps took beyond the profile, and what lay between
  stage 0's: late wake-ups and the way from one computation to the next;
- hops_hop_ms_pN: from the end of the last chunk on a stage to its beginning on the next one; hops_first_hop_ms_pN:
  from stage 0, where the chunk before has just gone;
- hops_tail_ms_pN: from the end of the last computation to the end of the request, which has one token.
Every process exports its spans to this one meanwhile, so that the sum is somewhat more than timed_bench.py's.
`--head-dim N` (8): the elements of a token's keys in each layer, of 96: what KV is sent beside the activations.
"""

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile

from timed_bench import CHUNK, HIDDEN_SIZE, chunk_us, measure
from timed_cluster import ROOT, TOKENS, Client, clusters, played_profile, timed_cluster

sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from otlp_collector import Collector  # noqa: E402

ROUNDS = 5


def steps(spans, stages):
    """By stage, a prompt's chunks in their order; empty for another request."""
    chunks = [[] for _ in range(stages)]
    for span in spans:
        if span.name == "prefill chunk":
            chunks[span.attributes["baton.stage"]].append(span)
    for of_stage in chunks:
        of_stage.sort(key=lambda span: span.attributes["baton.chunk.token_begin"])
    return chunks if len(chunks[0]) == TOKENS // CHUNK else []


def parts(spans, chunks, profile):
    """Milliseconds: (start, between, hops, tail)."""
    begin_ns, end_ns = min(span.begin_ns for span in spans), max(span.end_ns for span in spans)
    first, layers = chunks[0], profile["model"]["layers"] // len(chunks)
    predicted_us = sum(chunk_us(profile, layers, CHUNK * index, CHUNK) for index in range(len(first)))
    predicted_us += (len(chunks) - 1) * chunk_us(profile, layers, TOKENS - CHUNK, CHUNK)
    took_ns = first[-1].end_ns - first[0].begin_ns
    took_ns += sum(stage[-1].end_ns - stage[-1].begin_ns for stage in chunks[1:])
    hops = [(after[-1].begin_ns - before[-1].end_ns) / 1e6 for before, after in zip(chunks, chunks[1:])]
    return ((first[0].begin_ns - begin_ns) / 1e6, took_ns / 1e6 - predicted_us / 1e3, hops,
            (end_ns - chunks[-1][-1].end_ns) / 1e6)


def figures(stages, head_dim):
    drawn = random.Random(1)
    with tempfile.TemporaryDirectory() as directory, Collector() as collector:
        path = pathlib.Path(directory) / "profile.json"
        profile = played_profile(path, hidden_size=HIDDEN_SIZE, head_dim=head_dim)
        flags = ["--chunk-policy", "fixed", "--chunked-prefill-size", CHUNK]
        with timed_cluster(directory, path, stages, flags, collector.endpoint) as cluster, \
                Client(cluster.target) as client:
            for _ in range(ROUNDS):
                measure(client, profile, stages, [drawn.randrange(4000) for _ in range(TOKENS)])
            clusters.wait_until(cluster.idle, 20, "every page to be free")
        # Processes that have ended have sent what they had.
        traces = [collector.spans(trace) for trace in {span.trace for span in collector.spans()}]
    rows = [parts(spans, chunks, profile) for spans in traces if (chunks := steps(spans, stages))]
    assert len(rows) == ROUNDS, len(rows)
    start, between, hops, tail = zip(*rows)
    first_hop = [of_prompt[0] for of_prompt in hops]
    hops = [hop for of_prompt in hops for hop in of_prompt]
    flat = {"start": start, "between": between, "hop": hops, "first_hop": first_hop, "tail": tail}
    return {f"hops_{name}_ms_p{stages}": round(statistics.median(values), 2) for name, values in flat.items()} \
        | {f"hops_slowest_hop_ms_p{stages}": round(max(hops), 2)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--head-dim", type=int, default=8)
    head_dim = parser.parse_args().head_dim
    flat = {"tokens": TOKENS, "chunk_tokens": CHUNK, "head_dim": head_dim, "rounds": ROUNDS}
    for stages in (4, 8):
        flat.update(figures(stages, head_dim))
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
