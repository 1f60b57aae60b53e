"""Port tags: their grammar, the names of their ports, and where a file holds them. Called by `topology` and observers.

`serial:N[:line]`, `vnc:N` and `pat:[tcp|udp:]OUT:IN` say what CML serves on which of its own ports. In place of N or
OUT, and anywhere else in the file, a placeholder `${PORT_X}` may stand for port X.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from lcm.model.definition import PortTemplate, PortUse
from lcm.model.errors import Fault
from lcm.model.resource import Part
from lcm.model.topology_yaml import Document, Scalar, shown

LAST_PORT: Final = 65535
LAST_LINE: Final = 99
LONGEST_NAME: Final = 128
PLACEHOLDER: Final = re.compile(r"\$\{PORT_([A-Za-z0-9_.-]{1,128})\}")
_PLACEHOLDER_BEGINS: Final = "${PORT_"
_OUTSIDE: Final = r"(?P<outside>[1-9][0-9]{0,4}|\$\{PORT_[A-Za-z0-9_.-]{1,128}\})"
_PORT_TAG: Final = re.compile(
    rf"(?P<head>serial:|vnc:|pat:(?:(?:tcp|udp):)?){_OUTSIDE}(?::(?P<tail>0|[1-9][0-9]{{0,4}}))?"
)
_LIKE_PORT_TAG: Final = re.compile(r"\s*(?:serial|vnc|pat)\s*:", re.IGNORECASE)
_UNCLEAN: Final = re.compile(r"[^A-Za-z0-9_.-]")
_FORMS: Final = "write serial:N, serial:N:LINE, vnc:N, pat:OUT:IN, pat:tcp:OUT:IN or pat:udp:OUT:IN"


class PortTag(Part):
    """One port tag. `outside` is None when a placeholder stands in its place."""

    text: str
    kind: Literal["serial", "vnc", "pat"]
    outside: int | None
    line: int | None = None
    protocol: Literal["tcp", "udp"] | None = None
    inside: int | None = None

    def use(self, label: str) -> PortUse:
        """Say what the port leads to when the tag is on a node of this label."""
        return PortUse(kind=self.kind, node=label, line=self.line, protocol=self.protocol, inside=self.inside)


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
    found = (read_tag(tag) for tag in tags)
    return frozenset(tag.outside for tag in found if tag is not None and tag.outside is not None)


def port_name(use: PortUse) -> str:
    """Name a port after what it leads to; characters of the label that a name cannot hold become `_`."""
    label = _UNCLEAN.sub("_", use.node)
    if use.kind == "serial":
        return f"{label}_serial" if use.line is None else f"{label}_serial_{use.line}"
    return f"{label}_vnc" if use.kind == "vnc" else f"{label}_pat_{use.protocol}_{use.inside}"


def ports_on(nodes: Iterable[tuple[str, Iterable[str]]], template: PortTemplate) -> dict[str, int]:
    """Name the ports that the tags on these nodes (label, tags) hold now, as the template names them."""
    known = {use: name for name, use in template.items() if use.kind != "placeholder"}
    held: dict[str, int] = {}
    for label, tags in nodes:
        for tag in filter(None, map(read_tag, tags)):
            if tag.outside is not None:
                use = tag.use(label)
                held[known.get(use) or port_name(use)] = tag.outside
    return held


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
        self.template: dict[str, PortUse] = {}
        self.sites: dict[int, Site] = {}
        self.faults: list[Fault] = []
        self._first: dict[str, Scalar] = {}
        self._by_text: dict[str, list[str]] = {}

    def add_node(self, node: Tagged) -> None:
        """Take in the tags of a node."""
        for path, scalar in node.tags:
            tag = self._checked(scalar, path)
            if tag is None:
                continue
            use = tag.use(node.label)
            if tag.outside is None:
                self._placeholder(PLACEHOLDER.findall(scalar.value)[0], scalar, path, use)
            else:
                name = port_name(use)
                self._name(name, scalar, path, use)
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
                parts = PLACEHOLDER.split(scalar.value)
                for name in parts[1::2]:
                    self._placeholder(name, scalar, "", None)
                if len(parts) > 1:
                    self.sites[scalar.ordinal] = Site(scalar, "", parts)

    def _checked(self, scalar: Scalar, path: str) -> PortTag | None:
        """Read a tag; one that looks like a port tag and is none is a fault, for its port would stay as it is."""
        tag = read_tag(scalar.value)
        if tag is None and _LIKE_PORT_TAG.match(scalar.value):
            self._fault(scalar, path, f"the port tag {shown(scalar.value)} cannot be rewritten", _FORMS)
        elif _PLACEHOLDER_BEGINS in PLACEHOLDER.sub("", scalar.value):
            remedy = "write ${PORT_NAME} with letters, digits, '_', '.' and '-'"
            self._fault(scalar, path, f"the placeholder in {shown(scalar.value)} cannot be rewritten", remedy)
        return tag

    def _site(self, scalar: Scalar, path: str, name: str, tag: PortTag) -> None:
        head, _, tail = tag.text.partition(str(tag.outside))
        self.sites[scalar.ordinal] = Site(scalar, path, (head, name, tail))

    def _name(self, name: str, scalar: Scalar, path: str, use: PortUse) -> None:
        first = self._first.get(name)
        if len(name) > LONGEST_NAME:
            self._fault(scalar, path, f"the port name {name!r} is too long", "shorten the node's label")
        elif first is not None:
            problem = f"{scalar.value} would be port {name!r}, which {first.value} on line {first.line} is already"
            self._fault(scalar, path, problem, "remove one of them, or change a label")
        else:
            self._first[name] = scalar
            self.template[name] = use

    def _placeholder(self, name: str, scalar: Scalar, path: str, use: PortUse | None) -> None:
        """Note a use of a placeholder. It leads to what its only port tag says; with several it is only a number."""
        first, known = self._first.get(name), self.template.get(name)
        if first is not None and _PLACEHOLDER_BEGINS not in first.value:
            problem = f"${{PORT_{name}}} would be port {name!r}, which {first.value} on line {first.line} is already"
            self._fault(scalar, path, problem, "choose another name for the placeholder")
        elif known is None:
            self._first[name] = scalar
            self.template[name] = use or PortUse(kind="placeholder")
        elif use is not None:
            self.template[name] = PortUse(kind="placeholder")

    def _fault(self, scalar: Scalar, path: str, problem: str, remedy: str) -> None:
        where = f"line {scalar.line}: {path}" if path else f"line {scalar.line}"
        self.faults.append(Fault(where, problem, remedy))
