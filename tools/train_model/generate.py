"""Continues a prompt from the exported files alone, in float32.

Shares no model code with training: what it prints shows that the names, the
layout and the tokenizer on disk mean what a reader of the format expects.
"""
import argparse
import json
import math
import os
import time

import torch
import torch.nn.functional as F

from bpe import Tokenizer


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        bits = torch.frombuffer(data, dtype=torch.int16, offset=begin, count=(end - begin) // 2)
        out[name] = bits.view(torch.bfloat16).view(entry["shape"]).float()
    return out


class Reader:
    """A Qwen3 decoder over the tensors of one file, with a key/value cache."""

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.c = json.load(f)
        self.w = read_safetensors(os.path.join(directory, "model.safetensors"))
        self.cache = [None] * self.c["num_hidden_layers"]
        self.length = 0

    def norm(self, x, name):
        x = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        return x * self.w[name + ".weight"]

    def rope(self, x):
        """[heads, T, dim], at the positions that follow the cache."""
        d = self.c["head_dim"]
        freq = self.c["rope_theta"] ** (-torch.arange(0, d, 2).double() / d)
        at = torch.arange(self.length, self.length + x.shape[1]).double()
        angle = torch.cat([at[:, None] * freq] * 2, -1)
        turned = torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1)
        return x * angle.cos().float() + turned * angle.sin().float()

    def attend(self, x, layer, prefix):
        c, t = self.c, x.shape[0]

        def heads(what, n):
            y = F.linear(x, self.w[prefix + what + "_proj.weight"])
            return y.view(t, n, c["head_dim"])

        q = self.norm(heads("q", c["num_attention_heads"]), prefix + "q_norm")
        k = self.norm(heads("k", c["num_key_value_heads"]), prefix + "k_norm")
        v = heads("v", c["num_key_value_heads"]).transpose(0, 1)
        q, k = self.rope(q.transpose(0, 1)), self.rope(k.transpose(0, 1))
        if self.cache[layer] is not None:
            k = torch.cat([self.cache[layer][0], k], 1)
            v = torch.cat([self.cache[layer][1], v], 1)
        self.cache[layer] = (k, v)
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        out = []
        for h in range(c["num_attention_heads"]):
            score = q[h] @ k[h // group].T / math.sqrt(c["head_dim"])
            hidden = torch.ones_like(score, dtype=torch.bool).triu_(self.length + 1)
            out.append(score.masked_fill(hidden, -math.inf).softmax(-1) @ v[h // group])
        return F.linear(torch.cat(out, -1), self.w[prefix + "o_proj.weight"])

    def mlp(self, x, prefix):
        gate = F.linear(x, self.w[prefix + "gate_proj.weight"])
        up = F.linear(x, self.w[prefix + "up_proj.weight"])
        return F.linear(F.silu(gate) * up, self.w[prefix + "down_proj.weight"])

    @torch.no_grad()
    def feed(self, ids):
        """Appends ids; returns the logits behind the last one."""
        x = self.w["model.embed_tokens.weight"][torch.tensor(ids)]
        for i in range(self.c["num_hidden_layers"]):
            p = "model.layers.%d." % i
            x = x + self.attend(self.norm(x, p + "input_layernorm"), i, p + "self_attn.")
            x = x + self.mlp(self.norm(x, p + "post_attention_layernorm"), p + "mlp.")
        self.length += len(ids)
        return F.linear(self.norm(x[-1], "model.norm"), self.w["model.embed_tokens.weight"])


def choose(logits, temperature, top_p):
    if temperature == 0:
        return int(logits.argmax())
    p, order = (logits / temperature).softmax(-1).sort(descending=True)
    p[p.cumsum(-1) - p > top_p] = 0
    return int(order[torch.multinomial(p, 1)])


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", required=True)
    ap.add_argument("--prompt", help="a text file; the model's demo_prompt.txt by default")
    ap.add_argument("--prompt-tokens", type=int, default=0, help="keep only the first so many")
    ap.add_argument("--tokens", type=int, default=200)
    ap.add_argument("--temperature", type=float, default=0.0)
    ap.add_argument("--top-p", type=float, default=0.9)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(a.seed)
    tok = Tokenizer.load(os.path.join(a.model, "tokenizer.json"))
    with open(a.prompt or os.path.join(a.model, "demo_prompt.txt"), encoding="utf-8") as f:
        ids = tok.encode(f.read())
    ids = ids[:a.prompt_tokens] if a.prompt_tokens else ids
    reader, began = Reader(a.model), time.time()
    logits = reader.feed(ids)
    print("%d prompt tokens in %.1f s; ...%s|" % (
        len(ids), time.time() - began, tok.decode(ids[-30:])), flush=True)
    out = []
    for _ in range(a.tokens):
        out.append(choose(logits, a.temperature, a.top_p))
        if out[-1] in tok.name:
            break
        logits = reader.feed(out[-1:])
    print(tok.decode(out))


if __name__ == "__main__":
    main()
