"""Calendar feeds: all that is somebody's, or one class, as strict readers take it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date, datetime
from typing import Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from icalendar import Calendar
from msgspec.structs import replace
from structlog.testing import capture_logs

from harness.api_world import Desk, opened, stock
from harness.calendars import StrictEvent, check_calendar, shown_events
from harness.event_clients import virtual
from harness.notices import ADA, BOB, TUTOR, NoticeWorld, at, booking, ended, school_class, with_sessions
from harness.plane_world import hand_clock
from lcm.api.http.limits import ApiLimits
from lcm.control.access.invitations import MOST_FEEDS
from lcm.control.access.tokens import TOKENS_PREFIX
from lcm.control.notices.bookings import Booking, Series
from lcm.control.notices.calendar_feeds import MOST_ENTRIES, MOST_SLOTS, OwnBooking, choose_shown, make_feed
from lcm.control.objects.records import creation_ops
from lcm.model.access.identity import OWN_CALENDAR, Caller, Reach, Role
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Recurrence, Reservation
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.store.base import Delete, scan_all
from lcm.store.memory import MemoryStore

FEEDS: Final = "/api/feeds"
WEEKLY: Final = Recurrence(every="week", until=date(2026, 12, 31), time_zone="Europe/Berlin")


def holder(email: str = ADA, name: str = "ada", calendar: str = OWN_CALENDAR, role: Role = Role.USER) -> Caller:
    return Caller(name=name, role=role, reach=Reach(email=email, calendar=calendar))


async def read(store: MemoryStore, who: Caller) -> bytes:
    found = await make_feed(store, None, who, at(0))
    assert found is not None
    Calendar.from_ical(found)
    return found


async def shown(who: Caller, *several: Resource) -> list[StrictEvent]:
    store = MemoryStore()
    for one in several:
        await store.commit(*creation_ops(one))
    return shown_events(await read(store, who))


async def test_a_person_sees_what_they_own_and_what_is_for_their_address_and_nothing_else() -> None:
    several = [
        booking("owned", owner="ada"),
        booking("taught", owner=TUTOR, student_email="Ada@Example.org", start=30),
        booking("other", owner=BOB),
        booking("named", owner=ADA, start=40),
    ]
    assert [one.uid for one in await shown(holder(), *several)] == ["uid-owned@lcm", "uid-taught@lcm"]
    assert [one.uid for one in await shown(holder(""), *several)] == ["uid-owned@lcm"], "no address is proven"


async def test_staff_see_in_their_own_feed_what_is_theirs() -> None:
    assert await shown(holder(role=Role.ADMIN, name="root", email=""), booking(owner=BOB)) == []


async def test_a_learner_of_a_class_sees_one_entry_and_its_owner_one_for_all() -> None:
    whole, sessions = with_sessions(school_class(ADA, BOB))
    (mine,) = await shown(holder(), whole, *sessions)
    assert (mine.uid, mine.start, mine.end) == ("uid-class@lcm", at(24), at(26))
    (all_of_it,) = await shown(holder("", name=TUTOR), whole, *sessions)
    assert all_of_it == mine
    assert await shown(holder("cy@example.org", "cy"), whole, *sessions) == []


async def test_a_seat_of_a_class_that_was_handed_over_is_in_one_feed_only() -> None:
    whole, sessions = with_sessions(school_class(BOB, "cy@example.org"))
    handed: LabletSession = replace(sessions[0], spec=replace(sessions[0].spec, student_email=ADA))
    assert [one.uid for one in await shown(holder(), whole, handed, sessions[1])] == ["uid-class@lcm"], "as in mails"
    assert not await shown(holder(BOB), whole, handed, sessions[1])


async def test_a_series_keeps_the_time_on_the_wall_across_a_change_of_the_clocks() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    start = datetime(2026, 10, 13, 9, tzinfo=berlin)
    hours = (start - at(0)).total_seconds() / 3600
    whole = school_class(ADA, start=hours, recurrence=WEEKLY)
    times = await shown(holder(), whole)
    assert len(times) == 12
    assert {f"{one.start.astimezone(berlin):%H:%M}" for one in times} == {"09:00"}
    assert len({one.start.hour for one in times}) == 2, "summer and winter"


@virtual
async def test_what_was_cancelled_says_so_and_what_only_waits_has_no_time() -> None:
    gone = ended(booking(), SessionPhase.TERMINATED, reason="the room is closed")
    waits = booking("asap", timeslot_start=None, timeslot_end=None, ends_at=None)
    (one,) = await shown(holder("", name=ADA), gone, waits)
    assert one.status == "CANCELLED"


async def test_a_feed_with_nothing_in_it_is_still_a_calendar() -> None:
    raw = await read(MemoryStore(), holder())
    assert [one.name for one in check_calendar(raw).parts] == ["VTIMEZONE"]


@virtual
async def test_long_and_strange_texts_are_folded_and_escaped() -> None:
    session = ended(booking(owner="ada"), SessionPhase.FAILED, reason='ü;,\\:"\r\nBEGIN:VEVENT ' * 40)
    (one,) = await shown(holder(), session)
    assert one.status == "CANCELLED"


async def test_the_same_bookings_are_the_same_bytes() -> None:
    store = MemoryStore()
    whole, sessions = with_sessions(school_class(ADA, recurrence=WEEKLY))
    several: list[Resource] = [whole, *sessions, booking(owner="ada")]
    for one in several:
        await store.commit(*creation_ops(one))
    assert await make_feed(store, None, holder(), at(0)) == await make_feed(store, None, holder(), at(1000))


@virtual
async def test_a_feed_has_the_uid_and_the_sequence_of_the_entry_in_the_mail() -> None:
    world = NoticeWorld()
    async with world.process():
        await asyncio.sleep(2)
        await world.put(booking())
        await asyncio.sleep(60)
        await world.put(booking(start=25))
        await asyncio.sleep(60)
    sent: Any = Calendar.from_ical(world.last().entries[0])
    found = await make_feed(world.store, None, holder("", name=ADA), at(1))
    assert found is not None
    (event,) = shown_events(found)
    assert (event.uid, event.sequence) == (str(sent.events[0]["UID"]), int(sent.events[0]["SEQUENCE"]))
    assert (event.start, event.sequence) == (at(25), 1)


def test_of_too_many_bookings_the_nearest_are_shown() -> None:
    several = [
        OwnBooking(
            Booking(f"k{n:04}", f"u{n}", "s", "", "t", Series(f"u{n}"), None, slots={0: (at(n), at(n + 1))}), at(0)
        )
        for n in range(MOST_ENTRIES + 5)
    ]
    chosen = choose_shown(reversed(several), at(0))
    assert [one.booking.key for one in chosen] == [one.booking.key for one in several[:MOST_ENTRIES]]


def of_ada(whole: Reservation) -> Reservation:
    return replace(whole, spec=replace(whole.spec, owner="ada"))


def test_a_series_with_too_many_times_leaves_room_for_others() -> None:
    def own(name: str, count: int) -> OwnBooking:
        slots = {n: (at(n), at(n + 1)) for n in range(count)}
        return OwnBooking(Booking(name, name, name, "", "t", Series(name), None, slots=slots), at(0))

    chosen = choose_shown([own("a", MOST_SLOTS + 1), own("b", MOST_SLOTS - 1), own("c", 2), own("d", 1)], at(0))
    assert [one.booking.key for one in chosen] == ["b", "d"]


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        await stock(desk, owner="ada")
        whole = school_class(BOB, "cy@example.org", name="promised")
        await desk.store.commit(*creation_ops(of_ada(whole)))
        yield desk


async def made(desk: Desk, who: str = "ada", **wish: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await desk.done(who, "POST", FEEDS, json=wish)
    return answer


async def test_whoever_has_the_address_reads_the_feed_without_signing_in(desk: Desk) -> None:
    answer = await desk.ask("", "GET", (await made(desk))["path"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
    assert len(shown_events(answer.content)) == 2, "a session and a class"
    whole = await desk.ask("", "GET", (await made(desk, reservation="promised"))["path"])
    assert len(shown_events(whole.content)) == 1
    assert b"promised" in whole.content


async def test_a_feed_that_did_not_change_is_not_sent_again(desk: Desk) -> None:
    path = (await made(desk))["path"]
    tag = (await desk.ask("", "GET", path)).headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        answer = await desk.ask("", "GET", path, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    await desk.done("ada", "DELETE", "/api/lablet-sessions/ada-monday")
    assert (await desk.ask("", "GET", path, headers={"If-None-Match": tag})).status_code == 200


async def test_a_revoked_expired_or_wrong_secret_opens_nothing_and_is_told_nowhere(desk: Desk) -> None:
    feed = await made(desk)
    secret = feed["path"].split("/")[3]
    await desk.done("ada", "DELETE", f"/api/tokens/{feed['info']['id']}")
    with capture_logs() as logged:
        answer = await desk.ask("", "GET", feed["path"])
        wrong = await desk.ask("", "GET", f"{FEEDS}/lcm_{'x' * 43}/calendar.ics")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["reason"] == "NotFound"
    assert answer.content == wrong.content
    assert secret not in str(logged) + answer.text
    stored = (await scan_all(desk.store, "")).entries
    assert not any(secret.encode() in one.value or secret in one.key for one in stored)
    assert any(one.key.startswith(TOKENS_PREFIX) for one in stored)


async def test_the_secret_of_a_feed_signs_nobody_in_and_a_token_opens_no_feed(desk: Desk) -> None:
    secret = (await made(desk))["path"].split("/")[3]
    for headers in ({"Authorization": f"Bearer {secret}"}, {"Cookie": f"lcm_session={secret}"}):
        assert (await desk.ask("", "GET", "/api/whoami", headers=headers)).status_code == 401
    answer = await desk.ask("", "POST", f"/sign-in?code={secret}", headers={"Sec-Fetch-Site": "same-origin"})
    assert answer.status_code in {401, 403}
    assert (await desk.ask("", "GET", f"{FEEDS}/{quote(desk.secrets['ada'])}/calendar.ics")).status_code == 404


async def test_a_feed_ends_with_the_token_it_was_made_with(desk: Desk) -> None:
    token = await desk.done("ada", "POST", "/api/tokens", json={"expires_in_seconds": 3600})
    desk.secrets["short"] = token["token"]
    feed = await made(desk, "short")
    assert feed["info"]["expires_at"] == token["info"]["expires_at"]
    await desk.done("ada", "DELETE", f"/api/tokens/{token['info']['id']}")
    assert (await desk.ask("", "GET", feed["path"])).status_code == 404


async def test_a_class_of_another_has_no_feed(desk: Desk) -> None:
    answer = await desk.ask("bob", "POST", FEEDS, json={"reservation": "promised"})
    assert answer.status_code == 422
    path = (await made(desk, reservation="promised"))["path"]
    (found,) = (await scan_all(desk.store, "reservations/default/promised")).entries
    await desk.store.commit(Delete(found.key))
    assert (await desk.ask("", "GET", path)).status_code == 404, "it is gone"


async def test_a_person_has_a_limited_number_of_feeds(desk: Desk) -> None:
    feed, *_ = [await made(desk) for _ in range(MOST_FEEDS)]
    refused = await desk.ask("ada", "POST", FEEDS, json={})
    assert (refused.status_code, refused.json()["reason"]) == (409, "NoRoom")
    await desk.done("ada", "DELETE", f"/api/tokens/{feed['info']['id']}")
    await made(desk)
    await made(desk, "bob")


async def test_guessing_and_reading_too_often_are_limited() -> None:
    async with opened(limits=ApiLimits(feed_burst=3, failure_burst=5), clock=hand_clock()) as desk:
        await stock(desk, owner="ada")
        path = (await made(desk))["path"]
        assert [(await desk.ask("", "GET", path)).status_code for _ in range(4)] == [200, 200, 200, 429]
        wrong = [(await desk.ask("", "GET", f"{FEEDS}/lcm_{n}/calendar.ics")).status_code for n in range(6)]
        assert wrong == [404] * 5 + [429]
