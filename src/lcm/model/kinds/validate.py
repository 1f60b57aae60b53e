"""A user's document converted to its kind, with every fault in it and a remedy for each.

msgspec stops at the first error, but a person with ten mistakes wants to see all ten, so each field is converted by
itself. Called by admission and by the command line.
"""

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from lcm.model.base.errors import Fault, Invalid, to_fault
from lcm.model.base.moments import find_odd_moments
from lcm.model.base.resource import API_VERSION, Metadata, Part, shorten_text
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.rules import RULES

S = TypeVar("S", bound=msgspec.Struct)
MAX_FAULTS: Final = 100
"""How many faults of one document are reported."""
MAX_VALUES: Final = 50_000
"""How many values one document of any kind may hold."""

_MAX_NAME_LENGTH: Final = 128
_MAX_PROBLEM_LENGTH: Final = 300
_REMEDIES: Final[Mapping[type, str]] = {
    bool: "write true or false",
    int: "write a whole number",
    float: "write a number",
    str: "write text, in quotes if it looks like a number",
    datetime: "write a moment with its offset, such as 2026-11-02T09:00:00Z",
}


class _CommonFields(Part):
    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION


_UNUSABLE: Final = object()
"""Stands for a missing or faulty value; rules about it are not applied."""


class _TooManyFaults(Exception):
    """The limit of reported faults was reached."""


class _Faults(list[Fault]):
    """The faults found so far. Adding one beyond the limit raises _TooManyFaults and so ends the search."""

    def note(self, path: str, problem: str, remedy: str) -> None:
        if len(self) >= MAX_FAULTS:
            raise _TooManyFaults
        self.append(Fault(path, shorten_text(problem, _MAX_PROBLEM_LENGTH), remedy))


def parse_document(document: object) -> Resource:
    """Convert a document to its kind, or raise Invalid with every fault found.

    Status and bookkeeping fields are converted as they stand; admission is what ignores those of a user.
    """
    if not isinstance(document, Mapping):
        raise Invalid(Fault("document", "not an object", "begin with `kind: …` and `metadata: …`"))
    check_size(document)
    name = document.get("kind")
    known = KINDS.get(name) if isinstance(name, str) else None
    if known is None:
        raise Invalid(*_unknown_kind_faults(document))
    try:
        resource = msgspec.convert(document, known.struct)
    except msgspec.ValidationError as error:
        raise Invalid(*_every_fault(document, known.struct, error)) from error
    check_rules(resource)
    return resource


def check_rules(resource: Resource) -> None:
    """Check a typed document against the rules of its kind. Raises Invalid with every fault found."""
    if faults := _broken_rules(resource, []):
        raise Invalid(*_limit_faults(faults))


def check_size(document: object) -> None:
    """Refuse a document with more values than any kind has, before anything walks through them."""
    left, count = [document], 0
    while left:
        value = left.pop()
        if isinstance(value, Mapping | list | tuple):
            count += len(value)
            if count > MAX_VALUES:
                problem = f"more than {MAX_VALUES} values"
                raise Invalid(Fault("document", problem, "no document of any kind is as large"))
            left += value.values() if isinstance(value, Mapping) else value


def _every_fault(document: Mapping[str, object], kind: type[Resource], first: msgspec.ValidationError) -> list[Fault]:
    faults = _Faults()
    try:
        resource = _convert_struct(document, kind, "", faults)
    except _TooManyFaults:
        return _limit_faults(faults, more=True)
    found = [*faults, *_broken_rules(resource, [fault.path for fault in faults])]
    return _limit_faults(found) or [to_fault(first, "document", "see the documentation of this kind")]


def _limit_faults(faults: list[Fault], *, more: bool = False) -> list[Fault]:
    """Return as many faults as are reported, with a last one that says so if there are more."""
    if len(faults) <= MAX_FAULTS and not more:
        return faults
    return [*faults[:MAX_FAULTS], Fault("document", "and more faults", "correct the faults above first")]


def _broken_rules(resource: Resource, unsound: list[str]) -> list[Fault]:
    """Return the faults of all rules except those about fields that are faulty in themselves."""
    if odd := list(find_odd_moments(resource.spec, "spec")):
        return odd  # rules compute with moments, which these are no good for
    return [
        fault
        for rule in RULES
        if rule.kind is type(resource) and not any(_overlaps(path, about) for path in unsound for about in rule.about)
        for fault in rule.broken(resource)
    ]


def _overlaps(path: str, about: str) -> bool:
    """Return True if a fault lies within the fields of a rule, or contains them."""
    return path == about or path.startswith((f"{about}.", f"{about}[")) or about.startswith(f"{path}.")


def _unknown_kind_faults(document: Mapping[str, object]) -> list[Fault]:
    """Return the faults that can be found in a document of no known kind."""
    name = document.get("kind")
    faults = _Faults()
    faults.note("kind", "missing" if name is None else f"{name!r} is no kind", _suggest_name(str(name), list(KINDS)))
    common = {name: document[name] for name in ("metadata", "api_version") if name in document}
    try:
        _convert_struct(common, _CommonFields, "", faults)
    except _TooManyFaults:
        return _limit_faults(faults, more=True)
    return faults


def _convert(value: object, hint: Any, path: str, faults: _Faults) -> object:  # noqa: ANN401 - a type hint has no better type
    """Return a value converted to its type, or the valid part of it, and note the faults of the rest."""
    inner = _plain_type(hint)
    if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return _convert_struct(value, inner, path, faults)
    before = len(faults)
    limits = [meta.max_length for meta in _metas(hint) if meta.max_length is not None]
    if not (isinstance(value, Mapping | list) and any(len(value) > limit for limit in limits)):
        _check_members(value, inner, path, faults)
    if len(faults) == before:
        _check_value(value, hint, path, faults)
    return msgspec.convert(value, hint) if len(faults) == before else _UNUSABLE


def _check_members(value: object, inner: Any, path: str, faults: _Faults) -> None:  # noqa: ANN401 - likewise
    origin, arguments = get_origin(inner), get_args(inner)
    if isinstance(value, Mapping) and isinstance(origin, type) and issubclass(origin, Mapping):
        for name, item in value.items():
            where = _join_path(path, name)
            _check_value(name, arguments[0], where, faults)
            _convert(item, arguments[1], where, faults)
    elif isinstance(value, list) and origin is tuple:
        for number, item in enumerate(value):
            _convert(item, arguments[0], f"{path}[{number}]", faults)


def _convert_struct(value: Mapping[str, object], kind: type[S], path: str, faults: _Faults) -> S:
    fields = _fields(kind)
    sound: dict[str, object] = {field.name: _UNUSABLE for field in fields.values() if field.required}
    for name, item in value.items():
        where = _join_path(path, name)
        if name not in fields:
            faults.note(where, "unknown field", _suggest_name(str(name), list(fields)))
            continue
        sifted = _convert(item, fields[name].type, where, faults)
        if sifted is not _UNUSABLE:
            sound[fields[name].name] = sifted
    for name, field in fields.items():
        if field.required and name not in value:
            faults.note(_join_path(path, name), "missing", _remedy_for(field.type))
    return kind(**sound)


def _join_path(path: str, name: object) -> str:
    """Return the path of a member, whose name may be of any length."""
    spelt = shorten_text(str(name), _MAX_NAME_LENGTH)
    return f"{path}.{spelt}" if path else spelt


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _check_value(value: object, hint: Any, path: str, faults: _Faults) -> None:  # noqa: ANN401 - likewise
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        faults.note(path, to_fault(error, path).problem, _remedy_for(hint))


def _plain_type(hint: Any) -> Any:  # noqa: ANN401 - likewise
    """Return a type hint without annotations, None and UNSET, if a single type is left."""
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        rest = [one for one in get_args(hint) if one not in (NoneType, msgspec.UnsetType)]
        return _plain_type(rest[0]) if len(rest) == 1 else hint
    return hint


def parameter_remedy(shape: type[msgspec.Struct], name: str) -> str:
    """Return what to write for a parameter of a query; "" if there is no such parameter, or any text will do."""
    field = _fields(shape).get(name)
    if field is None:
        return ""
    inner, examples = _plain_type(field.type), [one for meta in _metas(field.type) for one in meta.examples or ()]
    if inner is not str:
        return _remedy_for(inner) + (_range_of(field.type) if inner in (int, float) else "")
    return f"write for example {examples[0]}" if examples else ""


def _remedy_for(hint: Any) -> str:  # noqa: ANN401 - likewise
    for meta in _metas(hint):
        if meta.description:
            return f"use {meta.description}"
        if meta.examples:
            return f"write for example {meta.examples[0]}"
    inner = _plain_type(hint)
    if get_origin(inner) is Literal:
        return f"use {_list_options(get_args(inner))}"
    if isinstance(inner, type) and issubclass(inner, Enum):
        return f"use {_list_options([one.value for one in inner])}"
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return f"write an object with {', '.join(inner.__struct_encode_fields__)}"
    known = _REMEDIES.get(inner, "see the documentation of this field") if isinstance(inner, type) else "write a list"
    return f"{known}{_range_of(hint)}" if inner in (int, float) else known


def _range_of(hint: Any) -> str:  # noqa: ANN401 - likewise
    """Return the range of a number in words; "" if it has no bounds."""
    metas = _metas(hint)
    least = next((one.ge for one in metas if one.ge is not None), None)
    most = next((one.le for one in metas if one.le is not None), None)
    if least is not None and most is not None:
        return f" from {least} to {most}"
    return f", at least {least}" if least is not None else f", at most {most}" if most is not None else ""


def _metas(hint: Any) -> list[msgspec.Meta]:  # noqa: ANN401 - likewise
    if get_origin(hint) is Annotated:
        return [one for one in get_args(hint)[1:] if isinstance(one, msgspec.Meta)]
    return [meta for one in get_args(hint) for meta in _metas(one)] if get_origin(hint) in (Union, UnionType) else []


def _suggest_name(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1) if len(name) <= _MAX_NAME_LENGTH else ()
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"


def _list_options(options: Any) -> str:  # noqa: ANN401 - literals and enum values
    return "one of " + ", ".join(str(one) for one in options)
