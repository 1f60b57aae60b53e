"""Planted faults of what people can do to each other: by labs that nobody can host, and by greed."""

from typing import Any, Final

import pytest

from lcm.control.booking.promise import Promises
from lcm.control.booking.quota import BookingQuota, refuse_excess
from lcm.controllers.scheduler import queue_plan
from lcm.placement import rules
from lcm.sim.world.scenario import ScenarioLab
from world.checks.hosting import IN_THE_WAY
from world.checks.quotas import GREEDY
from world.planted.deeds import both, lab_is_wanted_that_nobody_has, people_want_a_lab_now, somebody_grabs_all
from world.planted.faults import BUSY, QUIET, Planted, changed, everywhere
from world.scenarios import unhostable_labs

UNHOSTABLE: Final = unhostable_labs("ccna")
GRABBED: Final = changed(
    QUIET, hours=2.5, quiet_hours=3, labs=(ScenarioLab(name="broad", track="ccna", cpu_cores=15, memory_gb=8),)
)
"""One machine on which three labs run at once."""
ODD: Final = changed(QUIET, hours=1.5, unhostable=UNHOSTABLE)


def nobody_asks_who_could_host_it(patch: pytest.MonkeyPatch) -> None:
    async def accept(_self: Promises, *_: Any) -> None:
        return

    patch.setattr(Promises, "refuse_unhostable", accept)


def wishes_of_one_size_are_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_plan, "request_facts", lambda _request: None)


def node_definitions_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(rules.STATIC_FILTERS, "node_definitions", lambda _place, _request: None)


def limits_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, refuse_excess, lambda *_: None)


def bookings_of_one_owner_do_not_meet(patch: pytest.MonkeyPatch) -> None:
    real = BookingQuota._check

    async def unguarded(self: BookingQuota, *asked: Any) -> tuple[()]:
        await real(self, *asked)
        return ()

    patch.setattr(BookingQuota, "_check", unguarded)


def first_come_is_first_served(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, queue_plan.order_fairly, lambda seekers: sorted(seekers, key=lambda one: one.order))


PEOPLE: Final = (
    Planted("limits are not looked at", GREEDY, limits_are_not_looked_at, GRABBED, somebody_grabs_all),
    Planted(
        "bookings of one owner do not meet",
        GREEDY,
        bookings_of_one_owner_do_not_meet,
        changed(GRABBED, processes=3),
        somebody_grabs_all,
    ),
    Planted("first come is first served", GREEDY, first_come_is_first_served, GRABBED, somebody_grabs_all),
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
