"""OpenAI's Responses over a live cluster: items, tools, streams of typed events, refusals.

The model calls no tools by itself: answers with calls are tested with scripted text (services/router/http).
"""

import pytest

from agent_cluster import austen, events

PATH = "/v1/responses"
TEXT = "It is a truth universally acknowledged"
TOOL = {"type": "function", "name": "weather", "description": "The weather of a city.", "strict": None,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]},
         {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{\"city\": \"Bath\"}"},
         {"type": "function_call_output", "call_id": "call_1", "output": "rain"}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with austen(tmp_path_factory.mktemp("logs")) as running:
        yield running


def request(**changes):
    return {"model": "austen", "input": TEXT, "max_output_tokens": 12, "seed": 3, **changes}


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_a_response_and_its_stream_are_the_same(cluster):
    status, whole = cluster.post(PATH, request(instructions="Be brief.", temperature=0.5, metadata={"run": "1"}))
    assert status == 200, whole
    assert whole["object"] == "response" and whole["store"] is False and whole["metadata"] == {"run": "1"}
    assert whole["status"] in ("completed", "incomplete") and whole["temperature"] == 0.5
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    told = events(cluster, PATH, request(instructions="Be brief.", temperature=0.5))
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    assert told[-1]["type"] == f"response.{whole['status']}"
    deltas = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert deltas == text_of(whole) == text_of(told[-1]["response"])
    assert told[-1]["response"]["usage"]["output_tokens"] == usage["output_tokens"]


def test_items_are_read_as_a_chat(cluster):
    status, response = cluster.post(PATH, request(input=ITEMS, tools=[TOOL], tool_choice="auto"))
    assert status == 200, response
    function = {name: TOOL[name] for name in ("name", "description", "parameters")}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bath\"}"}}
    _, chat = cluster.post("/v1/chat/completions", {
        "model": "austen", "max_tokens": 12, "seed": 3, "tools": [{"type": "function", "function": function}],
        "messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": None, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]})
    assert chat["usage"]["prompt_tokens"] == response["usage"]["input_tokens"]
    assert chat["choices"][0]["message"]["content"] == text_of(response)


def test_an_answer_is_the_next_requests_input(cluster):
    _, first = cluster.post(PATH, request())
    turns = [{"role": "user", "content": TEXT}, *first["output"], {"role": "user", "content": "Go on."}]
    status, second = cluster.post(PATH, request(input=turns))
    assert status == 200, second
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + first["usage"]["output_tokens"]


def test_what_is_cut_off_says_so(cluster):
    status, response = cluster.post(PATH, request(max_output_tokens=2, ignore_eos=True))
    assert status == 200 and response["status"] == "incomplete", response
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete" and response["usage"]["output_tokens"] == 2


@pytest.mark.parametrize("changes,status,field", [
    ({"store": True}, 400, "store"),
    ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
    ({"input": []}, 400, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0].content[0].type"),
    ({"input": "x" * 3_000_000}, 400, "input"),
    ({"input": "so it was " * 30_000}, 400, "input"),
    ({"max_output_tokens": -1}, 400, "max_output_tokens"),
    ({"max_output_tokens": 10**6}, 400, "max_output_tokens"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"tools": [{"type": "web_search"}]}, 400, "tools[0].type"),
    ({"model": "gpt-5"}, 404, "model"),
], ids=str)
def test_refusals(cluster, changes, status, field):
    got, answer = cluster.post(PATH, request(**changes))
    assert got == status and answer["error"]["param"] == field, answer
    assert field.split("[")[0].split(".")[0] in answer["error"]["message"], answer
