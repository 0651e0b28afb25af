"""C++ text between tokens: where a parenthesis closes, what stands between two nodes."""

import re

from cpp_text import skip_literal


def parentheses(source, at):
    """(begin, end, semicolons) of what stands within the first parentheses from `at` on, and the offsets of the
    semicolons that stand in no further brackets."""
    begin = source.index(b"(", at)
    depth, offset, semicolons = 0, begin, []
    while True:
        after = skip_literal(source, offset)
        if after != offset:
            offset = after
            continue
        character = source[offset:offset + 1]
        if character in b"([{":
            depth += 1
        elif character in b")]}":
            depth -= 1
            if depth == 0:
                return begin + 1, offset, semicolons
        elif character == b";" and depth == 1:
            semicolons.append(offset)
        offset += 1


_INTEGER = re.compile(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)([uUlLzZ]*)")


def other_integers(literal):
    """What an integer literal may be changed to: its neighbours, or for a large one half of it and twice as much,
    since one more microsecond of a timeout is no mistake that anybody would call one."""
    match = _INTEGER.fullmatch(literal)
    if match is None:
        return []
    value = int(match.group(1).replace("'", ""), 0) if match.group(1) != "0" else 0
    values = [value // 2, value * 2] if value >= 100 else [value - 1, value + 1]
    return [f"{other}{match.group(2)}" for other in values if other >= 0]
