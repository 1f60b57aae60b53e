"""YAML as a tree of texts, each with its line; the reader decides what a text means.

Called by `sim.plan.reading_yaml`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeVar

import yaml

from lcm.model.base.errors import Fault, Invalid

T = TypeVar("T")
_MOST_NODES: Final = 500_000
_DEEPEST: Final = 8


@dataclass(frozen=True, slots=True)
class LocatedValue:
    """A text, a list or a mapping, and where it stands."""

    value: "str | Sequence[LocatedValue] | Mapping[str, LocatedValue]"
    where: str


def parse_yaml(text: str, *, lines: bool) -> LocatedValue:
    """Parse one document. Raises Invalid when it is not YAML."""
    _check_structure(text)
    try:
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        raise Invalid(_syntax_fault(error)) from error
    if root is None:
        raise Invalid(Fault("line 1", "the file is empty", "begin with `definitions:`, `fleet:` and `sessions:`"))
    return _TreeReader(lines=lines).convert(root, "")


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
    """Converts YAML nodes, and counts them."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._count = 0

    def convert(self, node: yaml.Node, path: str) -> LocatedValue:
        where = self._where(node, path)
        self._count += 1
        if self._count > _MOST_NODES:
            raise Invalid(Fault(where, "too much", "plan a shorter time"))
        if isinstance(node, yaml.MappingNode):
            return LocatedValue(self._mapping(node, path), where)
        if isinstance(node, yaml.SequenceNode):
            inner = [self.convert(one, f"{path}[{place}]") for place, one in enumerate(node.value)]
            return LocatedValue(inner, where)
        return LocatedValue(str(node.value), where)

    def _mapping(self, node: yaml.MappingNode, path: str) -> Mapping[str, LocatedValue]:
        found: dict[str, LocatedValue] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            inner = f"{path}.{name}" if path else name
            if name in found:
                raise Invalid(Fault(self._where(key, inner), f"{name} is there twice", "remove one of them"))
            found[name] = self.convert(value, inner)
        return found

    def _where(self, node: yaml.Node, path: str) -> str:
        if not self._lines:
            return path or "timetable"
        line = f"line {node.start_mark.line + 1}"
        return f"{line}: {path}" if path else line


def _check_structure(text: str) -> None:
    """Refuse aliases, which can stand for billions of values, and deep nesting, before anything is walked."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.AliasEvent):
                raise Invalid(Fault(f"line {line}", "an alias", "write the value out"))
            if depth > _DEEPEST:
                raise Invalid(Fault(f"line {line}", "nested too deep", "write it as the examples are"))
    except yaml.MarkedYAMLError as error:
        raise Invalid(_syntax_fault(error)) from error
    except yaml.reader.ReaderError as error:
        raise Invalid(Fault("file", f"a character that YAML does not know: {error.reason}", "remove it")) from error


def _syntax_fault(error: yaml.MarkedYAMLError) -> Fault:
    line = error.problem_mark.line + 1 if error.problem_mark else 1
    return Fault(f"line {line}", f"no YAML: {error.problem}", "check colons, quotes and spaces at the line's beginning")
