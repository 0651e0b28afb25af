"""The KV hand-off over a link of 1 Gbit/s: no lease is lost, and control doesn't wait for bulk data.

    ./dev check dataplane
    /usr/bin/python3 tests/checks/dataplane.py [--chunks 4] [--chunk-mib 512] [--rate 1gbit] [--lease-ms 3000]

Two network namespaces and a veth pair between them, shaped by tc's token bucket; in each one side of
handoff_peer.cc, which uses the services' own sender and receiver. Needs the right to make network
namespaces; without it the check is skipped and says so.
"""

import argparse
import contextlib
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from bazel import bazel  # noqa: E402
from tally import Tally  # noqa: E402

TARGET = "//tests/checks:handoff_peer"
# What a control message may wait for: the data window and the socket's buffer.
WAIT_MIB = 8 + 4
BUCKET_MS = 20


class Skipped(Exception):
    pass


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skipped(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def link(rate):
    """(namespace, device) of both ends of a link of `rate` ("" for as fast as it goes)."""
    names = [f"baton-{os.getpid()}-{side}" for side in "ab"]
    devices = [f"bt{os.getpid() % 100000}{side}" for side in "ab"]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", devices[0], "netns", names[0], "type", "veth", "peer", "name", devices[1],
           "netns", names[1])
        for side, (name, device) in enumerate(zip(names, devices)):
            ip("-n", name, "address", "add", f"192.0.2.{side + 1}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            if rate:
                shape = ["tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate,
                         "burst", "256kb", "latency", f"{BUCKET_MS}ms"]
                done = subprocess.run(shape, capture_output=True, text=True)
                if done.returncode != 0:
                    raise Skipped(f"{' '.join(shape)}: {done.stderr.strip()}")
        yield list(zip(names, devices))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)


class Peer:
    """A process in a namespace that prints lines of JSON."""

    def __init__(self, place, binary, role, arguments):
        namespace, device = place
        environment = dict(os.environ, UCX_TLS="tcp,self", UCX_NET_DEVICES=device)
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, binary, role, *map(str, arguments)], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(json.loads(line))
            else:  # UCX, before it dies.
                print(line, end="", file=sys.stderr)
        self.lines.put(None)

    def wait_for(self, key, seconds):
        """The next line with `key`; lines before it that tell of trouble are printed."""
        until = time.monotonic() + seconds
        while True:
            line = self.lines.get(timeout=max(0.1, until - time.monotonic()))
            if line is None:
                raise RuntimeError(f"{self.process.args[-4]} ended before it said '{key}'")
            if key in line:
                return line
            if "lost" in line or "not_sent" in line:
                print(f"  {json.dumps(line)}")

    def end(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(binary, rate, chunks, chunk_mib, lease_ms):
    """One hand-off of all chunks; a dict of what both sides say."""
    arguments = [chunks, chunk_mib, lease_ms]
    with link(rate) as (one, other):
        decode = Peer(other, binary, "decode", arguments)
        prefill = Peer(one, binary, "prefill", arguments)
        try:
            prefill.process.stdin.write(decode.wait_for("address", 30)["address"] + "\n")
            prefill.process.stdin.flush()
            begun = time.monotonic()
            result = decode.wait_for("leases_lost", 300)
            seconds = time.monotonic() - begun
            result.update(prefill.wait_for("sent_ms", 60))
        finally:
            prefill.end()
            decode.end()
    result["seconds"] = seconds
    result["mbit_per_s"] = chunks * chunk_mib * 8 * 1.048576 / seconds
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--chunk-mib", type=int, default=512)
    parser.add_argument("--rate", default="1gbit", help="of the link; '' leaves it unshaped")
    parser.add_argument("--lease-ms", type=int, default=3000)
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", TARGET) != 0:
        tally.fail("handoff_peer does not build")
        return tally.finish()
    binary = ROOT / "bazel-bin/tests/checks/handoff_peer"
    try:
        result = measure(binary, arguments.rate, arguments.chunks, arguments.chunk_mib, arguments.lease_ms)
    except Skipped as reason:
        tally.skip("dataplane", f"no shaped link can be made here: {reason}")
        return tally.finish()
    control = result["control"]
    print(f"{arguments.chunks} chunks of {arguments.chunk_mib} MiB in {result['seconds']:.1f} s "
          f"({result['mbit_per_s']:.0f} Mbit/s), {result['leases_lost']} leases lost")
    print(f"control behind them: p50 {control['p50_ms']:.1f} ms, p99 {control['p99_ms']:.1f}, "
          f"max {control['max_ms']:.1f} of {control['probes']} messages")
    tally.step(f"{result['leases_lost']} leases lost, 0 expected", result["leases_lost"] == 0)
    # Of this run's own speed, so that a busy machine, which slows everything down, fails nothing.
    per_mib_ms = result["seconds"] * 1e3 / (arguments.chunks * arguments.chunk_mib)
    print(f"the window and the socket's buffer are {WAIT_MIB * per_mib_ms:.0f} ms at this speed, "
          f"a chunk {arguments.chunk_mib * per_mib_ms:.0f}")
    limit_ms = max(arguments.chunk_mib / 10, 2 * WAIT_MIB) * per_mib_ms
    tally.step(f"p99 of control is {control['p99_ms']:.0f} ms, expected at most {limit_ms:.0f}",
               control["p99_ms"] <= limit_ms)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
