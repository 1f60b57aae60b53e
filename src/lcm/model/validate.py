"""A user's document to a typed one, with every fault of it and what to do about each.

msgspec stops at the first error; a person with ten mistakes wants to hear of ten. So each field is tried by itself.
Called by admission and by the command line.
"""

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from lcm.model.errors import Fault, Invalid
from lcm.model.kinds import KINDS, Kind, Resource
from lcm.model.resource import API_VERSION, Metadata, Part
from lcm.model.rules import RULES

S = TypeVar("S", bound=msgspec.Struct)
_REMEDIES: Final[Mapping[type, str]] = {
    bool: "write true or false",
    int: "write a whole number",
    float: "write a number",
    str: "write text, in quotes if it looks like a number",
    datetime: "write a moment with its offset, such as 2026-11-02T09:00:00Z",
}


class _Common(Part):
    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION


_UNUSABLE: Final = object()
"""Stands for what is missing or faulty; the rules about it are not applied."""


def read(document: object) -> Resource:
    """Turn a document into its kind, or raise Invalid with every fault found.

    Status and bookkeeping are read as they stand; that a user's are ignored is admission's business.
    """
    if not isinstance(document, Mapping):
        raise Invalid(Fault("document", "not an object", "begin with `kind: …` and `metadata: …`"))
    known = _kind(document)
    if known is None:
        raise Invalid(*_stranger(document))
    try:
        resource = msgspec.convert(document, known.struct)
    except msgspec.ValidationError as error:
        raise Invalid(*_every_fault(document, known.struct, str(error))) from error
    check(resource)
    return resource


def check(resource: Resource) -> None:
    """Hold a typed document against the rules of its kind; raises Invalid with every fault found."""
    if faults := _broken_rules(resource, []):
        raise Invalid(*faults)


def _every_fault(document: Mapping[str, object], kind: type[Resource], first: str) -> list[Fault]:
    faults: list[Fault] = []
    resource = _sift_struct(document, kind, "", faults)
    faults += _broken_rules(resource, [fault.path for fault in faults])
    return faults or [Fault("document", first, "see the documentation of this kind")]


def _broken_rules(resource: Resource, unsound: list[str]) -> list[Fault]:
    """Apply every rule but those about fields that are faulty in themselves."""
    return [
        fault
        for rule in RULES
        if rule.kind is type(resource) and not any(_overlap(path, about) for path in unsound for about in rule.about)
        for fault in rule.broken(resource)
    ]


def _overlap(path: str, about: str) -> bool:
    """Tell whether a fault lies in what a rule is about, or swallowed it whole."""
    return path == about or path.startswith((f"{about}.", f"{about}[")) or about.startswith(f"{path}.")


def _kind(document: Mapping[str, object]) -> Kind | None:
    name = document.get("kind")
    return KINDS.get(name) if isinstance(name, str) else None


def _stranger(document: Mapping[str, object]) -> list[Fault]:
    """List what can be said of a document of no known kind."""
    name = document.get("kind")
    problem = "missing" if name is None else f"{name!r} is no kind"
    faults = [Fault("kind", problem, _suggest(str(name), list(KINDS)))]
    common = {name: document[name] for name in ("metadata", "api_version") if name in document}
    _sift_struct(common, _Common, "", faults)
    return faults


def _sift(value: object, hint: Any, path: str, faults: list[Fault]) -> object:  # noqa: ANN401 - a type hint has no better type
    """Return a value as its type, or what is sound of it, and note the faults of the rest."""
    inner = _plain(hint)
    if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return _sift_struct(value, inner, path, faults)
    before = len(faults)
    _sift_members(value, inner, path, faults)
    if len(faults) == before:
        faults += _leaf(value, hint, path)
    return msgspec.convert(value, hint) if len(faults) == before else _UNUSABLE


def _sift_members(value: object, inner: Any, path: str, faults: list[Fault]) -> None:  # noqa: ANN401 - likewise
    origin, arguments = get_origin(inner), get_args(inner)
    if isinstance(value, Mapping) and isinstance(origin, type) and issubclass(origin, Mapping):
        for name, item in value.items():
            faults += _leaf(name, arguments[0], f"{path}.{name}")
            _sift(item, arguments[1], f"{path}.{name}", faults)
    elif isinstance(value, list) and origin is tuple:
        for number, item in enumerate(value):
            _sift(item, arguments[0], f"{path}[{number}]", faults)


def _sift_struct(value: Mapping[str, object], kind: type[S], path: str, faults: list[Fault]) -> S:
    fields = _fields(kind)
    sound: dict[str, object] = {field.name: _UNUSABLE for field in fields.values() if field.required}
    for name, item in value.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in fields:
            faults.append(Fault(where, "unknown field", _suggest(str(name), list(fields))))
            continue
        sifted = _sift(item, fields[name].type, where, faults)
        if sifted is not _UNUSABLE:
            sound[fields[name].name] = sifted
    faults += [
        Fault(f"{path}.{name}" if path else name, "missing", _remedy(field.type))
        for name, field in fields.items()
        if field.required and name not in value
    ]
    return kind(**sound)


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _leaf(value: object, hint: Any, path: str) -> list[Fault]:  # noqa: ANN401 - likewise
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        problem = str(error).split(" - at ")[0].replace("`", "")
        if " matching regex " in problem:
            problem = "not of the expected form"
        return [Fault(path, problem[:1].lower() + problem[1:], _remedy(hint))]
    return []


def _plain(hint: Any) -> Any:  # noqa: ANN401 - likewise
    """Strip annotations and None from a hint, as far as one type is left."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        rest = [one for one in get_args(hint) if one is not NoneType]
        return _plain(rest[0]) if len(rest) == 1 else hint
    return hint


def _remedy(hint: Any) -> str:  # noqa: ANN401 - likewise
    for meta in _metas(hint):
        if meta.description:
            return f"use {meta.description}"
        if meta.examples:
            return f"write for example {meta.examples[0]}"
    inner = _plain(hint)
    if get_origin(inner) is Literal:
        return f"use {_either(get_args(inner))}"
    if isinstance(inner, type) and issubclass(inner, Enum):
        return f"use {_either([one.value for one in inner])}"
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return f"write an object with {', '.join(inner.__struct_encode_fields__)}"
    return _REMEDIES.get(inner, "see the documentation of this field") if isinstance(inner, type) else "write a list"


def _metas(hint: Any) -> list[msgspec.Meta]:  # noqa: ANN401 - likewise
    if get_origin(hint) is Annotated:
        return [one for one in get_args(hint)[1:] if isinstance(one, msgspec.Meta)]
    return [meta for one in get_args(hint) for meta in _metas(one)] if get_origin(hint) in (Union, UnionType) else []


def _suggest(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"


def _either(options: Any) -> str:  # noqa: ANN401 - literals and enum values
    return "one of " + ", ".join(str(one) for one in options)
