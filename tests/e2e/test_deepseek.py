"""DeepSeek's published shape and what is refused: latent rows in the memory plan, layers of multi-token prediction that
are skipped, checkpoints that lack a tensor. test_experts.py runs clusters of the family."""

import json
import pathlib
import re
import subprocess

import pytest

import cluster as clusters

V31 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
    "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"}}


def layer_tensors(index):
    """Shapes by name of one layer of DeepSeek-V3.1; projections are FP8."""
    hidden = 7168
    fp8 = {"self_attn.q_a_proj": [1536, hidden], "self_attn.q_b_proj": [128 * 192, 1536],
           "self_attn.kv_a_proj_with_mqa": [576, hidden], "self_attn.kv_b_proj": [128 * 256, 512],
           "self_attn.o_proj": [hidden, 128 * 128]}
    wide = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_a_layernorm": [1536],
            "self_attn.kv_a_layernorm": [512]}
    blocks = [("mlp.", 18432)]
    if index >= 3:
        blocks = [("mlp.shared_experts.", 2048), *((f"mlp.experts.{expert}.", 2048) for expert in range(256))]
        wide["mlp.gate"] = [256, hidden]
    for block, inner in blocks:
        fp8.update({block + "gate_proj": [inner, hidden], block + "up_proj": [inner, hidden],
                    block + "down_proj": [hidden, inner]})
    return fp8, wide


def write_hole(path, tensors):
    """A file of tensors, (name, type, shape), whose data is a hole. Returns its bytes."""
    header, offset = {}, 0
    for name, dtype, shape in tensors:
        size = {"BF16": 2, "F8_E4M3": 1, "F32": 4}[dtype] * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    return offset


def published(directory):
    """DeepSeek-V3.1's checkpoint, a file for each layer. Returns its bytes, and those of the last layer."""
    vocabulary = [129280, 7168]
    files = [[("model.embed_tokens.weight", "BF16", vocabulary), ("lm_head.weight", "BF16", vocabulary),
              ("model.norm.weight", "BF16", [7168])]]
    for index in range(62):
        prefix = f"model.layers.{index}."
        fp8, wide = layer_tensors(index)
        tensors = [(f"{prefix}{name}.weight", "BF16", shape) for name, shape in wide.items()]
        for name, shape in fp8.items():
            tensors += [(f"{prefix}{name}.weight", "F8_E4M3", shape),
                        (f"{prefix}{name}.weight_scale_inv", "F32", [-(-size // 128) for size in shape])]
        if index >= 3:
            tensors.append((prefix + "mlp.gate.e_score_correction_bias", "F32", [256]))
        if index == 61:
            tensors += [(prefix + "eh_proj.weight", "BF16", [7168, 14336]),
                        (prefix + "embed_tokens.weight", "BF16", vocabulary),
                        (prefix + "shared_head.head.weight", "BF16", vocabulary)]
        files.append(tensors)
    names = [f"model-{index + 1:05}-of-{len(files):05}.safetensors" for index in range(len(files))]
    sizes = [write_hole(directory / name, tensors) for name, tensors in zip(names, files)]
    (directory / "config.json").write_text(json.dumps(V31))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {
        tensor: name for name, tensors in zip(names, files) for tensor, _, _ in tensors}}))
    return sum(sizes), sizes[-1]


@pytest.fixture(scope="module")
def v31(tmp_path_factory):
    directory = tmp_path_factory.mktemp("v31")
    return directory, *published(directory)


@pytest.mark.parametrize("stages, ranks", [(1, 1), (1, 8), (4, 8)])
def test_validate_plans_deepseek_v31(tiny_model, v31, stages, ranks):
    directory, size, mtp = v31
    assert size == pytest.approx(689e9, rel=0.01), "as published"
    result = subprocess.run(list(map(str, [
        clusters.BATON, "validate", "--model-path", directory, "--tokenizer-path", tiny_model, "--pp-size", stages,
        "--tp-size", ranks, "--kv-cache-tokens", 8192, "--disaggregation-mode", "null"])), capture_output=True,
        text=True, check=False)
    print(result.stdout)
    assert "model.layers.61.eh_proj.weight" in result.stdout and "multi-token prediction are not run" in result.stdout
    problems = [line for line in result.stdout.splitlines() if line.strip().startswith("refused")]
    assert all("memory" in line or "GiB" in line for line in problems), result.stdout
    # Every rank holds the whole rows of its layers.
    assert f"{70272 * ranks} bytes a token over all" in result.stdout
    weights = [(int(count), int(end) - int(begin), float(mib) * 2**20) for count, begin, end, mib in re.findall(
        r"^colocated.*?(\d+) +\[(\d+), (\d+)\) +([0-9.]+)", result.stdout, re.MULTILINE)]
    assert sum(count for count, _, _ in weights) == stages * ranks
    assert sum(count * each for count, _, each in weights) == pytest.approx(size - mtp, rel=0.05)
    for _, layers, each in weights:  # A stage of fewer layers has less, and the first three are dense.
        assert each == pytest.approx((size - mtp) / ranks * layers / 61, rel=0.05 if stages == 1 else 0.3)


def test_info_tells_the_latent_row(v31):
    text = subprocess.run([clusters.BATON, "model", "info", "--model-path", str(v31[0])], capture_output=True,
                          text=True, check=True).stdout
    assert "671026.42 M" in text and "70272 bytes (bfloat16)" in text, text
    assert "128 over latent rows of 512 + 64; keys of 192, values of 128" in text, text


def refusal(model, *flags):
    result = subprocess.run([str(clusters.BATON), "validate", "--model-path", str(model), *flags], capture_output=True,
                            text=True, check=False, timeout=60)
    assert result.returncode != 0, result.stdout
    return result.stdout + result.stderr


@pytest.mark.parametrize("key, value, message", [
    ("n_group", 3, "\"n_group\" is 3, which does not divide \"n_routed_experts\" (8)"),
    ("topk_group", 5, "\"topk_group\" is 5, more than \"n_group\" (4)"),
    ("topk_method", "lottery", "\"topk_method\" is \"lottery\""),
    ("kv_lora_rank", 0, "\"kv_lora_rank\" must be between 1 and"),
    ("n_routed_experts", 16, "mlp.gate.weight has shape [8, 64], but config.json makes it [16, 64]")])
def test_a_broken_checkpoint_is_refused(tmp_path, key, value, message):
    model = pathlib.Path(clusters.make_model(tmp_path / "model", family="deepseek-v3", layers=2))
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert message in refusal(model)
