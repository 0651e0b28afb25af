"""Pictures of every dashboard over a live cluster under load with an injected failure, each panel drawn.

    ./dev check dashboards
    /usr/bin/python3 tests/checks/dashboards.py [--out .cache/dashboards] [--seconds 60]

Two prefill stages and two decode services serve prompts of many lengths; half-way one decode service is
killed in the middle of its streams and started again. The pictures are there to be looked at; that each
panel has something to draw is asserted. Needs Chromium (Debian's chromium-headless-shell); without it the
check is skipped and says so.
"""

import argparse
import pathlib
import random
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / folder) for folder in ("cluster", "dev", "observe")]

import cluster as clusters  # noqa: E402
import pictures  # noqa: E402
import prometheus  # noqa: E402
from bazel import bazel  # noqa: E402
from client import Client  # noqa: E402
from tally import Tally, say  # noqa: E402

STREAMS = 6
MODEL = "tiny"


class Load:
    """Prompts of 30 to 3,000 tokens with short and long answers on several streams, until it is left."""

    def __init__(self, cluster):
        self.cluster, self.ended = cluster, threading.Event()
        self.client = Client(cluster.target)
        self.threads = [threading.Thread(target=self._stream, args=(number,)) for number in range(STREAMS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        self.client.close()

    def _stream(self, number):
        chance = random.Random(number)
        while not self.ended.is_set():
            prompt, count = [7] * chance.choice((30, 200, 800, 3000)), chance.choice((8, 40, 120, 1000))
            if chance.random() < 0.3:
                self.cluster.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": count})
            else:
                self.client.generate(prompt, temperature=0.7, seed=chance.randrange(1000), max_tokens=count,
                                     ignore_eos=chance.random() < 0.7)
            self.ended.wait(chance.random())


def lose_a_decode(cluster, seconds):
    """Kills a decode service in the middle of a stream, and starts it again after a while."""
    victim = cluster.processes["decode-1"]
    clusters.wait_until(lambda: cluster.metric("decode-1", "baton_requests_running") > 1, 60, "work for decode-1")
    victim.kill()
    time.sleep(seconds)
    victim.start()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / ".cache" / "dashboards")
    parser.add_argument("--seconds", type=float, default=90, help="of load")
    arguments = parser.parse_args()
    tally = Tally()
    try:
        pictures.chromium()
    except pictures.Unavailable as reason:
        tally.skip("dashboards", str(reason))
        return tally.finish()
    if bazel("build", "//services/baton") != 0:
        tally.fail("build of //services/baton")
        return tally.finish()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="baton-dashboards-") as name:
        directory = pathlib.Path(name)
        model = clusters.make_model(directory / "model", layers=8, hidden=128)
        with clusters.Cluster(model, directory, stages=2, decodes=2,
                              router_flags=["--served-model-name", MODEL]) as cluster:
            targets = [f"127.0.0.1:{port}" for port in (cluster.http_port, *cluster.metrics_ports.values())]
            with prometheus.Prometheus(directory, targets, clusters.free_ports(1)[0]) as server:
                server.wait_ready()
                say(f"load for {arguments.seconds:.0f} s")
                with Load(cluster):
                    time.sleep(arguments.seconds / 2)
                    lose_a_decode(cluster, arguments.seconds / 8)
                    time.sleep(arguments.seconds / 2)
                    say("pictures")
                    states = pictures.take(server, arguments.out, minutes=2)
    del states["baton-gpu"]  # There is no GPU; tests/e2e/test_observe.py plays one.
    for dashboard, panels in states.items():
        for panel, state in panels.items():
            tally.step(f"{dashboard}: {panel} is {state}", state == "drawn")
    print(f"look at {arguments.out}/*.png")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
