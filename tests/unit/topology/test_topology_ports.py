"""Port tags: what they say, what their ports are called, and what cannot be told apart."""

import pytest

from harness.documents import lab, node
from lcm.model.base.errors import Invalid
from lcm.model.kinds.definition import PortEnd, PortUse
from lcm.model.telemetry.observation import drift
from lcm.model.topology.lab import parse_lab
from lcm.model.topology.ports import PortTag, keep_observable, read_ports, read_tag, used_ports


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("serial:5041", PortTag(text="serial:5041", kind="serial", outside=5041)),
        ("serial:5041:0", PortTag(text="serial:5041:0", kind="serial", outside=5041, line=0)),
        ("serial:5041:12", PortTag(text="serial:5041:12", kind="serial", outside=5041, line=12)),
        ("vnc:4901", PortTag(text="vnc:4901", kind="vnc", outside=4901)),
        ("pat:4201:22", PortTag(text="pat:4201:22", kind="pat", outside=4201, protocol="tcp", inside=22)),
        ("pat:tcp:4201:22", PortTag(text="pat:tcp:4201:22", kind="pat", outside=4201, protocol="tcp", inside=22)),
        ("pat:udp:1:65535", PortTag(text="pat:udp:1:65535", kind="pat", outside=1, protocol="udp", inside=65535)),
        ("serial:${PORT_A.b-1}", PortTag(text="serial:${PORT_A.b-1}", kind="serial", outside=None)),
        ("vnc:${PORT_V}", PortTag(text="vnc:${PORT_V}", kind="vnc", outside=None)),
        (
            "pat:udp:${PORT_P}:53",
            PortTag(text="pat:udp:${PORT_P}:53", kind="pat", outside=None, protocol="udp", inside=53),
        ),
    ],
)
def test_every_form_of_a_port_tag_is_read(text: str, want: PortTag) -> None:
    assert read_tag(text) == want


BROKEN = [
    "serial:",
    "serial:0",
    "serial:05041",
    "serial:65536",
    "serial:123456",
    "serial:-1",
    "serial:5041:",
    "serial:5041:-1",
    "serial:5041:100",
    "serial:5041:1:2",
    "serial:x",
    "serial:5041 ",
    " serial:5041",
    "serial: 5041",
    "serial :5041",
    "SERIAL:5041",
    "Vnc:5044",
    "vnc:5044:0",
    "vnc:",
    "pat:5000",
    "pat:5000:",
    "pat:5000:0",
    "pat:5000:65536",
    "pat:sctp:5000:22",
    "pat:TCP:5000:22",
    "pat:tcp:udp:5000:22",
    "pat:tcp:5000",
    "pat:5000:${PORT_X}",
    "pat::5000:22",
    "serial:${PORT_}",
    "serial:${PORT_a b}",
    "serial:${port_x}",
    "serial:${PORT_A}${PORT_B}",
    "serial:5041\\n",
    "serial:\u0665\u0660\u0664\u0661",
]


@pytest.mark.parametrize("text", BROKEN)
def test_what_looks_like_a_port_tag_and_is_none_fails_loudly_with_its_line(text: str) -> None:
    assert read_tag(text) is None
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(node("core", f'"{text}"')))
    (fault,) = raised.value.faults
    assert fault.path == "line 12: nodes[0].tags[1]"
    assert "cannot be rewritten" in fault.problem


def test_a_broken_port_tag_in_a_smart_annotation_fails_as_loudly() -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(annotations="[{tag: core}, {tag: 'serial:x'}]"))
    assert [fault.path for fault in raised.value.faults] == ["line 2: smart_annotations[1].tag"]


@pytest.mark.parametrize(
    "text", ["serial", "serials:5041", "my serial:5041", "vnc-5044", "path:1:2", "core", "${PORTS}"]
)
def test_other_tags_are_free(text: str) -> None:
    assert read_tag(text) is None
    assert parse_lab(lab(node(f"'{text}'"))).port_template == {}


@pytest.mark.parametrize("text", ["x-${PORT_}", "x-${PORT_A B}", "${PORT_A}-${PORT_", "${PORT_ü}"])
def test_a_placeholder_in_a_tag_that_cannot_be_replaced_fails_loudly(text: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(node(f"'{text}'")))
    assert [fault.path for fault in raised.value.faults] == ["line 11: nodes[0].tags[0]"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("configuration: x ${PORT_ü}", 11),
        ("configuration: '${PORT_A}\n\n  ${PORT_A B}'", 13),
        ("configuration: | # ${PORT_}\n  a ${PORT_A}\n  b ${PORT_}\n  c", 13),
        ("configuration: >\n\n  a ${PORT_A}\n  b ${PORT_" + "x" * 129 + "}", 14),
        ("configuration:\n- name: a\n  content: |-\n    ${PORT_X:-80}", 14),
        ('configuration: "a\\\n  \\x24{PORT_}"', 11),
        ("parameters:\n  '${PORT_': 1", 12),
    ],
)
def test_a_placeholder_in_words_that_cannot_be_replaced_fails_with_its_line(words: str, line: int) -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(node(more=words)))
    (fault,) = raised.value.faults
    assert fault.path == f"line {line}"
    assert "a placeholder that cannot be rewritten" in fault.problem


def test_ports_are_named_after_the_node_and_what_they_lead_to() -> None:
    tags = ("serial:5001", "serial:5002:1", "vnc:5003", "pat:5004:22", "pat:tcp:5005:443", "pat:udp:5006:161")
    assert parse_lab(lab(node(*tags, label="PC"))).port_template == {
        "PC_serial": PortUse(kind="serial", node="PC"),
        "PC_serial_1": PortUse(kind="serial", node="PC", line=1),
        "PC_vnc": PortUse(kind="vnc", node="PC"),
        "PC_pat_tcp_22": PortUse(kind="pat", node="PC", protocol="tcp", inside=22),
        "PC_pat_tcp_443": PortUse(kind="pat", node="PC", protocol="tcp", inside=443),
        "PC_pat_udp_161": PortUse(kind="pat", node="PC", protocol="udp", inside=161),
    }


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("R1", "R1_serial"),
        ("'R 1'", "R_1_serial"),
        ("a.b-c_d", "a.b-c_d_serial"),
        ("Büro", "B_ro_serial"),
        ("路", "__serial"),
    ],
)
def test_labels_are_cleaned_for_names(label: str, name: str) -> None:
    assert list(parse_lab(lab(node("serial:5041", label=label))).port_template) == [name]


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ([node("serial:5041", "serial:5042")], "line 12: nodes[0].tags[1]"),
        ([node("serial:5041", "serial:5041")], "line 12: nodes[0].tags[1]"),
        ([node("pat:5041:22", "pat:tcp:5042:22")], "line 12: nodes[0].tags[1]"),
        ([node("vnc:5041", label="R 1"), node("vnc:5042", label="R_1", number=1)], "line 18: nodes[1].tags[0]"),
        (
            [node("serial:5041", label="R1_serial"), node("serial:5042", label="R1_serial", number=1)],
            "line 18: nodes[1].tags[0]",
        ),
        ([node("serial:5041"), node("vnc:${PORT_R1_serial}", number=1)], "line 18: nodes[1].tags[0]"),
        ([node("vnc:${PORT_R2_vnc}"), node("vnc:5042", label="R2", number=1)], "line 18: nodes[1].tags[0]"),
        ([node("serial:5041", more="configuration: ${PORT_R1_serial}")], "line 12"),
    ],
)
def test_two_ports_of_one_name_are_refused_with_the_second_ones_line(nodes: list[str], path: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(*nodes))
    (fault,) = (one for one in raised.value.faults if one.path == path)
    assert "is already" in fault.problem


def test_a_name_too_long_for_a_port_is_refused() -> None:
    with pytest.raises(Invalid, match="too long"):
        parse_lab(lab(node("serial:5041", label="x" * 122)))


def test_the_same_placeholder_is_the_same_port_everywhere() -> None:
    data = lab(
        node("serial:${PORT_A}", "web-${PORT_B}", more="configuration: ${PORT_A} ${PORT_C}"),
        node("vnc:${PORT_D}", label="R2", number=1),
        node("vnc:${PORT_D}", label="R3", number=2),
        annotations="[{tag: 'serial:${PORT_A}'}]",
    )
    assert parse_lab(data).port_template == {
        "A": PortUse(kind="serial", node="R1"),
        "B": PortUse(kind="placeholder"),
        "C": PortUse(kind="placeholder"),
        "D": PortUse(kind="vnc", node="R2", also=(PortEnd(kind="vnc", node="R3"),)),
    }


@pytest.mark.parametrize(
    ("nodes", "path"),
    [
        ([node("serial:${PORT_A}", "serial:${PORT_B}")], "line 12: nodes[0].tags[1]"),
        ([node("serial:5041", "serial:${PORT_B}")], "line 12: nodes[0].tags[1]"),
        ([node("pat:${PORT_A}:22", "pat:tcp:5042:22")], "line 12: nodes[0].tags[1]"),
        ([node("vnc:${PORT_A}"), node("vnc:${PORT_B}", number=1)], "line 18: nodes[1].tags[0]"),
    ],
)
def test_two_ports_that_lead_to_the_same_are_refused(nodes: list[str], path: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(*nodes))
    (fault,) = raised.value.faults
    assert fault.path == path
    assert "leads to the same as" in fault.problem


def test_more_ports_than_a_worker_has_are_refused() -> None:
    words = "configuration: " + " ".join(f"${{PORT_{number}}}" for number in range(6_000))
    assert len(parse_lab(lab(node(more=words))).port_template) == 6_000
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(node("serial:5041", "serial:5042:1", more=words)))
    (fault,) = raised.value.faults
    assert (fault.path, fault.problem) == ("line 13", "more than 6000 ports; a worker has no more")


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([node("core")], "serial:5041 is on no node"),
        ([node("serial:5041"), node("serial:5041", label="R2", number=1)], "several"),
    ],
)
def test_a_smart_annotation_whose_port_is_not_known_is_refused(nodes: list[str], problem: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_lab(lab(*nodes, annotations="[{tag: serial:5041}]"))
    (fault,) = raised.value.faults
    assert fault.path == "line 2: smart_annotations[0].tag"
    assert problem in fault.problem


def test_two_nodes_may_have_been_written_with_one_port() -> None:
    data = lab(node("serial:5041"), node("serial:5041", label="R2", number=1))
    assert parse_lab(data).ports == {"R1_serial": 5041, "R2_serial": 5041}


def test_lesson_14_pat_tags_are_seen() -> None:
    tags = ["core", "pat:5112:22", "pat:udp:5113:161", "serial:5111", "vnc:5115", "pat:broken", "serial:${PORT_X}"]
    assert used_ports(tags) == {5111, 5112, 5113, 5115}


@pytest.mark.parametrize(
    ("tag", "ports"),
    [
        ("serial:5041 ", {5041}),
        ("SERIAL:5041", {5041}),
        ("vnc:5042:1", {5042}),
        ("pat:5043", {5043}),
        ("pat:tcp::5044:22", {5044}),
        ("serial:05045", {5045}),
        ("pat:5046:22/tcp", {5046}),
        ("serial:5047:100", {5047}),
        ("pat:5048:5049:5050", {5048, 5049, 5050}),
        ("serial:5051-5053", {5051, 5053}),
        ("serial:\u0665\u0660\u0664\u0661", {5041}),
        ("serial : 2000,7999,1999,8000", {2000, 7999}),
        ("serial:" + "9" * 10_000, set()),
        ("pat:5000:6000", {5000}),
        ("my serial:5041", set()),
        ("room-5041", set()),
    ],
)
def test_a_tag_that_cannot_be_read_takes_every_port_it_may_mean(tag: str, ports: set[int]) -> None:
    assert used_ports([tag]) == ports


def test_observed_ports_bear_the_names_of_the_template() -> None:
    template = parse_lab(lab(node("serial:${PORT_CONSOLE}", "pat:5042:22"))).port_template
    observed = read_ports([("R1", ["serial:2000", "pat:tcp:2001:22"]), ("R2", ["vnc:2002", "core"])], template)
    assert observed == {"CONSOLE": 2000, "R1_pat_tcp_22": 2001, "R2_vnc": 2002}
    assert drift({"CONSOLE": 2000, "R1_pat_tcp_22": 2009}, observed) == {
        "R1_pat_tcp_22": (2009, 2001),
        "R2_vnc": (None, 2002),
    }


def test_a_placeholder_in_several_tags_is_observed_under_its_own_name() -> None:
    template = parse_lab(lab(node("pat:tcp:${PORT_dns}:53", "pat:udp:${PORT_dns}:53", label="dns"))).port_template
    tags = ["pat:tcp:2053:53", "pat:udp:2053:53"]
    assert read_ports([("dns", tags)], template) == {"dns": 2053}
    assert read_ports([("dns", ["pat:tcp:2053:53", "pat:udp:2054:53"])], template) == {"dns": 2053, "dns_2054": 2054}


def test_a_port_that_was_added_to_a_node_does_not_hide_behind_the_first() -> None:
    template = parse_lab(lab(node("serial:5041"))).port_template
    for tags in (["serial:6000", "serial:2000"], ["serial:2000", "serial:6000"]):
        observed = read_ports([("R1", tags)], template)
        assert sorted(observed.values()) == [2000, 6000]
        assert drift({"R1_serial": 2000}, observed)


def test_a_port_that_no_tag_holds_cannot_be_observed() -> None:
    template = parse_lab(lab(node("vnc:${PORT_A}", "web-${PORT_B}", more="configuration: ${PORT_C}"))).port_template
    assert keep_observable({"A": 1, "B": 2, "C": 3, "unknown": 4}, template) == {"A": 1, "unknown": 4}
