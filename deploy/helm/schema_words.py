"""The words that values.schema.json is written in: JSON Schema draft-07, where an object takes no name but its own."""


def described(schema, text):
    return dict(schema, description=text) if text else schema


def record(fields, required=(), text=""):
    """An object with exactly these fields; `required` ones are those that have no default."""
    schema = {"type": "object", "additionalProperties": False, "properties": fields}
    if required:
        schema["required"] = list(required)
    return described(schema, text)


def string(text="", **more):
    return described(dict({"type": "string"}, **more), text)


def filled(text=""):
    return string(text, minLength=1)


def choice(*values, text=""):
    return described({"type": "string", "enum": list(values)}, text)


def integer(minimum=None, maximum=None, text=""):
    schema = {"type": "integer"}
    if minimum is not None:
        schema["minimum"] = minimum
    if maximum is not None:
        schema["maximum"] = maximum
    return described(schema, text)


def boolean(text=""):
    return described({"type": "boolean"}, text)


def array(items, text=""):
    return described({"type": "array", "items": items}, text)


def strings(text=""):
    return array(string(), text)


def mapping(values=None, text=""):
    """Names of the user's own, such as labels: every value has one schema."""
    return described({"type": "object", "additionalProperties": values or string()}, text)


def nullable(schema):
    return dict(schema, type=[schema["type"], "null"])


def ref(name):
    return {"$ref": f"#/definitions/{name}"}


def one_of(*schemas):
    return {"oneOf": list(schemas)}
