"""What a router takes of a processor for the streams that it relays, beside what gRPC itself takes for as many.

A colocated chain of real processes whose steps are waits decodes 64 texts at once. relay: processor time of a token in
a raw stream, both ends, over that of a token in the router (stream_bench.cc): above 1 the router takes less.
relay_http: the same raw stream beside the router's events of /v1/completions.
"""

import concurrent.futures
import json
import os
import pathlib
import socket
import subprocess
import tempfile

from timed_cluster import MODEL, PROFILE, ROOT, clusters

STREAMS, TOKENS, ROUNDS = 64, 600, 5
PROGRAM = ROOT / "bazel-bin/tests/bench/stream_bench"


def quick_profile(path):
    """Steps of about 5 ms, so that streams are paced as those of stream_bench.cc are."""
    profile = json.loads(PROFILE.read_text(encoding="utf-8"))
    profile["model"].update(hidden_size=64, kv_heads=1, head_dim=8, layers=2)
    profile["prefill"] = {"stage_overhead_us": 100, "overhead_us": 100, "token_us": 0.1, "attention_us": 0}
    profile["decode"] = {"overhead_us": 4_800, "sequence_us": 0, "context_us": 0}
    path.write_text(json.dumps(profile), encoding="utf-8")


def cpu_us(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


def read_events(port, number):
    """Reads one text as events. Nothing is parsed: a client that is busy holds streams up."""
    body = json.dumps({"model": "", "prompt": [100 + 16 * number + i for i in range(16)], "max_tokens": TOKENS,
                       "ignore_eos": True, "temperature": 0, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        end = b""
        while data := connection.recv(1 << 16):
            end = (end + data)[-200:]
        assert b"[DONE]" in end, end


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def measure_relay(flat):
    with tempfile.TemporaryDirectory() as directory:
        profile = pathlib.Path(directory) / "profile.json"
        quick_profile(profile)
        timed = ["--timed-profile", profile]
        flags = ["--executor", "timed", *timed, "--kv-cache-tokens", 1 << 17, "--memory-check", "off",
                 "--max-running-requests", STREAMS]
        with clusters.Cluster(str(MODEL), directory, stages=1, chains=0, decodes=0, colocated=1, flags=flags,
                              router_flags=timed) as cluster:
            router = cluster.processes["router"].popen.pid
            raw, relayed, http = [], [], []
            run(cluster.target)  # The first streams open the relay.
            for _ in range(ROUNDS):
                raw.append(run()["us_per_token"])
                before = cpu_us(router)
                tokens = run(cluster.target)["tokens"]
                relayed.append((cpu_us(router) - before) / tokens)
                before = cpu_us(router)
                with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
                    list(pool.map(lambda number: read_events(cluster.http_port, number), range(STREAMS)))
                http.append((cpu_us(router) - before) / (STREAMS * TOKENS))
    flat["raw_stream_us_per_token"] = round(sorted(raw)[ROUNDS // 2], 2)
    for key, values in (("relay", relayed), ("relay_http", http)):
        ratios = sorted(a / b for a, b in zip(raw, values))
        flat[key] = round(ratios[ROUNDS // 2], 3)
        flat[f"{key}_worst"], flat[f"{key}_best"] = round(ratios[0], 3), round(ratios[-1], 3)


if __name__ == "__main__":
    shown = {}
    measure_relay(shown)
    print(json.dumps(shown))
