"""What was observed of a lab, and ports compared by name."""

import msgspec
import pytest
from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.model.telemetry.observation import InterfaceObservation, NodeObservation, NodeStats, ResourceObservation, drift

DOCUMENTED: dict[type[msgspec.Struct], str] = {
    ResourceObservation: "observed_at observer total_cpu_cores total_memory_mb total_storage_mb nodes "
    "actual_node_count node_definitions_used observed_ports simulation_stats",
    NodeObservation: "node_id label node_definition state cpu_limit ram_mb tags interfaces",
    InterfaceObservation: "interface_id label slot state mac_address ip4",
}


@pytest.mark.parametrize("struct", DOCUMENTED, ids=lambda struct: struct.__name__)
def test_an_observation_has_the_documented_fields_in_the_documented_order(struct: type[msgspec.Struct]) -> None:
    wanted = tuple(DOCUMENTED[struct].split())
    assert struct.__struct_encode_fields__[: len(wanted)] == wanted


def test_an_observation_may_lack_what_cml_did_not_say() -> None:
    node = NodeObservation(node_id="n0", label="PC", node_definition="desktop", state="BOOTED")
    assert (node.cpu_limit, node.cpus, node.ram_mb, node.disk_gb) == (None, None, None, None)
    seen = given.observation(nodes=(node,))
    assert (seen.total_storage_mb, seen.simulation_stats) == (None, None)


@pytest.mark.parametrize("observer", ["lablet-controller", "manual"])
def test_an_observation_is_read_back_from_json(observer: str) -> None:
    interface = InterfaceObservation(interface_id="i0", label="eth0", slot=None, state="STARTED", ip4=("10.0.0.1",))
    node = NodeObservation(
        node_id="n0",
        label="R1",
        node_definition="iosv",
        state="BOOTED",
        cpu_limit=100,
        cpus=1.0,
        interfaces=(interface,),
    )
    seen = given.observation(observer=observer, nodes=(node,), simulation_stats={"n0": NodeStats(boot_seconds=61.5)})
    assert msgspec.json.decode(msgspec.json.encode(seen), type=ResourceObservation) == seen


def test_nobody_else_observes() -> None:
    document = msgspec.to_builtins(given.observation(observer="somebody"))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(document, ResourceObservation)


@pytest.mark.parametrize(
    ("allocated", "observed", "want"),
    [
        ({}, {}, {}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"a": (1, 2)}),
        ({"a": 1}, {}, {"a": (1, None)}),
        ({}, {"a": 1}, {"a": (None, 1)}),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": (1, 2), "b": (2, 1)}),
        ({"a": 1, "c": 3}, {"a": 1, "b": 2}, {"b": (None, 2), "c": (3, None)}),
    ],
)
def test_ports_drift_by_name(
    allocated: dict[str, int], observed: dict[str, int], want: dict[str, tuple[int | None, int | None]]
) -> None:
    assert drift(allocated, observed) == want


ports = st.dictionaries(st.sampled_from("abcdef"), st.integers(2000, 2005))


@for_all(ports, ports)
def test_nothing_drifts_exactly_when_the_ports_are_the_same(
    allocated: dict[str, int], observed: dict[str, int]
) -> None:
    assert (drift(allocated, observed) == {}) is (allocated == observed)
    assert list(drift(allocated, observed)) == sorted(drift(allocated, observed))
