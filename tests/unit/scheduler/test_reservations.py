"""Reservations: their sessions made in time, counted when they end, ended when they are cancelled."""

import asyncio
from datetime import date, timedelta

from harness import given
from harness.booking_world import CountingStore, from_monday
from harness.scheduler_world import HOUR, MINUTE, Room
from harness.workers import beside
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.controllers.runtime.lifecycle import Report, Wait
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.scheduler.reservations import (
    CREATE_AHEAD,
    Fulfil,
    ReservationFacts,
    ReservationReconciler,
    TerminateSessions,
    decide,
)
from lcm.model.base.capacity import Claim
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata, Owner, PhaseChange
from lcm.model.kinds.placement import MAX_SESSIONS_PER_COMMIT
from lcm.model.kinds.reservation import Recurrence, Reservation, ReservationClaim, ReservationPhase, ReservationSpec
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase

_P = ReservationPhase
R1 = Ref(Reservation, "r1")
ONE = given.moment("01:00")
OWNER = Owner(kind="Reservation", name="r1", uid="uid-r1")


async def reserve(room: Room, *, count: int = 2, start: str = "01:00", day: int = 0, **fields: object) -> Reservation:
    begin = given.moment(start, day=day)
    spec = ReservationSpec(definition="basics:1.0.0", timeslot_start=begin, timeslot_end=begin + HOUR, count=count)
    return await room.otto.create(Reservation(metadata=Metadata(name="r1"), spec=given.changed(spec, fields)))


def counted(room: Room) -> int:
    assert isinstance(room.store, CountingStore)
    return room.store.tried


async def reaches(room: Room, phase: ReservationPhase, within: timedelta = MINUTE) -> Reservation:
    until = room.clock.now() + within
    while True:
        found = await room.otto.get(R1)
        assert found is not None
        if found.status.phase is phase:
            return found
        assert room.clock.now() < until, found.status
        await asyncio.sleep(within.total_seconds() / 300)


@from_monday
async def test_the_sessions_of_a_reservation_are_made_scheduled_and_counted_to_their_end() -> None:
    async with Room().open(lablets=True) as room:
        await room.pool(await room.worker())
        await reserve(room)
        found = await reaches(room, _P.ACTIVE)
        assert found.status.sessions_made == 2
        sessions = await room.sessions()
        assert [one.metadata.name for one in sessions] == ["r1-1", "r1-2"]
        await room.reaches("r1-2", SessionPhase.SCHEDULED)
        found = await reaches(room, _P.COMPLETED, 3 * HOUR)
        assert (found.status.sessions_made, found.status.sessions_ended) == (2, 2)
        assert {one.status.phase for one in await room.sessions()} == {SessionPhase.COMPLETED}


@from_monday
async def test_a_large_reservation_is_written_once_for_many_of_its_sessions() -> None:
    many = 3 * MAX_SESSIONS_PER_COMMIT
    async with Room(store=CountingStore()).open() as room:
        await room.pool(max_workers=20)
        made = await reserve(room, count=many)
        tried = counted(room)
        await asyncio.sleep(5)
        assert [one.status.phase for one in await room.sessions()] == many * [SessionPhase.SCHEDULED]
        assert counted(room) - tried <= many + 3, "a step each, and three times the reservation"
        found = await room.otto.get(R1)
        assert found is not None
        assert [one.claim for one in found.status.held] == [one.claim for one in made.status.held]


@from_monday
async def test_sessions_are_made_a_week_before_they_begin() -> None:
    async with Room().open() as room:
        await room.pool()
        await reserve(room, count=1, day=7, start="01:00")
        await asyncio.sleep(30 * 60)
        assert (await reaches(room, _P.PROMISED)).status.sessions_made == 0
        await reaches(room, _P.ACTIVE, HOUR)
        assert given.moment("00:45") <= room.clock.now() <= given.moment("00:50")


@from_monday
async def test_a_series_makes_its_sessions_one_after_the_other() -> None:
    async with Room().open(lablets=True) as room:
        await room.pool(await room.worker())
        series = Recurrence(every="day", until=date(2026, 11, 11), time_zone="UTC", interval=9)
        await reserve(room, count=1, recurrence=series)
        found = await reaches(room, _P.ACTIVE)
        assert [one.session for one in found.status.held] == ["r1-1", None]
        await room.reaches("r1-1", SessionPhase.COMPLETED, 3 * HOUR)
        await asyncio.sleep(60)
        assert (await reaches(room, _P.ACTIVE)).status.sessions_ended == 1


@from_monday
async def test_a_cancelled_reservation_ends_its_sessions_and_lets_its_claims_go() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker())
        await reserve(room)
        await reaches(room, _P.ACTIVE)
        await room.reaches("r1-1", SessionPhase.SCHEDULED)
        await room.otto.delete(R1)
        async with asyncio.timeout(60):
            while await room.otto.get(R1) is not None:
                await asyncio.sleep(0.1)
        assert {one.status.phase for one in await room.sessions()} == {SessionPhase.TERMINATED}


@from_monday
async def test_a_cancelled_reservation_leaves_alone_who_took_the_name_of_a_session_of_it_that_is_gone() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker())
        await reserve(room)
        await reaches(room, _P.ACTIVE)
        ours = await room.reaches("r1-1", SessionPhase.SCHEDULED)
        await room.remove(ours)
        await room.books("r1-1", given.moment("06:00"), owner="bob")
        await room.reaches("r1-1", SessionPhase.SCHEDULED)
        await room.otto.delete(R1)
        async with asyncio.timeout(60):
            while await room.otto.get(R1) is not None:
                await asyncio.sleep(0.1)
        phases = [one.status.phase for one in await room.sessions()]
        assert phases == [SessionPhase.SCHEDULED, SessionPhase.TERMINATED]


@from_monday
async def test_of_a_reservation_that_is_over_nothing_is_remembered() -> None:
    async with Room().open(scheduled=False) as room:
        cache = Cache(room.by(SCHEDULER), *SchedulerController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            seen, poked = ReservationReconciler(room.by(SCHEDULER), cache, clock=room.clock), list[object]()
            seen.subscribe(poked.append)
            for phase in (_P.ACTIVE, _P.COMPLETED):
                await room.put(given.reservation(phase=phase, held=(held(1, "r1-1"),)))
                await asyncio.sleep(1)
                await room.put(given.session(name="r1-1", retry_count=int(phase is _P.ACTIVE)))
                await asyncio.sleep(1)
            assert poked == [R1], "only while it was active"


@from_monday
async def test_a_cancellation_that_takes_too_long_is_told_of() -> None:
    async with Room().open() as room:
        ends = {"worker_id": "uid-gone", "phase": SessionPhase.STOPPING, "ends_at": ONE, "expires_at": ONE}
        made = given.session(name="r1-1", outcome=SessionPhase.TERMINATED, **ends)
        await room.put(given.changed(made, {"metadata": {"owner": OWNER}}))
        story = [PhaseChange(phase="CANCELLING", at=room.clock.now(), by="otto")]
        claim = given.claim("00:45", "02:10")
        held = (ReservationClaim(number=1, claim=claim, seat=Seat(pool="ccna", number=1), session="r1-1"),)
        await room.put(given.reservation(phase=_P.CANCELLING, held=held, history=tuple(story)))
        await asyncio.sleep((given.moment("01:01") - room.clock.now()).total_seconds())
        assert [one.alert for one in await room.otto.alerts()] == ["CancellationOverdue"]


def facts(
    phase: ReservationPhase, *held: ReservationClaim, now: str = "00:00", **sessions: LabletSession
) -> ReservationFacts:
    ends = given.moment("02:00")
    made = given.reservation(phase=phase, held=held, starts_at=given.moment("00:45"), ends_at=ends)
    return ReservationFacts(made, {name.replace("_", "-"): one for name, one in sessions.items()}, given.moment(now))


def held(number: int, session: str | None = None, *, day: int = 0) -> ReservationClaim:
    start, end = given.moment("00:45", day=day), given.moment("02:10", day=day)
    return ReservationClaim(number=number, claim=Claim(start=start, end=end, need=given.amount()), session=session)


def test_what_is_due_is_made_and_what_is_over_is_not() -> None:
    assert decide(facts(_P.PROMISED, held(1), held(2), held(3, day=8))) == Fulfil((1, 2))
    assert decide(facts(_P.PROMISED, held(1, day=8))) == Wait(given.moment("00:45", day=8) - CREATE_AHEAD)
    late = decide(facts(_P.ACTIVE, held(1), held(2, "r1-2"), now="03:00"))
    assert isinstance(late, Report)
    assert late.status.phase is _P.COMPLETED


def test_looking_again_decides_the_same() -> None:
    seen = facts(_P.ACTIVE, held(1, "r1-1"), held(2, "r1-2"), r1_1=given.session(), r1_2=given.session())
    assert decide(seen) == decide(seen) == Wait(given.moment("02:10"))


def test_a_session_that_is_gone_has_ended() -> None:
    ended = decide(facts(_P.ACTIVE, held(1, "r1-1"), held(2, "r1-2"), r1_1=given.session()))
    assert isinstance(ended, Report)
    assert (ended.status.phase, ended.status.sessions_ended) == (_P.ACTIVE, 1)


def test_a_cancelled_one_ends_what_is_live_first() -> None:
    over = given.session(phase=SessionPhase.TERMINATED)
    assert decide(facts(_P.CANCELLING, held(1, "r1-1"), r1_1=given.session())) == TerminateSessions(("r1-1",))
    done = decide(facts(_P.CANCELLING, held(1, "r1-1"), r1_1=over))
    assert isinstance(done, Report)
    assert done.status.phase is _P.CANCELLED


def test_an_active_one_is_over_when_its_time_is_even_if_a_session_hangs() -> None:
    hangs = given.session(phase=SessionPhase.STOPPING)
    seen = facts(_P.ACTIVE, held(1, "r1-1"), now="02:10", r1_1=hangs)
    over = decide(seen)
    assert isinstance(over, Report)
    assert over.status.phase is _P.COMPLETED


def test_phases_of_others_are_left_alone() -> None:
    assert decide(facts(_P.PENDING)) == Wait()
