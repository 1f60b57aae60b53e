"""One variant is played: everything is booked as people would book it, by the production code, in virtual time."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from lcm.control.plane.protocol import Extend, Ref, Terminate
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Gone, NoRoom, Refused, Taken
from lcm.model.base.resource import Metadata
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import CLEAN_UP, LabletSession, LabletSessionSpec
from lcm.placement.claims import Terms
from lcm.settings.load import Settings
from lcm.sim.plan import documents
from lcm.sim.plan.measure import Turned, measured
from lcm.sim.plan.results import Trial
from lcm.sim.plan.timetable import Timetable, Wanted, first_of, span_of
from lcm.sim.plan.variant import Variant, applied, settings_of
from lcm.sim.plan.world import PlannedWorld
from lcm.sim.time.loop import run
from lcm.sim.world.mishaps import table
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.playing import quiet
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import OPERATOR
from lcm.system.clock import SystemStopwatch

_BOOKED: Final = 1.0
_COMES: Final = 7.0
_GOES: Final = 3.0
_A_DAY: Final = 50.0
_UP: Final = timedelta(minutes=40)
_DOWN: Final = timedelta(minutes=5)
_DAY: Final = timedelta(days=1)


class Work(NamedTuple):
    """So much is to be done between two moments."""

    since: datetime
    until: datetime
    weight: float


def works(sessions: Iterable[Wanted], begins: datetime, ends: datetime) -> Iterator[Work]:
    """Say what there is to do from a moment on, at which what has no `booked_at` is booked already."""
    yield Work(begins, ends, _A_DAY * ((ends - begins) / _DAY))
    for one in sessions:
        if one.booked_at is not None:
            yield Work(one.booked_at, one.booked_at + timedelta(seconds=1), _BOOKED)
        start = one.start or (one.booked_at or begins) + _UP
        end = start + timedelta(minutes=one.minutes)
        yield Work(start - _UP, start, _COMES)
        yield Work(end, end + _DOWN, _GOES)


def booking_share(bookings: int, several: Iterable[Work]) -> float:
    """Say which part of all is to book so many at the beginning."""
    booked = bookings * _BOOKED
    whole = booked + sum(one.weight for one in several)
    return booked / whole if whole else 0.0


def milestones(several: Sequence[Work], steps: int) -> Iterator[tuple[datetime, float]]:
    """Give the moments at which each of so many equal parts of the work is done, and the share that is over then."""
    slopes: dict[datetime, float] = defaultdict(float)
    for one in several:
        slope = one.weight / max((one.until - one.since).total_seconds(), 1.0)
        slopes[one.since] += slope
        slopes[one.until] -= slope
    whole, done, slope, step = sum(one.weight for one in several), 0.0, 0.0, 1
    for since, until in pairwise(sorted(slopes)):
        slope += slopes[since]
        after = done + slope * (until - since).total_seconds()
        while step < steps and after >= whole * step / steps and slope > 0:
            yield since + timedelta(seconds=(whole * step / steps - done) / slope), step / steps
            step += 1
        done = after


Heard = Callable[[float], None]
"""Hears how much of a trial is over, from 0 to 1."""
BEFORE: Final = timedelta(hours=2)
"""How long before the first slot a plan begins to be counted, or longer if boots are planned to take long."""
EARLIER: Final = timedelta(days=1)
"""How long before that everything is booked, and pools start what they always have."""
AFTER: Final = timedelta(hours=1)
"""How long after the last claim it ends: machines that nobody needs are gone by then."""
TOLD: Final = 100
"""How often somebody is told how far it is, about."""
_HOUR: Final = timedelta(hours=1)
_RARELY: Final = 10 * 24 * 3_600
_ALONE: Final = Settings(
    worker_controller_leader_lease_ttl=86_400,
    worker_controller_reconcile_interval=3_600,
    lablet_watch_interval=_RARELY,
    scheduler_reconcile_interval=_RARELY,
    worker_discovery_enabled=False,
    worker_discovery_interval=86_400,
    worker_monitoring_enabled=False,
    idle_check_interval=3_600,
    artifacts_retention_days=1,
)
"""Where nothing goes wrong nobody dies and nothing vanishes: who leads need not say so, and nothing is looked for."""
_WAITING_SECONDS: Final = 60
"""How often those without a slot are looked at: a place that was refused to one is tried again after so long."""
_TROUBLED: Final = Settings(worker_controller_leader_lease_ttl=60, lablet_watch_interval=60, metrics_poll_interval=600)


def play(timetable: Timetable, variant: Variant, heard: Heard = lambda _: None, *, brief: bool = False) -> Trial:
    """Play a timetable under a variant's choices to its end; a `brief` one only until somebody is refused."""
    timetable = applied(timetable, variant)
    settings = settings_of(variant, _TROUBLED if variant.faults else _calm(timetable))
    begins, ends = _span(timetable, settings)
    start = (timetable.now or min(begins, first_of(timetable))) - EARLIER
    scenario = Scenario(
        seed=variant.seed,
        start=start,
        hours=(ends - start - AFTER) / _HOUR,
        quiet_hours=AFTER / _HOUR,
        processes=3 if variant.faults else 1,
        sessions_a_day=0,
        bystanders=False,
        mishaps_an_hour=variant.faults,
        settings=settings,
    )
    stopwatch = SystemStopwatch()
    began = stopwatch.seconds()

    async def life() -> Trial:
        return await _Play(timetable, variant, scenario).between(begins, ends, heard, brief=brief)

    with quiet(_unheard):
        trial = run(life, start=start, horizon=ends - start + timedelta(days=2))
    return msgspec.structs.replace(trial, played_seconds=round(stopwatch.seconds() - began, 2))


def _calm(timetable: Timetable) -> Settings:
    if all(one.start for one in timetable.sessions):
        return _ALONE
    return msgspec.structs.replace(_ALONE, scheduler_reconcile_interval=_WAITING_SECONDS)


def _unheard(_: MutableMapping[str, Any]) -> None:
    """Let pass a line of a log."""


def _span(timetable: Timetable, settings: Settings) -> tuple[datetime, datetime]:
    begins, ends = span_of(timetable)
    lead = timedelta(minutes=settings.worker_bootup_delay_minutes + settings.lablet_instantiation_delay_minutes)
    early = timetable.now or begins - max(BEFORE, lead + Terms().buffer + timedelta(minutes=30))
    return early, ends + CLEAN_UP + AFTER


class _Play:
    """A world, and what is booked in it."""

    def __init__(self, timetable: Timetable, variant: Variant, scenario: Scenario) -> None:
        self._timetable = timetable
        self._variant = variant
        self._world = PlannedWorld(scenario)
        self._trouble = Trouble(self._world)
        self._turned: dict[str, Turned] = {}
        """Why which session was not promised, by its name."""
        self._unextended = 0

    async def between(self, begins: datetime, ends: datetime, heard: Heard, *, brief: bool) -> Trial:
        """Play to the end, and measure what came of it from the beginning on."""
        world = self._world
        work = list(works(self._timetable.sessions, world.clock.now(), ends))
        first = [one for one in self._timetable.sessions if self._booked_at(one) is None]
        booking = booking_share(len(first), work)
        await self._found()
        await self._book(first, lambda share: heard(share * booking))
        if brief and self._turned:
            return self._measured(begins)
        world.begin(self._tell(work, lambda share: heard(booking + share * (1 - booking))))
        await self._pass_until(begins)
        table.begin(self._trouble)
        await self._pass_until(ends - AFTER)
        self._trouble.end()
        await self._pass_until(ends)
        return self._measured(begins)

    def _measured(self, since: datetime) -> Trial:
        trial = measured(self._timetable, self._variant, self._world, self._turned, since=since)
        return msgspec.structs.replace(trial, unextended=self._unextended)

    async def _found(self) -> None:
        world, timetable = self._world, self._timetable
        world.stage.fleet.open(dict.fromkeys(one.spec.worker.aws.region for one in timetable.templates))
        await world.found()
        for definition in timetable.definitions:
            stored = await world.stage.artifacts.put(documents.lab_file(definition))
            await self._apply(documents.bookable(definition, stored))
        for template in timetable.templates:
            await self._apply(documents.launchable(template))
        for pool in timetable.pools:
            await self._apply(documents.unmade(pool))

    async def _apply(self, resource: Resource) -> None:
        with suppress(Taken):  # who heard no answer asks again
            await self._world.insist(OPERATOR, lambda plane: plane.create(resource))

    async def _book(self, first: Sequence[Wanted], heard: Heard) -> None:
        """Book what is there from the beginning in its order, and have the rest booked when its time comes."""
        for place, wanted in enumerate(first):
            if place % (len(first) // TOLD + 1) == 0:
                heard(place / len(first))
            await self._request(wanted)
        later = [(at, one) for one in self._timetable.sessions if (at := self._booked_at(one)) is not None]
        self._world.begin(self._book_later(sorted(later, key=lambda one: one[0])))
        changing = [one for one in self._timetable.sessions if one.cancelled_at or one.extended]
        for wanted in changing:
            self._world.begin(self._change(wanted))

    def _booked_at(self, wanted: Wanted) -> datetime | None:
        """Say when somebody books it: on a live system what is new comes now, behind what stands already."""
        return wanted.booked_at or (None if wanted.standing else self._timetable.now)

    async def _book_later(self, sessions: list[tuple[datetime, Wanted]]) -> None:
        for at, wanted in sessions:
            await self._sleep_until(at)
            await self._request(wanted)

    async def _request(self, wanted: Wanted) -> None:
        spec = LabletSessionSpec(
            definition=wanted.definition,
            lab_track=wanted.track,
            owner=wanted.owner,
            timeslot_start=wanted.start,
            timeslot_end=wanted.end,
            duration_minutes=None if wanted.start else wanted.minutes,
        )
        session = LabletSession(metadata=Metadata(name=wanted.name), spec=spec)
        caller = Caller(name=wanted.owner or "planner", role=Role.ADMIN)
        try:
            await self._world.insist(caller, lambda plane: plane.create(session, request=wanted.name))
        except NoRoom as error:
            self._turned[wanted.name] = Turned(error.why, str(error))
        except Refused as error:
            self._turned[wanted.name] = Turned(type(error).__name__, str(error))

    async def _change(self, wanted: Wanted) -> None:
        """Extend and cancel a session when somebody did; of what is refused only a lack of room is counted."""
        deeds: list[tuple[datetime, Extend | Terminate]] = [
            (one.at, Extend(minutes=one.minutes)) for one in wanted.extended
        ]
        if wanted.cancelled_at is not None:
            deeds.append((wanted.cancelled_at, Terminate()))
        ref = Ref(LabletSession, wanted.name)
        for number, (at, action) in enumerate(sorted(deeds, key=lambda deed: deed[0])):
            await self._sleep_until(at)
            try:
                await self._act(ref, action, f"{ref.name}-{number}")
            except NoRoom:
                self._unextended += 1
            except (Refused, Gone):
                continue

    async def _act(self, ref: Ref[LabletSession], action: Extend | Terminate, request: str) -> None:
        await self._world.insist(OPERATOR, lambda plane: plane.act(ref, action, request=request))

    async def _pass_until(self, moment: datetime) -> None:
        world = self._world
        await world.pass_time(max(moment - world.clock.now(), timedelta(0)))
        if wrong := world.witness.violations:
            raise AssertionError(f"the simulation met a bug: {wrong[0].text}")

    async def _sleep_until(self, moment: datetime) -> None:
        await asyncio.sleep(max(0.0, (moment - self._world.clock.now()).total_seconds()))

    async def _tell(self, work: Sequence[Work], heard: Heard) -> None:
        for moment, share in milestones(work, TOLD):
            await self._sleep_until(moment)
            heard(share)
