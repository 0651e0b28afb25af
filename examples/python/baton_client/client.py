"""Client: one channel to a router, and its calls. Safe to use from several threads."""

import dataclasses
import pathlib

import grpc

try:
    from baton_client.v1 import common_pb2, inference_pb2, inference_pb2_grpc
except ModuleNotFoundError as missing:
    raise ImportError("baton_client has no stubs: install it with pip, or run make_stubs.py beside it once"
                      ) from missing


class Error(Exception):
    """The server refused or broke off a call. `code` is gRPC's name: INVALID_ARGUMENT, UNAVAILABLE..."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one message of a stream brings. `logprobs` is empty unless asked for."""
    text: str
    token_ids: tuple
    logprobs: tuple = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """A whole continuation. `usage` and `timing` are baton.v1.Usage and baton.v1.RequestTiming."""
    text: str
    token_ids: tuple
    finish_reason: str  # "stop", "length", ...
    usage: object
    timing: object


class Stream:
    """The pieces of one continuation as they come; `finished` is baton.v1.Finished once they are all there.

    Ending it early, by cancel() or by leaving its `with` block, aborts the request on the server."""

    def __init__(self, call):
        self._call = call
        self.finished = None

    def __iter__(self):
        try:
            for response in self._call:
                if response.HasField("tokens"):
                    yield Piece(response.tokens.text, tuple(response.tokens.token_ids),
                                tuple(response.tokens.logprobs))
                else:
                    self.finished = response.finished
                    if response.finished.text:
                        yield Piece(response.finished.text, ())
        except grpc.RpcError as error:
            raise Error(error.code().name, error.details()) from error

    def cancel(self):
        self._call.cancel()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cancel()


class Client:
    """Speaks to the router at `target` ("host:port"), over TLS if `certificates` names a file with those that are
    trusted (a router with --ssl-certfile). Keywords of stream(), generate(), chat_stream() and chat() are the fields
    of baton.v1.SamplingParams; a timeout of None is the server's own."""

    def __init__(self, target, api_key=None, certificates=None):
        # A whole answer may be longer than gRPC's 4 MiB; max_tokens bounds it.
        options = [("grpc.max_receive_message_length", -1)]
        if certificates is None:
            self._channel = grpc.insecure_channel(target, options=options)
        else:
            trusted = pathlib.Path(certificates).read_bytes()
            self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted), options=options)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def stream(self, prompt, *, request_id="", timeout_s=None, **sampling):
        """The continuation of `prompt`, a string or a list of token ids, as a Stream."""
        request = _generate_request(prompt, request_id, sampling)
        return Stream(self._stub.Generate(request, timeout=timeout_s, metadata=self._metadata))

    def generate(self, prompt, *, request_id="", timeout_s=None, **sampling):
        """The whole continuation as an Answer."""
        request = _generate_request(prompt, request_id, sampling)
        return _answer(self._unary(self._stub.GenerateOnce, request, timeout_s))

    def chat_stream(self, messages, *, request_id="", timeout_s=None, **sampling):
        """The assistant's answer to `messages` as a Stream. They are dictionaries as OpenAI's: "role" and "content",
        a string or a list of {"type": "text", "text": ...}."""
        request = _chat_request(messages, request_id, sampling)
        return Stream(self._stub.Chat(request, timeout=timeout_s, metadata=self._metadata))

    def chat(self, messages, *, request_id="", timeout_s=None, **sampling):
        """The assistant's whole answer to `messages` as an Answer."""
        return _answer(self._unary(self._stub.ChatOnce, _chat_request(messages, request_id, sampling), timeout_s))

    def abort(self, request_id):
        self._unary(self._stub.Abort, inference_pb2.AbortRequest(request_id=request_id))

    def model_info(self):
        """baton.v1.GetModelInfoResponse: the served name, vocabulary, context length."""
        return self._unary(self._stub.GetModelInfo, inference_pb2.GetModelInfoRequest())

    def tokenize(self, text, add_special_tokens=False):
        request = inference_pb2.TokenizeRequest(text=text, add_special_tokens=add_special_tokens)
        return list(self._unary(self._stub.Tokenize, request).token_ids)

    def detokenize(self, token_ids, skip_special_tokens=False):
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return self._unary(self._stub.Detokenize, request).text

    def _unary(self, method, request, timeout_s=60):
        try:
            return method(request, metadata=self._metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            raise Error(error.code().name, error.details()) from error


def _generate_request(prompt, request_id, sampling):
    request = inference_pb2.GenerateRequest(request_id=request_id, sampling=common_pb2.SamplingParams(**sampling))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def _chat_request(messages, request_id, sampling):
    request = inference_pb2.ChatRequest(request_id=request_id, sampling=common_pb2.SamplingParams(**sampling))
    for message in messages:
        content = message.get("content")
        sent = request.messages.add(role=message["role"], name=message.get("name", ""))
        if isinstance(content, str):
            sent.content = content
        elif content is not None:
            sent.parts.extend(inference_pb2.ContentPart(**part) for part in content)
    return request


def _answer(whole):
    return Answer(text=whole.text, token_ids=tuple(whole.token_ids), finish_reason=finish_reason(whole.finished),
                  usage=whole.finished.usage, timing=whole.finished.timing)


def finish_reason(finished):
    """The name of baton.v1.Finished's reason as OpenAI writes it: "stop", "length"."""
    return common_pb2.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()
