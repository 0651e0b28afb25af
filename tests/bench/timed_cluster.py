"""A cluster of real processes whose computations are waits, as long as Qwen3-235B's on an H20 are."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "cluster"))

import cluster as clusters  # noqa: E402
from client import Client, membership  # noqa: E402,F401

MODEL = ROOT / "models" / "austen"  # Its tokenizer; the profile says the rest.
PROFILE = ROOT / "common" / "engine" / "timed" / "profiles" / "qwen3-235b-h20.json"
TOKENS = 131072


def played_profile(path, hidden_size, head_dim=8):
    """The shipped costs; activations of `hidden_size`, and a KV cache that fits beside other processes."""
    profile = json.loads(PROFILE.read_text(encoding="utf-8"))
    profile["model"].update(hidden_size=hidden_size, kv_heads=1, head_dim=head_dim, layers=96)
    path.write_text(json.dumps(profile), encoding="utf-8")
    return profile


def bound_us(profile, stages):
    """No plan has the first token of TOKENS sooner: equal chunks in time, as many as are best, without the grain of
    pages."""
    cost = profile["prefill"]
    overhead = cost["stage_overhead_us"] + cost["overhead_us"] / stages
    work = (cost["token_us"] * TOKENS + cost["attention_us"] * TOKENS * TOKENS) / stages
    return (work ** 0.5 + ((stages - 1) * overhead) ** 0.5) ** 2


def timed_cluster(directory, profile_path, stages, prefill_flags, traces=None, kv_tokens=TOKENS + 1024):
    """`traces`: the collector of everybody's spans."""
    shared = ["--timed-profile", profile_path, *(["--otlp-traces-endpoint", traces] if traces else [])]
    flags = ["--executor", "timed", *shared, "--kv-cache-tokens", kv_tokens, "--memory-check", "off",
             "--disable-radix-cache"]
    return clusters.Cluster(str(MODEL), directory, stages=stages, flags=flags, router_flags=shared,
                            prefill_flags=prefill_flags)


def timing_of(client, prompt):
    """The request's own times, of its first token."""
    answer = client.greedy(prompt, 1, timeout=300)
    if answer.error is not None:
        raise SystemExit(f"the request failed: {answer.error}")
    return answer.finished.timing
