"""llama.cpp beside Baton: prefill of 512 tokens and decode at batch 1 after 128 of the shape of Qwen3-0.6B in bfloat16.

Debian 12 has no llama.cpp, so that of Debian testing is taken, from the mirror that apt uses here: its packages and
those of the libraries that they need are checked by their SHA-256, unpacked into a folder, and run in it. Nothing is
installed. Both take turns, so that both meet the same machine. Where there is no mirror, it is said why.
"""

import array
import hashlib
import json
import lzma
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import urllib.request

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 28, 1024, 3072, 16, 8, 128, 151936
PROMPT, CONTEXT, DECODED = 512, 128, 32  # As dtype_bench has them; it decodes one token again and again.
WANTED = ["llama.cpp-tools"]
# What programs need besides their libraries: to ask questions, and to load models from elsewhere.
SKIPPED = {"debconf", "wget", "curl"}
BF16, F32 = 30, 0
U32_KEY, F32_KEY, TEXT_KEY = 4, 6, 8
ALIGNMENT = 32


def fetched(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def mirror():
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)"],
                            capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        uri, codename, component = (line.split() + ["", "", ""])[:3]
        if (codename, component) == ("bookworm", "main"):
            return uri.rstrip("/")
    raise OSError("apt knows no mirror of Debian 12")


def index(uri):
    """Fields of every package of Debian testing, by name."""
    text = lzma.decompress(fetched(f"{uri}/dists/testing/main/binary-amd64/Packages.xz")).decode()
    packages = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", stanza, re.MULTILINE))
        packages[fields.get("Package")] = fields
    return packages


def needed(packages):
    names, left = [], list(WANTED)
    while left:
        name = left.pop()
        if name in names or name in SKIPPED or name not in packages:
            continue
        names.append(name)
        for clause in packages[name].get("Depends", "").split(","):
            left.append(re.split(r"[ (:|]", clause.strip())[0])
    return names


def unpack(root):
    root.mkdir()
    uri = mirror()
    packages = index(uri)
    for name in needed(packages):
        fields = packages[name]
        content = fetched(f"{uri}/{fields['Filename']}")
        if hashlib.sha256(content).hexdigest() != fields["SHA256"]:
            raise OSError(f"{fields['Filename']} is not what the mirror's index says")
        archive = root.with_suffix(".deb")
        archive.write_bytes(content)
        subprocess.run(["dpkg", "-x", archive, root], check=True)
    for name in ("bin", "lib", "lib64"):  # As every Debian has them.
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write_model(path):
    """Random weights, no vocabulary."""
    keys = {"general.architecture": "qwen3", "qwen3.block_count": LAYERS, "qwen3.context_length": 4096,
            "qwen3.embedding_length": HIDDEN, "qwen3.feed_forward_length": INNER, "qwen3.attention.head_count": HEADS,
            "qwen3.attention.head_count_kv": KV_HEADS, "qwen3.attention.key_length": HEAD_DIM,
            "qwen3.attention.value_length": HEAD_DIM, "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
            "qwen3.rope.freq_base": 1e6, "qwen3.vocab_size": VOCAB, "tokenizer.ggml.model": "no_vocab"}
    tensors = [("token_embd.weight", [HIDDEN, VOCAB]), ("output_norm.weight", [HIDDEN])]
    for layer in range(LAYERS):
        tensors += [(f"blk.{layer}.{name}.weight", shape) for name, shape in (
            ("attn_norm", [HIDDEN]), ("ffn_norm", [HIDDEN]), ("attn_q_norm", [HEAD_DIM]), ("attn_k_norm", [HEAD_DIM]),
            ("attn_q", [HIDDEN, HEADS * HEAD_DIM]), ("attn_k", [HIDDEN, KV_HEADS * HEAD_DIM]),
            ("attn_v", [HIDDEN, KV_HEADS * HEAD_DIM]), ("attn_output", [HEADS * HEAD_DIM, HIDDEN]),
            ("ffn_gate", [HIDDEN, INNER]), ("ffn_up", [HIDDEN, INNER]), ("ffn_down", [INNER, HIDDEN]))]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        kind, packed = ((TEXT_KEY, text(value)) if isinstance(value, str)
                        else (U32_KEY, struct.pack("<I", value)) if isinstance(value, int)
                        else (F32_KEY, struct.pack("<f", value)))
        header += text(key) + struct.pack("<I", kind) + packed
    offset, sizes = 0, []
    for name, shape in tensors:
        wide = len(shape) == 1
        size = shape[0] * 4 if wide else shape[0] * shape[1] * 2
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32 if wide else BF16, offset)
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        sizes.append((wide, padded))
        offset += padded
    drawn = random.Random(1)
    # bfloat16 numbers from 2^-7 to 2^-5 of either sign.
    numbers = array.array("H", (drawn.choice((0, 0x8000)) | drawn.randrange(0x3c00, 0x3d00)
                                for _ in range(1 << 18))).tobytes()
    ones = struct.pack("<f", 1.0)
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for wide, size in sizes:
            pattern = ones if wide else numbers
            file.write((pattern * (size // len(pattern) + 1))[:size])


def rate(root, *arguments):
    """Tokens per second with one thread."""
    # Its backends are found where its packages have them, so that is where it sees them.
    ran = subprocess.run(["unshare", "--map-root-user", "chroot", root, "llama-bench", "-m", "/model.gguf", "-t", "1",
                          "-o", "json", *map(str, arguments)], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise OSError(f"llama-bench failed: {ran.stderr[-400:]}")
    row, = json.loads(ran.stdout)
    return row["avg_ts"]


def beside(ours, turns=3):
    """Times of llama.cpp over ours() in some turns, {"prefill": ratios, "decode": ratios}; None, with a line: no
    llama.cpp. ours() gives {"prefill_ms": of PROMPT tokens, "decode_ms": of one after CONTEXT}."""
    ratios = {"prefill": [], "decode": []}
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name) / "root"
        try:
            unpack(root)
            write_model(root / "model.gguf")
            for _ in range(turns):
                decode = rate(root, "-p", 0, "-n", DECODED, "-d", CONTEXT, "-r", 3)
                mine = ours()
                prefill = rate(root, "-p", PROMPT, "-n", 0, "-r", 2)
                ratios["prefill"].append(1e3 * PROMPT / mine["prefill_ms"] / prefill)
                ratios["decode"].append(1e3 / mine["decode_ms"] / decode)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"vs_llamacpp: not measured: {error}", file=sys.stderr)
            return None
    return ratios
