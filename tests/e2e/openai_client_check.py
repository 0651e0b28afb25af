"""Run by test_openai.py with OpenAI's own client: models, completions, chat, responses, streams, typed errors."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], max_retries=0,
                       api_key=sys.argv[2] if len(sys.argv) > 2 else "none")

assert [model.id for model in client.models.list()] == ["tiny"]

whole = client.completions.create(model="tiny", prompt="hello", max_tokens=6, temperature=0)
assert whole.usage.completion_tokens == 6 or whole.choices[0].finish_reason == "stop"
stream = client.completions.create(model="tiny", prompt="hello", max_tokens=6, temperature=0, stream=True)
assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text

messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=1, logprobs=True,
                                      top_logprobs=2)
assert chat.choices[0].message.role == "assistant"
assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2
chunks = list(client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=1, stream=True,
                                             stream_options={"include_usage": True}))
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == chat.choices[0].message.content
assert chunks[-1].usage.total_tokens == chat.usage.total_tokens

several = client.completions.create(model="tiny", prompt=["hello", "there"], n=2, max_tokens=4, temperature=1,
                                    seed=2**63, logit_bias={"97": -1}, presence_penalty=0.5, frequency_penalty=0.5,
                                    echo=True)
assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
assert several.choices[2].text.startswith("there")
two = client.chat.completions.create(model="tiny", n=2, max_completion_tokens=4, user="me", store=False,
                                     messages=[{"role": "developer", "content": "Be brief."}, *messages[1:]])
assert len(two.choices) == 2
response = client.responses.create(model="tiny", input="hi", instructions="Be brief.", max_output_tokens=6,
                                   reasoning={"effort": "low", "summary": "auto"}, store=False,
                                   include=["reasoning.encrypted_content"], extra_body={"seed": 1})
assert response.output_text and response.usage.output_tokens <= 6
assert response.usage.output_tokens_details.reasoning_tokens == 0
with client.responses.stream(model="tiny", input=[{"role": "user", "content": "hi"}, *response.output], top_p=0.9,
                             tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}],
                             tool_choice="none") as events:
    kinds = [event.type for event in events]
assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
CITY = {"type": "object", "properties": {"city": {"enum": ["Bath", "Lyme"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
form = {"type": "json_schema", "json_schema": {"name": "stay", "strict": True, "schema": CITY}}
kept = client.chat.completions.create(model="tiny", messages=messages, max_tokens=300, response_format=form, seed=2)
assert json.loads(kept.choices[0].message.content)["city"] in ("Bath", "Lyme"), kept
with client.chat.completions.stream(model="tiny", messages=messages, max_tokens=300, response_format=form,
                                    seed=2) as parts:
    assert parts.get_final_completion().choices[0].message.content == kept.choices[0].message.content
told = client.responses.create(model="tiny", input="hi", max_output_tokens=300, top_logprobs=2,
                               include=["message.output_text.logprobs"],
                               text={"format": {"type": "json_schema", "name": "stay", "schema": CITY}})
assert json.loads(told.output_text)["days"] <= 9 and len(told.output[-1].content[0].logprobs[0].top_logprobs) == 2
try:
    client.responses.create(model="tiny", input="hi", previous_response_id="resp_1")
    raise AssertionError("a response that was not kept was accepted")
except openai.BadRequestError as error:
    assert error.param == "previous_response_id", error
try:
    client.completions.create(model="tiny", prompt="hello", max_tokens=16384)
    raise AssertionError("more than the context was accepted")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error
try:
    client.completions.create(model="tiny", prompt="hello", max_tokens=-1)
    raise AssertionError("a negative max_tokens was accepted")
except openai.BadRequestError as error:
    assert error.param == "max_tokens", error
try:
    client.completions.create(model="another", prompt="hello")
    raise AssertionError("an unknown model was accepted")
except openai.NotFoundError as error:
    assert error.param == "model", error
print("OpenAI's client", openai.__version__, "agrees")
