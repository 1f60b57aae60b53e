"""Planted faults of prebuilt labs: given to two, holding what is promised, or not giving way."""

import asyncio
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from lcm.control.booking import prebuilt as taking
from lcm.controllers.scheduler import prebuilt as keeping
from lcm.model.access.identity import Caller, Role
from lcm.model.base.resource import Metadata
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import Seat
from lcm.sim.world.scenario import ScenarioPool
from world.checked import CheckedWorld
from world.checks.capacity import NO_CAPACITY
from world.checks.prebuilt import PREBUILT
from world.planted.deeds import both, people_want_a_lab_now
from world.planted.faults import QUIET, Planted, changed
from world.scenarios import definition_name

WARM: Final = changed(
    QUIET,
    hours=2.0,
    labs=(msgspec.structs.replace(QUIET.labs[0], prebuilt=PrebuiltPolicy(count=6)),),
    pools=(ScenarioPool(track="ccna", most=1, least=1),),
)
"""One machine that prebuilt labs fill."""


async def late_comers(world: CheckedWorld) -> None:
    """Let people come once labs are prebuilt."""
    await asyncio.sleep(timedelta(minutes=40).total_seconds())
    await people_want_a_lab_now(3)(world)


async def class_is_booked(world: CheckedWorld) -> None:
    """Let somebody book most of the machine for later."""
    await asyncio.sleep(timedelta(minutes=30).total_seconds())
    start = world.clock.now() + timedelta(minutes=40)
    lab = definition_name(world.scenario.labs[0])
    spec = ReservationSpec(definition=lab, timeslot_start=start, timeslot_end=start + timedelta(minutes=45), count=5)
    wanted = Reservation(metadata=Metadata(name="class"), spec=spec)
    await world.insist(Caller(name="teacher", role=Role.OPERATOR), lambda plane: plane.create(wanted))


def taken_lab_stays_prebuilt(patch: pytest.MonkeyPatch) -> None:
    async def leave(_writer: Any, record: Any, _taker: Any, _now: Any) -> Any:
        return taking.Booked(record.resource)

    patch.setattr(taking, "_leave_lab", leave)


def prebuilt_never_gives_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keeping, "choose_leaving", lambda _labs, _left: ())


def prebuilt_holds_a_seat(patch: pytest.MonkeyPatch) -> None:
    def seated(**fields: Any) -> Assignment:
        return Assignment(**fields | {"seat": Seat(pool="ccna", number=1)})

    patch.setattr(keeping, "Assignment", seated)


PREBUILT_FAULTS: Final = (
    Planted("a taken lab stays prebuilt", PREBUILT, taken_lab_stays_prebuilt, WARM, late_comers),
    Planted(
        "a prebuilt lab never gives way",
        PREBUILT,
        prebuilt_never_gives_way,
        WARM,
        both(class_is_booked, late_comers),
        neighbours=(NO_CAPACITY,),
    ),
    Planted("a prebuilt lab holds a planned worker", PREBUILT, prebuilt_holds_a_seat, WARM),
)
