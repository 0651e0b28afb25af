"""What prefill and decode of a model of Qwen3-0.6B's shape take on this machine's cores, as a timed profile.

A worker for each, with a thread for every core, in bfloat16 with random weights; one of them computes at a time. Chunks
of several sizes give the profile's prefill, steps of one, two and four sequences its decode. Prints one flat JSON
object: the costs, and cpu_prefill_error and cpu_decode_error, how far they are off for chunks and steps that they were
not fitted to. The profile itself lies in .cache/bench/qwen3-0.6b-cpu.json: what `--timed-profile` reads.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import tempfile
import threading

import cost_fit
from timed_cluster import ROOT, Client, clusters, timing_of

SHAPE = {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "intermediate_size": 3072,
         "vocab_size": 151936, "max_position": 8192, "dtype": "bfloat16"}
# (tokens of a chunk, of the prompt, whether it is fitted to)
PROMPTS = [(128, 512, True), (256, 1024, True), (384, 1152, False), (512, 2048, True), (768, 1536, False),
           (1024, 3072, True)]
# (sequences, tokens of each prompt, whether it is fitted to)
STEPS = [(1, 64, True), (2, 64, True), (4, 64, True), (3, 128, False), (1, 2048, True), (2, 1024, True),
         (4, 1024, True), (3, 768, False)]
MEASURED = 12
OUT = ROOT / ".cache" / "bench" / "qwen3-0.6b-cpu.json"


def processor():
    found = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "a processor that does not say its name"


def prompt(drawn, tokens):
    return [drawn.randrange(256) for _ in range(tokens)]


def running(directory, model, threads, *prefill_flags):
    flags = ["--kv-cache-tokens", 8192, "--memory-check", "off", "--disable-radix-cache"]
    cluster = clusters.Cluster(model, directory, stages=1, flags=flags, prefill_flags=prefill_flags)
    for process in cluster.processes.values():
        arguments = process.arguments
        if "--threads" in arguments:
            arguments[arguments.index("--threads") + 1] = str(threads)
    return cluster


def measure_chunks(directory, model, threads, drawn):
    """(terms, microseconds, whether it is fitted to) of every chunk."""
    rows = []
    for turn, (chunk, tokens, fitted) in enumerate(PROMPTS):
        logs = directory / f"chunks-{turn}"
        logs.mkdir()
        flags = ["--chunk-policy", "fixed", "--chunked-prefill-size", chunk]
        with running(logs, model, threads, *flags) as cluster, Client(cluster.target) as client:
            timing_of(client, prompt(drawn, chunk))  # Pages are touched for the first time.
            chunks = timing_of(client, prompt(drawn, tokens)).prefill.chunks
        rows += [(cost_fit.chunk_terms(c.token_begin, c.token_count), c.stages[0].compute_us, fitted)
                 for c in chunks]
    return rows


def decode_steps(cluster):
    """(steps, seconds) so far."""
    return (cluster.metric("decode-0", "baton_decode_steps_total"),
            cluster.metric("decode-0", "baton_decode_step_seconds_sum"))


def step_seconds(cluster, client, prompts):
    """The mean of MEASURED steps that all prompts' sequences share, and nobody else computes."""
    started = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        answers = [pool.submit(client.greedy, one, 200, on_first=started.release, timeout=600) for one in prompts]
        for _ in prompts:
            if not started.acquire(timeout=600):
                raise SystemExit("a request has no first token after ten minutes")
        clusters.wait_until(lambda: cluster.metric("prefill-0-0", "baton_requests_running") == 0, 60, "prefill to end")
        begin, begin_seconds = decode_steps(cluster)
        clusters.wait_until(lambda: decode_steps(cluster)[0] >= begin + MEASURED, 600, "steps")
        end, end_seconds = decode_steps(cluster)
        client.close()  # They are not waited for.
        for answer in answers:
            answer.result()
    return (end_seconds - begin_seconds) / (end - begin)


def measure_steps(directory, model, threads, drawn):
    """The same of decode steps: overhead + sequence * sequences + context * tokens of all of them."""
    rows = []
    logs = directory / "steps"
    logs.mkdir()
    with running(logs, model, threads) as cluster:
        for sequences, tokens, fitted in STEPS:
            prompts = [prompt(drawn, tokens) for _ in range(sequences)]
            took_us = 1e6 * step_seconds(cluster, Client(cluster.target), prompts)
            rows.append(([1, sequences, sequences * (tokens + MEASURED / 2)], took_us, fitted))
            clusters.wait_until(cluster.idle, 60, "pages to be free")
    return rows


def profile(prefill, decode, source):
    def rounded(cost):
        return [float(f"{value:.4g}") for value in cost]
    overhead, token, attention = rounded(prefill)
    step, sequence, context = rounded(decode)
    return {
        "name": f"Qwen3-0.6B on {processor()}",
        "source": source,
        "model": {"layers": SHAPE["layers"], "hidden_size": SHAPE["hidden"], "kv_heads": SHAPE["kv_heads"],
                  "head_dim": SHAPE["head_dim"], "context_tokens": 40960, "dtype": "bfloat16",
                  "kv_dtype": "bfloat16"},
        "prefill": {"overhead_us": overhead, "token_us": token, "attention_us": attention},
        "decode": {"overhead_us": step, "sequence_us": sequence, "context_us": context}}


def main():
    drawn = random.Random(1)
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        model = clusters.make_model(directory / "model", **SHAPE)
        measured = {"prefill": measure_chunks(directory, model, threads, drawn),
                    "decode": measure_steps(directory, model, threads, drawn)}
    flat, costs = {"cpu_threads": threads}, {}
    for part, rows in measured.items():
        costs[part] = cost_fit.by_ratios(*zip(*((terms, took) for terms, took, fitted in rows if fitted)))
        for key, used in (("fit_error", True), ("error", False)):
            left = [(terms, took) for terms, took, fitted in rows if fitted == used]
            flat[f"cpu_{part}_{key}"] = round(cost_fit.mean_error(costs[part], left), 4)
    made = profile(costs["prefill"], costs["decode"], (
        f"`./dev bench cpu`: {threads} threads, bfloat16, random weights, Baton's own kernels. Chunks of 128 to 1,024 "
        f"tokens behind up to 2,048, steps of 1, 2 and 4 sequences; off by {flat['cpu_prefill_error']:.1%} and "
        f"{flat['cpu_decode_error']:.1%} in the mean for chunks and steps of other sizes. One stage: what a chunk "
        "costs whatever the layers is not told apart."))
    for part in ("prefill", "decode"):
        flat.update({f"cpu_{part}_{key}": value for key, value in made[part].items()})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(flat))


if __name__ == "__main__":
    main()
