"""The text of a lab file as a tree with positions, and a reader of typed fields that collects all faults.

What no lab file needs (aliases, tags, several documents) is refused, and whatever passes a limit. YAML 1.1 takes `on`,
`5041` and `52:54:00:00:00:01` for something else than text, and so does CML: a field that must be text is refused when
YAML would not read it as text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

import msgspec

from lcm.model.base.errors import Fault, Invalid, TooLarge
from lcm.model.base.yaml_tree import (
    LINE_BREAK,
    SYNTAX_WORDING,
    FlawKind,
    YamlEvent,
    YamlFlaw,
    YamlLimits,
    YamlList,
    YamlMapping,
    YamlNode,
    YamlScalar,
    count_breaks,
    decode_text,
    parse_yaml,
    quote_text,
)

MAX_BYTES: Final = 8 * 1024 * 1024
LIMITS: Final = YamlLimits(events=100_000, depth=24, members=10_000, scalar_length=1024 * 1024)
_REFUSALS: Final[Mapping[FlawKind, tuple[str, str]]] = {
    "syntax": SYNTAX_WORDING,
    "events": ("more than {flaw.text} things in one file", "split the lab"),
    "depth": ("nested more than {flaw.text} deep", "a lab needs fewer than ten levels"),
    "members": ("more than {flaw.text} entries in one place", "split the lab"),
    "scalar length": ("a text of more than {flaw.text} characters", "shorten it"),
    "anchor": ("the anchor {quoted}", "remove it; aliases are not read"),
    "alias": ("the alias {quoted}", "write the value out; aliases are not read"),
    "tag": ("the tag {quoted}", "remove it; tags are not read"),
    "merge key": ("a merge key `<<`", "write the entries out"),
    "key": ("a key that is a list or a mapping", "use text as a key"),
    "duplicate": ("the key {quoted} stands here twice", "remove one of them"),
    "document": ("a second document begins here", "keep one lab in one file"),
}


class LabText(msgspec.Struct, frozen=True):
    """One file: its text without the byte order mark, its tree, and its events in file order (`happenings`)."""

    text: str
    has_bom: bool
    root: YamlNode
    happenings: list[YamlEvent]

    def span(self, scalar: YamlScalar) -> tuple[int, int]:
        """Return the part of a scalar that may be changed.

        The first line of a block scalar holds `|` or `>`, and perhaps a comment, and is left out.
        """
        if self.text[scalar.start] in "|>" and (found := LINE_BREAK.search(self.text, scalar.start, scalar.end)):
            return found.end(), scalar.end
        return scalar.start, scalar.end

    def line_of(self, pattern: re.Pattern[str], scalar: YamlScalar) -> int:
        """Return the line within a scalar on which a pattern occurs.

        Returns the scalar's own line if the scalar is written in another way, for example with escapes.
        """
        found = pattern.search(self.text, *self.span(scalar))
        return scalar.line + count_breaks(self.text, scalar.start, found.start()) if found else scalar.line


def read_lab_text(data: bytes) -> LabText:
    """Parse one document. Raises TooLarge, or Invalid with the line of the first thing that cannot be read."""
    if len(data) > MAX_BYTES:
        raise TooLarge(f"the topology has {len(data)} bytes; at most {MAX_BYTES} are read")
    text, has_bom = decode_text(data)
    stream = parse_yaml(text, LIMITS, _refuse)
    if not stream.roots:
        raise Invalid(Fault("line 1", "the file is empty", "begin with `lab:`, `nodes:` and `links:`"))
    return LabText(text=text, has_bom=has_bom, root=stream.roots[0], happenings=stream.happenings)


def _refuse(flaw: YamlFlaw) -> NoReturn:
    raise Invalid(Fault(flaw.place, *flaw.explain(_REFUSALS)))


_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,8})")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{0,17})?")


class FieldReader:
    """Reads typed fields and collects every fault with its line, instead of stopping at the first."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, tree: YamlNode, path: str, problem: str, remedy: str) -> None:
        """Add one fault."""
        self.faults.append(Fault(f"line {tree.line}: {path}", problem, remedy))

    def table(self, tree: YamlNode, path: str) -> YamlMapping | None:
        """Return a mapping; None, with a fault, if the node is something else."""
        if isinstance(tree, YamlMapping):
            return tree
        self.fault(tree, path, "not a mapping", "write `key: value` lines, indented")
        return None

    def tables(
        self, within: YamlMapping, key: str, path: str = "", *, required: bool = False
    ) -> Iterator[tuple[str, YamlMapping]]:
        """Yield the mappings of a list, each with its path; a missing or null list is empty."""
        for where, tree in self.members(within, key, path, required=required):
            if (found := self.table(tree, where)) is not None:
                yield where, found

    def members(
        self, within: YamlMapping, key: str, path: str = "", *, required: bool = False
    ) -> Iterator[tuple[str, YamlNode]]:
        """Yield the members of a list, each with its path; a missing or null list is empty."""
        where = f"{path}.{key}" if path else key
        tree = within.entries.get(key)
        if isinstance(tree, YamlList):
            for number, member in enumerate(tree.members):
                yield f"{where}[{number}]", member
        elif required and tree is None:
            self.fault(within, where, "missing", f"add `{key}: []` if there are none")
        elif tree is not None and not (_is_null(tree) and not required):
            self.fault(tree, where, "not a list", "write a list, or []")

    def text(self, within: YamlMapping, key: str, path: str, *, most: int, required: bool = False) -> str:
        """Return a text; empty if it is missing or null."""
        where = f"{path}.{key}"
        tree = within.entries.get(key)
        if tree is None or _is_null(tree):
            if required:
                self.fault(tree or within, where, "missing", f"add `{key}: …`")
            return ""
        scalar = self.plain_text(tree, where, most=most)
        if scalar is None:
            return ""
        if required and not scalar.value:
            self.fault(tree, where, "empty", "write at least one character")
        return scalar.value

    def plain_text(self, tree: YamlNode, path: str, *, most: int) -> YamlScalar | None:
        """Return a scalar that must be text; None, with a fault, if it is not."""
        if not isinstance(tree, YamlScalar):
            self.fault(tree, path, "not text", "write one line of text")
        elif tree.kind != "str":
            self.fault(tree, path, f"{quote_text(tree.value)} is {tree.kind} to YAML, not text", "put it in quotes")
        elif len(tree.value) > most:
            self.fault(tree, path, f"{len(tree.value)} characters; at most {most} are allowed", "shorten it")
        else:
            return tree
        return None

    def whole(self, within: YamlMapping, key: str, path: str, *, least: int, most: int) -> int | None:
        """Return a whole number; null, missing and 0 mean that the value is inherited and give None."""
        tree = within.entries.get(key)
        if tree is None or _is_null(tree):
            return None
        if isinstance(tree, YamlScalar) and tree.plain and _WHOLE.fullmatch(tree.value):
            number = int(tree.value)
            if number == 0 or least <= number <= most:
                return number or None
        self.fault(tree, f"{path}.{key}", f"not a whole number from {least} to {most}", "correct it, or write null")
        return None

    def number(self, within: YamlMapping, key: str, path: str) -> float:
        """Return the number of a field; 0 for a fault."""
        tree = within.entries.get(key)
        if tree is None:
            self.fault(within, f"{path}.{key}", "missing", f"add `{key}: 0`")
        elif not (isinstance(tree, YamlScalar) and tree.plain and _NUMBER.fullmatch(tree.value)):
            self.fault(tree, f"{path}.{key}", "not a number", "write a whole number")
        else:
            return float(tree.value)
        return 0.0


def _is_null(tree: YamlNode) -> bool:
    return isinstance(tree, YamlScalar) and tree.kind == "null"
