"""The view of the fleet: followed change by change it is what it would be if it were made anew."""

import asyncio
from random import Random

import msgspec

from harness import given
from harness.booking_world import from_monday
from harness.scheduler_world import HOUR, MINUTE, POOL, Room, booting, filled, serving
from harness.workers import beside
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ref_of
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.scheduler.index import ClaimIndex
from lcm.controllers.scheduler.places import SessionDurations
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.capacity import Claim
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.pool import ScalingPolicy
from lcm.model.kinds.reservation import ReservationClaim, ReservationPhase
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.placement.claims import Terms
from lcm.placement.request import BOOTING

_P = SessionPhase
FAR = Claim(start=given.moment("09:00", day=30), end=given.moment("11:00", day=30), need=given.amount())
"""So far away that nothing of it is late when the test ends."""


async def view(room: Room, cache: Cache) -> SchedulerView:
    return await SchedulerView.follow(cache, terms=Terms, now=room.clock.now, changed=lambda: None)


def laid(one: SchedulerView) -> dict[str, object]:
    fleet = one.fleet("default")
    return {
        line.place.id: (line.place, {holder: one.held for holder, one in line.held.items()})
        for line in fleet.indexed_places()
    }


async def something_happens(room: Room, chance: Random) -> None:
    number = chance.randrange(4)
    worker, session = f"w{number}", f"s{chance.randrange(8)}"
    match chance.randrange(10):
        case 0:
            await room.put(booting(worker, since=room.clock.now()))
        case 1:
            await room.put(serving(worker, phase=chance.choice(list(WorkerPhase))))
        case 2:
            seated = chance.sample([f"w{number}" for number in range(4)], chance.randrange(4))
            most, policy = chance.randint(1, 5), chance.choice(list(ScalingPolicy))
            await room.pool(*map(serving, seated), max_workers=most, policy=policy)
        case 3:
            held = tuple(
                ReservationClaim(number=one, claim=FAR, seat=Seat(pool="ccna", number=chance.randint(1, 4)))
                for one in range(chance.randrange(4))
            )
            await room.put(given.reservation(phase=ReservationPhase.ACTIVE, held=held))
        case 4:
            await room.remove(serving(worker))
        case 5:
            await room.remove(given.asap(name=session))
        case 6:
            await room.remove(given.pool())
        case _:
            seat = Seat(pool="ccna", number=chance.randint(1, 5)) if chance.random() < 0.7 else None
            fields = {"seat": seat, "worker_id": chance.choice([None, "uid-w0", "uid-w1", "uid-w3"])}
            times = {"claim": FAR, "ends_at": FAR.start}
            await room.put(given.asap(name=session, uid=session, phase=chance.choice(list(_P)), **fields, **times))


@from_monday
async def test_followed_change_by_change_it_is_what_it_would_be_if_made_anew() -> None:
    async with Room().open(scheduled=False) as room:
        cache, chance = Cache(room.by(SCHEDULER), *SchedulerController.kinds), Random(11)
        async with beside(cache.run()):
            await cache.ready()
            followed = await view(room, cache)
            for _ in range(200):
                await something_happens(room, chance)
                await asyncio.sleep(chance.choice((1, 5, 600)))
                anew = await view(room, cache)
                anew.durations = followed.durations
                for one in (followed, anew):
                    await one.refresh(room.clock.now())
                    await one.shift_openings(room.clock.now())
                anew.stop()
                assert laid(followed) == laid(anew)


def ended(name: str, uid: str) -> LabletSession:
    """Return a session that started up within two minutes, and was cleaned up within one."""
    times = {_P.RUNNING: "09:02", _P.COLLECTING: "10:02", _P.COMPLETED: "10:03"}
    history = tuple(PhaseChange(phase=phase, at=given.moment(at), by=SCHEDULER) for phase, at in times.items())
    return given.asap(name=name, uid=uid, phase=_P.COMPLETED, assigned_at=given.moment("09:00"), history=history)


def test_each_session_is_learned_from_once_also_when_a_name_is_used_again() -> None:
    durations = SessionDurations()
    for uid in ("first", "first", "second", "second"):
        durations.learn(ended("s1", uid))
    assert list(durations._clean_ups) == [60, 60]
    assert durations.usual_start_up("basics:1.0.0", Terms()) == 2 * MINUTE


@from_monday
async def test_sessions_that_are_gone_leave_nothing_but_what_was_learned_from_them() -> None:
    async with Room().open(scheduled=False) as room:
        cache = Cache(room.by(SCHEDULER), *SchedulerController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            seen = await view(room, cache)
            for number in range(30):
                await room.put(ended(f"s{number}", f"uid-{number}"))
                await asyncio.sleep(1)
                await room.remove(ended(f"s{number}", f"uid-{number}"))
                await asyncio.sleep(1)
            assert seen.durations._counted == {}
            assert seen.durations.usual_clean_up() == MINUTE


@from_monday
async def test_a_seat_is_its_worker_with_all_the_seats_claims() -> None:
    async with Room().open(scheduled=False) as room:
        worker = await room.worker()
        await room.pool(worker, max_workers=2)
        await room.books("s1", given.moment("09:00"))
        cache = Cache(room.by(SCHEDULER), *SchedulerController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            seen = await view(room, cache)
            await seen.refresh(room.clock.now())
            fleet = seen.fleet("default")
            assert [one.holder for one in fleet.claims_on("uid-w1")] == ["default/s1"]
            assert fleet["seat:default/ccna/2"].usable_at == room.clock.now() + 25 * MINUTE
            assert seen.seat_of("uid-w1") == Seat(pool="ccna", number=1)
            await room.change(worker, phase=WorkerPhase.FAILED)
            await asyncio.sleep(1)
            await seen.refresh(room.clock.now())
            assert [one.holder for one in fleet.claims_on("seat:default/ccna/1")] == ["default/s1"]
            assert fleet.claims_on("uid-w1") == ()


@from_monday
async def test_a_machine_that_boots_counts_with_what_its_template_promises() -> None:
    async with Room().open(scheduled=False) as room:
        worker = await room.put(booting("w1", since=room.clock.now()))
        pool = await room.pool(worker, max_workers=1, boot_seconds=(600, 660, 720))
        cache = Cache(room.by(SCHEDULER), *SchedulerController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            seen = await view(room, cache)
            await seen.refresh(room.clock.now())
            place = seen.fleet("default")["uid-w1"]
            assert (place.closed, place.licensed, place.usable_at) == (BOOTING, None, given.moment("00:11"))
            await asyncio.sleep(HOUR.total_seconds())
            await seen.refresh(room.clock.now())
            assert seen.fleet("default")["uid-w1"].usable_at == given.moment("01:01")
            await room.change(pool, seats=filled([]))
            await asyncio.sleep(1)
            await seen.refresh(room.clock.now())
            assert seen.fleet("default")["seat:default/ccna/1"].seat


@from_monday
async def test_what_should_be_gone_and_is_not_is_expected_to_go_soon() -> None:
    async with Room().open(scheduled=False) as room:
        await room.worker()
        ends = {"ends_at": given.moment("01:00"), "claim": given.claim("00:00", "01:10")}
        await room.put(given.asap(phase=_P.RUNNING, worker_id="uid-w1", **ends))
        cache = Cache(room.by(SCHEDULER), *SchedulerController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            seen = await view(room, cache)
            for clock, end in (("00:30", "01:10"), ("01:30", "01:31"), ("01:50", "01:51")):
                await asyncio.sleep((given.moment(clock) - room.clock.now()).total_seconds())
                await seen.refresh(room.clock.now())
                (held,) = seen.fleet("default").claims_on("uid-w1")
                assert held.claim.end == given.moment(end)


def test_of_what_nobody_holds_any_more_nothing_is_remembered() -> None:
    holdings = ClaimIndex(lambda _, claim: claim)
    session = given.session(phase=_P.RUNNING, seat=Seat(pool="ccna", number=7), worker_id="uid-w1", claim=FAR)
    holdings.update(ref_of(session), session)
    assert list(holdings.claimed_seats(POOL)) == [7]
    assert set(holdings.spots()) == {(POOL, 7), "uid-w1"}
    holdings.update(ref_of(session), None)
    assert list(holdings.claimed_seats(POOL)) == []
    assert set(holdings.spots()) == set()


@from_monday
async def test_a_promise_that_is_merely_told_wakes_nobody() -> None:
    async with Room().open(scheduled=False) as room:
        cache = Cache(room.by(SCHEDULER), *SchedulerController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            await room.pool()
            await asyncio.sleep(1)
            seen = list[object]()
            woken = await SchedulerView.follow(
                cache, terms=Terms, now=room.clock.now, changed=lambda: seen.append(None)
            )
            made = await room.books("s1", given.moment("09:00"))
            await asyncio.sleep(1)
            assert seen
            seen.clear()
            told = msgspec.structs.replace(made.status, phase=_P.SCHEDULED)
            await room.by(SCHEDULER).step(made, told)
            await asyncio.sleep(1)
            assert not seen
            (chair,) = woken.session_index.promised
            assert chair == (POOL, 1)


def test_of_a_reservation_only_what_changed_is_held_anew() -> None:
    several = tuple(ReservationClaim(number=one, claim=FAR, seat=Seat(pool="ccna", number=one)) for one in range(1, 4))
    before, holdings = given.reservation(held=several), ClaimIndex(lambda _, claim: claim)
    assert len(list(holdings.update(ref_of(before), before))) == 3
    first = next(iter(holdings.claims_at((POOL, 1)).values()))
    after = given.reservation(held=(several[0], msgspec.structs.replace(several[1], session="s2"), several[2]))
    assert list(holdings.update(ref_of(after), after)) == [((POOL, 2), "default/r1#2")]
    assert next(iter(holdings.claims_at((POOL, 1)).values())) is first
    assert holdings.claimed_seats(POOL) == {1, 3}
