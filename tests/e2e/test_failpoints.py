"""Every failpoint of the services, armed once in a real process: the request that meets it ends well or
with a clear status, the next one is answered rightly, and nothing is held."""

import random

import grpc
import pytest

import cluster as clusters
from client import Client
from remembered import RememberedOracle

COUNT = 8
PROMPT = [random.Random(5).randrange(256) for _ in range(150)]
# What a client may be told; anything else would be a mistake of ours shown to a user.
CLEAR = {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED}

ROUTER = ["router.reserve", "router.start", "router.token", "router.notice"]
PREFILL = ["prefill.start", "prefill.plan", "prefill.compute", "prefill.activations_send", "prefill.kv_send",
           "prefill.commit_send", "prefill.link", "prefill.mailbox"]
DECODE = ["decode.reserve", "decode.kv_header", "decode.kv_placed", "decode.commit", "decode.step", "decode.emit",
          "decode.mailbox"]


@pytest.fixture(scope="module")
def expected(tiny_model):
    return RememberedOracle(tiny_model).greedy(PROMPT, COUNT)


def idle(cluster):
    return all(cluster.metric(name, "baton_kv_pages_used") == 0 for name in cluster.metrics_ports)


@pytest.mark.parametrize("name", ROUTER + PREFILL + DECODE)
def test_an_error_at(tiny_model, expected, tmp_path, name):
    role = name.split(".")[0]
    arms = {f"{role}_flags": ["--failpoints", f"{name}=error@1"]}
    arms.setdefault("router_flags", []).extend(["--request-timeout-ms", int(3000 * clusters.PATIENCE)])
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16], **arms) as cluster, \
            Client(cluster.target) as client:
        answer = client.greedy(PROMPT, COUNT)
        assert answer.code in CLEAR, answer.error
        assert answer.tokens == expected[:len(answer.tokens)]
        assert answer.error is None or answer.error.details(), "an error must say something"

        def answered():
            again = client.greedy(PROMPT, COUNT)
            assert again.code in CLEAR, again.error
            return again.error is None and again.tokens == expected
        clusters.wait_until(answered, 15, "the cluster to serve again")
        clusters.wait_until(lambda: idle(cluster), 10, "pages to come back")
