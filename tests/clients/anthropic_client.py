"""Run by `./dev check clients` with Anthropic's client: messages, tools, thinking, schemas, streams, counts, errors.

    python anthropic_client.py ROOT_URL KEY
"""

import json
import sys

import anthropic

ROOT, KEY = sys.argv[1:]
client = anthropic.Anthropic(base_url=ROOT, api_key=KEY, max_retries=0, timeout=60)
MODEL = "tiny"
ASK = [{"role": "user", "content": "What is the weather in Bath?"}]
TOOLS = [{"name": "weather", "description": "The weather of a city.",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
                           "required": ["city"]},
          "cache_control": {"type": "ephemeral"}}]
THINKING = {"type": "thinking", "thinking": "I must look.", "signature": ""}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bath"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}],
          "is_error": False}
TURNS = [*ASK, {"role": "assistant", "content": [THINKING, {"type": "text", "text": "Let me see."}, CALL]},
         {"role": "user", "content": [RESULT, {"type": "text", "text": "So?"}]}]


def create(**more):
    return client.messages.create(**{"model": MODEL, "max_tokens": 8, "messages": ASK, **more})


message = create(system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                 metadata={"user_id": "me"}, stop_sequences=["THE END"],
                 extra_body={"seed": 3, "temperature": 0.5, "top_k": 40, "top_p": 0.9})
assert message.type == "message" and message.role == "assistant" and message.model == MODEL
assert message.content[0].type == "text" and message.stop_reason in ("end_turn", "max_tokens")
assert 0 < message.usage.output_tokens <= 8 and message.usage.cache_read_input_tokens is not None

agent = {"messages": TURNS, "tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
         "thinking": {"type": "enabled", "budget_tokens": 4}, "extra_body": {"seed": 3}}
whole = create(**agent)
with client.messages.stream(model=MODEL, max_tokens=8, **agent) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
assert final.usage.output_tokens == whole.usage.output_tokens and final.stop_reason == whole.stop_reason
raw = list(create(stream=True))
assert raw[0].type == "message_start" and raw[-1].type == "message_stop"

# Thoughts end when their budget is spent, and a schema holds behind them.
thought = create(max_tokens=60, thinking={"type": "enabled", "budget_tokens": 5}, extra_body={"seed": 3})
assert [block.type for block in thought.content] == ["thinking", "text"], thought
CITY = {"type": "object", "properties": {"city": {"enum": ["Bath", "Lyme"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
for more in ({}, {"thinking": {"type": "enabled", "budget_tokens": 5}}):
    answer = create(max_tokens=300, extra_body={"seed": 3, "output_config": {"format": {
        "type": "json_schema", "schema": CITY}}}, **more)
    told = json.loads(answer.content[-1].text)
    assert told["city"] in ("Bath", "Lyme") and told["days"] <= 9, answer
forced = create(max_tokens=200, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}, extra_body={"seed": 4})
assert forced.content[-1].type == "tool_use" and forced.content[-1].name == "weather", forced
assert forced.stop_reason == "tool_use" and list(forced.content[-1].input) == ["city"], forced

count = client.messages.count_tokens(model=MODEL, messages=TURNS, tools=TOOLS)
assert count.input_tokens > client.messages.count_tokens(model=MODEL, messages=ASK).input_tokens > 0

for wrong, kind, words in (
        ({"model": "claude"}, anthropic.NotFoundError, "claude"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
        ({"max_tokens": 10**6}, anthropic.BadRequestError, "max_tokens"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "tools[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {
            "type": "url", "url": "http://127.0.0.1/x.png"}}]}]}, anthropic.BadRequestError, "image")):
    try:
        create(**wrong)
        raise AssertionError(f"{wrong} was accepted")
    except kind as error:
        assert words in error.body["error"]["message"], error
try:
    anthropic.Anthropic(base_url=ROOT, api_key="another", max_retries=0).messages.create(
        model=MODEL, max_tokens=2, messages=ASK)
    raise AssertionError("a wrong key was accepted")
except anthropic.AuthenticationError as error:
    assert error.body["error"]["type"] == "authentication_error", error
print("Anthropic's client", anthropic.__version__, "agrees")
