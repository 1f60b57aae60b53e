"""YAML as a tree of texts, each with its line; the reader decides what a text means.

Called by `sim.plan.reading_yaml`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeVar

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.yaml_tree import FlawKind, YamlFlaw, YamlLimits, YamlList, YamlMapping, YamlNode, parse_yaml

T = TypeVar("T")
_MOST_NODES: Final = 500_000
_LIMITS: Final = YamlLimits(events=3 * _MOST_NODES, depth=8)
"""A node is at most a key, a start and an end."""
_TOO_MUCH: Final = ("too much", "plan a shorter time")
_SYNTAX_REMEDY: Final = "check colons, quotes and spaces at the line's beginning"
_WORDING: Final[Mapping[FlawKind, tuple[str, str]]] = {
    "syntax": ("no YAML: {flaw.text}", _SYNTAX_REMEDY),
    "document": ("no YAML: but found another document", _SYNTAX_REMEDY),
    "character": ("a character that YAML does not know: {flaw.text}", "remove it"),
    "events": _TOO_MUCH,
    "depth": ("nested too deep", "write it as the examples are"),
    "alias": ("an alias", "write the value out"),
    "duplicate": ("{flaw.text} is there twice", "remove one of them"),
}
"""What is refused: anchors and tags mean nothing, and unknown keys are told where they stand."""


@dataclass(frozen=True, slots=True)
class LocatedValue:
    """A text, a list or a mapping, and where it stands."""

    value: "str | Sequence[LocatedValue] | Mapping[str, LocatedValue]"
    where: str


def parse_tree(text: str, *, lines: bool) -> LocatedValue:
    """Parse one document. Raises Invalid when it is not YAML."""
    reader = _TreeReader(lines=lines)
    roots = parse_yaml(text, _LIMITS, reader.refuse).roots
    if not roots:
        raise Invalid(Fault("line 1", "the file is empty", "begin with `definitions:`, `fleet:` and `sessions:`"))
    return reader.convert(roots[0], "")


def entries(spot: LocatedValue | None, what: str) -> Mapping[str, LocatedValue]:
    """Return the entries of a mapping; none for None."""
    if spot is None:
        return {}
    if not isinstance(spot.value, Mapping):
        raise Invalid(Fault(spot.where, f"{what} is a list of keys and values", "write `key: value`, one on a line"))
    return spot.value


def items(spot: LocatedValue | None, most: int) -> Sequence[LocatedValue]:
    """Return the items of a list; none for None."""
    if spot is None:
        return ()
    if isinstance(spot.value, str | Mapping):
        raise Invalid(Fault(spot.where, "this is no list", "begin each item with `- `"))
    if len(spot.value) > most:
        raise Invalid(Fault(spot.where, f"{len(spot.value)} items", f"use {most} at most"))
    return spot.value


def check_keys(said: Mapping[str, LocatedValue], names: Sequence[str]) -> None:
    """Raise Invalid for keys that are not known."""
    faults = []
    for key, spot in said.items():
        if key not in names:
            close = get_close_matches(key, names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"use {', '.join(names)}"
            faults.append(Fault(spot.where, f"{key!r} means nothing here", remedy))
    if faults:
        raise Invalid(*faults)


def text_of(spot: LocatedValue) -> str:
    """Return a text that is not empty."""
    if not isinstance(spot.value, str) or not spot.value.strip():
        raise Invalid(Fault(spot.where, "a word is missing here", "write one value behind the colon"))
    return spot.value.strip()


def number_of(spot: LocatedValue, least: float, most: float, *, whole: bool = False) -> float:
    """Return a number within bounds."""
    text = text_of(spot)
    try:
        found = int(text) if whole else float(text)
    except ValueError:
        found = None
    if found is None or not least <= found <= most:
        kind = "a whole number" if whole else "a number"
        raise Invalid(Fault(spot.where, f"{text!r}", f"use {kind} from {least:g} to {most:g}"))
    return found


def read_each(faults: list[Fault], read: Callable[[LocatedValue], T], spots: Iterable[LocatedValue]) -> list[T]:
    """Read each value, and go on after one that is wrong, so that a user learns of all faults at once."""
    found: list[T] = []
    for spot in spots:
        try:
            found.append(read(spot))
        except Invalid as error:
            faults += error.faults
    return found


class _TreeReader:
    """Refuses what no timetable needs, and gives each value its place."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._count = 0

    def refuse(self, flaw: YamlFlaw) -> None:
        if flaw.kind not in _WORDING:
            return
        where = f"line {flaw.line}"
        if flaw.kind == "character":
            where = "file"
        elif flaw.kind == "events":
            where = self._where(flaw.line, flaw.path)
        elif flaw.kind == "duplicate":
            where = self._where(flaw.line, f"{flaw.path}.{flaw.text}".removeprefix("."))
        raise Invalid(Fault(where, *flaw.explain(_WORDING)))

    def convert(self, node: YamlNode, path: str) -> LocatedValue:
        where = self._where(node.line, path)
        self._count += 1
        if self._count > _MOST_NODES:
            raise Invalid(Fault(where, *_TOO_MUCH))
        match node:
            case YamlMapping(inside):
                found = {key: self.convert(one, f"{path}.{key}" if path else key) for key, one in inside.items()}
                return LocatedValue(found, where)
            case YamlList(members):
                return LocatedValue([self.convert(one, f"{path}[{place}]") for place, one in enumerate(members)], where)
        return LocatedValue(node.value, where)

    def _where(self, line: int, path: str) -> str:
        if not self._lines:
            return path or "timetable"
        return f"line {line}: {path}" if path else f"line {line}"
