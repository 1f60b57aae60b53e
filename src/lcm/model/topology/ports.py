"""Port tags of lab files: their grammar, the names of their ports, and where a file holds them.

`serial:N[:line]`, `vnc:N` and `pat:[tcp|udp:]OUT:IN` say what CML serves on which of its own ports. In place of N or
OUT, and anywhere else in the file, a placeholder `${PORT_X}` may stand for port X. Called by `model.topology.lab` and
by
whoever observes labs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

from lcm.model.base.errors import Fault
from lcm.model.base.resource import Part
from lcm.model.base.yaml_tree import YamlScalar, quote_text
from lcm.model.kinds.definition import PortEnd, PortTemplate, PortUse
from lcm.model.topology.lab_text import LabText

OPEN_PORTS: Final = range(2000, 8000)
"""The ports that CML's PATty opens. To PATty a port tag with another number is just text."""
LAST_PORT: Final = 65535
LAST_LINE: Final = 99
MAX_NAME_LENGTH: Final = 128
PLACEHOLDER: Final = re.compile(r"\$\{PORT_([A-Za-z0-9_.-]{1,128})\}")
_PLACEHOLDER_PREFIX: Final = "${PORT_"
_BROKEN_PLACEHOLDER: Final = re.compile(r"\$\{PORT_(?![A-Za-z0-9_.-]{1,128}\})")
_OUTSIDE_PORT: Final = r"(?P<outside>[1-9][0-9]{0,4}|\$\{PORT_[A-Za-z0-9_.-]{1,128}\})"
_PORT_TAG: Final = re.compile(
    rf"(?P<head>serial:|vnc:|pat:(?:(?:tcp|udp):)?){_OUTSIDE_PORT}(?::(?P<tail>0|[1-9][0-9]{{0,4}}))?"
)
_RESEMBLES_PORT_TAG: Final = re.compile(r"\s*(?:serial|vnc|pat)\s*:", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,64}")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")
_TAG_REMEDY: Final = "write serial:N, serial:N:LINE, vnc:N, pat:OUT:IN, pat:tcp:OUT:IN or pat:udp:OUT:IN"
_PLACEHOLDER_REMEDY: Final = "write ${PORT_NAME} with letters, digits, '_', '.' and '-'"


class PortTag(Part):
    """One port tag. `outside` is None when a placeholder stands in its place."""

    text: str
    kind: Literal["serial", "vnc", "pat"]
    outside: int | None
    line: int | None = None
    protocol: Literal["tcp", "udp"] | None = None
    inside: int | None = None

    def end(self, label: str) -> PortEnd:
        """Return what the port leads to when the tag is on a node with this label."""
        return PortEnd(kind=self.kind, node=label, line=self.line, protocol=self.protocol, inside=self.inside)


@lru_cache(10_000)
def read_tag(text: str) -> PortTag | None:
    """Parse a tag; None when it is not a port tag, or not one that CML would understand."""
    found = _PORT_TAG.fullmatch(text)
    if found is None:
        return None
    kind, *protocol = found["head"].rstrip(":").split(":")
    outside = int(found["outside"]) if found["outside"].isdigit() else None
    tail = int(found["tail"]) if found["tail"] else None
    if outside is not None and outside > LAST_PORT:
        return None
    match kind, tail:
        case "serial", _ if (tail or 0) <= LAST_LINE:
            return PortTag(text=text, kind="serial", outside=outside, line=tail)
        case "vnc", None:
            return PortTag(text=text, kind="vnc", outside=outside)
        case "pat", int() if 0 < tail <= LAST_PORT:
            layer: Literal["tcp", "udp"] = "udp" if protocol == ["udp"] else "tcp"
            return PortTag(text=text, kind="pat", outside=outside, protocol=layer, inside=tail)
    return None


def used_ports(tags: Iterable[str]) -> frozenset[int]:
    """Return the CML ports that these tags use, whoever wrote them."""
    return frozenset(port for tag in tags for port in _claimed_ports(tag))


def port_name(end: PortEnd) -> str:
    """Return the name of a port, after what it leads to; `_` replaces characters that a name cannot hold."""
    label = _NOT_IN_NAMES.sub("_", end.node)
    if end.kind == "serial":
        return f"{label}_serial" if end.line is None else f"{label}_serial_{end.line}"
    return f"{label}_vnc" if end.kind == "vnc" else f"{label}_pat_{end.protocol}_{end.inside}"


def read_ports(nodes: Iterable[tuple[str, Iterable[str]]], template: PortTemplate) -> dict[str, int]:
    """Return the ports that the tags of these nodes (label, tags) hold now, by their names in the template.

    Where tags for one port hold several numbers, the number is added to the names of the others: none is left
    out.
    """
    known = {end: name for name, use in template.items() for end in use.ends}
    held: dict[str, int] = {}
    for label, tags in nodes:
        for tag in filter(None, map(read_tag, tags)):
            if tag.outside is not None:
                end = tag.end(label)
                name = known.get(end) or port_name(end)
                held[name if held.get(name, tag.outside) == tag.outside else f"{name}_{tag.outside}"] = tag.outside
    return held


def keep_observable(ports: Mapping[str, int], template: PortTemplate) -> dict[str, int]:
    """Return the ports that can be observed, without those that only occur in text.

    No tag shows the latter, so it cannot be known whether they drifted.
    """
    return {name: port for name, port in ports.items() if name not in template or template[name].ends}


@lru_cache(4096)
def _claimed_ports(text: str) -> Sequence[int]:
    tag = read_tag(text)
    if tag is not None:
        return () if tag.outside is None else (tag.outside,)
    # CML may understand a tag that we cannot read, so every port that it might mean counts as used.
    numbers = map(int, _NUMBER.findall(text)) if _RESEMBLES_PORT_TAG.match(text) else ()
    return tuple(number for number in numbers if number in OPEN_PORTS)


class RewriteSite(NamedTuple):
    """A scalar to rewrite: `parts` are text, port name, text, port name, …, text."""

    scalar: YamlScalar
    path: str
    parts: Sequence[str]

    def value(self, ports: Mapping[str, int]) -> str:
        """Return the value of the scalar with these ports."""
        return "".join(str(ports[part]) if number % 2 else part for number, part in enumerate(self.parts))


class PortIndex:
    """The ports of a file: what each leads to, which scalars hold it, and the faults in them."""

    def __init__(self) -> None:
        self.sites: dict[int, RewriteSite] = {}
        self.faults: list[Fault] = []
        self._faulty: set[int] = set()
        self._first: dict[str, YamlScalar] = {}
        self._ends: dict[str, list[PortEnd]] = {}
        self._names: dict[PortEnd, str] = {}
        self._by_text: dict[str, list[str]] = {}

    @property
    def template(self) -> PortTemplate:
        """What each port leads to, by its name."""
        return {
            name: PortUse(**msgspec.structs.asdict(ends[0]), also=tuple(ends[1:]))
            if ends
            else PortUse(kind="placeholder")
            for name, ends in self._ends.items()
        }

    def add_node(self, label: str, tags: Iterable[tuple[str, YamlScalar]]) -> None:
        """Add the tags of a node, each with its path."""
        for path, scalar in tags:
            tag = self._read_checked_tag(scalar, path)
            if tag is None:
                continue
            end = tag.end(label)
            if tag.outside is None:
                self._add_placeholder(PLACEHOLDER.findall(scalar.value)[0], scalar, path, end)
            else:
                name = port_name(end)
                self._add_named_port(name, scalar, path, end)
                self._by_text.setdefault(tag.text, []).append(name)
                self._add_site(scalar, path, name, tag)

    def add_annotation(self, within: str, scalar: YamlScalar, label: YamlScalar | None) -> None:
        """Add a smart annotation: its tag, which repeats some node's tag, is rewritten with it, and its label too."""
        path = f"{within}.tag"
        tag = self._read_checked_tag(scalar, path)
        if tag is None or tag.outside is None:
            return
        names = self._by_text.get(tag.text, [])
        if len(names) != 1:
            problem = f"{tag.text} is on {'several nodes' if names else 'no node'}, so its port is not known"
            remedy = "give each node a port of its own" if names else "remove the annotation, or tag the node"
            self._add_fault(scalar, path, problem, remedy)
            return
        self._add_site(scalar, path, names[0], tag)
        if label is not None and label.value == tag.text:
            self._add_site(label, f"{within}.label", names[0], tag)

    def add_placeholders(self, document: LabText) -> None:
        """Add every scalar with a placeholder, except tags that were added already."""
        for scalar in document.happenings:
            if isinstance(scalar, YamlScalar) and _PLACEHOLDER_PREFIX in scalar.value:
                self._check_placeholders(document, scalar)
                parts = PLACEHOLDER.split(scalar.value)
                for name in parts[1::2]:
                    self._add_placeholder(name, scalar, "", None)
                if len(parts) > 1:
                    self.sites[scalar.ordinal] = RewriteSite(scalar, "", parts)

    def _check_placeholders(self, document: LabText, scalar: YamlScalar) -> None:
        found = _BROKEN_PLACEHOLDER.search(scalar.value)
        if found is not None and scalar.ordinal not in self._faulty:
            line = document.line_of(_BROKEN_PLACEHOLDER, scalar)
            problem = f"{quote_text(scalar.value[found.start() :])} begins with a placeholder that cannot be rewritten"
            self.faults.append(Fault(f"line {line}", problem, _PLACEHOLDER_REMEDY))

    def _read_checked_tag(self, scalar: YamlScalar, path: str) -> PortTag | None:
        """Parse a tag. One that resembles a port tag but is none is a fault: its port could not be rewritten."""
        tag = read_tag(scalar.value)
        if tag is None and _RESEMBLES_PORT_TAG.match(scalar.value):
            self._add_fault(scalar, path, f"the port tag {quote_text(scalar.value)} cannot be rewritten", _TAG_REMEDY)
        elif _BROKEN_PLACEHOLDER.search(scalar.value):
            problem = f"{quote_text(scalar.value)} has a placeholder that cannot be rewritten"
            self._add_fault(scalar, path, problem, _PLACEHOLDER_REMEDY)
        return tag

    def _add_site(self, scalar: YamlScalar, path: str, name: str, tag: PortTag) -> None:
        head, _, tail = tag.text.partition(str(tag.outside))
        self.sites[scalar.ordinal] = RewriteSite(scalar, path, (head, name, tail))

    def _add_named_port(self, name: str, scalar: YamlScalar, path: str, end: PortEnd) -> None:
        first = self._first.get(name)
        if len(name) > MAX_NAME_LENGTH:
            self._add_fault(scalar, path, f"the port name {name!r} is too long", "shorten the node's label")
        elif first is not None:
            problem = f"{scalar.value} would be port {name!r}, which {first.value} on line {first.line} is already"
            self._add_fault(scalar, path, problem, "remove one of them, or change a label")
        else:
            self._register_name(name, scalar, path)
            self._add_end(name, scalar, path, end)

    def _add_placeholder(self, name: str, scalar: YamlScalar, path: str, end: PortEnd | None) -> None:
        """Note a use of a placeholder; `end` is None where it is only a number in a text."""
        first = self._first.get(name)
        if first is not None and _PLACEHOLDER_PREFIX not in first.value:
            problem = f"${{PORT_{name}}} would be port {name!r}, which {first.value} on line {first.line} is already"
            self._add_fault(scalar, path, problem, "choose another name for the placeholder")
            return
        if first is None:
            self._register_name(name, scalar, path)
        if end is not None:
            self._add_end(name, scalar, path, end)

    def _register_name(self, name: str, scalar: YamlScalar, path: str) -> None:
        self._first[name] = scalar
        self._ends[name] = []
        if len(self._ends) == len(OPEN_PORTS) + 1:
            self._add_fault(scalar, path, f"more than {len(OPEN_PORTS)} ports; a worker has no more", "split the lab")

    def _add_end(self, name: str, scalar: YamlScalar, path: str, end: PortEnd) -> None:
        """Note what a port leads to.

        Two ports that lead to the same end could not be told apart on a running lab, so that is a fault.
        """
        known = self._names.get(end)
        if known is None:
            self._names[end] = name
            self._ends[name].append(end)
        elif known != name:
            first = quote_text(self._first[known].value)
            problem = f"{quote_text(scalar.value)} leads to the same as {first}, port {known!r}"
            self._add_fault(scalar, path, problem, "remove one of them, or change a label")

    def _add_fault(self, scalar: YamlScalar, path: str, problem: str, remedy: str) -> None:
        where = f"line {scalar.line}: {path}" if path else f"line {scalar.line}"
        self._faulty.add(scalar.ordinal)
        self.faults.append(Fault(where, problem, remedy))
