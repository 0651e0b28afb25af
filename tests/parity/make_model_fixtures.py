#!/usr/bin/env python3
"""Writes the fixtures of //common/engine:parity_test: what Hugging Face computes for tiny models.

Each fixture is a model directory with random weights, made and saved by transformers, and
expected.json: prompts, logits of some positions, and 64 greedy tokens, computed in float32 and
once more in bfloat16. The fixtures are committed; this script is needed only to make them anew, all
or those that are named:

    python3 -m venv venv
    venv/bin/pip install torch==2.4.1 transformers==4.53.3 safetensors 'numpy<2'
    venv/bin/python tests/parity/make_model_fixtures.py common/engine/testdata/parity [NAME...]

"yarn" was made with transformers 4.46.3 and torch 1.13. qwen3_moe, qwen3_moe_step, mixtral, mistral,
llama_bias, qwen3_moe_fp8, DeepSeek's, glm4_moe, minimax_m2, phi3 and Gemma's were made with transformers 5.24.0 and
torch 2.15.0; expected.json says so.
Older transformers are wrong for DeepSeek (groups that are masked with 0, V2 without YaRN's factor of the scores).
"""

import json
import pathlib
import sys
import tempfile

import safetensors.torch
import torch
import transformers

GREEDY_TOKENS = 64
SHAPE = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=300,
    max_position_embeddings=1024,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    attn_implementation="eager",
)


def llama3():
    # The long prompt lies well past the original 64 positions.
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SHAPE,
        rope_theta=500000.0,
        rope_scaling=dict(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    )), [5, 300]


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **{**SHAPE, "tie_word_embeddings": False}, rope_theta=1e6)), [1, 100]


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE, head_dim=32, rope_theta=1e6)), [17, 130]


def yarn():
    """64 positions, stretched to 256: the original length is max_position_embeddings, as versions of
    transformers disagree about a factor beside original_max_position_embeddings."""
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **{**SHAPE, "num_hidden_layers": 2, "max_position_embeddings": 64},
        rope_theta=1e4, rope_scaling=dict(rope_type="yarn", factor=4.0))), [5, 180]


def default_rope(theta):
    return dict(rope_type="default", rope_theta=theta)


def qwen3_moe():
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **SHAPE, head_dim=16, rope_parameters=default_rope(1e6), num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=24, norm_topk_prob=True, mlp_only_layers=[1])), [17, 130]


def qwen3_moe_step():
    """Every other layer is sparse, the weights don't sum to 1, and attention has biases."""
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **SHAPE, head_dim=16, rope_parameters=default_rope(1e6), num_experts=6, num_experts_per_tok=3,
        moe_intermediate_size=24, norm_topk_prob=False, decoder_sparse_step=2, attention_bias=True)), [5, 60]


def mixtral():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(
        **{**SHAPE, "intermediate_size": 40, "num_hidden_layers": 3}, rope_parameters=default_rope(1e6),
        num_local_experts=5, num_experts_per_tok=2)), [5, 100]


def mistral():
    """The window is shorter than the prompts, and no multiple of a page."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(
        **{**SHAPE, "num_hidden_layers": 3}, rope_parameters=default_rope(1e4), sliding_window=37)), [5, 300]


def llama_bias():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{**SHAPE, "num_hidden_layers": 3}, rope_parameters=default_rope(1e4), attention_bias=True,
        mlp_bias=True)), [5, 60]


def qwen3_moe_fp8():
    """Hidden and expert sizes of which the blocks of 128 are ragged; "fp8" in the name quantises the projections."""
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **{**SHAPE, "hidden_size": 160, "intermediate_size": 144, "num_hidden_layers": 2}, head_dim=48,
        rope_parameters=default_rope(1e6), num_experts=4, num_experts_per_tok=2, moe_intermediate_size=136,
        norm_topk_prob=True, mlp_only_layers=[1])), [5, 60]


LATENT = dict(kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20, num_key_value_heads=4,
              tie_word_embeddings=False, max_position_embeddings=256)


def deepseek_v2():
    """As V2-Lite, with queries of full rank and a softmax, but the groups of V2."""
    return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(
        **{**SHAPE, **LATENT, "num_hidden_layers": 3}, rope_parameters=default_rope(1e4), q_lora_rank=None,
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=2,
        first_k_dense_replace=1, topk_method="group_limited_greedy", n_group=4, topk_group=2,
        routed_scaling_factor=1.5, norm_topk_prob=False)), [5, 100]


def deepseek(**changes):
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(
        **{**SHAPE, **LATENT, "q_lora_rank": 40, "num_nextn_predict_layers": 0, "first_k_dense_replace": 1,
           "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_shared_experts": 1,
           "rope_parameters": dict(rope_type="yarn", rope_theta=1e4, factor=4.0, mscale=0.9, mscale_all_dim=0.8,
                                   original_max_position_embeddings=64, beta_fast=32, beta_slow=1), **changes}))


def deepseek_v3():
    return deepseek(n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2, moe_intermediate_size=24), [
        17, 130]


def deepseek_dense():
    """Latent attention without experts, whose choice rounding to bfloat16 would change."""
    return deepseek(first_k_dense_replace=3, num_hidden_layers=3), [17, 70]


def deepseek_v3_fp8():
    """Ragged blocks, and one that ends inside a head of kv_b_proj."""
    return deepseek(hidden_size=160, intermediate_size=144, num_hidden_layers=2, kv_lora_rank=144, q_lora_rank=136,
                    n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=136), [
        5, 60]


def glm4_moe():
    """Half of a head is turned, and a layer of multi-token prediction lies behind the others."""
    return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(
        **{**SHAPE, "tie_word_embeddings": False, "num_hidden_layers": 3}, head_dim=32, attention_bias=True,
        use_qk_norm=True, rope_parameters=dict(**default_rope(1e6), partial_rotary_factor=0.5), n_routed_experts=8,
        num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1,
        routed_scaling_factor=2.5, norm_topk_prob=True)), [17, 130]


def minimax_m2():
    return transformers.MiniMaxM2ForCausalLM(transformers.MiniMaxM2Config(
        **{**SHAPE, "intermediate_size": 24, "tie_word_embeddings": False, "num_hidden_layers": 3}, head_dim=32,
        rope_theta=1e6, rotary_dim=16, num_local_experts=8, num_experts_per_tok=3, bos_token_id=None,
        eos_token_id=None)), [17, 130]


def phi3():
    """As Phi-4-mini, with longrope below its original context and three quarters of a head turned, and a window."""
    factors = dict(short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5], long_factor=[1.0, 1.5, 4.0, 8.0, 16.0, 32.0])
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **{**SHAPE, "num_hidden_layers": 3}, original_max_position_embeddings=256, sliding_window=37,
        rope_scaling=dict(rope_type="longrope", **factors), partial_rotary_factor=0.75, pad_token_id=None,
        bos_token_id=None, eos_token_id=None)), [5, 180]


GEMMA = dict(head_dim=32, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def gemma():
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(
        **{**SHAPE, "num_hidden_layers": 2, "num_key_value_heads": 1}, **GEMMA,
        rope_parameters=default_rope(1e4))), [17, 130]


def gemma2():
    """Caps near the scores and logits that these weights make, and a window shorter than the prompts in every other
    layer."""
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **{**SHAPE, "num_hidden_layers": 4}, **GEMMA, rope_parameters=default_rope(1e4), sliding_window=37,
        query_pre_attn_scalar=24, attn_logit_softcapping=3.0, final_logit_softcapping=1.5)), [17, 130]


def gemma3_text(types):
    return transformers.Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": len(types)}, **GEMMA, sliding_window=37, query_pre_attn_scalar=24,
        layer_types=[{"s": "sliding_attention", "f": "full_attention"}[one] for one in types],
        rope_parameters=dict(sliding_attention=default_rope(1e4),
                             full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6)))


def gemma3():
    """A window in three layers, which turn by another base, while the fourth's positions are stretched."""
    return transformers.Gemma3ForCausalLM(gemma3_text("ssfs")), [17, 130]


def gemma3_images():
    """The same beside a tower for images."""
    vision = transformers.SiglipVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                                             num_attention_heads=2, image_size=28, patch_size=14)
    return transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(
        text_config=gemma3_text("sf"), vision_config=vision, mm_tokens_per_image=4, eos_token_id=None)), [5, 60]


MODELS = (llama3, qwen2, qwen3, yarn, qwen3_moe, qwen3_moe_step, mixtral, mistral, llama_bias, qwen3_moe_fp8,
          deepseek_v2, deepseek_v3, deepseek_dense, deepseek_v3_fp8, glm4_moe, minimax_m2, phi3, gemma, gemma2, gemma3,
          gemma3_images)


def add_mtp(path):
    """A layer that predicts further tokens behind the others, as DeepSeek-V3's checkpoints have."""
    config = json.loads((path / "config.json").read_text())
    layer = config["num_hidden_layers"]
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    hidden = config["hidden_size"]
    for name, shape in (("eh_proj", (hidden, 2 * hidden)), ("enorm", (hidden,)), ("hnorm", (hidden,)),
                        ("shared_head.norm", (hidden,)), ("mlp.gate", (4, hidden))):
        tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(shape, dtype=torch.bfloat16)
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config["num_nextn_predict_layers"] = 1
    (path / "config.json").write_text(json.dumps(config, indent=2))


def quantise(path):
    """Makes the projections of a saved model FP8 with a scale for each block; returns what all tensors are worth."""
    file = path / "model.safetensors"
    stored, worth = {}, {}
    for name, tensor in safetensors.torch.load_file(file).items():
        stored[name], worth[name] = tensor, tensor.float()
        if "_proj.weight" not in name and "_proj_with_mqa.weight" not in name:
            continue
        rows, columns = tensor.shape
        scales = torch.zeros(-(-rows // 128), -(-columns // 128))
        codes, values = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn), torch.empty(tensor.shape)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
                scales[i, j] = tensor[block].float().abs().max() / 448
                codes[block] = (tensor[block].float() / scales[i, j]).to(torch.float8_e4m3fn)
                values[block] = codes[block].float() * scales[i, j]
        stored[name], stored[name + "_scale_inv"], worth[name] = codes, scales, values
    safetensors.torch.save_file(stored, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                         weight_block_size=[128, 128])
    (path / "config.json").write_text(json.dumps(config, indent=2))
    return worth


class RoutingMargin:
    """The smallest lead of a chosen expert over one that was not, since the last look."""

    def __init__(self, model):
        self.least = float("inf")
        for module in model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(self.look)
            if type(module).__name__.endswith("TopkRouter"):
                module.register_forward_hook(self.look_at_groups)

    def look(self, module, inputs, outputs):
        merits = outputs[0].float()
        if len(inputs) == 2:  # MiniMax's bias of the scores, which are as near one another as DeepSeek's below.
            merits = 100 * (merits.sigmoid() + inputs[1])
        sorted_logits = merits.sort(dim=-1, descending=True).values
        lead = sorted_logits[:, module.top_k - 1] - sorted_logits[:, module.top_k]
        self.least = min(self.least, lead.min().item())

    def look_at_groups(self, module, _inputs, outputs):
        """DeepSeek's: scores are below 1, and so near one another that a hundredth of the margin must do."""
        bias = getattr(module, "e_score_correction_bias", None)
        scores = outputs[0].float().softmax(dim=-1) if bias is None else outputs[0].float().sigmoid() + bias
        groups = scores.view(len(scores), module.num_group, -1)
        worth = groups.max(dim=-1).values if bias is None else groups.topk(2, dim=-1).values.sum(dim=-1)
        kept = worth.topk(module.topk_group, dim=-1)
        among = groups.gather(1, kept.indices[..., None].expand(-1, -1, groups.shape[-1])).flatten(1)
        for values, count in ((worth, module.topk_group), (among, module.top_k)):
            best = values.sort(dim=-1, descending=True).values
            if count < best.shape[1]:
                self.least = min(self.least, 100 * (best[:, count - 1] - best[:, count]).min().item())

    def take(self):
        least, self.least = self.least, float("inf")
        return least


def spread_weights(model, generator):
    """Draws every parameter anew: the classes' initial biases of 0 and norms of 1 would hide errors."""
    gemma = "Gemma" in type(model).__name__
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = (not gemma or "post_" in name) + 0.2 * noise  # Gemma's own are worth one more.
        elif gemma and "embed_tokens" in name:
            # Scaled and tied, larger ones would predict themselves for ever.
            value = 0.4 * noise / parameter.shape[-1] ** 0.5
        elif name.endswith("bias"):
            value = 0.5 * noise
        else:
            value = noise * (2.0 if "o_proj" in name or "down_proj" in name else 1.5)
            value = value / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator) - 0.05)


def greedy(model, prompt):
    """GREEDY_TOKENS tokens, and the smallest lead of a chosen token over the second."""
    ids = list(prompt)
    lead = float("inf")
    for _ in range(GREEDY_TOKENS):
        logits = model(torch.tensor([ids])).logits[0, -1]
        best = torch.topk(logits, 2).values
        lead = min(lead, (best[0] - best[1]).item())
        ids.append(int(logits.argmax()))
    return ids[len(prompt):], lead


def decided_prompt(model, length, generator):
    """A random prompt none of whose greedy steps and routes is so near a tie that rounding decides it."""
    margin = RoutingMargin(model)
    for _ in range(60):
        prompt = torch.randint(0, 300, (length,), generator=generator).tolist()
        tokens, lead = greedy(model, prompt)
        if margin.take() > 1e-3 and lead > 2e-3:
            return prompt, tokens, lead
    raise RuntimeError(f"no prompt of {length} tokens has decided greedy steps")


def logits_at(model, prompt, positions):
    logits = model(torch.tensor([prompt])).logits[0].float()
    return {str(p): [float(f"{x:.7g}") for x in logits[p]] for p in positions}


def main():
    root = pathlib.Path(sys.argv[1])
    torch.set_grad_enabled(False)
    for make in MODELS:
        name = make.__name__
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        torch.manual_seed(2)
        model, lengths = make()
        generator = torch.Generator().manual_seed(2)
        spread_weights(model, generator)
        path = root / name
        # bf16 keeps the fixtures small. Loaded anew, so that both sides read the same values;
        # casting back in place would also leave rope's frequencies rounded.
        model.to(torch.bfloat16).save_pretrained(path, safe_serialization=True)
        model, narrow = (
            type(model).from_pretrained(path, torch_dtype=dtype, attn_implementation="eager").eval()
            for dtype in (torch.float32, torch.bfloat16))
        if "fp8" in name:
            with tempfile.TemporaryDirectory() as directory:
                model.save_pretrained(directory)
                safetensors.torch.save_file(quantise(path), pathlib.Path(directory) / "model.safetensors",
                                            metadata={"format": "pt"})
                model, narrow = (type(model).from_pretrained(
                    directory, torch_dtype=dtype, attn_implementation="eager").eval()
                    for dtype in (torch.float32, torch.bfloat16))
        if name in ("deepseek_v3", "glm4_moe"):
            add_mtp(path)
        cases = []
        for length in lengths:
            prompt, tokens, lead = decided_prompt(model, length, generator)
            positions = sorted({0, length // 2, length - 1})
            cases.append(
                dict(
                    prompt=prompt,
                    logits=logits_at(model, prompt, positions),
                    greedy=tokens,
                    bfloat16=dict(
                        logits=logits_at(narrow, prompt, positions),
                        greedy=greedy(narrow, prompt)[0],
                    ),
                )
            )
            print(f"{name}: prompt {length}, {len(set(tokens))} different tokens, lead {lead:.4f}")
        (path / "expected.json").write_text(json.dumps(dict(
            made_by=f"transformers {transformers.__version__}, torch {torch.__version__}",
            cases=cases,
        )))


if __name__ == "__main__":
    main()
