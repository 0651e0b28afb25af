"""Two processes of one instance id at once, 500 rounds of all roles with SIGTERM, SIGKILL, SIGSTOP: no hang.

    ./dev check flap
    /usr/bin/python3 tests/checks/flap.py [--rounds 500] [--side-by-side 2]

In each round a twin of one worker, or of all of them, starts while the worker lives, or the worker stands still for
longer than its lease while the twin has its place; then one of them ends, or both go on. Afterwards the cluster
must answer within the time of one loss, no request may be left running on any stage, and no page be held. Clients
ask all the while: what they hear is an answer or a clear status, within their deadline. A worker that UCX 1.13 ends
because a peer was killed while it connected (common/transport/README.md, "Known limits") is started again, as a
supervisor would, and counted.
"""

import argparse
import concurrent.futures
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(ROOT / "tools" / "cluster"), str(ROOT / "tests" / "oracle")]

import cluster as clusters  # noqa: E402
from bazel import bazel  # noqa: E402
from client import Client  # noqa: E402
from remembered import RememberedOracle  # noqa: E402
from tally import Tally  # noqa: E402

PROMPT = [random.Random(5).randrange(256) for _ in range(150)]
TOKENS = 8
LEASE_SECONDS = 2
ANSWERS_AGAIN_SECONDS = 25
ROLES = ["decode-0", "prefill-0-0", "prefill-0-1", "all"]
WAYS = ["term", "kill", "stop the twin", "stop the elder", "restart the elder"]


class Background:
    """A client that asks one request after the other; each has to end by itself."""

    def __init__(self, target):
        self.hung, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self.run, args=[target])

    def run(self, target):
        with Client(target) as client:
            while not self.over.wait(0.05):
                begin = time.monotonic()
                answer = client.greedy(PROMPT, TOKENS, timeout=120)
                if answer.error is not None and time.monotonic() - begin > 60:
                    self.hung.append(answer.error.details())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Flapping:
    """One cluster, with the twins of its workers."""

    def __init__(self, model, logs, seed):
        self.random = random.Random(seed)
        self.crashes = 0
        self.expected = RememberedOracle(model).greedy(PROMPT, TOKENS)
        self.cluster = clusters.Cluster(model, logs, stages=2, flags=["--page-size", 16],
                                        prefill_flags=["--chunked-prefill-size", 64],
                                        router_flags=["--request-timeout-ms", 60000])

    def twins_of(self, role):
        names = [role] if role != "all" else ROLES[:-1]
        twins = []
        for name in names:
            elder = self.cluster.processes[name]
            twin = clusters.Process(f"{name}-twin", elder.arguments[1:], self.cluster.log_dir, elder.environment)
            twin.arguments[twin.arguments.index("--metrics-port") + 1] = "0"
            twins.append((elder, twin))
        return twins

    def turn(self, role, way):
        pairs = self.twins_of(role)
        if way == "stop the elder":
            for elder, _ in pairs:
                elder.signal(signal.SIGSTOP)
        for _, twin in pairs:
            twin.start()
        self.pause(0.5, 2.5)
        if way == "stop the elder":
            time.sleep(LEASE_SECONDS)
            self.pause(0, 2)
            for elder, _ in pairs:
                elder.signal(signal.SIGCONT)
            self.pause(0, 1)
        for elder, twin in pairs:
            if way == "stop the twin":
                twin.signal(signal.SIGSTOP)
                self.pause(0, LEASE_SECONDS + 1)
                twin.signal(signal.SIGCONT)
            elif way == "restart the elder":
                elder.kill()
                elder.start()
                self.pause(0, 1)
            elif way == "kill":
                twin.kill()
        for _, twin in pairs:
            twin.stop()

    def start_the_dead(self):
        for process in self.cluster.processes.values():
            if not process.alive():
                self.crashes += 1
                print(f"{process.name} has ended with {process.popen.returncode}, and is started again", flush=True)
                process.start()

    def pause(self, least, most):
        time.sleep(self.random.uniform(least, most))

    def answers(self):
        """None, or why the cluster does not serve and rest."""
        with Client(self.cluster.target) as client:
            end, error = time.monotonic() + ANSWERS_AGAIN_SECONDS * clusters.PATIENCE, None
            while time.monotonic() < end:
                self.start_the_dead()
                answer = client.greedy(PROMPT, TOKENS, timeout=ANSWERS_AGAIN_SECONDS * clusters.PATIENCE)
                if answer.error is None:
                    return None if answer.tokens == self.expected else f"a wrong answer: {answer.tokens}"
                error = answer.error.details()
                time.sleep(0.1)
            return f"no answer: {error}; /readiness says {self.cluster.get('/readiness')}"

    def round(self, role, way):
        with Background(self.cluster.target) as background:
            self.turn(role, way)
            why = self.answers()
        if why is None and background.hung:
            why = f"a request ended by its deadline alone: {background.hung}"
        if why is None:
            try:
                clusters.wait_until(self.cluster.idle, 30, "pages to come back")
            except AssertionError as error:
                why = str(error)
        return why


def flap(model, rounds, seed, tally, lock):
    """`rounds` are pairs of a role and a way; a cluster that fails one is given up for a new one."""
    rounds = list(rounds)
    while rounds:
        with tempfile.TemporaryDirectory() as logs:
            flapping = Flapping(model, logs, seed)
            with flapping.cluster:
                while rounds:
                    number, role, way = rounds.pop(0)
                    begin = time.monotonic()
                    why = flapping.round(role, way)
                    with lock:
                        tally.step(f"round {number}, {role}, {way}: {why}", why is None)
                        print(f"round {number}: {role}, {way}, {time.monotonic() - begin:.1f} s, "
                              f"{'answers' if why is None else why}", flush=True)
                    if why is not None:
                        print(flapping.cluster.logs(), flush=True)
                        break
            if flapping.crashes > 0:
                print(f"{flapping.crashes} workers were ended by UCX", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--side-by-side", type=int, default=2, help="clusters at once")
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("services/baton does not build")
        return tally.finish()
    kinds = [(role, way) for way in WAYS for role in ROLES]
    rounds = [(number, *kinds[number % len(kinds)]) for number in range(arguments.rounds)]
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as directory:
        model = clusters.make_model(pathlib.Path(directory) / "model", layers=4)
        with concurrent.futures.ThreadPoolExecutor(arguments.side_by_side) as pool:
            runs = [pool.submit(flap, model, rounds[first::arguments.side_by_side], first, tally, lock)
                    for first in range(arguments.side_by_side)]
            for run in runs:
                run.result()
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
