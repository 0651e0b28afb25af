"""Penalties, biases and the log-probabilities of prompts through the whole cluster, against the
oracle's: whatever the stages and chunks, alone and in company."""

import concurrent.futures
import random

import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle

COUNT = 24
LENGTHS = [1, 17, 90, 200]
CASES = {
    "presence": {"presence": 1.5},
    "frequency": {"frequency": 0.75},
    "repetition": {"repetition": 1.25},
    "bias": {"bias": {7: 20.0, 9: -4.0}},
    "all": {"bias": {11: 2.5}, "repetition": 1.125, "frequency": 0.25, "presence": -0.5},
}


def prompt_of(length):
    return [random.Random(length).randrange(256) for _ in range(length)]


def fields(bias=None, repetition=1.0, frequency=0.0, presence=0.0):
    return {"logit_bias": [{"token_id": token, "bias": value} for token, value in (bias or {}).items()],
            "repetition_penalty": repetition, "frequency_penalty": frequency, "presence_penalty": presence}


@pytest.fixture(scope="module", params=[(1, -1), (2, 64)], ids=["one stage", "two stages, chunks of 64"])
def served(request, tiny_model, tmp_path_factory):
    stages, chunk = request.param
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("sampling"), stages=stages,
                          prefill_flags=["--chunked-prefill-size", chunk]) as cluster, \
            Client(cluster.target) as client:
        yield client


@pytest.fixture(scope="module")
def oracle(tiny_model):
    return RememberedOracle(tiny_model)


def test_penalties_and_biases_equal_the_oracles(served, oracle):
    jobs = [(name, prompt_of(length)) for name in CASES for length in LENGTHS]
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(lambda job: served.greedy(job[1], COUNT, **fields(**CASES[job[0]])), jobs))
    changed = set()
    for (name, prompt), answer in zip(jobs, answers):
        assert answer.error is None, answer.error
        assert answer.tokens == oracle.greedy(prompt, COUNT, **CASES[name]), f"{name}, {len(prompt)} tokens"
        if answer.tokens != oracle.greedy(prompt, COUNT):
            changed.add(name)
    assert changed == set(CASES), "each has changed some text"


def test_seeded_draws_under_penalties_do_not_depend_on_company(served):
    prompt = prompt_of(90)
    sampling = dict(temperature=0.8, top_p=0.9, seed=7, max_tokens=COUNT, ignore_eos=True,
                    **fields(repetition=1.2, frequency=0.5))
    alone = served.generate(prompt, **sampling)
    assert alone.error is None, alone.error
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        company = [pool.submit(served.greedy, prompt_of(length), COUNT) for length in (3, 30, 300)]
        again = [pool.submit(served.generate, prompt, **sampling) for _ in range(4)]
        for answer in again:
            assert answer.result().tokens == alone.tokens
        for answer in company:
            assert answer.result().error is None


def prompt_logprobs(client, prompt, **sampling):
    request = client.request(prompt, prompt_logprobs=True, temperature=0, max_tokens=2, **sampling)
    ids, entries, tokens_seen = [], [], False
    for response in client.inference.Generate(request, timeout=120 * clusters.PATIENCE):
        if response.HasField("prompt_logprobs"):
            assert not tokens_seen, "the prompt comes first"
            ids.extend(response.prompt_logprobs.token_ids)
            entries.extend(response.prompt_logprobs.logprobs)
        tokens_seen = tokens_seen or response.HasField("tokens")
    assert tokens_seen
    return ids, entries


@pytest.mark.parametrize("length", [1, 2, 64, 65, 300])
def test_prompt_logprobs_equal_the_oracles(served, oracle, length):
    prompt = prompt_of(length)
    ids, entries = prompt_logprobs(served, prompt, top_logprobs=3)
    assert ids == prompt
    assert not entries[0].top, "nothing stands before the first"
    if length > 1:
        expected = oracle.prompt_logprobs(prompt)
        assert [entry.logprob for entry in entries[1:]] == pytest.approx(expected, abs=2e-3)
    for token, entry in list(zip(ids, entries))[1:]:
        assert len(entry.top) == 3
        assert entry.top[0].logprob >= entry.logprob
        for top in entry.top:
            if top.token_id == token:
                assert top.logprob == entry.logprob


def test_prompt_logprobs_that_are_too_many_are_refused(served):
    request = served.request(prompt_of(10), prompt_logprobs=True, top_logprobs=21, max_tokens=1)
    answer = served.generate(None, request=request)
    assert answer.error is not None and "top_logprobs" in answer.error.details()


PROMPTS = ["It is a truth universally acknowledged, that a single man", "naïve café — 漢字 🎵", "x"]


@pytest.mark.parametrize("text", PROMPTS)
def test_lm_eval_scores_a_text_as_the_oracle_does(small_cluster, tiny_model, text):
    """What lm-eval's local-completions sends for log-likelihoods: nothing is generated, the prompt is told."""
    oracle = RememberedOracle(tiny_model)
    ids = list(text.encode())  # The tokenizer's ids are bytes.
    for prompt in (text, ids):
        status, body = small_cluster.post("/v1/completions", {
            "model": "tiny", "prompt": prompt, "max_tokens": 0, "temperature": 0, "logprobs": 1, "echo": True,
            "seed": 1234})
        assert status == 200, body
        choice = body["choices"][0]
        assert choice["text"] == text and choice["finish_reason"] == "length"
        assert body["usage"] == {**body["usage"], "prompt_tokens": len(ids), "completion_tokens": 0}
        told = choice["logprobs"]
        assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
        assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"]) == len(ids)
        if len(ids) > 1:
            assert told["token_logprobs"][1:] == pytest.approx(oracle.prompt_logprobs(ids), abs=2e-3)
        # lm-eval asks whether each token would have been the greedy one.
        for logprob, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:]):
            assert 1 <= len(top) <= 2 and max(top.values()) >= logprob
    with Client(small_cluster.target) as client:
        _, entries = prompt_logprobs(client, ids, top_logprobs=1)
    assert told["token_logprobs"][1:] == [entry.logprob for entry in entries[1:]]


def test_lm_eval_scores_a_list_of_texts_in_its_order(small_cluster):
    fields = {"model": "tiny", "max_tokens": 0, "temperature": 0, "logprobs": 1, "echo": True}
    alone = [small_cluster.post("/v1/completions", {**fields, "prompt": text})[1]["choices"][0] for text in PROMPTS]
    status, body = small_cluster.post("/v1/completions", {**fields, "prompt": PROMPTS})
    assert status == 200, body
    assert [choice["text"] for choice in body["choices"]] == PROMPTS
    assert [choice["logprobs"] for choice in body["choices"]] == [choice["logprobs"] for choice in alone]


def test_a_prompt_with_too_many_logprobs_is_refused_by_the_router(tmp_path):
    """25,000 tokens with 20 alternatives each are more than a chain tells; with 19 they are not."""
    model = clusters.make_model(tmp_path / "long", layers=1, max_position=32768)
    body = {"model": "tiny", "prompt": [97] * 25000, "max_tokens": 0, "logprobs": 20, "echo": True}
    with clusters.Cluster(model, tmp_path, stages=1, router_flags=["--served-model-name", "tiny"]) as cluster:
        status, answer = cluster.post("/v1/completions", body)
        assert status == 400 and answer["error"]["param"] == "logprobs", answer
        assert "at most 19 alternatives" in answer["error"]["message"]
        assert cluster.metric("prefill-0-0", "baton_prefill_tokens_total") == 0
