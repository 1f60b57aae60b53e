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

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import API_VERSION, Metadata, Part
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.rules import RULES

S = TypeVar("S", bound=msgspec.Struct)
MOST_FAULTS: Final = 100
"""So many faults of one document are told."""
MOST_VALUES: Final = 50_000
"""So many values may stand in one document, whatever its kind."""

_LONGEST_NAME: Final = 128
_LONGEST_PROBLEM: Final = 300
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


class _Enough(Exception):
    """As many faults were found as are told."""


class _Faults(list[Fault]):
    """What was found so far; whoever adds to it stops looking once that is enough."""

    def note(self, path: str, problem: str, remedy: str) -> None:
        if len(self) >= MOST_FAULTS:
            raise _Enough
        self.append(Fault(path, _short(problem, _LONGEST_PROBLEM), remedy))


def read(document: object) -> Resource:
    """Turn a document into its kind, or raise Invalid with every fault found.

    Status and bookkeeping are read as they stand; that a user's are ignored is admission's business.
    """
    if not isinstance(document, Mapping):
        raise Invalid(Fault("document", "not an object", "begin with `kind: …` and `metadata: …`"))
    measure(document)
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
        raise Invalid(*_told(faults))


def measure(document: object) -> None:
    """Refuse a document with more values in it than any kind has, before anybody walks through them."""
    left, count = [document], 0
    while left:
        value = left.pop()
        if isinstance(value, Mapping | list | tuple):
            count += len(value)
            if count > MOST_VALUES:
                problem = f"more than {MOST_VALUES} values"
                raise Invalid(Fault("document", problem, "no document of any kind is as large"))
            left += value.values() if isinstance(value, Mapping) else value


def _every_fault(document: Mapping[str, object], kind: type[Resource], first: str) -> list[Fault]:
    faults = _Faults()
    try:
        resource = _sift_struct(document, kind, "", faults)
    except _Enough:
        return _told(faults, more=True)
    found = [*faults, *_broken_rules(resource, [fault.path for fault in faults])]
    return _told(found) or [Fault("document", _short(first, _LONGEST_PROBLEM), "see the documentation of this kind")]


def _told(faults: list[Fault], *, more: bool = False) -> list[Fault]:
    """Give as many faults as are told, and say so if there are more."""
    if len(faults) <= MOST_FAULTS and not more:
        return faults
    return [*faults[:MOST_FAULTS], Fault("document", "and more faults", "correct those told first")]


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
    faults = _Faults()
    faults.note("kind", "missing" if name is None else f"{name!r} is no kind", _suggest(str(name), list(KINDS)))
    common = {name: document[name] for name in ("metadata", "api_version") if name in document}
    try:
        _sift_struct(common, _Common, "", faults)
    except _Enough:
        return _told(faults, more=True)
    return faults


def _sift(value: object, hint: Any, path: str, faults: _Faults) -> object:  # noqa: ANN401 - a type hint has no better type
    """Return a value as its type, or what is sound of it, and note the faults of the rest."""
    inner = _plain(hint)
    if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return _sift_struct(value, inner, path, faults)
    before = len(faults)
    if not _overlong(value, hint):
        _sift_members(value, inner, path, faults)
    if len(faults) == before:
        _try(value, hint, path, faults)
    return msgspec.convert(value, hint) if len(faults) == before else _UNUSABLE


def _sift_members(value: object, inner: Any, path: str, faults: _Faults) -> None:  # noqa: ANN401 - likewise
    origin, arguments = get_origin(inner), get_args(inner)
    if isinstance(value, Mapping) and isinstance(origin, type) and issubclass(origin, Mapping):
        for name, item in value.items():
            where = _below(path, name)
            _try(name, arguments[0], where, faults)
            _sift(item, arguments[1], where, faults)
    elif isinstance(value, list) and origin is tuple:
        for number, item in enumerate(value):
            _sift(item, arguments[0], f"{path}[{number}]", faults)


def _sift_struct(value: Mapping[str, object], kind: type[S], path: str, faults: _Faults) -> S:
    fields = _fields(kind)
    sound: dict[str, object] = {field.name: _UNUSABLE for field in fields.values() if field.required}
    for name, item in value.items():
        where = _below(path, name)
        if name not in fields:
            faults.note(where, "unknown field", _suggest(str(name), list(fields)))
            continue
        sifted = _sift(item, fields[name].type, where, faults)
        if sifted is not _UNUSABLE:
            sound[fields[name].name] = sifted
    for name, field in fields.items():
        if field.required and name not in value:
            faults.note(_below(path, name), "missing", _remedy(field.type))
    return kind(**sound)


def _overlong(value: object, hint: Any) -> bool:  # noqa: ANN401 - likewise
    """Tell whether a mapping or list has more members than it may have: they are not looked at."""
    most = [meta.max_length for meta in _metas(hint) if meta.max_length is not None]
    return isinstance(value, Mapping | list) and any(len(value) > one for one in most)


def _below(path: str, name: object) -> str:
    """Spell the place of a member, whose name may be as long as somebody likes."""
    spelt = _short(str(name), _LONGEST_NAME)
    return f"{path}.{spelt}" if path else spelt


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _try(value: object, hint: Any, path: str, faults: _Faults) -> None:  # noqa: ANN401 - likewise
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        problem = str(error).split(" - at ")[0].replace("`", "")
        if " matching regex " in problem:
            problem = "not of the expected form"
        if " enum value " in problem:
            problem = "none of its values"  # without the one that was written, which may be a secret from the next line
        faults.note(path, problem[:1].lower() + problem[1:], _remedy(hint))


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
    close = get_close_matches(name, known, n=1) if len(name) <= _LONGEST_NAME else ()
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"


def _either(options: Any) -> str:  # noqa: ANN401 - literals and enum values
    return "one of " + ", ".join(str(one) for one in options)
