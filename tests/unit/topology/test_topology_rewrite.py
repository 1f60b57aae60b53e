"""The same lab with other ports, and the same bytes everywhere else."""

from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from harness.documents import FILES, Made, lab, made_up, node
from harness.suite import for_all
from lcm.model.base.errors import Invalid
from lcm.model.kinds.definition import PortTemplate
from lcm.model.topology.lab import parse_lab, rewrite
from lcm.model.topology.ports import keep_observable, read_ports


def numbered(data: bytes, first: int = 2000) -> dict[str, int]:
    return {name: first + number for number, name in enumerate(parse_lab(data).port_template)}


@for_all(made_up())
def test_a_rewritten_lab_is_byte_for_byte_the_lab_its_author_would_have_written(made: Made) -> None:
    ports = made.ports(2000)
    assert parse_lab(made.original()).port_template.keys() == ports.keys()
    assert rewrite(made.original(), ports) == made.with_ports(ports)


@for_all(made_up())
def test_two_rewrites_with_different_ports_never_collide(made: Made) -> None:
    first, second = made.ports(2000), made.ports(3000)
    one, other = parse_lab(rewrite(made.original(), first)), parse_lab(rewrite(made.original(), second))
    assert sorted(one.ports.values()) == sorted(first.values())
    assert not set(one.ports.values()) & set(other.ports.values())


@for_all(made_up())
def test_rewriting_twice_gives_the_second_ports(made: Made) -> None:
    once = rewrite(made.original(), made.ports(2000))
    again = {name: port + 1000 for name, port in parse_lab(once).ports.items()}
    assert parse_lab(rewrite(once, again)).ports == again
    assert rewrite(rewrite(once, again), parse_lab(once).ports) == once


@for_all(made_up(), st.permutations(range(28)))
def test_ports_may_change_places(made: Made, order: list[int]) -> None:
    ports = {name: 5000 + order[number] for number, name in enumerate(made.values)}
    assert rewrite(made.original(), ports) == made.with_ports(ports)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_topology_is_equal_except_for_its_ports(path: Path) -> None:
    data = path.read_bytes()
    ports = numbered(data)
    before = yaml.load(data, Loader=yaml.CSafeLoader)
    after = yaml.load(rewrite(data, ports), Loader=yaml.CSafeLoader)
    changed = [(old, new) for old, new in zip(leaves(before), leaves(after), strict=True) if old != new]
    found = {str(port) for port in ports.values()}
    assert bool(changed) is bool(ports)
    for old, new in changed:
        assert isinstance(old, str), f"{old!r} became {new!r}"
        assert any(port in str(new) for port in found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_topology_is_observed_with_the_ports_it_was_given(path: Path) -> None:
    data = path.read_bytes()
    ports, template = numbered(data), parse_lab(data).port_template
    assert observed(rewrite(data, ports), template) == keep_observable(ports, template)


@for_all(made_up(shared=True))
def test_every_lab_is_observed_with_the_ports_it_was_given(made: Made) -> None:
    ports = made.ports(2000)
    after = rewrite(made.original(), ports)
    assert after == made.with_ports(ports)
    assert observed(after, parse_lab(made.original()).port_template) == ports


def observed(data: bytes, template: PortTemplate) -> dict[str, int]:
    nodes = yaml.load(data, Loader=yaml.CSafeLoader)["nodes"]
    return read_ports(((one["label"], one.get("tags") or ()) for one in nodes), template)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_topology_goes_back_to_the_bytes_it_came_from(path: Path) -> None:
    data = path.read_bytes()
    own = parse_lab(data).ports
    if own.keys() == parse_lab(data).port_template.keys():
        assert rewrite(rewrite(data, numbered(data)), own) == data


def leaves(document: object, path: str = "") -> list[object]:
    """List every path and every value of a document, so that structure counts as well."""
    match document:
        case dict():
            return [
                one for key, value in document.items() for one in (f"{path}.{key}", *leaves(value, f"{path}.{key}"))
            ]
        case list():
            return [one for number, value in enumerate(document) for one in leaves(value, f"{path}[{number}]")]
    return [document]


@pytest.mark.parametrize(
    ("written", "rewritten"),
    [
        ("serial:5041", "serial:2000"),
        ("'serial:5041'", "'serial:2000'"),
        ('"serial:5041"', '"serial:2000"'),
        ("serial:5041  # serial:5041", "serial:2000  # serial:5041"),
        ("serial:5:5", "serial:2000:5"),
        ("pat:22:22", "pat:2000:22"),
        ("pat:tcp:22:22", "pat:tcp:2000:22"),
        ("|-\n    serial:5041", "|-\n    serial:2000"),
        (">-\n    serial:5041\n", ">-\n    serial:2000\n"),
        ("|- # serial:5041\n    serial:5041", "|- # serial:5041\n    serial:2000"),
        ("|- # at ${PORT_X}\n    at ${PORT_X}", "|- # at ${PORT_X}\n    at 2000"),
        ("> # ${PORT_X}\n\n    at ${PORT_X}\n     more\n", "> # ${PORT_X}\n\n    at 2000\n     more\n"),
        ("|2+ # ${PORT_X}\r    ${PORT_X}\r\r", "|2+ # ${PORT_X}\r    2000\r\r"),
        ("serial:${PORT_X}", "serial:2000"),
        ("'pat:udp:${PORT_X}:53'", "'pat:udp:2000:53'"),
        ('"caf\\u00e9 ${PORT_X}"', '"caf\\u00e9 2000"'),
        ("'it''s ${PORT_X}'", "'it''s 2000'"),
        ("${PORT_X} and ${PORT_X}", "2000 and 2000"),
        ("two words\n    ${PORT_X}", "two words\n    2000"),
    ],
)
def test_a_tag_keeps_the_way_it_is_written(written: str, rewritten: str) -> None:
    data = lab(node(written))
    assert rewrite(data, numbered(data)) == lab(node(rewritten))


@pytest.mark.parametrize(
    ("written", "rewritten"), [("${PORT_X}", "'2000'"), ("${PORT_X}:22", "'2000:22'"), ("-${PORT_X}", "'-2000'")]
)
def test_what_was_text_stays_text_when_a_number_takes_its_place(written: str, rewritten: str) -> None:
    assert rewrite(lab(node(written)), {"X": 2000}) == lab(node(rewritten))


def test_a_placeholder_is_replaced_wherever_the_document_holds_it() -> None:
    words = 'configuration: |\n  ! ${PORT_X}\n  line ${PORT_Y}\nparameters: {"${PORT_X}": "at ${PORT_Y}"}'
    data = lab(node("serial:${PORT_X}", more=words), more='annotations: [{text_content: "${PORT_X}"}]\n')
    after = rewrite(data, {"X": 2000, "Y": 2001})
    assert after == data.replace(b"${PORT_X}", b"2000").replace(b"${PORT_Y}", b"2001")


def test_port_tags_outside_of_tags_are_only_words() -> None:
    words = "configuration: |\n  serial:5041\nparameters: {a: serial:5041}"
    data = lab(node("serial:5041", more=words), more="annotations: [{text_content: vnc:5044}]\n")
    assert rewrite(data, {"R1_serial": 2000}) == data.replace(b"- serial:5041", b"- serial:2000")


def test_a_smart_annotation_follows_its_tag_and_shows_the_new_port() -> None:
    shown = "{tag: serial:5041, label: 'serial:5041'}, {tag: vnc:5044, label: screen}, {tag: core, label: 5041}"
    annotations = f"[{shown}, {{tag: vnc:5044, label: [a]}}, {{label: serial:5045}}]"
    data = lab(node("serial:5041", "vnc:5044", "core"), annotations=annotations)
    after = rewrite(data, {"R1_serial": 2000, "R1_vnc": 2001})
    assert after == data.replace(b"serial:5041", b"serial:2000").replace(b"vnc:5044", b"vnc:2001")


def test_a_lab_without_ports_is_returned_as_it_is() -> None:
    data = lab(node("core"))
    assert rewrite(data, {"R9_serial": 2000}) == data


@pytest.mark.parametrize(
    ("ports", "problem"),
    [
        ({}, "no port was given for 'R1_serial'"),
        ({"r1_serial": 2000}, "no port was given for 'R1_serial'"),
        ({"R1_serial": 0}, "0 for 'R1_serial' is no port"),
        ({"R1_serial": -1}, "-1 for 'R1_serial' is no port"),
        ({"R1_serial": 65536}, "65536 for 'R1_serial' is no port"),
        ({"R1_serial": 2000, "R1_vnc": 2000}, "port 2000 was given to 'R1_serial' and to 'R1_vnc'"),
    ],
)
def test_a_port_that_cannot_be_written_is_refused_with_its_line(ports: dict[str, int], problem: str) -> None:
    with pytest.raises(Invalid) as raised:
        rewrite(lab(node("serial:5041", "vnc:5042")), {"R1_vnc": 2001} | ports)
    fault = raised.value.faults[-1]
    assert problem in fault.problem
    assert fault.path in {"line 11: nodes[0].tags[0]", "line 12: nodes[0].tags[1]"}
    assert fault.remedy


@pytest.mark.parametrize(
    "written",
    [
        r'"serial:50\x341"',
        r'"seri\x61l:5041"',
        '"serial:\\\n    5041"',
        r'"\x24{PORT_X}"',
        '"${PO\\\n    RT_X}"',
    ],
)
def test_lesson_15_a_tag_that_cannot_be_rewritten_is_no_success(written: str) -> None:
    data = lab(node("core", written))
    with pytest.raises(Invalid) as raised:
        rewrite(data, numbered(data))
    (fault,) = raised.value.faults
    assert fault.path.startswith("line 12")
    assert "cannot be changed in place" in fault.problem


def test_a_key_that_becomes_another_is_refused() -> None:
    data = lab(node(more='parameters: {"${PORT_X}": 1, "2000": 2}'))
    with pytest.raises(Invalid, match="stands here twice"):
        rewrite(data, {"X": 2000})
