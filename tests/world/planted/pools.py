"""Planted faults of pools: how they grow and shrink, their hours and budgets, where sessions go, and what all costs."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest

from lcm.control.accounts import costs
from lcm.controllers.pool import demand, view
from lcm.controllers.pool.controller import PoolReconciler
from lcm.controllers.pool.view import PoolView
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import LcmError
from lcm.model.base.resource import Metadata
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.money.ledger import LedgerSums
from lcm.model.money.split import BillPiece
from lcm.placement import limits, rules, scaling
from lcm.placement.claims import request_for
from lcm.placement.hours import ALWAYS_OPEN
from lcm.placement.limits import LoadRoom, PromiseRules, count_load_room
from lcm.placement.scaling import PoolLoad
from lcm.placement.seats import KEEP_THROUGH_GAP, Seats, Span
from lcm.sim.world.scenario import ScenarioLab, ScenarioPool
from world.checked import CheckedWorld
from world.checks.bills import UNBALANCED
from world.checks.places import ELSEWHERE, LENT
from world.checks.pools import COOLDOWN, FLAPPING, HOURS, OVERSPENT, SIZE
from world.planted.deeds import booking_of, both, people_want_a_lab_now
from world.planted.faults import QUIET, Deed, Planted, changed, everywhere
from world.scenarios import OTHER_REGION, definition_name
from world.weeks.people import accounts_are_closed

_BY_LOAD: Final = ScenarioPool(track="ccna", most=4, least=1, policy=ScalingPolicy.CAPACITY_BASED)
BROAD: Final = (ScenarioLab(name="broad", track="ccna", cpu_cores=15, memory_gb=8),)
"""Three fit on a machine."""
LOADED: Final = changed(QUIET, hours=1.5, quiet_hours=4, labs=BROAD, pools=(_BY_LOAD,))
SMALL: Final = changed(LOADED, pools=(msgspec.structs.replace(_BY_LOAD, most=2),))
DEAR: Final = changed(LOADED, pools=(msgspec.structs.replace(_BY_LOAD, budget=Budget(hourly_usd=Decimal(10))),))
"""The budget is enough for two machines."""
CROWD: Final = people_want_a_lab_now(9, minutes=60)
LATE_OPENING: Final = changed(
    QUIET, pools=(ScenarioPool(track="ccna", most=1, least=1, hours=AllowedHours(start_hour=10, end_hour=20)),)
)
"""The pool opens at ten."""
EARLY_CLOSING: Final = changed(
    QUIET,
    hours=2.5,
    pools=(ScenarioPool(track="ccna", most=1, least=1, hours=AllowedHours(start_hour=6, end_hour=9)),),
)
"""The pool closes at nine, an hour after the beginning."""
BOOKED: Final = changed(QUIET, hours=3.5, quiet_hours=1.5, pools=(ScenarioPool(track="ccna", most=1),))
TWO_REGIONS: Final = changed(
    QUIET,
    pools=(
        ScenarioPool(track="ccna", name="ccna-east", most=1, least=1),
        ScenarioPool(track="ccna", name="ccna-west", most=1, least=1, region=OTHER_REGION),
    ),
)
LENDING: Final = changed(
    QUIET,
    pools=(
        ScenarioPool(track="ccna", most=1, least=1),
        ScenarioPool(track="ccna", name="ccna-lent", most=1, least=1, market="spot", price_per_hour_usd="1.3"),
    ),
)


def slots_are_booked(*slots: tuple[int, int], **wish: Any) -> Deed:
    """Book slots, each from a minute to another after the beginning."""

    async def book(world: CheckedWorld) -> None:
        await asyncio.sleep(120)
        lab, begin = definition_name(world.scenario.labs[0]), world.scenario.start
        for number, (start, end) in enumerate(slots):
            spec = LabletSessionSpec(
                definition=lab, timeslot_start=begin + _minutes(start), timeslot_end=begin + _minutes(end), **wish
            )
            session = LabletSession(metadata=Metadata(name=f"t{number}"), spec=spec)
            with suppress(LcmError):
                await world.ask(Caller(name=f"person-{number}", role=Role.USER), booking_of(session))

    return book


def wishes_are_asked_for(count: int, **wish: Any) -> Deed:
    """Let people want a lab now, in a place."""

    async def want(world: CheckedWorld) -> None:
        await asyncio.sleep(1_500)
        lab = definition_name(world.scenario.labs[0])
        for number in range(count):
            spec = LabletSessionSpec(definition=lab, duration_minutes=15, **wish)
            session = LabletSession(metadata=Metadata(name=f"w{number}"), spec=spec)
            await world.insist(Caller(name=f"person-{number}", role=Role.USER), booking_of(session))

    return want


def cooldowns_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, scaling._cooldown_end, lambda *_: None)


def growth_is_not_written_down(patch: pytest.MonkeyPatch) -> None:
    real = PoolReconciler._status

    def status(self: PoolReconciler, seen: PoolView, *rest: Any) -> Any:
        return msgspec.structs.replace(real(self, seen, *rest), load_up_at=seen.status.load_up_at)

    patch.setattr(PoolReconciler, "_status", status)


def maximum_is_one_more(patch: pytest.MonkeyPatch) -> None:
    real = PoolReconciler._view

    def larger(self: PoolReconciler, pool: Any, *rest: Any) -> PoolView:
        spec = msgspec.structs.replace(pool.spec, max_workers=pool.spec.max_workers + 1)
        return real(self, msgspec.structs.replace(pool, spec=spec), *rest)

    patch.setattr(PoolReconciler, "_view", larger)


def minimum_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    for policy, traits in list(view.POLICIES.items()):
        patch.setitem(view.POLICIES, policy, replace(traits, keeps=False))


def controller_knows_no_hours(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolView, "times", ALWAYS_OPEN)


def nothing_is_released(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, demand._release_unneeded, lambda *_: None)


def bookings_know_no_hours(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(limits.LIMITS, "hours", lambda *_: None)
    everywhere(patch, limits.find_closed_time, lambda *_: None)


def load_knows_no_budget(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, count_load_room, lambda *_: LoadRoom(10_000))


def budget_counts_one_less(patch: pytest.MonkeyPatch) -> None:
    real = limits.LIMITS["hourly_budget"]

    def generous(seats: Seats, pieces: Sequence[Span], by: PromiseRules) -> str | None:
        return real(seats, pieces, replace(by, load=by.load - 1))

    patch.setitem(limits.LIMITS, "hourly_budget", generous)


def gaps_are_not_bridged(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, KEEP_THROUGH_GAP, timedelta(0))
    patch.setitem(Seats.__init__.__kwdefaults__ or {}, "keep", timedelta(0))


def shrinking_begins_no_cooldown(patch: pytest.MonkeyPatch) -> None:
    """Make a pool give up at once what nobody uses, and grow again at once."""

    def end(load: PoolLoad, minutes: int) -> datetime | None:
        due = load.up_at + timedelta(minutes=minutes) if load.up_at and minutes < 20 else load.now
        return due if due > load.now else None

    everywhere(patch, scaling._cooldown_end, end)


def region_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(rules.STATIC_FILTERS, "region", lambda _place, _request: None)


def required_region_is_only_preferred(patch: pytest.MonkeyPatch) -> None:
    def request(session: LabletSession, *rest: Any) -> Any:
        found = request_for(session, *rest)
        return replace(found, region_required=None, region_preferred=session.spec.region_required)

    everywhere(patch, request_for, request)


def market_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(rules.STATIC_FILTERS, "market", lambda _place, _request: None)


def everybody_allows_spot(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, request_for, lambda *asked: replace(request_for(*asked), allow_spot=True))


def unused_time_is_nobodys(patch: pytest.MonkeyPatch) -> None:
    real = LedgerSums.add_piece

    def add(self: LedgerSums, piece: BillPiece) -> None:
        real(self, piece._replace(unused=0))

    patch.setattr(LedgerSums, "add_piece", add)


def stopped_machine_costs_nothing(patch: pytest.MonkeyPatch) -> None:
    states = {name: one for name, one in costs._BILLED_STATES.items() if "stop" not in name}
    patch.setattr(costs, "_BILLED_STATES", states)


def _minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


POOLS: Final = (
    Planted("cooldowns are not looked at", COOLDOWN, cooldowns_are_not_looked_at, LOADED, CROWD, (FLAPPING,)),
    Planted("growth is not written down", COOLDOWN, growth_is_not_written_down, LOADED, CROWD),
    Planted("the maximum is one more", SIZE, maximum_is_one_more, SMALL, CROWD),
    Planted("the minimum is not kept", SIZE, minimum_is_not_kept, QUIET),
    Planted("the controller knows no hours", HOURS, controller_knows_no_hours, LATE_OPENING),
    Planted("nothing is released", HOURS, nothing_is_released, EARLY_CLOSING),
    Planted("bookings know no hours", HOURS, bookings_know_no_hours, EARLY_CLOSING, slots_are_booked((90, 150))),
    Planted("load knows no budget", OVERSPENT, load_knows_no_budget, DEAR, CROWD),
    Planted("the budget counts one less", OVERSPENT, budget_counts_one_less, DEAR, CROWD),
    Planted("gaps are not bridged", FLAPPING, gaps_are_not_bridged, BOOKED, slots_are_booked((45, 75), (120, 150))),
    Planted(
        "shrinking begins no cooldown",
        FLAPPING,
        shrinking_begins_no_cooldown,
        LOADED,
        both(people_want_a_lab_now(9, minutes=20), wishes_are_asked_for(9)),
        (COOLDOWN,),
    ),
    Planted(
        "the region is not asked",
        ELSEWHERE,
        region_is_not_asked,
        TWO_REGIONS,
        wishes_are_asked_for(4, region_required=OTHER_REGION),
    ),
    Planted(
        "a required region is only preferred",
        ELSEWHERE,
        required_region_is_only_preferred,
        changed(TWO_REGIONS, labs=BROAD),
        wishes_are_asked_for(6, region_required=OTHER_REGION),
    ),
    Planted(
        "the market is not asked",
        LENT,
        market_is_not_asked,
        LENDING,
        slots_are_booked((60, 90), (60, 90)),
    ),
    Planted("everybody allows spot", LENT, everybody_allows_spot, LENDING, wishes_are_asked_for(4)),
    Planted(
        "unused time is nobody's",
        UNBALANCED,
        unused_time_is_nobodys,
        QUIET,
        both(people_want_a_lab_now(2), accounts_are_closed),
    ),
    Planted(
        "a stopped machine costs nothing", UNBALANCED, stopped_machine_costs_nothing, EARLY_CLOSING, accounts_are_closed
    ),
)
