"""What chunks cost outlives the processes that learned it: --chunk-profile, `baton validate --chunk-plan` and a
partition by measured times."""

import json
import random
import re
import subprocess

import pytest

import cluster as clusters
from client import Client

PLAYED = {
    "name": "small costs",
    "model": {"layers": 12, "hidden_size": 64, "kv_heads": 1, "head_dim": 8, "context_tokens": 8192,
              "dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "prefill": {"overhead_us": 6000, "token_us": 60, "attention_us": 0.01},
    "decode": {"overhead_us": 1000},
}
LENGTHS = (900, 300, 1500, 500, 120, 700)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    path = tmp_path_factory.mktemp("played") / "played.json"
    path.write_text(json.dumps(PLAYED))
    return path


def timed_flags(played):
    return ["--executor", "timed", "--timed-profile", played, "--kv-cache-tokens", 16384]


def timed_cluster(model, directory, played, profile, partition=None):
    return clusters.Cluster(model, directory, stages=2, flags=timed_flags(played), partition=partition,
                            router_flags=["--timed-profile", played], prefill_flags=["--chunk-profile", profile])


def known(cluster, stage0="prefill-0-0"):
    return cluster.metric(stage0, "baton_plan_costs_known")


def known_at_start(cluster, stage0="prefill-0-0"):
    """What the chain says first of it, which it does a few times a second."""
    log = cluster.processes[stage0].log
    clusters.wait_until(lambda: known(cluster, stage0) == 1
                        or "chunks are cut without knowing what they cost" in log(), 10,
                        "the chain to say whether it knows its costs")
    return known(cluster, stage0)


def learn(cluster, rounds=20):
    """Prompts of several lengths, until the costs are known."""
    drawn = random.Random(7)
    with Client(cluster.target) as client:
        for _ in range(rounds):
            for length in LENGTHS:
                answer = client.greedy([drawn.randrange(256) for _ in range(length)], 1)
                assert answer.error is None, answer.error
            if known(cluster) == 1:
                return
    raise AssertionError("the costs are not known")


@pytest.fixture(scope="module")
def learned(tiny_model, played, tmp_path_factory):
    """A file that a chain of two equal stages has written, and what the chain said of it."""
    directory = tmp_path_factory.mktemp("learned")
    path = directory / "costs.json"
    with timed_cluster(tiny_model, directory, played, path) as cluster:
        assert known_at_start(cluster) == 0 and not path.exists()
        learn(cluster)
    return path


def test_stages_measure_before_they_serve(tiny_model, tmp_path):
    prompts = [[random.Random(length).randrange(256) for _ in range(length)] for length in (5, 700, 3000)]
    answers = {}
    for sweep_ms in (0, 60000):
        directory = tmp_path / str(sweep_ms)
        directory.mkdir()
        flags = ["--chunk-sweep-ms", sweep_ms]
        with clusters.Cluster(tiny_model, directory, stages=2, prefill_flags=flags) as cluster, \
                Client(cluster.target) as client:
            logs = [cluster.processes[f"prefill-0-{stage}"].log() for stage in range(2)]
            assert all(("measured 9 chunks in " in log) == (sweep_ms > 0) for log in logs), logs
            # A machine with other things to do may make a measurement that is not to be trusted.
            told = [sweep_ms > 0 and "what they cost is known to within" in log for log in logs]
            assert known_at_start(cluster) == all(told), logs
            clusters.wait_until(cluster.idle, 20, "every page to be free")
            answers[sweep_ms] = [client.greedy(prompt, 8).tokens for prompt in prompts]
    assert answers[0] == answers[60000], "what was measured leaves nothing behind"


def test_ranks_measure_together_before_they_serve(tiny_model, tmp_path):
    flags = ["--chunk-sweep-ms", 4000]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, ranks=2, prefill_flags=flags) as cluster, \
            Client(cluster.target) as client:
        leaders = [cluster.processes[f"prefill-0-{stage}-0"].log() for stage in range(2)]
        assert all(re.search(r"2 ranks measured \d chunks in ", log) for log in leaders), leaders
        assert not any("ranks measured" in cluster.processes[f"prefill-0-{stage}-1"].log() for stage in range(2))
        told = ["what they cost is known to within" in log for log in leaders]
        assert known_at_start(cluster, "prefill-0-0-0") == all(told), leaders
        assert client.greedy([1, 2, 3], 4).error is None


def validate(model, *flags):
    arguments = [clusters.BATON, "validate", "--model-path", model, *flags]
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=60)


def test_costs_are_known_at_once_after_a_start(tiny_model, played, learned, tmp_path):
    before = json.loads(learned.read_text())
    assert [stage["layers"] for stage in before["stages"]] == [6, 6]
    for stage in before["stages"]:
        # Half of 6 ms and 60 us a token: what the stages play, and what a step takes beside it. How that falls into
        # parts is a matter of what else the machine does.
        learned_us = stage["overhead_us"] + 500 * stage["token_us"] + 500 ** 2 * stage["attention_us"]
        assert 0.7 < learned_us / (3000 + 500 * 30) < 1.5, stage
        assert stage["error"] <= 0.3, stage
    path = tmp_path / "costs.json"
    path.write_text(learned.read_text())
    with timed_cluster(tiny_model, tmp_path, played, path) as cluster:
        assert known_at_start(cluster) == 1
        cluster.processes["prefill-0-0"].wait_log("what chunks cost is read from")
        learn(cluster)
    after = json.loads(path.read_text())
    assert all(late["plans"] > early["plans"] for late, early in zip(after["stages"], before["stages"]))
    assert list(tmp_path.glob("*.new")) == []


@pytest.mark.parametrize("change,words", [
    (lambda text: text[:-20], "not valid JSON"),
    (lambda text: re.sub(r'"token_us": [^,]*', '"token_us": -1', text, count=1), '"stages[0].token_us" is -1'),
    (lambda text: text.replace('"format": 1', '"format": 7'), '"format" is 7'),
    (lambda text: text.replace('"cpu_numerics": ""', '"cpu_numerics": 7'), '"measured_on.cpu_numerics" is no string'),
    (lambda text: re.sub(r'"layers": 6', '"layers": 5', text, count=1), "have 11 layers together"),
])
def test_a_damaged_file_is_refused(tiny_model, played, learned, tmp_path, change, words):
    path = tmp_path / "costs.json"
    path.write_text(change(learned.read_text()))
    flags = [*timed_flags(played), "--pp-size", 2, "--chunk-profile", path]
    said = validate(tiny_model, *flags)
    assert said.returncode == 1 and words in said.stdout and str(path) in said.stdout, said.stdout
    worker = subprocess.run(list(map(str, [clusters.BATON, "worker", "--model-path", tiny_model,
                                           "--disaggregation-mode", "prefill", *flags])),
                            capture_output=True, text=True, check=False, timeout=60)
    assert worker.returncode != 0 and words in worker.stderr, worker.stderr


def test_another_models_file_is_left_as_it_is(tiny_model, played, learned, tmp_path):
    path = tmp_path / "costs.json"
    document = json.loads(learned.read_text())
    document["measured_on"].update(config="0123456789abcdef", model="other")
    path.write_text(json.dumps(document))
    before = path.read_bytes()
    with timed_cluster(tiny_model, tmp_path, played, path) as cluster:
        assert known_at_start(cluster) == 0
        learn(cluster)
        cluster.processes["prefill-0-0"].wait_log("the model is other there and tiny here")
    assert path.read_bytes() == before


def test_the_chunks_of_a_prompt_are_shown(tiny_model, played, learned):
    flags = [*timed_flags(played), "--pp-size", 2, "--chunk-plan", 8000]
    for source in ([], ["--chunk-profile", learned]):
        said = validate(tiny_model, *flags, *source)
        assert said.returncode == 0, said.stdout
        assert "a prompt of 8000 tokens alone in a chain of 2 stages" in said.stdout
        rows = {line.split()[0]: line.split() for line in said.stdout.splitlines() if line}
        over = {rule: float(rows[rule][-2]) for rule in ("fixed", "sglang", "optimal")}
        assert 1 <= over["optimal"] <= min(over.values()) + 0.01, over
        assert rows["optimal"][1] == "*" and rows["bound"][1:] == [rows["bound"][1], "1.0000"]
        assert (str(learned) if source else str(played)) in said.stdout
    unknown = validate(tiny_model, "--chunk-plan", 8000)
    assert unknown.returncode == 0 and "what it takes is not known" in unknown.stdout, unknown.stdout
    long = validate(tiny_model, *flags[:-1], 9000)
    assert long.returncode == 1 and "no prompt is longer than 8192 tokens" in long.stdout, long.stdout


def test_a_simulation_begins_with_what_the_file_says(played, learned, tmp_path):
    document = json.loads(learned.read_text())
    for stage in document["stages"]:
        stage.update(overhead_us=1000, prefix_us=0, token_us=30, attention_us=0.005)
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(document))
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 8000, "output_length": 1}\n')

    def simulate(*flags):
        arguments = [clusters.BATON, "simulate", "--timed-profile", played, "--kv-cache-tokens", 16384,
                     "--trace", trace, "--json", "-", *flags]
        return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=60)

    def chunk_count(*flags):
        said = simulate("--pp-size", 2, *flags)
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)["chains"][0]["stages"][0]["plans"]
    unknowing = chunk_count("--chunk-sweep-ms", 0)
    assert unknowing == 9, "four chunks a stage, the first one halved"
    # With a third of the real overhead smaller chunks pay.
    assert chunk_count("--chunk-sweep-ms", 0, "--chunk-profile", path) > 2 * unknowing
    other = simulate("--pp-size", 4, "--chunk-profile", path)
    assert other.returncode == 2 and "chunk_profile" in other.stderr and str(path) in other.stderr, other.stderr


def test_stages_are_cut_by_measured_times(tiny_model, played, learned, tmp_path):
    path = tmp_path / "costs.json"
    document = json.loads(learned.read_text())
    document["stages"][0].update(overhead_us=3000, prefix_us=0, token_us=30, attention_us=0.005)
    document["stages"][1].update(overhead_us=9000, prefix_us=0, token_us=90, attention_us=0.015)
    path.write_text(json.dumps(document))
    before = path.read_bytes()
    flags = [*timed_flags(played), "--pp-size", 2, "--pp-layer-partition", "auto"]
    said = validate(tiny_model, *flags, "--chunk-profile", path)
    assert said.returncode == 0 and "[0, 9)" in said.stdout and "[9, 12)" in said.stdout, said.stdout
    played_alone = validate(tiny_model, *flags)
    assert "[0, 6)" in played_alone.stdout and "[6, 12)" in played_alone.stdout, played_alone.stdout
    missing = validate(tiny_model, *flags, "--chunk-profile", tmp_path / "none.json")
    assert missing.returncode == 1 and "there is no" in missing.stdout, missing.stdout
    # Workers that are started one by one come to the same split, and none changes what the next one reads.
    with timed_cluster(tiny_model, tmp_path, played, path, partition="auto") as cluster:
        cluster.processes["prefill-0-0"].wait_log("layers [0, 9) of 12")
        cluster.processes["prefill-0-1"].wait_log("layers [9, 12) of 12")
        assert known_at_start(cluster) == 1
        learn(cluster)
    assert path.read_bytes() == before
