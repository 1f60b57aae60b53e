"""What of an observation is kept when there is more than a session can hold."""

import msgspec

from harness import given
from lcm.model.telemetry.learning import build_observation
from lcm.model.telemetry.observation import (
    MAX_OBSERVATION_BYTES,
    InterfaceObservation,
    NodeObservation,
    find_drift,
    trim_observation,
)

NOW = given.moment("10:00")


def node(label: str, *tags: str, interfaces: tuple[InterfaceObservation, ...] = ()) -> NodeObservation:
    return NodeObservation(
        node_id=f"id-{label}", label=label, node_definition="iosv", state="BOOTED", tags=tags, interfaces=interfaces
    )


def test_an_observation_that_a_session_could_not_hold_loses_its_details_first() -> None:
    interface = InterfaceObservation(interface_id="i" * 36, label="eth0", slot=0, state="STARTED")
    small = build_observation([node("PC", interfaces=(interface,))], {}, at=NOW, observer="manual")
    assert trim_observation(small) is small
    large = build_observation(
        [node(f"n{n}", interfaces=(interface,) * 32) for n in range(200)], {}, at=NOW, observer="manual"
    )
    slim = trim_observation(large)
    assert len(msgspec.json.encode(slim)) <= MAX_OBSERVATION_BYTES
    assert (len(slim.nodes), slim.nodes[0].interfaces) == (200, ())
    assert slim.left_out == ("interfaces",)
    tagged = build_observation([node(f"n{n}", *["x" * 60] * 100) for n in range(200)], {}, at=NOW, observer="manual")
    assert (len(trim_observation(tagged).nodes), trim_observation(tagged).left_out) == (200, ("interfaces", "tags"))
    vast = build_observation([node(f"n{n}") for n in range(5_000)], {}, at=NOW, observer="manual")
    assert (trim_observation(vast).nodes, trim_observation(vast).actual_node_count) == ((), 5_000)


def test_of_too_many_ports_those_that_were_given_are_kept_and_the_others_are_no_drift_that_nobody_saw() -> None:
    tags = [f"pat:tcp:{2_000 + number}:{1 + number}" for number in range(30_000)]
    own = {f"PC_pat_tcp_{inside}": 1_999 + inside for inside in (20_000, 30_000)}
    found = build_observation([node("PC", *tags)], {}, at=NOW, observer="manual", allocated=own.values())
    slim = trim_observation(found)
    assert len(msgspec.json.encode(slim)) <= MAX_OBSERVATION_BYTES
    assert (len(slim.nodes), slim.left_out) == (1, ("interfaces", "tags", "ports"))
    assert own.items() <= slim.observed_ports.items()
    unseen = own | {"PC_pat_tcp_29999": 31_998}
    assert unseen.keys().isdisjoint(find_drift(unseen, {}, slim))
    assert find_drift(own, {}, slim)
    assert trim_observation(slim) is slim
