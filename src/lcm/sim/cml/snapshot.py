"""What a simulated CML is, as a value that can be written down and from which another one can go on.

Used by `sim.fleet`, for a process that ends and comes back. People's tokens, users, groups, pools and notices are not
kept: only the administrator is there again.
"""

from typing import Any

import msgspec

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.licence import Attempt
from lcm.sim.cml.pace import Turn
from lcm.sim.cml.parts import Lab, Life, State
from lcm.sim.cml.telemetry import Event


class KeptCml(msgspec.Struct, frozen=True):
    """A simulated CML, written down."""

    turns: tuple[Turn, ...]
    ended_runs: int
    udi: str
    product: str
    expansion: int
    attempt: Attempt | None
    opt_in: bool | None
    events: tuple[Event, ...]
    labs: tuple[Lab, ...]


def kept(cml: Cml) -> KeptCml:
    """Write a CML down, as it is now."""
    licence = cml.licence
    labs = tuple(cml.labs)  # looking at them lets happen what its power has done
    return KeptCml(
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


def go_on(cml: Cml, known: KeptCml) -> None:
    """Let a new CML be what another one was."""
    cml.pace.go_on(known.turns)
    cml.ended_runs = known.ended_runs
    cml.licence.udi, cml.licence.product = known.udi, known.product
    cml.licence.expansion, cml.licence.attempt = known.expansion, known.attempt
    cml.telemetry.opt_in = known.opt_in
    cml.telemetry.recall(known.events)
    for lab in known.labs:
        _join(lab)
    cml.labs.recall(known.labs)


def encode(value: object) -> object:
    """Write down what msgspec does not know."""
    if isinstance(value, Life):
        return value.changes
    raise NotImplementedError(type(value))


def decode(kind: type, value: Any) -> object:  # noqa: ANN401 - JSON of any shape
    """Read what `encode` wrote."""
    if kind is Life:
        return Life.of((age, State(state)) for age, state in value)
    raise NotImplementedError(kind)


def _join(lab: Lab) -> None:
    """Let links hold the nodes' own interfaces, not their likenesses."""
    own = {one.id: one for node in lab.nodes.values() for one in node.interfaces}
    for link in lab.links.values():
        link.a, link.b = own[link.a.id], own[link.b.id]
