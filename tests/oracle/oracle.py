"""A plain float32 forward of Llama, Qwen, Mistral, Mixtral, DeepSeek, GLM, MiniMax, Phi and Gemma checkpoints in numpy:
greedy continuation, with penalties and biases by their definition, and log-probabilities of a prompt."""

import json
import pathlib

import numpy as np

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F8_E4M3": np.uint8}
# What the codes of E4M3 below 128 are worth; the others are their negatives.
E4M3 = np.array([(code % 8) * 2.0 ** -9 if code < 8 else (8 + code % 8) * 2.0 ** (code // 8 - 10)
                 for code in range(127)]
                + [np.nan], np.float32)


def read_tensors(directory):
    """All tensors of a checkpoint directory as float32 arrays by name."""
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        raw = path.read_bytes()
        header_bytes = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:8 + header_bytes])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(raw[8 + header_bytes + begin:8 + header_bytes + end], DTYPES[entry["dtype"]])
            if entry["dtype"] == "BF16":
                flat = (flat.astype(np.uint32) << 16).view(np.float32)
            if entry["dtype"] == "F8_E4M3":
                flat = np.where(flat < 128, E4M3[flat % 128], -E4M3[flat % 128])
            tensors[name] = flat.astype(np.float32).reshape(entry["shape"])
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        scales, weight = tensors.pop(name), name.removesuffix("_scale_inv")
        each = np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)
        tensors[weight] = tensors[weight] * each[:tensors[weight].shape[0], :tensors[weight].shape[1]]
    for name in [name for name in tensors if name.endswith(".weight_scale")]:
        tensors[name.removesuffix("_scale")] *= tensors.pop(name)
    return tensors


def rope_frequencies(config, head_dim):
    scaling = config.get("rope_scaling") or {}
    base = config.get("rope_theta", 10000.0)
    frequencies = 1.0 / base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "yarn":
        turns = np.log(scaling["original_max_position_embeddings"] / (2 * np.pi) / np.array(
            [scaling["beta_fast"], scaling["beta_slow"]])) * head_dim / (2 * np.log(base))
        low, high = max(np.floor(turns[0]), 0), min(np.ceil(turns[1]), head_dim - 1)
        share = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return frequencies * (1 - share) + frequencies / scaling["factor"] * share
    if kind != "llama3":
        return frequencies
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    wavelength = 2 * np.pi / frequencies
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 - smooth) * frequencies / scaling["factor"] + smooth * frequencies


def yarn_magnitude(config, key):
    """1 but for DeepSeek, whose scores have the square of that of mscale_all_dim as factor."""
    scaling = config.get("rope_scaling") or {}
    return 1 + 0.1 * scaling.get(key, 0) * np.log(scaling.get("factor", 1))


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon)) * weight


def penalise(logits, prompt, generated, bias=None, repetition=1.0, frequency=0.0, presence=0.0):
    """Bias first; then repetition over prompt and continuation, the others over the continuation."""
    logits = logits.copy()
    for token, value in (bias or {}).items():
        logits[token] += np.float32(value)
    for token in set(prompt) | set(generated):
        logits[token] *= np.float32(repetition if logits[token] <= 0 else 1 / repetition)
    for token in set(generated):
        logits[token] -= np.float32(frequency * generated.count(token) + presence)
    return logits


class Oracle:
    def __init__(self, directory):
        self.config = json.loads((pathlib.Path(directory) / "config.json").read_text())
        self.tensors = read_tensors(directory)
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.layers = self.config["num_hidden_layers"]
        self.split_fused()
        self.epsilon = self.config["rms_norm_eps"]
        windowed = self.config.get("model_type") in ("mistral", "mixtral", "phi3")
        self.window = self.config.get("sliding_window") if windowed else None
        self.latent = self.config.get("kv_lora_rank")
        turned = self.config.get("qk_rope_head_dim") or self.config.get("rotary_dim") or int(
            self.head_dim * self.config.get("partial_rotary_factor", 1))
        self.frequencies = rope_frequencies(self.config, turned)
        self.configure_gemma()
        self.turn_magnitude = yarn_magnitude(self.config, "mscale") / yarn_magnitude(self.config, "mscale_all_dim")

    def configure_gemma(self):
        config, type_ = self.config, self.config.get("model_type", "")
        self.gemma = type_.startswith("gemma")
        self.scale = np.float32(1 / np.sqrt(config.get("query_pre_attn_scalar") or self.head_dim))
        self.score_cap, self.logit_cap = (config.get(key) for key in (
            "attn_logit_softcapping", "final_logit_softcapping"))
        self.full, self.frequencies_of_window = (lambda index: False), self.frequencies
        if type_ in ("gemma2", "gemma3_text"):
            pattern = config.get("sliding_window_pattern", 2)
            self.window, self.full = config["sliding_window"], (lambda index: (index + 1) % pattern == 0)
        if type_ == "gemma3_text":
            self.frequencies_of_window = rope_frequencies({"rope_theta": config["rope_local_base_freq"]}, self.head_dim)
        if self.gemma:
            for name in [name for name in self.tensors if name.endswith("norm.weight")]:
                self.tensors[name] = self.tensors[name] + 1

    def split_fused(self):
        """Makes tensors of their own of projections that are stored as one, as Phi-3's are."""
        query, kv, inner = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.config["intermediate_size"]
        for fused, ends in (("qkv_proj", {"q_proj": query, "k_proj": query + kv, "v_proj": query + 2 * kv}),
                            ("gate_up_proj", {"gate_proj": inner, "up_proj": 2 * inner})):
            for name in [name for name in self.tensors if name.endswith(fused + ".weight")]:
                parts = np.split(self.tensors.pop(name), list(ends.values())[:-1])
                self.tensors.update({name.replace(fused, part): rows for part, rows in zip(ends, parts)})

    def weight(self, name):
        return self.tensors[name]

    def project(self, x, name, heads):
        y = x @ self.weight(name + ".weight").T
        if name + ".bias" in self.tensors:
            y = y + self.weight(name + ".bias")
        return y.reshape(len(x), heads, self.head_dim)

    def rope(self, x, begin, full=True):
        frequencies = self.frequencies if full else self.frequencies_of_window
        angles = np.outer(np.arange(begin, begin + len(x)), frequencies)
        cosine = (np.cos(angles) * self.turn_magnitude).astype(np.float32)[:, None, :]
        sine = (np.sin(angles) * self.turn_magnitude).astype(np.float32)[:, None, :]
        half = len(self.frequencies)
        a, b, others = np.split(x, [half, 2 * half], axis=-1)
        return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, others], axis=-1)

    def attend(self, q, k, v, begin, window):
        """[tokens, heads, dim] over all keys so far; rows in blocks so that memory stays small."""
        out = np.empty_like(q)
        group = self.heads // self.kv_heads
        for head in range(self.heads):
            keys, values = k[:, head // group], v[:, head // group]
            for row in range(0, len(q), 512):
                rows = q[row:row + 512, head]
                seen = begin + row + len(rows)
                scores = rows @ keys[:seen].T * self.scale
                if self.score_cap:
                    scores = np.tanh(scores / self.score_cap) * np.float32(self.score_cap)
                positions = begin + row + np.arange(len(rows))
                scores[np.arange(seen)[None, :] > positions[:, None]] = -np.inf
                if window:
                    scores[np.arange(seen)[None, :] <= positions[:, None] - window] = -np.inf
                scores = np.exp(scores - scores.max(axis=1, keepdims=True))
                out[row:row + 512, head] = (scores / scores.sum(axis=1, keepdims=True)) @ values[:seen]
        return out

    def latent_attention(self, prefix, h, begin, past):
        """DeepSeek's, with keys and values of all heads computed from the rows; `past` has those before `begin`."""
        weight = {name: self.weight(f"{prefix}{name}.weight") for name in (
            "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")}
        rope, nope, value = (self.config[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        if self.config["q_lora_rank"]:
            h_q = rms_norm(h @ self.weight(prefix + "q_a_proj.weight").T, self.weight(prefix + "q_a_layernorm.weight"),
                           1e-6) @ self.weight(prefix + "q_b_proj.weight").T
        else:
            h_q = h @ self.weight(prefix + "q_proj.weight").T
        q = h_q.reshape(len(h), self.heads, nope + rope)

        def turn(x):  # Neighbours are pairs.
            return self.rope(np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1), begin)

        q = np.concatenate([q[..., :nope], turn(q[..., nope:])], axis=-1)
        rows = h @ weight["kv_a_proj_with_mqa"].T
        rows = np.concatenate([rms_norm(rows[:, :self.latent], weight["kv_a_layernorm"], 1e-6),
                               turn(rows[:, None, self.latent:])[:, 0]], axis=-1)
        rows = rows if past is None else np.concatenate([past, rows])
        expanded = (rows[:, :self.latent] @ weight["kv_b_proj"].T).reshape(len(rows), self.heads, nope + value)
        magnitude = yarn_magnitude(self.config, "mscale_all_dim")
        out = np.empty((len(h), self.heads, value), np.float32)
        hidden = np.arange(len(rows))[None, :] > begin + np.arange(len(h))[:, None]
        for head in range(self.heads):
            keys = np.concatenate([expanded[:, head, :nope], rows[:, self.latent:]], axis=-1)
            scores = q[:, head] @ keys.T * np.float32(magnitude ** 2 / np.sqrt(nope + rope))
            scores[hidden] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=1, keepdims=True) @ expanded[:, head, nope:]
        return out.reshape(len(h), -1) @ weight["o_proj"].T, rows

    def attention(self, index, h, begin, cache):
        prefix = f"model.layers.{index}."
        if self.latent:
            out, cache[index] = self.latent_attention(prefix + "self_attn.", h, begin, cache.get(index))
            return out
        q = self.project(h, prefix + "self_attn.q_proj", self.heads)
        k = self.project(h, prefix + "self_attn.k_proj", self.kv_heads)
        v = self.project(h, prefix + "self_attn.v_proj", self.kv_heads)
        if prefix + "self_attn.q_norm.weight" in self.tensors:  # For each head, or for all together.
            q, k = (rms_norm(x.reshape(len(h), -1, len(norm)), norm, self.epsilon).reshape(x.shape) for x, norm in (
                (q, self.weight(prefix + "self_attn.q_norm.weight")),
                (k, self.weight(prefix + "self_attn.k_norm.weight"))))
        full = self.full(index)
        q, k = self.rope(q, begin, full), self.rope(k, begin, full)
        if index in cache:
            k = np.concatenate([cache[index][0], k])
            v = np.concatenate([cache[index][1], v])
        cache[index] = (k, v)
        out = self.attend(q, k, v, begin, None if full else self.window)
        return out.reshape(len(h), -1) @ self.weight(prefix + "self_attn.o_proj.weight").T

    def layer(self, index, x, begin, cache):
        prefix = f"model.layers.{index}."
        h = rms_norm(x, self.weight(prefix + "input_layernorm.weight"), self.epsilon)
        if prefix + "pre_feedforward_layernorm.weight" in self.tensors:
            return self.layer_with_output_norms(prefix, x, self.attention(index, h, begin, cache))
        x = x + self.attention(index, h, begin, cache)
        h = rms_norm(x, self.weight(prefix + "post_attention_layernorm.weight"), self.epsilon)
        for block, names in (("mlp.", ("gate_proj", "up_proj", "down_proj")),
                             ("block_sparse_moe.", ("w1", "w3", "w2"))):
            if prefix + block + "gate.weight" in self.tensors:
                return x + self.experts(h, prefix + block, names)
        return x + self.gated(h, prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"))

    def layer_with_output_norms(self, prefix, x, attended):
        """The rest of a layer of Gemma 2 or 3."""
        def norm(name, rows):
            return rms_norm(rows, self.weight(f"{prefix}{name}_layernorm.weight"), self.epsilon)
        x = x + norm("post_attention", attended)
        added = self.gated(norm("pre_feedforward", x), prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"))
        return x + norm("post_feedforward", added)

    def gated(self, h, prefix, names):
        gate, up, down = (self.weight(prefix + name + ".weight") for name in names)
        gate = h @ gate.T
        if self.gemma:
            inner = np.sqrt(2 / np.pi).astype(np.float32) * (gate + np.float32(0.044715) * gate ** 3)
            return (gate * np.float32(0.5) * (1 + np.tanh(inner)) * (h @ up.T)) @ down.T
        return (gate / (1 + np.exp(-gate)) * (h @ up.T)) @ down.T

    def experts(self, h, prefix, names):
        """Each token goes to the experts that the router scores highest, and adds them up by their scores."""
        scores = h @ self.weight(prefix + "gate.weight").T
        bias = self.tensors.get(prefix + "gate.e_score_correction_bias",
                                self.tensors.get(prefix + "e_score_correction_bias"))
        if bias is not None:
            shares = 1 / (1 + np.exp(-scores))
        else:
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        merits = shares if bias is None else shares + bias
        if self.config.get("n_group", 1) > 1 and self.config.get("topk_method") != "greedy":
            groups = merits.reshape(len(h), self.config["n_group"], -1)
            count = 1 if bias is None else 2
            worth = np.sort(groups, axis=2)[:, :, -count:].sum(axis=2)
            best = np.argsort(-worth, axis=1, kind="stable")[:, self.config["topk_group"]:]
            for row, others in enumerate(best):
                groups[row, others] = -np.inf
            merits = groups.reshape(merits.shape)
        out = np.zeros_like(h)
        factor = np.float32(self.config.get("routed_scaling_factor", 1))
        for row, token in enumerate(shares):
            chosen = np.argsort(-merits[row], kind="stable")[:self.config["num_experts_per_tok"]]
            whole = token[chosen].sum() if self.config.get("norm_topk_prob", True) else np.float32(1)
            for expert in chosen:
                added = self.gated(h[row:row + 1], f"{prefix}experts.{expert}.", names)[0]
                out[row] += factor * token[expert] / whole * added
        if prefix + "shared_experts.gate_proj.weight" in self.tensors:
            out += self.gated(h, prefix + "shared_experts.", names)
        return out

    def logits(self, ids, begin, cache):
        """Logits of the last of `ids`, which stand at positions begin..; extends the cache."""
        return self.all_logits(ids, begin, cache, last=1)[0]

    def all_logits(self, ids, begin, cache, last=None):
        """[tokens, vocab]: logits after each of `ids`, or after the `last` ones."""
        x = self.weight("model.embed_tokens.weight")[np.asarray(ids)]
        if self.gemma:
            x = x * np.float32(np.sqrt(self.config["hidden_size"]))
        for index in range(self.layers):
            x = self.layer(index, x, begin, cache)
        x = rms_norm(x if last is None else x[-last:], self.weight("model.norm.weight"), self.epsilon)
        head = "model.embed_tokens.weight" if "lm_head.weight" not in self.tensors else "lm_head.weight"
        logits = x @ self.weight(head).T
        return np.tanh(logits / self.logit_cap) * np.float32(self.logit_cap) if self.logit_cap else logits

    def prompt_logprobs(self, ids):
        """Log-probability of each of `ids` but the first, given those before it."""
        logits = self.all_logits(ids[:-1], 0, {}).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logprobs[np.arange(len(ids) - 1), ids[1:]].tolist()

    def greedy(self, ids, count, **penalties):
        """The next `count` tokens, most likely each, lowest id on a tie."""
        cache, tokens, begin = {}, list(ids), 0
        generated = []
        for _ in range(count):
            logits = penalise(self.logits(tokens[begin:], begin, cache), ids, generated, **penalties)
            generated.append(int(np.argmax(logits)))
            begin = len(tokens)
            tokens.append(generated[-1])
        return generated
