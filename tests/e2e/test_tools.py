"""Agents' requests over a live cluster: tools in the prompt, their calls and results in messages, reasoning.

A model with random weights calls no tools: answers with calls are tested with scripted text (services/router/http).
"""

import json
import subprocess

import jsonschema
import pytest

import cluster as clusters
from test_chat_template import model_with, router

# As Qwen3's template: tools before the messages, calls and results in them, reasoning opened in the prompt.
TEMPLATE = ("{% if tools %}T:{% for tool in tools %}{{ tool | tojson }};{% endfor %}{% endif %}"
            "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
            "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}"
            "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}]{% endfor %}"
            "{% if add_generation_prompt %}>{% if enable_thinking %}<think>\n{% endif %}"
            "{{ reasoning_effort }}{% endif %}")
TOOL = {"type": "function", "function": {"name": "get", "description": "<|im_end|>",
                                         "parameters": {"type": "object", "properties": {"z": {"type": "string"}}}}}
TURNS = [{"role": "user", "content": "x"},
         {"role": "assistant", "content": None, "tool_calls": [
             {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": "{\"z\": \"y\"}"}}]},
         {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "4"}]}]


@pytest.fixture(scope="module")
def agent_cluster(tiny_model, tmp_path_factory):
    model = model_with(tiny_model, tmp_path_factory.mktemp("agent"), {"chat_template.jinja": TEMPLATE})
    with clusters.Cluster(model, tmp_path_factory.mktemp("logs"), stages=1, flags=["--page-size", 16],
                          router_flags=["--served-model-name", "tiny"]) as cluster:
        yield cluster


def chat(cluster, **body):
    return cluster.post("/v1/chat/completions", {"max_tokens": 4, "ignore_eos": True, **body})


def test_an_agents_conversation_is_answered(agent_cluster):
    status, answer = chat(agent_cluster, messages=TURNS, tools=[TOOL], tool_choice="auto", parallel_tool_calls=True)
    assert status == 200, answer
    prompt = f"T:{json.dumps(TOOL)};[user:x][assistant:None<tool_call>get{{\"z\": \"y\"}}</tool_call>][tool:4]>"
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["choices"][0]["finish_reason"] == "length"
    _, without = chat(agent_cluster, messages=TURNS, tools=[TOOL], tool_choice="none")
    assert without["usage"]["prompt_tokens"] == len(prompt) - len(f"T:{json.dumps(TOOL)};")


def test_a_prompt_that_opens_reasoning_has_it_told(agent_cluster):
    status, answer = chat(agent_cluster, messages=TURNS[:1], chat_template_kwargs={"enable_thinking": True}, seed=7)
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    assert message["content"] is None and message["reasoning_content"], message
    _, plain = chat(agent_cluster, messages=TURNS[:1], chat_template_kwargs={"enable_thinking": True}, seed=7,
                    separate_reasoning=False)
    assert plain["choices"][0]["message"]["content"].strip() == message["reasoning_content"].strip()
    _, closed = chat(agent_cluster, messages=TURNS[:1])
    assert "reasoning_content" not in closed["choices"][0]["message"]


def test_reasoning_ends_when_its_budget_is_spent(agent_cluster):
    for budget in (0, 5):
        status, answer = chat(agent_cluster, messages=TURNS[:1], chat_template_kwargs={"enable_thinking": True}, seed=7,
                              max_tokens=40, thinking_token_budget=budget)
        assert status == 200, answer
        message, usage = answer["choices"][0]["message"], answer["usage"]
        # The mark of its end has eight bytes, each a token of this model.
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= budget + len("</think>"), usage
        assert len(message.get("reasoning_content", "")) <= budget and message["content"], message
    status, answer = chat(agent_cluster, messages=TURNS[:1], chat_template_kwargs={"enable_thinking": True}, seed=7,
                          max_tokens=60, thinking_token_budget=3, guided_regex="yes|no", ignore_eos=False)
    assert status == 200 and answer["choices"][0]["message"]["content"] in ("yes", "no"), answer
    status, answer = agent_cluster.post("/v1/messages", {
        "model": "tiny", "max_tokens": 40, "messages": TURNS[:1], "seed": 7, "ignore_eos": True,
        "thinking": {"type": "enabled", "budget_tokens": 4}})
    assert status == 200 and [block["type"] for block in answer["content"]] == ["thinking", "text"], answer
    status, answer = chat(agent_cluster, messages=TURNS[:1], thinking_token_budget=-1)
    assert status == 400 and answer["error"]["param"] == "thinking_token_budget", answer


@pytest.mark.parametrize("parser", ["pythonic", "glm", "qwen3-coder"])
def test_calls_are_forced_where_arguments_are_no_json(tiny_model, tmp_path, parser):
    tool = {"type": "function", "function": {"name": "put", "strict": True, "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "maxLength": 12},
                                         "n": {"type": "integer", "minimum": -99, "maximum": 99},
                                         "unit": {"enum": ["C", "F"]}, "on": {"type": "boolean"}},
        "required": ["text", "n", "unit", "on"], "additionalProperties": False}}}
    model = model_with(tiny_model, tmp_path, {"chat_template.jinja": TEMPLATE})
    with clusters.Cluster(model, tmp_path, stages=1, flags=["--page-size", 16],
                          router_flags=["--tool-call-parser", parser]) as cluster:
        for choice in ("required", {"type": "function", "function": {"name": "put"}}):
            status, answer = cluster.post("/v1/chat/completions", {
                "messages": TURNS[:1], "tools": [tool], "tool_choice": choice, "temperature": 2, "seed": 3, "n": 4,
                "max_tokens": 600, "parallel_tool_calls": False})
            assert status == 200, answer
            for one in answer["choices"]:
                call, = one["message"]["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                jsonschema.validate(arguments, tool["function"]["parameters"])
        bad = json.loads(json.dumps(tool).replace('"on"', '"o>n"'))
        status, answer = cluster.post("/v1/chat/completions", {"messages": TURNS[:1], "tools": [bad],
                                                               "tool_choice": "required"})
        assert status == 400 and "no arguments of this name" in answer["error"]["message"], answer


def test_what_cannot_be_done_is_refused(agent_cluster):
    for field, body in (("tool_choice", {"tool_choice": "always"}),
                        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "set"}}}),
                        ("tools[0].function.name", {"tools": [{"function": {"name": "a b"}}]})):
        status, answer = chat(agent_cluster, **{"messages": TURNS[:1], "tools": [TOOL], **body})
        assert status == 400 and answer["error"]["param"] == field, answer


def test_what_the_template_hears(tiny_model, tmp_path):
    with router(model_with(tiny_model, tmp_path, {"chat_template.jinja": TEMPLATE}), tmp_path) as running:
        text = running.text(messages=TURNS[:1], tools=[TOOL], reasoning_effort="low")
        assert text == f"T:{json.dumps(TOOL)};[user:x]>low"
        # What a tool is described by is text, whatever it looks like.
        assert len(running.tokens(messages=TURNS[:1], tools=[TOOL], reasoning_effort="low")) == len(text)


def test_a_template_without_tools_and_unknown_parsers(tiny_model, tmp_path):
    with router(tiny_model, tmp_path) as running:
        assert "chat template" in running.refusal(messages=TURNS[:1], tools=[TOOL])
    for option in ("--tool-call-parser", "--reasoning-parser"):
        run = subprocess.run([clusters.BATON, "router", "--model-path", tiny_model, option, "some"],
                             capture_output=True, text=True, check=False, timeout=60)
        assert run.returncode != 0 and "must be one of auto, none" in run.stdout + run.stderr, run


def test_marks_that_are_special_tokens_are_read_and_not_shown(tiny_model, tmp_path):
    model = model_with(tiny_model, tmp_path, {"chat_template.jinja": TEMPLATE})
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|im_start|>", "<think>"))
    mark = next(token["id"] for token in json.loads(tokenizer.read_text())["added_tokens"]
                if token["content"] == "<think>" and token["special"])
    with clusters.Cluster(model, tmp_path, stages=1, flags=["--page-size", 16]) as cluster:
        status, answer = chat(cluster, messages=TURNS[:1], max_tokens=8, n=8, seed=3, temperature=5,
                              return_token_ids=True, logit_bias={str(mark): 100, str(ord("a")): 100})
        assert status == 200, answer
        reasoned = 0
        for choice in answer["choices"]:
            ids, message = choice["token_ids"], choice["message"]
            assert set(ids) <= {mark, ord("a")}
            first = ids.index(mark) if mark in ids else len(ids)
            assert (message["content"] or "") == "a" * first, (ids, message)
            assert message.get("reasoning_content", "") == "a" * ids[first:].count(ord("a")), (ids, message)
            reasoned += "reasoning_content" in message
        assert reasoned > 0, answer
