"""Chains that also decode, beside pairs, and the prefix cache: real processes, models/austen, two threads a machine.

Prints one flat JSON object; ratios are of one run.
- itl_p99_guard: the 99th percentile of the time between tokens of 8 streams while prompts of 10,000 tokens arrive, over
  the same without them, with --target-itl-ms; itl_p99_wait with --decode-max-wait-ms, itl_p99_unbounded without both.
- itl_ttft_cost, wait_ttft_cost: the mean TTFT of those prompts, bounded by one of the two, over unbounded. Of these
  and the three above the median of some turns.
- prefix_ttft_*: TTFT of a prompt of 4,096 tokens of which 3,840 are cached, over one of which none is.
- decode_cached_bytes: KV bytes that decode is sent of such a prompt, over those of the pages that it lacks.
- decode_pp_slots: tokens a second of 16 streams in a chain of two timed stages, over what one slot would give.
- token_added_us: what a token of one stream takes there beyond both stages' steps: its way to the last stage and back.
- token_roundtrip_us: of that, from the last stage's draw to its next plan's coming: the last stage's time without a
  plan, over the stream's tokens; the median of some streams. So it has one message more than the way to stage 0.
- overlap_added_us_off, _on: what a token of 16 streams takes beyond a step of 1 ms, in a chain of one timed stage, by
  --overlap-schedule.
- retraction_same: whether 200 texts of which a third fit the pool together, with pages for 16 new tokens each at first,
  are those of a pool that has room; retraction_throughput: their rate over that pool's; retractions: their number.
- serve_vs_split_*: requests and tokens a second of one colocated chain with two threads, over a cluster of a prefill
  stage and a decode service with one thread each.
"""

import concurrent.futures
import contextlib
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "cluster"))

import cluster as clusters  # noqa: E402
from client import Client  # noqa: E402

MODEL = ROOT / "models" / "austen"
STREAMS, STREAM_TOKENS, LONG, ARRIVALS = 8, 600, 10_000, 4
TARGET_ITL_MS, MAX_WAIT_MS, GUARD_PAGE, GUARD_TURNS = 10, 10, 16, 3
PAGE, KV_TOKEN_BYTES = 64, 6 * 2 * 2 * 64 * 2  # austen's layers, keys and values, heads, dimensions, bytes.
SLOT_STREAMS, SLOT_TOKENS, SLOT_ROW_US = 16, 150, 1000  # A row in each of the two stages.
STEP_US, STEP_TOKENS, STEP_TURNS = 1_000, 1_000, 5
PREFIX, PROMPT, ROUNDS = 3_840, 4_096, 9
LOAD = [(random.Random(i).choice((100, 800, 2_000)), random.Random(1_000 + i).choice((16, 64, 160))) for i in range(60)]


def tokens(length, seed):
    drawn = random.Random(seed)
    return [drawn.randrange(4_000) for _ in range(length)]


def checked(answer):
    if answer.error is not None:
        raise SystemExit(f"a request failed: {answer.error}")
    return answer


@contextlib.contextmanager
def serving(colocated, *flags, kv_tokens=120_000):
    """A client of a colocated chain with two threads, or of a prefill stage and a decode service with one each."""
    shape = {"chains": 0, "decodes": 0, "colocated": 1, "colocated_flags": ["--threads", 2]} if colocated else {}
    flags = ["--kv-cache-tokens", kv_tokens, *flags]
    with tempfile.TemporaryDirectory() as logs, \
            clusters.Cluster(str(MODEL), logs, stages=1, flags=flags, **shape) as one, Client(one.target) as client:
        client.cluster = one
        yield client


def spread(flat, key, values):
    flat[key] = round(statistics.median(values), 3)
    flat[key + "_min"], flat[key + "_max"] = round(min(values), 3), round(max(values), 3)


def gaps_ms(client, seed):
    """Milliseconds between the tokens of one stream."""
    times = []
    request = client.request(tokens(64, seed), temperature=0, max_tokens=STREAM_TOKENS, ignore_eos=True)
    for response in client.inference.Generate(request, timeout=300):
        if response.HasField("tokens"):
            times.append(time.monotonic())
    return [(after - before) * 1e3 for before, after in zip(times, times[1:])]


def under_prompts(client, seed, arrivals):
    """(gaps of all streams, TTFT ms of the long prompts that arrive meanwhile)."""
    with concurrent.futures.ThreadPoolExecutor(STREAMS + 1) as pool:
        streams = [pool.submit(gaps_ms, client, seed + i) for i in range(STREAMS)]
        time.sleep(0.5)
        ttfts = []
        for i in range(arrivals):
            answer = checked(client.greedy(tokens(LONG, seed + 100 + i), 1))
            ttfts.append(answer.finished.timing.ttft_us / 1e3)
        return [gap for stream in streams for gap in stream.result()], ttfts


def p99(values):
    return statistics.quantiles(values, n=100)[98]


def guarded(flags):
    """(ITL p99 under long prompts, over the same without them, mean TTFT of the prompts), with one chain."""
    with serving(True, "--disable-radix-cache", "--page-size", GUARD_PAGE, *flags) as client:
        under_prompts(client, 1, 2)  # Costs are learned.
        quiet, _ = under_prompts(client, 1_000, 0)
        loaded, ttfts = under_prompts(client, 2_000, ARRIVALS)
    return p99(loaded), p99(loaded) / p99(quiet), statistics.mean(ttfts)


def measure_guard(flat):
    ways = {"unbounded": [], "guard": ["--target-itl-ms", TARGET_ITL_MS], "wait": ["--decode-max-wait-ms", MAX_WAIT_MS]}
    turns = [{name: guarded(flags) for name, flags in ways.items()} for _ in range(GUARD_TURNS)]
    for name in ways:
        for i, key in enumerate((f"itl_p99_ms_{name}", f"itl_p99_{name}", f"ttft_ms_{name}")):
            spread(flat, key, [turn[name][i] for turn in turns])
    for name, key in (("guard", "itl_ttft_cost"), ("wait", "wait_ttft_cost")):
        spread(flat, key, [turn[name][2] / turn["unbounded"][2] for turn in turns])
    flat["target_itl_ms"], flat["decode_max_wait_ms"] = TARGET_ITL_MS, MAX_WAIT_MS


def received(cluster):
    """KV bytes that decode has been sent."""
    return cluster.metric("decode-0", "baton_kv_transfer_bytes_total")


def measure_prefix(flat):
    bytes_sent = []
    for name, colocated in (("colocated", True), ("apart", False)):
        ratios = []
        with serving(colocated) as client:
            checked(client.greedy(tokens(PROMPT, 1_000), 1))
            for turn in range(ROUNDS):
                cold = checked(client.greedy(tokens(PROMPT, turn), 1)).finished
                prompt = tokens(PROMPT, turn)[:PREFIX] + tokens(PROMPT - PREFIX, 50 + turn)
                before = None if colocated else received(client.cluster)
                warm = checked(client.greedy(prompt, 1)).finished
                if not colocated:
                    bytes_sent.append(received(client.cluster) - before)
                assert (cold.usage.cached_tokens, warm.usage.cached_tokens) == (0, PREFIX), (cold.usage, warm.usage)
                ratios.append(warm.timing.ttft_us / cold.timing.ttft_us)
        spread(flat, f"prefix_ttft_{name}", ratios)
    lacking = (PROMPT - PREFIX + PAGE - 1) // PAGE * PAGE * KV_TOKEN_BYTES
    flat["decode_cached_bytes"] = round(max(bytes_sent) / lacking, 3)


def stage_profile(path, decode):
    """A decode step takes what `decode` says, whatever it reads."""
    path.write_text(json.dumps({
        "name": "rows", "prefill": {"token_us": 1}, "decode": decode,
        "model": {"layers": 2, "hidden_size": 256, "kv_heads": 1, "head_dim": 64, "context_tokens": 4096,
                  "dtype": "bfloat16", "kv_dtype": "bfloat16"}}), encoding="utf-8")


def roundtrip_us(cluster, stream):
    """Each of a stream's tokens makes the last stage wait for a plan once; the last one is followed by its end."""
    def waited_s():
        time.sleep(1)  # Counters are published now and then.
        return cluster.metric("colocated-0-1", "baton_stage_idle_seconds_total", reason="bubble")
    before = waited_s()
    stream()
    return (waited_s() - before) * 1e6 / SLOT_TOKENS


@contextlib.contextmanager
def timed_chain(stages, decode, *flags):
    """A client of a colocated chain whose decode steps are waits."""
    with tempfile.TemporaryDirectory() as directory:
        profile = pathlib.Path(directory) / "profile.json"
        stage_profile(profile, decode)
        timed = ["--timed-profile", profile]
        flags = ["--executor", "timed", *timed, "--kv-cache-tokens", 1 << 16, "--memory-check", "off", *flags]
        with clusters.Cluster(str(MODEL), directory, stages=stages, chains=0, decodes=0, colocated=1,
                              router_flags=timed, flags=flags) as one, Client(one.target) as client:
            client.cluster = one
            yield client


def seconds_of_streams(client, count):
    """How long SLOT_STREAMS texts of so many tokens take together."""
    with concurrent.futures.ThreadPoolExecutor(SLOT_STREAMS) as pool:
        begun = time.monotonic()
        list(pool.map(lambda number: checked(client.greedy(tokens(16, number), count)), range(SLOT_STREAMS)))
        return time.monotonic() - begun


def measure_overlap(flat):
    ways = {"off": [], "on": []}
    for _ in range(STEP_TURNS):
        for way, added in ways.items():
            with timed_chain(1, {"overhead_us": STEP_US, "sequence_us": 0}, "--overlap-schedule", way) as client:
                seconds_of_streams(client, 20)
                added.append(seconds_of_streams(client, STEP_TOKENS) * 1e6 / STEP_TOKENS - STEP_US)
    for way, added in ways.items():
        spread(flat, f"overlap_added_us_{way}", added)


def measure_slots(flat):
    # A row takes SLOT_ROW_US in each of the two stages.
    with timed_chain(2, {"overhead_us": 0, "sequence_us": 2 * SLOT_ROW_US}) as client:
        def stream(number):
            return checked(client.greedy(tokens(16, number), SLOT_TOKENS))
        stream(0)
        seconds = seconds_of_streams(client, SLOT_TOKENS)
        gaps = sorted(gaps_ms(client, 1))
        spread(flat, "token_roundtrip_us", [roundtrip_us(client.cluster, lambda: stream(2)) for _ in range(ROUNDS)])
    # With one slot the stages take turns: all rows of a token pass both.
    flat["decode_pp_slots"] = round(SLOT_STREAMS * SLOT_TOKENS * 2 * SLOT_ROW_US / 1e6 / seconds, 3)
    middle = gaps[len(gaps) // 4:-len(gaps) // 4]
    spread(flat, "token_added_us", [1e3 * gap - 2 * SLOT_ROW_US for gap in middle])


def throughput(client):
    """(requests/s, tokens/s) of LOAD, twelve at a time."""
    turn = threading.Lock()
    todo = list(enumerate(LOAD))

    def work():
        while True:
            with turn:
                if not todo:
                    return
                i, (length, count) = todo.pop()
            checked(client.greedy(tokens(length, 500 + i), count))

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work) for _ in range(12)]:
            done.result()
    seconds = time.monotonic() - begun
    return len(LOAD) / seconds, sum(count for _, count in LOAD) / seconds


def measure_load(flat):
    rates = {}
    for _ in range(3):  # In turns: the machine may be busier at one time than at another.
        for name, colocated in (("serve", True), ("split", False)):
            with serving(colocated, "--disable-radix-cache") as client:
                throughput(client)
                rates.setdefault(name, []).append(throughput(client))
    for i, what in enumerate(("requests", "tokens")):
        spread(flat, f"serve_vs_split_{what}", [a[i] / b[i] for a, b in zip(rates["serve"], rates["split"])])
        flat[f"serve_{what}_per_s"] = round(statistics.median(rate[i] for rate in rates["serve"]), 2)


def texts(client):
    """200 texts, 24 at a time, and how many seconds they took."""
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda i: checked(client.greedy(tokens(64, 900 + i), 200)).tokens, range(200)))
    return answers, time.monotonic() - begun


def measure_retraction(flat):
    with serving(True) as client:
        expected, roomy_s = texts(client)
    with serving(True, "--num-reserved-decode-tokens", 16, kv_tokens=24 * 264 // 3) as client:
        answers, pressed_s = texts(client)
        time.sleep(1)  # Counters are published now and then.
        flat["retractions"] = client.cluster.metric("colocated-0-0", "baton_retractions_total")
    flat["retraction_same"] = int(answers == expected)
    flat["retraction_throughput"] = round(roomy_s / pressed_s, 3)


def main():
    parts = {"overlap": measure_overlap, "prefix": measure_prefix, "slots": measure_slots,
             "retraction": measure_retraction, "guard": measure_guard, "load": measure_load}
    flat = {"streams": STREAMS, "long_prompt_tokens": LONG}
    for part in sys.argv[1:] or parts:
        parts[part](flat)
    print(json.dumps(flat, indent=1))


if __name__ == "__main__":
    main()
