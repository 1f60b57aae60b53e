"""Saved labs: their ports get back the names they had, everything else stays, and differences are told."""

from pathlib import Path

import pytest

from harness.session_world import SMALL
from lcm.model.topology.lab import parse_lab, rewrite
from lcm.model.topology.ports import OPEN_PORTS
from lcm.model.topology.saved import compare_labs, restore_placeholders

FILES = sorted((Path(__file__).parents[2] / "topologies").glob("*.yaml"))


def numbered(data: bytes, first: int = 0) -> dict[str, int]:
    return dict(zip(sorted(parse_lab(data).port_template), OPEN_PORTS[first:], strict=False))


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_a_lab_that_was_saved_is_rewritten_as_its_original_is(file: Path) -> None:
    original = file.read_bytes()
    template, first, second = parse_lab(original).port_template, numbered(original), numbered(original, 3000)
    saved = rewrite(original, first)
    restored = restore_placeholders(saved, template)
    lab = parse_lab(restored)
    ends = {name: set(use.ends) for name, use in template.items() if use.ends}
    assert {name: set(use.ends) for name, use in lab.port_template.items() if use.ends} == ends
    again = rewrite(restored, second)
    assert parse_lab(again).ports == parse_lab(rewrite(original, second)).ports
    assert compare_labs(parse_lab(again), parse_lab(original)).is_none
    twice = restore_placeholders(again, lab.port_template)
    assert rewrite(twice, first) == rewrite(restored, first), "a second time as the first"


def test_nothing_is_touched_where_ports_are_named_after_what_they_lead_to() -> None:
    data = SMALL.encode()
    assert restore_placeholders(data, parse_lab(data).port_template) is data


def test_smart_annotations_of_a_shared_port_are_restored_with_their_tags() -> None:
    original = SMALL.replace("serial:5001", "'serial:${PORT_con}'").replace("title: the", "title: The")
    original += "smart_annotations: [{id: a1, tag: 'serial:${PORT_con}', label: 'serial:${PORT_con}'}]\n"
    saved = rewrite(original.encode(), numbered(original.encode()))
    restored = restore_placeholders(saved, parse_lab(original.encode()).port_template)
    assert restored.count(b"serial:${PORT_con}") == 3
    assert "con" in parse_lab(restored).port_template


def test_differences_name_the_nodes() -> None:
    saved = parse_lab(SMALL.encode())
    other = parse_lab(SMALL.replace("label: PC", "label: R1").replace("links: [{", "links: [] #").encode())
    told = compare_labs(saved, other).describe("basics:2.0.0")
    assert told == [
        "it has PC, which basics:2.0.0 does not have",
        "basics:2.0.0 has R1, which it does not have",
        "it has 1 links, basics:2.0.0 has 0",
        "it has 3 ports, basics:2.0.0 has 3, not the same",
    ]
    larger = parse_lab(SMALL.replace("node_definition: server", "node_definition: server\n    ram: 512").encode())
    assert compare_labs(saved, larger).is_none, "what one leaves to CML is no difference"
    largest = parse_lab(SMALL.replace("node_definition: server", "node_definition: server\n    ram: 9000").encode())
    assert compare_labs(larger, largest).describe("basics") == ["in basics of another kind or size: PC"]
