"""What a lab file says, what it needs, and everything that can be wrong with it."""

from pathlib import Path

import pytest

from harness.documents import FILES, lab, node
from lcm.model.base.errors import Invalid
from lcm.model.topology.lab import SCHEMA_VERSIONS, compute_needs, parse_lab
from lcm.model.topology.node_definitions import NO_SIZE, NodeSize, shipped_nodes

BY_STEM = {path.stem: path for path in FILES}


def faults(data: bytes) -> dict[str, str]:
    with pytest.raises(Invalid) as raised:
        parse_lab(data)
    assert all(fault.problem and fault.remedy for fault in raised.value.faults)
    return {fault.path: fault.problem for fault in raised.value.faults}


def test_a_lab_is_read_with_its_nodes_and_their_lines() -> None:
    read = parse_lab(BY_STEM["every-tag"].read_bytes())
    assert (read.version, read.title, read.node_count, read.link_count) == ("0.3.0", "Every tag form", 3, 1)
    assert read.description == "serial:5001 here is only text"
    assert [(one.node_id, one.label, one.line) for one in read.nodes] == [
        ("n0", "R1", 27),
        ("n1", "PC 1", 60),
        ("n2", "ext-conn-0", 72),
    ]
    assert read.nodes[1].tags == ("vnc:5003", "pat:5004:22", "pat:tcp:5005:443", "pat:udp:5006:161")
    assert read.node_definitions == ("desktop", "external_connector", "iosv")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_topology_is_read(path: Path) -> None:
    read = parse_lab(path.read_bytes())
    assert read.version in SCHEMA_VERSIONS
    assert read.nodes


@pytest.mark.parametrize("version", SCHEMA_VERSIONS)
def test_every_schema_version_up_to_0_3_0_is_read(version: str) -> None:
    assert parse_lab(lab().replace(b"0.3.0", version.encode())).version == version


def test_unset_values_are_those_of_the_node_definition() -> None:
    data = lab(node(), node(label="R2", number=1, more="ram: 1024\ncpus: 2\nboot_disk_size: 8\ndata_volume: 4"))
    total = compute_needs(parse_lab(data), {"iosv": NodeSize(cpus=1, ram_mb=512, boot_disk_gb=1, data_volume_gb=2)})
    assert (total.cpu_cores, total.memory_gb, total.storage_gb) == (3.0, 1.5, 15.0)


def test_zero_was_how_older_releases_wrote_unset() -> None:
    read = parse_lab(BY_STEM["old-sizes"].read_bytes())
    assert (read.nodes[0].cpus, read.nodes[0].ram_mb, read.nodes[0].boot_disk_gb) == (None, None, None)
    total = compute_needs(read, shipped_nodes())
    assert (total.cpu_cores, total.memory_gb, total.storage_gb) == (5.0, 3.5, 41.0)


@pytest.mark.parametrize("limit", ["20", "50", "100", "null"])
def test_lesson_12_cpu_limit_is_a_percentage(limit: str) -> None:
    read = parse_lab(lab(node(more=f"cpus: 4\nram: 2048\ncpu_limit: {limit}")))
    assert compute_needs(read, {}).cpu_cores == 4.0
    assert compute_needs(read, {}).memory_gb == 2.0
    assert read.nodes[0].cpu_limit_percent == (None if limit == "null" else int(limit))


def test_switches_and_connectors_cost_nothing() -> None:
    data = lab(node()).replace(b"node_definition: iosv", b"node_definition: unmanaged_switch")
    total = compute_needs(parse_lab(data), shipped_nodes())
    assert (total.cpu_cores, total.memory_gb, total.storage_gb) == (0.0, 0.0, 0.0)


def test_a_node_of_unknown_size_is_said_and_not_counted_as_nothing() -> None:
    read = parse_lab(lab(node(), node(label="R2", number=1, more="cpus: 1"), node(label="R3", number=2)))
    with pytest.raises(Invalid) as raised:
        compute_needs(read, {})
    assert [fault.path for fault in raised.value.faults] == [
        "line 5: nodes[0].node_definition",
        "line 11: nodes[1].node_definition",
        "line 18: nodes[2].node_definition",
    ]
    assert compute_needs(read, {}, otherwise=NO_SIZE).cpu_cores == 1.0


def test_a_node_that_says_its_size_needs_no_definition() -> None:
    total = compute_needs(parse_lab(lab(node(more="cpus: 2\nram: 512"))), {})
    assert (total.cpu_cores, total.memory_gb, total.storage_gb) == (2.0, 0.5, 0.0)


@pytest.mark.parametrize("name", shipped_nodes())
def test_shipped_definitions_have_the_sizes_cml_ships(name: str) -> None:
    shipped = shipped_nodes()[name]
    assert shipped.definition_id == name
    assert (shipped.cpus == 0) is (shipped.ram_mb == 0) is (shipped.driver == "none")
    assert 0 < shipped.default_interfaces <= len(shipped.interfaces)
    assert shipped.disk_gb == shipped.boot_disk_gb + shipped.data_volume_gb


def test_every_fault_of_a_lab_is_listed_at_once() -> None:
    data = b"""\
lab: {version: 0.9.9, title: 2024}
nodes:
- label: ''
  node_definition: iosv
  x: here
  ram: 1.5
  cpus: 129
  cpu_limit: 19
  tags:
  - serial: 5041
  - 5042
  - [a]
  - serial:none
- just text
links: {}
"""
    assert faults(data) == {
        "line 1: lab.version": "0.9.9 is no known schema version",
        "line 1: lab.title": "'2024' is int to YAML, not text",
        "line 5: nodes[0].x": "not a number",
        "line 3: nodes[0].y": "missing",
        "line 3: nodes[0].id": "missing",
        "line 3: nodes[0].label": "empty",
        "line 6: nodes[0].ram": "not a whole number from 1 to 1048576",
        "line 7: nodes[0].cpus": "not a whole number from 1 to 128",
        "line 8: nodes[0].cpu_limit": "not a whole number from 20 to 100",
        "line 10: nodes[0].tags[0]": "a mapping, not a tag",
        "line 11: nodes[0].tags[1]": "'5042' is int to YAML, not text",
        "line 12: nodes[0].tags[2]": "not text",
        "line 13: nodes[0].tags[3]": "the port tag 'serial:none' cannot be rewritten",
        "line 14: nodes[1]": "not a mapping",
        "line 15: links": "not a list",
    }


@pytest.mark.parametrize(
    ("data", "path", "problem"),
    [
        (b"[]", "line 1: document", "not a mapping"),
        (b"text", "line 1: document", "not a mapping"),
        (b"nodes: []\nlinks: []\n", "line 1: lab", "missing"),
        (b"lab:\nnodes: []\nlinks: []\n", "line 1: lab", "not a mapping"),
        (b"lab: {}\nnodes: []\nlinks: []\n", "line 1: lab.version", "missing"),
        (b"lab: {version: null}\nnodes: []\nlinks: []\n", "line 1: lab.version", "missing"),
        (b"lab: {version: 0.3}\nnodes: []\nlinks: []\n", "line 1: lab.version", "'0.3' is float to YAML, not text"),
        (b"lab: {version: 0.3.0}\nlinks: []\n", "line 1: nodes", "missing"),
        (b"lab: {version: 0.3.0}\nnodes: []\n", "line 1: links", "missing"),
        (b"lab: {version: 0.3.0}\nnodes:\nlinks: []\n", "line 2: nodes", "not a list"),
        (lab(annotations="{}"), "line 2: smart_annotations", "not a list"),
        (lab(annotations="[a]"), "line 2: smart_annotations[0]", "not a mapping"),
        (lab(node(label="on")), "line 6: nodes[0].label", "'on' is bool to YAML, not text"),
        (lab(node(label="52:54:00")), "line 6: nodes[0].label", "'52:54:00' is int to YAML, not text"),
        (lab(node(label="x" * 129)), "line 6: nodes[0].label", "129 characters; at most 128 are allowed"),
        (lab(node("x" * 65)), "line 11: nodes[0].tags[0]", "65 characters; at most 64 are allowed"),
        (lab(node("12:30:45")), "line 11: nodes[0].tags[0]", "'12:30:45' is int to YAML, not text"),
        (lab(node("~")), "line 11: nodes[0].tags[0]", "'~' is null to YAML, not text"),
        (lab(node(more="ram: '512'")), "line 11: nodes[0].ram", "not a whole number from 1 to 1048576"),
        (lab(node(more="ram: 1:30")), "line 11: nodes[0].ram", "not a whole number from 1 to 1048576"),
        (lab(node(more="interfaces: [{label: eth0}]")), "line 11: nodes[0].interfaces[0].id", "missing"),
        (lab(node(), node()), "line 11: nodes[1].id", "there is another node of the id 'n0'"),
    ],
)
def test_a_fault_is_named_with_its_line(data: bytes, path: str, problem: str) -> None:
    assert faults(data).get(path) == problem


@pytest.mark.parametrize(
    ("link", "path", "problem"),
    [
        ("{n1: n0, i1: i0, n2: n1}", "line 3: links[0].i2", "missing"),
        ("{n1: n0, i1: i0, n2: n9, i2: i0}", "line 3: links[0].n2", "there is no node of the id 'n9'"),
        ("{n1: n0, i1: i7, n2: n1, i2: i0}", "line 3: links[0].i1", "node 'n0' has no interface of the id 'i7'"),
    ],
)
def test_a_link_to_nowhere_is_refused_before_cml_does(link: str, path: str, problem: str) -> None:
    interfaces = "interfaces: [{id: i0}]"
    nodes = [node(more=interfaces), node(label="R2", number=1, more=interfaces)]
    assert parse_lab(lab(*nodes, links="[{n1: n0, i1: i0, n2: n1, i2: i0}]")).link_count == 1
    assert faults(lab(*nodes, links=f"[{link}]")) == {path: problem}


def test_a_placeholder_may_make_a_tag_longer_than_cml_allows() -> None:
    tag = "serial:${PORT_" + "x" * 100 + "}"
    assert parse_lab(lab(node(tag))).nodes[0].tags == (tag,)
    assert faults(lab(node(f"{'y' * 60}{tag}")))
