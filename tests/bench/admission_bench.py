"""What it costs to be admitted to a chain that is busy, in round trips, and that more stages cost no more.

Real timed stages (common/engine/timed), Poisson arrivals of prompts of 1K to 128K tokens at 80 % of what the chain can
compute, with 2 stages and with 8; a stage takes a quarter of what one of eight does by the profile, whatever their
number, so that there is more traffic in the time, and as much with either. Prints one flat JSON object. A request's
admission, from its spans (docs/tracing.md):
- from the router's sending Start to its arrival at stage 0, which alone admits;
- what its first chunk then waits for because a stage does not have the plan yet: stage 0 after it was issued, a later
  stage when the one before is done with the chunk, if it then begins at once. Plans travel while stages compute.
In between it waits for its turn ("prefill queue"), which is the schedule's and not the control plane's; that is printed
beside it, and so is when the last of the stages had the plan. load_admission_rtts: the median, in round trips of a call
to stage 0 that does nothing (rpc_echo), made in the same time; the worse one of both numbers of stages.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from timed_cluster import PROFILE, ROOT, Client, clusters, membership, timed_cluster

import stubs

sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from otlp_collector import CLIENT, INTERNAL, SERVER, Collector  # noqa: E402

LOAD = 0.8
FASTER = 4
REQUESTS = 120
SHORTEST, LONGEST = 1000, 128000
AT_ONCE_NS = 500e3
STAGES = (2, 8)


def quick_profile(path, stages):
    profile = json.loads(PROFILE.read_text(encoding="utf-8"))
    profile["model"].update(hidden_size=64, kv_heads=1, head_dim=8, layers=96)  # Narrow: two cores can move it.
    prefill = profile["prefill"]
    for key in ("overhead_us", "token_us", "attention_us"):  # Of all layers; a stage has its share.
        prefill[key] *= stages / max(STAGES) / FASTER
    prefill["stage_overhead_us"] /= FASTER
    path.write_text(json.dumps(profile), encoding="utf-8")
    return profile


def stage_seconds(profile, stages, tokens):
    """What a prompt takes of each stage, without its chunks' overheads."""
    cost = profile["prefill"]
    return (cost["token_us"] * tokens + cost["attention_us"] * tokens * tokens) / stages / 1e6


def requests_of(profile, stages):
    """(Seconds from the beginning, tokens), at LOAD of what the stages can do."""
    drawn = random.Random(stages)
    lengths = [drawn.randrange(SHORTEST, LONGEST) for _ in range(REQUESTS)]
    every = statistics.mean(stage_seconds(profile, stages, tokens) for tokens in lengths) / LOAD
    at = 0.0
    for tokens in lengths:
        yield at, tokens
        at += drawn.expovariate(1 / every)


def play(cluster, plan, drawn):
    """Sends every request at its time, an echo beside them: what the echo measured."""
    with Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(len(plan)) as pool:
        requests = [client.request([drawn.randrange(4000) for _ in range(tokens)], temperature=0, max_tokens=1,
                                   ignore_eos=True) for _, tokens in plan]
        with membership(cluster.cluster_target) as router:
            workers = router.List(stubs.cluster.ListRequest()).workers
        stage0 = next(w.worker.grpc_address for w in workers if w.worker.instance.instance_id == "prefill-0-0")
        echo = subprocess.Popen([ROOT / "bazel-bin" / "tests" / "bench" / "rpc_echo", stage0, str(plan[-1][0])],
                                stdout=subprocess.PIPE, text=True)
        begun = time.monotonic()

        def send(index):
            time.sleep(max(0.0, begun + plan[index][0] - time.monotonic()))
            answer = client.generate(None, request=requests[index], timeout=900)
            if answer.error is not None:
                raise SystemExit(f"request {index} failed: {answer.error}")
        list(pool.map(send, range(len(plan))))
        return json.loads(echo.communicate()[0])


def admission_us(spans, stages):
    """(Router to stage 0, waits for the plan, its way to the last stage, wait for its turn) of one request."""
    def only(name, kind):
        span, = [span for span in spans if (span.name, span.kind) == (name, kind)]
        return span
    queue = only("prefill queue", INTERNAL)
    firsts = sorted((span for span in spans
                     if span.name == "prefill chunk" and span.attributes["baton.chunk.token_begin"] == 0),
                    key=lambda span: span.attributes["baton.stage"])
    assert len(firsts) == stages, firsts
    leads_ns = [1e9 * span.attributes["baton.plan.lead_seconds"] for span in firsts]
    knows_ns = [span.begin_ns - lead for span, lead in zip(firsts, leads_ns)]
    wanted_ns = [queue.end_ns, *(span.end_ns for span in firsts[:-1])]
    # Who has had the plan for a while when its turn comes was busy: nothing waited for the plan.
    waits_ns = sum(max(0.0, known - wanted) for known, wanted, lead in zip(knows_ns, wanted_ns, leads_ns)
                   if lead < AT_ONCE_NS)
    sent_ns = only("prefill", SERVER).begin_ns - only("prefill", CLIENT).begin_ns
    return [ns / 1e3 for ns in (sent_ns, waits_ns, max(knows_ns) - queue.end_ns, queue.end_ns - queue.begin_ns)]


def measure(stages):
    with tempfile.TemporaryDirectory() as directory, Collector() as collector:
        profile_path = pathlib.Path(directory) / "profile.json"
        profile = quick_profile(profile_path, stages)
        drawn = random.Random(1)
        plan = list(requests_of(profile, stages))
        with timed_cluster(directory, profile_path, stages, [], collector.endpoint, kv_tokens=1 << 20) as cluster:
            echo = play(cluster, plan, drawn)
            clusters.wait_until(cluster.idle, 20, "every page to be free")
            busy_s = cluster.metric("prefill-0-0", "baton_stage_busy_seconds_total")
        # Processes that have ended have sent what they had.
        traces = {span.trace for span in collector.spans()}
        rows = [admission_us(collector.spans(trace), stages) for trace in traces]
    assert len(rows) == len(plan), (len(rows), len(plan))
    admission = statistics.median(start + waits for start, waits, _, _ in rows)
    plan_out, turn = (statistics.median(row[i] for row in rows) for i in (2, 3))
    return {f"admission_us_p{stages}": round(admission, 1),
            f"admission_waits_for_plan_p{stages}": round(sum(row[1] > 1000 for row in rows) / len(rows), 3),
            f"admission_plan_at_last_us_p{stages}": round(plan_out, 1),
            f"admission_turn_ms_p{stages}": round(turn / 1e3, 1),
            f"admission_echo_us_p{stages}": round(echo["round_trip_us"], 1),
            f"admission_rtts_p{stages}": round(admission / echo["round_trip_us"], 3),
            f"admission_busy_s_p{stages}": round(busy_s, 1), f"admission_arrivals_s_p{stages}": round(plan[-1][0], 1)}


def main():
    flat = {"requests": REQUESTS, "cores": len(os.sched_getaffinity(0))}
    for stages in STAGES:
        flat.update(measure(stages))
        print(f"{stages} stages: {flat[f'admission_rtts_p{stages}']} round trips", file=sys.stderr, flush=True)
    flat["load_admission_rtts"] = max(flat[f"admission_rtts_p{stages}"] for stages in STAGES)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
