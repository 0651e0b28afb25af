"""Requests that never pause, from many streams at once, and what became of each: for tests that change
a cluster under load."""

import dataclasses
import threading
import time

import grpc

from client import Client


@dataclasses.dataclass
class Failure:
    at: float  # time.time().
    code: str
    details: str
    tokens: int  # That the client had.
    drained: bool  # The status says that a drain ended it, and when to try again.


def retry_info(error):
    """Whether an RpcError carries google.rpc.RetryInfo."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return b"type.googleapis.com/google.rpc.RetryInfo" in details


class Load:
    """`streams` clients of `target()`, each sending its next prompt when the last one has ended.

    `target` may be None for a while. Of `prompts` [(ids, token count, expected tokens; None: those of the
    first answer)] each stream takes every one in turn. A router that is down is waited for, as clients of a
    Service with several routers would go to another one; what was sent to it counts."""

    def __init__(self, target, prompts, streams=8, timeout=60):
        self.target, self.prompts, self.timeout = target, prompts, timeout
        self.done, self.wrong, self.failures = 0, 0, []
        self._answers = {i: wanted for i, (_, _, wanted) in enumerate(prompts) if wanted is not None}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._progress = threading.Condition(self._lock)
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(streams)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """No new requests; those that run end."""
        self._ending.set()
        for thread in self._threads:
            thread.join(self.timeout * 2)
            assert not thread.is_alive(), "a request has no end"

    def wait_for(self, count, seconds):
        """Until `count` more requests have been answered."""
        with self._lock:
            goal = self.done + count
            assert self._progress.wait_for(lambda: self.done >= goal, seconds), f"{self.done} of {goal} requests"

    def _run(self, stream):
        turn = stream
        while not self._ending.is_set():
            target = self.target()
            if target is None:  # Nobody is there.
                time.sleep(0.05)
                continue
            with Client(target) as client:
                try:
                    grpc.channel_ready_future(client.channel).result(5)
                except grpc.FutureTimeoutError:
                    continue
                while not self._ending.is_set() and self.target() == target:
                    turn += 1
                    if not self._one(client, turn % len(self.prompts)):
                        break

    def _one(self, client, number):
        prompt, count, _ = self.prompts[number]
        answer = client.greedy(prompt, count, timeout=self.timeout)
        with self._lock:
            if answer.error is None:
                self.done += 1
                self.wrong += self._answers.setdefault(number, answer.tokens) != answer.tokens
                self._progress.notify_all()
                return True
            self.failures.append(Failure(time.time(), answer.code.name, answer.error.details(), len(answer.tokens),
                                         retry_info(answer.error)))
        time.sleep(0.05)  # A router that refuses is not flooded.
        return False
