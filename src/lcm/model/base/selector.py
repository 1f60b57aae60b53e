"""Selectors of lists: `lab_track=ccna,tier!=test` on labels, `status.phase=READY` on fields.

`control` applies them to every list and watch; `api` and `cli` use this module to parse what a person wrote.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from msgspec import inspect

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.registry import Resource

_MAX_LENGTH: Final = 1024
_TERM: Final = re.compile(r"\s*(?P<name>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^,()=]*?)\s*")
_SET: Final = re.compile(r"\s*(?P<name>[^\s=!,()]+)\s+(?P<op>in|notin)\s+\((?P<value>[^()]*)\)\s*")
_EXISTS: Final = re.compile(r"\s*(?P<op>!?)\s*(?P<name>[^\s=!,()]+)\s*")
_CONTAINERS: Final = (inspect.StructType, inspect.DictType, inspect.VarTupleType)
_COMMA: Final = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True, slots=True)
class SelectorTerm:
    """One condition on a value.

    The value must (not) be among `values`; without values, it must (not) be present at all.
    """

    name: str
    values: tuple[str, ...]
    wanted: bool = True

    def holds(self, value: str | None) -> bool:
        """Return True if a value satisfies the term; None means that the value is absent."""
        there = value in self.values if self.values else value is not None
        return there is self.wanted


@dataclass(frozen=True, slots=True)
class ObjectSelector:
    """All terms of a list request; every one must hold."""

    labels: tuple[SelectorTerm, ...] = ()
    fields: tuple[SelectorTerm, ...] = ()

    @property
    def exact_labels(self) -> Mapping[str, str]:
        """The label pairs by which the store itself can filter."""
        return {term.name: term.values[0] for term in self.labels if term.wanted and len(term.values) == 1}


EVERYTHING: Final = ObjectSelector()


def parse_selector(kind: type[Resource], labels: str = "", fields: str = "") -> ObjectSelector:
    """Parse both selectors.

    Raises Invalid, naming the term that cannot be read or the field that the kind does not have.
    """
    where = ObjectSelector(_parse_terms("label_selector", labels), _parse_terms("field_selector", fields))
    for term in where.fields:
        if not _has_field(kind, term.name):
            remedy = "use a path such as status.phase, spec.lab_track or metadata.name"
            raise Invalid(Fault("field_selector", f"{kind.__name__} has no field {term.name}", remedy))
    return where


def format_terms(terms: tuple[SelectorTerm, ...]) -> str:
    """Return terms in the notation that `parse_selector` reads."""
    return ",".join(map(_format_term, terms))


def selects(where: ObjectSelector, resource: Resource) -> bool:
    """Return True if an object satisfies every term."""
    labels = resource.metadata.labels
    return all(term.holds(labels.get(term.name)) for term in where.labels) and all(
        term.holds(_read_field(resource, term.name)) for term in where.fields
    )


def _parse_terms(path: str, text: str) -> tuple[SelectorTerm, ...]:
    if len(text) > _MAX_LENGTH:
        raise Invalid(Fault(path, f"{len(text)} characters long", f"use at most {_MAX_LENGTH}"))
    return tuple(_parse_term(path, part) for part in _COMMA.split(text)) if text.strip() else ()


def _parse_term(path: str, text: str) -> SelectorTerm:
    if found := _SET.fullmatch(text):
        values = tuple(value.strip() for value in found["value"].split(","))
        return SelectorTerm(found["name"], values, wanted=found["op"] == "in")
    if found := _TERM.fullmatch(text):
        return SelectorTerm(found["name"], (found["value"],), wanted=found["op"] != "!=")
    if found := _EXISTS.fullmatch(text):
        return SelectorTerm(found["name"], (), wanted=not found["op"])
    raise Invalid(
        Fault(
            path,
            f"{shorten_text(text.strip(), 80)!r} is no condition",
            "write name=value, name!=value or name in (a,b)",
        )
    )


def _format_term(term: SelectorTerm) -> str:
    match term.values:
        case ():
            return term.name if term.wanted else f"!{term.name}"
        case (value,):
            return f"{term.name}{'=' if term.wanted else '!='}{value}"
        case values:
            return f"{term.name} {'in' if term.wanted else 'notin'} ({','.join(values)})"


def _has_field(kind: type[Resource], path: str) -> bool:
    info: object = inspect.type_info(kind)
    for name in path.split("."):
        structs = [one for one in _type_members(info) if isinstance(one, inspect.StructType)]
        found = [field.type for one in structs for field in one.fields if field.encode_name == name]
        if not found:
            return False
        info = found[0]
    return not any(isinstance(part, _CONTAINERS) for part in _type_members(info))


def _type_members(info: object) -> list[object]:
    """Return a type without its annotations, or the members of a union."""
    if isinstance(info, inspect.Metadata):
        return _type_members(info.type)
    return (
        [part for one in info.types for part in _type_members(one)] if isinstance(info, inspect.UnionType) else [info]
    )


def _read_field(resource: Resource, path: str) -> str | None:
    get: Callable[[Resource], object] = attrgetter(path)
    try:
        value = get(resource)
    except AttributeError:
        return None
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
