"""What a second stage gains with real computations: a stage on one core beside two stages on a core each.

models/austen, a prompt of 8,192 tokens, one thread a stage, the default chunk policy, for which both clusters have
learned what chunks cost; rounds take turns. Prints one flat JSON object. P2_real: how many times sooner two stages have
the first token, over what the closed-form bound allows: the computations of the one stage, over the bound of two equal
stages that cost half of it each, as fitted to chunks of several sizes.
"""

import contextlib
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile

import cost_fit
from timed_cluster import Client, MODEL, clusters, timing_of

TOKENS = 8192
CHUNKS = (256, 512, 1024, 2048)  # Of the prompts that costs are fitted to.
ROUNDS = 9


def pinned(directory, stages, cores, flags=()):
    """A cluster whose stage i computes on cores[i]; router and decode service run where there is room."""
    logs = pathlib.Path(directory) / f"stages-{stages}-{'-'.join(map(str, flags))}"
    logs.mkdir()
    cluster = clusters.Cluster(str(MODEL), logs, stages=stages, flags=["--disable-radix-cache"], prefill_flags=flags)
    for stage in range(stages):
        process = cluster.processes[f"prefill-0-{stage}"]
        process.arguments = ["taskset", "--cpu-list", str(cores[stage]), *process.arguments]
    return cluster


def prompt(drawn):
    return [drawn.randrange(4000) for _ in range(TOKENS)]


def compute_us(timing):
    return sum(stage.compute_us for chunk in timing.prefill.chunks for stage in chunk.stages)


def fitted_cost(directory, core, drawn):
    """(overhead, token, attention) of the model in one stage, microseconds: cost_fit.chunk_terms."""
    rows = []
    for size in CHUNKS:
        flags = ["--chunk-policy", "fixed", "--chunked-prefill-size", size]
        with pinned(directory, 1, [core], flags) as cluster, Client(cluster.target) as client:
            for turn in range(3):
                chunks = timing_of(client, prompt(drawn)).prefill.chunks
                if turn > 0:  # The first one warms up.
                    rows += [(cost_fit.chunk_terms(c.token_begin, c.token_count), c.stages[0].compute_us)
                             for c in chunks]
    return cost_fit.by_ratios(*zip(*rows))


def bound_us(cost, stages):
    """As in common/chunking/flow_shop.h: equal chunks in time, as many as are best."""
    overhead, token, attention = (value / stages for value in cost)
    work = token * TOKENS + attention * TOKENS * TOKENS
    return (work ** 0.5 + ((stages - 1) * overhead) ** 0.5) ** 2


def measure():
    drawn = random.Random(1)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    ratios, times = [], {1: [], 2: []}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        cost = fitted_cost(directory, cores[0], drawn)
        running = {stages: stack.enter_context(pinned(directory, stages, cores)) for stages in times}
        clients = {stages: stack.enter_context(Client(cluster.target)) for stages, cluster in running.items()}
        for client in clients.values():  # Costs are learned, pages touched; not counted.
            for _ in range(3):
                timing_of(client, prompt(drawn))
        for _ in range(ROUNDS):
            text = prompt(drawn)
            one, two = (timing_of(clients[stages], text) for stages in (1, 2))
            times[1].append(one.ttft_us / 1e3)
            times[2].append(two.ttft_us / 1e3)
            allowed = compute_us(one) / bound_us(cost, 2)
            ratios.append((one.ttft_us / two.ttft_us / allowed, allowed, compute_us(two) / compute_us(one),
                           len(two.prefill.chunks)))
    flat = {"pipeline_tokens": TOKENS, "pipeline_rounds": ROUNDS}
    for stages, values in times.items():
        flat[f"pipeline_ttft_ms_p{stages}"] = round(statistics.median(values), 1)
    flat["pipeline_speedup"] = round(statistics.median(a / b for a, b in zip(times[1], times[2])), 3)
    flat["pipeline_speedup_allowed"] = round(statistics.median(row[1] for row in ratios), 3)
    flat["pipeline_compute_growth"] = round(statistics.median(row[2] for row in ratios), 3)
    flat["pipeline_chunks_p2"] = round(statistics.median(row[3] for row in ratios))
    flat["P2_real"] = round(statistics.median(row[0] for row in ratios), 4)
    flat["P2_real_min"], flat["P2_real_max"] = (round(f(row[0] for row in ratios), 4) for f in (min, max))
    return flat


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.exit(0)
