"""Texts of documents: YAML or JSON, several in one text, each value with its line. Called by `sources`.

What could expand (aliases) or hide something (the same key twice) is recorded as a flaw, and reading goes on, so that
a person learns of every flaw at once. Unquoted text means what YAML 1.2 and JSON take it for: `no` is a word and
`12:30` a time of day.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml

from lcm.cli.output.render import UNSAFE
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.yaml_tree import (
    FATAL_FLAWS,
    SYNTAX_WORDING,
    FlawKind,
    YamlFlaw,
    YamlLimits,
    YamlList,
    YamlMapping,
    YamlNode,
    YamlScalar,
    decode_text,
    parse_yaml,
)

MOST_BYTES: Final = 32_000_000
MOST_EVENTS: Final = 3_000_000
MOST_DEPTH: Final = 32
INTEGER_LIMIT: Final = 2**63
_MOST_DIGITS: Final = 20
_LIST: Final = "List"
# The text after &, * or ! may be a password that lacks its quotes, so it is not repeated in the message.
_WORDING: Final[Mapping[FlawKind, tuple[str, str]]] = {
    "syntax": SYNTAX_WORDING,
    "events": ("more than {flaw.text} things in one file", "split it"),
    "depth": ("nested more than {flaw.text} deep", "no kind needs so many levels"),
    "anchor": ("an anchor", "remove it, or put text that begins with & in quotes"),
    "alias": ("an alias", "write the value out, or put text that begins with * in quotes"),
    "tag": ("a tag", "remove it, or put text that begins with ! in quotes"),
    "merge key": ("a merge key `<<`", "write the entries out"),
    "key": ("a key that is a list or a mapping", "use text as a key"),
    "duplicate": ("the key {quoted} occurs twice, first on line {flaw.first_line}", "remove one of them"),
}
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SURROGATES: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_LINE: Final = re.compile(r"line ([0-9]+)(?:: (.*))?", re.DOTALL)
_INDEX: Final = re.compile(r"\[([0-9]+)\]\.?")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something wrong at a line."""

    line: int
    fault: Fault
    fatal: bool = False
    """The text after it was not read."""


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One document as it was written, and the tree that has the lines of its values."""

    value: Any
    place: YamlNode

    def line_of(self, path: str) -> int:
        """Return the line of a path such as `spec.aws.tags[2]`; if it is absent, that of its nearest ancestor."""
        place, line = self.place, self.place.line
        while path and (found := _descend(place, path)) is not None:
            place, line, path = found
        return line


def read_documents(data: bytes) -> tuple[list[ParsedDocument], list[Flaw]]:
    """Read every document of a text, and everything that is wrong with it. Empty documents are skipped."""
    if len(data) > MOST_BYTES:
        return [], [Flaw(1, Fault("file", f"more than {MOST_BYTES // 1_000_000} MB", "split it"), fatal=True)]
    try:
        text, _ = decode_text(data)
    except Invalid as error:
        fault = error.faults[0]
        line, path = split_line(fault.path, otherwise="document")
        return [], [Flaw(line, Fault(path, fault.problem, fault.remedy), fatal=True)]
    if text.lstrip().startswith("{"):
        text = _SURROGATES.sub(_join_surrogates, text)
    found = _FlawList(text)
    stream = parse_yaml(text, YamlLimits(events=MOST_EVENTS, depth=MOST_DEPTH), found.add)
    roots = [ParsedDocument(found.convert(root), root) for root in stream.roots]
    if stream.unfinished is not None:
        found.convert(stream.unfinished)
    flaws = sorted(found.flaws, key=lambda flaw: (flaw.fatal, flaw.line))
    return [one for root in roots if root.value is not None for one in _unpack_list(root, flaws)], flaws


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
    "tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT.pattern})\Z"), list("-+.0123456789")
)


class _FlawList:
    """Collects what is wrong with a text, and converts its trees to what their texts mean."""

    def __init__(self, text: str) -> None:
        self.flaws: list[Flaw] = []
        self._text = text

    def add(self, found: YamlFlaw) -> None:
        if found.kind == "document":
            return
        problem, remedy = found.explain(_WORDING)
        if found.kind == "syntax":
            before = "".join(self._text.split("\n")[found.line - 1 : found.line])[: found.column + 1]
            if "\t" in before:
                problem, remedy = "a tab where YAML wants spaces", "indent with spaces"
        self._add(found.line, Fault(found.path, problem, remedy), fatal=found.kind in FATAL_FLAWS)

    def convert(self, node: YamlNode, path: str = "") -> Any:  # noqa: ANN401 - whatever JSON can be
        """Return the value of a tree."""
        match node:
            case YamlList(members):
                return [self.convert(one, f"{path}[{number}]") for number, one in enumerate(members)]
            case YamlMapping(entries):
                return {key: self.convert(one, f"{path}.{key}".removeprefix(".")) for key, one in entries.items()}
        return self._value(node, path) if node.plain else node.value

    def _value(self, scalar: YamlScalar, path: str) -> object:
        text = scalar.value
        if text in _NULL or text in _TRUTHS:
            return _TRUTHS.get(text)
        if not _FLOAT.fullmatch(text):
            return text
        if (number := _parse_number(text)) is None:
            self._add(scalar.line, Fault(path, "a number that is too large", "put it in quotes if it is text"))
        return number

    def _add(self, line: int, fault: Fault, *, fatal: bool = False) -> None:
        self.flaws.append(Flaw(line, Fault(fault.path or "document", fault.problem, fault.remedy), fatal))


def _unpack_list(root: ParsedDocument, flaws: list[Flaw]) -> Iterator[ParsedDocument]:
    """Yield a document, or those inside a List as `lcm get -o json` writes it."""
    value, place = root.value, root.place
    if not isinstance(place, YamlMapping):
        flaws.append(Flaw(place.line, Fault("document", "not an object", "begin with `kind: …` and `metadata: …`")))
    elif value.get("kind") == _LIST and isinstance(items := place.entries.get("items"), YamlList):
        for item, inner in zip(value["items"], items.members, strict=True):
            yield from _unpack_list(ParsedDocument(item, inner), flaws)
    else:
        yield root


def _descend(place: YamlNode, path: str) -> tuple[YamlNode, int, str] | None:
    """Go one step down a path; return the node, its line or that of its key, and the rest of the path.

    A key may contain dots itself, so the longest matching key is taken.
    """
    if isinstance(place, YamlList) and (found := _INDEX.match(path)) and int(found[1]) < len(place.members):
        member = place.members[int(found[1])]
        return member, member.line, path[found.end() :]
    keys = place.keys if isinstance(place, YamlMapping) else {}
    longest = max((key for key in keys if f"{path}.".startswith((f"{key}.", f"{key}["))), key=len, default=None)
    if longest is None or not isinstance(place, YamlMapping):
        return None
    return place.entries[longest], keys[longest].line, path[len(longest) :].removeprefix(".")


def _parse_number(text: str) -> float | int | None:
    """Return the number that a text represents; None when JSON cannot carry it."""
    if _INT.fullmatch(text):
        return int(text) if len(text) <= _MOST_DIGITS and -INTEGER_LIMIT <= int(text) < INTEGER_LIMIT else None
    return float(text) if math.isfinite(float(text)) else None


def split_line(path: str, *, otherwise: str) -> tuple[int, str]:
    """Split a path such as `line 13: nodes[0]` into the line and the rest, or `otherwise` if nothing is left."""
    found = _LINE.fullmatch(path)
    return (int(found[1]), found[2] or otherwise) if found else (1, path)


def _join_surrogates(found: re.Match[str]) -> str:
    """Rewrite a character that JSON escapes as a surrogate pair in the way that YAML knows."""
    high, low = int(found[2], 16) - 0xD800, int(found[3], 16) - 0xDC00
    return f"{found[1]}\\U{0x10000 + (high << 10) + low:08X}"
