"""Simulated labs as documents: the topology that CML's API shows, and the YAML file that can be imported again."""

from typing import Any, Final

import yaml

from lcm.sim.cml.parts import Files, Interface, Lab, Node

Json = dict[str, Any]

VERSION: Final = "0.3.0"
ALL_FILES, MAIN_FILE, NO_FILES = "all", "main", "none"
_SPEC: Final = (
    "x",
    "y",
    "label",
    "node_definition",
    "image_definition",
    "ram",
    "cpus",
    "cpu_limit",
    "data_volume",
    "boot_disk_size",
    "hide_links",
    "parameters",
    "tags",
)


def topology(lab: Lab, form: str = MAIN_FILE) -> Json:
    """Write a lab as CML's API does; `form` says how configurations are shown."""
    heading = {"version": VERSION, "title": lab.title, "description": lab.description, "notes": lab.notes}
    return {
        "lab": heading | {"owner": lab.owner_id},
        "nodes": [_node(node, form) for node in lab.nodes.values()],
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


def spec(node: Node) -> Json:
    """Write what was asked for of a node, without its configuration."""
    return {name: getattr(node.spec, name) for name in _SPEC}


def configuration(files: Files, form: str) -> Json:
    """Write a configuration in the form asked for, as the entry of a larger object."""
    if form == NO_FILES:
        return {}
    if form == MAIN_FILE:
        return {"configuration": files[0].content if files else None}
    return {"configuration": [{"name": one.name, "content": one.content or ""} for one in files]}


def download(lab: Lab) -> str:
    """Write a lab as a file that can be imported again."""
    names = {node.id: f"n{number}" for number, node in enumerate(lab.nodes.values())}
    ends = {one.id: f"i{k}" for node in lab.nodes.values() for k, one in enumerate(node.interfaces)}
    document = {
        "annotations": [_without_id(one) for one in lab.annotations.values()],
        "smart_annotations": [_without_id(one) for one in lab.smart_annotations.values()],
        "nodes": [
            {"id": names[node.id]}
            | spec(node)
            | configuration(node.files, ALL_FILES)
            | {"interfaces": [_interface(one) | {"id": ends[one.id]} for one in node.interfaces]}
            for node in lab.nodes.values()
        ],
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
        "lab": {"version": VERSION, "title": lab.title, "description": lab.description, "notes": lab.notes},
    }
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096)


def tile(lab: Lab, age: float) -> Json:
    """Write the small picture of a lab."""
    nodes = [
        {"id": node.id, "lab_id": lab.id, "state": node.life.state(age)} | spec(node) for node in lab.nodes.values()
    ]
    return topology(lab, NO_FILES) | {"nodes": nodes}


def _node(node: Node, form: str) -> Json:
    interfaces = [_interface(one) for one in node.interfaces]
    return {"id": node.id} | spec(node) | configuration(node.files, form) | {"interfaces": interfaces}


def _interface(one: Interface) -> Json:
    entry: Json = {"id": one.id, "label": one.label, "type": one.type, "mac_address": one.mac_address}
    return entry if one.slot is None else entry | {"slot": one.slot}


def _without_id(annotation: Json) -> Json:
    return {key: value for key, value in annotation.items() if key != "id"}


class _Dumper(yaml.CSafeDumper):
    """Writes texts of several lines as blocks and repeats itself rather than using aliases."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
