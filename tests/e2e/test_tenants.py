"""Limits of tenants: what one has used up is refused with a time to come back, and costs no other anything."""

import concurrent.futures

import grpc
import pytest

import cluster as clusters
from client import Client

PROMPT = list(range(40))
COLOCATED = {"stages": 1, "chains": 0, "decodes": 0, "colocated": 1}


def limited(model, logs, *flags):
    return clusters.Cluster(model, logs, router_flags=["--served-model-name", "tiny", *flags], **COLOCATED)


@pytest.fixture(scope="module")
def cluster(tiny_model, tmp_path_factory):
    """Three requests in a minute, so that none comes back while a test runs."""
    with limited(tiny_model, tmp_path_factory.mktemp("logs"), "--tenant-requests-per-minute", 3) as cluster:
        yield cluster


def complete(cluster, path="/v1/completions", body=None, **headers):
    body = body or {"prompt": PROMPT}
    return cluster.post(path, {"model": "tiny", "max_tokens": 2, **body},
                        headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_a_tenant_is_refused_and_others_are_not(cluster):
    for _ in range(3):
        assert complete(cluster, X_Tenant="flood")[0] == 200
    status, answer = complete(cluster, X_Tenant="flood")
    assert (status, answer["error"]["type"], answer["error"]["code"]) == (429, "rate_limit_error",
                                                                          "rate_limit_exceeded")
    assert "--tenant-requests-per-minute" in answer["error"]["message"]
    assert complete(cluster, X_Tenant="quiet")[0] == 200
    assert complete(cluster)[0] == 200, "those without a name are a tenant"
    clusters.wait_until(lambda: cluster.metric("router", "baton_rate_limited_total", limit="requests") >= 1, 10,
                        "the refusal to be counted")


def test_every_front_knows_the_tenant(cluster):
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert complete(cluster, X_Tenant="mixed")[0] == 200
    assert cluster.post("/generate", {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}},
                        headers={"X-Tenant": "mixed"})[0] == 200
    with Client(cluster.target) as client:
        metadata = [("x-tenant", "mixed")]
        request = client.request(PROMPT, max_tokens=2)
        assert [message for message in client.inference.Generate(request, timeout=60, metadata=metadata)]
        with pytest.raises(grpc.RpcError) as refused:
            list(client.inference.Generate(request, timeout=60, metadata=metadata))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for path, body in (("/v1/chat/completions", chat), ("/v1/messages", chat), ("/v1/responses", {"input": "hi"})):
        if path == "/v1/responses":
            body = {**body, "max_output_tokens": 16, "max_tokens": None}
        body = {key: value for key, value in {"model": "tiny", "max_tokens": 2, **body}.items() if value is not None}
        status, answer = cluster.post(path, body, headers={"X-Tenant": "mixed"})
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error"), (path, answer)


def test_tokens_that_were_not_used_are_given_back(tiny_model, tmp_path):
    with limited(tiny_model, tmp_path, "--tenant-tokens-per-minute", 500) as cluster, Client(cluster.target) as client:
        first = client.greedy(PROMPT, 1).tokens
        for _ in range(3):  # 340 each, of which 41 are used.
            status, answer = cluster.post("/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": 300,
                                                              "stop_token_ids": first, "temperature": 0})
            assert status == 200, answer
            assert answer["usage"]["completion_tokens"] == 1
        status, answer = cluster.post("/v1/completions", {"model": "tiny", "prompt": PROMPT, "max_tokens": 461})
        assert status == 400 and "--tenant-tokens-per-minute" in answer["error"]["message"]


def test_keys_are_tenants_where_no_header_names_them(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    with limited(tiny_model, tmp_path / "logs", "--tenant-requests-per-minute", 1, "--tenant-header", "",
                 "--api-key-file", keys) as cluster:
        def ask(**headers):
            return complete(cluster, **headers)[0]
        assert ask(Authorization="Bearer alpha", X_Tenant="a") == 200
        assert ask(Authorization="Bearer alpha", X_Tenant="b") == 429, "the header counts for nothing here"
        assert ask(x_api_key="alpha") == 429
        assert ask(Authorization="Bearer beta") == 200
        assert ask(Authorization="Bearer gamma") == 401
        assert "alpha" not in cluster.processes["router"].log()


SLOW = ["--failpoints", "prefill.compute=delay:20", "--page-size", 16, "--chunked-prefill-size", 32]
SHAPES = pytest.mark.parametrize("shape", [COLOCATED, {"stages": 1}], ids=["colocated", "disaggregated"])


@SHAPES
def test_a_flood_does_not_keep_another_tenant_waiting(tiny_model, tmp_path, shape):
    """Each prompt takes several plans. What the flood has in the queue is served in turns with the other's one."""
    with clusters.Cluster(tiny_model, tmp_path, router_flags=["--served-model-name", "tiny"],
                          prefill_flags=SLOW, decode_flags=["--page-size", 16],
                          colocated_flags=SLOW, **shape) as served, \
            concurrent.futures.ThreadPoolExecutor(40) as pool:
        def ask(number, tenant):
            status, answer = complete(served, body={"prompt": [number] * 300}, X_Tenant=tenant)
            assert status == 200, answer
        ask(1, "flood")
        flood = [pool.submit(ask, 100 + number, "flood") for number in range(40)]
        clusters.wait_until(lambda: sum(call.done() for call in flood) >= 2, 30, "the flood to be served")
        before = sum(call.done() for call in flood)
        ask(2, "quiet")
        between = sum(call.done() for call in flood) - before
        for call in flood:
            call.result()
        assert between <= 8, f"{between} of the flood were served before one of another tenant"


def test_what_would_wait_for_too_long_is_refused(tiny_model, tmp_path):
    slow = [*SLOW, "--max-running-requests", 1]
    with clusters.Cluster(tiny_model, tmp_path, router_flags=["--served-model-name", "tiny", "--max-queue-ms", 300],
                          colocated_flags=slow, **COLOCATED) as served, \
            concurrent.futures.ThreadPoolExecutor(24) as pool:
        def ask(number):
            return complete(served, body={"prompt": [number] * 300})
        answers = [call.result() for call in [pool.submit(ask, number) for number in range(24)]]
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 429}, statuses
        refused = next(answer for status, answer in answers if status == 429)
        assert "--max-queue-ms" in refused["error"]["message"], refused
        assert served.metric("router", "baton_queue_refusals_total") == statuses.count(429)
