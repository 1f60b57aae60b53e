"""Selectors of lists: `lab_track=ccna,tier!=test` on labels, `status.phase=READY` on fields.

`control` applies them to every list and watch; `api` and `cli` use this module to parse what a person wrote.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Final

from msgspec import inspect

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.registry import Resource

_MAX_LENGTH: Final = 1024
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:@-]+")
"""Values that JSON writes as they are."""
_RESERVED: Final = frozenset("=!,()")
_CONTAINERS: Final = (inspect.StructType, inspect.DictType, inspect.VarTupleType)


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


def find_needed_texts(kind: type[Resource], where: ObjectSelector) -> Sequence[Sequence[bytes]]:
    """Return groups of texts: the JSON of an object that is selected contains one of each group.

    It saves decoding most objects. Terms of which that cannot be said, because an older document may lack the field or
    write the value in another way, have no group.
    """
    terms = (term for term in where.fields if term.wanted and term.values and all(map(_PLAIN.fullmatch, term.values)))
    return [
        [f'"{value}"'.encode() for value in term.values]
        for term in terms
        if _is_text(kind, term.name) and not _default_texts(kind, term.name) & set(term.values)
    ]


def _parse_terms(path: str, text: str) -> tuple[SelectorTerm, ...]:
    if len(text) > _MAX_LENGTH:
        raise Invalid(Fault(path, f"{len(text)} characters long", f"use at most {_MAX_LENGTH}"))
    return tuple(_parse_term(path, part.strip()) for part in _split_terms(text)) if text.strip() else ()


def _split_terms(text: str) -> Iterator[str]:
    """Split at the commas outside of parentheses. Every character is looked at once, whatever the text is."""
    begin, depth = 0, 0
    for place, sign in enumerate(text):
        if sign == "," and not depth:
            yield text[begin:place]
            begin = place + 1
        depth += (sign == "(") - (sign == ")")
    yield text[begin:]


def _parse_term(path: str, text: str) -> SelectorTerm:
    term = _parse_set(text) if text.endswith(")") else _parse_comparison(text) if "=" in text else _parse_exists(text)
    if not _is_name(term.name) or any(_RESERVED & set(value) - {"!"} for value in term.values):
        raise Invalid(
            Fault(
                path,
                f"{shorten_text(text, 80)!r} is no condition",
                "write name=value, name!=value, name, !name or name in (a,b)",
            )
        )
    return term


def _parse_set(text: str) -> SelectorTerm:
    """Read `name in (a,b)` or `name notin (a,b)`; anything else gets a name that cannot be one."""
    head, _, inner = text[:-1].partition("(")
    match head.split():
        case [name, ("in" | "notin") as verb]:
            return SelectorTerm(name, tuple(value.strip() for value in inner.split(",")), wanted=verb == "in")
    return SelectorTerm("", ())


def _parse_comparison(text: str) -> SelectorTerm:
    name, _, value = text.partition("=")
    return SelectorTerm(
        name.removesuffix("!").strip(), (value.removeprefix("=").strip(),), wanted=not name.endswith("!")
    )


def _parse_exists(text: str) -> SelectorTerm:
    return SelectorTerm(text.removeprefix("!").strip(), (), wanted=not text.startswith("!"))


def _is_name(text: str) -> bool:
    return text.split() == [text] and not _RESERVED & set(text)


def _format_term(term: SelectorTerm) -> str:
    match term.values:
        case ():
            return term.name if term.wanted else f"!{term.name}"
        case (value,):
            return f"{term.name}{'=' if term.wanted else '!='}{value}"
        case values:
            return f"{term.name} {'in' if term.wanted else 'notin'} ({','.join(values)})"


@cache
def _type_info(kind: type[Resource]) -> object:
    """Return what a kind consists of; it takes milliseconds to find out."""
    return inspect.type_info(kind)


def _has_field(kind: type[Resource], path: str) -> bool:
    fields = _fields_on(kind, path)
    return bool(fields) and not any(isinstance(part, _CONTAINERS) for part in _type_members(fields[-1].type))


def _is_text(kind: type[Resource], path: str) -> bool:
    members = _type_members(_fields_on(kind, path)[-1].type)
    return all(isinstance(one, inspect.StrType | inspect.EnumType | inspect.NoneType) for one in members)


@cache
def _default_texts(kind: type[Resource], path: str) -> frozenset[str]:
    """Return the values that a field may have though the document lacks it, or something around it."""
    names, found = path.split("."), set[str]()
    for place, field in enumerate(_fields_on(kind, path), start=1):
        makes = field.default_factory if callable(field.default_factory) else lambda default=field.default: default
        value: object = makes()
        for name in names[place:]:
            value = getattr(value, name, None)
        found.add(str(value))
    return frozenset(found)


@cache
def _fields_on(kind: type[Resource], path: str) -> Sequence[inspect.Field]:
    """Return the fields that a path goes through; none if the kind does not have it."""
    info, found = _type_info(kind), list[inspect.Field]()
    for name in path.split("."):
        structs = [one for one in _type_members(info) if isinstance(one, inspect.StructType)]
        fields = [field for one in structs for field in one.fields if field.encode_name == name]
        if not fields:
            return ()
        found.append(fields[0])
        info = fields[0].type
    return found


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
