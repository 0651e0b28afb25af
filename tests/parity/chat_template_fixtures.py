"""Writes common/tokenizer/chat/testdata: what Python's jinja2, set up as transformers sets it up, makes of the templates
there for twenty conversations each. Needs jinja2; nothing of it is needed to run the tests.

    python3 tests/parity/chat_template_fixtures.py          writes conversations.json and goldens.json
    python3 tests/parity/chat_template_fixtures.py SECONDS  compares random expressions, too (see random_expressions)
"""
import datetime
import json
import pathlib
import random
import subprocess
import sys
import time

import jinja2
import jinja2.ext
import jinja2.sandbox

TESTDATA = pathlib.Path(__file__).resolve().parents[2] / "common/tokenizer/chat/testdata"
NOW = datetime.datetime(2025, 7, 4, 13, 5, 0)


class Generation(jinja2.ext.Extension):
    """{% generation %}, which only marks its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


def fnv1a(text):
    digest = 0xCBF29CE484222325
    for byte in text.encode():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    return f"{digest:016x}"


def conversations():
    """Twenty: every role, long and empty texts, calls and results, parts, reasoning, variables of clients."""
    rng = random.Random(30)
    words = ["rain", "in", "Zürich", "naïve", "<|im_end|>", "two\nlines", "'quoted'", "\"both\"", "東京", "🙂", "tab\tend", "a&b<c>",
             "{{ x }}", "</think>", " "]
    say = lambda count: " ".join(rng.choice(words) for _ in range(count))
    turn = lambda role, text, **more: {"role": role, "content": text, **more}
    call = lambda name, arguments, number: {"type": "function", "id": f"call_{number:09d}",
                                            "function": {"name": name, "arguments": arguments}}
    weather = {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "City, country"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
            "more": {"type": "object", "additionalProperties": {"type": "boolean"}}}, "required": ["place"]}}}
    clock = {"type": "function", "function": {"name": "clock", "description": "Tells the “time”.", "parameters": {
        "type": "object", "properties": {}}}}
    used = [turn("user", "How warm is it?"),
            turn("assistant", None, tool_calls=[call("get_weather", {"place": "Zürich", "days": 2, "x": [1.0, None, True]}, 1)]),
            turn("tool", "{\"celsius\": 21.5}", tool_call_id="call_000000001", name="get_weather"), turn("assistant", "21.5 °C.")]
    plain = [turn("user", say(5)), turn("assistant", say(8)), turn("user", say(4))]
    system = turn("system", "  Be brief.\n")
    parts = lambda *texts: [{"type": "text", "text": text} for text in texts]
    listed = [
        (plain[:1], {}), (plain, {}), ([system] + plain, {}), ([system] + plain[:2], {"add_generation_prompt": False}),
        ([turn("user", "")], {}), ([turn("user", "  \n spaces \t ")], {}), (plain + [turn("assistant", "<think>\nhm\n</think>\n\nSo.")], {}),
        ([system, turn("user", "q"), turn("assistant", "<think>why</think>a"), turn("user", "r")], {"enable_thinking": False}),
        (used, {}), (used[:3], {"tools": [weather, clock]}), ([system] + used + [turn("user", "And now?")], {"tools": [weather]}),
        ([turn("user", "both"), turn("assistant", "Looking.", tool_calls=[call("clock", {}, 2), call("get_weather", {"place": "a\"b"}, 3)]),
          turn("tool", "12:00", tool_call_id="call_000000002"), turn("tool", "rain", tool_call_id="call_000000003")], {}),
        ([turn("user", parts("one", "two "))], {}), ([turn("system", parts("s")), turn("user", parts("x")), turn("assistant", "y")], {}),
        ([turn("developer", "rules"), turn("user", "hi")], {"reasoning_effort": "high"}),
        ([turn("user", "a"), turn("user", "b")], {}), ([turn("assistant", "first")], {"add_generation_prompt": False}),
        ([turn("user", "docs?")], {"documents": [{"doc_id": 7, "title": "t", "text": "d"}], "controls": {"citations": True, "length": "short"}}),
        ([turn("user", "x"), turn("assistant", "y", reasoning_content="because\n"), turn("critic", "no")], {"builtin_tools": ["code", "search"]}),
        ([turn("user" if i % 2 == 0 else "assistant", say(3)) for i in range(31)], {"date_string": "1 May 2020"}),
    ]
    return [{"messages": messages, "add_generation_prompt": True, "tools": None, "documents": None, "bos_token": "<s>",
             "eos_token": "</s>", **more} for messages, more in listed]


def rendered(template, variables):
    """The digest of the text, "!" and the words of raise_exception, or "!" for any other failure."""
    try:
        return fnv1a(template.render(**variables))
    except jinja2.exceptions.TemplateError as error:
        return "!" + (error.message if type(error) is jinja2.exceptions.TemplateError else "")
    except (TypeError, ValueError, AttributeError, KeyError):
        return "!"


def main():
    made = environment()
    cases = conversations()
    goldens = {}
    for path in sorted((TESTDATA / "templates").glob("*.jinja")):
        template = made.from_string(path.read_text())
        goldens[path.stem] = [rendered(template, case) for case in cases]
        failed = sum(golden == "!" for golden in goldens[path.stem])
        print(f"{path.stem}: {sum(g[0] != '!' for g in goldens[path.stem])} texts, {failed} failures without words")
    (TESTDATA / "conversations.json").write_text(
        "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")
    (TESTDATA / "goldens.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
