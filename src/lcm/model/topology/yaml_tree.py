"""YAML to a tree that knows its positions, with hostile text refused while it is read. Called by `topology`.

libyaml's events are taken one by one and every limit holds before the next is asked for, so nothing is ever expanded
or walked that was not paid for by bytes of the file. What a lab file never needs (aliases, tags, several documents) is
refused. Positions are characters: libyaml counts those, not bytes, and does not count a byte order mark.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import msgspec
import yaml

from lcm.model.base.errors import Fault, Invalid, TooLarge

MOST_BYTES: Final = 8 * 1024 * 1024
MOST_EVENTS: Final = 100_000
MOST_MEMBERS: Final = 10_000
MOST_DEPTH: Final = 24
LONGEST_SCALAR: Final = 1024 * 1024
_LONGEST_SHOWN: Final = 80

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_BOM: Final = "\ufeff"
_RESOLVER: Final = yaml.resolver.Resolver()
_TAGS: Final = "tag:yaml.org,2002:"


class Scalar(msgspec.Struct, frozen=True, gc=False):
    """A piece of text in the file: `text[start:end]` is how it is written, `ordinal` its place among the events."""

    value: str
    plain: bool
    start: int
    end: int
    line: int
    ordinal: int

    @property
    def kind(self) -> str:
        """What YAML 1.1 takes it for: str, null, int, float, bool, timestamp, merge or value."""
        return kind_of(self.value) if self.plain else "str"


class Items(msgspec.Struct, frozen=True):
    """A list."""

    members: list["Tree"]
    line: int


class Table(msgspec.Struct, frozen=True):
    """A mapping; its keys are text and each stands there once."""

    entries: dict[str, "Tree"]
    line: int


Tree = Scalar | Items | Table
Happening = Scalar | str
"""A scalar, or what begins or ends at this place."""


class Document(msgspec.Struct, frozen=True):
    """One file: its text without the byte order mark, its tree, and everything in it in the order of the file."""

    text: str
    has_bom: bool
    root: Tree
    happenings: list[Happening]

    def with_text(self, text: str) -> bytes:
        """Encode a changed text as this file was encoded."""
        return ((_BOM if self.has_bom else "") + text).encode()

    def span(self, scalar: Scalar) -> tuple[int, int]:
        """Say where a scalar may be changed: a block's first line holds `|` or `>` and perhaps a comment."""
        if self.text[scalar.start] in "|>" and (found := _BREAK.search(self.text, scalar.start, scalar.end)):
            return found.end(), scalar.end
        return scalar.start, scalar.end

    def line_of(self, pattern: re.Pattern[str], scalar: Scalar) -> int:
        """Say on which line of a scalar a pattern stands; the scalar's own if it is written in another way."""
        found = pattern.search(self.text, *self.span(scalar))
        return scalar.line + _breaks(self.text, scalar.start, found.start()) if found else scalar.line


def read(data: bytes) -> Document:
    """Read one document. Raises TooLarge, or Invalid with the line of the first thing that cannot be read."""
    if len(data) > MOST_BYTES:
        raise TooLarge(f"the topology has {len(data)} bytes; at most {MOST_BYTES} are read")
    text, has_bom = readable(data)
    growing = _Growing(text)
    growing.grow()
    if growing.root is None:
        _refuse(1, "the file is empty", "begin with `lab:`, `nodes:` and `links:`")
    return Document(text=text, has_bom=has_bom, root=growing.root, happenings=growing.happenings)


def readable(data: bytes) -> tuple[str, bool]:
    """Decode a file, and say whether it began with a byte order mark. Invalid names the line of what cannot be read."""
    text = _decoded(data)
    has_bom = text.startswith(_BOM)
    text = text.removeprefix(_BOM)
    if found := _UNPRINTABLE.search(text):
        line = _line(text, found.start())
        _refuse(line, f"the character U+{ord(found[0]):04X} cannot stand in YAML", "remove it")
    return text, has_bom


def kind_of(value: str) -> str:
    """Say what YAML 1.1 takes a text without quotes for."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
    return tag.removeprefix(_TAGS)


def shown(value: str) -> str:
    """Quote a text of the file in a message, cut off when it is long."""
    return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…")


def syntax(error: yaml.MarkedYAMLError) -> Fault:
    """Say what libyaml could not read, and on which line."""
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.context, error.problem) if part)
    return Fault(f"line {mark.line + 1}" if mark else "document", problem, "correct the YAML; quotes may be missing")


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = _line(data[: error.start].decode(), error.start)
        fault = Fault(f"line {line}", f"the byte 0x{data[error.start]:02X} is not UTF-8", "save the file as UTF-8")
        raise Invalid(fault) from error


def _line(text: str, position: int) -> int:
    return 1 + _breaks(text, 0, position)


def _breaks(text: str, begin: int, end: int) -> int:
    return sum(1 for _ in _BREAK.finditer(text, begin, end))


def _refuse(line: int, problem: str, remedy: str) -> NoReturn:
    raise Invalid(Fault(f"line {line}", problem, remedy))


class _Growing:
    """A tree while libyaml's events arrive."""

    def __init__(self, text: str) -> None:
        self.happenings: list[Happening] = []
        self.root: Tree | None = None
        self._text = text
        self._open: list[Items | Table] = []
        self._keys: list[Scalar | None] = []
        self._steps: list[str] = []
        self._documents = 0
        self._verbs = {
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._begin,
            yaml.MappingStartEvent: self._begin,
            yaml.SequenceEndEvent: self._end,
            yaml.MappingEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }

    def grow(self) -> None:
        verbs, happenings = self._verbs, self.happenings
        loader = yaml.CLoader(self._text)
        try:
            while (event := loader.get_event()) is not None:
                verb = verbs.get(type(event))
                if verb is not None:
                    verb(event)
                    if len(happenings) > MOST_EVENTS:
                        self._refuse(event, f"more than {MOST_EVENTS} things in one file", "split the lab")
        except yaml.MarkedYAMLError as error:
            raise Invalid(syntax(error)) from error
        finally:
            loader.dispose()

    def _scalar(self, event: Any) -> None:  # noqa: ANN401 - libyaml's events have no types
        begin, finish = event.start_mark, event.end_mark
        if event.anchor is not None or event.tag is not None:
            self._decorated(event)
        if finish.index - begin.index > LONGEST_SCALAR:
            self._refuse(event, f"a text of more than {LONGEST_SCALAR} characters", "shorten it")
        happenings = self.happenings
        scalar = Scalar(event.value, event.implicit[0], begin.index, finish.index, begin.line + 1, len(happenings))
        happenings.append(scalar)
        self._place(scalar)

    def _begin(self, event: Any) -> None:  # noqa: ANN401 - likewise
        if event.anchor is not None or event.tag is not None:
            self._decorated(event)
        if len(self._open) >= MOST_DEPTH:
            self._refuse(event, f"nested more than {MOST_DEPTH} deep", "a lab needs fewer than ten levels")
        line = event.start_mark.line + 1
        tree = Items([], line) if isinstance(event, yaml.SequenceStartEvent) else Table({}, line)
        self._steps.append(self._step())
        self._place(tree)
        self.happenings.append(type(tree).__name__)
        self._open.append(tree)
        self._keys.append(None)

    def _end(self, _event: object) -> None:
        self.happenings.append("end")
        self._open.pop()
        self._keys.pop()
        self._steps.pop()

    def _place(self, tree: Tree) -> None:
        """Put a new piece where the events have come to."""
        if not self._open:
            self.root = tree
            return
        top = self._open[-1]
        if len(top.members if isinstance(top, Items) else top.entries) >= MOST_MEMBERS:
            self._refuse_at(tree.line, f"more than {MOST_MEMBERS} entries in one place", "split the lab")
        if isinstance(top, Items):
            top.members.append(tree)
        else:
            self._place_in_table(top, tree)

    def _place_in_table(self, table: Table, tree: Tree) -> None:
        key = self._keys[-1]
        if key is not None:
            table.entries[key.value] = tree
            self._keys[-1] = None
            return
        if not isinstance(tree, Scalar):
            self._refuse_at(tree.line, "a key that is a list or a mapping", "use text as a key")
        if tree.plain and tree.value == "<<":
            self._refuse_at(tree.line, "a merge key `<<`", "write the entries out")
        if tree.value in table.entries:
            self._refuse_at(tree.line, f"the key {shown(tree.value)} stands here twice", "remove one of them")
        self._keys[-1] = tree

    def _document(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._documents += 1
        if self._documents > 1:
            self._refuse(event, "a second document begins here", "keep one lab in one file")

    def _alias(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._refuse(event, f"the alias {shown(event.anchor)}", "write the value out; aliases are not read")

    def _decorated(self, event: Any) -> NoReturn:  # noqa: ANN401 - likewise
        if event.anchor is not None:
            self._refuse(event, f"the anchor {shown(event.anchor)}", "remove it; aliases are not read")
        self._refuse(event, f"the tag {shown(event.tag)}", "remove it; tags are not read")

    def _refuse(self, event: Any, problem: str, remedy: str) -> NoReturn:  # noqa: ANN401 - likewise
        self._refuse_at(event.start_mark.line + 1, problem, remedy)

    def _refuse_at(self, line: int, problem: str, remedy: str) -> NoReturn:
        path = self._path()
        raise Invalid(Fault(f"line {line}: {path}" if path else f"line {line}", problem, remedy))

    def _path(self) -> str:
        """Say where in the tree the events have come to."""
        return "".join((*self._steps, self._step())).removeprefix(".")

    def _step(self) -> str:
        """Say where in the innermost list or mapping they have come to."""
        if not self._open:
            return ""
        top, key = self._open[-1], self._keys[-1]
        if isinstance(top, Items):
            return f"[{len(top.members)}]"
        return f".{key.value[:_LONGEST_SHOWN]}" if key is not None else ""


_WHOLE: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,8})")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{0,17})?")


class Fields:
    """A reader of fields that collects faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def fault(self, tree: Tree, path: str, problem: str, remedy: str) -> None:
        """Note one thing wrong."""
        self.faults.append(Fault(f"line {tree.line}: {path}", problem, remedy))

    def table(self, tree: Tree, path: str) -> Table | None:
        """Read a mapping."""
        if isinstance(tree, Table):
            return tree
        self.fault(tree, path, "not a mapping", "write `key: value` lines, indented")
        return None

    def tables(self, within: Table, key: str, path: str = "", *, required: bool = False) -> Iterator[tuple[str, Table]]:
        """Read a list of mappings, each with its path; nothing and null are the empty list."""
        for where, tree in self.members(within, key, path, required=required):
            if (found := self.table(tree, where)) is not None:
                yield where, found

    def members(self, within: Table, key: str, path: str = "", *, required: bool = False) -> Iterator[tuple[str, Tree]]:
        """Read a list, each member with its path; nothing and null are the empty list."""
        where = f"{path}.{key}" if path else key
        tree = within.entries.get(key)
        if isinstance(tree, Items):
            for number, member in enumerate(tree.members):
                yield f"{where}[{number}]", member
        elif required and tree is None:
            self.fault(within, where, "missing", f"add `{key}: []` if there are none")
        elif tree is not None and not (_is_null(tree) and not required):
            self.fault(tree, where, "not a list", "write a list, or []")

    def text(self, within: Table, key: str, path: str, *, most: int, required: bool = False) -> str:
        """Read a text; what is missing or null is empty."""
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

    def plain_text(self, tree: Tree, path: str, *, most: int) -> Scalar | None:
        """Read a scalar that must be text."""
        if not isinstance(tree, Scalar):
            self.fault(tree, path, "not text", "write one line of text")
        elif tree.kind != "str":
            self.fault(tree, path, f"{shown(tree.value)} is {tree.kind} to YAML, not text", "put it in quotes")
        elif len(tree.value) > most:
            self.fault(tree, path, f"{len(tree.value)} characters; at most {most} are allowed", "shorten it")
        else:
            return tree
        return None

    def whole(self, within: Table, key: str, path: str, *, least: int, most: int) -> int | None:
        """Read a whole number; null, nothing and 0 mean that the value is inherited."""
        tree = within.entries.get(key)
        if tree is None or _is_null(tree):
            return None
        if isinstance(tree, Scalar) and tree.plain and _WHOLE.fullmatch(tree.value):
            number = int(tree.value)
            if number == 0 or least <= number <= most:
                return number or None
        self.fault(tree, f"{path}.{key}", f"not a whole number from {least} to {most}", "correct it, or write null")
        return None

    def number(self, within: Table, key: str, path: str) -> None:
        """Check that a number is there."""
        tree = within.entries.get(key)
        if tree is None:
            self.fault(within, f"{path}.{key}", "missing", f"add `{key}: 0`")
        elif not (isinstance(tree, Scalar) and tree.plain and _NUMBER.fullmatch(tree.value)):
            self.fault(tree, f"{path}.{key}", "not a number", "write a whole number")


def _is_null(tree: Tree) -> bool:
    return isinstance(tree, Scalar) and tree.kind == "null"
