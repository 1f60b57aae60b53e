"""YAML parsed to a tree with positions, and a reader of typed fields that collects all faults.

libyaml's events are taken one by one and every limit is checked before the next, so hostile text is refused while it
is read: no more work is done than the bytes of the file pay for. Aliases, tags and several documents, which no lab
file needs, are refused. Positions are characters: libyaml counts those, not bytes, and skips a byte order mark. YAML
1.1
takes `on`, `5041` and `52:54:00:00:00:01` for something else than text, and so does CML: a field that must be text is
refused when YAML would not read it as text.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import msgspec
import yaml

from lcm.model.base.errors import Fault, Invalid, TooLarge
from lcm.model.base.resource import shorten_text

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_EVENTS: Final = 100_000
MAX_MEMBERS: Final = 10_000
MAX_DEPTH: Final = 24
MAX_SCALAR_LENGTH: Final = 1024 * 1024
_MAX_QUOTED_LENGTH: Final = 80

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_BOM: Final = "\ufeff"
_RESOLVER: Final = yaml.resolver.Resolver()
_TAG_PREFIX: Final = "tag:yaml.org,2002:"


class YamlScalar(msgspec.Struct, frozen=True, gc=False):
    """A scalar of the file.

    `text[start:end]` is how it is written; `ordinal` is its position among the events.
    """

    value: str
    plain: bool
    start: int
    end: int
    line: int
    ordinal: int

    @property
    def kind(self) -> str:
        """The type that YAML 1.1 resolves it to: str, null, int, float, bool, timestamp, merge or value."""
        return kind_of(self.value) if self.plain else "str"


class YamlList(msgspec.Struct, frozen=True):
    """A list."""

    members: list["YamlNode"]
    line: int


class YamlMapping(msgspec.Struct, frozen=True):
    """A mapping whose keys are unique texts."""

    entries: dict[str, "YamlNode"]
    line: int


YamlNode = YamlScalar | YamlList | YamlMapping
YamlEvent = YamlScalar | str
"""A scalar, or the start or end of a list or mapping."""


class YamlDocument(msgspec.Struct, frozen=True):
    """One file: its text without the byte order mark, its tree, and its events in file order (`happenings`)."""

    text: str
    has_bom: bool
    root: YamlNode
    happenings: list[YamlEvent]

    def with_text(self, text: str) -> bytes:
        """Encode a changed text in the way this file was encoded."""
        return ((_BOM if self.has_bom else "") + text).encode()

    def span(self, scalar: YamlScalar) -> tuple[int, int]:
        """Return the part of a scalar that may be changed.

        The first line of a block scalar holds `|` or `>`, and perhaps a comment, and is left out.
        """
        if self.text[scalar.start] in "|>" and (found := _BREAK.search(self.text, scalar.start, scalar.end)):
            return found.end(), scalar.end
        return scalar.start, scalar.end

    def line_of(self, pattern: re.Pattern[str], scalar: YamlScalar) -> int:
        """Return the line within a scalar on which a pattern occurs.

        Returns the scalar's own line if the scalar is written in another way, for example with escapes.
        """
        found = pattern.search(self.text, *self.span(scalar))
        return scalar.line + _count_breaks(self.text, scalar.start, found.start()) if found else scalar.line


def read_yaml(data: bytes) -> YamlDocument:
    """Parse one document. Raises TooLarge, or Invalid with the line of the first thing that cannot be read."""
    if len(data) > MAX_BYTES:
        raise TooLarge(f"the topology has {len(data)} bytes; at most {MAX_BYTES} are read")
    text, has_bom = decode_text(data)
    growing = _TreeBuilder(text)
    growing.build()
    if growing.root is None:
        _refuse(1, "the file is empty", "begin with `lab:`, `nodes:` and `links:`")
    return YamlDocument(text=text, has_bom=has_bom, root=growing.root, happenings=growing.happenings)


def decode_text(data: bytes) -> tuple[str, bool]:
    """Decode a file; return its text and whether it began with a byte order mark.

    Invalid names the line of a byte or character that cannot be read.
    """
    text = _decode_utf8(data)
    has_bom = text.startswith(_BOM)
    text = text.removeprefix(_BOM)
    if found := _UNPRINTABLE.search(text):
        line = _line_at(text, found.start())
        _refuse(line, f"the character U+{ord(found[0]):04X} cannot stand in YAML", "remove it")
    return text, has_bom


def kind_of(value: str) -> str:
    """Return the type that YAML 1.1 resolves an unquoted text to."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
    return tag.removeprefix(_TAG_PREFIX)


def quote_text(value: str) -> str:
    """Return a text of the file quoted for a message, cut off when it is long."""
    return repr(shorten_text(value, _MAX_QUOTED_LENGTH))


def syntax_fault(error: yaml.MarkedYAMLError) -> Fault:
    """Return the fault for what libyaml could not read, with its line."""
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.context, error.problem) if part)
    return Fault(f"line {mark.line + 1}" if mark else "document", problem, "correct the YAML; quotes may be missing")


def _decode_utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = _line_at(data[: error.start].decode(), error.start)
        fault = Fault(f"line {line}", f"the byte 0x{data[error.start]:02X} is not UTF-8", "save the file as UTF-8")
        raise Invalid(fault) from error


def _line_at(text: str, position: int) -> int:
    return 1 + _count_breaks(text, 0, position)


def _count_breaks(text: str, begin: int, end: int) -> int:
    return sum(1 for _ in _BREAK.finditer(text, begin, end))


def _refuse(line: int, problem: str, remedy: str) -> NoReturn:
    raise Invalid(Fault(f"line {line}", problem, remedy))


class _TreeBuilder:
    """Builds the tree while libyaml's events arrive."""

    def __init__(self, text: str) -> None:
        self.happenings: list[YamlEvent] = []
        self.root: YamlNode | None = None
        self._text = text
        self._open: list[YamlList | YamlMapping] = []
        self._keys: list[YamlScalar | None] = []
        self._path_steps: list[str] = []
        self._documents = 0
        self._handlers = {
            yaml.ScalarEvent: self._on_scalar,
            yaml.SequenceStartEvent: self._on_start,
            yaml.MappingStartEvent: self._on_start,
            yaml.SequenceEndEvent: self._on_end,
            yaml.MappingEndEvent: self._on_end,
            yaml.AliasEvent: self._on_alias,
            yaml.DocumentStartEvent: self._on_document,
        }

    def build(self) -> None:
        verbs, happenings = self._handlers, self.happenings
        loader = yaml.CLoader(self._text)
        try:
            while (event := loader.get_event()) is not None:
                verb = verbs.get(type(event))
                if verb is not None:
                    verb(event)
                    if len(happenings) > MAX_EVENTS:
                        self._refuse(event, f"more than {MAX_EVENTS} things in one file", "split the lab")
        except yaml.MarkedYAMLError as error:
            raise Invalid(syntax_fault(error)) from error
        finally:
            loader.dispose()

    def _on_scalar(self, event: Any) -> None:  # noqa: ANN401 - libyaml's events have no types
        begin, finish = event.start_mark, event.end_mark
        if event.anchor is not None or event.tag is not None:
            self._refuse_decoration(event)
        if finish.index - begin.index > MAX_SCALAR_LENGTH:
            self._refuse(event, f"a text of more than {MAX_SCALAR_LENGTH} characters", "shorten it")
        happenings = self.happenings
        scalar = YamlScalar(event.value, event.implicit[0], begin.index, finish.index, begin.line + 1, len(happenings))
        happenings.append(scalar)
        self._add_node(scalar)

    def _on_start(self, event: Any) -> None:  # noqa: ANN401 - likewise
        if event.anchor is not None or event.tag is not None:
            self._refuse_decoration(event)
        if len(self._open) >= MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} deep", "a lab needs fewer than ten levels")
        line = event.start_mark.line + 1
        tree = YamlList([], line) if isinstance(event, yaml.SequenceStartEvent) else YamlMapping({}, line)
        self._path_steps.append(self._current_step())
        self._add_node(tree)
        self.happenings.append(type(tree).__name__)
        self._open.append(tree)
        self._keys.append(None)

    def _on_end(self, _event: object) -> None:
        self.happenings.append("end")
        self._open.pop()
        self._keys.pop()
        self._path_steps.pop()

    def _add_node(self, tree: YamlNode) -> None:
        """Add a new node at the current position."""
        if not self._open:
            self.root = tree
            return
        top = self._open[-1]
        if len(top.members if isinstance(top, YamlList) else top.entries) >= MAX_MEMBERS:
            self._refuse_at(tree.line, f"more than {MAX_MEMBERS} entries in one place", "split the lab")
        if isinstance(top, YamlList):
            top.members.append(tree)
        else:
            self._add_to_mapping(top, tree)

    def _add_to_mapping(self, table: YamlMapping, tree: YamlNode) -> None:
        key = self._keys[-1]
        if key is not None:
            table.entries[key.value] = tree
            self._keys[-1] = None
            return
        if not isinstance(tree, YamlScalar):
            self._refuse_at(tree.line, "a key that is a list or a mapping", "use text as a key")
        if tree.plain and tree.value == "<<":
            self._refuse_at(tree.line, "a merge key `<<`", "write the entries out")
        if tree.value in table.entries:
            self._refuse_at(tree.line, f"the key {quote_text(tree.value)} stands here twice", "remove one of them")
        self._keys[-1] = tree

    def _on_document(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._documents += 1
        if self._documents > 1:
            self._refuse(event, "a second document begins here", "keep one lab in one file")

    def _on_alias(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._refuse(event, f"the alias {quote_text(event.anchor)}", "write the value out; aliases are not read")

    def _refuse_decoration(self, event: Any) -> NoReturn:  # noqa: ANN401 - likewise
        if event.anchor is not None:
            self._refuse(event, f"the anchor {quote_text(event.anchor)}", "remove it; aliases are not read")
        self._refuse(event, f"the tag {quote_text(event.tag)}", "remove it; tags are not read")

    def _refuse(self, event: Any, problem: str, remedy: str) -> NoReturn:  # noqa: ANN401 - likewise
        self._refuse_at(event.start_mark.line + 1, problem, remedy)

    def _refuse_at(self, line: int, problem: str, remedy: str) -> NoReturn:
        path = self._current_path()
        raise Invalid(Fault(f"line {line}: {path}" if path else f"line {line}", problem, remedy))

    def _current_path(self) -> str:
        """Return the path of the current position in the tree."""
        return "".join((*self._path_steps, self._current_step())).removeprefix(".")

    def _current_step(self) -> str:
        """Return the current position within the innermost list or mapping."""
        if not self._open:
            return ""
        top, key = self._open[-1], self._keys[-1]
        if isinstance(top, YamlList):
            return f"[{len(top.members)}]"
        return f".{shorten_text(key.value, _MAX_QUOTED_LENGTH)}" if key is not None else ""


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

    def number(self, within: YamlMapping, key: str, path: str) -> None:
        """Check that a field holds a number."""
        tree = within.entries.get(key)
        if tree is None:
            self.fault(within, f"{path}.{key}", "missing", f"add `{key}: 0`")
        elif not (isinstance(tree, YamlScalar) and tree.plain and _NUMBER.fullmatch(tree.value)):
            self.fault(tree, f"{path}.{key}", "not a number", "write a whole number")


def _is_null(tree: YamlNode) -> bool:
    return isinstance(tree, YamlScalar) and tree.kind == "null"
