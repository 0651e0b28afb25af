"""What row-parallel chunks gain: an isolated projection on ranks whose network is as slow as their product.

Each rank is a process in a network namespace and on cores of its own, as on a machine of its own: left to the kernel,
all that receives and adds runs on whichever core the packets came to, and that rank's product waits for both. Their
links meet in a bridge, and tc shapes what each sends to the rate at which the sums of all tokens take as long as this
rank's part of the product, measured first.
Then the layer runs with different numbers of chunks in turn, so that what else the machine does meets all of them.
Needs root. `--table` prints all numbers of chunks for several numbers of tokens, `--ranks N` says how many ranks.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = ROOT / "bazel-bin" / "tests" / "bench" / "row_parallel_rank"
HIDDEN = 1024
# Of all ranks. A token's sums are as long as its outputs, its product as its inputs times these: so
# what counts is the inputs, and an eighth of the outputs keeps rounds short.
LAYERS = {
    "70b": 28672,  # The down projection of Llama 3.3 70B, which vLLM's table is of.
    "0.6b": 3072,  # The same of a 0.6B model: a ninth of the product for as many bytes.
}
TOKENS = 8192
CHUNKS = [2, 4, 8, 16, 32, 64]
NETWORKS = itertools.count()


def run(*command, check=True):
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL,
                   stderr=None if check else subprocess.DEVNULL)


class Network:
    """A bridge, and a namespace with one end of a link to it for each rank."""

    def __init__(self, ranks):
        # Links of one that was taken down may be there for a moment still.
        self.bridge = f"bt{os.getpid() % 100000}{next(NETWORKS)}"
        self.names = [f"{self.bridge}n{rank}" for rank in range(ranks)]

    def __enter__(self):
        try:
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "link", "set", self.bridge, "up")
            for rank, name in enumerate(self.names):
                outer = f"{self.bridge}v{rank}"
                run("ip", "netns", "add", name)
                run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
                run("ip", "link", "set", outer, "master", self.bridge, "up")
                run("ip", "-n", name, "addr", "add", f"{self.address(rank)}/24", "dev", "eth0")
                run("ip", "-n", name, "link", "set", "eth0", "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        for name in self.names:
            run("ip", "netns", "del", name, check=False)
        run("ip", "link", "del", self.bridge, check=False)

    @staticmethod
    def address(rank):
        return f"10.213.57.{rank + 1}"

    def shape(self, bits_per_s):
        for name in self.names:
            run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{int(bits_per_s)}bit",
                "burst", "128k", "latency", "200ms")


def cores_of(rank, size):
    """This rank's share of the cores; one that others have too where there are fewer than ranks."""
    cores = sorted(os.sched_getaffinity(0))
    return ",".join(map(str, cores[rank::size] or [cores[rank % len(cores)]]))


class Ranks:
    """The processes, which find one another through this one."""

    def __init__(self, network, inputs):
        size = len(network.names)
        self.ranks = [
            subprocess.Popen(["ip", "netns", "exec", name, "taskset", "--cpu-list", cores_of(rank, size), RANK,
                              str(rank), str(size), network.address(rank), str(HIDDEN), str(inputs // size)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            for rank, name in enumerate(network.names)]
        self.sending = threading.Lock()
        threads = [threading.Thread(target=self.introduce, args=(rank,)) for rank in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def introduce(self, rank):
        for line in rank.stdout:
            if line.strip() == "formed":
                return
            _, key, value = line.split()
            with self.sending:
                for other in self.ranks:
                    if other is not rank:
                        other.stdin.write(f"put {key} {value}\n")
        raise RuntimeError("a rank has ended before the group formed")

    def ask(self, question):
        """The slowest rank's microseconds, and how many chunks it took."""
        for rank in self.ranks:
            rank.stdin.write(question + "\n")
        answers = [rank.stdout.readline().split() for rank in self.ranks]
        if not all(answers):
            raise RuntimeError(f"a rank has ended at {question!r}")
        return max(int(answer[1]) for answer in answers), int(answers[0][2])

    def median(self, question, rounds):
        return statistics.median(self.ask(question)[0] for _ in range(rounds))

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=10)
            except subprocess.TimeoutExpired:
                rank.kill()


def balance(network, ranks, tokens):
    """Shapes the links so that sums take as long as the product; returns the rate and both times."""
    size = len(network.names)
    product_us = ranks.median(f"matmul {tokens}", 5)
    sent_bits = 2 * (size - 1) / size * tokens * HIDDEN * 4 * 8
    rate = sent_bits / product_us * 1e6
    for _ in range(3):  # Headers, and what the sums cost beside sending.
        network.shape(rate)
        sums_us = ranks.median(f"reduce {tokens}", 3)
        if abs(sums_us / product_us - 1) < 0.05:
            break
        rate *= sums_us / product_us
    return rate, product_us, sums_us


def gains(ranks, tokens, rounds, chunks):
    """By number of chunks (0: auto), the median over the rounds of the whole step's time over theirs."""
    ratios = {count: [] for count in [*chunks, 0]}
    picked = []
    for _ in range(rounds):
        before = ranks.ask(f"layer {tokens} 1")[0]
        times = {count: ranks.ask(f"layer {tokens} {count}") for count in ratios}
        whole = (before + ranks.ask(f"layer {tokens} 1")[0]) / 2
        for count, (time_us, _) in times.items():
            ratios[count].append(whole / time_us)
        picked.append(times[0][1])
    return {count: statistics.median(values) for count, values in ratios.items()}, picked


def measure(layer="70b", size=2, tokens=(TOKENS,), rounds=7):
    """The keys of `./dev bench parallel` for the last of `tokens`, and a table of all."""
    table = {}
    with Network(size) as network:
        ranks = Ranks(network, LAYERS[layer])
        try:
            rate, product_us, sums_us = balance(network, ranks, tokens[-1])
            for count in tokens:
                table[count], picked = gains(ranks, count, rounds, CHUNKS)
        finally:
            ranks.close()
    last = table[tokens[-1]]
    best = max(CHUNKS, key=lambda count: last[count])
    return {"rowpar_gain": last[best], "rowpar_auto": last[0] / last[best], "rowpar_best_chunks": best,
            "rowpar_auto_chunks": picked, "rowpar_link_mbit_s": rate / 1e6, "rowpar_product_ms": product_us / 1e3,
            "rowpar_sums_over_product": sums_us / product_us}, table


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", choices=LAYERS, default="70b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    tokens = (1024, 2048, 4096, 16384, TOKENS) if arguments.table else (TOKENS,)
    flat, table = measure(arguments.layer, arguments.ranks, tokens, arguments.rounds)
    if arguments.table:
        print("| tokens | " + " | ".join(map(str, CHUNKS)) + " | auto |", file=sys.stderr)
        for count in sorted(table):
            row = [f"{table[count][chunks]:.2f}" for chunks in [*CHUNKS, 0]]
            print(f"| {count} | " + " | ".join(row) + " |", file=sys.stderr)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
