"""What of an observation is kept when there is more than a session can hold."""

import msgspec

import given
from lcm.model.telemetry.learning import observation_of
from lcm.model.telemetry.observation import LARGEST_BYTES, InterfaceObservation, NodeObservation, bounded, drifted

NOW = given.moment("10:00")


def node(label: str, *tags: str, interfaces: tuple[InterfaceObservation, ...] = ()) -> NodeObservation:
    return NodeObservation(
        node_id=f"id-{label}", label=label, node_definition="iosv", state="BOOTED", tags=tags, interfaces=interfaces
    )


def test_an_observation_that_a_session_could_not_hold_loses_its_details_first() -> None:
    interface = InterfaceObservation(interface_id="i" * 36, label="eth0", slot=0, state="STARTED")
    small = observation_of([node("PC", interfaces=(interface,))], {}, at=NOW, observer="manual")
    assert bounded(small) is small
    large = observation_of(
        [node(f"n{n}", interfaces=(interface,) * 32) for n in range(200)], {}, at=NOW, observer="manual"
    )
    slim = bounded(large)
    assert len(msgspec.json.encode(slim)) <= LARGEST_BYTES
    assert (len(slim.nodes), slim.nodes[0].interfaces) == (200, ())
    assert slim.left_out == ("interfaces",)
    tagged = observation_of([node(f"n{n}", *["x" * 60] * 100) for n in range(200)], {}, at=NOW, observer="manual")
    assert (len(bounded(tagged).nodes), bounded(tagged).left_out) == (200, ("interfaces", "tags"))
    vast = observation_of([node(f"n{n}") for n in range(5_000)], {}, at=NOW, observer="manual")
    assert (bounded(vast).nodes, bounded(vast).actual_node_count) == ((), 5_000)


def test_of_too_many_ports_those_that_were_given_are_kept_and_the_others_are_no_drift_that_nobody_saw() -> None:
    tags = [f"pat:tcp:{2_000 + number}:{1 + number}" for number in range(30_000)]
    own = {f"PC_pat_tcp_{inside}": 1_999 + inside for inside in (20_000, 30_000)}
    found = observation_of([node("PC", *tags)], {}, at=NOW, observer="manual", allocated=own.values())
    slim = bounded(found)
    assert len(msgspec.json.encode(slim)) <= LARGEST_BYTES
    assert (len(slim.nodes), slim.left_out) == (1, ("interfaces", "tags", "ports"))
    assert own.items() <= slim.observed_ports.items()
    unseen = own | {"PC_pat_tcp_29999": 31_998}
    assert unseen.keys().isdisjoint(drifted(unseen, {}, slim))
    assert drifted(own, {}, slim)
    assert bounded(slim) is slim
