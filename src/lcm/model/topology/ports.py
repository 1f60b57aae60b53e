"""Port tags: their grammar, the names of their ports, and where a file holds them. Called by `topology` and observers.

`serial:N[:line]`, `vnc:N` and `pat:[tcp|udp:]OUT:IN` say what CML serves on which of its own ports. In place of N or
OUT, and anywhere else in the file, a placeholder `${PORT_X}` may stand for port X.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from lcm.model.base.errors import Fault
from lcm.model.base.resource import Part
from lcm.model.kinds.definition import PortEnd, PortTemplate, PortUse
from lcm.model.topology.yaml_tree import Document, Scalar, shown

OPEN_PORTS: Final = range(2000, 8000)
"""What CML's PATty opens. A port tag with another number is just text to it."""
LAST_PORT: Final = 65535
LAST_LINE: Final = 99
LONGEST_NAME: Final = 128
PLACEHOLDER: Final = re.compile(r"\$\{PORT_([A-Za-z0-9_.-]{1,128})\}")
_PLACEHOLDER_BEGINS: Final = "${PORT_"
_NO_PLACEHOLDER: Final = re.compile(r"\$\{PORT_(?![A-Za-z0-9_.-]{1,128}\})")
_OUTSIDE: Final = r"(?P<outside>[1-9][0-9]{0,4}|\$\{PORT_[A-Za-z0-9_.-]{1,128}\})"
_PORT_TAG: Final = re.compile(
    rf"(?P<head>serial:|vnc:|pat:(?:(?:tcp|udp):)?){_OUTSIDE}(?::(?P<tail>0|[1-9][0-9]{{0,4}}))?"
)
_LIKE_PORT_TAG: Final = re.compile(r"\s*(?:serial|vnc|pat)\s*:", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,64}")
_UNCLEAN: Final = re.compile(r"[^A-Za-z0-9_.-]")
_FORMS: Final = "write serial:N, serial:N:LINE, vnc:N, pat:OUT:IN, pat:tcp:OUT:IN or pat:udp:OUT:IN"
_PLACEHOLDERS: Final = "write ${PORT_NAME} with letters, digits, '_', '.' and '-'"


class PortTag(Part):
    """One port tag. `outside` is None when a placeholder stands in its place."""

    text: str
    kind: Literal["serial", "vnc", "pat"]
    outside: int | None
    line: int | None = None
    protocol: Literal["tcp", "udp"] | None = None
    inside: int | None = None

    def end(self, label: str) -> PortEnd:
        """Say what the port leads to when the tag is on a node of this label."""
        return PortEnd(kind=self.kind, node=label, line=self.line, protocol=self.protocol, inside=self.inside)


def read_tag(text: str) -> PortTag | None:
    """Read a tag; None when it is not a port tag, or one that CML would not understand."""
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
    """Say which of CML's ports these tags take, whoever wrote them."""
    return frozenset(port for tag in tags for port in _taken(tag))


def port_name(end: PortEnd) -> str:
    """Name a port after what it leads to; characters of the label that a name cannot hold become `_`."""
    label = _UNCLEAN.sub("_", end.node)
    if end.kind == "serial":
        return f"{label}_serial" if end.line is None else f"{label}_serial_{end.line}"
    return f"{label}_vnc" if end.kind == "vnc" else f"{label}_pat_{end.protocol}_{end.inside}"


def ports_on(nodes: Iterable[tuple[str, Iterable[str]]], template: PortTemplate) -> dict[str, int]:
    """Name the ports that the tags on these nodes (label, tags) hold now, as the template names them.

    Where tags that should hold one port hold several, the others are named with their number: none is left out.
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


def observable(ports: Mapping[str, int], template: PortTemplate) -> dict[str, int]:
    """Leave out the ports that are only words in the lab: no tag shows them, so whether they drifted is not known."""
    return {name: port for name, port in ports.items() if name not in template or template[name].ends}


def _taken(text: str) -> Iterable[int]:
    tag = read_tag(text)
    if tag is not None:
        return () if tag.outside is None else (tag.outside,)
    # What others make of a tag that we cannot read is not known, so whatever it may hold counts as taken.
    numbers = map(int, _NUMBER.findall(text)) if _LIKE_PORT_TAG.match(text) else ()
    return (number for number in numbers if number in OPEN_PORTS)


class Tagged(NamedTuple):
    """A node's label and the tags on it, each with its path."""

    label: str
    tags: Sequence[tuple[str, Scalar]]


class Annotation(NamedTuple):
    """A smart annotation: the tag it draws, and the text it shows for it."""

    path: str
    tag: Scalar
    label: Scalar | None


class Site(NamedTuple):
    """A scalar to rewrite: `parts` are text, port name, text, port name, …, text."""

    scalar: Scalar
    path: str
    parts: Sequence[str]

    def value(self, ports: Mapping[str, int]) -> str:
        """Say what it holds with these ports."""
        return "".join(str(ports[part]) if number % 2 else part for number, part in enumerate(self.parts))


class Survey:
    """The ports of a file: what each leads to, which scalars hold it, and what is wrong with them."""

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self.faults: list[Fault] = []
        self._faulty: set[int] = set()
        self._first: dict[str, Scalar] = {}
        self._ends: dict[str, list[PortEnd]] = {}
        self._names: dict[PortEnd, str] = {}
        self._by_text: dict[str, list[str]] = {}

    @property
    def template(self) -> PortTemplate:
        """What each port leads to, by its name."""
        return {name: _use(ends) for name, ends in self._ends.items()}

    def add_node(self, node: Tagged) -> None:
        """Take in the tags of a node."""
        for path, scalar in node.tags:
            tag = self._checked(scalar, path)
            if tag is None:
                continue
            end = tag.end(node.label)
            if tag.outside is None:
                self._placeholder(PLACEHOLDER.findall(scalar.value)[0], scalar, path, end)
            else:
                name = port_name(end)
                self._name(name, scalar, path, end)
                self._by_text.setdefault(tag.text, []).append(name)
                self._site(scalar, path, name, tag)

    def add_annotation(self, annotation: Annotation) -> None:
        """Take in a smart annotation; its tag is some node's tag and follows it."""
        scalar, path = annotation.tag, f"{annotation.path}.tag"
        tag = self._checked(scalar, path)
        if tag is None or tag.outside is None:
            return
        names = self._by_text.get(tag.text, [])
        if len(names) != 1:
            problem = f"{tag.text} is on {'several nodes' if names else 'no node'}, so its port is not known"
            remedy = "give each node a port of its own" if names else "remove the annotation, or tag the node"
            self._fault(scalar, path, problem, remedy)
            return
        self._site(scalar, path, names[0], tag)
        if annotation.label is not None and annotation.label.value == tag.text:
            self._site(annotation.label, f"{annotation.path}.label", names[0], tag)

    def add_placeholders(self, document: Document) -> None:
        """Take in every scalar with a placeholder that is not a tag already seen."""
        for scalar in document.happenings:
            if isinstance(scalar, Scalar) and _PLACEHOLDER_BEGINS in scalar.value:
                self._check_placeholders(document, scalar)
                parts = PLACEHOLDER.split(scalar.value)
                for name in parts[1::2]:
                    self._placeholder(name, scalar, "", None)
                if len(parts) > 1:
                    self.sites[scalar.ordinal] = Site(scalar, "", parts)

    def _check_placeholders(self, document: Document, scalar: Scalar) -> None:
        found = _NO_PLACEHOLDER.search(scalar.value)
        if found is not None and scalar.ordinal not in self._faulty:
            line = document.line_of(_NO_PLACEHOLDER, scalar)
            problem = f"{shown(scalar.value[found.start() :])} begins with a placeholder that cannot be rewritten"
            self.faults.append(Fault(f"line {line}", problem, _PLACEHOLDERS))

    def _checked(self, scalar: Scalar, path: str) -> PortTag | None:
        """Read a tag; one that looks like a port tag and is none is a fault, for its port would stay as it is."""
        tag = read_tag(scalar.value)
        if tag is None and _LIKE_PORT_TAG.match(scalar.value):
            self._fault(scalar, path, f"the port tag {shown(scalar.value)} cannot be rewritten", _FORMS)
        elif _NO_PLACEHOLDER.search(scalar.value):
            problem = f"{shown(scalar.value)} has a placeholder that cannot be rewritten"
            self._fault(scalar, path, problem, _PLACEHOLDERS)
        return tag

    def _site(self, scalar: Scalar, path: str, name: str, tag: PortTag) -> None:
        head, _, tail = tag.text.partition(str(tag.outside))
        self.sites[scalar.ordinal] = Site(scalar, path, (head, name, tail))

    def _name(self, name: str, scalar: Scalar, path: str, end: PortEnd) -> None:
        first = self._first.get(name)
        if len(name) > LONGEST_NAME:
            self._fault(scalar, path, f"the port name {name!r} is too long", "shorten the node's label")
        elif first is not None:
            problem = f"{scalar.value} would be port {name!r}, which {first.value} on line {first.line} is already"
            self._fault(scalar, path, problem, "remove one of them, or change a label")
        else:
            self._enter(name, scalar, path)
            self._lead(name, scalar, path, end)

    def _placeholder(self, name: str, scalar: Scalar, path: str, end: PortEnd | None) -> None:
        """Note a use of a placeholder; `end` is None where it is only a number among words."""
        first = self._first.get(name)
        if first is not None and _PLACEHOLDER_BEGINS not in first.value:
            problem = f"${{PORT_{name}}} would be port {name!r}, which {first.value} on line {first.line} is already"
            self._fault(scalar, path, problem, "choose another name for the placeholder")
            return
        if first is None:
            self._enter(name, scalar, path)
        if end is not None:
            self._lead(name, scalar, path, end)

    def _enter(self, name: str, scalar: Scalar, path: str) -> None:
        self._first[name] = scalar
        self._ends[name] = []
        if len(self._ends) == len(OPEN_PORTS) + 1:
            self._fault(scalar, path, f"more than {len(OPEN_PORTS)} ports; a worker has no more", "split the lab")

    def _lead(self, name: str, scalar: Scalar, path: str, end: PortEnd) -> None:
        """Note what a port leads to. Two ports that lead to the same could not be told apart on a running lab."""
        known = self._names.get(end)
        if known is None:
            self._names[end] = name
            self._ends[name].append(end)
        elif known != name:
            problem = f"{shown(scalar.value)} leads to the same as {shown(self._first[known].value)}, port {known!r}"
            self._fault(scalar, path, problem, "remove one of them, or change a label")

    def _fault(self, scalar: Scalar, path: str, problem: str, remedy: str) -> None:
        where = f"line {scalar.line}: {path}" if path else f"line {scalar.line}"
        self._faulty.add(scalar.ordinal)
        self.faults.append(Fault(where, problem, remedy))


def _use(ends: Sequence[PortEnd]) -> PortUse:
    if not ends:
        return PortUse(kind="placeholder")
    first, *others = ends
    return PortUse(
        kind=first.kind,
        node=first.node,
        line=first.line,
        protocol=first.protocol,
        inside=first.inside,
        also=tuple(others),
    )
