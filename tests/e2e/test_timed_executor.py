"""Clusters whose layers are computed by nobody, in the time that a profile says: the answer still follows from the
prompt, through real chunks, activations and hand-offs of a model's real sizes."""

import json
import pathlib
import random
import subprocess

import pytest

import cluster as clusters
from client import Client

MASK = 2**64 - 1
COUNT = 10
PROFILE = {
    "name": "a large model's sizes, and small costs",
    "model": {"layers": 12, "hidden_size": 7168, "kv_heads": 1, "head_dim": 288, "context_tokens": 8192,
              "dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "prefill": {"stage_overhead_us": 2000, "overhead_us": 1000, "token_us": 20, "attention_us": 0.01},
    "decode": {"overhead_us": 3000, "sequence_us": 50, "context_us": 0.01},
    "noise": {"relative": 0.05, "seed": 5},
}


def mix(value):
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def continuation(prompt, count, vocabulary, eos):
    """As common/engine/timed/timed_stage_model.h says, written once more."""
    tokens, word, milestones, answer = list(prompt), 0x62A70, 0, []
    position = 0
    while len(answer) < count:
        if position > 0 and position % 64 == 0:
            milestones = (milestones + mix(word ^ (position - 1))) & MASK
        word = mix(word ^ mix((tokens[position] << 32) | position))
        position += 1
        if position < len(tokens):
            continue
        drawn = mix((word + milestones) & MASK)
        while drawn % vocabulary in eos:
            drawn = mix(drawn)
        answer.append(drawn % vocabulary)
        tokens.append(answer[-1])
    return answer


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "toy.json"
    path.write_text(json.dumps(PROFILE, indent=1))
    return path


def config_of(model):
    return json.loads(pathlib.Path(model, "config.json").read_text(encoding="utf-8"))


def ends(model):
    eos = config_of(model).get("eos_token_id", [])
    return eos if isinstance(eos, list) else [eos]


@pytest.mark.parametrize("plans", [1, 2, 4])
def test_answers_follow_from_the_prompts(tiny_model, profile, tmp_path, plans):
    timed = ["--timed-profile", profile]
    flags = ["--executor", "timed", *timed, "--page-size", 16, "--kv-cache-tokens", 8192]
    vocabulary = config_of(tiny_model)["vocab_size"]
    lengths = [1, 64, 65, 700]
    prompts = [[random.Random(length).randrange(256) for _ in range(length)] for length in lengths]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=flags, router_flags=timed,
                          prefill_flags=["--chunked-prefill-size", 64, "--plans-in-flight", plans],
                          ) as cluster, Client(cluster.target) as client:
        for prompt, answer in zip(prompts, client.greedy_at_once(prompts, COUNT)):
            assert answer.error is None, answer.error
            expected = continuation(prompt, COUNT, vocabulary, ends(tiny_model))
            assert answer.tokens == expected, f"prompt of {len(prompt)} tokens"
        # Twelve chunks at least, of 2.5 ms and 10 us a token; a stage tells its times now and then.
        least = 0.9 * (12 * 0.0025 + 700 * 0.00001)
        clusters.wait_until(lambda: cluster.metric("prefill-0-1", "baton_stage_busy_seconds_total") > least, 5,
                            "the stage to have been busy for as long as its chunks take")


@pytest.mark.parametrize("stages, ranks, decode_ranks, kv_heads", [(2, 2, 4, 4), (1, 4, 2, 1)],
                         ids=["heads dealt out anew", "a head that all share"])
def test_ranks_play_together(tiny_model, tmp_path, stages, ranks, decode_ranks, kv_heads):
    """Each has its heads' words and its slice of the activations, and all compare theirs at every step."""
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps({**PROFILE, "model": {**PROFILE["model"], "kv_heads": kv_heads, "head_dim": 64}}))
    timed = ["--timed-profile", path]
    prompts = [[random.Random(length).randrange(256) for _ in range(length)] for length in (1, 65, 300)]
    with clusters.Cluster(tiny_model, tmp_path, stages=stages, ranks=ranks, decode_ranks=decode_ranks,
                          flags=["--executor", "timed", *timed, "--page-size", 16, "--kv-cache-tokens", 2048],
                          router_flags=timed, prefill_flags=["--chunked-prefill-size", 64]) as cluster, \
            Client(cluster.target) as client:
        for prompt, answer in zip(prompts, client.greedy_at_once(prompts, COUNT)):
            assert answer.error is None, answer.error
            expected = continuation(prompt, COUNT, config_of(tiny_model)["vocab_size"], ends(tiny_model))
            assert answer.tokens == expected, f"prompt of {len(prompt)} tokens"
        clusters.wait_until(cluster.idle, 10, "pages to come back")


def run(command, model, *flags):
    arguments = [clusters.BATON, command, "--model-path", model, *flags]
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("flags,words", [
    (["--executor", "timed"], "timed_profile"),
    (["--timed-profile", "PROFILE"], "does not play it"),
    (["--executor", "timed", "--timed-profile", "/nowhere.json"], "/nowhere.json"),
    (["--executor", "timed", "--timed-profile", "BROKEN"], "\"prefill.token_us\" is \"20\", expected a number"),
])
def test_a_profile_that_cannot_be_played_is_refused(tiny_model, profile, tmp_path, flags, words):
    broken = tmp_path / "broken.json"
    broken.write_text(profile.read_text().replace("\"token_us\": 20", "\"token_us\": \"20\""))
    known = {"PROFILE": profile, "BROKEN": broken}
    refused = run("validate", tiny_model, *[known.get(flag, flag) for flag in flags])
    assert refused.returncode != 0
    assert words in refused.stdout + refused.stderr, refused.stdout + refused.stderr
