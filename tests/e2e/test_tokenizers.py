"""Models whose tokenizers are not of bytes: Llama-2's and Mistral's kind, Unigram's, and Kimi's tiktoken.model."""

import json
import pathlib
import shutil
import subprocess

import pytest

import cluster as clusters
from test_openai import curl, events

FAMILIES = clusters.ROOT / "common/tokenizer/testdata/families"
TEXTS = ["The old harbour lay under fog.", "two  spaces and more", "早晨 😀 é", "x"]


@pytest.fixture(scope="module", params=["llama2", "mistral", "gemma", "unigram_bytes", "kimi"])
def served(request, tmp_path_factory):
    model = pathlib.Path(clusters.make_model(tmp_path_factory.mktemp("model") / "made", layers=2, vocab_size=1200))
    (model / "tokenizer.json").unlink()
    roles, end = {"bos_token": "<s>", "eos_token": "</s>"}, 2
    if request.param == "kimi":
        shutil.copy(FAMILIES / "kimi.tiktoken", model / "tiktoken.model")
        config = json.loads((FAMILIES / "kimi_config.json").read_text())
        roles = {**config, "bos_token": "[BOS]", "eos_token": "[EOS]"}
        end = next(int(token) for token, of in config["added_tokens_decoder"].items() if of["content"] == "[EOS]")
    else:
        shutil.copy(FAMILIES / f"{request.param}.json", model / "tokenizer.json")
    (model / "tokenizer_config.json").write_text(json.dumps(roles))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    (model / "config.json").write_text(json.dumps({**json.loads((model / "config.json").read_text()),
                                                   "eos_token_id": end}))
    with clusters.Cluster(model, tmp_path_factory.mktemp("logs"), stages=1, flags=["--page-size", 16]) as cluster:
        yield cluster


def test_texts_come_back_as_they_were(served):
    for text in TEXTS:
        status, tokens = served.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        assert status == 200 and tokens["tokens"], tokens
        assert served.post("/detokenize", {"tokens": tokens["tokens"]})[1]["text"] == text


def test_a_stream_is_the_whole_text(served):
    body = {"prompt": "The old harbour", "max_tokens": 24, "temperature": 1, "seed": 5, "ignore_eos": True}
    status, whole = served.post("/v1/completions", body)
    assert status == 200 and whole["usage"]["completion_tokens"] == 24, whole
    chunks = events(curl("-N", served.url + "/v1/completions", "-H", "Content-Type: application/json", "-d",
                         json.dumps({**body, "stream": True})))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]


def test_texts_keep_to_their_structure(served):
    """The masks are made of the same bytes that a text is put together of."""
    for pattern, allowed in (("yes|no", ("yes", "no")), ("é😀", ("é😀",)), (" a b", (" a b",))):
        status, answer = served.post("/v1/completions", {
            "prompt": "x", "max_tokens": 60, "temperature": 2, "seed": 1, "guided_regex": pattern})
        assert status == 200 and answer["choices"][0]["text"] in allowed, answer


def test_broken_files_are_named(tiny_model, tmp_path):
    for name, content, words in (("tiktoken.model", "!! x\n", "line 1"),
                                 ("tokenizer.json", '{"model": {"type": "WordPiece"}}', "BPE and Unigram")):
        shutil.copy(pathlib.Path(tiny_model) / "config.json", tmp_path)
        (tmp_path / name).write_text(content)
        shown = subprocess.run([clusters.BATON, "router", "--model-path", tmp_path], capture_output=True, text=True,
                               check=False, timeout=60)
        assert shown.returncode != 0 and words in shown.stdout + shown.stderr, shown
        (tmp_path / name).unlink()
