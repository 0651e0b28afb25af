"""Jane Austen's six novels as the R package janeaustenr carries them.

Reflows the printed lines into paragraphs, sets the last chapters of one novel
aside, and lays the rest out as token streams to train on.
"""
import os
import random
import re
import subprocess

NOVELS = ["Emma", "Mansfield_Park", "Northanger_Abbey", "Persuasion",
          "Pride_Prejudice", "Sense_Sensibility"]
HELD_OUT = ("Persuasion", "Chapter 21")  # from here to the end of the novel
EXPORT = """
library(janeaustenr)
books <- austen_books()
for (book in levels(books$book)) {
  name <- paste0(gsub("[^A-Za-z]+", "_", book), ".txt")
  writeLines(books$text[books$book == book], file.path(Sys.getenv("OUT"), name), useBytes = TRUE)
}
"""
HEADING = re.compile(r"^chapter\s+[ivxl\d]+\.?$", re.I)
DROP = re.compile(r"^(volume\s+\w+|finis|the end|[*\s]+)\.?$", re.I)
END = "A NOTE ON THE TEXT"  # a modern editor's, after Northanger Abbey
EDITOR = re.compile(r"\[(End volume|At this point)[^]]*\]", re.S)


def export(directory):
    """Writes one .txt per novel from the installed R package."""
    os.makedirs(directory, exist_ok=True)
    subprocess.run(["Rscript", "-e", EXPORT], check=True,
                   env=dict(os.environ, OUT=directory))


def paragraphs(raw):
    """The novel's paragraphs, from its first chapter heading on."""
    raw = EDITOR.sub("", raw).replace("_", "")
    out = []
    for block in re.split(r"\n\s*\n", raw):
        text = " ".join(block.split())
        if text == END:
            break
        if not text or DROP.match(text):
            continue
        if out or HEADING.match(text):
            out.append(text)
    return out


def load(directory):
    """Returns ({novel: paragraphs to train on}, held-out paragraphs)."""
    training, held_out = {}, []
    for name in NOVELS:
        with open(os.path.join(directory, name + ".txt"), encoding="utf-8") as f:
            paras = paragraphs(f.read())
        if name == HELD_OUT[0]:
            cut = paras.index(HELD_OUT[1])
            paras, held_out = paras[:cut], paras[cut:]
        training[name] = paras
    return training, held_out


def book_stream(training, tok):
    """All novels, each behind an end-of-text mark."""
    ids = []
    for paras in training.values():
        ids.append(tok.special["<|endoftext|>"])
        ids += tok.encode("\n\n".join(paras))
    return ids


def chat_stream(training, tok, seed):
    """The same text as ChatML turns: a passage, then the one that follows it.

    Trained on as a small share, so that the chat marks mean something and a
    reply ends by itself.
    """
    rng = random.Random(seed)
    start, end = tok.special["<|im_start|>"], tok.special["<|im_end|>"]
    newline = tok.encode("\n")
    ids = []
    for paras in training.values():
        i = 0
        while i < len(paras):
            ids.append(tok.special["<|endoftext|>"])
            for role in ["user", "assistant"] * rng.randint(1, 3):
                n = rng.randint(1, 4)
                turn = "\n\n".join(paras[i:i + n])
                i += n
                if turn:
                    ids += [start] + tok.encode(role + "\n" + turn) + [end] + newline
    return ids


def demo_prompt(held_out, tok, chapter="Chapter 23", at_least=4400):
    """Whole sentences from a held-out chapter, stopping inside a paragraph."""
    text = "\n\n".join(held_out[held_out.index(chapter):])
    for m in re.finditer(r"[a-z]\. (?=[A-Z])", text):
        prompt = text[:m.end() - 1]
        if len(tok.encode(prompt)) >= at_least:
            return prompt
    raise ValueError("the held-out chapter is too short for the demo prompt")
