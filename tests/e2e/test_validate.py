"""`baton validate`, `baton up` and a worker give the same answer to a broken model or impossible options:
refused with the same words before anything starts."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import urllib.request

import pytest

import cluster as clusters

ANY_PORTS = ["--port", 0, "--grpc-port", 0, "--cluster-port", 0]


def run(command, model, *flags):
    arguments = [clusters.BATON, command, "--model-path", model, *flags]
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=60)


def loaded_ratio(port):
    """Of a worker that reads its weights; 0 while nobody answers there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
    except OSError:
        return 0
    found = re.search(r"^baton_weight_load_progress_ratio(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0


def edit_config(model, **changes):
    path = pathlib.Path(model) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def only_bin(model):
    (pathlib.Path(model) / "model.safetensors").rename(pathlib.Path(model) / "pytorch_model.bin")


def cut_short(model):
    path = pathlib.Path(model) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


# (name, how to break the directory, flags, words that every command says)
ROWS = [
    ("context past the model", lambda model: None, ["--context-length", 32768], "max_position_embeddings"),
    ("head_dim 34", lambda model: edit_config(model, head_dim=34), [], "\"head_dim\" is 34"),
    ("only a .bin file", only_bin, [], "pickled weights"),
    ("weights cut short", cut_short, [], "model.safetensors: tensor"),
    ("threads", lambda model: None, ["--threads", 300], "must be between 1 and 256"),
    ("memory", lambda model: None, ["--kv-cache-tokens", 2**30], "the largest --kv-cache-tokens that fits is"),
]


@pytest.mark.parametrize("break_it,flags,words", [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_every_command_refuses_alike(tiny_model, tmp_path, break_it, flags, words):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    break_it(model)
    validate = run("validate", model, *flags)
    assert validate.returncode == 1 and validate.stdout.startswith("REFUSED, 1 problem: "), validate.stdout
    assert words in validate.stdout.splitlines()[1], validate.stdout
    for command in (["worker", "--disaggregation-mode", "decode"], ["up", *ANY_PORTS]):
        result = run(command[0], model, *command[1:], *flags)
        assert result.returncode in (1, 2) and words in result.stderr, (command, result.stderr)


def test_a_missing_tokenizer_stops_up_and_the_router(tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (pathlib.Path(model) / "tokenizer.json").unlink()
    for command, flags in (("validate", []), ("up", ANY_PORTS), ("router", ["--port", 0])):
        result = run(command, model, *flags)
        assert result.returncode != 0 and "tokenizer.json" in result.stdout + result.stderr, (command, result)


def test_the_verdict_comes_first_and_options_follow(tiny_model):
    result = run("validate", tiny_model, "--page-size", 32)
    assert result.returncode == 0
    assert result.stdout.startswith("OK: a router, 1 chain of 1 stage and 1 decode\n")
    assert "flag --page-size" in result.stdout and "longest prompt that fits: 16383 tokens" in result.stdout


def chunk_row(model, *flags):
    """What validate says of the largest chunk: (tokens, where from)."""
    result = run("validate", model, *flags)
    assert result.returncode == 0, result.stdout
    name, tokens, source = re.search(r"^(chunked_prefill_size) +(\S+) +(.*)$", result.stdout, re.MULTILINE).groups()
    return int(tokens), source


def test_the_largest_chunk_follows_from_the_cache_and_says_so(tiny_model):
    stages = ["--pp-size", 2]
    of_cache = "derived from --kv-cache-tokens, a fifth of whose memory is for chunks"
    assert chunk_row(tiny_model, *stages, "--kv-cache-tokens", "4K") == (2048, of_cache)
    larger = chunk_row(tiny_model, *stages, "--kv-cache-tokens", "16K")
    assert larger[0] > 2048 and larger[1] == of_cache
    # Neither the place in the chain nor what the machine has for the pool moves what all stages have to agree on.
    worker = ["--disaggregation-mode", "prefill", "--pp-rank", 1, "--kv-cache-tokens", "16K"]
    assert chunk_row(tiny_model, *stages, *worker, "--mem-fraction-static", "0.01") == larger
    assert chunk_row(tiny_model, *stages, "--chunk-policy", "fixed") == (2048, "derived from --chunk-policy fixed")
    assert chunk_row(tiny_model, *stages, "--enable-dynamic-chunking") == (8192, "derived from --chunk-policy sglang")
    assert chunk_row(tiny_model) == (2048, "derived from --pp-size 1")
    assert chunk_row(tiny_model, *stages, "--chunked-prefill-size", 512) == (512, "flag --chunked-prefill-size")
    assert chunk_row(tiny_model, *stages, "--max-prefill-tokens", 1000) == (960, "derived from --max-prefill-tokens")
    refused = run("validate", tiny_model, "--chunked-prefill-size", 0)
    assert refused.returncode == 2 and "expected a whole number from -1 to 1048576, or auto" in refused.stderr, refused


def test_version_and_help_of_groups():
    def said(*arguments):
        result = subprocess.run([str(clusters.BATON), *arguments], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout, result.stderr
    code, out, _ = said("--version")
    assert code == 0 and out.split()[0] == "baton" and out.split()[1][0].isdigit()
    code, out, _ = said("model", "--help")
    assert code == 0 and "baton model make --out DIR" in out and "router" not in out
    code, _, error = said("model", "mkae")
    assert code == 2 and "there is no 'mkae'" in error
    code, _, error = said("rooter")
    assert code == 2 and "there is no command 'rooter'" in error
    code, out, _ = said("model", "make", "--help")
    assert code == 0 and "--hidden-size" in out


def test_hub_names_say_that_a_directory_is_needed():
    for command in (["up"], ["router"], ["model", "info"]):
        result = subprocess.run([str(clusters.BATON), *command, "--model-path", "Qwen/Qwen3-0.6B"],
                                capture_output=True, text=True, check=False, timeout=60)
        assert result.returncode != 0 and "huggingface-cli download Qwen/Qwen3-0.6B" in result.stderr, result


def test_weights_cut_short_while_they_load_are_a_message(tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    router, metrics = clusters.free_ports(2)
    worker = clusters.Process("worker", [
        "worker", "--model-path", model, "--disaggregation-mode", "decode", "--metrics-port", metrics,
        "--router-address", f"127.0.0.1:{router}", "--failpoints", "model.read=delay:100"],
        tmp_path, None)
    worker.start()
    try:
        # Its header is checked, and the rest takes 100 ms for each part of a tensor.
        clusters.wait_until(lambda: not worker.alive() or loaded_ratio(metrics) > 0, 30, "the first tensor")
        weights = pathlib.Path(model) / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
        clusters.wait_until(lambda: not worker.alive(), 60, "the worker to end")
        assert worker.popen.returncode == 1, (worker.popen.returncode, worker.log())
        assert "model.safetensors: ends at byte" in worker.log(), worker.log()
    finally:
        worker.stop()
