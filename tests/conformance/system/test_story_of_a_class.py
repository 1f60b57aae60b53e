"""An instructor's week, once over HTTP and once at a terminal, with a real mail server and calendars as read.

Twenty learners come from a file and are booked for next Tuesday at nine; the class is moved by an hour, two of them
swap, the hand-out is printed. Each is told of each thing once, and finds one session, in the list and in the calendar.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from icalendar import Calendar

from harness.api_world import ApiServer, Shell, served
from harness.booking_world import TERMS, furnish
from harness.calendars import StrictEvent, shown_events
from harness.mail_server import Post, deliver_notices
from lcm.cli.output.times import parse_moment
from lcm.cli.output.zone import find_zone
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import SCHEDULER
from lcm.model.kinds.reservation import Reservation
from lcm.system.clock import SystemClock

BERLIN: Final = find_zone("Europe/Berlin")
INES: Final = "ines@example.org"
PEOPLE: Final = [f"learner{number:02}@example.org" for number in range(1, 21)]
ROSTER: Final = "email,name\n" + "".join(f"{one},Learner {place}\n" for place, one in enumerate(PEOPLE, start=1))
CLASS: Final = "/api/reservations/routing"


@pytest.fixture(name="post")
def post_that_takes() -> Post:
    return Post()


@pytest.fixture(name="api")
def api_that_sends_mail(post: Post) -> Iterator[ApiServer]:
    with served(terms=TERMS, beside=partial(deliver_notices, post=post)) as api:
        furnish(api, seats=11)
        with signed_in(api, api.tokens["root"]) as root:
            for name, role in ((INES, "instructor"), *((one, "user") for one in PEOPLE)):
                api.tokens[name] = done(root, "POST", "/api/tokens", name=name, role=role, email=name)["token"]
        yield api


def signed_in(api: ApiServer, token: str) -> httpx.Client:
    return httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def done(client: httpx.Client, method: str, path: str, **body: Any) -> Any:
    answer = client.request(method, path, json=body) if body else client.request(method, path)
    assert answer.is_success, answer.text
    return answer.json()


def next_tuesday() -> datetime:
    """Return nine o'clock in Berlin on the next Tuesday that is not today."""
    return parse_moment("next tuesday 9:00", SystemClock().now(), BERLIN)


def make_sessions(api: ApiServer) -> None:
    """Do what the scheduler does a week before."""

    async def fulfil(plane: Plane) -> None:
        await plane.fulfil(Ref(Reservation, "routing"), *range(1, len(PEOPLE) + 1))

    api.acting(SCHEDULER, fulfil)


def told(people: Sequence[str], *kinds: str) -> Counter[tuple[str, str]]:
    return Counter({(one, kind): 1 for one in people for kind in kinds})


def read_feed(api: ApiServer, url: str) -> list[StrictEvent]:
    raw = httpx.get(api.url + url if url.startswith("/") else url, timeout=60).raise_for_status().content
    assert Calendar.from_ical(raw)["VERSION"] == "2.0", "icalendar reads it, too"
    return shown_events(raw)


def mailed_entry(post: Post, person: str) -> Any:
    """Return the calendar entry of the last mail that somebody got."""
    last = next(one for one in reversed(post.taken) if one["To"] == person)
    part = next(one for one in last.walk() if one.get_content_type() == "text/calendar")
    calendar: Any = Calendar.from_ical(part.get_content())
    return calendar.events[0]


def expect_one_session_each(api: ApiServer, post: Post, start: datetime) -> None:
    """Each learner finds one session, the same in the list, in the feed and in the mail; and nobody else's."""
    names = set[str]()
    for person in PEOPLE:
        with signed_in(api, api.tokens[person]) as learner:
            (mine,) = done(learner, "GET", "/api/lablet-sessions")["items"]
            (event,) = read_feed(api, done(learner, "POST", "/api/feeds", expires_in_seconds=86400)["path"])
        assert mine["spec"]["student_email"] == person
        assert (event.start, event.end - event.start) == (start, timedelta(hours=1))
        sent = mailed_entry(post, person)
        assert (event.uid, event.sequence) == (str(sent["UID"]), int(sent["SEQUENCE"]))
        names.add(mine["metadata"]["name"])
    assert len(names) == len(PEOPLE)


def expect_wall_clock(events: Sequence[StrictEvent], occurrences: int) -> None:
    """A series of a year is at nine in summer and in winter."""
    assert len(events) == occurrences
    assert {f"{BERLIN.local(one.start):%a %H:%M}" for one in events} == {"Tue 09:00"}
    assert {one.start.astimezone(UTC).hour for one in events} == {7, 8}


def test_the_story_over_http(api: ApiServer, post: Post) -> None:
    start, hour = next_tuesday(), timedelta(hours=1)
    people = [row["email"] for row in csv.DictReader(io.StringIO(ROSTER))]
    slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + hour).isoformat()}
    with signed_in(api, api.tokens[INES]) as ines:
        spec = {"definition": "basics:1.0.0", "count": len(people), "student_emails": people, **slot}
        done(
            ines,
            "POST",
            "/api/reservations",
            kind="Reservation",
            api_version="lcm/v1",
            metadata={"name": "routing"},
            spec=spec,
        )
        post.wait_for(told([*PEOPLE, INES], "Booked"))
        make_sessions(api)
        done(ines, "POST", f"{CLASS}/move", minutes=60, time_zone="Europe/Berlin")
        post.wait_for(told([*PEOPLE, INES], "Booked", "Changed"))
        done(ines, "POST", f"{CLASS}/swap", learner=PEOPLE[0], other=PEOPLE[1])
        seats = {
            one["spec"]["student_email"]: one["metadata"]["name"]
            for one in done(ines, "GET", "/api/lablet-sessions")["items"]
        }
        assert (seats[PEOPLE[0]], seats[PEOPLE[1]]) == ("routing-2", "routing-1")
        (whole,) = read_feed(api, done(ines, "POST", "/api/feeds", reservation="routing")["path"])
        assert whole.start == start + hour
        expect_one_session_each(api, post, start + hour)
        rule = {"every": "week", "until": f"{year_after(start)}", "time_zone": "Europe/Berlin"}
        done(
            ines,
            "POST",
            "/api/reservations",
            kind="Reservation",
            api_version="lcm/v1",
            metadata={"name": "seminar"},
            spec={"definition": "basics:1.0.0", "recurrence": rule, **slot},
        )
        expect_wall_clock(read_feed(api, done(ines, "POST", "/api/feeds", reservation="seminar")["path"]), 52)
        post.wait_for(told([*PEOPLE, INES], "Booked", "Changed") + Counter({(INES, "Booked"): 1}))


def year_after(start: datetime) -> date:
    return BERLIN.local(start).date() + timedelta(weeks=51)


def test_the_story_at_a_terminal(api: ApiServer, post: Post, tmp_path: Path) -> None:
    roster = tmp_path / "class.csv"
    roster.write_text(ROSTER)
    desk = Shell(tmp_path, columns=100, LCM_URL=api.url, LCM_TOKEN=api.tokens[INES], TZ="Europe/Berlin")
    book = ("book", "basics", "--at", "next tuesday 9:00", "--for", "1h")
    desk.out(*book, "--name", "routing", "--count", "20", *(word for one in PEOPLE for word in ("--email", one)))
    post.wait_for(told([*PEOPLE, INES], "Booked"))
    assert "20 seats" in desk.out("learners", "routing", "--from", roster)
    make_sessions(api)
    desk.out("move", "reservation", "routing", "--by", "1h")
    post.wait_for(told([*PEOPLE, INES], "Booked", "Changed"))
    desk.out("swap", "routing", PEOPLE[0], PEOPLE[1])
    rows = list(csv.DictReader(io.StringIO(desk.out("hand-out", "routing", "-o", "csv", "--names", roster))))
    assert [(row["learner"], row["name"]) for row in rows[:2]] == [(PEOPLE[1], "Learner 2"), (PEOPLE[0], "Learner 1")]
    assert {row["learner"] for row in rows} == {*PEOPLE}
    expect_one_session_each(api, post, next_tuesday() + timedelta(hours=1))
    (event,) = read_feed(api, desk.out("feed", "create", "routing").split()[-1])
    assert event.start == next_tuesday() + timedelta(hours=1)
    series = ("--every", "week", "--until", f"{year_after(next_tuesday())}", "--time-zone", "Europe/Berlin")
    desk.out(*book, "--name", "seminar", "--count", "1", *series)
    expect_wall_clock(read_feed(api, desk.out("feed", "create", "seminar").split()[-1]), 52)
    post.wait_for(told([*PEOPLE, INES], "Booked", "Changed") + Counter({(INES, "Booked"): 1}))
    listed = desk.out("feed", "list").splitlines()[1:]
    assert len(listed) == 2
    desk.out("feed", "revoke", listed[0].split()[0])
    assert len(desk.out("feed", "list").splitlines()) == 2
    assert desk.lcm("feed", "revoke", "nope").exit_code == 3
