"""The options table of proto/baton/v1/config.proto, as protoc reads it."""

import dataclasses
import functools
import pathlib
import subprocess
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROLES = ("router", "prefill", "decode", "colocated")


@dataclasses.dataclass(frozen=True)
class Option:
    name: str
    kind: str  # integer, boolean, string or fraction
    help: str
    default: str
    unit: str
    minimum: int | None
    maximum: int | None
    allowed: tuple
    zero: bool  # Of a fraction: 0 is one, too.
    auto: bool  # Of an integer: the word "auto" is a value, too.
    roles: tuple  # Those of ROLES that take it.


def _file_set():
    with tempfile.NamedTemporaryFile(suffix=".binpb") as out:
        subprocess.run(["protoc", f"-I{ROOT}", "--include_imports", f"--descriptor_set_out={out.name}",
                        "proto/baton/v1/config.proto"], check=True, cwd=ROOT)
        return descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes())


def _messages(pool):
    """{full name: class}; the call's name depends on protobuf's version."""
    options = pool.FindMessageTypeByName("baton.v1.Options")
    field_options = pool.FindMessageTypeByName("google.protobuf.FieldOptions")
    get = getattr(message_factory, "GetMessageClass", None)
    if get is None:
        get = message_factory.MessageFactory(pool).GetPrototype
    get(pool.FindMessageTypeByName("baton.v1.OptionSpec"))
    return options, get(field_options)


@functools.lru_cache(maxsize=None)
def read():
    """Every option, in the table's order."""
    pool = descriptor_pool.DescriptorPool()
    for file in _file_set().file:
        pool.Add(file)
    options, field_options = _messages(pool)
    extension = pool.FindExtensionByName("baton.v1.spec")
    return tuple(_option(field, field_options.FromString(field.GetOptions().SerializeToString()).Extensions[extension])
                 for field in options.fields)


def _option(field, spec):
    kind = {field.TYPE_INT64: "integer", field.TYPE_BOOL: "boolean", field.TYPE_STRING: "string"}[field.type]
    role_names = spec.DESCRIPTOR.enum_types_by_name["Role"].values_by_number
    roles = {role_names[number].name.lower() for number in spec.roles}
    if "prefill" in roles and not spec.apart:
        roles.add("colocated")
    return Option(
        name=field.name, kind="fraction" if spec.fraction else kind, help=spec.help, default=spec.default_value,
        unit=spec.unit, minimum=spec.minimum if spec.HasField("minimum") else None,
        maximum=spec.maximum if spec.HasField("maximum") else None, allowed=tuple(spec.allowed),
        zero=getattr(spec, "zero", False), auto=spec.HasField("auto_number"),
        roles=tuple(role for role in ROLES if role in roles))
