"""Those who come in a simulated week: they book, come without a booking, give up, and run pools of their own."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from lcm.control.plane.local import LocalPlane
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.base.resource import Metadata
from lcm.model.kinds.pool import LabWorkerPool, PoolPhase
from lcm.model.kinds.reservation import Reservation, ReservationSpec
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.money.ledger import CostGroup, CostLedger
from lcm.sim.world.mishaps.cloud import spot_machine_is_reclaimed
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import MONDAY, REGION, ScenarioPool
from lcm.sim.world.world import OPERATOR, PlaneCall
from world.checked import CheckedWorld
from world.checks.bills import cloud_bill, ledger_is_the_bill, parts_add_up
from world.people.person import Person
from world.scenarios import definition_name, pool_documents

Deed = Callable[[CheckedWorld], Coroutine[Any, Any, None]]
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
WORKDAYS: Final = (0, 1, 2, 3, 4)
_GIVES_UP: Final = 90 * MINUTE
_MOST_ROWS: Final = 5_000


def class_at_nine(size: int, days: Sequence[int] = WORKDAYS) -> Deed:
    """Let a teacher book a class from nine to eleven on some days; who gets no class comes at nine all the same."""

    async def teach(world: CheckedWorld) -> None:
        teacher, lab = Person(world, "teacher", Role.OPERATOR), definition_name(world.scenario.labs[0])
        await asyncio.sleep(MINUTE.total_seconds())
        for day in days:
            start = MONDAY + day * DAY + 9 * HOUR
            spec = ReservationSpec(definition=lab, timeslot_start=start, timeslot_end=start + 2 * HOUR, count=size)
            wanted = Reservation(metadata=Metadata(name=f"class-{day}"), spec=spec)
            made = await teacher.want(f"book class-{day}", _creation(wanted))
            if made is None:
                for number in range(size):
                    world.begin(_come(world, f"c{day}-{number}", _learner(number), start, 120))

    return teach


def sittings(size: int, day: int, starts: Sequence[timedelta], minutes: int) -> Deed:
    """Let people book the sittings of an exam one by one, on the days before it."""

    async def register(world: CheckedWorld) -> None:
        dice = world.stage.chance.stream("sittings")
        for place, start in enumerate(starts):
            for number in range(size):
                at, name = MONDAY + day * DAY + start, f"x{place}-{number}"
                early = 10 * MINUTE + dice.random() * (day * DAY - 8 * HOUR)
                who, booked_at = _learner(number + size * place), MONDAY + early
                world.begin(_attend(world, name, who, at, minutes, early=at - booked_at))

    return register


def some_book(a_day: int, days: Sequence[int] = WORKDAYS, *, regions: Sequence[str] = ()) -> Deed:
    """Let people book a slot some hours ahead, at any time of the working day, some of them in a region."""

    async def book(world: CheckedWorld) -> None:
        dice = world.stage.chance.stream("some-book")
        for day in days:
            for number in range(a_day):
                start = MONDAY + day * DAY + 8 * HOUR + dice.randrange(36) * 15 * MINUTE
                early = min(dice.uniform(1, 20) * HOUR, start - MONDAY - 5 * MINUTE)
                wish = _draw_region(dice.randrange(4), regions, number)
                minutes = dice.choice((45, 60, 90, 120))
                name, who = f"b{day}-{number}", _learner(dice.randrange(60))
                world.begin(_attend(world, name, who, start, minutes, early=early, **wish))

    return book


def some_come(
    a_day: int,
    days: Sequence[int] = WORKDAYS,
    *,
    hours: tuple[int, int] = (8, 18),
    regions: Sequence[str] = (),
    spot_share: float = 0.0,
) -> Deed:
    """Let people come without a booking, at any time between two hours of some days."""

    async def come(world: CheckedWorld) -> None:
        dice = world.stage.chance.stream("some-come")
        for day in days:
            for number in range(a_day):
                at = MONDAY + day * DAY + dice.uniform(*hours) * HOUR
                wish = _draw_region(dice.randrange(4), regions, number)
                wish["allow_spot"] = dice.random() < spot_share
                minutes = dice.choice((30, 60, 90, 150))
                world.begin(_come(world, f"a{day}-{number}", _learner(dice.randrange(80)), at, minutes, **wish))

    return come


def crowd(count: int, since: timedelta, until: timedelta) -> Deed:
    """Let a crowd come without bookings: a third of it within the first hour, the others whenever they like."""

    async def come(world: CheckedWorld) -> None:
        dice = world.stage.chance.stream("crowd")
        for number in range(count):
            late = dice.uniform(0, 1) * HOUR if number % 3 == 0 else dice.random() * (until - since)
            name = f"h{number}"
            world.begin(_come(world, name, _learner(number % 90), MONDAY + since + late, dice.choice((90, 120, 240))))

    return come


def reclaims(every: timedelta, days: Sequence[int] = WORKDAYS) -> Deed:
    """Let the cloud take a spot machine away once in a while, on some days from nine to six."""

    async def take(world: CheckedWorld) -> None:
        trouble = Trouble(world)
        for day in days:
            await _sleep_until(world, MONDAY + day * DAY + 9 * HOUR)
            while world.clock.now() < MONDAY + day * DAY + 18 * HOUR:
                await asyncio.sleep(trouble.dice.expovariate(1 / every.total_seconds()))
                world.begin(spot_machine_is_reclaimed(trouble))

    return take


async def pools_come_and_go(world: CheckedWorld) -> None:
    """Create pools of a track that nobody books, and delete each in another phase of its life.

    One of them cannot get a machine for hours, because the cloud has none of its type.
    """
    await _sleep_until(world, MONDAY + 30 * HOUR)
    short = "m5zn.12xlarge"
    world.stage.cloud.account.add_shortage(REGION, short, MONDAY + 36 * HOUR)
    asked: tuple[tuple[str, str, int, Callable[[LabWorkerPool], bool]], ...] = (
        ("at-once", "m5zn.metal", 1, lambda _: True),
        ("initializing", "m5zn.metal", 1, lambda one: one.status.phase is PoolPhase.INITIALIZING),
        ("ready", "m5zn.metal", 1, lambda one: one.status.phase is PoolPhase.READY),
        ("growing", "m5zn.metal", 0, lambda one: one.status.phase is PoolPhase.SCALING_UP),
        ("shrinking", "m5zn.metal", 1, lambda one: one.status.phase is PoolPhase.SCALING_DOWN),
        ("failing", short, 1, _has_failed_twice),
    )
    for name, kind, least, when in asked:
        world.begin(_keep_pool(world, ScenarioPool(track="guest", name=name, instance_type=kind, least=least), when))


async def accounts_are_closed(world: CheckedWorld) -> None:
    """Compare the ledger with the cloud's own bill, by every group, when all is over."""
    scenario = world.scenario
    await _sleep_until(world, scenario.end + timedelta(hours=scenario.quiet_hours) - MINUTE)
    now, otto = world.clock.now(), Person(world, "otto", Role.ADMIN)
    bill = cloud_bill(world.stage, scenario.pools, now)
    for by in CostGroup:
        found = await otto.ask(partial(_read_ledger, by=by, since=scenario.start, until=now))
        world.witness.add_violations([*parts_add_up(found), *ledger_is_the_bill(found, bill)])


async def _read_ledger(plane: LocalPlane, *, by: CostGroup, since: datetime, until: datetime) -> CostLedger:
    return await plane.ledger(by=by, since=since, until=until, limit=_MOST_ROWS)


def _creation(wanted: Reservation) -> PlaneCall[Reservation]:
    return lambda plane: plane.create(wanted)


async def _keep_pool(world: CheckedWorld, wanted: ScenarioPool, when: Callable[[LabWorkerPool], bool]) -> None:
    """Create a pool, change its minimum when it is ready, and delete it as soon as `when` is so."""
    name = wanted.pool_name
    for document in pool_documents(wanted):
        await world.apply(document)
    ref, least, resized = Ref(LabWorkerPool, name), 1 - wanted.least, False
    while not when(pool := world.witness.seen.pools[name]):
        if pool.status.phase is PoolPhase.READY and not resized:
            resized = True
            await world.insist(OPERATOR, lambda plane: plane.patch(ref, {"spec": {"min_workers": least}}))
        await asyncio.sleep(1)
    await world.insist(OPERATOR, lambda plane: plane.delete(ref))


def _has_failed_twice(pool: LabWorkerPool) -> bool:
    failed = [line for line in pool.status.history if line.phase == PoolPhase.FAILED]
    return len(failed) > 1 and pool.status.phase is PoolPhase.FAILED


async def _attend(
    world: CheckedWorld, name: str, who: Caller, start: datetime, minutes: int, *, early: timedelta, **wish: object
) -> None:
    """Book a slot so early before it; who is refused comes when it would have begun."""
    await _sleep_until(world, start - early)
    person, end = Person(world, who.name), start + minutes * MINUTE
    spec = LabletSessionSpec(definition=definition_name(world.scenario.labs[0]), timeslot_start=start, timeslot_end=end)
    session = LabletSession(metadata=Metadata(name=name), spec=msgspec.structs.replace(spec, **wish))
    if await person.want(f"book {name}", lambda plane: plane.create(session, request=name), who) is None:
        await _come(world, f"{name}-now", who, start, minutes, **wish)


async def _come(world: CheckedWorld, name: str, who: Caller, at: datetime, minutes: int, **wish: object) -> None:
    """Want a lab now."""
    await _sleep_until(world, at)
    person, lab = Person(world, who.name), definition_name(world.scenario.labs[0])
    spec = LabletSessionSpec(definition=lab, duration_minutes=minutes, give_up_at=world.clock.now() + _GIVES_UP)
    session = LabletSession(metadata=Metadata(name=name), spec=msgspec.structs.replace(spec, **wish))
    await person.want(f"use {name}", lambda plane: plane.create(session, request=name), who)


def _draw_region(chance: int, regions: Sequence[str], number: int) -> dict[str, object]:
    """Return a wish for a region: half of those who come have one, and half of these cannot be anywhere else."""
    if not regions or chance > 1:
        return {}
    return {("region_required", "region_preferred")[chance]: regions[number % len(regions)]}


def _learner(number: int) -> Caller:
    return Caller(name=f"learner-{number}", role=Role.USER)


async def _sleep_until(world: CheckedWorld, moment: datetime) -> None:
    await asyncio.sleep(max(0.0, (moment - world.clock.now()).total_seconds()))
