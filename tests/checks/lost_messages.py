"""Messages that the data plane reports sent and that never arrive, 50 of each kind, on real processes.

    ./dev check lost_messages
    /usr/bin/python3 tests/checks/lost_messages.py [--losses 50] [--kind prefill.kv_lost]

A cluster of two stages loses every N-th activation, credit, KV message, commit or receipt. Whatever is lost, the
request that it belonged to ends with the right answer or with a status that says what was lost, the cluster
answers again within five seconds, and no page is held. Prints how long requests took that met one loss.
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

# Failpoint by what is lost, and of how many of them in each process one is: so that most requests meet none.
KINDS = {"prefill.activations_lost": 29, "prefill.credit_lost": 29, "prefill.kv_lost": 47,
         "prefill.commit_lost": 7, "decode.receipt_lost": 9}
SERVES_AGAIN_SECONDS = 5
PROMPT = [random.Random(5).randrange(256) for _ in range(150)]
TOKENS = 8


def losses(cluster, kind):
    return sum(len(re.findall(rf"failpoint {re.escape(kind)}:", process.log()))
               for process in cluster.processes.values())


def held_pages(cluster):
    return sum(cluster.metric(name, "baton_kv_pages_used") for name in cluster.metrics_ports)


def lose(kind, every, wanted, model, tally):
    """Requests one after the other until `wanted` messages are lost."""
    role = kind.split(".")[0]
    arms = {"prefill_flags": ["--chunked-prefill-size", 16]}
    arms.setdefault(f"{role}_flags", []).extend(["--failpoints", f"{kind}=error%{every}"])
    expected = RememberedOracle(model).greedy(PROMPT, TOKENS)
    with tempfile.TemporaryDirectory() as logs, \
            clusters.Cluster(model, logs, stages=2, flags=["--page-size", 16], **arms) as cluster, \
            Client(cluster.target) as client:
        met, errors, away, requests = [], [], 0.0, 0
        failing_since = None
        while losses(cluster, kind) < wanted and requests < 100 * wanted:
            before, begin = losses(cluster, kind), time.monotonic()
            answer = client.greedy(PROMPT, TOKENS, timeout=60)
            end = time.monotonic()
            requests += 1
            hits = losses(cluster, kind) - before
            if answer.error is None:
                tally.step(f"{kind}: another answer", answer.tokens == expected)
                if failing_since is not None:
                    away = max(away, end - failing_since)
                failing_since = None
            else:
                failing_since = failing_since or end
                errors.append(answer.error.details())
                time.sleep(0.02)
            if hits == 1:  # Of two the second may have met the second attempt.
                met.append(end - begin)
        clusters.wait_until(lambda: held_pages(cluster) == 0, 10, "pages to come back")
        lost = losses(cluster, kind)
    met.sort()
    unclear = sorted({text for text in errors if not re.search("lost|acknowledged|not ready|no pair|waits", text)})
    tally.step(f"{kind}: {lost} of {wanted} messages lost in {requests} requests", lost >= wanted)
    tally.step(f"{kind}: errors that don't say what was lost: {unclear[:3]}", not unclear)
    tally.step(f"{kind}: {away:.1f} s without an answer after one that failed", away <= SERVES_AGAIN_SECONDS)
    tally.step(f"{kind}: a request that met one loss took {met[-1] if met else 0:.1f} s",
               not met or met[-1] <= SERVES_AGAIN_SECONDS)
    print(f"{kind}: {lost} lost, {requests} requests, {len(errors)} failed; requests that met one loss took "
          f"{met[len(met) // 2] if met else 0:.2f} s (median), {met[-1] if met else 0:.2f} s (longest); "
          f"{away:.1f} s at most without an answer", flush=True)
    for text in sorted(set(errors))[:3]:
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
        for kind, every in KINDS.items():
            if arguments.kind in (None, kind):
                lose(kind, every, arguments.losses, model, tally)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
