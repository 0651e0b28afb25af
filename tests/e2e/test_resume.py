"""Texts go on when the worker that decodes them dies or drains: the client reads the same text as without that."""

import concurrent.futures
import json
import threading

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client, membership

PROMPT = [7 * i % 256 for i in range(100)]
COUNT = 40
DIES = 12  # Tokens, or plans, of the victim's life.

SCHEMA = json.dumps({"type": "array", "items": {"type": "integer", "minimum": 100, "maximum": 999}, "minItems": 12,
                     "maxItems": 12})


def sampling(**fields):
    return {"max_tokens": COUNT, "seed": 5, "ignore_eos": True, **fields}


KINDS = {
    "greedy": sampling(temperature=0),
    "drawn": sampling(temperature=1.5),
    "penalised": sampling(temperature=1, frequency_penalty=0.7, presence_penalty=0.5, repetition_penalty=1.3),
    "only repetition": sampling(temperature=0, repetition_penalty=1.5),
    "with log-probabilities": sampling(temperature=1, logprobs=True, top_logprobs=2, prompt_logprobs=True),
    "structured": {**sampling(temperature=2, ignore_eos=False), "structure": {"json_schema": SCHEMA}},
    "with a stop string": sampling(temperature=2, stop=["no such text in the answer"]),
}


class Shape:
    """Two workers that decode, the first of which dies in the midst of a text whenever it is started again."""

    def __init__(self, name):
        colocated = name == "colocated"
        self.victim = "colocated-0-0" if colocated else "decode-0"
        self.failpoint = f"prefill.plan=kill@{DIES}" if colocated else f"decode.emit=kill@{DIES}"
        self.counts = {"stages": 1, "chains": 0, "decodes": 0, "colocated": 2} if colocated else {
            "stages": 2, "chains": 1, "decodes": 2}

    def cluster(self, model, logs, *router_flags):
        cluster = clusters.Cluster(model, logs, flags=["--page-size", 16],
                                   router_flags=["--load-balance-policy", "round_robin", *router_flags], **self.counts)
        cluster.processes[self.victim].arguments += ["--failpoints", self.failpoint]
        return cluster


@pytest.fixture(scope="module", params=["apart", "colocated"])
def served(request, tiny_model, tmp_path_factory):
    shape = Shape(request.param)
    with shape.cluster(tiny_model, tmp_path_factory.mktemp("logs")) as cluster, Client(cluster.target) as client:
        yield cluster, client, cluster.processes[shape.victim]


def read(client, fields):
    """(All that a client is told of the text, how often it went on elsewhere.)"""
    tokens, logprobs, prompt, text = [], [], [], ""
    for message in client.inference.Generate(client.request(PROMPT, **fields), timeout=60 * clusters.PATIENCE):
        kind = message.WhichOneof("event")
        if kind == "tokens":
            tokens += message.tokens.token_ids
            logprobs += [logprob.SerializeToString() for logprob in message.tokens.logprobs]
            text += message.tokens.text
        elif kind == "prompt_logprobs":
            prompt += message.prompt_logprobs.token_ids
    end = message.finished
    return (tokens, logprobs, prompt, text + end.text, end.reason, end.usage.completion_tokens), end.resumes


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_as_if_nobody_had_died(served, kind):
    cluster, client, victim = served
    if not victim.alive():
        victim.start()
        cluster.wait_ready()
    answers = []
    while victim.alive():
        assert len(answers) < 4, "the victim is never asked"
        answers.append(read(client, KINDS[kind]))
    undisturbed, none = read(client, KINDS[kind])
    assert none == 0
    assert answers[-1] == (undisturbed, 1)
    assert all(answer == undisturbed for answer, _ in answers)
    assert len(undisturbed[0]) > DIES, "it has died at the end"
    clusters.wait_until(cluster.idle, 10, "pages to come back")


def test_what_the_log_and_the_metrics_say(served):
    cluster, client, victim = served
    victim.kill()
    victim.start()
    cluster.wait_ready()
    before = cluster.metric("router", "baton_request_resumes_total", outcome="continued")
    while victim.alive():
        read(client, KINDS["greedy"])
    clusters.wait_until(lambda: cluster.metric("router", "baton_request_resumes_total", outcome="continued")
                        == before + 1, 10, "the resume to be counted")
    assert cluster.metric("router", "baton_request_resumes_total", outcome="diverged") == 0
    assert " attempts=2 resumes=1 " in cluster.processes["router"].log()


def test_clients_may_not_say_what_was_drawn(served):
    with pytest.raises(grpc.RpcError) as refused:
        read(served[1], {"max_tokens": 5, "drawn_tokens": 2})
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "drawn_tokens" in refused.value.details()


def test_a_text_waits_for_the_successor_of_its_only_worker(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--page-size", 16],
                          router_flags=["--pairing-timeout-ms", 60000]) as cluster, Client(cluster.target) as client:
        undisturbed, _ = read(client, KINDS["drawn"])
        decode = cluster.processes["decode-0"]
        whole = list(decode.arguments)
        decode.stop()
        decode.arguments += ["--failpoints", f"decode.emit=kill@{DIES}"]
        decode.start()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(read, client, KINDS["drawn"])
            clusters.wait_until(lambda: not decode.alive(), 30, "the worker to die")
            decode.arguments = whole
            decode.start()
            assert answer.result() == (undisturbed, 1)
        clusters.wait_until(cluster.idle, 10, "pages to come back")


def test_a_drain_that_takes_too_long_hands_texts_over(tiny_model, tmp_path):
    """The drain's time is over long before the text is: each of its steps takes 20 ms."""
    slow = ["--failpoints", "decode.step=delay:20", "--drain-timeout-ms", 300]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decodes=2, flags=["--page-size", 16],
                          decode_flags=slow) as cluster, Client(cluster.target) as client:
        first = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.generate, PROMPT, on_first=first.set, temperature=0, max_tokens=100,
                                 ignore_eos=True)
            assert first.wait(30 * clusters.PATIENCE)
            busy = next(f"decode-{i}" for i in range(2) if cluster.metric(f"decode-{i}", "baton_kv_pages_used") > 0)
            with membership(cluster.cluster_target) as router:
                router.Drain(stubs.cluster.DrainRequest(instance_id=busy))
            assert answer.result().error is None, answer.result().error
        assert cluster.processes[busy].popen.wait(30 * clusters.PATIENCE) == 0
        assert answer.result().tokens == client.generate(PROMPT, temperature=0, max_tokens=100, ignore_eos=True).tokens
        clusters.wait_until(lambda: cluster.metric("router", "baton_request_resumes_total", outcome="continued") == 1,
                            10, "the resume to be counted")


@pytest.mark.parametrize("shape", ["apart", "colocated"])
def test_without_resumes_a_text_ends_with_its_worker(tiny_model, tmp_path, shape):
    shape = Shape(shape)
    with shape.cluster(tiny_model, tmp_path, "--max-resumes", 0) as cluster, Client(cluster.target) as client:
        answers = [client.greedy(PROMPT, COUNT) for _ in range(2)]
    ends = [answer.error.code() for answer in answers if answer.error is not None]
    assert ends == [grpc.StatusCode.UNAVAILABLE]
    assert {len(answer.tokens) < COUNT for answer in answers} == {True, False}
