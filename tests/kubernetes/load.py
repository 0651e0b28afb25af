"""Streams through the cluster's Service while pods come and go, each answer compared with the right one.

A Load has a few threads that send one streamed completion after another on a connection of its own. Every
answer must be the text that the undisturbed cluster gave for that prompt (greedy, fixed length), ended by
[DONE]; anything else is a failure, kept with its time and the words that the client got.
"""

import dataclasses
import http.client
import json
import threading
import time

ANSWER_SECONDS = 300


class BadAnswer(RuntimeError):
    pass


def complete(address, prompt, max_tokens, headers=(), on_token=None):
    """One streamed completion from (host, port); its text. BadAnswer says what came instead."""
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", "/v1/completions", headers={"Content-Type": "application/json", **dict(headers)},
                           body=json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                                            "ignore_eos": True, "stream": True}))
        answer = connection.getresponse()
        if answer.status != 200:
            raise BadAnswer(f"HTTP {answer.status}: {answer.read().decode('utf-8', 'replace').strip()}")
        return read_stream(answer, on_token)
    except (OSError, http.client.HTTPException) as error:
        raise BadAnswer(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def read_stream(answer, on_token):
    text = ""
    for line in answer:
        line = line.decode("utf-8").strip()
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return text
        event = json.loads(line[len("data: "):])
        if "error" in event:
            raise BadAnswer(f"error within the stream, after {len(text)} characters: {json.dumps(event['error'])}")
        for choice in event["choices"]:
            text += choice["text"]
            if on_token is not None:
                on_token()
    raise BadAnswer(f"the stream ended without [DONE], after {len(text)} characters")


@dataclasses.dataclass
class Failure:
    at: float
    what: str


class Load:
    """`expected` is {prompt: text}. A context: its threads end with it, after the answers they wait for."""

    def __init__(self, address, expected, max_tokens, streams=4):
        self.address, self.expected, self.max_tokens = address, expected, max_tokens
        self.begun = time.monotonic()
        self.answered = 0
        self.failures = []
        self.stopping = threading.Event()
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(streams)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(timeout=ANSWER_SECONDS)

    def _run(self, n):
        prompts = list(self.expected)
        while not self.stopping.is_set():
            prompt = prompts[n % len(prompts)]
            n += 1
            try:
                text = complete(self.address, prompt, self.max_tokens)
                if text != self.expected[prompt]:
                    raise BadAnswer(f"another text than before: {text!r} for {prompt[:30]!r}")
            except BadAnswer as error:
                self._note(Failure(time.monotonic() - self.begun, str(error)))
                # A refused connection comes back at once: don't flood the report with one cause.
                self.stopping.wait(0.25)
            else:
                self._note(None)

    def _note(self, failure):
        with self.changed:
            if failure is None:
                self.answered += 1
            else:
                self.failures.append(failure)
            self.changed.notify_all()

    def wait_answers(self, count, seconds=ANSWER_SECONDS):
        """Until `count` more answers have come."""
        with self.changed:
            goal = self.answered + count
            if not self.changed.wait_for(lambda: self.answered >= goal, seconds):
                raise TimeoutError(f"only {count - (goal - self.answered)} of {count} answers came in {seconds} s; "
                                   f"failures: {[failure.what for failure in self.failures[-3:]]}")

    def summary(self):
        lines = [f"{self.answered} answers, {len(self.failures)} failures in {time.monotonic() - self.begun:.0f} s"]
        return "\n".join(lines + [f"  at {failure.at:.1f} s: {failure.what}" for failure in self.failures[:8]])
