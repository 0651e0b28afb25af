"""Literals and comments in C++ text, for tools that read it without a compiler."""

import re

# A quote behind a digit or a letter separates digits (2'000) or ends a prefix (u8'a'), and begins no literal here.
_LITERAL = rb'''R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\])*"|(?<![0-9A-Za-z])'(?:\\.|[^'\\])*\''''
_COMMENT = rb"//[^\n]*|/\*.*?\*/"
_TOKEN = re.compile(_LITERAL + rb"|" + _COMMENT, re.DOTALL)


def skip_literal(source, at):
    """The offset after the comment, string or character literal at `at`, or `at` itself where none begins."""
    token = _TOKEN.match(source, at)
    return at if token is None else token.end()


def without_comments(text, kept=lambda comment: False):
    """`text` with a space in place of each comment that is not `kept`."""
    def replaced(token):
        found = token.group()
        return b" " if found.startswith((b"//", b"/*")) and not kept(found) else found
    return _TOKEN.sub(replaced, text)
