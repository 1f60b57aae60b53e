"""Promises in danger: kept elsewhere where that can be, told where it cannot, and told again when it is over."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from harness import given
from harness.booking_world import METAL, from_monday
from harness.scheduler_world import HOUR, MINUTE, Room, booting, filled, serving
from lcm.control.plane.protocol import Drain, Ref, Terminate, ref_of
from lcm.controllers.scheduler.risk import Risk, with_risk
from lcm.model.base.capacity import Amount
from lcm.model.base.resource import Condition, Truth, find_condition
from lcm.model.kinds.pool import ScalingPolicy
from lcm.model.kinds.session import LabletSession, RiskReason, Seat, SessionCondition, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.store.base import Fence, Op
from lcm.store.memory import MemoryStore

_P = SessionPhase
ONE = given.moment("01:00")
SMALL = Amount(cpu_millis=4_000, memory_mb=16_384, storage_mb=200_000, nodes=20, ports=6_000, labs=20)


def risk(session: LabletSession) -> Condition | None:
    return find_condition(session.status.conditions, SessionCondition.AT_RISK)


def at_risk(session: LabletSession) -> bool:
    known = risk(session)
    return known is not None and known.status is Truth.TRUE


async def sleep_until(room: Room, clock: str) -> None:
    await asyncio.sleep((given.moment(clock) - room.clock.now()).total_seconds())


@from_monday
async def test_a_seat_whose_worker_comes_too_late_is_told_of_and_settled_when_it_serves_after_all() -> None:
    async with Room().open() as room:
        pool = await room.pool(max_workers=1)
        await room.books("s1", ONE)
        await sleep_until(room, "00:24")
        assert not at_risk(await room.session("s1"))
        found = await room.until("s1", at_risk, 2 * MINUTE)
        known = risk(found)
        assert known is not None
        assert known.reason == "NoWorkerInTime"
        told = (
            "its planned worker ccna/1 is needed from 2026-11-02 00:45Z on, "
            "and ccna/1 has no machine that is up by then"
        )
        assert known.message == told, "it is true for as long as it stands"
        assert [one.alert for one in await room.otto.alerts()] == ["SessionAtRisk"]
        before = await room.revision()
        await asyncio.sleep(120)
        assert await room.revision() - before <= 30, "it is told once"
        await room.change(pool, seats=filled([await room.worker()]))
        await room.until("s1", lambda one: not at_risk(one))
        assert list(await room.otto.alerts()) == []


@from_monday
async def test_a_worker_that_boots_in_time_is_no_risk() -> None:
    async with Room().open() as room:
        worker = await room.put(booting("w1", since=given.moment("00:20")))
        await room.pool(worker, max_workers=1)
        await room.books("s1", ONE)
        await sleep_until(room, "00:44")
        assert risk(await room.session("s1")) is None


@from_monday
async def test_a_promise_that_its_seat_cannot_keep_is_kept_by_another_that_can() -> None:
    async with Room().open() as room:
        late = await room.put(booting("w1", since=given.moment("00:00")))
        pool = await room.pool(late, max_workers=2)
        await room.books("s1", ONE)
        await room.reaches("s1", _P.SCHEDULED)
        seat = (await room.session("s1")).status.seat
        assert seat == Seat(pool="ccna", number=1)
        await sleep_until(room, "00:35")
        await room.change(late, phase=WorkerPhase.FAILED)
        await room.change(pool, seats=(given.changed(filled([await room.worker("w2")])[0], {"number": 2}),))
        found = await room.until("s1", lambda one: one.status.seat == Seat(pool="ccna", number=2))
        assert found.status.phase is _P.SCHEDULED
        assert not at_risk(found)
        await room.until("s1", lambda one: one.status.worker_name == "w2", 15 * MINUTE)


@from_monday
async def test_a_free_worker_outside_of_pools_keeps_a_promise_that_no_seat_can() -> None:
    async with Room().open() as room:
        await room.pool(max_workers=1)
        await room.books("s1", ONE)
        await sleep_until(room, "00:30")
        await room.worker("extra", lab_track="")
        found = await room.until("s1", lambda one: one.status.worker_name == "extra")
        assert (found.status.phase, found.status.seat) == (_P.SCHEDULED, None)
        await room.until("s1", lambda one: not at_risk(one))


@from_monday
async def test_a_slot_on_a_worker_outside_of_pools_that_drains_is_moved_long_before() -> None:
    async with Room().open() as room:
        extra = await room.worker("extra", lab_track="")
        await room.pool(max_workers=1)
        claim = given.claim("08:45", "11:10", cpu_millis=4_000, memory_mb=16_384)
        held = {"worker_id": extra.metadata.uid, "worker_name": "extra", "allocated_ports": {}, "claim": claim}
        slot = {"ends_at": given.moment("11:00"), "expires_at": given.moment("11:00"), "lab_track": "ccna"}
        await room.put(given.session(name="s1", phase=_P.SCHEDULED, **held, **slot))
        await asyncio.sleep(60)
        assert (await room.session("s1")).status.worker_name == "extra"
        await room.otto.act(ref_of(extra), Drain())
        found = await room.until("s1", lambda one: one.status.seat == Seat(pool="ccna", number=1))
        assert found.status.worker_id is None
        assert found.status.phase is _P.SCHEDULED
        assert found.status.claim == claim


@from_monday
async def test_a_seat_that_nothing_is_bound_to_keeps_its_sessions_when_its_worker_drains() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=2)
        await room.books("s1", given.moment("09:00"))
        before = await room.reaches("s1", _P.SCHEDULED)
        await room.otto.act(ref_of(worker), Drain())
        await asyncio.sleep(120)
        assert (await room.session("s1")).status == before.status


@from_monday
async def test_a_machine_smaller_than_its_template_moves_those_it_cannot_hold() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=2)
        for name in ("s1", "s2"):
            await room.books(name, given.moment("09:00"))
            await room.reaches(name, _P.SCHEDULED)
        assert {one.status.seat.number for one in await room.sessions() if one.status.seat} == {1}
        await room.change(worker, capacity=SMALL)
        await room.until("s2", lambda one: one.status.seat == Seat(pool="ccna", number=2))
        await asyncio.sleep(60)
        found = await room.session("s1")
        assert found.status.seat == Seat(pool="ccna", number=1)
        assert not any(at_risk(one) for one in await room.sessions())


@from_monday
async def test_a_machine_smaller_than_its_template_puts_those_at_risk_that_go_nowhere() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=1)
        for name in ("s1", "s2"):
            await room.books(name, given.moment("09:00"))
            await room.reaches(name, _P.SCHEDULED)
        await room.change(worker, capacity=SMALL)
        found = await room.until("s2", at_risk)
        known = risk(found)
        assert known is not None
        assert known.reason == "SeatTooSmall"
        assert not at_risk(await room.session("s1"))
        await room.change(worker, capacity=METAL)
        await room.until("s2", lambda one: not at_risk(one))


@from_monday
async def test_a_slot_whose_worker_was_lost_in_its_midst_goes_on_elsewhere_until_its_end() -> None:
    async with Room().open() as room:
        await room.pool(await room.worker(), max_workers=1)
        end = given.moment("01:00")
        slot = {"timeslot_start": given.moment("00:00") - HOUR, "timeslot_end": end, "ends_at": end, "expires_at": end}
        await room.put(given.session(name="s1", lab_track="ccna", retry_count=1, **slot))
        found = await room.until("s1", lambda one: one.status.worker_id is not None)
        assert found.status.claim is not None
        assert found.status.claim.end == end + 10 * MINUTE


@from_monday
async def test_a_slot_in_its_midst_that_fits_nowhere_is_at_risk_until_it_expires() -> None:
    async with Room().open() as room:
        end = given.moment("00:30")
        slot = {"timeslot_start": given.moment("00:00") - HOUR, "timeslot_end": end, "ends_at": end, "expires_at": end}
        await room.put(given.session(name="s1", lab_track="ccna", **slot))
        await room.until("s1", at_risk)
        await room.reaches("s1", _P.EXPIRED, HOUR)
        await asyncio.sleep(60)
        assert list(await room.otto.alerts()) == []
        assert at_risk(await room.session("s1")), "its promise was not kept"


@from_monday
async def test_a_pool_that_opens_no_seats_any_more_keeps_its_promises_and_is_no_risk_before_it_is_late() -> None:
    async with Room().open() as room:
        pool = await room.pool(max_workers=1)
        await room.books("s1", given.moment("03:00"))
        await room.reaches("s1", _P.SCHEDULED)
        await room.change(pool, policy=ScalingPolicy.NONE)
        await sleep_until(room, "02:19")
        assert risk(await room.session("s1")) is None
        await room.until("s1", at_risk, HOUR)


@from_monday
async def test_a_worker_that_serves_again_takes_its_promises() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=1)
        await room.books("s1", ONE)
        await room.reaches("s1", _P.SCHEDULED)
        await room.change(worker, phase=WorkerPhase.FAILED)
        await room.until("s1", at_risk, HOUR)
        await room.put(serving("w1"))
        await room.until("s1", lambda one: one.status.worker_id is not None, HOUR)
        await room.until("s1", lambda one: not at_risk(one))


@from_monday
async def test_seats_beyond_a_pool_made_smaller_get_their_workers_and_are_no_risk() -> None:
    async with Room().open() as room:
        pool = await room.pool(max_workers=2)
        for number in range(13):
            await room.books(f"s{number}", ONE)
        await room.change(pool, max_workers=1)
        await sleep_until(room, "00:20")
        found = await room.sessions()
        assert {one.status.seat.number for one in found if one.status.seat} == {1, 2}
        assert not any(risk(one) for one in found)


@from_monday
async def test_the_seats_of_a_pool_that_is_being_deleted_get_their_workers_and_are_no_risk() -> None:
    async with Room().open() as room:
        pool = await room.pool(max_workers=1)
        await room.books("s1", ONE)
        await room.change(pool, deletion_timestamp=room.clock.now())
        await sleep_until(room, "00:20")
        assert risk(await room.session("s1")) is None
        await room.until("s1", at_risk, 10 * MINUTE)


@from_monday
async def test_a_promise_that_the_plane_moves_nowhere_is_told_of_once() -> None:
    async with Room().open() as room:
        workers = [await room.worker("w1"), await room.worker("w2")]
        await room.pool(*workers, max_workers=2)
        for number in range(14):
            await room.books(f"s{number}", given.moment("09:00"))
        await asyncio.sleep(1)
        for worker in reversed(workers):
            await room.change(worker, capacity=SMALL)
        await asyncio.sleep(60)
        wrong = {one.metadata.name for one in await room.sessions() if at_risk(one)}
        assert len(wrong) == 12
        before = await room.revision()
        await asyncio.sleep(600)
        assert {one.metadata.name for one in await room.sessions() if at_risk(one)} == wrong
        assert await room.revision() - before <= 150, (
            "a lease is renewed every five seconds, and nothing else is written"
        )


@from_monday
async def test_a_promise_moved_to_where_it_begins_too_late_stays_at_risk() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=2)
        for name in ("s1", "s2"):
            await room.books(name, ONE)
            await room.reaches(name, _P.SCHEDULED)
        await sleep_until(room, "00:44")
        await room.change(worker, capacity=SMALL)
        found = await room.until("s2", lambda one: one.status.seat == Seat(pool="ccna", number=2), 10 * MINUTE)
        assert found.status.claim is not None
        assert found.status.claim.start > ONE
        await asyncio.sleep(60)
        known = risk(await room.session("s2"))
        assert known is not None
        assert (known.status, known.reason) == (Truth.TRUE, "SeatTooLate")


@from_monday
async def test_whoever_no_longer_fits_on_a_worker_that_shrinks_is_at_risk_until_others_leave() -> None:
    async with Room().open() as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=1)
        need = given.claim("00:00", "03:10", cpu_millis=4_000, memory_mb=16_384)
        held = {
            "claim": need,
            "worker_id": worker.metadata.uid,
            "ends_at": given.moment("03:00"),
            "allocated_ports": {},
        }
        first = given.session(name="s1", phase=_P.RUNNING, assigned_at=given.moment("00:00"), **held)
        last = given.session(name="s2", uid="uid-s2", phase=_P.RUNNING, assigned_at=given.moment("00:01"), **held)
        for session in (first, last):
            await room.put(session)
        await asyncio.sleep(60)
        assert not any(at_risk(one) for one in await room.sessions())
        await room.change(worker, capacity=SMALL)
        known = risk(await room.until("s2", at_risk))
        assert known is not None
        assert (known.reason, known.message.split()[0]) == ("SeatTooSmall", worker.metadata.name)
        assert [one.alert for one in await room.otto.alerts()] == ["SessionAtRisk"]
        await asyncio.sleep(300)
        assert not at_risk(await room.session("s1")), "it fits alone"
        await room.change(first, phase=_P.COMPLETED)
        await room.until("s2", lambda one: not at_risk(one))
        assert list(await room.otto.alerts()) == []


@from_monday
async def test_sessions_that_stay_longer_than_they_claimed_endanger_what_is_promised_after_them() -> None:
    async with Room().open() as room:
        worker = await room.worker(capacity=SMALL)
        await room.pool(worker, max_workers=1)
        await room.books("s1", given.moment("02:00"))
        await room.reaches("s1", _P.SCHEDULED)
        need = given.claim("00:00", "01:40", cpu_millis=4_000, memory_mb=16_384)
        seat = {"seat": Seat(pool="ccna", number=1), "worker_id": worker.metadata.uid, "claim": need}
        long = given.asap(name="a1", phase=_P.RUNNING, ends_at=given.moment("01:50"), **seat)
        await room.put(long)
        known = risk(await room.until("s1", at_risk))
        assert known is not None
        assert known.reason == "SeatStillTaken"
        assert "smaller" not in known.message
        await room.change(long, ends_at=given.moment("01:30"))
        await room.until("s1", lambda one: not at_risk(one))


class HurriedStore(MemoryStore):
    """Calls `then` once, right after the first alert was raised."""

    then: Callable[[], Awaitable[object]] | None = None

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        revision = await super().commit(*ops, events=events, fence=fence)
        if any(b"alert.raised" in event for event in events):
            then, self.then = self.then, None
            await then() if then else None
        return revision


@from_monday
async def test_no_alert_is_left_of_a_session_that_moved_on_while_it_was_raised() -> None:
    store, names = HurriedStore(), [f"s{number}" for number in range(8)]
    async with Room(store=store).open() as room:
        pool = await room.pool(max_workers=1)
        for name in names:
            await room.books(name, ONE)

        async def move_on() -> None:
            await room.change(pool, seats=filled([await room.worker()]))
            for name in names:
                await room.otto.patch(Ref(LabletSession, name), {"metadata": {"labels": {"moved": "on"}}})

        store.then = move_on
        await sleep_until(room, "00:40")
        assert store.then is None, "an alert was raised"
        assert [name for name in names if at_risk(await room.session(name))] == []
        assert [one.name for one in await room.otto.alerts()] == []


@from_monday
async def test_the_alert_of_a_session_at_risk_ends_in_the_commit_that_ends_the_session() -> None:
    async with Room().open() as room:
        await room.pool(max_workers=1)
        await room.books("s1", ONE)
        await room.until("s1", at_risk, HOUR)
        before = await room.revision()
        assert [one.alert for one in await room.otto.alerts()] == ["SessionAtRisk"]
        await room.otto.act(Ref(LabletSession, "s1"), Terminate())
        assert (list(await room.otto.alerts()), await room.revision()) == ([], before + 1)


def test_a_danger_that_is_over_is_remembered_with_its_reason() -> None:
    booked, now = given.session(), given.moment("09:10")
    endangered = given.with_fields(
        booked, {"conditions": with_risk(booked, Risk(RiskReason.NO_WORKER, "no machine"), now).conditions}
    )
    kept = find_condition(with_risk(endangered, None, now).conditions, SessionCondition.AT_RISK)
    assert kept is not None
    assert (kept.status, kept.message) == (Truth.FALSE, "before: NoWorkerInTime, no machine")
