"""The training form of the Qwen3 architecture, written for a CPU.

Weights are float32; every matrix product runs in bfloat16, which oneDNN does
two orders of magnitude faster than a plain BLAS does float32.
"""
import math

import torch
from torch import nn
import torch.nn.functional as F

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 640,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 16384,
    "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 6,
    "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16",
}


def drop(x, p):
    """Dropout from one random byte an element; torch's own is ten times slower."""
    if p == 0.0:
        return x
    n = x.numel()
    noise = torch.empty((n + 7) // 8, dtype=torch.int64).random_(-2**63, None)
    keep = noise.view(torch.uint8)[:n].view(x.shape) >= int(256 * p)
    return x * (keep.to(x.dtype) * (256 / (256 - int(256 * p))))


class Linear(nn.Linear):
    def __init__(self, rows_in, rows_out):
        super().__init__(rows_in, rows_out, bias=False)

    def forward(self, x):
        return F.linear(x, self.weight.bfloat16())


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


def rope_table(length, head_dim, theta):
    freq = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * freq
    return angle.cos().float()[:, None], angle.sin().float()[:, None]  # [T, 1, head_dim/2]


def rotate(x, table):
    """Rotate-half RoPE on [B, T, heads, head_dim]."""
    cos, sin = table
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).bfloat16()


class Attention(nn.Module):
    BLOCK = 128  # queries taken together; keys past their end are not computed

    def __init__(self, c):
        super().__init__()
        self.dim, self.heads, self.kv = (
            c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"])
        hidden = c["hidden_size"]
        self.q_proj = Linear(hidden, self.heads * self.dim)
        self.k_proj = Linear(hidden, self.kv * self.dim)
        self.v_proj = Linear(hidden, self.kv * self.dim)
        self.o_proj = Linear(self.heads * self.dim, hidden)
        self.q_norm = RMSNorm(self.dim, c["rms_norm_eps"])
        self.k_norm = RMSNorm(self.dim, c["rms_norm_eps"])

    def forward(self, x, table):
        b, t, _ = x.shape
        group = self.heads // self.kv
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, self.heads, self.dim)), table)
        k = rotate(self.k_norm(self.k_proj(x).view(b, t, self.kv, self.dim)), table)
        v = self.v_proj(x).view(b, t, self.kv, self.dim)
        q = (q * (1 / math.sqrt(self.dim))).view(b, t, self.kv, group, self.dim)
        q = q.permute(0, 2, 3, 1, 4)  # [b, kv, group, t, dim]
        k = k.permute(0, 2, 3, 1).reshape(b * self.kv, self.dim, t)
        v = v.permute(0, 2, 1, 3).reshape(b * self.kv, t, self.dim)
        outs = []
        for at in range(0, t, self.BLOCK):
            n = min(self.BLOCK, t - at)
            block = q[:, :, :, at:at + n].reshape(b * self.kv, group * n, self.dim)
            score = torch.bmm(block, k[:, :, :at + n]).view(b * self.kv, group, n, at + n)
            mask = torch.full((n, n), -math.inf, dtype=score.dtype).triu_(1)
            score[..., at:] += mask
            weight = score.softmax(-1).view(b * self.kv, group * n, at + n)
            out = torch.bmm(weight, v[:, :at + n])
            outs.append(out.view(b, self.kv, group, n, self.dim))
        out = torch.cat(outs, 3).permute(0, 3, 1, 2, 4).reshape(b, t, -1)
        return self.o_proj(out)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = Linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = Linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = Linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, table, p):
        x = x + drop(self.self_attn(self.input_layernorm(x).bfloat16(), table), p)
        return x + drop(self.mlp(self.post_attention_layernorm(x).bfloat16()), p)


class Model(nn.Module):
    """Parameter names, behind "model.", are those of the published format."""

    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                depth = math.sqrt(2 * c["num_hidden_layers"]) if last else 1.0
                nn.init.normal_(p, std=c["initializer_range"] / depth)

    def forward(self, ids, targets, dropout=0.0):
        """Per-token loss, [B, T]."""
        b, t = ids.shape
        table = rope_table(t, self.c["head_dim"], self.c["rope_theta"])
        x = drop(self.embed_tokens(ids), dropout)
        for layer in self.layers:
            x = layer(x, table, dropout)
        x = self.norm(x).bfloat16().view(b * t, -1)
        logits = F.linear(x, self.embed_tokens.weight.bfloat16()).float()
        return F.cross_entropy(logits, targets.reshape(-1), reduction="none").view(b, t)
