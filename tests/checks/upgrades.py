"""Rolling upgrades and pod deletions under 16 streams, in the order that Kubernetes uses, for half an hour.

    ./dev check upgrades
    /usr/bin/python3 tests/checks/upgrades.py [--minutes 30] [--streams 16] [--seed 1] [--json FILE]

Processes of this machine stand for pods: SIGTERM, the grace period, SIGKILL, and a successor by the same
name, as a StatefulSet has it (or one by another name before it, as a Deployment surges). A router's
endpoint goes a second after its SIGTERM, within --drain-settle-ms. Some requests are longer than the
grace period on purpose. Each failure must be one that a drain announced, to a client that had tokens
already, and must be counted: by a router's metric if a worker's drain ended it, in the router's log if its
own did. At the end no page is held by anybody.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import random
import re
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(ROOT / "tools" / "cluster")]

import cluster as clusters  # noqa: E402
from bazel import bazel  # noqa: E402
from client import Client  # noqa: E402
from load import Load  # noqa: E402
from tally import Tally, say  # noqa: E402

DRAIN_MS = 4000
SETTLE_MS = 2000
ENDPOINT_SECONDS = 1.0  # From SIGTERM until the last client looks elsewhere.
GRACE_SECONDS = (DRAIN_MS + SETTLE_MS) / 1000 + 10
STEP_MS = 5  # Of decode; the grace period is then worth some 800 tokens.
LONG_TOKENS = 3000


@dataclasses.dataclass
class Event:
    what: str
    name: str
    at: float
    seconds: float
    killed: bool


class Operator:
    """Does to a cluster what a Kubernetes controller and its kubelet do to pods."""

    def __init__(self, cluster, seed):
        self.cluster, self.random = cluster, random.Random(seed)
        self.events, self.endpoint = [], cluster.target
        self.retired = []
        self.worker_ended = 0  # What former routers' metrics said of streams that workers' drains ended.
        self.started_at = time.monotonic()

    def replace(self, name, what):
        """SIGTERM, grace period, SIGKILL; then the successor, which is waited for."""
        process = self.cluster.processes[name]
        begun = time.monotonic()
        timer = None
        if name == "router":
            self.worker_ended += self.ended_by_workers()
            timer = threading.Timer(ENDPOINT_SECONDS, setattr, (self, "endpoint", None))
            timer.start()
        killed = process.stop(GRACE_SECONDS) != 0
        if timer is not None:
            timer.join()
        process.start()
        self.wait_ready()
        if name == "router":
            self.endpoint = self.cluster.target
        self.note(what, name, begun, killed)

    def ended_by_workers(self):
        return self.cluster.metric("router", "baton_drain_ended_requests_total", cause="worker")

    def surge(self):
        """A decode service more, then the oldest one less."""
        begun = time.monotonic()
        decodes = [name for name in self.cluster.processes if name.startswith("decode")]
        fresh = f"decode-s{len(self.events)}"
        self.cluster.add_decode(fresh).start()
        self.cluster.decodes += 1
        self.wait_ready()
        gone = self.random.choice(decodes)
        killed = self.cluster.processes[gone].stop(GRACE_SECONDS) != 0
        self.cluster.decodes -= 1
        self.retired.append(self.cluster.processes.pop(gone))
        del self.cluster.metrics_ports[gone]
        self.wait_ready()
        self.note("surge", gone, begun, killed)

    def roll(self, role):
        """A rolling upgrade of a role: one instance after the other."""
        for name in [name for name in self.cluster.processes if name.startswith(role)]:
            self.replace(name, f"roll {role}")

    def delete_pod(self):
        self.replace(self.random.choice(list(self.cluster.processes)), "delete pod")

    def note(self, what, name, begun, killed):
        now = time.monotonic()
        self.events.append(Event(what, name, begun - self.started_at, now - begun, killed))
        print(f"{now - self.started_at:8.1f} s  {what:<14} {name:<14} {now - begun:5.1f} s"
              f"{'  KILLED' if killed else ''}", flush=True)

    def wait_ready(self):
        wanted = self.cluster.chains * self.cluster.decodes

        def ready():
            for process in self.cluster.processes.values():
                assert process.alive(), f"{process.name} ended:\n" + process.log()[-2000:]
            return (self.cluster.get("/readiness")[0] == 200
                    and self.cluster.metric("router", "baton_ready_pairs") == wanted)
        clusters.wait_until(ready, 120, f"{wanted} pairs")

    def run(self, seconds):
        actions = [lambda: self.roll("decode"), lambda: self.roll("prefill"), lambda: self.roll("router"),
                   self.surge, self.delete_pod, self.delete_pod]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for action in self.random.sample(actions, len(actions)):
                if time.monotonic() >= until:
                    return
                action()
                time.sleep(self.random.uniform(0.2, 2.0))  # What arrives meanwhile meets a whole cluster.


def workload(seed, streams):
    """Prompts of many lengths; the last one of each 4 times `streams` is longer than a drain."""
    source = random.Random(seed)
    prompts = [([source.randrange(256) for _ in range(source.randrange(8, 900))], source.randrange(4, 120), None)
               for _ in range(4 * streams)]
    prompts[-1] = (prompts[-1][0], LONG_TOKENS, None)
    return prompts


def logged(processes, word):
    return sum(int(number) for process in processes for number in re.findall(rf"{word}=(\d+)", process.log()))


def held(cluster):
    """What is not at baseline: [(process, metric, value)]."""
    found = []
    for name in cluster.processes:
        names = ["baton_requests_running", "baton_requests_waiting"]
        if name != "router":
            names.append("baton_kv_pages_used")
        if name.startswith("decode"):
            names += ["baton_kv_pages_quarantined", "baton_kv_grants_active"]
        found += [(name, metric, value) for metric in names if (value := cluster.metric(name, metric)) != 0]
    return found


def explain(failure):
    if failure.drained and failure.tokens > 0:
        return "outlived the grace period, and its client was told"
    if failure.drained:
        return "refused by a draining router, and its client was told"
    return f"unexplained: {failure.code} after {failure.tokens} tokens: {failure.details}"


def report(tally, operator, load, cluster, seconds):
    kinds = collections.Counter(explain(failure) for failure in load.failures)
    everybody = [*cluster.processes.values(), *operator.retired]
    time_over = logged(everybody, "time_over")
    counted = (operator.worker_ended + operator.ended_by_workers()
               + logged([cluster.processes["router"]], "time_over"))
    outlived = kinds["outlived the grace period, and its client was told"]
    rows = collections.Counter(event.what for event in operator.events)
    print(f"\n{seconds:.0f} s, {len(operator.events)} processes replaced: "
          + ", ".join(f"{count} {what}" for what, count in sorted(rows.items())))
    print(f"{load.done} requests answered, {len(load.failures)} failed")
    for kind, count in kinds.most_common():
        print(f"{count:8}  {kind}")
    print(f"{time_over:8}  ended by a drain, as the logs say")
    left = held(cluster)
    tally.step("no request fails that a drain did not end by its time",
               all(not kind.startswith(("unexplained", "refused")) for kind in kinds))
    tally.step(f"the logs count them: {outlived} of clients, {time_over} in logs", outlived <= time_over)
    tally.step(f"and so do the routers: {counted:.0f}", outlived == counted)
    tally.step("the grace period suffices for every process", not any(event.killed for event in operator.events))
    tally.step(f"nothing is held at the end: {left}", not left)
    tally.step(f"{load.wrong} answers differ from their prompt's first one", load.wrong == 0)
    tally.step("requests were answered", load.done > len(operator.events))
    tally.step("a request was long enough to be ended", outlived > 0 or seconds < 120)
    return {"seconds": seconds, "answered": load.done, "failed": dict(kinds), "time_over_in_logs": time_over,
            "held": left, "events": [dataclasses.asdict(event) for event in operator.events],
            "failures": [dataclasses.asdict(failure) for failure in load.failures]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="write what happened, too")
    parser.add_argument("--keep-logs", type=pathlib.Path, help="directory for the processes' logs")
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("baton does not build")
        return tally.finish()
    with tempfile.TemporaryDirectory() as directory:
        logs = arguments.keep_logs or pathlib.Path(directory)
        logs.mkdir(parents=True, exist_ok=True)
        model = clusters.make_model(pathlib.Path(directory) / "tiny", layers=6)
        drain = ["--drain-timeout-ms", DRAIN_MS]
        cluster = clusters.Cluster(
            model, logs, stages=2, chains=2, decodes=2, flags=["--page-size", 16, *drain],
            decode_flags=["--failpoints", f"decode.step=delay:{STEP_MS}"],
            router_flags=[*drain, "--drain-settle-ms", SETTLE_MS, "--pairing-timeout-ms", 60000,
                          "--log-requests", "off"])
        with cluster:
            operator = Operator(cluster, arguments.seed)
            say(f"{arguments.minutes:g} minutes of upgrades under {arguments.streams} streams")
            begun = time.monotonic()
            load = Load(lambda: operator.endpoint, workload(arguments.seed, arguments.streams), arguments.streams)
            with load:
                operator.run(arguments.minutes * 60)
                seconds = time.monotonic() - begun
            with Client(cluster.target) as client:
                tally.step("the last cluster serves", client.greedy(list(range(50)), 5).error is None)
            try:
                clusters.wait_until(lambda: not held(cluster), 20, "everything to be given back")
            except AssertionError as late:
                print(late)
            result = report(tally, operator, load, cluster, seconds)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
