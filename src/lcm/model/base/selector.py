"""Which objects a list wants: `lab_track=ccna,tier!=test` on labels, `status.phase=READY` on fields.

Called by `control` for every list and watch, by `api` and `cli` to read what a person wrote.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from msgspec import inspect

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.registry import Resource

_LONGEST: Final = 1024
_TERM: Final = re.compile(r"\s*(?P<name>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^,()]*?)\s*")
_SET: Final = re.compile(r"\s*(?P<name>[^\s=!,()]+)\s+(?P<op>in|notin)\s+\((?P<value>[^()]*)\)\s*")
_EXISTS: Final = re.compile(r"\s*(?P<op>!?)\s*(?P<name>[^\s=!,()]+)\s*")
_CONTAINERS: Final = (inspect.StructType, inspect.DictType, inspect.VarTupleType)
_COMMA: Final = re.compile(r",(?![^()]*\))")


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: the value must (not) be among `values`; without values, it must (not) be there at all."""

    name: str
    values: tuple[str, ...]
    wanted: bool = True

    def holds(self, value: str | None) -> bool:
        """Tell whether a value satisfies it; None means not there."""
        there = value in self.values if self.values else value is not None
        return there is self.wanted


@dataclass(frozen=True, slots=True)
class Where:
    """All conditions of a list; each must hold."""

    labels: tuple[Term, ...] = ()
    fields: tuple[Term, ...] = ()

    @property
    def exact_labels(self) -> Mapping[str, str]:
        """What the store can filter by itself."""
        return {term.name: term.values[0] for term in self.labels if term.wanted and len(term.values) == 1}


EVERYTHING: Final = Where()


def parse(kind: type[Resource], labels: str = "", fields: str = "") -> Where:
    """Read both selectors; Invalid names the term that cannot be read, or a field that the kind does not have."""
    where = Where(_terms("label_selector", labels), _terms("field_selector", fields))
    for term in where.fields:
        if not _exists(kind, term.name):
            remedy = "use a path such as status.phase, spec.lab_track or metadata.name"
            raise Invalid(Fault("field_selector", f"{kind.__name__} has no field {term.name}", remedy))
    return where


def write(terms: tuple[Term, ...]) -> str:
    """Write terms as `parse` reads them."""
    return ",".join(map(_written, terms))


def selects(where: Where, resource: Resource) -> bool:
    """Tell whether an object satisfies every condition."""
    labels = resource.metadata.labels
    return all(term.holds(labels.get(term.name)) for term in where.labels) and all(
        term.holds(_field(resource, term.name)) for term in where.fields
    )


def _terms(path: str, text: str) -> tuple[Term, ...]:
    if len(text) > _LONGEST:
        raise Invalid(Fault(path, f"{len(text)} characters long", f"use at most {_LONGEST}"))
    return tuple(_term(path, part) for part in _COMMA.split(text)) if text.strip() else ()


def _term(path: str, text: str) -> Term:
    if found := _SET.fullmatch(text):
        values = tuple(value.strip() for value in found["value"].split(","))
        return Term(found["name"], values, wanted=found["op"] == "in")
    if found := _TERM.fullmatch(text):
        return Term(found["name"], (found["value"],), wanted=found["op"] != "!=")
    if found := _EXISTS.fullmatch(text):
        return Term(found["name"], (), wanted=not found["op"])
    raise Invalid(
        Fault(path, f"{text.strip()[:80]!r} is no condition", "write name=value, name!=value or name in (a,b)")
    )


def _written(term: Term) -> str:
    match term.values:
        case ():
            return term.name if term.wanted else f"!{term.name}"
        case (value,):
            return f"{term.name}{'=' if term.wanted else '!='}{value}"
        case values:
            return f"{term.name} {'in' if term.wanted else 'notin'} ({','.join(values)})"


def _exists(kind: type[Resource], path: str) -> bool:
    info: object = inspect.type_info(kind)
    for name in path.split("."):
        structs = [one for one in _parts(info) if isinstance(one, inspect.StructType)]
        found = [field.type for one in structs for field in one.fields if field.encode_name == name]
        if not found:
            return False
        info = found[0]
    return not any(isinstance(part, _CONTAINERS) for part in _parts(info))


def _parts(info: object) -> list[object]:
    """Strip a type of its annotations and give the members of a union."""
    if isinstance(info, inspect.Metadata):
        return _parts(info.type)
    return [part for one in info.types for part in _parts(one)] if isinstance(info, inspect.UnionType) else [info]


def _field(resource: Resource, path: str) -> str | None:
    get: Callable[[Resource], object] = attrgetter(path)
    try:
        value = get(resource)
    except AttributeError:
        return None
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
