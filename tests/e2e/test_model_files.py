"""What a model directory says beside its weights: sampling defaults, ropes that are stretched, tokenizers that were
saved after training; and what a client is told that leaves out, or asks for more than, what fits."""

import concurrent.futures
import json
import pathlib
import shutil
import subprocess

import pytest

import cluster as clusters
from client import Client

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "common" / "engine" / "testdata" / "parity"
PROMPT = "It is a truth"
# With top_k 1 every seed gives the greedy text.
DEFAULTS = {"do_sample": True, "temperature": 0.6, "top_k": 1, "top_p": 0.95, "max_new_tokens": 9}


def edited(model, directory, **files):
    """A copy of a model, each file with other keys."""
    shutil.copytree(model, directory)
    for name, keys in files.items():
        path = directory / f"{name}.json"
        data = json.loads(path.read_text()) if path.exists() else {}
        data.update(keys)
        path.write_text(json.dumps(data))
    return str(directory)


@pytest.fixture(scope="module")
def opinionated(tiny_model, tmp_path_factory):
    """A model with sampling defaults, whose tokenizer.json was saved after training."""
    return edited(tiny_model, tmp_path_factory.mktemp("opinionated") / "model", generation_config=DEFAULTS,
                  tokenizer={"truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst",
                                            "stride": 0},
                             "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
                                         "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}})


def complete(cluster, **more):
    status, body = cluster.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True,
                                                    "return_token_ids": True, **more})
    assert status == 200, body
    return body["choices"][0]["token_ids"]


def test_the_models_sampling_defaults_hold_on_every_front(opinionated, tmp_path):
    with clusters.Cluster(opinionated, tmp_path, stages=1) as cluster, Client(cluster.target) as client:
        greedy = complete(cluster, temperature=0)
        assert [complete(cluster, seed=seed) for seed in range(3)] == [greedy] * 3
        assert complete(cluster, seed=1, top_k=-1, temperature=5.0, top_p=1) != greedy, "what a request says counts"
        sampling = {"max_new_tokens": 12, "ignore_eos": True, "sampling_seed": 7}
        status, body = cluster.post("/generate", {"text": PROMPT, "sampling_params": sampling})
        assert status == 200 and body["output_ids"] == greedy, body
        assert client.generate(PROMPT, max_tokens=12, ignore_eos=True, seed=7).tokens == greedy
        chats = []
        for more in ({"temperature": 0}, {"seed": 1}, {"seed": 2}):
            status, body = cluster.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Tell me"}], "ignore_eos": True, **more})
            assert status == 200, body
            chats.append(body["choices"][0]["message"]["content"])
            assert body["usage"]["completion_tokens"] == DEFAULTS["max_new_tokens"], "the file's max_new_tokens"
            assert "max_tokens: none was given" in body["warnings"][0]
        assert chats[1:] == [chats[0]] * 2
        log = cluster.processes["router"].log()
        assert "sampling defaults: temperature 0.6, top_k 1, top_p 0.95, max_new_tokens 9" in log
        ids = cluster.post("/tokenize", {"prompt": "more than eight letters"})[1]["tokens"]
        assert bytes(ids).decode() == "more than eight letters", "truncation and padding are not serving's"


@pytest.mark.parametrize("choice", ["vllm", "none"])
def test_the_operator_may_leave_them_out(opinionated, tmp_path, choice):
    with clusters.Cluster(opinionated, tmp_path, stages=1, router_flags=["--generation-config", choice]) as cluster:
        assert len({tuple(complete(cluster, seed=seed)) for seed in range(3)}) == 3
        cluster.processes["router"].wait_log(f"sampling defaults: OpenAI's (--generation-config {choice})")


def test_only_config_json_ends_texts_without_the_generation_config(tiny_model, tmp_path):
    """Greedily the second token is made the end by each file in turn."""
    with clusters.Cluster(tiny_model, tmp_path / "a", stages=1) as cluster:
        greedy = complete(cluster, temperature=0)
    end = greedy[1]
    assert greedy[0] != end
    model = edited(tiny_model, tmp_path / "model", generation_config={"eos_token_id": [end]},
                   config={"eos_token_id": [300]})
    for choice, count in (("auto", 2), ("none", 12)):
        with clusters.Cluster(model, tmp_path / choice, stages=1,
                              router_flags=["--generation-config", choice]) as cluster:
            tokens = complete(cluster, temperature=0, ignore_eos=False)
            assert len(tokens) == count, (choice, tokens)


@pytest.mark.parametrize("keys, field", [({"temperature": -1}, "temperature"), ({"top_p": "high"}, "top_p"),
                                         ({"max_new_tokens": 0}, "max_new_tokens")])
def test_defaults_that_cannot_be_are_refused_at_the_start(tiny_model, tmp_path, keys, field):
    model = edited(tiny_model, tmp_path / "model", generation_config=keys)
    for command in (["validate", "--memory-check", "off"],
                    ["router", "--port", "0", "--grpc-port", "0", "--cluster-port", "0"]):
        run = subprocess.run([clusters.BATON, *command, "--model-path", model], capture_output=True, text=True,
                             timeout=60, check=False)
        assert run.returncode != 0
        assert f'generation_config.json: "{field}"' in run.stdout + run.stderr
    run = subprocess.run([clusters.BATON, "validate", "--memory-check", "off", "--model-path", model,
                          "--generation-config", "vllm"], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_stretched_rope_equals_hugging_face_through_the_cluster(tiny_model, tmp_path):
    """Past the trained length, cut into chunks and stages."""
    model = tmp_path / "yarn"
    shutil.copytree(FIXTURES / "yarn", model)
    small = clusters.make_model(tmp_path / "small", layers=1, vocab_size=300)
    shutil.copy(pathlib.Path(small) / "tokenizer.json", model)
    cases = json.loads((model / "expected.json").read_text())["cases"]
    with clusters.Cluster(str(model), tmp_path / "logs", stages=2, flags=["--page-size", 16, "--dtype", "float32"],
                          prefill_flags=["--chunked-prefill-size", 64]) as cluster, Client(cluster.target) as client:
        for case in cases:
            answer = client.greedy(case["prompt"], len(case["greedy"]))
            assert answer.error is None, answer.error
            assert answer.tokens == case["greedy"], f"prompt of {len(case['prompt'])} tokens"


@pytest.fixture(scope="module")
def narrow(tiny_model, tmp_path_factory):
    """A context of 16,384 tokens, and KV caches of 1,024."""
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("narrow"), stages=1,
                          flags=["--page-size", 16, "--kv-cache-tokens", 1024]) as cluster:
        yield cluster


def test_what_fits_no_cache_is_the_requests_fault(narrow):
    status, body = narrow.post("/v1/completions", {"prompt": [5] * 5000, "max_tokens": 5})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded", body
    assert body["error"]["param"] == "prompt" and "5000" in body["error"]["message"]
    assert "1024" in body["error"]["message"]
    status, body = narrow.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}],
                                                        "max_completion_tokens": 3000})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded", body
    assert body["error"]["param"] == "max_completion_tokens", "as the client called it"
    for path in ("/v1/models", "/v1/models/tiny", "/model_info"):
        shown = json.loads(narrow.get(path)[1])
        card = shown["data"][0] if "data" in shown else shown
        assert card["max_model_len"] == 1024, path
    whole = {"prompt": [5] * 1023, "max_tokens": 1}
    assert narrow.post("/v1/completions", whole)[0] == 200, "as large as it was told"


def test_who_names_no_length_gets_what_the_cache_holds(narrow):
    status, body = narrow.post("/v1/completions", {"prompt": [5] * 900, "ignore_eos": True, "temperature": 0})
    assert status == 200, body
    assert body["usage"]["completion_tokens"] == 124
    assert "124 tokens" in body["warnings"][0] and "KV cache" in body["warnings"][0]


def test_one_tracing_id_may_be_on_several_requests(narrow):
    def ask(_):
        return narrow.post("/v1/completions", {"prompt": "It is", "max_tokens": 60, "ignore_eos": True},
                           headers={"X-Request-Id": "trace-0f1e2d3c"})
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, range(3)))
    assert [status for status, _ in answers] == [200] * 3, answers
    ids = {body["id"] for _, body in answers}
    assert len(ids) == 3 and all(one.startswith("cmpl-trace-0f1e2d3c-") for one in ids)


def test_who_names_no_length_may_use_the_whole_context(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, router_flags=["--context-length", 512]) as cluster:
        status, body = cluster.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell me all"}], "ignore_eos": True})
        assert status == 200 and body["usage"]["total_tokens"] == 512, body
        assert body["choices"][0]["finish_reason"] == "length" and "warnings" not in body


def phi3(directory, name, short, beyond, original):
    model = clusters.make_model(directory / "made", family="phi3", layers=4)
    rope = {"type": "longrope", "short_factor": short, "long_factor": beyond, "attention_factor": 1.2}
    keys = {"rope_scaling": rope, "original_max_position_embeddings": original, "max_position_embeddings": 1024}
    return edited(model, directory / name, config=keys)


def test_a_longer_context_takes_the_factors_that_it_was_made_for(tmp_path):
    short, beyond = [1.0] * 6, [1.0, 1.5, 3.0, 6.0, 12.0, 24.0]
    stretched = phi3(tmp_path, "stretched", short, beyond, original=64)
    always = phi3(tmp_path, "always", beyond, beyond, original=1024)
    prompt = [(7 * i) % 256 for i in range(200)]
    texts = {}
    for name, model, flags in (("short", stretched, []), ("stretched", stretched, ["--context-length", 1024]),
                               ("always", always, [])):
        with clusters.Cluster(model, tmp_path, stages=2, flags=["--page-size", 16, *flags],
                              router_flags=flags) as cluster, Client(cluster.target) as client:
            texts[name] = [client.greedy(tokens, 30).tokens for tokens in (prompt[:20], prompt)
                           if name != "short" or len(tokens) < 64]
            if name == "short":
                error = client.greedy(prompt, 30).error
                assert error is not None and "64" in error.details(), error
    assert texts["stretched"] == texts["always"]
    assert texts["short"][0] != texts["always"][0], "the factors make no difference"
    said = subprocess.run([clusters.BATON, "validate", "--model-path", stretched], capture_output=True, text=True,
                          check=False, timeout=60)
    assert said.returncode == 0 and "with more, up to 1024, its long_factor is taken" in said.stdout + said.stderr
