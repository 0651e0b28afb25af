"""Chains that read prompts and decode them (--disaggregation-mode null): the same texts as of a disaggregated cluster,
every field of a request, and what is left when a party goes away."""

import concurrent.futures
import json
import random
import signal
import threading
import time

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client, membership
from remembered import RememberedOracle
from test_openai import PROMPT, curl, events

FLAGS = ["--page-size", 16, "--kv-cache-tokens", 8192]
COUNT = 12
ENDS = ["--served-model-name", "tiny", "--max-resumes", 0]  # Texts end with their workers.
LENGTHS = [1, 15, 16, 17, 64, 100, 257, 600]


def prompt_of(length):
    return [random.Random(length).randrange(256) for _ in range(length)]


def colocated_cluster(model, logs, stages, **more):
    overlap = ["--overlap-schedule", "on"]  # Has an effect with one stage.
    given = {"stages": stages, "chains": 0, "decodes": 0, "colocated": 1, "flags": [*FLAGS, *overlap],
             "router_flags": ["--served-model-name", "tiny"], **more}
    return clusters.Cluster(model, logs, **given)


@pytest.fixture(scope="module", params=[1, 2, 3])
def colocated(request, tiny_model, tmp_path_factory):
    with colocated_cluster(tiny_model, tmp_path_factory.mktemp("colocated"), request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def apart(tiny_model, tmp_path_factory):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("apart"), stages=2,
                          flags=[*FLAGS, "--overlap-schedule", "on"],
                          router_flags=["--served-model-name", "tiny"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def oracle(tiny_model):
    return RememberedOracle(tiny_model)


def idle(cluster):
    clusters.wait_until(cluster.idle, 30, "all pages to be free")


def completion(cluster, **fields):
    """The answer to a completion that must succeed."""
    status, body = cluster.post("/v1/completions", {"model": "tiny", "prompt": PROMPT, "ignore_eos": True, **fields})
    assert status == 200, body
    return body


def text_of(cluster, **fields):
    return completion(cluster, **fields)["choices"][0]["text"]


def test_tokens_are_the_oracles_alone_and_in_company(colocated, oracle):
    prompts = [prompt_of(length) for length in LENGTHS]
    expected = [oracle.greedy(prompt, COUNT) for prompt in prompts]
    with Client(colocated.target) as client:
        alone = [client.greedy(prompt, COUNT) for prompt in prompts[:4]]
        together = client.greedy_at_once(prompts * 2, COUNT)
    for answer, tokens in zip(alone + together, expected[:4] + expected * 2):
        assert answer.error is None, answer.error
        assert answer.tokens == tokens
        assert answer.finished.usage.completion_tokens == COUNT
    idle(colocated)


def test_the_answer_says_which_chain_it_was(colocated):
    with Client(colocated.target) as client:
        finished = client.greedy(prompt_of(200), 4).finished
    assert finished.prefill_chain == "colocated-0" and finished.attempts == 1
    assert finished.timing.prefill.kv_bytes == 0, "no KV is sent"
    chunks = finished.timing.prefill.chunks
    assert sum(chunk.token_count for chunk in chunks) == 200
    assert {stage.stage for chunk in chunks for stage in chunk.stages} == set(range(colocated.stages))
    with membership(colocated.cluster_target) as router:
        workers = router.List(stubs.cluster.ListRequest()).workers
    assert len(workers) == colocated.stages and all(listed.worker.decodes for listed in workers)


CASES = {
    "seed": {"temperature": 1.0, "seed": 11},
    "top_p and top_k": {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 5},
    "penalties": {"temperature": 0.9, "seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.5,
                  "presence_penalty": 0.25},
    "bias": {"temperature": 0, "logit_bias": {"7": 20, "9": -4}},
    "n": {"temperature": 1.0, "seed": 4, "n": 3},
    "prompts": {"temperature": 1.0, "seed": 4, "prompt": ["abc", "xyz " * 50]},
    "logprobs": {"temperature": 1.0, "seed": 2, "logprobs": 3},
    "echo and logprobs": {"temperature": 0, "logprobs": 1, "echo": True},
    "nothing generated": {"temperature": 0, "logprobs": 1, "echo": True, "max_tokens": 0},
    "one token": {"temperature": 1.0, "seed": 6, "max_tokens": 1},
    "min_tokens": {"temperature": 1.0, "seed": 8, "ignore_eos": False, "min_tokens": 20, "max_tokens": 24},
}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_answers_are_those_of_a_disaggregated_cluster(colocated, apart, fields):
    given = {"max_tokens": 24, **fields}
    ours, theirs = completion(colocated, **given), completion(apart, **given)
    assert ours["choices"] == theirs["choices"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert ours["usage"][count] == theirs["usage"][count]
    idle(colocated)


def test_stop_strings_end_the_chains_work(colocated):
    fields = {"max_tokens": 2000, "temperature": 1.0, "seed": 2}
    text = text_of(colocated, **{**fields, "max_tokens": 40})
    stop = text[10:13]
    cut = completion(colocated, **fields, stop=[stop])["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["text"] == text[:text.index(stop)]
    idle(colocated)


def test_a_stop_token_ends_it(colocated, oracle):
    prompt = prompt_of(50)
    tokens = oracle.greedy(prompt, COUNT)
    with Client(colocated.target) as client:
        answer = client.generate(prompt, temperature=0, max_tokens=COUNT, stop_token_ids=[tokens[5]], ignore_eos=True)
    assert answer.error is None, answer.error
    at = tokens.index(tokens[5])
    assert answer.tokens[:at] == tokens[:at] and len(answer.tokens) <= at + 1
    idle(colocated)


def test_streams_come_token_by_token(colocated):
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0.7, "seed": 5, "ignore_eos": True}
    whole = colocated.post("/v1/completions", fields)[1]["choices"][0]["text"]
    chunks = events(curl("-N", colocated.url + "/v1/completions", "-H", "Content-Type: application/json", "-d",
                         json.dumps({**fields, "stream": True})))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert len(chunks) > 12, "not all at the end"


def test_a_chat_streams_and_ends(colocated):
    fields = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "seed": 3}
    status, whole = colocated.post("/v1/chat/completions", fields)
    assert status == 200, whole
    chunks = events(curl("-N", colocated.url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
                         json.dumps({**fields, "stream": True})))
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert said == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize("length", [1, 2, 64, 65, 300])
def test_prompt_logprobs_come_before_the_tokens(colocated, oracle, length):
    prompt = prompt_of(length)
    with Client(colocated.target) as client:
        request = client.request(prompt, prompt_logprobs=True, temperature=0, max_tokens=3, ignore_eos=True,
                                 top_logprobs=2)
        ids, entries, tokens = [], [], 0
        for response in client.inference.Generate(request, timeout=120 * clusters.PATIENCE):
            if response.HasField("prompt_logprobs"):
                assert not tokens, "the prompt comes first"
                ids.extend(response.prompt_logprobs.token_ids)
                entries.extend(response.prompt_logprobs.logprobs)
            tokens += len(response.tokens.token_ids) if response.HasField("tokens") else 0
    assert ids == prompt and tokens == 3
    if length > 1:
        assert [entry.logprob for entry in entries[1:]] == pytest.approx(oracle.prompt_logprobs(prompt), abs=2e-3)


def test_a_prompt_that_is_alone_in_the_cache_still_ends(colocated):
    """It fills the pool to the last page, with its continuation."""
    with Client(colocated.target) as client:
        answer = client.generate(prompt_of(8192 - 16), temperature=0, max_tokens=16, ignore_eos=True)
    assert answer.error is None, answer.error
    assert len(answer.tokens) == 16
    idle(colocated)


def test_what_never_fits_is_refused_at_once(colocated):
    begun = time.monotonic()
    status, body = colocated.post("/v1/completions", {
        "model": "tiny", "prompt": prompt_of(8000), "max_tokens": 4000, "ignore_eos": True})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded", body
    assert time.monotonic() - begun < 5 * clusters.PATIENCE
    assert colocated.get("/readiness")[0] == 200


def test_a_client_that_leaves_frees_the_pages(colocated):
    with Client(colocated.target) as client:
        request = client.request(prompt_of(300), max_tokens=4000, ignore_eos=True)
        for _ in range(3):
            call = client.inference.Generate(request, timeout=60 * clusters.PATIENCE)
            for response in call:
                if response.HasField("tokens"):
                    break
            call.cancel()
    idle(colocated)
    assert completion(colocated, max_tokens=4)["usage"]["completion_tokens"] == 4


def test_a_client_that_leaves_while_its_prompt_is_read_frees_the_pages(colocated):
    with Client(colocated.target) as client:
        calls = [client.inference.Generate(client.request(prompt_of(4000), max_tokens=8), timeout=60)
                 for _ in range(4)]
        time.sleep(0.05)
        for call in calls:
            call.cancel()
    idle(colocated)


def test_a_deadline_ends_a_request_that_decodes(colocated):
    with Client(colocated.target) as client, pytest.raises(grpc.RpcError) as ended:
        for _ in client.inference.Generate(client.request(prompt_of(20), max_tokens=8000, ignore_eos=True),
                                           timeout=0.5):
            pass
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    idle(colocated)


def test_more_requests_than_run_at_once_wait_and_are_answered(tiny_model, tmp_path, oracle):
    with colocated_cluster(tiny_model, tmp_path, 2, colocated_flags=["--max-running-requests", 2]) as cluster, \
            Client(cluster.target) as client:
        prompts = [prompt_of(length) for length in (5, 40, 90, 200, 33, 70)]
        for prompt, answer in zip(prompts, client.greedy_at_once(prompts, COUNT)):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, COUNT)
        idle(cluster)


@pytest.mark.parametrize("flags", [
    ["--target-itl-ms", 5],
    ["--decode-max-wait-ms", 1],
    ["--target-itl-ms", 5, "--decode-max-wait-ms", 2, "--chunked-prefill-size", 64],
    ["--chunked-prefill-size", -1, "--max-prefill-tokens", 1024],
    ["--schedule-conservativeness", 2, "--num-reserved-decode-tokens", 1],
    ["--pp-async-batch-depth", 0],
], ids=lambda flags: " ".join(map(str, flags)))
def test_bounds_on_plans_change_no_text(tiny_model, tmp_path, oracle, flags):
    with colocated_cluster(tiny_model, tmp_path, 2, colocated_flags=flags) as cluster, \
            Client(cluster.target) as client:
        prompts = [prompt_of(length) for length in (20, 1500, 30, 2500)]
        for prompt, answer in zip(prompts, client.greedy_at_once(prompts, COUNT)):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, COUNT)
        idle(cluster)


def test_a_micro_batch_has_as_many_requests_as_it_may(tiny_model, tmp_path, oracle):
    """Three plans of two requests each: six run, and the others wait."""
    flags = ["--pp-max-micro-batch-size", 2, "--pp-async-batch-depth", 1]
    with colocated_cluster(tiny_model, tmp_path, 2, colocated_flags=flags) as cluster, \
            Client(cluster.target) as client:
        prompts = [prompt_of(length) for length in range(20, 30)]
        for prompt, answer in zip(prompts, client.greedy_at_once(prompts, COUNT)):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, COUNT)
        idle(cluster)
        stage0 = "colocated-0-0"
        steps = cluster.metric(stage0, "baton_decode_batch_size_count")
        assert steps > 0
        assert cluster.metric(stage0, "baton_decode_batch_size_bucket", le="2") == steps
        assert cluster.metric(stage0, "baton_plan_slot_occupancy_ratio_bucket", le="1") == \
            cluster.metric(stage0, "baton_plan_slot_occupancy_ratio_count") > 0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stage_that_dies_ends_requests_and_the_chain_comes_back(tiny_model, tmp_path, victim):
    with colocated_cluster(tiny_model, tmp_path, 2, router_flags=ENDS) as cluster, Client(cluster.target) as client:
        first = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.generate, prompt_of(100), on_first=first.set, temperature=0, max_tokens=7000,
                                 ignore_eos=True)
            assert first.wait(60 * clusters.PATIENCE)
            stage = cluster.processes[f"colocated-0-{victim}"]
            stage.kill()
            error = answer.result(timeout=30 * clusters.PATIENCE).error
        assert error is not None and error.code() == grpc.StatusCode.UNAVAILABLE, error
        stage.start()
        # A new epoch of the chain; a request waits for it.
        assert completion(cluster, max_tokens=4)["usage"]["completion_tokens"] == 4
        cluster.wait_ready()
        idle(cluster)


def test_a_stage_that_stands_still_ends_requests(tiny_model, tmp_path):
    with colocated_cluster(tiny_model, tmp_path, 2, router_flags=ENDS) as cluster, Client(cluster.target) as client:
        first = threading.Event()
        stage = cluster.processes["colocated-0-1"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.generate, prompt_of(100), on_first=first.set, temperature=0, max_tokens=7000,
                                 ignore_eos=True)
            assert first.wait(60 * clusters.PATIENCE)
            stage.signal(signal.SIGSTOP)
            try:
                error = answer.result(timeout=30 * clusters.PATIENCE).error
            finally:
                stage.signal(signal.SIGCONT)
        assert error is not None and error.code() == grpc.StatusCode.UNAVAILABLE, error
        cluster.wait_ready()
        assert completion(cluster, max_tokens=4)["usage"]["completion_tokens"] == 4
        idle(cluster)


def test_a_drain_finishes_what_the_chain_decodes(tiny_model, tmp_path):
    with colocated_cluster(tiny_model, tmp_path, 2) as cluster, Client(cluster.target) as client:
        first = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.generate, prompt_of(100), on_first=first.set, temperature=0, max_tokens=300,
                                 ignore_eos=True)
            assert first.wait(60 * clusters.PATIENCE)
            for name in ("colocated-0-0", "colocated-0-1"):
                cluster.processes[name].ask_to_stop()
            answer = answer.result(timeout=60 * clusters.PATIENCE)
        assert answer.error is None, answer.error
        assert len(answer.tokens) == 300
        for name in ("colocated-0-0", "colocated-0-1"):
            assert cluster.processes[name].stop() == 0


def test_a_pair_and_a_colocated_chain_share_a_router(tiny_model, tmp_path, oracle):
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=FLAGS, colocated=1,
                          router_flags=["--load-balance-policy", "round_robin"]) as cluster, \
            Client(cluster.target) as client:
        prompts = [prompt_of(length) for length in (5, 40, 90, 200, 33, 70, 120, 64)]
        answers = client.greedy_at_once(prompts, COUNT)
        for prompt, answer in zip(prompts, answers):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, COUNT), "the same text from either"
        assert {answer.finished.prefill_chain for answer in answers} == {"chain-0", "colocated-0"}
        # Either can go; the other serves on.
        cluster.processes["decode-0"].stop()
        clusters.wait_until(lambda: cluster.metric("router", "baton_ready_pairs") == 1, 30, "the pair to be gone")
        for prompt in prompts[:3]:
            answer = client.greedy(prompt, COUNT)
            assert answer.error is None and answer.finished.prefill_chain == "colocated-0"
        idle(cluster)


@pytest.mark.parametrize("stages", [1, 2])
def test_requests_that_give_way_get_the_same_text(tiny_model, tmp_path, oracle, stages):
    """Texts of 200 tokens want several times the pages that there are. One has penalties, which count what was drawn,
    and one a structure, which goes on from it."""
    flags = ["--page-size", 16, "--kv-cache-tokens", 640, "--num-reserved-decode-tokens", 8,
             "--schedule-conservativeness", 0, "--failpoints", "prefill.compute=delay:2"]
    prompts = [prompt_of(length) for length in (10, 20, 30, 40, 50, 17, 33, 16)]
    penalised = {"max_tokens": 200, "temperature": 0, "presence_penalty": 1.5, "repetition_penalty": 1.3}
    with colocated_cluster(tiny_model, tmp_path, stages, flags=flags) as cluster, Client(cluster.target) as client:
        structured = {"max_tokens": 200, "temperature": 1, "seed": 3, "guided_regex": "([a-z]+, ){20,}[A-Z]{9}"}
        special = [penalised, structured]
        alone = [text_of(cluster, **fields) for fields in special]
        with concurrent.futures.ThreadPoolExecutor(len(special)) as pool:
            beside = [pool.submit(text_of, cluster, **fields) for fields in special]
            answers = client.greedy_at_once(prompts, 200)
            assert [text.result() for text in beside] == alone
        for prompt, answer in zip(prompts, answers):
            assert answer.error is None, answer.error
            assert answer.tokens == oracle.greedy(prompt, 200)
        idle(cluster)
        clusters.wait_until(lambda: cluster.metric("colocated-0-0", "baton_retractions_total") > 0, 5, "a retraction")


def test_a_higher_priority_overtakes_what_waits(tiny_model, tmp_path):
    flags = ["--page-size", 16, "--kv-cache-tokens", 2048, "--max-running-requests", 1,
             "--failpoints", "prefill.compute=delay:60"]
    with colocated_cluster(tiny_model, tmp_path, 1, flags=flags) as cluster:
        ended = []

        def run(name, priority):
            text_of(cluster, max_tokens=10, priority=priority)
            ended.append(name)

        def taken():
            return sum(cluster.metric("router", f"baton_requests_{state}") for state in ("running", "waiting"))

        threads = []
        # The chain has the first two by the time that the others come.
        for name, priority in (("first", 0), ("second", 0), ("late", -1), ("usual", 0), ("soon", 3)):
            threads.append(threading.Thread(target=run, args=(name, priority)))
            threads[-1].start()
            clusters.wait_until(lambda: taken() + len(ended) == len(threads), 5, "the request to be taken")
        for thread in threads:
            thread.join()
        assert ended == ["first", "second", "soon", "usual", "late"]
        for wrong in (101, -101, "high", 1.5):
            status, body = cluster.post("/v1/completions", {"model": "tiny", "prompt": PROMPT, "priority": wrong})
            assert status == 400 and body["error"]["param"] == "priority", body


def test_ranks_of_a_colocated_chain(tiny_model, tmp_path, oracle):
    with colocated_cluster(tiny_model, tmp_path, 2, ranks=2) as cluster, Client(cluster.target) as client:
        prompts = [prompt_of(length) for length in (5, 100, 300)]
        for prompt, answer in zip(prompts, client.greedy_at_once(prompts, COUNT)):
            assert answer.error is None, answer.error
            assert len(answer.tokens) == COUNT
        assert client.greedy(prompts[1], COUNT).tokens == client.greedy(prompts[1], COUNT).tokens
        idle(cluster)
