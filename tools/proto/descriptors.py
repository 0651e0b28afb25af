"""The descriptors of proto/baton/v1 with their comments, by protoc."""

import pathlib
import subprocess
import tempfile

from google.protobuf import descriptor_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path("proto/baton/v1")
OPTIONS_TABLE = str(FOLDER / "config.proto")  # No contract: nothing of it is sent.

FieldProto = descriptor_pb2.FieldDescriptorProto
_FILE_SERVICE, _FILE_MESSAGE, _FILE_ENUM = 6, 4, 5  # Field numbers of FileDescriptorProto, as paths have them.
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM, _ENUM_VALUE, _SERVICE_METHOD = 2, 3, 4, 2, 2


def load(root=ROOT):
    """A FileDescriptorSet of the contracts and what they import, with source positions and comments."""
    files = sorted(str(path.relative_to(root)) for path in (root / FOLDER).glob("*.proto"))
    with tempfile.NamedTemporaryFile(suffix=".binpb") as out:
        subprocess.run(["protoc", f"-I{root}", "--include_imports", "--include_source_info",
                        f"--descriptor_set_out={out.name}", *(file for file in files if file != OPTIONS_TABLE)],
                       check=True)
        return descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes())


class Entry:
    """A named thing of a file with its comment and its parts: message, field, enum, value, service or method."""

    def __init__(self, file, name, proto, path, comments):
        self.file, self.name, self.proto, self.path = file, name, proto, path
        self.comment = comments.get(tuple(path), "")
        self.parts = []

    def __repr__(self):
        return f"{self.name} of {self.file}"


def _comments(file):
    """{path: comment}: the lines above a thing, then those behind it."""
    found = {}
    for location in file.source_code_info.location:
        text = " ".join(f"{location.leading_comments}\n{location.trailing_comments}".split())
        if text:
            found[tuple(location.path)] = text
    return found


def header_comment(file):
    """What stands at the top of a file, above `syntax`."""
    for location in file.source_code_info.location:
        if list(location.path) == [12]:  # FileDescriptorProto.syntax.
            text = location.leading_comments or "".join(location.leading_detached_comments[:1])
            return " ".join(line.strip() for line in text.split("\n")).strip()
    return ""


def _message_entries(file, prefix, message, path, comments):
    entry = Entry(file.name, f"{prefix}.{message.name}", message, path, comments)
    entry.parts = [Entry(file.name, field.name, field, [*path, _MESSAGE_FIELD, i], comments)
                   for i, field in enumerate(message.field)]
    yield entry
    for i, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message_entries(file, entry.name, nested, [*path, _MESSAGE_NESTED, i], comments)
    for i, enum in enumerate(message.enum_type):
        yield _enum_entry(file, entry.name, enum, [*path, _MESSAGE_ENUM, i], comments)


def _enum_entry(file, prefix, enum, path, comments):
    entry = Entry(file.name, f"{prefix}.{enum.name}", enum, path, comments)
    entry.parts = [Entry(file.name, value.name, value, [*path, _ENUM_VALUE, i], comments)
                   for i, value in enumerate(enum.value)]
    return entry


def types(descriptors):
    """{full name: Entry} of all messages and enums of proto/baton, in the order of the files."""
    found = {}
    for file in descriptors.file:
        if not file.name.startswith(str(FOLDER)):
            continue
        comments = _comments(file)
        entries = [entry for i, message in enumerate(file.message_type)
                   for entry in _message_entries(file, file.package, message, [_FILE_MESSAGE, i], comments)]
        entries += [_enum_entry(file, file.package, enum, [_FILE_ENUM, i], comments)
                    for i, enum in enumerate(file.enum_type)]
        found.update((entry.name, entry) for entry in sorted(entries, key=lambda entry: entry.path[1]))
    return found


def services(descriptors):
    """{full name: Entry}, methods as parts."""
    found = {}
    for file in descriptors.file:
        comments = _comments(file)
        for i, service in enumerate(file.service):
            entry = Entry(file.name, f"{file.package}.{service.name}", service, [_FILE_SERVICE, i], comments)
            entry.parts = [Entry(file.name, method.name, method, [_FILE_SERVICE, i, _SERVICE_METHOD, j], comments)
                           for j, method in enumerate(service.method)]
            found[entry.name] = entry
    return found


def is_enum(entry):
    return isinstance(entry.proto, descriptor_pb2.EnumDescriptorProto)


def type_text(field, message):
    """"repeated int32", "map<int32, fixed64>", "baton.v1.Ticket": a field's type in a file's words."""
    if field.type_name:
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = (type_text(part, nested) for part in nested.field)
                return f"map<{key}, {value}>"
        text = field.type_name.lstrip(".")
    else:
        text = FieldProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldProto.LABEL_REPEATED:
        return f"repeated {text}"
    return f"optional {text}" if field.proto3_optional else text


def oneof_of(field, message):
    """The name of the oneof that a field belongs to; "" for none, and for `optional`, which protoc makes one."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return message.oneof_decl[field.oneof_index].name
