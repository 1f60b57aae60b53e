"""Documents as people write them: short ones, ones with a value in every field, and lab files in many layouts."""

import copy
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from msgspec import Struct, inspect

from harness import suite
from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.validate import parse_document

AWS = {"ami_name_pattern": "CML-2.9*"}
SLOT = {"timeslot_start": "2026-11-02T09:00:00Z", "timeslot_end": "2026-11-02T11:00:00Z"}
MINIMAL: dict[str, dict[str, Any]] = {
    "LabWorker": {"metadata": {"name": "w1"}, "spec": {"aws": AWS}},
    "LabWorkerPool": {"metadata": {"name": "ccna"}, "spec": {"lab_track": "ccna", "template": "metal"}},
    "WorkerTemplate": {"metadata": {"name": "metal"}, "spec": {"worker": {"aws": AWS}}},
    "LabletDefinition": {
        "metadata": {"name": "basics:1.0.0"},
        "spec": {"version": "1.0.0", "topology": {"uri": "s3://labs/basics.yaml"}},
    },
    "LabletSession": {"metadata": {"name": "s1"}, "spec": {"definition": "basics:1.0.0", **SLOT}},
    "Reservation": {"metadata": {"name": "r1"}, "spec": {"definition": "basics:1.0.0", **SLOT}},
    "SystemSettings": {"metadata": {"name": "system"}},
    "Sink": {"metadata": {"name": "pager"}, "spec": {"url": "https://events.example.org"}},
}
SERIES = {"every": "week", "until": "2026-12-14", "time_zone": "Europe/Berlin"}


def document(kind: str, **spec: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": kind, **copy.deepcopy(MINIMAL[kind])}
    if spec:
        made["spec"] = made.get("spec", {}) | spec
    return made


def faults(value: object) -> tuple[Fault, ...]:
    with pytest.raises(Invalid) as raised:
        parse_document(value)
    return raised.value.faults


def paths(value: object) -> list[str]:
    return [fault.path for fault in faults(value)]


TEXTS = ("text", "1.0.0", "env:NAME", "s3://labs/basics.yaml", "sha256:" + 64 * "a", "ada@example.org", "us-east-1")
SIMPLE: dict[type[inspect.Type], object] = {
    inspect.BoolType: True,
    inspect.IntType: 12,
    inspect.FloatType: 0.5,
    inspect.DecimalType: "3.9641",
    inspect.DateTimeType: "2026-11-02T09:00:00Z",
    inspect.DateType: "2026-12-14",
}


def filled_document(kind: type[Struct]) -> dict[str, Any]:
    """Fill every field of a kind."""
    return {field.encode_name: value(field.type) for field in fields(inspect.type_info(kind))}


def fields(info: inspect.Type) -> tuple[inspect.Field, ...]:
    assert isinstance(info, inspect.StructType)
    return info.fields


def value(info: inspect.Type) -> Any:
    """Make a sound value of a type."""
    match info:
        case inspect.Metadata(type=inner):
            made = value(inner)
        case inspect.UnionType(types=types):
            made = value(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.StructType(cls=kind):
            made = filled_document(kind)
        case inspect.DictType(key_type=key, value_type=item):
            made = {value(key): value(item)}
        case inspect.VarTupleType(item_type=item):
            made = [value(item)]
        case inspect.StrType(pattern=pattern):
            made = next(text for text in TEXTS if pattern is None or re.search(pattern, text))
        case inspect.EnumType(cls=options):
            made = next(iter(options)).value
        case inspect.LiteralType(values=values):
            made = values[0]
        case _:
            made = SIMPLE[type(info)]
    return made


def structs(kind: type[Struct]) -> set[type[Struct]]:
    """Collect a struct and every one within it."""
    found: set[type[Struct]] = set()
    waiting = [inspect.type_info(kind)]
    while waiting:
        match waiting.pop():
            case inspect.StructType(cls=struct, fields=inside) if struct not in found:
                found.add(struct)
                waiting += [field.type for field in inside]
            case inspect.Metadata(type=inner):
                waiting.append(inner)
            case inspect.UnionType(types=types):
                waiting += types
            case inspect.DictType(value_type=item) | inspect.VarTupleType(item_type=item):
                waiting.append(item)
    return found


FILES = suite.TOPOLOGIES


def node(*tags: str, label: str = "R1", number: int = 0, more: str = "") -> str:
    """Write a node with these tags as they stand; `more` are further lines."""
    lines = [
        f"- id: n{number}",
        f"  label: {label}",
        "  node_definition: iosv",
        "  x: 0",
        "  y: 0",
        "  tags:" if tags else "  tags: []",
        *(f"  - {tag}" for tag in tags),
        *(f"  {line}" for line in more.splitlines()),
    ]
    return "\n".join(lines)


def lab(*nodes: str, annotations: str = "[]", links: str = "[]", more: str = "") -> bytes:
    """Write a lab: its first node begins on line 5 and its first tag stands on line 11."""
    heading = f"lab: {{version: 0.3.0, title: t}}\nsmart_annotations: {annotations}\nlinks: {links}\n"
    body = "".join(f"{one}\n" for one in nodes)
    return f"{heading}nodes:{'' if nodes else ' []'}\n{body}{more}".encode()


class Tag(NamedTuple):
    """A tag to write: the text before its port, the port's name, the text after it, and the quotes around it all."""

    head: str
    name: str = ""
    tail: str = ""
    quote: str = ""

    def written(self, values: Mapping[str, str]) -> str:
        return f"{self.quote}{self.head}{values[self.name] if self.name else ''}{self.tail}{self.quote}"


class Layout(NamedTuple):
    """How a lab is written."""

    step: int
    inset: bool
    flow: bool
    newline: str
    bom: bool
    comment: str
    annotations_first: bool
    prose: str


class Made(NamedTuple):
    """A made-up lab: the tags of its nodes by label, and what its author wrote for each port."""

    tags: Mapping[str, list[Tag]]
    values: Mapping[str, str]
    annotated: bool
    layout: Layout

    def original(self) -> bytes:
        """Write it as its author did."""
        return self._written(self.values)

    def with_ports(self, ports: Mapping[str, int]) -> bytes:
        """Write it with these ports: what a rewrite must give."""
        return self._written({name: str(port) for name, port in ports.items()})

    def ports(self, first: int) -> dict[str, int]:
        """Number its ports."""
        return {name: first + number for number, name in enumerate(self.values)}

    def _written(self, values: Mapping[str, str]) -> bytes:
        look = self.layout
        sections = [self._nodes(values), ["links: []"], self._heading(values)]
        sections.insert(0 if look.annotations_first else 2, self._annotations(values))
        text = "".join(line + look.newline for section in sections for line in section)
        return (("\ufeff" if look.bom else "") + text).encode()

    def _annotations(self, values: Mapping[str, str]) -> list[str]:
        tags = [tag for tags in self.tags.values() for tag in tags if tag.name and self.annotated]
        lines = [f"smart_annotations:{'' if tags else ' []'}"]
        for number, tag in enumerate(tags):
            written = tag.written(values)
            lines += self._item([f"tag: {written}{self.layout.comment}", f"label: {written if number % 2 else 'x'}"])
        return lines

    def _nodes(self, values: Mapping[str, str]) -> list[str]:
        lines = ["nodes:" if self.tags else "nodes: []"]
        for number, (label, tags) in enumerate(self.tags.items()):
            fields = [f"id: n{number}", f'label: "{label}"', "x: 0", "y: 0", "node_definition: iosv"]
            fields += ["configuration: |-", f"{' ' * self.layout.step}! {self.layout.prose}"]
            lines += self._item([*fields, *self._tags([tag.written(values) for tag in tags])])
        return lines

    def _tags(self, written: list[str]) -> list[str]:
        comment = self.layout.comment
        if self.layout.flow or not written:
            return [f"tags: [{', '.join(written)}]{comment}"]
        return ["tags:", *(line for one in written for line in self._item([one + comment]))]

    def _heading(self, values: Mapping[str, str]) -> list[str]:
        step = " " * self.layout.step
        held = [f"{step * 2}- see {values[name]}" for name, value in self.values.items() if value.startswith("$")]
        return ["lab:", f"{step}version: 0.3.0", f"{step}notes: |", f"{step * 2}{self.layout.prose}", *held]

    def _item(self, lines: list[str]) -> list[str]:
        """Write lines as one item of a block list."""
        step = self.layout.step
        left = " " * step if self.layout.inset else ""
        return [left + ("-".ljust(step) if number == 0 else " " * step) + line for number, line in enumerate(lines)]


_LABELS = st.text(st.sampled_from("aZ09_.- é日🙂/"), min_size=1, max_size=8)
_FREE = st.sampled_from(["core", "'it''s free'", '"ü\\n"', "serial", "vnc-host", "'#5041'", "größe"])
_PROSE = "serial:5041 ü vnc:5042 pat:5043:22 🙂"
_LAYOUTS = st.builds(
    Layout,
    step=st.sampled_from([2, 4]),
    inset=st.booleans(),
    flow=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
    comment=st.sampled_from(["", "  # serial:5041 ä ${PORT_NOT}"]),
    annotations_first=st.booleans(),
    prose=st.sampled_from([_PROSE, "plain"]),
)
_FORMS = {
    "_serial": ("serial:", ""),
    "_serial_0": ("serial:", ":0"),
    "_serial_7": ("serial:", ":7"),
    "_vnc": ("vnc:", ""),
    "_pat_tcp_22": ("pat:", ":22"),
    "_pat_tcp_443": ("pat:tcp:", ":443"),
    "_pat_udp_161": ("pat:udp:", ":161"),
}


@st.composite
def made_up(draw: st.DrawFn, *, shared: bool = False) -> Made:
    """Make up a lab whose ports all have names of their own; `shared` lets one placeholder stand in several tags."""
    layout = draw(_LAYOUTS)
    labels = draw(st.lists(_LABELS, max_size=4, unique_by=_clean))
    values: dict[str, str] = {}
    tags: dict[str, list[Tag]] = {}
    for label in labels:
        tags[label] = [Tag(one) for one in draw(st.lists(_FREE, max_size=2))]
        for ending in draw(st.lists(st.sampled_from(sorted(_FORMS)), max_size=4, unique=True)):
            head, tail = _FORMS[ending]
            number = len(values)
            held = draw(st.booleans())
            name = f"HELD{number}" if held else _clean(label) + ending
            if held and shared:
                name = draw(st.sampled_from([name, *(one for one in values if one.startswith("HELD"))]))
            values[name] = f"${{PORT_{name}}}" if held else str(5000 + number)
            quote = draw(st.sampled_from(["'", '"'] if held and layout.flow else ["", "'", '"']))
            tags[label].append(Tag(head, name, tail, quote))
    return Made(tags, values, draw(st.booleans()), layout)


def _clean(label: str) -> str:
    return "".join(one if one.isascii() and (one.isalnum() or one in "_.-") else "_" for one in label)
