"""Chat and whole answers over gRPC: what HTTP answers, in the same words."""

import grpc
import pytest

import stubs
from client import Client

GREEDY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
CONVERSATION = [{"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]


@pytest.fixture
def client(small_cluster):
    with Client(small_cluster.target) as opened:
        yield opened


def chat_request(messages, **sampling):
    request = stubs.inference.ChatRequest(sampling=stubs.common.SamplingParams(**sampling))
    for message in messages:
        sent = request.messages.add(role=message.get("role", ""))
        content = message.get("content")
        if isinstance(content, str):
            sent.content = content
        elif content is not None:
            sent.parts.extend(stubs.inference.ContentPart(**part) for part in content)
    return request


def test_the_answer_is_https(small_cluster, client):
    status, http = small_cluster.post("/v1/chat/completions", {"messages": CONVERSATION, **GREEDY})
    assert status == 200, http
    whole = client.inference.ChatOnce(chat_request(CONVERSATION, **GREEDY))
    assert whole.text == http["choices"][0]["message"]["content"]
    assert whole.finished.usage.prompt_tokens == http["usage"]["prompt_tokens"]
    assert len(whole.token_ids) == 8 and whole.finished.reason == stubs.common.FINISH_REASON_LENGTH
    streamed = list(client.inference.Chat(chat_request(CONVERSATION, **GREEDY)))
    assert [token for message in streamed for token in message.tokens.token_ids] == list(whole.token_ids)


def test_one_message_is_the_stream(client):
    request = client.request("hello", logprobs=True, top_logprobs=2, prompt_logprobs=True, **GREEDY)
    request.request_id = "mine"
    whole = client.inference.GenerateOnce(request)
    streamed = client.generate("hello", **GREEDY)
    assert whole.request_id == "mine" and list(whole.token_ids) == streamed.tokens and whole.text == streamed.text
    assert len(whole.logprobs) == 8 and all(len(entry.top) == 2 for entry in whole.logprobs)
    assert len(whole.prompt_logprobs.token_ids) == whole.finished.usage.prompt_tokens


@pytest.mark.parametrize("messages, sampling", [
    ([], {}),
    ([{"role": "user"}], {}),
    ([{"role": "robot", "content": "a"}], {}),
    ([{"role": "user", "content": [{"type": "image_url", "text": ""}]}], {}),
    ([{"role": "user", "content": "a"}], {"temperature": -1}),
    ([{"role": "user", "content": "a"}], {"max_tokens": 10**6}),
    ([{"role": "user", "content": "a" * 200_000}], {}),
    ([{"role": "user", "content": "a"}], {"stop": [""]}),
])
def test_refusals_have_the_same_words(small_cluster, client, messages, sampling):
    status, http = small_cluster.post("/v1/chat/completions", {"messages": messages, **sampling})
    assert status == 400, http
    for call in (client.inference.ChatOnce, lambda request: list(client.inference.Chat(request))):
        with pytest.raises(grpc.RpcError) as refused:
            call(chat_request(messages, **sampling))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == http["error"]["message"]


def test_a_deadline_ends_one_message(client):
    with pytest.raises(grpc.RpcError) as ended:
        client.inference.ChatOnce(chat_request(CONVERSATION, max_tokens=4000, ignore_eos=True), timeout=0.2)
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
