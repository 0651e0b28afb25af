#!/usr/bin/env python3
"""Makes common/tokenizer/testdata: golden token ids by Hugging Face's own `tokenizers` library.

Trains one small byte-level BPE tokenizer each of GPT-2's, Llama-3's and Qwen2's kind on the text
below, encodes strings of every sort with it, and writes tokenizer and ids. Only needed to change
the fixtures; the test reads what is committed. To run it:

    python3 -m venv .venv && .venv/bin/pip install tokenizers==0.23.3
    .venv/bin/python tests/parity/tokenizer_fixtures.py
"""

import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parents[2] / "common" / "tokenizer" / "testdata"
SEED = 20261120
VOCAB_SIZE = 700

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

CORPUS = """
The router accepts a request, pairs it with one chain and one decode service, and streams tokens
back as they come. The chain's first stage plans; the others apply its plans in order, exactly once.
It's the reader's first page, and they'll say we've seen it; I'm sure he'd agree that you're right.
Whoever writes to a page owns it, and whoever owns it gives it back by its deadline.
In the morning the old harbour lay under a thin white fog, and the boats had not gone out.
Am Morgen lag der alte Hafen unter dünnem weißem Nebel, und die Boote waren nicht ausgelaufen.
Le matin, le vieux port dormait sous une brume légère, et les bateaux n'étaient pas sortis.
Por la mañana el viejo puerto yacía bajo una niebla fina, y los barcos no habían salido.
Утром старая гавань лежала под тонким белым туманом, и лодки ещё не вышли в море.
Το πρωί το παλιό λιμάνι ήταν κάτω από λεπτή λευκή ομίχλη.
早晨，旧港口笼罩在薄薄的白雾之中，船只还没有出海。
朝、古い港は薄い白い霧の下にあり、船はまだ出ていなかった。
아침에 오래된 항구는 옅은 하얀 안개 아래 있었고 배들은 아직 나가지 않았다.
في الصباح كان الميناء القديم تحت ضباب أبيض رقيق.
בבוקר שכב הנמל הישן תחת ערפל לבן ודק.
सुबह पुराना बंदरगाह पतले सफेद कोहरे के नीचे था।
for (int i = 0; i < count; ++i) { total += values[i] * 2; }
def merge(left, right):
    return [pair for pair in zip(left, right) if pair[0] != pair[1]]
{"name": "stage-0", "layers": [0, 12], "tokens": 4096, "ready": true}
Prices rose from 1,024 to 65,536 between 1998 and 2026, or by 3.14159 percent in 365 days.
😀 🎉 👍🏽 👩‍👩‍👧 🇩🇪 -> <- == != >= ... --- *** ### "quoted" 'single' (round) [square] {curly}
"""

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "A b", "Hello world", "Hello, World!",
    "it's IT'S It'S they'll THEY'LL we've I'm he'd you're YOU'RE don't DON'T o'clock 'tis 'S 's",
    "'\u017f 'S\u212a", "l'été d'août", "rock 'n' roll", "''s", "'", "'re'", "’s they’re",
    "1 12 123 1234 12345 123456 1234567", "3.14159e-10", "１２３４", "²³¹ ½ Ⅷ ٣٤٥ ๑๒๓ 一二三", "1a2b3c",
    "x\u0085y", "\u0085", " \u0085 ", "a\u00a0b", "\u00a0\u00a0x", "a\u1680b\u2000c\u2003\u2003d",
    "a\u2028b\u2029c\u202fd\u205fe\u3000f", "a\u180eb \u180e c", "a\u200bb\u200cc\u200dd\ufeffe",
    "a\u001cb\u001fc", "a\x0bb\x0cc", "\x00\x01\x7f", "a\x00b", "line\n\nline\n\n\nline",
    "  leading", "trailing  ", "   \n   \n", "\n   x", " \n x", "x \r\n y\r\n\r\nz", "\r\r\r", "\t\tx\t",
    "a  b   c    d     e", "a \t b", "x\n ", " \n", "\n ", "x  \n  y", "if x:\n    return y\n\n\treturn z\n",
    "#include <vector>\r\nint main() {\r\n  return 0;\r\n}\r\n", "a/b\\c//d", "...!!!???", "!\n", "!\n\n x", " !?\r\n",
    "http://example.org/path?query=1&other=%20#top", "user@example.org", "$100 €200 £300 ¥400",
    "é e\u0301 E\u0301", "Å A\u030a \u212b", "ﬁ ﬂ ß ẞ ŉ", "q\u0323\u0307 q\u0307\u0323", "\u0301", " \u0301x", "a\u0301\u0301\u0301",
    "가 \u1100\u1161 각 \u1100\u1161\u11a8", "\u0958 \u0915\u093c", "नमस्ते दुनिया", "ไทย ภาษา", "ქართული", "Հայերեն", "አማርኛ", "ᏣᎳᎩ",
    "漢字かな交じり文", "中文，标点。", "한국어 문장", "العربية ١٢٣", "עברית", "русский текст", "ελληνικά ς Σ σ",
    "İstanbul ıI", "ǅ ǆ Ǆ", "ª º", "x² + y₁", "ﷺ", "𝒜𝓁𝓅𝒽𝒶", "𐍈𐌰", "🜁",
    "😀", "😀😀😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "❤️", "1️⃣", "☃", "a😀b", " 😀 ", "\U0010fffd", "\ue000", "\ufffd", "\ufdd0\uffff",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|>", "<|endoftext|", "<<|endoftext|>>",
    "a <mask> b", "a \t\n <mask>\n b", "<mask><mask>", "  <mask>  ", "a <gulp>   b", "<gulp> \u3000<mask>",
    "<gulp>  <gulp>", "word", "a word b", "sword", "words", "word.", "_word", "word word", "ﬁword", "\u0301word", "wordword",
    "<think>x</think>", "<think", "Caf\u00e9Tok", "Cafe\u0301Tok", "x Cafe\u0301Tokens", "<｜sep｜>a", "<|end", "<|end|>x<|end|>",
    "Zebra zebra xylophone", " quixotic", "quixotic",
]  # fmt: skip

RUNS = ["a", " ", "\n", "!", "1", "é", "\u0301", "😀", "中", "\t", "\r\n", " a", "ab", "a ", " \n", "'s", "the ", "<", "\u00a0", "x\u0301"]


def assigned(ucd, low, high):
    """Code points in [low, high] that have been letters, marks, ... since Unicode 3.2: engines
    with tables of different ages agree about them."""
    return [
        c
        for c in range(low, high + 1)
        if ucd.category(chr(c)) not in ("Cn", "Cs")
        and ucd.category(chr(c)) == unicodedata.category(chr(c))
    ]


def strings(rng):
    texts = list(TEXTS)
    texts += [run * n for run in RUNS for n in (2, 3, 7, 64)]
    texts += [line for line in CORPUS.split("\n") if line]
    points = assigned(unicodedata.ucd_3_2_0, 0, 0xFFFF)
    astral = assigned(unicodedata.ucd_3_2_0, 0x10000, 0x1FFFF)
    ascii_ = [chr(c) for c in range(1, 128)]
    spaces = [" ", " ", "\n", "\r", "\t", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000"]
    words = CORPUS.split()
    for _ in range(90):
        texts.append("".join(chr(rng.choice(points)) for _ in range(rng.randint(1, 12))))
        texts.append("".join(rng.choice(ascii_) for _ in range(rng.randint(1, 24))))
        texts.append("".join(rng.choice(spaces + ["a", "!", "1"]) for _ in range(rng.randint(1, 16))))
        texts.append("".join(rng.choice(words) + rng.choice(spaces) * rng.randint(0, 3) for _ in range(6)))
    for _ in range(40):
        texts.append("".join(chr(rng.choice(astral)) for _ in range(rng.randint(1, 5))))
        texts.append("".join(rng.choice(["'", "S", "s", "t", "LL", "ve", " ", "\u017f", "1"]) for _ in range(8)))
        texts.append("".join(rng.choice(["<", "|", ">", "end", "<mask>", "<gulp>", "word", " ", "\n", "<|end|>"]) for _ in range(9)))
    return list(dict.fromkeys(texts))


def base(normalizer, pre_tokenizer, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.split("\n") * 2, trainer)
    return tokenizer


def split_by(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def gpt2():
    tokenizer = base(None, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(
        [
            AddedToken("<|endoftext|>", normalized=False),
            AddedToken("<mask>", lstrip=True, normalized=False),
            AddedToken("<gulp>", rstrip=True, normalized=True),
        ]
    )
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("<think>")])
    return json.loads(tokenizer.to_str())


def llama3():
    tokenizer = base(None, split_by(LLAMA3_PATTERN))
    tokenizer.add_special_tokens(
        [AddedToken("<|endoftext|>", normalized=False), AddedToken("<|end|>", normalized=False)]
    )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|endoftext|> $A <|end|>",
                pair="<|endoftext|> $A <|endoftext|> $B:1",
                special_tokens=[
                    (name, tokenizer.token_to_id(name)) for name in ("<|endoftext|>", "<|end|>")
                ],
            ),
        ]
    )
    data = json.loads(tokenizer.to_str())
    # Words that only ignore_merges reaches: the last merges go, their results stay.
    data["model"]["ignore_merges"] = True
    data["model"]["merges"] = data["model"]["merges"][:-60]
    return data


def qwen2():
    tokenizer = base(normalizers.NFC(), split_by(QWEN2_PATTERN))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    tokenizer.add_tokens(
        [
            AddedToken("<think>", normalized=False),
            AddedToken("Caf\u00e9Tok", normalized=True),
            AddedToken("<｜sep｜>", normalized=False),
            AddedToken("zé", normalized=False),
        ]
    )
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    return data


def cases(tokenizer, rng):
    encoded = []
    for text in strings(rng):
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        around = tokenizer.encode(text, add_special_tokens=True).ids
        if around != ids and len(encoded) % 10 == 0:
            case["with_special"] = around
        tokenizer.encode_special_tokens = True
        literal = tokenizer.encode(text, add_special_tokens=False).ids
        if literal != ids:
            case["literal"] = literal
        encoded.append(case)
    return encoded


def decodings(tokenizer, rng):
    """Random ids, which are rarely well-formed UTF-8."""
    decoded = []
    for _ in range(150):
        low = rng.choice([0, 0, 94, 180])
        ids = [rng.randrange(low, tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        case = {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)}
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        if skipped != case["text"]:
            case["skipped"] = skipped
        decoded.append(case)
    return decoded


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for make in (gpt2, llama3, qwen2):
        data = make()
        tokenizer = Tokenizer.from_str(json.dumps(data))
        rng = random.Random(SEED)
        golden = {"cases": cases(tokenizer, rng), "decodings": decodings(tokenizer, rng)}
        compact = {"ensure_ascii": True, "separators": (",", ":")}
        name = make.__name__
        (OUT / f"{name}_tokenizer.json").write_text(json.dumps(data, **compact) + "\n")
        lines = [json.dumps(golden[key], **compact).replace("},{", "},\n{") for key in golden]
        (OUT / f"{name}_golden.json").write_text(
            '{"cases":%s,\n"decodings":%s}\n' % tuple(lines)
        )
        print(f"{name}: {len(golden['cases'])} strings, {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
