"""Models with experts, windows, fused projections and FP8 weights through whole clusters: greedy tokens equal the
oracle's apart and colocated, with stages and ranks, also behind a cached prompt, and a checkpoint that lacks an expert
is refused before anything starts."""

import json
import pathlib
import random
import subprocess

import numpy as np
import pytest

import cluster as clusters
import oracle
from client import Client
from remembered import RememberedOracle
from test_colocated import colocated_cluster

COUNT = 24
LENGTHS = [1, 17, 100, 257, 700]
FLAGS = ["--page-size", 16, "--kv-cache-tokens", 8192]
FAMILIES = {"qwen3-moe": {"experts": 10, "experts-per-token": 3, "expert-size": 40},
            "mixtral": {"experts": 5, "intermediate-size": 48, "sliding-window": 120},
            "deepseek-v2": {"experts": 6, "experts-per-token": 2, "expert-size": 40},
            "deepseek-v3": {"experts": 16, "experts-per-token": 4, "expert-size": 40},
            "glm4-moe": {"experts": 10, "experts-per-token": 3, "expert-size": 40},
            "minimax-m2": {"experts": 10, "experts-per-token": 3, "intermediate-size": 48},
            "phi3": {"sliding-window": 120},
            "gemma2": {"sliding-window": 120},
            "gemma3": {"sliding-window": 120}}


BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
ROWS = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"],
                                      "weights": {"type": "float", "num_bits": 8, "strategy": "channel"},
                                      "input_activations": {"type": "float", "num_bits": 8, "dynamic": True}}}}


def quantise(model, quantization):
    """Makes the projections of a checkpoint FP8 with a scale for each block of 128 by 128, or for each row."""
    by_row = quantization is ROWS
    stored = {}
    for name, tensor in oracle.read_tensors(model).items():
        stored[name] = ("F32", tensor)
        if not name.endswith(("_proj.weight", "_proj_with_mqa.weight")):
            continue
        height, width = (1, tensor.shape[1]) if by_row else (128, 128)
        blocks = -(-tensor.shape[0] // height), -(-tensor.shape[1] // width)
        scales = np.zeros(blocks, np.float32)
        for i, j in np.ndindex(blocks):
            block = tensor[height * i:height * i + height, width * j:width * j + width]
            scales[i, j] = np.abs(block).max() / 448
        each = np.repeat(np.repeat(scales, height, axis=0), width, axis=1)[:tensor.shape[0], :tensor.shape[1]]
        middles = (oracle.E4M3[:126] + oracle.E4M3[1:127]) / 2
        codes = np.searchsorted(middles, np.abs(tensor) / each) + 128 * np.signbit(tensor)
        stored[name] = ("F8_E4M3", codes.astype(np.uint8))
        stored[name + ("_scale" if by_row else "_scale_inv")] = ("F32", scales)
    header, data = {}, b""
    for name, (dtype, tensor) in stored.items():
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = quantization
    (model / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module", params=[*sorted(FAMILIES), "fp8", "deepseek-fp8", "rows-fp8"])
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / request.param
    if request.param in FAMILIES:
        return clusters.make_model(directory, family=request.param, layers=4, **FAMILIES[request.param])
    family = "deepseek-v3" if "deepseek" in request.param else "qwen3-moe"
    clusters.make_model(directory, family=family, layers=4, hidden=160, experts=4, **{"expert-size": 136})
    quantise(directory, ROWS if "rows" in request.param else BLOCKS)
    return str(directory)


@pytest.fixture(scope="module")
def expected(model):
    prompts = [[random.Random(length).randrange(256) for _ in range(length)] for length in LENGTHS]
    right = RememberedOracle(model)
    return prompts, [right.greedy(prompt, COUNT) for prompt in prompts]


def check(cluster, expected):
    prompts, tokens = expected
    with Client(cluster.target) as client:
        answers = [client.greedy(prompts[1], COUNT), *client.greedy_at_once(prompts, COUNT),
                   client.greedy(prompts[-1], COUNT)]
    for answer, right in zip(answers, [tokens[1], *tokens, tokens[-1]]):
        assert answer.error is None, answer.error
        assert answer.tokens == right
    assert answers[-1].finished.usage.cached_tokens == (LENGTHS[-1] - 1) // 16 * 16


@pytest.mark.parametrize("shape", [(1, 1, []), (2, 2, []), (3, 1, ["--executor", "torch"]), (2, 4, [])],
                         ids=["alone", "ranks", "torch", "more ranks"])
def test_a_disaggregated_cluster_says_what_the_oracle_says(model, expected, tmp_path, shape):
    stages, ranks, flags = shape
    with clusters.Cluster(model, tmp_path, stages=stages, ranks=ranks, flags=[*FLAGS, *flags],
                          prefill_flags=["--chunked-prefill-size", 128]) as cluster:
        check(cluster, expected)


def test_a_colocated_chain_says_what_the_oracle_says(model, expected, tmp_path):
    with colocated_cluster(model, tmp_path, 2, flags=FLAGS) as cluster:
        check(cluster, expected)


def info(model):
    result = subprocess.run([clusters.BATON, "model", "info", "--model-path", model], capture_output=True, text=True,
                            check=True)
    return result.stdout


def test_info_tells_the_experts_of_a_model(tmp_path):
    text = info(clusters.make_model(tmp_path / "model", family="qwen3-moe", layers=4, **FAMILIES["qwen3-moe"]))
    assert "10, 3 for each token, of size 40, in 4 layers" in text, text
    assert "of which a token uses" in text, text


def test_info_tells_how_much_of_a_head_is_turned(tmp_path):
    text = info(clusters.make_model(tmp_path / "model", family="glm4-moe", layers=2, experts=4))
    assert "rope                   theta 10000, over 8 of a head's 16 elements" in text, text


def test_validate_finds_nothing_wrong(model):
    result = subprocess.run([clusters.BATON, "validate", "--model-path", model, "--pp-size", "2", "--tp-size", "2",
                             "--page-size", "16", "--kv-cache-tokens", "8192"], capture_output=True, text=True,
                            check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def published(directory, **config):
    """A checkpoint of the published shape. Its tensors are a hole in a file, since validate reads no weight."""
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128,
              "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
              "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
              "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
              "eos_token_id": 151645, **config}
    hidden, inner, head = config["hidden_size"], config["moe_intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [query, hidden],
             "self_attn.k_proj": [kv, hidden], "self_attn.v_proj": [kv, hidden], "self_attn.o_proj": [hidden, query],
             "self_attn.q_norm": [head], "self_attn.k_norm": [head], "mlp.gate": [config["num_experts"], hidden]}
    for expert in range(config["num_experts"]):
        layer.update({f"mlp.experts.{expert}.{name}": shape for name, shape in (
            ("gate_proj", [inner, hidden]), ("up_proj", [inner, hidden]), ("down_proj", [hidden, inner]))})
    tensors = {"model.embed_tokens": [config["vocab_size"], hidden], "lm_head": [config["vocab_size"], hidden],
               "model.norm": [hidden]}
    for index in range(config["num_hidden_layers"]):
        tensors.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (directory / "config.json").write_text(json.dumps(config))
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return offset


@pytest.mark.parametrize("gib,shape", [
    (56.9, {"num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
            "moe_intermediate_size": 768}),
    (437.9, {"num_hidden_layers": 94, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 64,
             "moe_intermediate_size": 1536})], ids=["30B-A3B", "235B-A22B"])
def test_validate_plans_published_models(tiny_model, tmp_path, gib, shape):
    size = published(tmp_path, **shape)
    assert size / 2**30 == pytest.approx(gib, rel=0.01)
    for stages, ranks in ((1, 1), (2, 4)):
        result = subprocess.run(list(map(str, [
            clusters.BATON, "validate", "--model-path", tmp_path, "--tokenizer-path", tiny_model, "--pp-size", stages,
            "--tp-size", ranks, "--kv-cache-tokens", 8192])), capture_output=True, text=True, check=False)
        print(result.stdout)
        problems = [line for line in result.stdout.splitlines() if line.startswith("error")]
        assert all("memory" in line or "GiB" in line for line in problems), result.stdout
        weights = {}
        for line in result.stdout.splitlines():
            words = line[12:].replace(", ", ",").split()
            if line.startswith("prefill "):
                weights[line[:12].strip()] = (float(words[0]), float(words[2]))
        total = sum(count * mib for count, mib in weights.values()) / 1024
        assert total == pytest.approx(gib, rel=0.05), result.stdout
        each = gib / stages / ranks
        assert all(mib / 1024 == pytest.approx(each, rel=0.05) for _, mib in weights.values()), result.stdout


def test_a_checkpoint_without_an_expert_is_refused(tmp_path):
    model = pathlib.Path(clusters.make_model(tmp_path / "model", family="qwen3-moe", layers=2))
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_experts": 9}))
    for command in ("validate", "worker", "up"):
        mode = ["--disaggregation-mode", "decode"] if command == "worker" else []
        result = subprocess.run([str(clusters.BATON), command, "--model-path", str(model), *mode], capture_output=True,
                                text=True, check=False, timeout=60)
        assert result.returncode != 0, result.stdout
        assert "mlp.gate.weight has shape [8, 64], but config.json makes it [9, 64]" in result.stdout + result.stderr
