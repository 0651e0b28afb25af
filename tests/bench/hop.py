"""What a router adds to whole requests, of 512 tokens and one answered (request_bench.cc).

A colocated chain of real processes, whose steps are waits of a tenth of a millisecond, answers. router_cpu: processor
time of a request at a gRPC echo of as many bytes, both ends, over that in the router: above 1 the router takes less.
router_p50, router_p99: what a request takes by way of the router more than straight from the chain, median over median
and 99th percentile over 99th, in median round trips of the echo.
"""

import json
import pathlib
import subprocess
import tempfile

from relay import cpu_us, quick_profile
from timed_cluster import MODEL, ROOT, clusters, membership

import stubs

ROUNDS = 5
PROGRAM = ROOT / "bazel-bin/tests/bench/request_bench"


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def address_of_stage0(cluster):
    with membership(cluster.cluster_target) as router:
        workers = router.List(stubs.cluster.ListRequest(), timeout=10).workers
    return next(worker.worker.grpc_address for worker in workers)


def measure_hop(flat):
    with tempfile.TemporaryDirectory() as directory:
        profile = pathlib.Path(directory) / "profile.json"
        quick_profile(profile)
        timed = ["--timed-profile", profile]
        flags = ["--executor", "timed", *timed, "--kv-cache-tokens", 1 << 17, "--memory-check", "off"]
        with clusters.Cluster(str(MODEL), directory, stages=1, chains=0, decodes=0, colocated=1, flags=flags,
                              router_flags=timed) as cluster:
            router, chain = cluster.processes["router"].popen.pid, address_of_stage0(cluster)
            cpu, added = [], {"p50": [], "p99": []}
            for _ in range(ROUNDS):
                echo = run("many", "echo")
                before = cpu_us(router)
                through = run("many", "router", cluster.target)
                cpu.append(echo["cpu_us"] * through["requests"] / (cpu_us(router) - before))
                round_trip = run("alone", "echo")["latency_us"]
                through, straight = run("alone", "router", cluster.target), run("alone", "chain", chain)
                for key, name in (("p50", "latency_us"), ("p99", "latency_us_p99")):
                    added[key].append((through[name] - straight[name]) / round_trip)
    for key, values in (("cpu", cpu), *added.items()):
        ordered = sorted(values)
        flat[f"router_{key}"] = round(ordered[ROUNDS // 2], 3)
        flat[f"router_{key}_min"], flat[f"router_{key}_max"] = round(ordered[0], 3), round(ordered[-1], 3)


if __name__ == "__main__":
    shown = {}
    measure_hop(shown)
    print(json.dumps(shown))
