"""Byte-level BPE: trainer, encoder, and tokenizer.json in the Hugging Face form.

Merges are learned inside the pieces that the Llama-3 pre-tokenizer makes, so
the encoder here and any implementation of that format agree.
"""
import heapq
import json
import re
from collections import Counter, defaultdict

# The pattern that tokenizer.json carries.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# The same for Python's re, which lacks \p{L} and \p{N}; it differs only for
# numerals outside Unicode's decimal digits and for "_", handled by hand.
LETTER, NUMBER = r"[^\W\d_]", r"\d"
SPLIT = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?" + LETTER + "+|" + NUMBER +
    r"{1,3}| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet():
    """The printable character that stands for each byte (GPT-2's table)."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {b: chr(b) for b in keep}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(keep))
    return table


ALPHABET = byte_alphabet()
BYTE_OF = {c: b for b, c in ALPHABET.items()}


def pieces(text):
    """Pre-tokenised text: each piece spelled in the byte alphabet."""
    return ("".join(ALPHABET[b] for b in m.group().encode()) for m in SPLIT.finditer(text))


def merge_word(word, pair):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def train(text, merges_wanted):
    """Returns the merges, most frequent first; ties go to the smaller pair."""
    counts = Counter(pieces(text))
    words = [(list(w), n) for w, n in sorted(counts.items())]
    pair_count, where = Counter(), defaultdict(set)
    for i, (word, n) in enumerate(words):
        for pair in zip(word, word[1:]):
            pair_count[pair] += n
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in pair_count.items()]
    heapq.heapify(heap)
    merges = []
    while len(merges) < merges_wanted and heap:
        n, pair = heapq.heappop(heap)
        if -n != pair_count[pair]:  # a stale entry; the current one is in the heap
            continue
        merges.append(pair)
        changed = set()
        for i in sorted(where.pop(pair)):
            old, n = words[i]
            new = merge_word(old, pair)
            words[i] = (new, n)
            for p in zip(old, old[1:]):
                pair_count[p] -= n
                changed.add(p)
            for p in zip(new, new[1:]):
                pair_count[p] += n
                where[p].add(i)
                changed.add(p)
        for p in changed:
            if pair_count[p] > 0:
                heapq.heappush(heap, (-pair_count[p], p))
    return merges


class Tokenizer:
    def __init__(self, merges):
        self.merges = [tuple(m) for m in merges]
        self.rank = {m: i for i, m in enumerate(self.merges)}
        symbols = [ALPHABET[b] for b in range(256)] + [a + b for a, b in self.merges]
        self.vocab = {s: i for i, s in enumerate(symbols)}
        self.special = {s: len(self.vocab) + i for i, s in enumerate(SPECIALS)}
        self.symbol = {i: s for s, i in self.vocab.items()}
        self.name = {i: s for s, i in self.special.items()}
        self.cache = {}

    def size(self):
        return len(self.vocab) + len(self.special)

    def encode_piece(self, piece):
        ids = self.cache.get(piece)
        if ids is None:
            word = list(piece)
            while len(word) > 1:
                best = min(zip(word, word[1:]), key=lambda p: self.rank.get(p, 1 << 30))
                if best not in self.rank:
                    break
                word = merge_word(word, best)
            ids = self.cache[piece] = [self.vocab[s] for s in word]
        return ids

    def encode(self, text):
        """Plain text to ids; special tokens in the text are not recognised."""
        return [i for piece in pieces(text) for i in self.encode_piece(piece)]

    def decode(self, ids):
        out = bytearray()
        for i in ids:
            if i in self.name:
                out += self.name[i].encode()
            else:
                out += bytes(BYTE_OF[c] for c in self.symbol[i])
        return out.decode(errors="replace")

    def to_json(self):
        added = [{"id": i, "content": s, "single_word": False, "lstrip": False,
                  "rstrip": False, "normalized": False, "special": True}
                 for s, i in self.special.items()]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False,
                      "trim_offsets": True, "use_regex": False}
        return {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN},
                 "behavior": "Isolated", "invert": False},
                byte_level]},
            "post_processor": None,
            "decoder": dict(byte_level, add_prefix_space=True, use_regex=True),
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": self.vocab,
                      "merges": ["%s %s" % m for m in self.merges]}}

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as f:
            merges = json.load(f)["model"]["merges"]
        return Tokenizer([tuple(m.split(" ")) for m in merges])
