"""The OpenAI-compatible front: plain HTTP, curl, and OpenAI's own Python client where PyPI is reached."""

import json
import pathlib
import subprocess
import sys

from client import Client

PROMPT = "It is a truth universally acknowledged"


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], check=True, capture_output=True,
                          text=True).stdout


def events(text):
    """The data of server-sent events, [DONE] checked and dropped."""
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines), text
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[len("data: "):]) for line in lines[:-1]]


def test_curl_completion(small_cluster):
    body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0})
    answer = json.loads(curl(small_cluster.url + "/v1/completions", "-H", "Content-Type: application/json", "-d", body))
    assert answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": len(PROMPT), "completion_tokens": 8}
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")


def test_curl_stream_equals_the_whole(small_cluster):
    request = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.7, "seed": 5, "ignore_eos": True}
    whole = small_cluster.post("/v1/completions", request)[1]
    text = curl("-N", small_cluster.url + "/v1/completions", "-H", "Content-Type: application/json", "-d",
                json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}}))
    chunks = events(text)
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == whole["choices"][0]["text"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 12
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"


def test_chat_stream_and_whole(small_cluster):
    request = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "seed": 3}
    whole = small_cluster.post("/v1/chat/completions", request)
    assert whole[0] == 200, whole
    message = whole[1]["choices"][0]["message"]
    assert message["role"] == "assistant"
    chunks = events(curl("-N", small_cluster.url + "/v1/chat/completions", "-H", "Content-Type: application/json",
                         "-d", json.dumps({**request, "stream": True})))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == message["content"]


def test_same_seed_same_text_whatever_else_runs(small_cluster):
    request = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 1.0, "seed": 11, "ignore_eos": True}
    alone = small_cluster.post("/v1/completions", request)[1]["choices"][0]["text"]
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [pool.submit(small_cluster.post, "/v1/completions",
                              {**request, "seed": 100 + i, "prompt": PROMPT * (i + 1)}) for i in range(7)]
        busy = pool.submit(small_cluster.post, "/v1/completions", request).result()[1]["choices"][0]["text"]
        assert all(other.result()[0] == 200 for other in others)
    assert busy == alone


def test_stop_string_and_logprobs(small_cluster):
    request = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 1.0, "seed": 2, "ignore_eos": True}
    text = small_cluster.post("/v1/completions", request)[1]["choices"][0]["text"]
    stop = text[10:13]
    cut = small_cluster.post("/v1/completions", {**request, "stop": [stop]})[1]["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["text"] == text[:text.index(stop)]
    logprobs = small_cluster.post("/v1/completions", {**request, "logprobs": 3})[1]["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 40 and all(p <= 0 for p in logprobs["token_logprobs"])
    assert all(1 <= len(top) <= 4 for top in logprobs["top_logprobs"])


def test_models_health_readiness(small_cluster):
    status, body = small_cluster.get("/v1/models")
    assert status == 200 and json.loads(body)["data"][0]["id"] == "tiny"
    assert small_cluster.get("/health")[0] == 200
    assert small_cluster.get("/readiness")[0] == 200


def test_http_and_grpc_give_the_same_text(small_cluster):
    http = small_cluster.post("/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": 10, "seed": 4,
                                                  "ignore_eos": True})[1]
    with Client(small_cluster.target) as client:
        answer = client.generate(PROMPT, max_tokens=10, seed=4, ignore_eos=True)
    assert answer.text == http["choices"][0]["text"]


def test_openai_python_client(small_cluster, openai_python):
    script = pathlib.Path(__file__).with_name("openai_client_check.py")
    check = subprocess.run([openai_python, script, small_cluster.url + "/v1"], capture_output=True, text=True,
                           timeout=120)
    assert check.returncode == 0, check.stdout + check.stderr
    print(check.stdout, file=sys.stderr)
