"""What one tenant's flood costs another: a chain and a decode service of real processes whose computations are waits.

A quiet tenant sends prompts at random times, a quarter of what the chain can compute, first alone and then beside one
that always has FLOOD of the same prompts here, as many as the chain computes at ten times the quiet tenant's pace or
more. Prompts share nothing; each asks for one token, so its time is that to its first token.
"""

import concurrent.futures
import pathlib
import random
import tempfile
import threading
import time

from timed_cluster import Client, played_profile, timed_cluster

PROMPT = 2048
REQUESTS = 200
LOAD = 0.25
FLOOD = 64


def ask(client, drawn, tenant):
    """The seconds until the answer is there."""
    request = client.request([drawn.randrange(4_000) for _ in range(PROMPT)], temperature=0, max_tokens=1)
    began = time.monotonic()
    for _ in client.inference.Generate(request, timeout=300, metadata=[("x-tenant", tenant)]):
        pass
    return time.monotonic() - began


def seconds_of(client, every, seed):
    """How long each of REQUESTS takes that come, on average, `every` seconds."""
    drawn, calls = random.Random(seed), []
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        at = time.monotonic()
        for number in range(REQUESTS):
            at += drawn.expovariate(1 / every)
            time.sleep(max(0.0, at - time.monotonic()))
            calls.append(pool.submit(ask, client, random.Random(seed + number), "quiet"))
        return sorted(call.result() for call in calls)


def measure_fairness(flat):
    stopped = threading.Event()

    def flood(client, number):
        drawn, count = random.Random(10 ** 6 + number), 0
        while not stopped.is_set():
            ask(client, drawn, "flood")
            count += 1
        return count
    with tempfile.TemporaryDirectory() as directory:
        profile = pathlib.Path(directory) / "profile.json"
        played_profile(profile, 64)
        measure(flat, directory, profile, flood, stopped)


def measure(flat, directory, profile, flood, stopped):
    with timed_cluster(directory, profile, 1, [], kv_tokens=400_000) as cluster, Client(cluster.target) as client, \
            concurrent.futures.ThreadPoolExecutor(FLOOD) as pool:
        drawn = random.Random(1)
        alone = min(ask(client, drawn, "first") for _ in range(10))
        quiet = seconds_of(client, alone / LOAD, 1)
        floods = [pool.submit(flood, client, number) for number in range(FLOOD)]
        try:
            time.sleep(2)
            beside = seconds_of(client, alone / LOAD, 1)
        finally:
            stopped.set()
        flat["fairness_flood_requests"] = sum(one.result() for one in floods)
    p99 = REQUESTS * 99 // 100 - 1
    flat["fairness_prompt_ms"] = round(1e3 * alone, 1)
    flat["fairness_alone_p99_ms"], flat["fairness_beside_p99_ms"] = (round(1e3 * of[p99], 1) for of in (quiet, beside))
    flat["fairness"] = round(beside[p99] / quiet[p99], 3)
    flat["fairness_p50"] = round(beside[REQUESTS // 2] / quiet[REQUESTS // 2], 3)
