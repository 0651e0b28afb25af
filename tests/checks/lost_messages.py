"""Messages that the data plane reports sent and that never arrive, 50 of each kind, on real processes.

    ./dev check lost_messages
    /usr/bin/python3 tests/checks/lost_messages.py [--losses 50] [--kind prefill.kv_lost]

One process of a cluster loses every N-th activation, checksum of activations, credit, KV message, commit or
receipt. Whatever is lost, the request that it belonged to ends with the right answer or with a status that says
what was lost, the cluster answers again within five seconds, and no page is held. Prints how long requests took
that met one loss.
"""

import argparse
import pathlib
import random
import re
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(ROOT / "tools" / "cluster"), str(ROOT / "tests" / "oracle")]

import cluster as clusters  # noqa: E402
from bazel import bazel  # noqa: E402
from client import Client  # noqa: E402
from remembered import RememberedOracle  # noqa: E402
from tally import Tally  # noqa: E402

# Failpoint by what is lost: who loses it, and every how many, so that most requests meet none.
KINDS = {"prefill.activations_lost": ("prefill-0-0", 29), "prefill.activation_sum_lost": ("prefill-0-0", 29),
         "prefill.credit_lost": ("prefill-0-1", 29), "prefill.kv_lost": ("prefill-0-1", 29),
         "prefill.commit_lost": ("prefill-0-1", 3), "decode.receipt_lost": ("decode-0", 5)}
SERVES_AGAIN_SECONDS = 5
PROMPT = [random.Random(5).randrange(256) for _ in range(150)]
TOKENS = 8


def losses(process, kind):
    return len(re.findall(rf"failpoint {re.escape(kind)}:", process.log()))


def held_pages(cluster):
    return sum(cluster.metric(name, "baton_kv_pages_used") for name in cluster.metrics_ports)


def lose(kind, wanted, model, tally):
    """Requests one after the other until `wanted` messages are lost."""
    loser, every = KINDS[kind]
    expected = RememberedOracle(model).greedy(PROMPT, TOKENS)
    with tempfile.TemporaryDirectory() as logs:
        cluster = clusters.Cluster(model, logs, stages=2, flags=["--page-size", 16],
                                   prefill_flags=["--chunked-prefill-size", 16])
        process = cluster.processes[loser]
        process.arguments += ["--failpoints", f"{kind}=error%{every}"]
        with cluster, Client(cluster.target) as client:
            run = Run(kind, expected, tally)
            while losses(process, kind) < wanted and run.requests < 100 * wanted:
                run.ask(client, lambda: losses(process, kind))
            clusters.wait_until(lambda: held_pages(cluster) == 0, 10, "pages to come back")
            run.finish(losses(process, kind), wanted)


class Run:
    """The requests to one cluster, one after the other, and what became of them."""

    def __init__(self, kind, expected, tally):
        self.kind, self.expected, self.tally = kind, expected, tally
        self.requests, self.met, self.errors = 0, [], []
        self.failing_since, self.away = None, 0.0

    def ask(self, client, lost):
        before, begin = lost(), time.monotonic()
        answer = client.greedy(PROMPT, TOKENS, timeout=60)
        end = time.monotonic()
        self.requests += 1
        if lost() - before == 1:  # Of two the second may have met the second attempt.
            self.met.append(end - begin)
        if answer.error is not None:
            self.failing_since = self.failing_since or end
            self.errors.append(answer.error.details())
            time.sleep(0.02)
            return
        self.tally.step(f"{self.kind}: another answer", answer.tokens == self.expected)
        if self.failing_since is not None:
            self.away = max(self.away, end - self.failing_since)
        self.failing_since = None

    def finish(self, lost, wanted):
        kind, met = self.kind, sorted(self.met) or [0]
        unclear = sorted({text for text in self.errors if not re.search("lost|acknowledged|no pair|is down", text)})
        step = self.tally.step
        step(f"{kind}: {lost} of {wanted} messages lost in {self.requests} requests", lost >= wanted)
        step(f"{kind}: errors that don't say what was lost: {unclear[:3]}", not unclear)
        step(f"{kind}: {self.away:.1f} s without an answer after one that failed", self.away <= SERVES_AGAIN_SECONDS)
        step(f"{kind}: a request that met one loss took {met[-1]:.1f} s", met[-1] <= SERVES_AGAIN_SECONDS)
        print(f"{kind}: {lost} lost, {self.requests} requests, {len(self.errors)} failed; requests that met one loss "
              f"took {met[len(met) // 2]:.2f} s (median), {met[-1]:.2f} s (longest); {self.away:.1f} s at most "
              "without an answer", flush=True)
        for text in sorted(set(self.errors))[:3]:
            print(f"  {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", type=int, default=50)
    parser.add_argument("--kind", choices=KINDS)
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("services/baton does not build")
        return tally.finish()
    with tempfile.TemporaryDirectory() as folder:
        model = clusters.make_model(pathlib.Path(folder) / "tiny", layers=6)
        for kind in KINDS:
            if arguments.kind in (None, kind):
                lose(kind, arguments.losses, model, tally)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
