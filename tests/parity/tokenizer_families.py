#!/usr/bin/env python3
"""Writes common/tokenizer/testdata/families: small tokenizers of every kind that is served, and what Hugging Face's
library, or OpenAI's tiktoken, makes of 5,000 texts with each.

The texts are put together of fragments by a seed, here and in families_test.cc alike, so only a hash of each one's
ids is kept. Only needed to make the files anew; the test reads what is committed:

    python3 -m venv .venv && .venv/bin/pip install tokenizers==0.20.3 tiktoken==0.14.0
    .venv/bin/python tests/parity/tokenizer_families.py
"""

import base64
import json
import pathlib
import random
import unicodedata

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

from tokenizer_fixtures import CORPUS, RUNS, TEXTS, assigned

DATA = pathlib.Path(__file__).resolve().parents[2] / "common" / "tokenizer" / "testdata"
OUT = DATA / "families"
TEXT_COUNT = 5000
HASH_DIGITS = 4  # Kept of each text's.
MASK = (1 << 64) - 1
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
KIMI = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"""
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])


# What SentencePiece compiles of some forty rules: letters of full width, ligatures, marks, spaces.
CHARSMAP = (
    "AAQAAAAgAAAJCQAACgUAAAEAAIDMLAIAig0AACUAAIDMOAIAgQUAACgAAIAAAACABQAAgLMJAAC9GQAAHgAAgIR4AgCgTQAAgIgD"
    "AOEQAgCFmAIAoQUAAE0AAICDVQAAgz0AACEAAICjDQAAEQAAgAMAAIALAACArV0AAIt1AACA+AIAgNQCAICJAACg5QAAof0AAITA"
    "AgCFfAIArDwCABgAAICBPQAAGwAAgLoZAACCCQAAKwAAgA0AAIAPAACAFAAAgIF9AACRzAIAFgAAgIIFAAA1AAAANAAAALycAwC9"
    "GAIAOQAAADgAAAA7AAAAOgAAAD0AAAC3tAIAPwAAAD4AAACRbQEAQAAAAEMAAACSfQEARQAAAEQAAABHAAAARgAAAEkAAABBBAIA"
    "SwAAAEoAAABNAAAATAAAAE8AAABOAAAAUQAAAFAAAABTAAAAUgAAAFUAAABUAAAAVwAAAFYAAABZAAAAWAAAAFsAAABaAAAAXQAA"
    "AFwAAABfAAAAXgAAAGEAAABgAAAAYwAAAGIAAABlAAAAZAAAAGcAAABmAAAAaQAAAGgAAABrAAAAagAAAG0AAABlmAIAbwAAAG4A"
    "AAChdQEAcAAAAHMAAACidQEAdQAAAHQAAAB3AAAAdgAAAHkAAAB4AAAAewAAAHoAAAB9AAAAfAAAAH8AAAB+AAAAgQAAAIAAAACD"
    "AAAAggAAAIUAAACEAAAAhwAAAIYAAACJAAAAiAAAAIsAAACKAAAAjQAAAIwAAACPAAAAjgAAAJEAAACQAAAAkwAAAJIAAACVAAAA"
    "lAAAAJcAAACWAAAAmQAAAJgAAACbAAAAmgAAAJ0AAACcAAAAnwAAAJ4AAAChAAAAoAAAAKMAAACiAAAApQAAAKQAAACnAAAApgAA"
    "AKkAAACoAAAAqwAAAKoAAACtAAAArAAAAK8AAACuAAAAsQAAALAAAACzAAAAsgAAALUAAAC0AAAAtwAAALYAAAC5AAAAuAAAALsA"
    "AAC6AAAAvQAAALwAAAC/AAAAvgAAAMEAAADAAAAAwwAAAMIAAADFAAAAxAAAAMcAAADGAAAAyQAAAMgAAADC6AEAygAAAMTMAQDM"
    "AAAAzwAAAM4AAADRAAAA0AAAANMAAADSAAAA1QAAANQAAADXAAAA1gAAANkAAADYAAAA2wAAANoAAADdAAAA3AAAAN8AAADeAAAA"
    "4QAAAOAAAADjAAAA4gAAAOUAAADkAAAA5wAAAO+0AQDpAAAA4YgBAOIoAQDj0AEA7QAAAOwAAADvAAAA7gAAAPEAAADwAAAA8wAA"
    "APIAAAD1AAAA9AAAAPcAAAD2AAAA+QAAAPgAAAD7AAAA+gAAAP0AAAD8AAAA/wAAAP4AAAAAIAAxADHigYQyADIAQQBCAElWAGEA"
    "YgBmaQBmbABpagDCsEMAw4UAw6kA2LXZhNmJINin2YTZhNmHINi52YTZitmHINmI2LPZhNmFAOqwgAA=")


def mix(value):
    """SplitMix64, as common/base/random.h has it."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def fragments():
    rng = random.Random(7)
    points = assigned(unicodedata.ucd_3_2_0, 0x20, 0xFFFF) + assigned(unicodedata.ucd_3_2_0, 0x10000, 0x1FFFF)
    found = [*TEXTS, *RUNS, *CORPUS.split(), *(chr(rng.choice(points)) for _ in range(400)),
             *(" " + word for word in CORPUS.split()[:150]), "▁", " ▁", "▁▁a", "<0x0A>", "<unk>", "<s>", "</s>",
             "<s> a",
             *"ﬁﬂ①②ＡＢａｂ１２　ﷺ℃ⅣÅ½ĳ\u00a0\u2003\u200b\u00ad", "e\u0301", "A\u030a", "\u1100\u1161", "x\u0301\u0323",
             "\n", " ", "  ", "   ", "\t", "[INST] x [/INST]", "<start_of_turn>user\n"]
    return sorted({one for one in found if one and len(one) <= 48})


def text_of(pieces, number):
    return "".join(pieces[mix(number + at * 0x1234567) % len(pieces)] for at in range(1 + mix(number) % 9))


def digest(ids):
    """Fowler, Noll and Vo's hash of the ids as text."""
    value = 0xCBF29CE484222325
    for byte in ",".join(map(str, ids)).encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return f"{value:016x}"


def spoken(tokenizer):
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                             special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def character_bpe(normalizer, pre_tokenizer, decoder, **model):
    """As SentencePiece's BPE comes to Hugging Face's format."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(CORPUS.split("\n") * 3, trainers.BpeTrainer(
        vocab_size=1100, special_tokens=SPECIAL + BYTES, limit_alphabet=120, show_progress=False))
    data = json.loads(tokenizer.to_str())
    # The trainer's special tokens are the model's alone, but for three.
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in SPECIAL]
    data["model"].update(model)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizer
    tokenizer = spoken(tokenizer)
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = pre_tokenizer
    data["decoder"] = json.loads(decoder.__getstate__()) if not isinstance(decoder, dict) else decoder
    return data


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def sentence_decoder(strip):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama2():
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return character_bpe(normalizer, None, sentence_decoder(True))


def mistral():
    return character_bpe(None, metaspace("first", split=False), sentence_decoder(True), ignore_merges=True)


def gemma():
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return character_bpe(normalizers.Replace(" ", "▁"), split, sentence_decoder(False))


def characters():
    """Without bytes to fall back to."""
    return character_bpe(None, metaspace("always"), metaspace("always"), byte_fallback=False, fuse_unk=False)


def unigram(byte_fallback, pre_tokenizer, normalizer):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS.split("\n") * 3, trainers.UnigramTrainer(
        vocab_size=700, special_tokens=SPECIAL + (BYTES if byte_fallback else []), unk_token="<unk>",
        show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in SPECIAL]
    data["model"]["byte_fallback"] = byte_fallback
    tokenizer = spoken(Tokenizer.from_str(json.dumps(data)))
    data = json.loads(tokenizer.to_str())
    data["normalizer"] = normalizer
    data["pre_tokenizer"] = pre_tokenizer
    data["decoder"] = metaspace("always")
    return data


def t5():
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]}
    return unigram(False, pre_tokenizer, {"type": "NFKC"})


def unigram_bytes():
    return unigram(True, metaspace("first", split=False), None)


def charsmap():
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    return unigram(False, metaspace("always"), {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}, spaces]})


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(*pretokenizers):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(pretokenizers)}}


def normalized(*normalizers):
    return {"normalizer": {"type": "Sequence", "normalizers": list(normalizers)}}


DIGITS = {"type": "Digits", "individual_digits": True}
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SHORTENED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BEFORE, SPACES = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"
# What stands around the model in the files of those who publish models, with vocabularies of this place. Of the forty
# most used kinds the rest has one of these, or one of the families above: see common/tokenizer/README.md.
PIPELINES = {
    "falcon": ("gpt2", sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(use_regex=True),
                                {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
    "starcoder": ("gpt2", sequence(DIGITS, byte_level(use_regex=True))),
    "command_r": ("gpt2", {**normalized({"type": "NFC"}), **sequence(DIGITS, byte_level(use_regex=True))}),
    "neox": ("gpt2", {"normalizer": {"type": "NFC"}, "pre_tokenizer": byte_level(use_regex=True)}),
    "opt": ("gpt2", {"pre_tokenizer": byte_level(use_regex=True, add_prefix_space=True), "post_processor": {
        "type": "RobertaProcessing", "sep": ["!", 0], "cls": ["\"", 1], "trim_offsets": True,
        "add_prefix_space": True}}),
    "deepseek2": ("gpt2", {**normalized(), **sequence(
        split(r"[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-Ⴥ]+"),
        split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"), split("[一-龥ࠀ-一가-퟿]+"), DIGITS, byte_level())}),
    "deepseek3": ("gpt2", sequence(
        split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"),
        split(r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
              r""" ?[\p{P}\p{S}]+[\r\n]*|""" + SPACES), byte_level())),
    "tekken": ("gpt2", sequence(split(
        f"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|" + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES),
        byte_level())),
    "o200k": ("gpt2", sequence(split(
        f"{BEFORE}{UPPER}*{LOWER}+{SHORTENED}?|{BEFORE}{UPPER}+{LOWER}*{SHORTENED}?|"
        + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES), byte_level())),
    "cl100k": ("gpt2", sequence(split(
        SHORTENED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES, "Removed", True),
        byte_level())),
    "bloom": ("gpt2", sequence(split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), byte_level())),
    "yi": ("llama2", {**normalized({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
                      "decoder": {"type": "Sequence", "decoders": [
                          {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                          {"type": "Fuse"}]}}),
    "metaspace_never": ("llama2", {"normalizer": None, "pre_tokenizer": metaspace("never", split=False),
                                   "decoder": metaspace("never", split=False)}),
    "lowercase": ("t5", {**normalized(
        {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}, {"type": "NFKD"}, {"type": "StripAccents"},
        {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True})}),
}


def kimi():
    """(ranks, encoding, special tokens by id)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.train_from_iterator(CORPUS.split("\n") * 2, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + at): byte
                     for at, byte in enumerate(byte for byte in range(256) if byte not in printable)})
    ranks = {}
    for spelling, token in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        ranks[bytes(alphabet[character] for character in spelling)] = token
    special = {len(ranks): "[BOS]", len(ranks) + 1: "[EOS]", len(ranks) + 5: "<|im_end|>"}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks,
                                 special_tokens={name: token for token, name in special.items()})
    return ranks, encoding, special


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pieces = fragments()
    texts = [text_of(pieces, number) for number in range(TEXT_COUNT)]
    golden = {}

    def take(name, encode, decode=None):
        ids = [encode(text) for text in texts]
        golden[name] = {"first": ids[:40], "hashes": "".join(digest(one)[-HASH_DIGITS:] for one in ids)}
        if decode is not None:
            golden[name]["decoded"] = digest([ord(c) for one in ids[:1000] for c in decode(one)])
        print(name, sum(map(len, ids)), "tokens")

    for make in (llama2, mistral, gemma, characters, t5, charsmap, unigram_bytes):
        data = make()
        (OUT / f"{make.__name__}.json").write_text(json.dumps(data, separators=(",", ":")) + "\n")
        tokenizer = Tokenizer.from_str(json.dumps(data))
        take(make.__name__, lambda text, of=tokenizer: of.encode(text).ids,
             lambda ids, of=tokenizer: of.decode(ids, skip_special_tokens=True))
    for name in ("gpt2", "llama3", "qwen2"):
        tokenizer = Tokenizer.from_file(str(DATA / f"{name}_tokenizer.json"))
        take(name, lambda text, of=tokenizer: of.encode(text).ids,
             lambda ids, of=tokenizer: of.decode(ids, skip_special_tokens=True))
    for name, (base, parts) in PIPELINES.items():
        path = DATA / "gpt2_tokenizer.json" if base == "gpt2" else OUT / f"{base}.json"
        tokenizer = Tokenizer.from_str(json.dumps({**json.loads(path.read_text()), **parts}))
        take(name, lambda text, of=tokenizer: of.encode(text).ids,
             lambda ids, of=tokenizer: of.decode(ids, skip_special_tokens=True))
    (OUT / "pipelines.json").write_text(json.dumps(PIPELINES, indent=1) + "\n")
    ranks, encoding, special = kimi()
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (OUT / "kimi.tiktoken").write_text("".join(lines))
    config = {"added_tokens_decoder": {str(token): {"content": name, "special": True}
                                       for token, name in special.items()}}
    (OUT / "kimi_config.json").write_text(json.dumps(config) + "\n")
    take("kimi", lambda text: encoding.encode(text, allowed_special="all"))
    (OUT / "golden.json").write_text(json.dumps({"fragments": pieces, "families": golden},
                                                separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
