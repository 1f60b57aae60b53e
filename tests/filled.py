"""Documents with a value in every field, down to the last. The rules of a kind need not hold in them."""

import re
from typing import Any

from msgspec import Struct, inspect

TEXTS = ("text", "1.0.0", "env:NAME", "s3://labs/basics.yaml", "sha256:" + 64 * "a", "ada@example.org", "us-east-1")
SIMPLE: dict[type[inspect.Type], object] = {
    inspect.BoolType: True,
    inspect.IntType: 12,
    inspect.FloatType: 0.5,
    inspect.DecimalType: "3.9641",
    inspect.DateTimeType: "2026-11-02T09:00:00Z",
    inspect.DateType: "2026-12-14",
}


def document(kind: type[Struct]) -> dict[str, Any]:
    """Fill every field of a kind."""
    return {field.encode_name: value(field.type) for field in fields(inspect.type_info(kind))}


def fields(info: inspect.Type) -> tuple[inspect.Field, ...]:
    assert isinstance(info, inspect.StructType)
    return info.fields


def value(info: inspect.Type) -> Any:
    """Make a sound value of a type."""
    match info:
        case inspect.Metadata(type=inner):
            made = value(inner)
        case inspect.UnionType(types=types):
            made = value(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.StructType(cls=kind):
            made = document(kind)
        case inspect.DictType(key_type=key, value_type=item):
            made = {value(key): value(item)}
        case inspect.VarTupleType(item_type=item):
            made = [value(item)]
        case inspect.StrType(pattern=pattern):
            made = next(text for text in TEXTS if pattern is None or re.search(pattern, text))
        case inspect.EnumType(cls=options):
            made = next(iter(options)).value
        case inspect.LiteralType(values=values):
            made = values[0]
        case _:
            made = SIMPLE[type(info)]
    return made


def structs(kind: type[Struct]) -> set[type[Struct]]:
    """Collect a struct and every one within it."""
    found: set[type[Struct]] = set()
    waiting = [inspect.type_info(kind)]
    while waiting:
        match waiting.pop():
            case inspect.StructType(cls=struct, fields=inside) if struct not in found:
                found.add(struct)
                waiting += [field.type for field in inside]
            case inspect.Metadata(type=inner):
                waiting.append(inner)
            case inspect.UnionType(types=types):
                waiting += types
            case inspect.DictType(value_type=item) | inspect.VarTupleType(item_type=item):
                waiting.append(item)
    return found
