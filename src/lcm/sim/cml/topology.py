"""Topology files into simulated labs, and labs back into files.

Files are read with a safe parser, checked, refused with 400 or built. Labs are written as CML's API shows them, or as
YAML that can be imported again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import yaml

from lcm.sim.cml.faults import CmlRefusal, bad_request
from lcm.sim.cml.labs import CmlCore, Labs
from lcm.sim.cml.parts import Files, Interface, Node, SimLab
from lcm.sim.cml.rest.documents import SIZES, Json, LabUpdate, LinkFile, NodeFile, NodeSpec, TopologyFile
from lcm.sim.cml.wiring import check_annotation, connect, sync_smart_annotations

VERSION: Final = "0.3.0"
ALL_FILES, MAIN_FILE, NO_FILES = "all", "main", "none"
_NODE_FIELDS: Final = (
    *("x", "y", "label", "node_definition", "image_definition"),
    *SIZES,
    *("hide_links", "parameters", "tags"),
)


def write_topology(lab: SimLab, form: str = MAIN_FILE) -> Json:
    """Return a lab as CML's API writes it; `form` says how configurations are shown."""
    heading = {"version": VERSION, "title": lab.title, "description": lab.description, "notes": lab.notes}
    return {
        "lab": heading | {"owner": lab.owner_id},
        "nodes": [
            {"id": node.id}
            | write_spec(node)
            | write_configuration(node.files, form)
            | {"interfaces": [_write_interface(one) for one in node.interfaces]}
            for node in lab.nodes.values()
        ],
        "links": [
            {
                "id": link.id,
                "interface_a": link.a.id,
                "interface_b": link.b.id,
                "node_a": link.a.node_id,
                "node_b": link.b.node_id,
                "label": link.label,
                "conditioning": link.conditioning,
            }
            for link in lab.links.values()
        ],
        "annotations": list(lab.annotations.values()),
        "smart_annotations": list(lab.smart_annotations.values()),
    }


def write_spec(node: Node) -> Json:
    """Return what was requested of a node, without its configuration."""
    return {name: getattr(node.spec, name) for name in _NODE_FIELDS}


def write_configuration(files: Files, form: str) -> Json:
    """Return a configuration in the requested form, as an entry of a larger object."""
    if form == NO_FILES:
        return {}
    if form == MAIN_FILE:
        return {"configuration": files[0].content if files else None}
    return {"configuration": [{"name": one.name, "content": one.content or ""} for one in files]}


def write_lab_file(lab: SimLab) -> str:
    """Return a lab as a file that can be imported again."""
    names = {node.id: f"n{number}" for number, node in enumerate(lab.nodes.values())}
    ends = {one.id: f"i{k}" for node in lab.nodes.values() for k, one in enumerate(node.interfaces)}
    nodes = [
        {"id": names[node.id]}
        | write_spec(node)
        | write_configuration(node.files, ALL_FILES)
        | {"interfaces": [_write_interface(one) | {"id": ends[one.id]} for one in node.interfaces]}
        for node in lab.nodes.values()
    ]
    rest = {
        "links": [
            {
                "id": f"l{number}",
                "n1": names[link.a.node_id],
                "i1": ends[link.a.id],
                "n2": names[link.b.node_id],
                "i2": ends[link.b.id],
                "label": link.label,
                "conditioning": link.conditioning,
            }
            for number, link in enumerate(lab.links.values())
        ],
    }
    notes = {
        "annotations": [_without_id(one) for one in lab.annotations.values()],
        "smart_annotations": [_without_id(one) for one in lab.smart_annotations.values()],
    }
    heading = {"version": VERSION, "title": lab.title, "description": lab.description, "notes": lab.notes}
    body = [f"- {_write_known(msgspec.json.encode(one), '  ')}" for one in nodes]
    return "".join(
        (
            *_write_block(notes, ""),
            "nodes:\n" if body else "nodes: []\n",
            *body,
            _write_known(msgspec.json.encode(rest), ""),
            *_write_block({"lab": heading}, ""),
        )
    )


def write_tile(lab: SimLab, age: float) -> Json:
    """Return the small overview of a lab."""
    nodes = [
        {"id": node.id, "lab_id": lab.id, "state": node.life.state(age)} | write_spec(node)
        for node in lab.nodes.values()
    ]
    return write_topology(lab, NO_FILES) | {"nodes": nodes}


def _write_interface(one: Interface) -> Json:
    entry: Json = {"id": one.id, "label": one.label, "type": one.type, "mac_address": one.mac_address}
    return entry if one.slot is None else entry | {"slot": one.slot}


def _without_id(annotation: Json) -> Json:
    return {key: value for key, value in annotation.items() if key != "id"}


def _write_block(value: Mapping[str, Any] | Sequence[Any], indent: str) -> Iterator[str]:
    """Yield a mapping or a list that is not empty, from where its first line begins, as YAML dumps it."""
    is_map = isinstance(value, Mapping)
    for number, (key, one) in enumerate(value.items() if isinstance(value, Mapping) else enumerate(value)):
        yield f"{indent if number else ''}{_write_scalar(key) + ':' if is_map else '-'}"
        if isinstance(one, dict | list) and one:
            deeper = indent if is_map and isinstance(one, list) else f"{indent}  "
            yield f"\n{deeper}" if is_map else " "
            yield from _write_block(one, deeper)
        elif isinstance(one, dict | list):
            yield " {}\n" if isinstance(one, dict) else " []\n"
        else:
            yield f" {_NEXT_LINE.sub(lambda _: chr(10) + indent, _write_scalar(one))}\n"


@lru_cache(512)
def _write_known(document: bytes, indent: str) -> str:
    """Return a part of a lab, given as JSON, as `_write_block` does: labs of one definition have the same parts."""
    return "".join(_write_block(msgspec.json.decode(document), indent))


_NEXT_LINE: Final = re.compile(r"\n(?=[^\n])")


@lru_cache(4096, typed=True)
def _write_scalar(value: float | str | None) -> str:
    """Return a scalar as it stands behind a key that is not indented. Labs have the same ones again and again."""
    written = yaml.dump({"k": value}, Dumper=_TopologyDumper, allow_unicode=True, width=4096)
    return written.removeprefix("k: ").removesuffix("...\n").removesuffix("\n")


class _TopologyDumper(yaml.CSafeDumper):
    """Writes texts of several lines as blocks."""


_TopologyDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", str(text), style="|" if "\n" in text else None
    ),
)

_MOST_DEPTH: Final = 40
_LONGEST_TITLE: Final = 64
_SPEC_FIELDS: Final = NodeSpec.__struct_fields__


def read_topology(text: str | bytes) -> TopologyFile:
    """Parse a topology file, YAML or JSON."""
    try:
        document = _load(text)
        return msgspec.convert(_upgrade(document), TopologyFile)
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise bad_request(f"Invalid topology: {error}") from error


def build_lab(
    labs: Labs, core: CmlCore, file: TopologyFile, owner_id: str, title: str | None = None
) -> tuple[SimLab, list[str]]:
    """Make a lab of a topology file; return it with warnings. A file that cannot be built leaves nothing behind."""
    _check_file(file)
    if title is not None and not 1 <= len(title) <= _LONGEST_TITLE:
        raise bad_request("A title has 1 to 64 characters.")
    named = title or file.lab.title
    texts = LabUpdate(description=file.lab.description, notes=file.lab.notes)
    if named:
        texts.title = named
    lab = labs.create(owner_id, texts)
    try:
        places = {node.id: _build_node(labs, core, lab, node) for node in file.nodes}
        for link in file.links:
            _build_link(core, lab, link, places)
    except CmlRefusal:
        labs.delete(lab)
        raise
    lab.annotations = {ref: {"id": ref} | check_annotation(one) for one in file.annotations if (ref := core.ids())}
    sync_smart_annotations(lab, core.ids, file.smart_annotations)
    core.telemetry.record("import_lab", lab_id=lab.id)
    unknown = sorted({node.node_definition for node in file.nodes} - labs.kinds.keys())
    return lab, [f"Node definition `{one}` is not available." for one in unknown]


_InterfacesByNode = dict[str, dict[str, Interface]]


def _check_file(file: TopologyFile) -> None:
    if file.lab.timestamp is not None and not file.lab.version.startswith("0.0."):
        raise bad_request("Invalid topology: Object contains unknown field `timestamp` - at `$.lab`")
    for what, ids in (("node", [one.id for one in file.nodes]), ("link", [one.id for one in file.links])):
        if len(set(ids)) < len(ids):
            raise bad_request(f"Invalid topology: a {what} id is used twice.")
    for annotation in file.annotations:
        check_annotation(annotation)


def _build_node(labs: Labs, core: CmlCore, lab: SimLab, file: NodeFile) -> dict[str, Interface]:
    spec = NodeSpec(**{name: getattr(file, name) for name in _SPEC_FIELDS})
    node = labs.put_node(lab, spec)
    places: dict[str, Interface] = {}
    for number, one in enumerate(file.interfaces):
        if one.id in places:
            raise bad_request(f"Invalid topology: interface {one.id} of node {file.id} is there twice.")
        usual = f"Loopback{number}" if one.slot is None else node.kind.interface_label(one.slot)
        places[one.id] = Interface(core.ids(), node.id, one.label or usual, one.type, one.slot, one.mac_address)
    node.interfaces = list(places.values())
    return places


def _build_link(core: CmlCore, lab: SimLab, file: LinkFile, places: _InterfacesByNode) -> None:
    ends = []
    for node, interface in ((file.n1, file.i1), (file.n2, file.i2)):
        if interface not in places.get(node, {}):
            raise bad_request(f"Invalid topology: link {file.id} refers to {node}/{interface}, which is not there.")
        ends.append(places[node][interface])
    connect(lab, core.ids(), ends[0], ends[1], file.label).conditioning = file.conditioning


def _upgrade(document: Any) -> Any:  # noqa: ANN401  not checked yet
    """Convert what older releases wrote to the newest schema: sizes of 0, fractions of a pixel, missing tags."""
    match document:
        case {"lab": {"version": str(version)}, "nodes": [*nodes]} if version != VERSION:
            return document | {"nodes": [_upgrade_node(one) if isinstance(one, dict) else one for one in nodes]}
        case _:
            return document


def _upgrade_node(node: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in node.items() if value or key not in (*SIZES, "tags")}
    places = {key: round(kept[key]) for key in ("x", "y") if isinstance(kept.get(key), float)}
    return kept | places


def _load(text: str | bytes) -> Any:  # noqa: ANN401  not checked yet
    """Read a document as PyYAML's safe loader does, in one pass. What only some files have is left to that loader."""
    root: list[Any] = []
    within: list[tuple[Any, list[Any]]] = [(root, [])]
    """The collections that are open, and of mappings the key whose value comes next."""
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        kind = type(event)
        if kind is yaml.ScalarEvent:
            if event.tag is not None or event.value == _MERGE_KEY:
                return yaml.load(text, Loader=yaml.CSafeLoader)
            _attach(*within[-1], _read_scalar(event.value) if event.implicit[0] else event.value)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            found: Any = {} if kind is yaml.MappingStartEvent else []
            _attach(*within[-1], found)
            within.append((found, []))
            if len(within) > _MOST_DEPTH + 1:
                raise bad_request("Invalid topology: nested too deeply.")
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            within.pop()
        elif kind is yaml.AliasEvent:
            raise bad_request("Invalid topology: aliases are not supported.")
    return root[0] if len(root) == 1 else yaml.load(text, Loader=yaml.CSafeLoader)


def _attach(collection: Any, key: list[Any], value: Any) -> None:  # noqa: ANN401  not checked yet
    if type(collection) is list:
        collection.append(value)
    elif not key:
        if isinstance(value, dict | list):
            raise bad_request("Invalid topology: a key that is a list or a mapping.")
        key.append(value)
    else:
        collection[key.pop()] = value


_MERGE_KEY: Final = "<<"
_SCALARS: Final = yaml.SafeLoader("")


@lru_cache(4096)
def _read_scalar(text: str) -> Any:  # noqa: ANN401  likewise
    """Return what a scalar without quotes means."""
    tag = _SCALARS.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # its stubs say nothing of it
    return _SCALARS.construct_document(yaml.ScalarNode(tag, text))
