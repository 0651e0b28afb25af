"""Run by agent_clients.py: agents' frameworks offer tools, tell results and stream.

The model calls no tools by itself, so the calls in conversations are written here. What counts is that nothing that a
framework sends is refused, and that it reads what comes.

    python agent_loops.py BASE_URL KEY
"""

import json
import sys
from typing import Optional

import litellm
from agents import Agent as OpenAiAgent
from agents import (ModelBehaviorError, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner,
                    function_tool, set_tracing_disabled)
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, NotFoundError, OpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE, KEY = sys.argv[1:]
MODEL = "tiny"
ASK = [{"role": "user", "content": "What is the weather in Bath?"}]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def weather(city: str, unit: Optional[str] = None) -> str:
    """The weather of a city."""
    return f"rain in {city}, {unit}"


def openai_client():
    client = OpenAI(base_url=BASE, api_key=KEY, max_retries=0)
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bath\"}"}}
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]}]
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, tools=TOOLS, tool_choice="auto", parallel_tool_calls=False, store=True,
        metadata={"run": "1"}, service_tier="flex", reasoning_effort="none", max_completion_tokens=8, stream=True,
        stream_options={"include_usage": True})
    *_, last, usage = stream
    assert last.choices[0].finish_reason == "length" and usage.usage.completion_tokens == 8, (last, usage)
    try:
        client.embeddings.create(model=MODEL, input="x")
        raise AssertionError("it was accepted")
    except NotFoundError as error:
        assert "is not served here" in error.message, error


def langchain():
    model = ChatOpenAI(base_url=BASE, api_key=KEY, model=MODEL, max_tokens=8, max_retries=0)
    call = {"name": "weather", "args": {"city": "Bath"}, "id": "call_1"}
    history = [HumanMessage("Bath?"), AIMessage("", tool_calls=[call]), ToolMessage("rain", tool_call_id="call_1")]
    for agent in (model.bind_tools([weather]), model.bind_tools([weather], strict=True)):
        assert agent.invoke(history).usage_metadata["output_tokens"] == 8
        assert "".join(chunk.content for chunk in agent.stream(history))
    stay = {"title": "stay", "type": "object", "properties": {"city": {"enum": ["Bath", "Lyme"]}}, "required": ["city"]}
    for method in ("json_schema", "function_calling"):
        asked = ChatOpenAI(base_url=BASE, api_key=KEY, model=MODEL, max_tokens=200, max_retries=0)
        assert asked.with_structured_output(stay, method=method).invoke("Where?")["city"] in ("Bath", "Lyme"), method


def lite_llm():
    common = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY, "max_tokens": 8, "tools": TOOLS}
    first = litellm.completion(messages=ASK, **common).choices[0].message
    cached = [{"type": "text", "text": "And Lyme?", "cache_control": {"type": "ephemeral"}}]
    messages = [*ASK, first.model_dump(), {"role": "user", "content": cached}]
    assert list(litellm.completion(messages=messages, stream=True, **common))
    form = {"type": "json_schema", "json_schema": {"name": "stay", "schema": {
        "type": "object", "properties": {"city": {"enum": ["Bath", "Lyme"]}}, "required": ["city"]}}}
    kept = litellm.completion(messages=ASK, response_format=form, **{**common, "tools": None, "max_tokens": 200})
    assert json.loads(kept.choices[0].message.content)["city"] in ("Bath", "Lyme"), kept
    thought = litellm.completion(messages=ASK, **{**common, "tools": None, "max_tokens": 40}, extra_body={
        "chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 4})
    assert thought.choices[0].message.reasoning_content and thought.choices[0].message.content, thought


def pydantic_ai():
    provider = OpenAIProvider(base_url=BASE, api_key=KEY)
    agent = Agent(OpenAIChatModel(MODEL, provider=provider), tools=[weather], model_settings={"max_tokens": 8})
    assert agent.run_sync("Bath?").output


def openai_agents():
    set_tracing_disabled(True)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(MODEL, AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0))
        agent = OpenAiAgent(name="a", instructions="Be brief.", model=model, tools=[function_tool(weather)],
                            model_settings=ModelSettings(max_tokens=8))
        try:
            assert Runner.run_sync(agent, "Bath?").final_output
        except ModelBehaviorError as error:  # It takes no answer that max_tokens cuts off, and says so.
            assert "max_output_tokens" in str(error), error


for framework in (openai_client, langchain, lite_llm, pydantic_ai, openai_agents):
    framework()
    print(framework.__name__, "agrees", flush=True)
