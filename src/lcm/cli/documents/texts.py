"""Texts of documents: YAML or JSON, several in one text, each value with its line. Called by `sources`.

libyaml's events are read one by one. What could expand (aliases) or hide something (the same key twice) is recorded
as a flaw, and reading goes on, so that a person learns of every flaw at once. Unquoted text means what YAML 1.2 and
JSON take it for: `no` is a word and `12:30` a time of day.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from lcm.cli.output.render import UNSAFE
from lcm.model.base.errors import Fault, Invalid
from lcm.model.topology.yaml_tree import decode_text, quote_text, syntax_fault

MOST_BYTES: Final = 32_000_000
MOST_EVENTS: Final = 3_000_000
MOST_DEPTH: Final = 32
INTEGER_LIMIT: Final = 2**63
_MOST_DIGITS: Final = 20
_LIST: Final = "List"
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SURROGATES: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_LINE: Final = re.compile(r"line ([0-9]+)(?:: (.*))?", re.DOTALL)
_INDEX: Final = re.compile(r"\[([0-9]+)\]\.?")


@dataclass(slots=True)
class TextPosition:
    """The line of a value, or of its key, and the positions of its members."""

    line: int
    members: dict[str | int, "TextPosition"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong at a line."""

    line: int
    fault: Fault
    fatal: bool = False
    """The text after it was not read."""


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One document as it was written, with the lines of its values."""

    value: Any
    place: TextPosition

    def line_of(self, path: str) -> int:
        """Return the line of a path such as `spec.aws.tags[2]`; if it is absent, that of its nearest ancestor."""
        place: TextPosition | None = self.place
        line = self.place.line
        while place is not None and path:
            place, path = _descend(place, path)
            line = place.line if place is not None else line
        return line


def read_documents(data: bytes) -> tuple[list[ParsedDocument], list[Flaw]]:
    """Read every document of a text, and everything that is wrong with it. Empty documents are skipped."""
    if len(data) > MOST_BYTES:
        return [], [Flaw(1, Fault("file", f"more than {MOST_BYTES // 1_000_000} MB", "split it"), fatal=True)]
    try:
        text, _ = decode_text(data)
    except Invalid as error:
        return [], [_flaw_of_fault(error.faults[0])]
    if text.lstrip().startswith("{"):
        text = _SURROGATES.sub(_join_surrogates, text)
    reading = _Parser()
    reading.read(text)
    return [one for root in reading.roots for one in _unpack_list(root, reading.flaws)], reading.flaws


def write_document(value: object) -> str:
    """Write one document as YAML that `read_documents` understands and that is safe for a terminal."""
    plain = msgspec.to_builtins(value)
    text = _dump(plain, allow_unicode=True)
    return _dump(plain, allow_unicode=False) if UNSAFE.search(text) else text


def _dump(value: object, *, allow_unicode: bool) -> str:
    text: str = yaml.dump(
        value, Dumper=_DocumentDumper, sort_keys=False, allow_unicode=allow_unicode, default_flow_style=False
    )
    return text


class _DocumentDumper(yaml.CSafeDumper):
    """A YAML dumper that quotes texts which `read_documents` would take for a number."""


_DocumentDumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"(?:{_FLOAT.pattern})$"), list("-+.0123456789")
)


class _LimitExceededError(Exception):
    """A limit was exceeded; reading stops."""


@dataclass(slots=True)
class _Frame:
    """A list or mapping that is being read."""

    value: Any
    place: TextPosition
    path: str
    key: str | None = None
    key_line: int = 0


class _Parser:
    """Collects documents while libyaml's events arrive."""

    def __init__(self) -> None:
        self.roots: list[ParsedDocument] = []
        self.flaws: list[Flaw] = []
        self._open: list[_Frame] = []
        self._root: ParsedDocument | None = None
        self._events = 0

    def read(self, text: str) -> None:
        loader = yaml.CLoader(text)
        verbs = {
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._begin,
            yaml.MappingStartEvent: self._begin,
            yaml.SequenceEndEvent: self._end,
            yaml.MappingEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentEndEvent: self._document,
        }
        try:
            while (event := loader.get_event()) is not None:
                self._count(event)
                if verb := verbs.get(type(event)):
                    verb(event)
        except yaml.MarkedYAMLError as error:
            self.flaws.append(_flaw_of_fault(_explain_syntax(error, text)))
        except _LimitExceededError:
            pass  # recorded where it was found
        finally:
            loader.dispose()

    def _count(self, event: Any) -> None:  # noqa: ANN401 - libyaml's events have no types
        self._events += 1
        if self._events > MOST_EVENTS:
            self._stop(event, f"more than {MOST_EVENTS} things in one file", "split it")

    def _scalar(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._refuse_decoration(event)
        self._add(self._value(event) if event.implicit[0] else event.value, event, event.value)

    def _begin(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._refuse_decoration(event)
        if len(self._open) >= MOST_DEPTH:
            self._stop(event, f"nested more than {MOST_DEPTH} deep", "no kind needs so many levels")
        value: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        path = self._path()
        self._open.append(_Frame(value, self._add(value, event), path))

    def _end(self, _: object) -> None:
        self._open.pop()

    def _document(self, _: object) -> None:
        if self._root is not None and self._root.value is not None:
            self.roots.append(self._root)
        self._root = None

    # The text after * may be a password that lacks its quotes, so it is not repeated in the message.
    def _alias(self, event: Any) -> None:  # noqa: ANN401 - likewise
        self._add_flaw(event, "an alias", "write the value out, or put text that begins with * in quotes")
        self._add(None, event, f"*{event.anchor}")

    def _add(self, value: object, event: Any, key: str | None = None) -> TextPosition:  # noqa: ANN401 - likewise
        """Store a value at the current position; where a key is expected, `key` is its text."""
        place = TextPosition(event.start_mark.line + 1)
        if not self._open:
            self._root = ParsedDocument(value, place)
            return place
        frame = self._open[-1]
        if isinstance(frame.value, list):
            frame.place.members[len(frame.value)] = place
            frame.value.append(value)
        elif frame.key is None:
            self._key(frame, event, key)
        else:
            place.line = frame.key_line
            frame.place.members[frame.key] = place
            frame.value[frame.key] = value
            frame.key = None
        return place

    def _key(self, frame: _Frame, event: Any, key: str | None) -> None:  # noqa: ANN401 - likewise
        if key is None:
            self._add_flaw(event, "a key that is a list or a mapping", "use text as a key")
        elif key == "<<" and event.implicit[0]:
            self._add_flaw(event, "a merge key `<<`", "write the entries out")
        elif key in frame.value:
            first = frame.place.members[key].line
            self._add_flaw(
                event, f"the key {quote_text(key)} stands here twice, first on line {first}", "remove one of them"
            )
        frame.key, frame.key_line = key if key is not None else "?", event.start_mark.line + 1

    def _value(self, event: Any) -> object:  # noqa: ANN401 - likewise
        text: str = event.value
        if text in _NULL or text in _TRUTHS:
            return _TRUTHS.get(text)
        if not _FLOAT.fullmatch(text):
            return text
        if (number := _parse_number(text)) is None and not self._key_is_due():
            self._add_flaw(event, "a number that is too large", "put it in quotes if it is text")
        return number

    def _key_is_due(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _refuse_decoration(self, event: Any) -> None:  # noqa: ANN401 - likewise
        if event.anchor is not None:
            self._add_flaw(event, "an anchor", "remove it, or put text that begins with & in quotes")
        if event.tag is not None:
            self._add_flaw(event, "a tag", "remove it, or put text that begins with ! in quotes")

    def _add_flaw(self, event: Any, problem: str, remedy: str, *, fatal: bool = False) -> None:  # noqa: ANN401 - likewise
        self.flaws.append(Flaw(event.start_mark.line + 1, Fault(self._path() or "document", problem, remedy), fatal))

    def _stop(self, event: Any, problem: str, remedy: str) -> None:  # noqa: ANN401 - likewise
        self._add_flaw(event, problem, remedy, fatal=True)
        raise _LimitExceededError

    def _path(self) -> str:
        """Return the path of the current position in the document."""
        if not self._open:
            return ""
        frame = self._open[-1]
        if isinstance(frame.value, list):
            return f"{frame.path}[{len(frame.value)}]"
        return f"{frame.path}.{frame.key}".removeprefix(".") if frame.key is not None else frame.path


def _unpack_list(root: ParsedDocument, flaws: list[Flaw]) -> Iterator[ParsedDocument]:
    """Yield a document, or those inside a List as `lcm get -o json` writes it."""
    value = root.value
    if not isinstance(value, dict):
        flaws.append(
            Flaw(root.place.line, Fault("document", "not an object", "begin with `kind: …` and `metadata: …`"))
        )
    elif value.get("kind") == _LIST and isinstance(value.get("items"), list):
        places = root.place.members["items"].members
        for number, item in enumerate(value["items"]):
            yield from _unpack_list(ParsedDocument(item, places[number]), flaws)
    else:
        yield root


def _descend(place: TextPosition, path: str) -> tuple[TextPosition | None, str]:
    """Go one step down a path. A key may contain dots itself, so the longest matching key is taken."""
    if found := _INDEX.match(path):
        return place.members.get(int(found[1])), path[found.end() :]
    keys = [key for key in place.members if isinstance(key, str) and f"{path}.".startswith((f"{key}.", f"{key}["))]
    longest = max(keys, key=len, default=None)
    if longest is None:
        return None, ""
    return place.members[longest], path[len(longest) :].removeprefix(".")


def _parse_number(text: str) -> float | int | None:
    """Return the number that a text represents; None when JSON cannot carry it."""
    if _INT.fullmatch(text):
        return int(text) if len(text) <= _MOST_DIGITS and -INTEGER_LIMIT <= int(text) < INTEGER_LIMIT else None
    return float(text) if math.isfinite(float(text)) else None


def _explain_syntax(error: yaml.MarkedYAMLError, text: str) -> Fault:
    fault = syntax_fault(error)
    mark = error.problem_mark
    if mark is not None and "\t" in "".join(text.split("\n")[mark.line : mark.line + 1])[: mark.column + 1]:
        return Fault(fault.path, "a tab where YAML wants spaces", "indent with spaces")
    return fault


def _flaw_of_fault(fault: Fault) -> Flaw:
    """Make a flaw of a fault whose path names the line."""
    found = _LINE.fullmatch(fault.path)
    line, path = (int(found[1]), found[2] or "document") if found else (1, fault.path)
    return Flaw(line, Fault(path, fault.problem, fault.remedy), fatal=True)


def _join_surrogates(found: re.Match[str]) -> str:
    """Rewrite a character that JSON escapes as a surrogate pair in the way that YAML knows."""
    high, low = int(found[2], 16) - 0xD800, int(found[3], 16) - 0xDC00
    return f"{found[1]}\\U{0x10000 + (high << 10) + low:08X}"
