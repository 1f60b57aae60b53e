"""Plays one variant: everything is booked as people would book it, by the production code, in virtual time.

Progress is counted by the work to do, not by time: a night costs next to nothing, and sixty labs that start at nine
cost seconds. The weights were measured; one is about the cost of a booking.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from lcm.control.plane.protocol import Extend, Ref, Terminate
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Gone, NoRoom, Refused
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, LabletSessionSpec
from lcm.placement.claims import Terms
from lcm.settings.load import Settings
from lcm.sim.plan import documents
from lcm.sim.plan.measure import RefusalReason, measure_trial
from lcm.sim.plan.results import Trial
from lcm.sim.plan.timetable import SessionRequest, Timetable, first_moment, span_of
from lcm.sim.plan.variant import Variant, apply_variant, settings_of
from lcm.sim.plan.world import PlanWorld
from lcm.sim.time.loop import run
from lcm.sim.world.mishaps import table
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.world import OPERATOR, capture_logs
from lcm.system.clock import SystemStopwatch

_BOOKING_WEIGHT: Final = 1.0
_START_WEIGHT: Final = 7.0
_STOP_WEIGHT: Final = 3.0
_DAY_WEIGHT: Final = 50.0
_START_SPAN: Final = timedelta(minutes=40)
_STOP_SPAN: Final = timedelta(minutes=5)
_DAY: Final = timedelta(days=1)


class WorkItem(NamedTuple):
    """An amount of work between two moments."""

    since: datetime
    until: datetime
    weight: float


def work_items(sessions: Iterable[SessionRequest], begins: datetime, ends: datetime) -> Iterator[WorkItem]:
    """Yield the work from a moment on; what has no `booked_at` is booked already by then."""
    yield WorkItem(begins, ends, _DAY_WEIGHT * ((ends - begins) / _DAY))
    for one in sessions:
        if one.booked_at is not None:
            yield WorkItem(one.booked_at, one.booked_at + timedelta(seconds=1), _BOOKING_WEIGHT)
        start = one.start or (one.booked_at or begins) + _START_SPAN
        end = start + timedelta(minutes=one.minutes)
        yield WorkItem(start - _START_SPAN, start, _START_WEIGHT)
        yield WorkItem(end, end + _STOP_SPAN, _STOP_WEIGHT)


def booking_share(bookings: int, several: Iterable[WorkItem]) -> float:
    """Return the share of all work that booking so many sessions at the beginning takes."""
    booked = bookings * _BOOKING_WEIGHT
    whole = booked + sum(one.weight for one in several)
    return booked / whole if whole else 0.0


def milestones(several: Sequence[WorkItem], steps: int) -> Iterator[tuple[datetime, float]]:
    """Yield the moments at which each of `steps` equal parts of the work is done, with the share that is done then."""
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


OnShare = Callable[[float], None]
"""Called with the share of a trial that is done, from 0 to 1."""
MEASURED_BEFORE: Final = timedelta(hours=2)
"""How long before the first slot a plan begins to be measured, or longer if boots are planned to take long."""
BOOKED_BEFORE: Final = timedelta(days=1)
"""How long before that everything is booked, and pools start their minimum of workers."""
ENDS_AFTER: Final = timedelta(hours=1)
"""How long after the last claim a trial ends: machines that nobody needs are gone by then."""
PROGRESS_STEPS: Final = 100
"""About how many times progress is reported."""
_HOUR: Final = timedelta(hours=1)
_RARELY_SECONDS: Final = 10 * 24 * 3_600
_CALM_SETTINGS: Final = Settings(
    worker_controller_leader_lease_ttl=86_400,
    worker_controller_reconcile_interval=3_600,
    lablet_watch_interval=_RARELY_SECONDS,
    scheduler_reconcile_interval=_RARELY_SECONDS,
    worker_discovery_enabled=False,
    worker_discovery_interval=86_400,
    worker_monitoring_enabled=False,
    idle_check_interval=3_600,
    artifacts_retention_days=1,
)
"""For trials without faults: no process dies and nothing vanishes, so that leases are long and little is polled."""
_WAITING_SECONDS: Final = 60
"""How often sessions without a slot are considered: a place that was refused to one is tried again after this time."""
_FAULTY_SETTINGS: Final = Settings(
    worker_controller_leader_lease_ttl=60, lablet_watch_interval=60, metrics_poll_interval=600
)


def play(timetable: Timetable, variant: Variant, heard: OnShare = lambda _: None, *, brief: bool = False) -> Trial:
    """Play a timetable under a variant's choices to its end; with `brief`, only until a session is refused."""
    timetable = apply_variant(timetable, variant)
    settings = settings_of(variant, _FAULTY_SETTINGS if variant.faults else _settings_without_faults(timetable))
    begins, ends = _measured_span(timetable, settings)
    start = (timetable.now or min(begins, first_moment(timetable))) - BOOKED_BEFORE
    scenario = Scenario(
        seed=variant.seed,
        start=start,
        hours=(ends - start - ENDS_AFTER) / _HOUR,
        quiet_hours=ENDS_AFTER / _HOUR,
        processes=3 if variant.faults else 1,
        sessions_a_day=0,
        bystanders=False,
        mishaps_an_hour=variant.faults,
        settings=settings,
    )
    stopwatch = SystemStopwatch()
    began = stopwatch.seconds()

    async def life() -> Trial:
        return await _TrialRun(timetable, variant, scenario).run(begins, ends, heard, brief=brief)

    with capture_logs(_ignore_log_line):
        trial = run(life, start=start, horizon=ends - start + timedelta(days=2))
    return msgspec.structs.replace(trial, played_seconds=round(stopwatch.seconds() - began, 2))


def _settings_without_faults(timetable: Timetable) -> Settings:
    if all(one.start for one in timetable.sessions):
        return _CALM_SETTINGS
    return msgspec.structs.replace(_CALM_SETTINGS, scheduler_reconcile_interval=_WAITING_SECONDS)


def _ignore_log_line(_: MutableMapping[str, Any]) -> None:
    """Ignore a log line."""


def _measured_span(timetable: Timetable, settings: Settings) -> tuple[datetime, datetime]:
    begins, ends = span_of(timetable)
    lead = timedelta(minutes=settings.worker_bootup_delay_minutes + settings.lablet_instantiation_delay_minutes)
    early = timetable.now or begins - max(MEASURED_BEFORE, lead + Terms().buffer + timedelta(minutes=30))
    return early, ends + CLEAN_UP_TIME + ENDS_AFTER


class _TrialRun:
    """A world, and what is booked in it."""

    def __init__(self, timetable: Timetable, variant: Variant, scenario: Scenario) -> None:
        self._timetable = timetable
        self._variant = variant
        self._world = PlanWorld(scenario)
        self._trouble = Trouble(self._world)
        self._refusals: dict[str, RefusalReason] = {}
        """Why a session was not promised, by its name."""
        self._unextended = 0

    async def run(self, begins: datetime, ends: datetime, heard: OnShare, *, brief: bool) -> Trial:
        """Play to the end, and measure from `begins` on."""
        world = self._world
        work = list(work_items(self._timetable.sessions, world.clock.now(), ends))
        first = [one for one in self._timetable.sessions if self._booked_at(one) is None]
        booking = booking_share(len(first), work)
        await self._set_up()
        await self._book(first, lambda share: heard(share * booking))
        if brief and self._refusals:
            return self._measure(begins)
        world.begin(self._report_progress(work, lambda share: heard(booking + share * (1 - booking))))
        await self._pass_until(begins)
        table.begin(self._trouble)
        await self._pass_until(ends - ENDS_AFTER)
        self._trouble.end()
        await self._pass_until(ends)
        return self._measure(begins)

    def _measure(self, since: datetime) -> Trial:
        trial = measure_trial(self._timetable, self._variant, self._world, self._refusals, since=since)
        return msgspec.structs.replace(trial, unextended=self._unextended)

    async def _set_up(self) -> None:
        world, timetable = self._world, self._timetable
        world.stage.fleet.install_images(dict.fromkeys(one.spec.worker.aws.region for one in timetable.templates))
        world.set_up()
        for definition in timetable.definitions:
            stored = await world.stage.artifacts.put(documents.lab_file(definition))
            await world.apply(documents.bookable_definition(definition, stored))
        for template in timetable.templates:
            await world.apply(documents.launchable_template(template))
        for pool in timetable.pools:
            await world.apply(documents.fresh_pool(pool))

    async def _book(self, first: Sequence[SessionRequest], heard: OnShare) -> None:
        """Book in order what is booked before the start, and schedule the other bookings for their time."""
        for place, wanted in enumerate(first):
            if place % (len(first) // PROGRESS_STEPS + 1) == 0:
                heard(place / len(first))
            await self._book_session(wanted)
        later = [(at, one) for one in self._timetable.sessions if (at := self._booked_at(one)) is not None]
        self._world.begin(self._book_later(sorted(later, key=lambda one: one[0])))
        changing = [one for one in self._timetable.sessions if one.cancelled_at or one.extended]
        for wanted in changing:
            self._world.begin(self._change(wanted))

    def _booked_at(self, wanted: SessionRequest) -> datetime | None:
        """Return when a session is booked.

        On a live system, new ones are booked now, after those that are promised already.
        """
        return wanted.booked_at or (None if wanted.standing else self._timetable.now)

    async def _book_later(self, sessions: list[tuple[datetime, SessionRequest]]) -> None:
        for at, wanted in sessions:
            await self._sleep_until(at)
            await self._book_session(wanted)

    async def _book_session(self, wanted: SessionRequest) -> None:
        spec = LabletSessionSpec(
            definition=wanted.definition,
            lab_track=wanted.track,
            owner=wanted.owner,
            timeslot_start=wanted.start,
            timeslot_end=wanted.end,
            duration_minutes=None if wanted.start else wanted.minutes,
            **msgspec.structs.asdict(wanted.wish),
        )
        session = LabletSession(metadata=Metadata(name=wanted.name), spec=spec)
        caller = Caller(name=wanted.owner or "planner", role=Role.ADMIN)
        try:
            await self._world.insist(caller, lambda plane: plane.create(session, request=wanted.name))
        except NoRoom as error:
            self._refusals[wanted.name] = RefusalReason(error.why, str(error))
        except Refused as error:
            self._refusals[wanted.name] = RefusalReason(type(error).__name__, str(error))

    async def _change(self, wanted: SessionRequest) -> None:
        """Extend and cancel a session at its given times; of refusals, only a lack of room is counted."""
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

    async def _report_progress(self, work: Sequence[WorkItem], heard: OnShare) -> None:
        for moment, share in milestones(work, PROGRESS_STEPS):
            await self._sleep_until(moment)
            heard(share)
