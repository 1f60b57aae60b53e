"""The state of a simulated CML as a value that can be serialized and restored.

Used by `sim.cloud.fleet`, for a process that ends and comes back. Tokens, users, groups, pools and notices are not
included: only the administrator exists again.
"""

from typing import Any

import msgspec

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.licence import RegistrationAttempt
from lcm.sim.cml.pace import SpeedChange
from lcm.sim.cml.parts import NodeState, NodeTimeline, SimLab
from lcm.sim.cml.telemetry import TelemetryEvent


class CmlSnapshot(msgspec.Struct, frozen=True):
    """The state of a simulated CML, ready to be serialized."""

    turns: tuple[SpeedChange, ...]
    ended_runs: int
    udi: str
    product: str
    expansion: int
    attempt: RegistrationAttempt | None
    opt_in: bool | None
    events: tuple[TelemetryEvent, ...]
    labs: tuple[SimLab, ...]


def take_snapshot(cml: Cml) -> CmlSnapshot:
    """Return the present state of a CML."""
    licence = cml.licence
    labs = tuple(cml.labs)  # reading them applies what its power has done
    return CmlSnapshot(
        turns=tuple(cml.pace.turns),
        ended_runs=cml.ended_runs,
        udi=licence.udi,
        product=licence.product,
        expansion=licence.expansion,
        attempt=licence.attempt,
        opt_in=cml.telemetry.opt_in,
        events=tuple(cml.telemetry.events),
        labs=labs,
    )


def restore_snapshot(cml: Cml, known: CmlSnapshot) -> None:
    """Give a new CML the state of another one."""
    cml.pace.restore_turns(known.turns)
    cml.ended_runs = known.ended_runs
    cml.licence.udi, cml.licence.product = known.udi, known.product
    cml.licence.expansion, cml.licence.attempt = known.expansion, known.attempt
    cml.telemetry.opt_in = known.opt_in
    cml.telemetry.restore_events(known.events)
    for lab in known.labs:
        _relink_interfaces(lab)
    cml.labs.restore_labs(known.labs)


def encode_timeline(value: object) -> object:
    """Encode a type that msgspec does not know."""
    if isinstance(value, NodeTimeline):
        return value.changes
    raise NotImplementedError(type(value))


def decode_timeline(kind: type, value: Any) -> object:  # noqa: ANN401 - JSON of any shape
    """Decode what `encode_timeline` wrote."""
    if kind is NodeTimeline:
        return NodeTimeline.from_changes((age, NodeState(state)) for age, state in value)
    raise NotImplementedError(kind)


def _relink_interfaces(lab: SimLab) -> None:
    """Make links refer to the nodes' own interfaces instead of decoded copies."""
    own = {one.id: one for node in lab.nodes.values() for one in node.interfaces}
    for link in lab.links.values():
        link.a, link.b = own[link.a.id], own[link.b.id]
