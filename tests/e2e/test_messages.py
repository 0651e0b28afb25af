"""Anthropic's Messages over a live cluster: conversations with tools, streams, counts, errors, prefix cache.

The model calls no tools by itself: answers with calls are tested with scripted text (services/router/http).
"""

import pytest

from agent_cluster import austen, events

PATH = "/v1/messages"
ASK = {"role": "user", "content": "It is a truth universally acknowledged"}
TOOL = {"name": "weather", "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bath"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}
TURNS = [ASK, {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, CALL]},
         {"role": "user", "content": [RESULT]}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with austen(tmp_path_factory.mktemp("logs")) as running:
        yield running


def ask(cluster, **body):
    return cluster.post(PATH, {"model": "austen", "max_tokens": 12, "messages": [ASK], "seed": 3, **body})


def test_a_message_and_its_stream_are_the_same(cluster):
    status, whole = ask(cluster, system=[{"type": "text", "text": "Be brief."}])
    assert status == 200, whole
    assert whole["type"] == "message" and whole["stop_reason"] in ("end_turn", "max_tokens")
    told = events(cluster, PATH, {"model": "austen", "max_tokens": 12, "messages": [ASK], "seed": 3,
                                  "system": "Be brief."})
    assert [told[0]["type"], told[1]["type"], told[-1]["type"]] == ["message_start", "ping", "message_stop"]
    text = "".join(event["delta"]["text"] for event in told if event["type"] == "content_block_delta")
    assert text == "".join(block["text"] for block in whole["content"])
    assert told[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert told[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    # The second prompt may have been cached by the first.
    counts = told[-2]["usage"]
    assert (counts["input_tokens"] + counts["cache_read_input_tokens"]
            == told[0]["message"]["usage"]["input_tokens"])


def test_an_agents_conversation_is_read_as_a_chat(cluster):
    status, answer = ask(cluster, messages=TURNS, tools=[TOOL], tool_choice={"type": "auto"})
    assert status == 200, answer
    usage = answer["usage"]
    function = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["input_schema"]}
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bath"}'}}
    _, chat = cluster.post("/v1/chat/completions", {
        "model": "austen", "max_tokens": 12, "seed": 3, "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        "messages": [ASK, {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"}]})
    assert chat["usage"]["prompt_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert chat["choices"][0]["message"]["content"] == "".join(block["text"] for block in answer["content"])


def test_tokens_are_counted_without_an_answer(cluster):
    status, count = cluster.post(PATH + "/count_tokens", {"model": "austen", "messages": TURNS, "tools": [TOOL]})
    assert status == 200, count
    _, answer = ask(cluster, messages=TURNS, tools=[TOOL])
    usage = answer["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_a_stop_sequence_is_named(cluster):
    text = "".join(block["text"] for block in ask(cluster)[1]["content"])
    stop = text[3:6]
    status, cut = ask(cluster, stop_sequences=[stop])
    assert status == 200, cut
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
    assert "".join(block["text"] for block in cut["content"]) == text[:text.index(stop)]


def test_what_has_been_cached_is_told(cluster):
    long = [{"role": "user", "content": ASK["content"] + " that it was so. " * 40}]
    ask(cluster, messages=long)
    status, again = ask(cluster, messages=long)
    assert status == 200 and again["usage"]["cache_read_input_tokens"] > 0, again


def test_an_answer_that_was_begun_is_gone_on_with(cluster):
    status, answer = ask(cluster, messages=[ASK, {"role": "assistant", "content": "that a single man"}])
    assert status == 200, answer
    _, count = cluster.post(PATH + "/count_tokens", {"messages": [ASK]})
    assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] > count["input_tokens"]


@pytest.mark.parametrize("body,status,kind,words", [
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: is required"),
    ({"model": "claude"}, 404, "not_found_error", "austen"),
    ({"temperature": -1}, 400, "invalid_request_error", "temperature: "),
    ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences: "),
    ({"messages": [{"role": "user", "content": ""}]}, 200, None, ""),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error",
     "messages[0].content[0].type: "),
    ({"messages": [{"role": "user", "content": "x" * 3_000_000}]}, 400, "invalid_request_error",
     "prompt is too long: messages[0].content: "),
    ({"messages": [{"role": "user", "content": "so it was " * 30_000}]}, 400, "invalid_request_error",
     "prompt is too long: "),
    ({"max_tokens": 10**6}, 400, "invalid_request_error", "max_tokens: "),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400, "invalid_request_error", "tools[0].type: "),
], ids=str)
def test_refusals(cluster, body, status, kind, words):
    got, answer = ask(cluster, **body)
    assert got == status, answer
    if kind is None:
        return
    assert answer["type"] == "error" and answer["error"]["type"] == kind, answer
    assert words in answer["error"]["message"], answer


def test_other_methods_and_bodies(cluster):
    assert cluster.get(PATH)[0] == 405
    status, answer = cluster.post(PATH, b"{")
    assert status == 400 and answer["error"]["type"] == "invalid_request_error" and "JSON" in answer["error"]["message"]


def test_a_key_may_come_as_x_api_key(tmp_path):
    with austen(tmp_path, "--api-key", "secret") as running:
        body = {"max_tokens": 2, "messages": [ASK]}
        for headers, expected in (({"x-api-key": "secret", "anthropic-version": "2023-06-01"}, 200),
                                  ({"Authorization": "Bearer secret"}, 200), ({"x-api-key": "other"}, 401), ({}, 401)):
            status, answer = running.post(PATH, body, headers=headers)
            assert status == expected, answer
        assert answer["error"]["type"] == "authentication_error"
