"""How well `baton simulate` predicts: time to first token of real processes beside that of the same requests simulated.

Real: a router, four timed stages and a decode service (common/engine/timed), to which an open-loop client sends each
request of a trace at its time. Simulated: the same requests, at the times at which they were sent. The one constant
that the simulation does not know, what a message costs on this machine, is fitted on a workload of its own; the three
others are not used to fit anything. Prints one flat JSON object: P11_mean and P11_p99, the largest difference of a
workload's mean and 99th percentile, as a share of the measured one.

    simulate_bench.py [WORKLOAD...]    only these, beside the one that is fitted on
"""

import concurrent.futures
import json
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

from simulation import first_token_us, simulate
from timed_cluster import TOKENS, Client, played_profile, timed_cluster

STAGES = 4
# Before each workload, one after the other: chunks' costs are learned from them, here as there. Not counted.
LEARN_FROM = ((0, 30000), (8000, 3000), (10000, 12000))
BEGINS_MS = 16000
LATENCIES_US = (50, 4000)


def poisson(drawn, count, per_second):
    at = 0.0
    for _ in range(count):
        at += drawn.expovariate(per_second)
        yield BEGINS_MS + 1000 * at


def lognormal(drawn, median, sigma, largest):
    return max(16, min(largest, round(drawn.lognormvariate(math.log(median), sigma))))


def calibration():
    """Poisson arrivals of prompts of 1,000 to 6,000 tokens, at half of what the chain can do: messages cost less
    between processes that have just run, so a quiet cluster would tell too much."""
    drawn = random.Random(10)
    return [(at, drawn.randrange(1000, 6000), 8) for at in poisson(drawn, 150, 2.5)]


def mix():
    """Poisson arrivals of short prompts, most below a thousand tokens and some of ten thousand."""
    drawn = random.Random(11)
    return [(at, lognormal(drawn, 1000, 1.0, 20000), drawn.randrange(4, 24)) for at in poisson(drawn, 300, 9.0)]


def long():
    """Poisson arrivals of prompts of 8,000 to 40,000 tokens, at 70 % of what the chain can do."""
    drawn = random.Random(12)
    return [(at, drawn.randrange(8000, 40000), 8) for at in poisson(drawn, 120, LONG_PER_SECOND)]


def burst():
    """Five times twenty-four requests within half a second: in an order that threads keep."""
    drawn = random.Random(13)
    return [(BEGINS_MS + 14000 * i + 20 * j, lognormal(drawn, 2500, 0.8, 16000), 8)
            for i in range(5) for j in range(24)]


LONG_PER_SECOND = 0.75
WORKLOADS = {"mix": mix, "long": long, "burst": burst}


def play(target, trace):
    """Sends every request at its time; (when it was sent, its time to first token by the router's clock), ms."""
    drawn = random.Random(1)
    with Client(target) as client, concurrent.futures.ThreadPoolExecutor(len(trace)) as pool:
        requests = [client.request([drawn.randrange(4000) for _ in range(prompt)], temperature=0, max_tokens=output,
                                   ignore_eos=True) for _, prompt, output in trace]
        begun = time.monotonic() + 0.5

        def send(index):
            time.sleep(max(0.0, begun + trace[index][0] / 1e3 - time.monotonic()))
            sent_ms = 1e3 * (time.monotonic() - begun)
            answer = client.generate(None, request=requests[index], timeout=600)
            if answer.error is not None:
                raise SystemExit(f"request {index} failed: {answer.error}")
            return sent_ms, answer.finished.timing.ttft_us / 1e3
        return list(pool.map(send, range(len(trace))))


def simulated_ms(flags, trace, latency_us):
    _, rows = simulate([*flags, "--message-latency-us", latency_us, "--activation-gbps", 0, "--kv-gbps", 0,
                        "--pp-size", STAGES], trace)
    return [first_token_us(row) / 1e3 for row in rows]


def mean(values):
    return sum(values) / len(values)


def p99(values):
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def fit_latency(flags, trace, real):
    """With which the simulated median is the measured one, which no other job of the machine holds up: the more
    latency, the later a first token."""
    low, high = LATENCIES_US
    while high - low > 5:
        middle = (low + high) // 2
        if statistics.median(simulated_ms(flags, trace, middle)[len(LEARN_FROM):]) < statistics.median(real):
            low = middle
        else:
            high = middle
    return low


def main():
    names = sys.argv[1:] or list(WORKLOADS)
    flat = {"stages": STAGES, "cores": len(os.sched_getaffinity(0))}
    latency_us = 0
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "profile.json"
        played_profile(path, hidden_size=64)  # Narrow: two cores can move it.
        # Timed stages measure nothing at their start.
        flags = ["--timed-profile", path, "--kv-cache-tokens", TOKENS + 1024, "--chunk-sweep-ms", 0]
        for name, workload in {"calibration": calibration, **{name: WORKLOADS[name] for name in names}}.items():
            trace = [(at, prompt, 1) for at, prompt in LEARN_FROM] + workload()
            with timed_cluster(directory, path, STAGES, []) as cluster:
                rows = play(cluster.target, trace)
            real = [ttft for _, ttft in rows][len(LEARN_FROM):]
            late_ms = max(sent - at for (sent, _), (at, _, _) in zip(rows, trace))
            trace = sorted((max(0.0, sent), *lengths) for (sent, _), (_, *lengths) in zip(rows, trace))
            if name == "calibration":
                latency_us = fit_latency(flags, trace, real)
                flat["message_latency_us"] = latency_us
            told = simulated_ms(flags, trace, latency_us)[len(LEARN_FROM):]
            for label, of in (("mean", mean), ("p99", p99)):
                flat[f"{name}_ttft_{label}_ms"] = round(of(real), 1)
                flat[f"{name}_simulated_{label}_ms"] = round(of(told), 1)
                flat[f"{name}_{label}"] = round(abs(of(told) / of(real) - 1), 4)
            flat[f"{name}_requests"] = len(real)
            flat[f"{name}_sent_late_ms"] = round(late_ms, 1)
            print(f"{name:12} {len(real)} requests  mean {mean(real):9.1f} ms, simulated {mean(told):9.1f}  "
                  f"p99 {p99(real):9.1f} ms, simulated {p99(told):9.1f}", file=sys.stderr)
    for label in ("mean", "p99"):
        flat[f"P11_{label}"] = max(flat[f"{name}_{label}"] for name in names)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
