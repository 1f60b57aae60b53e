"""Labs as CML saved them: the names of their ports, and how they differ from what a definition has. Pure.

A lab is saved with the ports of its session in its tags. Most ports are named after what they lead to, and so they are
found again. One that had a placeholder gets it back here, or its name would be lost. Called by
`control.objects.lab_files` and `control.admission.continuation`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lcm.model.base.resource import Part
from lcm.model.base.yaml_tree import BYTE_ORDER_MARK, YamlMapping, YamlScalar
from lcm.model.kinds.definition import PortEnd, PortTemplate
from lcm.model.topology.lab import LabNode, ParsedLab
from lcm.model.topology.lab_text import FieldReader, LabText, read_lab_text
from lcm.model.topology.ports import port_name, read_tag

_MOST_NAMED: Final = 5
_COMPARED: Final = (
    *("node_definition", "image_definition", "cpus", "cpu_limit_percent"),
    *("ram_mb", "boot_disk_gb", "data_volume_gb"),
)


def restore_placeholders(data: bytes, template: PortTemplate) -> bytes:
    """Return a saved lab with placeholders in place of the ports that had them in its original.

    Everything else stays as it is, byte for byte. Raises what `parse_lab` raises.
    """
    named = {end: name for name, use in template.items() for end in use.ends if name != port_name(end)}
    if not named:
        return data
    document = read_lab_text(data)
    pieces, done = list[str](), 0
    for scalar, value in sorted(_find_renamed(document, named), key=lambda one: one[0].start):
        start, end = document.span(scalar)
        pieces += (document.text[done:start], f"'{value}'")
        done = end
    pieces.append(document.text[done:])
    return ((BYTE_ORDER_MARK if document.has_bom else "") + "".join(pieces)).encode()


def _find_renamed(document: LabText, named: Mapping[PortEnd, str]) -> Iterator[tuple[YamlScalar, str]]:
    """Yield the tags whose port had a placeholder, and the smart annotations that repeat them."""
    fields, renamed = FieldReader(), dict[str, str]()
    root = document.root
    if not isinstance(root, YamlMapping):
        return
    for path, node in fields.tables(root, "nodes"):
        label = fields.text(node, "label", path, most=128)
        for _, scalar in fields.members(node, "tags", path):
            tag = read_tag(scalar.value) if isinstance(scalar, YamlScalar) else None
            name = named.get(tag.end(label)) if tag is not None and tag.outside is not None else None
            if name is not None and tag is not None and isinstance(scalar, YamlScalar):
                head, _, tail = tag.text.partition(str(tag.outside))
                renamed[tag.text] = f"{head}${{PORT_{name}}}{tail}"
                yield scalar, renamed[tag.text]
    for _, note in fields.tables(root, "smart_annotations"):
        for repeats in (note.entries.get("tag"), note.entries.get("label")):
            if isinstance(repeats, YamlScalar) and repeats.value in renamed:
                yield repeats, renamed[repeats.value]


class LabDifference(Part):
    """How a saved lab differs from the lab of a definition; nodes by their labels, links and ports by their number."""

    only_saved: tuple[str, ...] = ()
    only_defined: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    links: tuple[int, int] | None = None
    ports: tuple[int, int] | None = None

    @property
    def is_none(self) -> bool:
        """Whether both have the same nodes, links and ports."""
        return self == _NO_DIFFERENCE

    def describe(self, definition: str) -> Sequence[str]:
        """Return the differences in words, each a part of a sentence."""
        parts = [
            f"it has {_name_some(self.only_saved)}, which {definition} does not have" if self.only_saved else "",
            f"{definition} has {_name_some(self.only_defined)}, which it does not have" if self.only_defined else "",
            f"in {definition} of another kind or size: {_name_some(self.changed)}" if self.changed else "",
            f"it has {self.links[0]} links, {definition} has {self.links[1]}" if self.links else "",
            f"it has {self.ports[0]} ports, {definition} has {self.ports[1]}, not the same" if self.ports else "",
        ]
        return [part for part in parts if part]


_NO_DIFFERENCE: Final = LabDifference()


def compare_labs(saved: ParsedLab, defined: ParsedLab) -> LabDifference:
    """Compare a saved lab with the lab of a definition. What one of them leaves to CML's defaults is no difference."""
    ours, theirs = ({node.label: node for node in lab.nodes} for lab in (saved, defined))
    changed = (label for label, node in ours.items() if label in theirs and _differs(node, theirs[label]))
    alike = _count_links(saved) == _count_links(defined)
    ends = [{end for use in lab.port_template.values() for end in use.ends} for lab in (saved, defined)]
    return LabDifference(
        only_saved=tuple(sorted(ours.keys() - theirs.keys())),
        only_defined=tuple(sorted(theirs.keys() - ours.keys())),
        changed=tuple(sorted(changed)),
        links=None if alike else (saved.link_count, defined.link_count),
        ports=None if ends[0] == ends[1] else (len(ends[0]), len(ends[1])),
    )


def _differs(one: LabNode, other: LabNode) -> bool:
    pairs = ((getattr(one, name), getattr(other, name)) for name in _COMPARED)
    return any(mine and theirs and mine != theirs for mine, theirs in pairs)


def _count_links(lab: ParsedLab) -> Counter[frozenset[str]]:
    labels = {node.node_id: node.label for node in lab.nodes}
    return Counter(frozenset((labels[link.n1], labels[link.n2])) for link in lab.links)


def _name_some(labels: Sequence[str]) -> str:
    more = len(labels) - _MOST_NAMED
    return ", ".join(labels[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
