"""Traces of a real cluster as a collector gets them: one tree over all processes, whoever began it."""

import json
import random
import re
import signal
import threading

import pytest

import cluster as clusters
import stubs
from client import Client
from otlp_collector import CLIENT, INTERNAL, SERVER, Collector

PROMPT = [random.Random(3).randrange(256) for _ in range(100)]
CHUNKS = 4  # Of 32, 32, 32 and 4 tokens.
FLAGS = ["--page-size", 16, "--disable-radix-cache"]
CHUNKED = ["--chunked-prefill-size", 32]
COUNT = 6
# What a request that goes well leaves behind with two stages.
NAMES = {"tokenize": 1, "queue": 1, "attempt": 1, "reserve": 2, "decode": 2, "prefill": 2, "prefill queue": 1,
         "prefill chunk": 2 * CHUNKS, "kv hand-off": 2, "kv receive": 1, "decode tokens": 1}
# Clocks of one machine, read by several processes at several times.
SKEW_NS = 2_000_000


def new_caller(sampled=True):
    """A trace id, a span id and the traceparent of a client that traces."""
    trace, span = f"{random.getrandbits(128) | 1:032x}", f"{random.getrandbits(64) | 1:016x}"
    return trace, span, f"00-{trace}-{span}-{'01' if sampled else '00'}"


@pytest.fixture(scope="module")
def collector():
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(tiny_model, tmp_path_factory, collector):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=2,
                          flags=[*FLAGS, "--otlp-traces-endpoint", collector.endpoint], prefill_flags=CHUNKED,
                          router_flags=["--served-model-name", "tiny", "--otlp-traces-endpoint", collector.endpoint,
                                        "--otlp-sample-ratio", "0", "--instance-id", "router"]) as cluster:
        yield cluster


def complete(cluster, **more):
    """(status, body, headers) of a completion over HTTP."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0.5, "seed": 7, "ignore_eos": True}
    headers = more.pop("headers", {})
    return cluster.post("/v1/completions", {**body, **more}, headers=headers)


def one(spans, name, kind=None):
    found = [span for span in spans if span.name == name and kind in (None, span.kind)]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


def check_tree(spans, root):
    """Parents are there and of the right kind; nothing lies outside of its parent's time, but what the chain
    still does when the router has waited long enough for its report."""
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans), "span ids must differ"
    attempt, wire = one(spans, "attempt"), one(spans, "prefill", SERVER)
    unreported = "baton.abort.reason" in one(spans, "prefill", CLIENT).attributes
    parents = {"tokenize": root, "queue": root, "attempt": root, "prefill queue": wire, "prefill chunk": wire,
               "kv hand-off": wire, "kv receive": one(spans, "decode", SERVER),
               "decode tokens": one(spans, "decode", SERVER)}
    for span in spans:
        assert span.begin_ns <= span.end_ns
        if span is root:
            continue
        parent = by_id[span.parent]
        if span.name in ("reserve", "prefill", "decode"):
            assert parent is (attempt if span.kind == CLIENT else one(spans, span.name, CLIENT)), span
        else:
            assert parent is parents[span.name], span
            assert span.kind == INTERNAL
        assert span.begin_ns >= parent.begin_ns - SKEW_NS, (span, parent)
        late = unreported and span.name in ("prefill", "kv hand-off")
        assert late or span.end_ns <= parent.end_ns + SKEW_NS, (span, parent)


def check_chunks(spans):
    """Every stage computes the prompt's chunks in order, a chunk on stage 1 after it on stage 0."""
    ends = {}
    for stage in range(2):
        chunks = sorted((span for span in spans if span.name == "prefill chunk"
                         and span.attributes["baton.stage"] == stage), key=lambda span: span.begin_ns)
        assert [span.attributes["baton.chunk.token_begin"] for span in chunks] == [0, 32, 64, 96]
        assert [span.attributes["baton.chunk.tokens"] for span in chunks] == [32, 32, 32, 4]
        assert [span.attributes["baton.chunk.final"] for span in chunks] == [False, False, False, True]
        assert {span.process for span in chunks} == {f"prefill-0-{stage}"}
        for before, after in zip(chunks, chunks[1:]):
            assert before.end_ns <= after.begin_ns + SKEW_NS
        for span in chunks:
            begin = span.attributes["baton.chunk.token_begin"]
            assert span.begin_ns >= ends.get(begin, 0) - SKEW_NS
            ends[begin] = span.end_ns


def test_a_request_over_http_is_one_trace_over_all_processes(traced, collector):
    trace, caller, traceparent = new_caller()
    status, body = complete(traced, headers={"traceparent": traceparent, "tracestate": "vendor=x"})
    assert status == 200, body
    spans = collector.wait_for({"text_completion tiny": 1, **NAMES}, trace)
    assert len(spans) == 1 + sum(NAMES.values())
    root = one(spans, "text_completion tiny")
    assert root.kind == SERVER and root.parent == caller and not root.failed
    assert {span.state for span in spans} == {"vendor=x"}
    assert {span.process for span in spans} == {"router", "prefill-0-0", "prefill-0-1", "decode-0"}
    assert {span.service for span in spans} == {"baton-router", "baton-prefill", "baton-decode"}
    check_tree(spans, root)
    check_chunks(spans)


def test_the_request_says_what_the_conventions_ask_for(traced, collector):
    trace, _, traceparent = new_caller()
    status, body = complete(traced, headers={"traceparent": traceparent})
    assert status == 200, body
    spans = collector.wait_for({"text_completion tiny": 1, **NAMES}, trace)
    values = one(spans, "text_completion tiny").attributes
    expected = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "baton",
                "gen_ai.request.model": "tiny", "gen_ai.response.id": body["id"], "gen_ai.request.max_tokens": COUNT,
                "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 7,
                "gen_ai.response.finish_reasons": ["length"], "gen_ai.usage.input_tokens": len(PROMPT),
                "gen_ai.usage.output_tokens": COUNT, "baton.attempts": 1, "baton.decode.instance_id": "decode-0"}
    assert {key: values.get(key) for key in expected} == expected
    duration = one(spans, "text_completion tiny").end_ns - one(spans, "text_completion tiny").begin_ns
    assert 0 < values["gen_ai.response.time_to_first_chunk"] * 1e9 <= duration
    hand_offs = [span.attributes for span in spans if span.name == "kv hand-off"]
    assert all(span["baton.kv.pages"] == 7 and span["baton.kv.bytes"] > 0 for span in hand_offs)
    assert one(spans, "decode tokens").attributes["gen_ai.usage.output_tokens"] == COUNT
    assert one(spans, "reserve", SERVER).attributes["baton.kv.pages"] == 7
    assert [event[0] for event in one(spans, "decode", SERVER).events] == ["first_token"]


def test_a_request_over_grpc_is_one_trace_too(traced, collector):
    trace, caller, traceparent = new_caller()
    with Client(traced.target) as client:
        request = client.request(PROMPT, temperature=0, max_tokens=COUNT, ignore_eos=True)
        responses = list(client.inference.Generate(request, metadata=[("traceparent", traceparent)]))
    assert responses[-1].HasField("finished")
    spans = collector.wait_for({"text_completion tiny": 1, **NAMES}, trace)
    root = one(spans, "text_completion tiny")
    assert root.parent == caller
    check_tree(spans, root)


def test_the_log_names_the_trace(traced):
    trace, _, traceparent = new_caller()
    assert complete(traced, headers={"traceparent": traceparent})[0] == 200
    clusters.wait_until(lambda: f"trace_id={trace}" in traced.processes["router"].log(), 10, "the request's line")


def test_choices_are_children_of_one_request(traced, collector):
    trace, caller, traceparent = new_caller()
    assert complete(traced, n=2, headers={"traceparent": traceparent})[0] == 200
    spans = collector.wait_for({"POST /v1/completions": 1, "text_completion tiny": 2}, trace)
    root = one(spans, "POST /v1/completions")
    assert root.kind == SERVER and root.parent == caller
    calls = [span for span in spans if span.name == "text_completion tiny"]
    assert {span.parent for span in calls} == {root.id}
    assert {span.kind for span in calls} == {INTERNAL}


def test_a_refused_request_is_a_failed_span(traced, collector):
    for more in ({"temperature": -1}, {"no_such_field": 1}):
        trace, _, traceparent = new_caller()
        assert complete(traced, headers={"traceparent": traceparent}, **more)[0] == 400
        span = collector.wait_for({"text_completion tiny": 1}, trace)[0]
        assert span.failed and span.error
        assert span.attributes["error.type"] == "INVALID_ARGUMENT"


def test_who_is_not_sampled_leaves_no_span(traced, collector):
    """Neither a caller that does not trace, nor none, nor one with a traceparent that is not valid: the ratio is 0."""
    before = {span.trace for span in collector.spans()}
    unsampled, _, header = new_caller(sampled=False)
    invalid, _, good = new_caller()
    for headers in ({"traceparent": header}, {}, {"traceparent": good.upper()}, {"traceparent": good + "-x"}):
        assert complete(traced, headers=headers)[0] == 200
    trace, _, traceparent = new_caller()
    assert complete(traced, headers={"traceparent": traceparent})[0] == 200
    collector.wait_for({"text_completion tiny": 1, **NAMES}, trace)  # What came before has left before.
    new = {span.trace for span in collector.spans()} - before
    assert trace in new and not new & {unsampled, invalid}
    lines = re.findall(r"request id=\S+ .*trace_id=(\S+)", traced.processes["router"].log())
    assert unsampled in lines, "an unsampled trace is in the log all the same"
    assert invalid not in lines, "what is not valid begins a new trace"


def test_exported_spans_are_counted(traced):
    trace_spans = traced.metric("router", "baton_trace_spans_total", fate="exported")
    assert trace_spans > 0
    for process in ("router", *traced.metrics_ports):
        for fate in ("queue_full", "failed"):
            assert traced.metric(process, "baton_trace_spans_total", fate=fate) == 0


def test_chunks_that_share_a_plan_are_linked(tiny_model, tmp_path, collector):
    """Prompts that arrive together are packed into plans: each has spans of its own, linked to the others'."""
    delay = int(500 * clusters.PATIENCE)
    with clusters.Cluster(tiny_model, tmp_path, stages=2,
                          flags=["--page-size", 16, "--otlp-traces-endpoint", collector.endpoint],
                          prefill_flags=["--chunked-prefill-size", 256,
                                         "--failpoints", f"prefill.compute=delay:{delay}@1"],
                          router_flags=["--otlp-traces-endpoint", collector.endpoint]) as cluster, \
            Client(cluster.target) as client:
        before = {span.trace for span in collector.spans()}
        answers = client.greedy_at_once([PROMPT[:20 + i] for i in range(4)], 2)
        assert all(answer.error is None for answer in answers)

        def new_chunks():
            chunks = [span for span in collector.spans() if span.name == "prefill chunk" and span.trace not in before]
            return chunks if len(chunks) >= 8 else None
        chunks = clusters.wait_until(new_chunks, 30, "four prompts' chunks on two stages")
    assert len({span.trace for span in chunks}) == 4, "each request has its own trace"
    shared = [span for span in chunks if span.attributes["baton.plan.requests"] > 1]
    assert shared, "while the first plan is delayed the others gather"
    ids = {span.id: span for span in chunks}
    for span in shared:
        assert len(span.links) == span.attributes["baton.plan.requests"] - 1
        for other in map(ids.get, span.links):
            assert other.attributes["baton.plan.number"] == span.attributes["baton.plan.number"]
            assert (other.process, other.trace != span.trace) == (span.process, True)


def test_a_retry_after_a_killed_decode_shows_both_attempts(tiny_model, tmp_path, collector):
    delay = int(1500 * clusters.PATIENCE)
    with clusters.Cluster(tiny_model, tmp_path, stages=2, decodes=2,
                          flags=[*FLAGS, "--otlp-traces-endpoint", collector.endpoint],
                          prefill_flags=[*CHUNKED, "--failpoints", f"prefill.compute=delay:{delay}@1"],
                          router_flags=["--otlp-traces-endpoint", collector.endpoint, "--served-model-name", "tiny",
                                        "--load-balance-policy", "round_robin"]) as cluster:
        trace, _, traceparent = new_caller()
        answer = {}
        request = threading.Thread(target=lambda: answer.update(
            result=complete(cluster, headers={"traceparent": traceparent})))
        request.start()

        def taken():
            return [name for name in ("decode-0", "decode-1") if cluster.metric(name, "baton_kv_pages_used") > 0]
        victim = clusters.wait_until(taken, 20, "a decode service to reserve")[0]
        cluster.processes[victim].signal(signal.SIGKILL)
        request.join(60 * clusters.PATIENCE)
        status, body = answer["result"]
        assert status == 200, body
        spans = collector.wait_for({"text_completion tiny": 1, "attempt": 2}, trace)
        root = one(spans, "text_completion tiny")
        first, second = sorted((span for span in spans if span.name == "attempt"), key=lambda span: span.begin_ns)
        assert first.failed and not second.failed and not root.failed
        assert first.attributes["baton.decode.instance_id"] == victim != second.attributes["baton.decode.instance_id"]
        assert [first.attributes["baton.attempt"], second.attributes["baton.attempt"]] == [1, 2]
        assert {first.parent, second.parent} == {root.id}
        assert first.end_ns <= second.begin_ns + SKEW_NS
        assert root.attributes["baton.attempts"] == 2
        [retry] = [event for event in root.events if event[0] == "retry"]
        assert retry[2]["baton.attempt"] == 2 and retry[2]["baton.retry.reason"]


def test_a_collector_that_is_away_changes_nothing(tiny_model, tmp_path):
    port = clusters.free_ports(1)[0]
    flags = ["--otlp-traces-endpoint", f"127.0.0.1:{port}"]
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=[*FLAGS, *flags], router_flags=flags) as cluster:
        for _ in range(3):
            status, body = cluster.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
            assert status == 200, json.dumps(body)
        clusters.wait_until(lambda: "spans cannot be exported" in cluster.processes["router"].log(), 20, "a warning")
        assert cluster.processes["router"].log().count("spans cannot be exported") == 1


def test_no_endpoint_no_traces(small_cluster):
    trace, _, traceparent = new_caller()
    status, body = small_cluster.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2},
                                      headers={"traceparent": traceparent})
    assert status == 200, body
    assert trace not in small_cluster.processes["router"].log()
    assert small_cluster.metric("router", "baton_trace_spans_total") == 0
    assert stubs.common.FINISH_REASON_STOP == 1  # Both protocols' messages live beside each other.
