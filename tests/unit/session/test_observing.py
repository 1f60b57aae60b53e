"""What is made of CML's answers about a lab."""

from harness import given
from lcm.controllers.session.effects import observe_lab
from lcm.model.kinds.definition import PortTemplate, PortUse
from lcm.model.telemetry.observation import drift
from lcm.model.topology.ports import keep_observable
from lcm.providers.protocols.labhost import NodeFacts, NodeUse, SimulationStats

NOW = given.moment("10:00")
TEMPLATE: PortTemplate = {
    "R1_serial": PortUse(kind="serial", node="R1"),
    "R1_pat_tcp_22": PortUse(kind="pat", node="R1", protocol="tcp", inside=22),
    "WEB": PortUse(kind="vnc", node="PC"),
    "WORD": PortUse(kind="placeholder"),
}
ALLOCATED = {"R1_serial": 5001, "R1_pat_tcp_22": 5002, "WEB": 5003, "WORD": 5004}
ROUTER = NodeFacts(
    node_id="n0",
    label="R1",
    node_definition="iosv",
    state="BOOTED",
    tags=("serial:5001", "pat:5002:22", "core"),
    cpus=2.0,
    cpu_limit=50,
    ram_mb=768,
    disk_gb=16.5,
)
HOST = NodeFacts(
    node_id="n1", label="PC", node_definition="desktop", state="BOOTED", tags=("vnc:5003",), cpus=1.0, ram_mb=512
)
STATS = SimulationStats(
    nodes={
        "n0": NodeUse(
            cpu_usage=3.5, ram_usage=40.0, disk_usage=210.0, seconds_in_state={"STARTED": 1966177, "BOOTED": 1966003}
        ),
        "n1": NodeUse(seconds_in_state={"QUEUED": 1, "STARTED": 12, "BOOTED": 0}),
    },
    links={},
)


def test_lesson_12_cores_are_cores_and_a_limit_in_percent_is_no_part_of_any_sum() -> None:
    seen = observe_lab([ROUTER, HOST], STATS, ALLOCATED, TEMPLATE, NOW, observer="lablet-controller")
    assert (seen.total_cpu_cores, seen.total_memory_mb, seen.total_storage_mb) == (3.0, 1280, 16896)
    assert [(one.cpus, one.cpu_limit, one.ram_mb) for one in seen.nodes] == [(2.0, 50, 768), (1.0, None, 512)]
    assert (seen.actual_node_count, seen.node_definitions_used) == (2, ("desktop", "iosv"))


def test_what_cml_did_not_say_is_none_and_not_nothing() -> None:
    seen = observe_lab([HOST], None, ALLOCATED, TEMPLATE, NOW, observer="manual")
    assert seen.total_storage_mb is None
    assert seen.simulation_stats is None
    assert seen.observer == "manual"


def test_booting_is_told_apart_from_running() -> None:
    seen = observe_lab([ROUTER, HOST], STATS, ALLOCATED, TEMPLATE, NOW, observer="manual")
    assert seen.simulation_stats is not None
    assert seen.simulation_stats["n0"].boot_seconds == 174
    assert seen.simulation_stats["n0"].cpu_usage == 3.5
    assert seen.simulation_stats["n1"].boot_seconds is None


def test_lesson_14_ports_are_those_of_the_tags_on_cml_pat_tags_too() -> None:
    seen = observe_lab([ROUTER, HOST], STATS, ALLOCATED, TEMPLATE, NOW, observer="manual")
    assert seen.observed_ports == {"R1_serial": 5001, "R1_pat_tcp_22": 5002, "WEB": 5003}
    assert drift(keep_observable(ALLOCATED, TEMPLATE), seen.observed_ports) == {}


def test_lesson_14_a_tag_that_somebody_changed_is_seen_by_its_name() -> None:
    edited = NodeFacts(
        node_id="n0",
        label="R1",
        node_definition="iosv",
        state="BOOTED",
        tags=("serial:5001", "pat:7002:22", "pat:udp:7003:161"),
    )
    seen = observe_lab([edited, HOST], None, ALLOCATED, TEMPLATE, NOW, observer="manual")
    assert drift(keep_observable(ALLOCATED, TEMPLATE), seen.observed_ports) == {
        "R1_pat_tcp_22": (5002, 7002),
        "R1_pat_udp_161": (None, 7003),
    }


def test_of_two_tags_for_one_port_the_stranger_gets_the_other_name() -> None:
    twice = NodeFacts(
        node_id="n0", label="R1", node_definition="iosv", state="BOOTED", tags=("serial:7001", "serial:5001")
    )
    seen = observe_lab([twice], None, ALLOCATED, TEMPLATE, NOW, observer="manual")
    assert seen.observed_ports == {"R1_serial": 5001, "R1_serial_7001": 7001}
