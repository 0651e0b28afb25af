"""Bad requests over HTTP and gRPC, one row each: the right status, a message that names the field, and
a server that goes on. Rows are data; the same promises are checked for all."""

import urllib.error
import urllib.request

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client

OK_BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def completions(**changes):
    return "/v1/completions", {**OK_BODY, **changes}


def chat(**changes):
    return "/v1/chat/completions", {**CHAT, **changes}


def without(path_body, key):
    path, body = path_body
    return path, {k: v for k, v in body.items() if k != key}


# (name, (path, body), status, field or fragment that the error must name)
HTTP_ROWS = [
    ("not json", ("/v1/completions", b"{"), 400, "JSON"),
    ("json array", ("/v1/completions", b"[]"), 400, "object"),
    ("empty body", ("/v1/completions", b""), 400, "JSON"),
    ("deep nesting", ("/v1/completions", b'{"prompt":' + b"[" * 2000 + b"]" * 2000 + b"}"), 400, ""),
    ("bad utf-8", ("/v1/completions", b'{"model":"tiny","prompt":"\xff\xfe"}'), 400, ""),
    ("lone surrogate", ("/v1/completions", b'{"model":"tiny","prompt":"\\ud800"}'), 400, ""),
    ("no prompt", without(completions(), "prompt"), 400, "prompt"),
    ("empty prompt", completions(prompt=""), 400, "prompt"),
    ("prompt number", completions(prompt=7), 400, "prompt"),
    ("prompt object", completions(prompt={}), 400, "prompt"),
    ("prompt empty list", completions(prompt=[]), 400, "prompt"),
    ("prompt mixed list", completions(prompt=[1, "a"]), 400, "prompt"),
    ("prompt fraction id", completions(prompt=[1.5]), 400, "prompt"),
    ("prompt negative id", completions(prompt=[-1]), 400, "prompt"),
    ("prompt id past vocabulary", completions(prompt=[10**6]), 400, "prompt"),
    ("prompt id past int64", completions(prompt=[10**30]), 400, "prompt"),
    ("prompt list of two kinds", completions(prompt=["a", [1]]), 400, "prompt"),
    ("too many prompts", completions(prompt=["a"] * 129), 400, "prompt"),
    ("over-long ids", completions(prompt=[1] * 20000), 400, "prompt"),
    ("over-long text", completions(prompt="a" * 200_000), 400, "prompt"),
    ("unknown model", completions(model="gpt-5"), 404, "model"),
    ("model number", completions(model=3), 400, "model"),
    ("max_tokens past the context", completions(max_tokens=16384), 400, "max_tokens"),
    ("max_tokens negative", completions(max_tokens=-5), 400, "max_tokens"),
    ("max_tokens string", completions(max_tokens="5"), 400, "max_tokens"),
    ("max_tokens fraction", completions(max_tokens=1.5), 400, "max_tokens"),
    ("max_tokens huge", completions(max_tokens=10**12), 400, "max_tokens"),
    ("temperature negative", completions(temperature=-0.1), 400, "temperature"),
    ("temperature string", completions(temperature="hot"), 400, "temperature"),
    ("temperature NaN", ("/v1/completions", b'{"model":"tiny","prompt":"a","temperature":NaN}'), 400, ""),
    ("temperature 1e999", ("/v1/completions", b'{"model":"tiny","prompt":"a","temperature":1e999}'), 400, ""),
    ("top_p 0", completions(top_p=0), 400, "top_p"),
    ("top_p over 1", completions(top_p=1.1), 400, "top_p"),
    ("top_p list", completions(top_p=[1]), 400, "top_p"),
    ("top_k -2", completions(top_k=-2), 400, "top_k"),
    ("top_k fraction", completions(top_k=2.5), 400, "top_k"),
    ("min_p negative", completions(min_p=-1), 400, "min_p"),
    ("min_p over 1", completions(min_p=2), 400, "min_p"),
    ("n too many", completions(n=129), 400, "n"),
    ("n times prompts", completions(prompt=["a", "b"], n=65), 400, "n"),
    ("n 0", completions(n=0), 400, "n"),
    ("seed string", completions(seed="x"), 400, "seed"),
    ("stop number", completions(stop=5), 400, "stop"),
    ("stop empty string", completions(stop=""), 400, "stop"),
    ("stop too many", completions(stop=["x"] * 100), 400, "stop"),
    ("stop too long", completions(stop="x" * 5000), 400, "stop"),
    ("stop ids past vocabulary", completions(stop_token_ids=[10**6]), 400, "stop_token_ids"),
    ("logprobs negative", completions(logprobs=-1), 400, "logprobs"),
    ("logprobs too many", completions(logprobs=100), 400, "logprobs"),
    ("min_tokens over max", completions(min_tokens=5), 400, "min_tokens"),
    ("min_tokens negative", completions(min_tokens=-1), 400, "min_tokens"),
    ("stream string", completions(stream="yes"), 400, "stream"),
    ("stream_options without stream", completions(stream_options={"include_usage": True}), 400, "stream_options"),
    ("ignore_eos number", completions(ignore_eos=1), 400, "ignore_eos"),
    ("best_of below n", completions(n=3, best_of=2), 400, "best_of"),
    ("best_of in a stream", completions(best_of=2, stream=True), 400, "best_of"),
    ("echo number", completions(echo=1), 400, "echo"),
    ("suffix", completions(suffix="x"), 400, "suffix"),
    ("no messages", without(chat(), "messages"), 400, "messages"),
    ("empty messages", chat(messages=[]), 400, "messages"),
    ("messages string", chat(messages="hi"), 400, "messages"),
    ("message without role", chat(messages=[{"content": "x"}]), 400, "role"),
    ("message unknown role", chat(messages=[{"role": "king", "content": "x"}]), 400, "role"),
    ("message without content", chat(messages=[{"role": "user"}]), 400, "content"),
    ("top_logprobs without logprobs", chat(top_logprobs=3), 400, "top_logprobs"),
    ("top_logprobs too many", chat(logprobs=True, top_logprobs=50), 400, "top_logprobs"),
    ("logprobs number in chat", chat(logprobs=3), 400, "logprobs"),
    ("tools", chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "tools"),
    ("response_format", chat(response_format={"type": "xml"}), 400, "response_format.type"),
    ("a schema that is not supported", chat(response_format={"type": "json_schema", "json_schema": {"schema": {
        "properties": {"a": {"not": {}}}}}}), 400, "properties.a"),
    ("frequency_penalty", completions(frequency_penalty=2.5), 400, "frequency_penalty"),
    ("presence_penalty", completions(presence_penalty=-3), 400, "presence_penalty"),
    ("repetition_penalty", completions(repetition_penalty=0), 400, "repetition_penalty"),
    ("logit_bias value", completions(logit_bias={"5": 101}), 400, "logit_bias"),
    ("logit_bias key", completions(logit_bias={"x": 1}), 400, "logit_bias"),
    ("logit_bias past vocabulary", completions(logit_bias={"1000000": 1}), 400, "logit_bias"),
    ("seed past 2^64", completions(seed=2**64), 400, "seed"),
    ("timeout 0", completions(timeout=0), 400, "timeout"),
    ("truncate_prompt_tokens 0", completions(truncate_prompt_tokens=0), 400, "truncate_prompt_tokens"),
    ("misspelt", completions(temprature=1), 400, "did you mean 'temperature'"),
    ("guided_choice", completions(guided_choice="a"), 400, "guided_choice"),
    ("stop_regex", completions(stop_regex="a"), 400, "stop_regex"),
    ("lora_path", completions(lora_path="x"), 400, "lora_path"),
    ("misspelt in a message", chat(messages=[{"role": "user", "content": "x", "nme": "y"}]), 400, "nme"),
    ("generate without a prompt", ("/generate", {"sampling_params": {}}), 400, "input_ids"),
    ("generate misspelt", ("/generate", {"text": "a", "sampling_params": {"max_tokns": 1}}), 400,
     "did you mean 'max_tokens'"),
    ("tokenize without a text", ("/tokenize", {}), 400, "prompt"),
    ("detokenize past vocabulary", ("/detokenize", {"tokens": [10**6]}), 400, "token"),
    ("abort without an id", ("/abort_request", {}), 400, "rid"),
]


@pytest.mark.parametrize("request_,status,field", [row[1:] for row in HTTP_ROWS], ids=[row[0] for row in HTTP_ROWS])
def test_http_refuses(small_cluster, request_, status, field):
    got, body = small_cluster.post(*request_)
    assert got == status, body
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert field in error["message"], error
    if field in ("prompt", "max_tokens", "temperature", "messages", "model", "stop", "top_p"):
        assert error["param"] is not None and error["param"].startswith(field), error


NAN, INFINITE = float("nan"), float("inf")
# (name, prompt, sampling, code, field)
GRPC_ROWS = [
    ("empty text", "", {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ("no ids", [], {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ("negative id", [-1], {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ("id past vocabulary", [5, 320], {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ("over-long", [1] * 16385, {}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ("temperature NaN", "a", {"temperature": NAN}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    ("temperature infinite", "a", {"temperature": INFINITE}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    ("temperature negative", "a", {"temperature": -1}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    ("top_p NaN", "a", {"top_p": NAN}, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
    ("top_p 0", "a", {"top_p": 0}, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
    ("top_p 2", "a", {"top_p": 2}, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
    ("top_k -7", "a", {"top_k": -7}, grpc.StatusCode.INVALID_ARGUMENT, "top_k"),
    ("min_p 1.5", "a", {"min_p": 1.5}, grpc.StatusCode.INVALID_ARGUMENT, "min_p"),
    ("max_tokens past the context", "a", {"max_tokens": 16384}, grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
    ("presence_penalty", "a", {"presence_penalty": 3}, grpc.StatusCode.INVALID_ARGUMENT, "presence_penalty"),
    ("frequency_penalty NaN", "a", {"frequency_penalty": NAN}, grpc.StatusCode.INVALID_ARGUMENT, "frequency_penalty"),
    ("repetition_penalty 0", "a", {"repetition_penalty": 0}, grpc.StatusCode.INVALID_ARGUMENT, "repetition_penalty"),
    ("logit_bias past vocabulary", "a", {"logit_bias": [stubs.common.LogitBias(token_id=10**6, bias=1)]},
     grpc.StatusCode.INVALID_ARGUMENT, "logit_bias"),
    ("max_tokens negative", "a", {"max_tokens": -1}, grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
    ("min over max", "a", {"max_tokens": 1, "min_tokens": 2}, grpc.StatusCode.INVALID_ARGUMENT, "min_tokens"),
    ("empty stop", "a", {"stop": [""]}, grpc.StatusCode.INVALID_ARGUMENT, "stop"),
    ("17 stops", "a", {"stop": ["x"] * 17}, grpc.StatusCode.INVALID_ARGUMENT, "stop"),
    ("stop id", "a", {"stop_token_ids": [-3]}, grpc.StatusCode.INVALID_ARGUMENT, "stop_token_ids"),
    ("top_logprobs 21", "a", {"logprobs": True, "top_logprobs": 21}, grpc.StatusCode.INVALID_ARGUMENT, "top_logprobs"),
    ("top_logprobs alone", "a", {"top_logprobs": 2}, grpc.StatusCode.INVALID_ARGUMENT, "top_logprobs"),
]


@pytest.mark.parametrize("prompt,sampling,code,field", [row[1:] for row in GRPC_ROWS],
                         ids=[row[0] for row in GRPC_ROWS])
def test_grpc_refuses(small_cluster, prompt, sampling, code, field):
    with Client(small_cluster.target) as client:
        answer = client.generate(prompt, **sampling)
        assert answer.error is not None and answer.code == code, answer
        assert field in answer.error.details(), answer.error.details()


@pytest.mark.parametrize("fields,code,word", [
    ({"model": "other"}, grpc.StatusCode.NOT_FOUND, "model"),
    ({"request_id": "x" * 200}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
    ({"request_id": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
    ({"timeout_ms": -1}, grpc.StatusCode.INVALID_ARGUMENT, "timeout_ms"),
])
def test_grpc_refuses_envelope(small_cluster, fields, code, word):
    with Client(small_cluster.target) as client:
        request = client.request("a", max_tokens=1)
        for name, value in fields.items():
            setattr(request, name, value)
        answer = client.generate(None, request=request)
        assert answer.error is not None and answer.code == code, answer
        assert word in answer.error.details()


def test_grpc_without_a_prompt_is_refused(small_cluster):
    with Client(small_cluster.target) as client:
        answer = client.generate(None, request=stubs.inference.GenerateRequest())
        assert answer.code == grpc.StatusCode.INVALID_ARGUMENT
        assert "prompt" in answer.error.details()


@pytest.mark.parametrize("method,path,status", [
    ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/nowhere", 404), ("DELETE", "/health", 405)])
def test_http_paths_and_methods(small_cluster, method, path, status):
    request = urllib.request.Request(small_cluster.url + path, method=method, data=b"{}" if method == "POST" else None)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=10)
    assert raised.value.code == status


def test_the_server_goes_on(small_cluster):
    """After all of the above, a good request still gets its answer and nothing is held."""
    status, body = small_cluster.post(*completions())
    assert status == 200, body
    assert body["usage"]["completion_tokens"] == 2
    for name in ("prefill-0-0", "prefill-0-1", "decode-0"):  # Pages follow the answer by a moment.
        clusters.wait_until(lambda: small_cluster.metric(name, "baton_kv_pages_used") == 0, 10, f"{name}'s pages")
