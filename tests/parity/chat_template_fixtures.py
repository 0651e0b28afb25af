"""Writes common/tokenizer/chat/testdata/goldens.json: what Python's jinja2, set up as transformers sets it up, makes of
the templates there with the variables of conversations.json. Needs jinja2, which no test needs to run."""
import datetime
import json
import pathlib

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
    cases = json.loads((TESTDATA / "conversations.json").read_text())
    goldens = {}
    for path in sorted((TESTDATA / "templates").glob("*.jinja")):
        template = made.from_string(path.read_text())
        goldens[path.stem] = [rendered(template, case) for case in cases]
        failed = sum(golden == "!" for golden in goldens[path.stem])
        print(f"{path.stem}: {sum(g[0] != '!' for g in goldens[path.stem])} texts, {failed} failures without words")
    (TESTDATA / "goldens.json").write_text(json.dumps(goldens, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
