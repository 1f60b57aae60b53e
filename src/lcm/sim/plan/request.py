"""A plan as it is asked for, by whichever way: a timetable, what to compare, and what a live system has."""

from typing import Any

import msgspec

from lcm.model.errors import Fault, Invalid
from lcm.sim.plan.live import Live, stock_of
from lcm.sim.plan.measured import Comparison
from lcm.sim.plan.planning import Heard, plan
from lcm.sim.plan.reading import combined
from lcm.sim.plan.reading_yaml import read_yaml
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.variant import variants

_MOST_FAULTS = 60


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants planned. `timetable` is JSON of the form that the YAML has."""

    timetable: dict[str, Any]
    title: str = "plan"
    compare: tuple[str, ...] = ()
    smallest: bool = False
    faults: float = 0.0
    seed: int = 1
    cores: int | None = None
    html: bool = False
    live: Live | None = None


def asked(request: Request) -> Timetable:
    """Read the timetable of a request; Invalid with every fault, each with its path."""
    text = msgspec.json.encode(request.timetable).decode()
    own, rows = read_yaml(text, lines=False)
    return combined((own, *([stock_of(request.live)] if request.live else [])), rows)


def answer(request: Request, heard: Heard = lambda _: None) -> Comparison:
    """Plan what was asked for."""
    if not 0 <= request.faults <= _MOST_FAULTS:
        raise Invalid(Fault("faults", f"{request.faults:g} an hour", f"use a number from 0 to {_MOST_FAULTS}"))
    timetable = asked(request)
    wanted = variants(request.compare, faults=request.faults, seed=request.seed)
    return plan(request.title, timetable, wanted, search=request.smallest, cores=request.cores, heard=heard)
