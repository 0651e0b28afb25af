"""Streams whose prompts take seconds to read: they open at once, show that they live, tell those who ask how far they
are, and end when their client leaves."""

import http.client
import json

import pytest

import cluster as clusters

PROFILE = {
    "name": "a slow reader",
    "model": {"layers": 6, "hidden_size": 256, "kv_heads": 2, "head_dim": 64, "context_tokens": 4096,
              "dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "prefill": {"token_us": 10000},
    "decode": {"overhead_us": 1000},
}
KEEPALIVE_MS = 200
CHUNK = 64
PROMPT = [10 + i % 200 for i in range(400)]  # Four seconds.


@pytest.fixture(scope="module")
def cluster(tiny_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "slow.json"
    path.write_text(json.dumps(PROFILE))
    timed = ["--timed-profile", path]
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=1,
                          flags=["--executor", "timed", *timed, "--page-size", 16, "--kv-cache-tokens", 4096,
                                 "--disable-radix-cache"],
                          prefill_flags=["--chunked-prefill-size", CHUNK],
                          router_flags=[*timed, "--served-model-name", "tiny", "--sse-keepalive-ms",
                                        KEEPALIVE_MS]) as running:
        yield running


def ask(cluster, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=60 * clusters.PATIENCE)
    connection.request("POST", path, json.dumps({"stream": True, **body}), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def lines_of(answer):
    """Comments as they are, data parsed."""
    for line in answer:
        text = line.decode().strip()
        if text.startswith("data: {"):
            yield json.loads(text[len("data: "):])
        elif text:
            yield text


BODIES = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a" * 380}], "max_tokens": 2},
    "/generate": {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_lives_before_its_first_token(cluster, path):
    if path == "/v1/chat/completions" and cluster.post(path, {**BODIES[path], "messages": [
            {"role": "user", "content": "a"}], "max_tokens": 1})[0] != 200:
        pytest.skip("this model has no chat template")
    connection, answer = ask(cluster, path, BODIES[path])
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream" and answer.headers["X-Accel-Buffering"] == "no"
    lines = list(lines_of(answer))
    first = next(i for i, line in enumerate(lines) if isinstance(line, dict))
    assert lines[:first] == [":"] * first and first >= 3
    assert lines[-1] == "data: [DONE]"
    connection.close()


def test_progress_rides_on_the_stream(cluster):
    connection, answer = ask(cluster, "/v1/completions",
                             {**BODIES["/v1/completions"], "stream_options": {"include_progress": True}})
    chunks = [line for line in lines_of(answer) if isinstance(line, dict)]
    connection.close()
    told = [chunk["progress"] for chunk in chunks if "progress" in chunk]
    assert told and all(chunk["choices"] == [] for chunk in chunks if "progress" in chunk)
    assert {(progress["index"], progress["prompt_tokens"]) for progress in told} == {(0, len(PROMPT))}
    computed = [progress["computed_tokens"] for progress in told]
    assert computed == sorted(set(computed)) and 0 < computed[0] < len(PROMPT)
    assert [bool(chunk["choices"]) for chunk in chunks] == [False] * len(told) + [True] * (len(chunks) - len(told))


def test_what_is_refused_at_once_keeps_its_status(cluster):
    for body, status in [({"prompt": PROMPT, "max_tokens": 1 << 20}, 400), ({"prompt": "a", "model": "other"}, 404)]:
        connection, answer = ask(cluster, "/v1/completions", body)
        assert answer.status == status and "error" in json.loads(answer.read())
        connection.close()


def test_an_error_behind_the_head_is_an_event(cluster):
    connection, answer = ask(cluster, "/v1/completions", {**BODIES["/v1/completions"], "timeout": 1.5})
    assert answer.status == 200
    lines = [line for line in lines_of(answer) if line != ":"]  # Reads to the proper end of the answer.
    assert lines[0]["error"]["type"] == "server_error" and lines[1:] == ["data: [DONE]"]
    connection.close()
    clusters.wait_until(cluster.idle, 30, "pages to come back")


def test_a_client_that_leaves_during_the_silence_is_noticed(cluster):
    connection, answer = ask(cluster, "/v1/completions", BODIES["/v1/completions"])
    assert answer.readline() == b":\n"
    before = cluster.metric("router", "baton_requests_finished_total")
    answer.close()
    connection.close()
    clusters.wait_until(lambda: cluster.metric("router", "baton_requests_running") == 0, 2, "the request to end")
    assert cluster.metric("router", "baton_requests_finished_total") == before
    clusters.wait_until(cluster.idle, 30, "pages to come back")
