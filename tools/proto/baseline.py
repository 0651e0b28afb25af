"""Compares proto/baton/v1 with the committed baseline: what an old peer sends must mean the same to a new one."""

import argparse
import sys

from google.protobuf import descriptor_pb2

import descriptors

BASELINE = descriptors.ROOT / "proto" / "baseline.binpb"


def read():
    return descriptor_pb2.FileDescriptorSet.FromString(BASELINE.read_bytes())


def _reserved(message, number, name):
    """Whether a number and a name are withdrawn for good; ranges of messages end before, of enums at `end`."""
    last = 0 if isinstance(message, descriptor_pb2.EnumDescriptorProto) else 1
    in_range = any(held.start <= number <= held.end - last for held in message.reserved_range)
    return in_range and name in message.reserved_name


def _field_differences(where, old, new):
    after = {field.number: field for field in new.field}
    for field in old.field:
        at = f"{where}.{field.name} = {field.number}"
        if field.number not in after:
            if not _reserved(new, field.number, field.name):
                yield f"{at} is gone, and its number and name are not reserved"
            continue
        other = after[field.number]
        if field.name != other.name:
            yield f"{at} is called {other.name} now"
        types = descriptors.type_text(field, old), descriptors.type_text(other, new)
        if types[0] != types[1]:
            yield f"{at} was {types[0]} and is {types[1]}"
        oneofs = descriptors.oneof_of(field, old), descriptors.oneof_of(other, new)
        if oneofs[0] != oneofs[1]:
            yield f"{at} has changed its oneof from \"{oneofs[0]}\" to \"{oneofs[1]}\""


def _value_differences(where, old, new):
    after = {value.number: value.name for value in new.value}
    for value in old.value:
        if value.number not in after:
            if not _reserved(new, value.number, value.name):
                yield f"{where}.{value.name} = {value.number} is gone, and its number and name are not reserved"
        elif after[value.number] != value.name:
            yield f"{where}.{value.name} = {value.number} is called {after[value.number]} now"


def _service_differences(name, old, new):
    after = {method.name: method for method in new.method}
    for method in old.method:
        if method.name not in after:
            yield f"{name}.{method.name} is gone"
            continue
        other = after[method.name]
        for what in ("input_type", "output_type", "client_streaming", "server_streaming"):
            if getattr(method, what) != getattr(other, what):
                yield f"{name}.{method.name}: {what} was {getattr(method, what)} and is {getattr(other, what)}"


def differences(old, new):
    """What of `old` (a FileDescriptorSet) is read otherwise by `new`, a line each."""
    found = []
    types, services = descriptors.types(new), descriptors.services(new)
    for name, entry in descriptors.types(old).items():
        if name not in types:
            found.append(f"{name} is gone")
        elif descriptors.is_enum(entry) != descriptors.is_enum(types[name]):
            found.append(f"{name} was a message and is an enum, or the reverse")
        else:
            compare = _value_differences if descriptors.is_enum(entry) else _field_differences
            found.extend(compare(name, entry.proto, types[name].proto))
    for name, entry in descriptors.services(old).items():
        if name in services:
            found.extend(_service_differences(name, entry.proto, services[name].proto))
        else:
            found.append(f"{name} is gone")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make what is here now the baseline")
    now = descriptors.load()
    if parser.parse_args().write:
        for file in now.file:
            file.ClearField("source_code_info")
        BASELINE.write_bytes(now.SerializeToString(deterministic=True))
        print(f"{BASELINE.name}: {len(descriptors.types(now))} types, "
              f"{len(descriptors.services(now))} services")
        return 0
    broken = differences(read(), now)
    print("\n".join(broken) or "nothing that the baseline has is read otherwise now")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
