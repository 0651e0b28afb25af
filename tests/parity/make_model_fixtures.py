#!/usr/bin/env python3
"""Writes the fixtures of //common/engine:parity_test: what Hugging Face computes for tiny models.

Each fixture is a model directory with random weights, made and saved by transformers, and
expected.json: prompts, logits of some positions, and 64 greedy tokens, computed in float32 and
once more in bfloat16. The fixtures are committed; this script is needed only to make them anew, all
or those that are named:

    python3 -m venv venv
    venv/bin/pip install torch==2.4.1 transformers==4.53.3 safetensors 'numpy<2'
    venv/bin/python tests/parity/make_model_fixtures.py common/engine/testdata/parity [NAME...]

"yarn" was made with transformers 4.46.3 and torch 1.13; expected.json says so.
"""

import json
import pathlib
import sys

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


MODELS = (llama3, qwen2, qwen3, yarn)


def spread_weights(model, generator):
    """Draws every parameter anew: the classes' initial biases of 0 and norms of 1 would hide errors."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.5 * noise
        else:
            value = noise * (2.0 if "o_proj" in name or "down_proj" in name else 1.5)
            value = value / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)


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
    """A random prompt none of whose greedy steps is so near a tie that rounding would decide it."""
    for _ in range(20):
        prompt = torch.randint(0, 300, (length,), generator=generator).tolist()
        tokens, lead = greedy(model, prompt)
        if lead > 2e-3:
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
