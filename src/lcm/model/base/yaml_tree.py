"""YAML parsed to trees with positions: lab files, documents of the command line, and timetables.

libyaml's events are taken one by one and every limit is checked before the next, so hostile text costs no more than
its bytes pay for. What could expand (aliases), hide something (the same key twice) or means nothing to us (tags) is
reported as a flaw; who asked refuses it, notes it, or lets it pass. Positions are characters: libyaml counts those,
not bytes.
"""

import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, Literal, get_args

import msgspec
import yaml

from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import shorten_text

NO_LIMIT: Final = 2**62
_MAX_QUOTED_LENGTH: Final = 80

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
LINE_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
BYTE_ORDER_MARK: Final = "\ufeff"
_TAG_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_MOST_DIRECTIVES: Final = 16
"""libyaml compares each with all before it, and lets nothing else run in that time."""
_RESOLVER: Final = yaml.resolver.Resolver()


class YamlScalar(msgspec.Struct, frozen=True, gc=False):
    """A scalar of the text.

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
    """A mapping: its values by the texts of its keys, and the keys themselves."""

    entries: dict[str, "YamlNode"]
    keys: dict[str, YamlScalar]
    line: int


YamlNode = YamlScalar | YamlList | YamlMapping
YamlEvent = YamlScalar | str
"""A scalar, or the start or end of a list or mapping."""


class YamlStream(msgspec.Struct, frozen=True):
    """The documents of a text, the one that a flaw cut off, and all events in their order (`happenings`)."""

    roots: list[YamlNode]
    unfinished: YamlNode | None
    happenings: list[YamlEvent]


class YamlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a text is read."""

    events: int
    depth: int
    members: int = NO_LIMIT
    scalar_length: int = NO_LIMIT


FatalFlawKind = Literal["syntax", "character", "events", "depth", "members", "scalar length"]
"""Nothing is read after one of these."""
FlawKind = FatalFlawKind | Literal["anchor", "alias", "tag", "merge key", "key", "duplicate", "document"]
SYNTAX_WORDING: Final = ("{flaw.context} {flaw.text}", "correct the YAML; quotes may be missing")
FATAL_FLAWS: Final = frozenset(get_args(FatalFlawKind))


class YamlFlaw(msgspec.Struct, frozen=True, kw_only=True):
    """Something that not every reader allows, and where it is."""

    kind: FlawKind
    line: int
    path: str = ""
    text: str = ""
    """The key, anchor or tag itself, the limit that is passed, or libyaml's words for what it cannot read."""
    context: str = ""
    """What libyaml was reading then."""
    column: int = 0
    first_line: int = 0
    """Where a key that is there twice was first."""

    @property
    def place(self) -> str:
        """The line, and the path if there is one."""
        return f"line {self.line}: {self.path}" if self.path else f"line {self.line}"

    def explain(self, wording: Mapping[FlawKind, tuple[str, str]]) -> tuple[str, str]:
        """Return the problem and the remedy in a reader's words, with what was found in place of their fields."""
        problem, remedy = wording[self.kind]
        return problem.format(flaw=self, quoted=quote_text(self.text)).strip(), remedy


def parse_yaml(text: str, limits: YamlLimits, report: Callable[[YamlFlaw], None]) -> YamlStream:
    """Parse every document of a text. What `report` raises for a flaw ends the reading.

    Where it allows a flaw, an alias is null, an anchor or a tag is as if it were not there, a key that is no text
    becomes `?`, and of the same key twice the last counts.
    """
    builder = _TreeBuilder(limits, report)
    builder.build(text)
    return YamlStream(builder.roots, builder.root, builder.happenings)


def decode_text(data: bytes) -> tuple[str, bool]:
    """Decode a file; return its text and whether it began with a byte order mark.

    Invalid names the line of a byte or character that cannot be read.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = 1 + count_breaks(data[: error.start].decode(), 0, error.start)
        fault = Fault(f"line {line}", f"the byte 0x{data[error.start]:02X} is not UTF-8", "save the file as UTF-8")
        raise Invalid(fault) from error
    has_bom = text.startswith(BYTE_ORDER_MARK)
    text = text.removeprefix(BYTE_ORDER_MARK)
    if found := _UNPRINTABLE.search(text):
        line = 1 + count_breaks(text, 0, found.start())
        problem = f"the character U+{ord(found[0]):04X} cannot stand in YAML"
        raise Invalid(Fault(f"line {line}", problem, "remove it"))
    return text, has_bom


def kind_of(value: str) -> str:
    """Return the type that YAML 1.1 resolves an unquoted text to."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, value, (True, False))  # type: ignore[no-untyped-call]
    return tag.removeprefix("tag:yaml.org,2002:")


def quote_text(value: str) -> str:
    """Return a text of the file quoted for a message, cut off when it is long."""
    return repr(shorten_text(value, _MAX_QUOTED_LENGTH))


def count_breaks(text: str, begin: int, end: int) -> int:
    """Return how many lines end between two positions."""
    return sum(1 for _ in LINE_BREAK.finditer(text, begin, end))


class _FatalFlawError(Exception):
    """A fatal flaw was reported; reading stops."""


class _TreeBuilder:
    """Builds trees while libyaml's events arrive."""

    def __init__(self, limits: YamlLimits, report: Callable[[YamlFlaw], None]) -> None:
        self.happenings: list[YamlEvent] = []
        self.roots: list[YamlNode] = []
        self.root: YamlNode | None = None
        self._limits = limits
        self._tell = report
        self._open: list[YamlList | YamlMapping] = []
        self._keys: list[YamlScalar | None] = []
        self._path_steps: list[str] = []
        self._handlers = {
            yaml.ScalarEvent: self._on_scalar,
            yaml.SequenceStartEvent: self._on_start,
            yaml.MappingStartEvent: self._on_start,
            yaml.SequenceEndEvent: self._on_end,
            yaml.MappingEndEvent: self._on_end,
            yaml.AliasEvent: self._on_alias,
            yaml.DocumentStartEvent: self._on_document_start,
            yaml.DocumentEndEvent: self._on_document_end,
        }

    def build(self, text: str) -> None:
        if extra := next(islice(_TAG_DIRECTIVE.finditer(text), _MOST_DIRECTIVES, None), None):
            problem = f"found more than {_MOST_DIRECTIVES} %TAG directives"
            self._tell(YamlFlaw(kind="syntax", line=1 + count_breaks(text, 0, extra.end()), text=problem))
            return
        loader = yaml.CLoader(text)
        handlers, happenings, most = self._handlers, self.happenings, self._limits.events
        next_event: Callable[[], Any] = loader.get_event
        try:
            while (event := next_event()) is not None:
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
                    if len(happenings) > most:
                        self._report("events", event.start_mark.line + 1, str(most))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            assert mark is not None, "libyaml says where"
            problem, context = error.problem or "", error.context or ""
            self._tell(YamlFlaw(kind="syntax", line=mark.line + 1, text=problem, context=context, column=mark.column))
        except yaml.reader.ReaderError as error:
            self._tell(YamlFlaw(kind="character", line=1, text=error.reason))
        except _FatalFlawError:
            pass  # reported where it was found
        finally:
            loader.dispose()

    def _on_scalar(self, event: Any) -> None:  # noqa: ANN401 - libyaml's events have no types
        begin, finish = event.start_mark, event.end_mark
        if event.anchor is not None or event.tag is not None:
            self._report_decoration(event)
        if finish.index - begin.index > self._limits.scalar_length:
            self._report("scalar length", begin.line + 1, str(self._limits.scalar_length))
        happenings = self.happenings
        scalar = YamlScalar(event.value, event.implicit[0], begin.index, finish.index, begin.line + 1, len(happenings))
        happenings.append(scalar)
        self._add_node(scalar)

    def _on_start(self, event: Any) -> None:  # noqa: ANN401 - likewise
        if event.anchor is not None or event.tag is not None:
            self._report_decoration(event)
        line = event.start_mark.line + 1
        if len(self._open) >= self._limits.depth:
            self._report("depth", line, str(self._limits.depth))
        tree = YamlList([], line) if isinstance(event, yaml.SequenceStartEvent) else YamlMapping({}, {}, line)
        step = self._current_step()
        self._add_node(tree)
        self._path_steps.append(step)
        self.happenings.append(type(tree).__name__)
        self._open.append(tree)
        self._keys.append(None)

    def _on_end(self, _event: object) -> None:
        self.happenings.append("end")
        self._open.pop()
        self._keys.pop()
        self._path_steps.pop()

    def _on_alias(self, event: Any) -> None:  # noqa: ANN401 - likewise
        begin = event.start_mark
        self._report("alias", begin.line + 1, event.anchor)
        is_key = bool(self._open) and isinstance(self._open[-1], YamlMapping) and self._keys[-1] is None
        null = YamlScalar("", True, begin.index, event.end_mark.index, begin.line + 1, len(self.happenings))  # noqa: FBT003 - as above
        self.happenings.append(null)
        self._add_node(msgspec.structs.replace(null, value=f"*{event.anchor}") if is_key else null)

    def _on_document_start(self, event: Any) -> None:  # noqa: ANN401 - likewise
        if self.roots:
            self._report("document", event.start_mark.line + 1)

    def _on_document_end(self, _event: object) -> None:
        assert self.root is not None, "libyaml makes an empty document null"
        self.roots.append(self.root)
        self.root = None

    def _add_node(self, tree: YamlNode) -> None:
        """Add a new node at the current position."""
        if not self._open:
            self.root = tree
            return
        top = self._open[-1]
        if len(top.members if isinstance(top, YamlList) else top.entries) >= self._limits.members:
            self._report("members", tree.line, str(self._limits.members))
        if isinstance(top, YamlList):
            top.members.append(tree)
            return
        key = self._keys[-1]
        if key is None:
            self._keys[-1] = self._checked_key(top, tree)
        else:
            top.entries[key.value] = tree
            top.keys[key.value] = key
            self._keys[-1] = None

    def _checked_key(self, table: YamlMapping, tree: YamlNode) -> YamlScalar:
        if not isinstance(tree, YamlScalar):
            self._report("key", tree.line)
            return YamlScalar("?", False, 0, 0, tree.line, 0)  # noqa: FBT003 - as above
        if tree.plain and tree.value == "<<":
            self._report("merge key", tree.line)
        elif tree.value in table.entries:
            self._report("duplicate", tree.line, tree.value, table.keys[tree.value].line)
        return tree

    def _report_decoration(self, event: Any) -> None:  # noqa: ANN401 - likewise
        line = event.start_mark.line + 1
        if event.anchor is not None:
            self._report("anchor", line, event.anchor)
        if event.tag is not None:
            self._report("tag", line, event.tag)

    def _report(self, kind: FlawKind, line: int, text: str = "", first_line: int = 0) -> None:
        path = "".join((*self._path_steps, self._current_step())).removeprefix(".")
        self._tell(YamlFlaw(kind=kind, line=line, path=path, text=text, first_line=first_line))
        if kind in FATAL_FLAWS:
            raise _FatalFlawError

    def _current_step(self) -> str:
        """Return the current position within the innermost list or mapping."""
        if not self._open:
            return ""
        top, key = self._open[-1], self._keys[-1]
        if isinstance(top, YamlList):
            return f"[{len(top.members)}]"
        return f".{shorten_text(key.value, _MAX_QUOTED_LENGTH)}" if key is not None else ""
