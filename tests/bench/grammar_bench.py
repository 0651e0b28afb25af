"""Structured output: mask_us of a vocabulary of 131,072 tokens, compile_ms of 200 schemas, validity of 2,000 texts that
random models write at temperature 2. `hostile`: the most that a grammar takes which is made to take long."""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = 200
TEXTS = 2000
FORMATS = ["date", "date-time", "time", "uuid", "email", "ipv4", "duration", "hostname"]


def leaf(rng):
    low = rng.randrange(-50, 50)
    return rng.choice([
        lambda: {"type": "string", "maxLength": rng.randrange(1, 60)},
        lambda: {"type": "string", "minLength": rng.randrange(5), "maxLength": rng.randrange(5, 300)},
        lambda: {"type": "string", "format": rng.choice(FORMATS)},
        lambda: {"type": "string", "pattern": rng.choice(["^[A-Z]{2,3}-[0-9]{4}$", "^(a|bc)+d{1,9}$", "^\\w{3,12}$"])},
        lambda: {"type": "integer"},
        lambda: {"type": "integer", "minimum": low, "maximum": low + rng.randrange(1000)},
        lambda: {"type": "number"},
        lambda: {"type": "number", "minimum": 0, "maximum": rng.randrange(1, 100)},
        lambda: {"type": "boolean"},
        lambda: {"type": ["null", "boolean"]},
        lambda: {"enum": rng.sample(["red", "green", "blue", 1, 2.5, None, "ä\"\n", True], 4)},
        lambda: {"const": rng.choice(["x", 3, {"a": [1, None]}])}])()


def schema(rng, depth):
    if depth == 0 or rng.random() < 0.25:
        return leaf(rng)
    kind = rng.random()
    if kind < 0.6:
        names = [f"{rng.choice(['name', 'id', 'value', 'note', 'tag'])}_{i}" for i in range(rng.randrange(1, 9))]
        return {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names},
                "required": rng.sample(names, rng.randrange(len(names) + 1)), "additionalProperties": False}
    if kind < 0.85:
        return {"type": "array", "items": schema(rng, depth - 1), "minItems": rng.randrange(3),
                "maxItems": rng.randrange(3, 6)}
    return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randrange(2, 4))]}


def schemas():
    rng = random.Random(11)
    made = [schema(rng, rng.randrange(1, 4)) for _ in range(SCHEMAS - 1)]
    tree = {"type": "object", "properties": {"value": {"type": "boolean"}, "next": {"anyOf": [
        {"type": "null"}, {"type": "null"}, {"$ref": "#"}]}},
            "required": ["value", "next"], "additionalProperties": False}
    return [*made, tree]


def hostile():
    """Nested counts, many ways at once, ambiguous recursion, and the largest that fit the limits."""
    optional = {"properties": {f"p{i}": {"type": ["string", "integer", "null"]} for i in range(450)}}
    patterns = {"anyOf": [{"type": "string", "pattern": f"^[a-z ]*{i}$"} for i in range(900)]}
    tree = {"$defs": {f"d{i}": {"items": {"anyOf": [{"$ref": f"#/$defs/d{(i + k) % 60}"} for k in range(1, 8)]}}
                      for i in range(60)}, "$ref": "#/$defs/d0"}
    words = "|".join(f"w{i}" for i in range(3000))
    free = "|".join(f'("{"ab" * (i % 20)}" [^"]* "q{i}")' for i in range(900))
    return [{"json_schema": json.dumps(one)} for one in (
        optional, patterns, tree, {"maxItems": 60000, "items": {"type": "boolean"}, "type": "array"},
        {"anyOf": [{"type": "string", "maxLength": i + 5} for i in range(900)]}, {"x": "y" * 1000000})] + [
        {"json_schema": "[" * 100000}, {"regex": "(" * 100000}] + [{"regex": one} for one in (
            "((a{0,250}){0,250})", "(a?){30000}", '[^\\x00-\\x1f"]{0,50000}', ".*a.{800}", "([\\s\\S]{0,50}a){900}",
            "(\\w{1,200}\\s?\\d{1,200}){100}", "(.*a){300}", f"({words})*",
            "".join(f"(w{i})?" for i in range(900)))] + [{"ebnf": one} for one in (
                f"root ::= ({free})*", 'root ::= s\ns ::= [a-z] s | "a" s s | "a" s | "a" | [a-z] s s | " " s')]


def is_valid(text, of):
    try:
        jsonschema.validate(json.loads(text), of, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"{text}\n{json.dumps(of)}\n{error}", file=sys.stderr)
        return False
    return True


def measure():
    made = schemas()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"schemas": [json.dumps(one) for one in made], "hostile": hostile()}, file)
        file.flush()
        done = subprocess.run([ROOT / "bazel-bin/tests/bench/grammar_bench", file.name, str(TEXTS)], check=True,
                              capture_output=True, text=True)
    result = json.loads(done.stdout)
    texts = result.pop("texts")
    valid = sum(one["ended"] and is_valid(one["text"], made[one["schema"]]) for one in texts)
    return {**result, "validity": valid / len(texts), "texts": len(texts)}


if __name__ == "__main__":
    print(json.dumps(measure()))
