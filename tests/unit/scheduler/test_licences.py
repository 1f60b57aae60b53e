"""Licences that were promised and that somebody else took: told with what helps, and told again when it is over."""

import asyncio

from harness import given
from harness.booking_world import from_monday
from harness.scheduler_world import HOUR, MINUTE, Room, booting, serving
from lcm.control.accounts.licences import SEATS_PREFIX
from lcm.control.booking.step_records import FleetSettings
from lcm.control.objects.records import encode_checked
from lcm.controllers.scheduler.licences import LicenceShortage, ShortageSpan
from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Condition, Truth, find_condition
from lcm.model.kinds.session import LabletSession, SessionCondition, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.model.money.licences import LicenceSeat, SeatState, token_id
from lcm.store.base import Delete, Put

TOKEN = "env:CML_LICENSE_TOKEN"
NINE = given.moment("09:00")


def counted(seats: int) -> Room:
    return Room(fleet=FleetSettings(seats={token_id(TOKEN): seats}))


def risk(session: LabletSession) -> Condition | None:
    found = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    return found if found is not None and found.status is Truth.TRUE else None


async def take(room: Room, seat: LicenceSeat) -> None:
    value = encode_checked(given.changed(seat, {"token": token_id(TOKEN)}))
    await room.store.commit(Put(SEATS_PREFIX + seat.worker_id, value, {"token": token_id(TOKEN)}))


async def give_back(room: Room, worker_id: str = "uid-w1") -> None:
    await room.store.commit(Delete(SEATS_PREFIX + worker_id))


async def alerts(room: Room) -> list[tuple[str, str, str]]:
    return [(one.name, one.alert, one.reason) for one in await room.otto.alerts()]


async def two_seats(room: Room) -> None:
    """Book two whole machines at nine o'clock, and one at noon."""
    await room.pool(max_workers=2)
    for number in range(24):
        await room.books(f"s{number}", NINE)
    await room.books("noon", given.moment("12:00"))
    assert {one.status.seat.number for one in await room.sessions() if one.status.seat} == {1, 2}


@from_monday
async def test_a_promised_licence_that_is_taken_by_hand_is_told_of_until_it_is_free_again() -> None:
    async with counted(2).open() as room:
        await two_seats(room)
        await asyncio.sleep(60)
        assert not [one for one in await room.sessions() if risk(one)]
        await room.worker("by-hand", uid="uid-w1", lab_track="other")
        await take(room, given.seat(worker_name="by-hand"))
        told = risk(await room.until("s0", lambda one: risk(one) is not None))
        assert told is not None
        assert told.reason == "NoLicence"
        assert told.message == (
            "at 2026-11-02 08:45Z 2 workers need a licence and 1 are left: by-hand took 1 of 2 outside of pools; "
            "return one of those (`lcm licenses`), or raise CML_LICENSE_SEATS"
        )
        assert risk(await room.session("noon")) is None, "one is left for it"
        found = await alerts(room)
        assert found[0] == ("s0", "SessionAtRisk", "NoLicence")
        assert len(found) == 24
        message = next(one.message for one in await room.otto.alerts())
        assert message.count("CML_LICENSE_SEATS") == 1
        await give_back(room)
        await room.until("s0", lambda one: risk(one) is None)
        await asyncio.sleep(5)
        assert await alerts(room) == []


@from_monday
async def test_a_seat_that_was_left_behind_endangers_promises_and_workers_of_pools_do_not() -> None:
    async with counted(2).open() as room:
        await two_seats(room)
        await take(room, given.seat(worker_id="uid-ours"))
        await asyncio.sleep(60)
        assert await alerts(room) == []
        await take(room, given.seat(state=SeatState.ORPHANED))
        await room.until("s0", lambda one: risk(one) is not None)


@from_monday
async def test_where_labs_run_without_licences_nobody_lacks_one() -> None:
    room = counted(2)
    async with room.open() as room:
        settings = given.settings(scheduler={"require_licensed_for_cml": False})
        await room.put(settings)
        await two_seats(room)
        await take(room, given.seat(state=SeatState.ORPHANED))
        await asyncio.sleep(120)
        assert await alerts(room) == []


@from_monday
async def test_a_worker_that_the_licence_server_refuses_puts_its_sessions_at_risk_before_they_are_late() -> None:
    async with Room().open() as room:
        worker = await room.put(booting("w1", since=given.moment("00:00")))
        await room.pool(worker, max_workers=1)
        await room.books("s1", given.moment("00:40"))
        refused = {"phase": WorkerPhase.READY_UNLICENSED, "failure": "NoLicenceSeat", "last_error": "all are taken"}
        await room.change(worker, **refused)
        told = risk(await room.until("s1", lambda one: risk(one) is not None))
        assert told is not None
        assert (told.reason, room.clock.now() < given.moment("00:15")) == ("NoLicence", True)
        assert told.message.startswith("w1, the worker planned for it, gets no licence: all are taken; ")
        await room.change(worker, phase=WorkerPhase.LICENSING)
        await asyncio.sleep(60)
        assert risk(await room.session("s1")) is not None, "it is asked for again, and not had yet"
        await room.put(serving("w1", since=room.clock.now()))
        await room.until("s1", lambda one: risk(one) is None)
        await room.reaches("s1", SessionPhase.SCHEDULED)
        assert await alerts(room) == []


def test_only_claims_that_meet_a_shortage_are_in_danger() -> None:
    short = LicenceShortage([ShortageSpan(NINE, NINE + HOUR, 3)], 1, "there are 1")
    need = given.amount()
    assert short.risk(Claim(start=NINE - HOUR, end=NINE, need=need)) is None
    assert short.risk(Claim(start=NINE + HOUR, end=NINE + 2 * HOUR, need=need)) is None
    assert short.risk(Claim(start=NINE - HOUR, end=NINE + MINUTE, need=need)) is not None
