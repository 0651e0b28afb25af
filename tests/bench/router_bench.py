"""The router's choice: what it takes, and what it gains; texts whose workers die; tenants that share a cluster.

choice_us, choice_growth, heartbeat_us: the core's times at 10,000 workers, and over 64 (router_bench.cc).
cost_gain_*: `baton simulate` of a trace in the form of Mooncake's, whose prompts share system prompts and grow turn by
turn: the mean time to first token of --load-balance-policy cost over that of another policy. Below 1 cost is sooner.
cache_hits_*: what four routers find cached of the same prompts under a policy, over what one finds; routers_ttft_*: the
mean times to first token, four routers' over one's.
resume_*: real processes, models/austen: 50 streams, one text after the other's end, while 100 times one of three decode
services is killed and started again, after 50 ends of texts each. failed: requests that ended with an error; wrong:
that were told another text than without kills; resumes: how often a text went on elsewhere.
fairness: what another tenant's flood costs (fairness.py): the 99th percentile of times to first token over that alone.
relay, relay_http: what the router takes of a processor for a token, beside gRPC alone (relay.py).
router_cpu, router_p50, router_p99: what it adds to whole requests, in processor time and in time (hop.py).
"""

import concurrent.futures
import json
import random
import subprocess
import sys
import tempfile
import threading

from fairness import measure_fairness
from hop import measure_hop
from relay import measure_relay
from simulation import PROFILES, ROOT, first_token_us, simulate

sys.path.insert(0, str(ROOT / "tools" / "cluster"))

import cluster as clusters  # noqa: E402
from client import Client  # noqa: E402

CLUSTER = ["--timed-profile", PROFILES / "qwen3-235b-h20.json", "--prefill-chains", 4, "--pp-size", 4, "--decodes", 4,
           "--kv-cache-tokens", 1 << 20, "--decode-kv-cache-tokens", 1 << 22, "--max-running-requests", 512]
BLOCK = 512
SECONDS = 60
SESSIONS_PER_SECOND = 4
SYSTEM_PROMPTS = 24
POLICIES = ("cost", "cache_aware", "least_load", "round_robin")
STREAMS, TEXTS, KILLS, DECODES = 50, 25, 100, 3


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


def text_of(client, number):
    """One of TEXTS answers, greedy or drawn."""
    prompt = [random.Random(number).randrange(4_000) for _ in range(40 + 20 * number)]
    sampling = {"temperature": 0} if number % 2 else {"temperature": 1, "seed": number, "frequency_penalty": 0.3}
    return client.generate(prompt, max_tokens=150, ignore_eos=True, **sampling)


def measure_resumes(flat):
    stopped, ended = threading.Event(), []

    def stream(client, expected, first):
        number = first
        while not stopped.is_set():
            number = (number + 1) % TEXTS
            answer = text_of(client, number)
            ended.append((answer.error, answer.tokens == expected[number],
                          0 if answer.error else answer.finished.resumes))
    with tempfile.TemporaryDirectory() as logs, \
            clusters.Cluster(str(ROOT / "models" / "austen"), logs, stages=1, decodes=DECODES,
                             flags=["--kv-cache-tokens", 60_000]) as cluster, Client(cluster.target) as client, \
            concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        expected = [text_of(client, number).tokens for number in range(TEXTS)]
        streams = [pool.submit(stream, client, expected, i) for i in range(STREAMS)]
        try:
            for kill in range(KILLS):
                victim, before = cluster.processes[f"decode-{kill % DECODES}"], len(ended)

                def decodes():
                    return (len(ended) >= before + STREAMS
                            and cluster.get("/readiness", cluster.metrics_ports[victim.name])[0] == 200
                            and cluster.metric(victim.name, "baton_requests_running") > 0)
                clusters.wait_until(decodes, 60, "texts on the victim, and an end of each since the last kill")
                victim.kill()
                victim.start()
        finally:
            stopped.set()
        for one in streams:
            one.result()
    flat["resume_requests"] = len(ended)
    flat["resume_failed"] = sum(error is not None for error, _, _ in ended)
    flat["resume_wrong"] = sum(error is None and not same for error, same, _ in ended)
    flat["resumes"] = sum(resumes for _, _, resumes in ended)
    for error in [error for error, _, _ in ended if error is not None][:5]:
        print(error.details(), file=sys.stderr)


def main():
    core = subprocess.run([ROOT / "bazel-bin/tests/bench/router_bench"], check=True, stdout=subprocess.PIPE, text=True)
    flat = json.loads(core.stdout)
    trace = conversations()
    flat["requests"] = len(trace)
    means = {}
    for policy in POLICIES:
        one, rows = simulate([*CLUSTER, "--load-balance-policy", policy], trace)
        means[policy] = sum(map(first_token_us, rows)) / len(rows) / 1e3
        if policy in POLICIES[:2]:  # Those that look at what is cached.
            four, rows = simulate([*CLUSTER, "--load-balance-policy", policy, "--routers", 4], trace)
            flat[f"cache_hits_{policy}"] = round(four["cached_ratio"] / one["cached_ratio"], 3)
            flat[f"routers_ttft_{policy}"] = round(sum(map(first_token_us, rows)) / len(rows) / 1e3 / means[policy], 3)
        flat[f"ttft_{policy}_ms"] = round(means[policy], 2)
    for policy in POLICIES[1:]:
        flat[f"cost_gain_{policy}"] = round(means["cost"] / means[policy], 3)
    measure_resumes(flat)
    measure_fairness(flat)
    measure_relay(flat)
    measure_hop(flat)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
