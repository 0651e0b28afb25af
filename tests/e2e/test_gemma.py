"""A Gemma 3 model with a tokenizer and a chat template of its kind: conversations begin with one <bos>, and answers are
what the oracle says; broken values are refused by key before anything starts."""

import json
import pathlib
import shutil
import subprocess

import pytest

import cluster as clusters
import oracle

TOKENIZER = clusters.ROOT / "common/tokenizer/testdata/families/gemma.json"
TEMPLATE = clusters.ROOT / "common/tokenizer/chat/testdata/templates/model_turns.jinja"
TURNS = ("<start_of_turn>", "<end_of_turn>")
BOS, START, END = 1, 1049, 1050  # Behind the vocabulary of the file.
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " The old  harbour 😀 "}]
PROMPT = "<start_of_turn>user\nBe brief.\n\nThe old  harbour 😀<end_of_turn>\n<start_of_turn>model\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = pathlib.Path(clusters.make_model(tmp_path_factory.mktemp("model") / "made", family="gemma3", layers=4,
                                            vocab_size=END + 1, **{"sliding-window": 16}))
    tokenizer = json.loads(TOKENIZER.read_text())
    tokenizer["added_tokens"] += [
        {**tokenizer["added_tokens"][0], "id": id_, "content": text} for id_, text in zip((START, END), TURNS)]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    shutil.copy(TEMPLATE, path / "chat_template.jinja")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, END]}))
    return path


def test_a_conversation_is_answered_as_the_oracle_answers(model, tmp_path):
    with clusters.Cluster(model, tmp_path, stages=2, flags=["--page-size", 16]) as cluster:
        status, answer = cluster.post("/tokenize", {"messages": MESSAGES})
        assert status == 200, answer
        prompt = answer["tokens"]
        assert prompt[:2] == [BOS, START] and prompt.count(BOS) == 1 and prompt.count(START) == 2, prompt
        assert prompt == cluster.post("/tokenize", {"prompt": PROMPT})[1]["tokens"], "one <bos> before plain text, too"
        status, answer = cluster.post("/v1/chat/completions", {
            "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
        assert status == 200, answer
        right = oracle.Oracle(model).greedy(prompt, 24)
        text = cluster.post("/detokenize", {"tokens": right})[1]["text"]
        assert answer["choices"][0]["message"]["content"] == text
        assert answer["usage"]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize("key, value, expected", [
    ("query_pre_attn_scalar", 0, "must be between"), ("final_logit_softcapping", -30, "must be between"),
    ("rope_local_base_freq", 0, "must be between"), ("layer_types", ["full_attention"], "must list"),
    ("layer_types", ["full_attention"] * 3 + ["strided"], "has \"strided\"; supported is"),
    ("hidden_activation", "relu", "is \"relu\"; supported is \"gelu_pytorch_tanh\"")])
def test_validate_names_a_broken_value(model, tmp_path, key, value, expected):
    copy = tmp_path / "broken"
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, key: value}))
    shown = subprocess.run([clusters.BATON, "validate", "--model-path", copy], capture_output=True, text=True,
                           check=False, timeout=60)
    assert shown.returncode != 0
    assert f'"{key}" {expected}' in shown.stdout + shown.stderr, shown.stdout + shown.stderr
