"""Bytes of activations between stages of two ranks, in slices over whole copies: slice_bytes.

Real processes, two stages of two ranks each; prompts alone, one after another. Also the medians of their times to first
token, milliseconds, in turn.
"""

import contextlib
import json
import pathlib
import statistics
import sys
import tempfile

from timed_cluster import Client, MODEL, clusters, timing_of

LENGTHS = [512, 2048, 8192]
ROUNDS = 5


def started(stack, directory, slices):
    logs = pathlib.Path(directory) / slices
    logs.mkdir()
    return stack.enter_context(clusters.Cluster(str(MODEL), logs, stages=2, ranks=2, flags=["--disable-radix-cache"],
                                                prefill_flags=[f"--pp-send-slice={slices}"]))


def bytes_sent(cluster):
    return sum(cluster.metric(f"prefill-0-0-{rank}", "baton_activation_bytes_total") for rank in range(2))


def measure():
    ttft_ms = {"true": [], "false": []}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        running = {slices: started(stack, directory, slices) for slices in ttft_ms}
        clients = {slices: stack.enter_context(Client(cluster.target)) for slices, cluster in running.items()}
        for turn in range(ROUNDS):
            for length in LENGTHS:
                prompt = [(turn * 31 + position * 7) % 4000 for position in range(length)]
                for slices, client in clients.items():
                    timing = timing_of(client, prompt)
                    if length == LENGTHS[-1]:
                        ttft_ms[slices].append(timing.ttft_us / 1e3)
        for cluster in running.values():
            clusters.wait_until(cluster.idle, 20, "every page to be free")
        sent = {slices: bytes_sent(cluster) for slices, cluster in running.items()}
    return {"slice_bytes": sent["true"] / sent["false"], "slice_sent_mib": sent["true"] / 2**20,
            "slice_ttft_ms": statistics.median(ttft_ms["true"]),
            "slice_whole_ttft_ms": statistics.median(ttft_ms["false"])}


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.exit(0)
