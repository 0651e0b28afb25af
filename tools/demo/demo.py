"""`./dev demo`: a local cluster continues a real document, and shows where the time went.

Starts `baton up` (router, two prefill stages, one decode on free loopback ports), sends the shipped
document through gRPC, streams the continuation as it comes, then prints what the cluster measured. At the end
`baton serve` does the same with one chain that also decodes.
With --serve the cluster stays up and the lines to try are printed; with --observe also a Prometheus with
the shipped rules and dashboards. What this script does not know goes to `baton up` (--decodes 2, say).
"""

import argparse
import contextlib
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "cluster"), str(ROOT / "tools" / "observe")]

import grpc  # noqa: E402

import observe  # noqa: E402
import prometheus  # noqa: E402
import stubs  # noqa: E402

MODEL = ROOT / "models" / "austen"
# All of what `baton up` prints then: the table of processes ends with a curl line.
READY = re.compile(r"cluster ready: http=(\S+) grpc=(\S+).*^    -d '", re.DOTALL | re.MULTILINE)
START_SECONDS = 120


class Cluster:
    """`baton up` or `serve` as a child; its log goes to a file, its ready line tells the addresses."""

    def __init__(self, baton, log_path, what, command, extra=()):
        self.log_path, self.what = log_path, what
        command = [baton, *command, "--served-model-name", "austen", "--port", "0", "--grpc-port", "0",
                   "--cluster-port", "0", *extra]
        with open(log_path, "wb") as log:
            # A session of its own: Ctrl-C reaches this script alone, which then stops the cluster.
            self.popen = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT,
                                          stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_ready(self):
        deadline = time.monotonic() + START_SECONDS
        bar = Progress(f"starting {self.what}")
        while time.monotonic() < deadline:
            match = READY.search(self.log())
            if match:
                bar.done()
                return match.group(1), match.group(2)
            if self.popen.poll() is not None:
                break
            bar.tick()
            time.sleep(0.1)
        bar.done()
        raise SystemExit(f"the cluster did not start; its log:\n{self.log()}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def stop(self):
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()


class Progress:
    """A spinner with seconds on a terminal, one plain line otherwise."""

    def __init__(self, what):
        self.what, self.start, self.terminal = what, time.monotonic(), sys.stderr.isatty()
        if not self.terminal:
            print(f"==> {what} ...", file=sys.stderr, flush=True)

    def tick(self):
        if self.terminal:
            print(f"\r==> {self.what} ... {time.monotonic() - self.start:4.1f} s", end="", file=sys.stderr, flush=True)

    def done(self):
        if self.terminal:
            print(f"\r==> {self.what}: {time.monotonic() - self.start:.1f} s   ", file=sys.stderr)


def stream(inference, prompt, max_tokens):
    """Prints the continuation as it comes; returns Finished."""
    request = stubs.inference.GenerateRequest(
        text=prompt, sampling=stubs.common.SamplingParams(temperature=0.8, top_p=0.9, seed=7,
                                                          max_tokens=max_tokens, ignore_eos=True))
    bar = Progress(f"prefilling {len(prompt):,} characters")
    waiting = threading.Event()

    def tick():
        while not waiting.wait(0.1):
            bar.tick()
    ticker = threading.Thread(target=tick)
    ticker.start()
    finished = None
    try:
        for response in inference.Generate(request, timeout=600):
            if not waiting.is_set():
                waiting.set()
                ticker.join()
                bar.done()
                print(f"\n\033[2m... {prompt[-200:].strip()}\033[0m" if sys.stdout.isatty()
                      else f"\n... {prompt[-200:].strip()}", end="", flush=True)
            if response.HasField("tokens"):
                print(response.tokens.text, end="", flush=True)
            else:
                finished = response.finished
                print(finished.text, end="")
    finally:
        waiting.set()
        ticker.join()
    print("\n")
    return finished


def table(rows, header):
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [header, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join("  " + line for line in lines)


def ms(microseconds):
    return f"{microseconds / 1000:.1f}"


def report(finished):
    usage, timing, prefill = finished.usage, finished.timing, finished.timing.prefill
    decode_us = timing.e2e_us - timing.ttft_us
    tpot_us = decode_us / max(1, usage.completion_tokens - 1)
    print("Request")
    print(table([[usage.prompt_tokens, usage.completion_tokens, ms(timing.ttft_us), ms(tpot_us), ms(timing.e2e_us)]],
                ["prompt tokens", "new tokens", "TTFT ms", "TPOT ms", "end to end ms"]))
    print("\nPrefill, by chunk and stage")
    rows = []
    for chunk in prefill.chunks:
        for stage in chunk.stages:
            rows.append([chunk.token_begin, chunk.token_count, stage.stage, ms(stage.compute_us), ms(stage.wait_us)])
    print(table(rows, ["first token", "tokens", "stage", "compute ms", "wait ms"]))
    seconds = prefill.kv_transfer_us / 1e6
    rate = f"{prefill.kv_bytes / seconds / 1e9:.2f}" if seconds > 0 else "-"
    print("\nKV hand-off")
    print(table([[f"{prefill.kv_bytes / 1e6:.1f}", ms(prefill.kv_transfer_us), rate, ms(prefill.kv_exposed_us)]],
                ["MB", "busiest stage ms", "GB/s", "after the last chunk ms"]))
    rest_us = timing.ttft_us - timing.queue_us - timing.reserve_us - prefill.queue_us - prefill.compute_us
    print("\nWhere the time to first token went")
    parts = [("queue in the router", timing.queue_us), ("reservation at decode", timing.reserve_us),
             ("queue at stage 0", prefill.queue_us), ("chunks through the chain", prefill.compute_us),
             ("hand-off, commit, wire", rest_us)]
    print(table([[name, ms(us), f"{100 * us / timing.ttft_us:.1f} %"] for name, us in parts], ["part", "ms", "share"]))
    print(f"\n  chain {finished.prefill_chain}, decode {finished.decode_instance}, "
          f"{finished.attempts} attempt(s)")


def one_command(baton, log_path, prompt, max_tokens):
    """`baton serve MODEL` with the same prompt and seed, and so the same text."""
    print(f"\nThe same by one command and no decode service: baton serve {MODEL.relative_to(ROOT)}\n", flush=True)
    cluster = Cluster(baton, log_path, "router and one colocated chain", ["serve", str(MODEL)])
    try:
        _, target = cluster.wait_ready()
        with grpc.insecure_channel(target) as channel:
            finished = stream(stubs.inference_grpc.InferenceStub(channel), prompt, max_tokens)
        timing = finished.timing
        tpot_us = (timing.e2e_us - timing.ttft_us) / max(1, finished.usage.completion_tokens - 1)
        print(f"  TTFT {ms(timing.ttft_us)} ms, TPOT {ms(tpot_us)} ms, no KV sent, "
              f"ready {re.search(r'cluster ready: .* after ([0-9.]+ s)', cluster.log()).group(1)} after its start")
    finally:
        cluster.stop()


def serve(http, target, more=""):
    print(f"""{more}
The cluster stays up; Ctrl-C stops it. Try, in another terminal:

  curl -s http://{http}/v1/models
  curl -sN http://{http}/v1/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "austen", "prompt": "It was a truth", "max_tokens": 60, "stream": true}}'
  curl -s http://{http}/metrics | grep baton_time_to_first_token
  /usr/bin/python3 examples/python/make_stubs.py  # once
  /usr/bin/python3 examples/python/generate.py --target {target} "It was a truth"
""", flush=True)
    signal.pause()


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--baton", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help="leave the cluster up and print lines to try")
    parser.add_argument("--observe", action="store_true",
                        help="--serve, and a Prometheus with rules and dashboards beside it")
    parser.add_argument("--prometheus-port", type=int, default=observe.DEFAULT_PORT)
    parser.add_argument("--prompt", type=pathlib.Path, default=MODEL / "demo_prompt.txt", help="another document")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--log", type=pathlib.Path, default=ROOT / ".cache" / "demo.log")
    arguments, extra = parser.parse_known_args()
    arguments.log.parent.mkdir(exist_ok=True)
    prompt = arguments.prompt.read_text(encoding="utf-8")
    # A signal ends the script through the same path as the end of the demo: the cluster is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = None
    try:
        if arguments.observe:  # Before anything runs: what is missing will not be there later.
            prometheus.check(arguments.prometheus_port, "--prometheus-port")
        cluster = Cluster(arguments.baton, arguments.log, "router, two prefill stages and one decode",
                          ["up", "--model-path", str(MODEL), "--pp-size", "2", "--decodes", "1",
                           "--chunked-prefill-size", "1024"], extra)
        http, target = cluster.wait_ready()
        with contextlib.ExitStack() as stack:
            what_to_open = stack.enter_context(observe.observing(
                cluster.log(), target, prompt, arguments.prometheus_port)) if arguments.observe else ""
            with grpc.insecure_channel(target) as channel:
                report(stream(stubs.inference_grpc.InferenceStub(channel), prompt, arguments.max_tokens))
            if arguments.serve or arguments.observe:
                serve(http, target, what_to_open)
        cluster.stop()
        one_command(arguments.baton, arguments.log.with_name("demo-serve.log"), prompt, arguments.max_tokens)
    except prometheus.Unavailable as error:
        raise SystemExit(f"--observe: {error}")
    except grpc.RpcError as error:
        raise SystemExit(f"the request failed: {error.code().name}: {error.details()}\nlog: {arguments.log}")
    except KeyboardInterrupt:
        print("\nstopping the cluster", file=sys.stderr)
    finally:
        if cluster is not None:
            cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
