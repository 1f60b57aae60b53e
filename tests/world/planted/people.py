"""Planted faults of what people can do to each other: by labs that nobody can host."""

from typing import Any, Final

import pytest

from lcm.control.booking.promise import Promises
from lcm.controllers.scheduler import queue_plan
from lcm.placement import rules
from world.checks.hosting import IN_THE_WAY
from world.planted.deeds import both, lab_is_wanted_that_nobody_has, people_want_a_lab_now
from world.planted.faults import BUSY, QUIET, Planted, changed
from world.scenarios import unhostable_labs

UNHOSTABLE: Final = unhostable_labs("ccna")
ODD: Final = changed(QUIET, hours=1.5, unhostable=UNHOSTABLE)


def nobody_asks_who_could_host_it(patch: pytest.MonkeyPatch) -> None:
    async def accept(_self: Promises, *_: Any) -> None:
        return

    patch.setattr(Promises, "refuse_unhostable", accept)


def wishes_of_one_size_are_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_plan, "request_facts", lambda _request: None)


def node_definitions_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(rules.STATIC_FILTERS, "node_definitions", lambda _place, _request: None)  # type: ignore[arg-type]  # it is a dict


PEOPLE: Final = (
    Planted(
        "nobody asks who could host it",
        IN_THE_WAY,
        nobody_asks_who_could_host_it,
        changed(BUSY, unhostable=UNHOSTABLE, sessions_a_day=400),
    ),
    Planted(
        "wishes of one size are one",
        IN_THE_WAY,
        wishes_of_one_size_are_one,
        ODD,
        both(lab_is_wanted_that_nobody_has, people_want_a_lab_now(6)),
    ),
    Planted(
        "node definitions are not looked at",
        IN_THE_WAY,
        node_definitions_are_not_looked_at,
        ODD,
        lab_is_wanted_that_nobody_has,
    ),
)
