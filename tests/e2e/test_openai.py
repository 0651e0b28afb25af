"""The OpenAI-compatible front: plain HTTP, curl, and OpenAI's own Python client where PyPI is reached."""

import json
import pathlib
import subprocess
import sys

import pytest

import cluster as clusters
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


def test_prompt_logprobs_are_those_of_the_echo(small_cluster):
    request = {"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    echo = small_cluster.post("/v1/completions", {**request, "echo": True, "logprobs": 1})[1]["choices"][0]["logprobs"]
    choice = small_cluster.post("/v1/completions", {**request, "prompt_logprobs": 1})[1]["choices"][0]
    assert choice["logprobs"] is None and len(choice["prompt_logprobs"]) == len(PROMPT)
    assert choice["prompt_logprobs"][0] is None
    for byte, told, logprob in list(zip(PROMPT.encode(), choice["prompt_logprobs"], echo["token_logprobs"]))[1:]:
        assert told[str(byte)]["logprob"] == pytest.approx(logprob, abs=1e-5)
        assert told[str(byte)]["decoded_token"] == chr(byte)
        assert [entry["rank"] for entry in told.values()].count(1) == 1 and len(told) <= 2
    status, chat = small_cluster.post("/v1/chat/completions", {
        "model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 0})
    assert status == 200 and len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert chat["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_stop_string_and_logprobs(small_cluster):
    request = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 1.0, "seed": 2, "ignore_eos": True}
    text = small_cluster.post("/v1/completions", request)[1]["choices"][0]["text"]
    stop = text[10:13]
    cut = small_cluster.post("/v1/completions", {**request, "stop": [stop]})[1]["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["text"] == text[:text.index(stop)]
    logprobs = small_cluster.post("/v1/completions", {**request, "logprobs": 3})[1]["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 40 and all(p <= 0 for p in logprobs["token_logprobs"])
    assert all(1 <= len(top) <= 4 for top in logprobs["top_logprobs"])


def completion(cluster, **fields):
    """The choices of a completion that must succeed."""
    status, body = cluster.post("/v1/completions", {"model": "tiny", "prompt": PROMPT, "ignore_eos": True, **fields})
    assert status == 200, body
    return body


def stream(cluster, path, **fields):
    return events(curl("-N", cluster.url + path, "-H", "Content-Type: application/json", "-d",
                       json.dumps({**fields, "stream": True})))


def test_offsets_count_characters_streamed_and_whole(small_cluster):
    fields = {"max_tokens": 48, "temperature": 1.0, "seed": 7, "logprobs": 1}
    whole = completion(small_cluster, **fields)["choices"][0]
    chunks = stream(small_cluster, "/v1/completions", model="tiny", prompt=PROMPT, ignore_eos=True, **fields)
    streamed = [c["choices"][0]["logprobs"] for c in chunks if c["choices"][0]["logprobs"]]
    offsets = [offset for logprobs in streamed for offset in logprobs["text_offset"]]
    assert offsets == whole["logprobs"]["text_offset"] and len(offsets) == 48
    assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(whole["text"])
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["text"]


def test_logprobs_end_with_the_text_that_a_stop_string_cuts(small_cluster):
    fields = {"max_tokens": 40, "temperature": 1.0, "seed": 2, "logprobs": 0}
    text = completion(small_cluster, **fields)["choices"][0]["text"]
    cut = completion(small_cluster, **fields, stop=[text[20:23]])["choices"][0]
    assert cut["text"] == text[:text.index(text[20:23])]
    assert cut["stop_reason"] == text[20:23]
    assert cut["logprobs"]["text_offset"][-1] < len(cut["text"])
    kept = completion(small_cluster, **fields, stop=[text[20:23]], include_stop_str_in_output=True)["choices"][0]
    assert kept["text"] == cut["text"] + text[20:23]


def test_choices_and_lists_of_prompts(small_cluster):
    fields = {"max_tokens": 8, "temperature": 1.0, "seed": 3}
    alone = [completion(small_cluster, **{**fields, "prompt": prompt})["choices"][0]["text"]
             for prompt in ("abc", "xyz")]
    both = completion(small_cluster, **{**fields, "prompt": ["abc", "xyz"], "n": 2})
    texts = [choice["text"] for choice in both["choices"]]
    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert texts[0] == alone[0] and texts[2] == alone[1], "a prompt's first choice is what it would be alone"
    assert texts[1] != texts[0]
    assert both["usage"]["prompt_tokens"] == 6 and both["usage"]["completion_tokens"] == 32
    assert completion(small_cluster, **{**fields, "prompt": ["abc", "xyz"], "n": 2})["choices"] == both["choices"]
    chunks = stream(small_cluster, "/v1/completions", model="tiny", ignore_eos=True, prompt=["abc", "xyz"], n=2,
                    **fields)
    for index, text in enumerate(texts):
        assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == index) == text
    best = completion(small_cluster, **{**fields, "prompt": "abc", "best_of": 4, "logprobs": 0})
    assert len(best["choices"]) == 1 and best["usage"]["completion_tokens"] == 32


def test_echo_and_no_new_tokens(small_cluster):
    answer = completion(small_cluster, prompt="abc", echo=True, max_tokens=0)
    assert answer["choices"][0]["text"] == "abc"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    ids = completion(small_cluster, prompt=[97, 98], echo=True, max_tokens=1, return_token_ids=True)["choices"][0]
    assert ids["text"].startswith("ab") and ids["prompt_token_ids"] == [97, 98] and len(ids["token_ids"]) == 1


def test_lengths_are_refused_or_clipped(small_cluster):
    status, body = small_cluster.post("/v1/completions", {"prompt": [97] * 16300, "max_tokens": 100})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    assert "16384" in body["error"]["message"] and "16400" in body["error"]["message"]
    clipped = completion(small_cluster, prompt=[97] * 16380)
    assert clipped["usage"]["completion_tokens"] == 4 and "warnings" not in clipped
    kept = completion(small_cluster, prompt="0123456789", truncate_prompt_tokens=3, max_tokens=1, echo=True)
    assert kept["choices"][0]["text"].startswith("789")


def test_a_deadline_over_http(small_cluster):
    body = {"prompt": PROMPT, "max_tokens": 16000, "ignore_eos": True}
    assert small_cluster.post("/v1/completions", {**body, "timeout": 0.05})[0] == 504
    assert small_cluster.post("/v1/completions", body, headers={"X-Request-Timeout": "0.05"})[0] == 504


def test_the_whole_range_of_seeds(small_cluster):
    assert completion(small_cluster, seed=2**64 - 1, max_tokens=4)["choices"] == \
        completion(small_cluster, seed=-1, max_tokens=4)["choices"]


def test_chat_as_clients_send_it(small_cluster):
    status, body = small_cluster.post("/v1/chat/completions", {
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"},
                     {"role": "assistant", "content": None, "refusal": None}, {"role": "user", "content": "go on"}],
        "max_tokens": 3, "n": 2, "user": "me", "store": True, "service_tier": "flex", "top_k": -1})
    assert status == 200 and len(body["choices"]) == 2, body


def test_what_sglangs_benchmark_sends(small_cluster):
    chunks = stream(small_cluster, "/generate", text=PROMPT, lora_path=None, return_logprob=False, logprob_start_len=-1,
                    sampling_params={"temperature": 0.0, "max_new_tokens": 5, "ignore_eos": True})
    assert chunks[-1]["meta_info"]["completion_tokens"] == 5 and chunks[-1]["meta_info"]["prompt_tokens"] == len(PROMPT)
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert all(b["text"].startswith(a["text"]) for a, b in zip(chunks, chunks[1:]))
    answers = small_cluster.post("/generate", {"input_ids": [[97], [98, 99]],
                                               "sampling_params": {"max_new_tokens": 2}})[1]
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2]
    assert small_cluster.post("/flush_cache", {})[0] == 200
    assert json.loads(small_cluster.get("/get_server_info")[1])["internal_states"]
    assert json.loads(small_cluster.get("/get_model_info")[1])["is_generation"] is True


def test_tokens_there_and_back(small_cluster):
    tokens = small_cluster.post("/tokenize", {"prompt": "ab\u00e9"})[1]
    assert tokens["count"] == 4 and tokens["max_model_len"] == 16384
    assert small_cluster.post("/detokenize", {"tokens": tokens["tokens"]})[1]["text"] == "ab\u00e9"


def test_aborting_ends_a_stream_in_order(small_cluster):
    import threading
    answer = {}

    def run():
        answer["reply"] = small_cluster.post("/v1/completions", {
            "prompt": PROMPT, "max_tokens": 16000, "ignore_eos": True, "n": 2, "request_id": "long"})
    thread = threading.Thread(target=run)
    thread.start()
    clusters.wait_until(lambda: small_cluster.post("/abort_request", {"rid": "long"})[1]["aborted"] == 0
                        and not thread.is_alive(), 30, "both choices to be aborted")
    thread.join()
    assert [choice["finish_reason"] for choice in answer["reply"][1]["choices"]] == ["abort", "abort"]


def test_the_front_says_what_it_is(small_cluster):
    assert small_cluster.get("/health_generate", timeout=30)[0] == 200
    assert json.loads(small_cluster.get("/version")[1])["version"]
    status, page = small_cluster.get("/")
    assert status == 200 and "tiny" in page and "/metrics" in page


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


@pytest.mark.registry
def test_openai_python_client(small_cluster, openai_python):
    script = pathlib.Path(__file__).with_name("openai_client_check.py")
    check = subprocess.run([openai_python, script, small_cluster.url + "/v1"], capture_output=True, text=True,
                           timeout=120)
    assert check.returncode == 0, check.stdout + check.stderr
    print(check.stdout, file=sys.stderr)
