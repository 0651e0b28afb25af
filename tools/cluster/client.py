"""A small gRPC client of Inference for tests and tools: one call, its tokens and its end."""

import concurrent.futures
import contextlib
import dataclasses

import grpc

import cluster as clusters
import stubs


@dataclasses.dataclass
class Answer:
    tokens: list
    text: str
    finished: object = None  # baton.v1.Finished
    error: grpc.RpcError = None

    @property
    def code(self):
        return grpc.StatusCode.OK if self.error is None else self.error.code()


@contextlib.contextmanager
def membership(target):
    """A stub of baton.v1.Cluster at a router's port for workers."""
    with grpc.insecure_channel(target) as channel:
        yield stubs.cluster_grpc.ClusterStub(channel)


class Client:
    def __init__(self, target):
        self.channel = grpc.insecure_channel(target, [("grpc.max_receive_message_length", 64 << 20)])
        self.inference = stubs.inference_grpc.InferenceStub(self.channel)

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def request(self, prompt, cache_salt="", **sampling):
        """A GenerateRequest of text or token ids; other keywords are SamplingParams'."""
        message = stubs.inference.GenerateRequest(sampling=stubs.common.SamplingParams(**sampling),
                                                  cache_salt=cache_salt)
        if isinstance(prompt, str):
            message.text = prompt
        else:
            message.token_ids.ids.extend(prompt)
        return message

    def generate(self, prompt, timeout=120, request=None, on_first=None, **sampling):
        answer = Answer([], "")
        call = self.inference.Generate(request or self.request(prompt, **sampling),
                                       timeout=timeout * clusters.PATIENCE)
        try:
            for response in call:
                if response.HasField("tokens"):
                    answer.tokens.extend(response.tokens.token_ids)
                    answer.text += response.tokens.text
                    if on_first is not None:
                        on_first()
                        on_first = None
                else:
                    answer.finished = response.finished
                    answer.text += response.finished.text
        except grpc.RpcError as error:
            answer.error = error
        return answer

    def greedy(self, prompt, count, **more):
        return self.generate(prompt, temperature=0, max_tokens=count, ignore_eos=True, **more)

    def greedy_at_once(self, prompts, count):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.greedy(prompt, count), prompts))
