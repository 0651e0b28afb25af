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
STOPS = 12  # Steps, after which the victim stands still in the midst of a text.

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
    """Two workers that decode, of which the victim takes a minute for one of its steps."""

    def __init__(self, name):
        colocated = name == "colocated"
        self.victim, self.other = ("colocated-0-0", "colocated-1-0") if colocated else ("decode-0", "decode-1")
        self.failpoint = f"{'prefill.compute' if colocated else 'decode.step'}=delay:60000@{STOPS}"
        self.counts = {"stages": 1, "chains": 0, "decodes": 0, "colocated": 2} if colocated else {
            "stages": 2, "chains": 1, "decodes": 2}

    def cluster(self, model, logs, *router_flags):
        cluster = clusters.Cluster(model, logs, flags=["--page-size", 16],
                                   router_flags=["--pairing-timeout-ms", 60000, *router_flags], **self.counts)
        cluster.processes[self.victim].arguments += ["--failpoints", self.failpoint]
        return cluster


@pytest.fixture(scope="module", params=["apart", "colocated"])
def served(request, tiny_model, tmp_path_factory):
    shape = Shape(request.param)
    with shape.cluster(tiny_model, tmp_path_factory.mktemp("logs")) as cluster, Client(cluster.target) as client:
        yield cluster, client, shape


def read(client, fields, on_first=lambda: None):
    """(All that a client is told of the text, how often it went on elsewhere.)"""
    tokens, logprobs, prompt, text = [], [], [], ""
    for message in client.inference.Generate(client.request(PROMPT, **fields), timeout=60 * clusters.PATIENCE):
        kind = message.WhichOneof("event")
        if kind == "tokens":
            tokens += message.tokens.token_ids
            logprobs += [logprob.SerializeToString() for logprob in message.tokens.logprobs]
            text += message.tokens.text
            on_first()
        elif kind == "prompt_logprobs":
            prompt += message.prompt_logprobs.token_ids
    end = message.finished
    return (tokens, logprobs, prompt, text + end.text, end.reason, end.usage.completion_tokens), end.resumes


def read_while_it_dies(cluster, client, shape, fields):
    """The victim begins the text alone, and dies in the midst of it when the other one is there."""
    victim, other = cluster.processes[shape.victim], cluster.processes[shape.other]
    other.stop()
    victim.kill()
    victim.start()
    first = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(read, client, fields, first.set)
        clusters.wait_until(lambda: first.is_set() or answer.done(), 60, "the first token")
        other.start()
        clusters.wait_until(lambda: cluster.get("/readiness", cluster.metrics_ports[shape.other])[0] == 200, 30,
                            "the other one")
        victim.kill()
        return answer.result()


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_as_if_nobody_had_died(served, kind):
    cluster, client, shape = served
    answer, resumes = read_while_it_dies(cluster, client, shape, KINDS[kind])
    undisturbed, none = read(client, KINDS[kind])
    assert (resumes, none) == (1, 0)
    assert answer == undisturbed
    assert len(answer[0]) > STOPS
    clusters.wait_until(cluster.idle, 10, "pages to come back")


def test_what_the_log_and_the_metrics_say(served):
    cluster, client, shape = served
    before = cluster.metric("router", "baton_request_resumes_total", outcome="continued")
    read_while_it_dies(cluster, client, shape, KINDS["greedy"])
    clusters.wait_until(lambda: cluster.metric("router", "baton_request_resumes_total", outcome="continued")
                        > before, 10, "the resume to be counted")
    assert cluster.metric("router", "baton_request_resumes_total", outcome="diverged") == 0
    cluster.processes["router"].wait_log(" attempts=2 resumes=1 ")


def test_clients_may_not_say_what_was_drawn(served):
    with pytest.raises(grpc.RpcError) as refused:
        read(served[1], {"max_tokens": 5, "drawn_tokens": 2})
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "drawn_tokens" in refused.value.details()


def test_a_text_waits_for_the_successor_of_its_only_worker(tiny_model, tmp_path):
    cluster = clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--page-size", 16],
                               router_flags=["--pairing-timeout-ms", 60000])
    decode = cluster.processes["decode-0"]
    decode.arguments += ["--failpoints", Shape("apart").failpoint]
    with cluster, Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = threading.Event()
        answer = pool.submit(read, client, KINDS["drawn"], first.set)
        assert first.wait(60 * clusters.PATIENCE)
        decode.kill()
        decode.arguments = decode.arguments[:-2]
        decode.start()
        assert answer.result()[1] == 1
        assert answer.result()[0] == read(client, KINDS["drawn"])[0]
        clusters.wait_until(cluster.idle, 10, "pages to come back")


def test_a_drain_that_takes_too_long_hands_texts_over(tiny_model, tmp_path):
    """The drain's time is over long before the text is: each of its steps takes 20 ms."""
    slow = ["--failpoints", "decode.step=delay:20", "--drain-timeout-ms", 300]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, decodes=2, flags=["--page-size", 16],
                          decode_flags=slow) as cluster, Client(cluster.target) as client, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = threading.Event()
        fields = {**KINDS["drawn"], "max_tokens": 100}
        answer = pool.submit(read, client, fields, first.set)
        assert first.wait(30 * clusters.PATIENCE)

        def running():
            return [f"decode-{i}" for i in range(2) if cluster.metric(f"decode-{i}", "baton_requests_running") > 0]
        busy = clusters.wait_until(running, 10, "the text to run")[0]
        with membership(cluster.cluster_target) as router:
            router.Drain(stubs.cluster.DrainRequest(instance_id=busy))
        assert answer.result()[1] == 1
        assert cluster.processes[busy].popen.wait(30 * clusters.PATIENCE) == 0
        assert answer.result()[0] == read(client, fields)[0]


@pytest.mark.parametrize("shape", ["apart", "colocated"])
def test_without_resumes_a_text_ends_with_its_worker(tiny_model, tmp_path, shape):
    shape = Shape(shape)
    with shape.cluster(tiny_model, tmp_path, "--max-resumes", 0) as cluster, Client(cluster.target) as client:
        with pytest.raises(grpc.RpcError) as ended:
            read_while_it_dies(cluster, client, shape, KINDS["greedy"])
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert shape.victim in ended.value.details()
