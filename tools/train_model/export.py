"""Writes a trained model in the published Hugging Face layout."""
import json
import os

import torch

from model import CONFIG

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def write_safetensors(path, tensors):
    """The safetensors format: header length, JSON header, then the raw bytes."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        t = tensors[name].bfloat16().contiguous()
        blob = t.view(torch.int16).numpy().astype("<i2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(t.shape),
                        "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def write(directory, model, tok, prompt):
    os.makedirs(directory, exist_ok=True)
    end, turn_end = tok.special["<|endoftext|>"], tok.special["<|im_end|>"]
    tensors = {"model." + n: p.detach() for n, p in model.named_parameters()}
    write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
    write_json(directory, "config.json",
               dict(CONFIG, bos_token_id=end, eos_token_id=end))
    write_json(directory, "generation_config.json", {
        "bos_token_id": end, "eos_token_id": [end, turn_end], "pad_token_id": end,
        "do_sample": True, "temperature": 0.8, "top_p": 0.9})
    write_json(directory, "tokenizer.json", tok.to_json())
    write_json(directory, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False,
        "bos_token": None, "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "unk_token": None, "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE})
    with open(os.path.join(directory, "demo_prompt.txt"), "w", encoding="utf-8") as f:
        f.write(prompt)
