#!/usr/bin/env python3
"""Writes common/tokenizer/testdata/variants.json: ids by Hugging Face's `tokenizers` for the vocabulary of
gpt2_tokenizer.json with other normalizers and pre-tokenizers.

Only needed to make the file anew; the test reads what is committed:

    python3 -m venv .venv && .venv/bin/pip install tokenizers==0.20.3
    .venv/bin/python tests/parity/tokenizer_variants.py
"""

import json
import pathlib

from tokenizers import Tokenizer

DATA = pathlib.Path(__file__).resolve().parents[2] / "common" / "tokenizer" / "testdata"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PLAIN = {**BYTES, "use_regex": False}
WORDS = "\\p{L}+|\\p{N}{1,3}|\\s+|[^\\s\\p{L}\\p{N}]+"

TEXTS = [
    "", " ", "a", "Hello  world", " leading", "trailing ", "a1b22c333 4444", "x--y-- --z", "-a-", "--",
    "3.14, 1,024!", "\u0664\u0665 \u00b2 \u2167 1\u20e3", "caf\u00e9 CAF\u00c9 cafe\u0301",
    "\ufb01 \u212b \uff21\uff11 \u3000x", "\u0130I\u0131 \u00df\u1e9e \u03a3\u03c2", "tabs\tand\nlines\r\n\n",
    "\u00a0nb\u2003em\u0085", "under_score \u2040 a\u200db", "quote's don't",
    "\u4e2d\u6587\uff0c\u6807\u70b9\u3002", "a<|endoftext|>b", "a <mask> b", "x <gulp>  y", "a word b", "WORD word",
    "<think>x", "\U0001f600 ok", "foo(bar)[0]",
]


def split(pattern, behavior, invert=False, literal=False):
    return {"type": "Split", "pattern": {"String" if literal else "Regex": pattern}, "behavior": behavior,
            "invert": invert}


def sequence(*elements):
    return {"type": "Sequence", "pretokenizers": list(elements)}


def normalizers(*elements):
    return {"type": "Sequence", "normalizers": list(elements)}


BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE_TOKENIZERS = [
    *[sequence(split(r"[-.0-9]", behavior, invert), PLAIN) for behavior in BEHAVIORS for invert in (False, True)],
    sequence(split(WORDS, "Removed", True), PLAIN),
    sequence(split("--", "MergedWithNext", literal=True), BYTES),
    sequence({"type": "Digits", "individual_digits": True}, BYTES),
    sequence({"type": "Digits", "individual_digits": False}, PLAIN),
    sequence({"type": "Punctuation", "behavior": "Isolated"}, BYTES),
    sequence({"type": "Punctuation", "behavior": "Contiguous"}, PLAIN),
    sequence({"type": "Whitespace"}, PLAIN),
    sequence({"type": "WhitespaceSplit"}, PLAIN),
    sequence({"type": "CharDelimiterSplit", "delimiter": "a"}, PLAIN),
    sequence({"type": "BertPreTokenizer"}, PLAIN),
    sequence(sequence({"type": "WhitespaceSplit"}, sequence({"type": "Digits", "individual_digits": True})), PLAIN),
    {**BYTES, "add_prefix_space": True},
    sequence({"type": "WhitespaceSplit"}, {**PLAIN, "add_prefix_space": True}),
]
NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Prepend", "prepend": "_"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
    {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"},
    normalizers({"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}),
    normalizers(normalizers({"type": "NFKC"}), {"type": "Replace", "pattern": {"String": "a"}, "content": ""}),
]


def main():
    base = json.loads((DATA / "gpt2_tokenizer.json").read_text())
    variants = [{"pre_tokenizer": pre_tokenizer} for pre_tokenizer in PRE_TOKENIZERS]
    variants += [{"normalizer": normalizer} for normalizer in NORMALIZERS]
    lines = []
    for variant in variants:
        tokenizer = Tokenizer.from_str(json.dumps({**base, **variant}))
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        lines.append(json.dumps({"change": variant, "ids": ids}, separators=(",", ":")))
    out = '{"texts":%s,\n"variants":[\n%s]}\n' % (json.dumps(TEXTS), ",\n".join(lines))
    (DATA / "variants.json").write_text(out)
    print(len(variants), "variants,", len(out), "bytes")


if __name__ == "__main__":
    main()
