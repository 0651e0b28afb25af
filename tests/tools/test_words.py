"""Product code and pages use the field's words: design.md's glossary has them, and these are not among them."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What a reader has to guess, and what to write instead.
BANNED = {
    "nobody": "say which process, caller or request is meant; 'no peer', 'no caller'",
    "somebody": "say who: a peer, a client, a caller",
    "whoever": "say who",
    "lonely": "alone, or the only member",
    "desk": "name what it does: a rendezvous, a queue",
    "greeter": "the sender of a greeting",
    "nonsense": "malformed",
    "hope": "expect, or await",
    "stranger": "a process that has not proved the secret; an unknown peer",
    "books": "accounting, counts",
}
WORD = re.compile(r"(?<![a-z])(" + "|".join(BANNED) + r")s?(?![a-z])", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
OF = re.compile(r"(?:^|\s)// Of |^\s*/// Of ", re.MULTILINE)


def tracked(*patterns):
    command = ["git", "ls-files", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split() if (ROOT / name).is_file()]


def is_test(path):
    return "testing" in path.parts or re.search(r"_(test|fixture|harness|benchmark)\.", path.name) is not None


def product():
    patterns = ["common/*.cc", "common/*.h", "services/*.cc", "services/*.h", "proto/baton/*.proto"]
    return [path for path in tracked(*patterns) if not is_test(path)]


def found(text):
    """The banned words of a text, also as parts of a name in CamelCase or snake_case."""
    return [match.group(1).lower() for match in WORD.finditer(CAMEL.sub(" ", text))]


@pytest.mark.parametrize("text, words", [
    ("waits for nobody", ["nobody"]),
    ("GroupDesk desk;", ["desk", "desk"]),
    ("books_mended_total", ["books"]),
    ("kDataPlaneStrangersTotal", ["stranger"]),
    ("a desktop's bookshelf and its hopefuls", []),
])
def test_what_counts_as_a_word(text, words):
    assert found(text) == words


def test_code_says_it_in_the_fields_words():
    lines = []
    for path in product():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            lines += [f"{path.relative_to(ROOT)}:{number}: '{word}': {BANNED[word]}" for word in found(line)]
    assert not lines, "\n".join(lines)


def test_no_comment_begins_with_of():
    lines = [str(path.relative_to(ROOT)) for path in product() if OF.search(path.read_text())]
    assert not lines, lines


def test_pages_say_it_in_the_fields_words():
    lines = []
    for path in tracked("README.md", "CONTRIBUTING.md", "docs/*.md", "common/*.md", "services/*.md"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            lines += [f"{path.relative_to(ROOT)}:{number}: '{word}': {BANNED[word]}" for word in found(line)]
    assert not lines, "\n".join(lines)
