"""Classes as instructors work with them in the browser: boards of seats, changes, hand-outs, and a move by dragging."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser.browser import PHONE, Watched, find_axe_faults, is_wider_than_screen, wait_for_content, watch
from browser.installation import Installation

ZONE = ZoneInfo("Europe/Berlin")
HERE: dict[str, Any] = {"timezone_id": "Europe/Berlin", "locale": "en-GB"}
"""Where the people of these tests are: what a page shows depends on it."""
DAY = datetime.now(ZONE).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=2)
SERIES = {"every": "week", "until": f"{DAY + timedelta(days=14):%Y-%m-%d}", "time_zone": "Europe/Berlin"}
ADA, BOB, EVE = "ada@example.org", "bob@example.org", "eve@example.org"
LAB = "ccna-basics:1.0.0"


def at(hour: float, day: int = 0) -> datetime:
    """Return an hour of the day of the classes, by the clocks here."""
    return (DAY + timedelta(days=day)).replace(hour=int(hour), minute=int(hour % 1 * 60))


def say(moment: datetime) -> re.Pattern[str]:
    """Match a moment as pages say it. The short name of September is not the same for Python and Chromium."""
    return re.compile(f"{moment:%a},? {moment.day} {moment:%b}t?,? .*{moment:%H:%M}")


def reserve(it: Installation, token: str, name: str, start: datetime, **more: Any) -> None:
    """Reserve for a class of an hour."""
    slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=1)).isoformat()}
    it.ask("POST", "/api/reservations", token=token, json={"metadata": {"name": name}, "spec": slot | more})


@pytest.fixture(scope="module")
def school(installation: Installation) -> Installation:
    """A class that is about to begin, two series, and a lab that fills the one machine it may have."""
    token = installation.token("tess", "instructor")
    people = {"count": 2, "student_emails": [ADA, BOB]}
    installation.reserve_soon(token, "today", {"definition": LAB, **people}, hours=1)
    for name in ("routing", "switching"):
        reserve(installation, token, name, at(9), definition=LAB, recurrence=SERIES, **people)
    spec: dict[str, Any] = installation.ask("GET", f"/api/lablet-definitions/{LAB}")["spec"]
    spec |= {"lab_track": "solo", "resource_requirements": {"cpu_cores": 40, "memory_gb": 8}}
    solo = {"metadata": {"name": "solo:1.0.0"}, "spec": spec}
    installation.ask("POST", "/api/lablet-definitions", json=solo)
    pool = {"lab_track": "solo", "template": "metal", "min_workers": 0, "max_workers": 1, "policy": "SCHEDULED"}
    installation.ask("POST", "/api/worker-pools", json={"metadata": {"name": "solo"}, "spec": pool})
    reserve(installation, installation.token("zoe", "instructor"), "taken", at(10), definition="solo:1.0.0")
    return installation


@pytest.fixture
def tess(chromium: Browser, school: Installation) -> Iterator[Watched]:
    with watch(chromium, school.url, **HERE) as watched:
        watched.enter(school.link("tess", "instructor"))
        yield watched


def begin(page: Page, verb: str) -> Locator:
    """Open one of the dialogs of a class."""
    button = page.get_by_role("main").get_by_role("button", name=verb, exact=True)
    expect(button).to_be_visible()
    button.click()
    return page.get_by_role("dialog").filter(visible=True)


def test_an_instructor_sees_own_classes_as_boards_and_nobody_elses(tess: Watched) -> None:
    page = tess.open("/")
    board = page.get_by_role("region", name="routing")
    expect(page.get_by_role("heading", name="My classes", level=1)).to_be_visible()
    expect(board).to_contain_text(say(at(9)))
    for email in (ADA, BOB):
        expect(board.get_by_role("listitem").filter(has_text=email)).to_be_visible()
    expect(board).to_contain_text("2 more meetings")
    expect(page.get_by_role("region", name="What is next")).to_contain_text("begins")
    expect(page.get_by_text("taken")).to_have_count(0)
    for name in ("Workers", "Planner", "Settings", "Definitions"):
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)).to_have_count(0)
    assert find_axe_faults(page, in_dark=True) == []
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert not is_wider_than_screen(page)


def test_a_meeting_is_moved_where_there_is_room_and_a_refusal_names_other_times(
    tess: Watched, school: Installation
) -> None:
    reserve(school, school.token("tess", "instructor"), "moving", at(14), definition="solo:1.0.0")
    tess.allowed.add("409")
    page = tess.open("/reservations/moving")
    dialog = begin(page, "Move")
    expect(dialog.get_by_text("Choose another time.")).to_be_visible()
    field = dialog.get_by_label(re.compile("^New start"))
    field.fill(f"{at(10):%Y-%m-%dT%H:%M}")
    field.blur()
    refusal = dialog.get_by_role("alert")
    expect(refusal).to_contain_text("The nearest times that would be accepted")
    expect(dialog.get_by_role("button", name="Move", exact=True)).to_be_disabled()
    assert find_axe_faults(page, in_dark=True) == []
    refusal.get_by_role("button").first.click()
    expect(dialog.get_by_text("It would be accepted")).to_be_visible()
    field.fill(f"{at(16):%Y-%m-%dT%H:%M}")
    field.blur()
    expect(dialog.get_by_text(re.compile("It would be accepted.*16:00 to"))).to_be_visible()
    dialog.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("summary")).to_contain_text("16:00 to 17:00")
    found = school.ask("GET", "/api/reservations/moving")["spec"]["timeslot_start"]
    assert datetime.fromisoformat(found) == at(16)


def test_learners_are_pasted_and_swapped_and_seats_follow_them(tess: Watched, school: Installation) -> None:
    reserve(school, school.token("tess", "instructor"), "people", at(9, 1), definition=LAB, count=2)
    page = tess.open("/reservations/people")
    dialog = begin(page, "Learners")
    roster = dialog.get_by_role("textbox")
    roster.fill(f"name,email\nAda,{ADA}\nBob,bob\n")
    expect(dialog.get_by_text("Line 3: bob is no e-mail address.")).to_be_visible()
    expect(dialog.get_by_role("button", name="Name them")).to_be_disabled()
    roster.fill(f"name,email\nAda,{ADA}\nBob,{BOB}\nEve,{EVE}\n")
    expect(dialog.get_by_text("1 seat more is booked.")).to_be_visible()
    expect(dialog.get_by_text("It would be accepted")).to_be_visible()
    dialog.get_by_role("button", name="Name them").click()
    seats = page.get_by_role("region", name="Seats").get_by_role("listitem")
    expect(seats).to_have_count(3)
    expect(seats.nth(0)).to_contain_text(ADA)
    dialog = begin(page, "Swap")
    dialog.get_by_label("Learner").select_option(ADA)
    dialog.get_by_label("Other").fill(EVE)
    expect(dialog.get_by_text("It would be accepted")).to_be_visible()
    dialog.get_by_role("button", name="Swap", exact=True).click()
    expect(seats.nth(0)).to_contain_text(EVE)
    expect(seats.nth(2)).to_contain_text(ADA)
    dialog = begin(page, "Seats")
    dialog.get_by_label("Seats each time").fill("2")
    expect(dialog.get_by_text("It would be accepted")).to_be_visible()
    dialog.get_by_role("button", name="Change the seats").click()
    expect(seats).to_have_count(2)
    assert school.ask("GET", "/api/reservations/people")["spec"]["student_emails"] == [EVE, BOB]


def test_a_series_gets_longer_and_one_meeting_of_it_is_left_out(tess: Watched, school: Installation) -> None:
    page = tess.open("/reservations/switching")
    meetings = page.locator("summary")
    expect(meetings).to_have_count(3)
    dialog = begin(page, "Extend")
    dialog.get_by_label("What gets longer").select_option("all")
    expect(dialog.get_by_text("It would be accepted")).to_be_visible()
    dialog.get_by_role("button", name="Extend").click()
    expect(meetings.nth(2)).to_contain_text("09:00 to 10:30")
    dialog = begin(page, "Leave one out")
    dialog.get_by_label("Meeting").select_option("2")
    expect(dialog.get_by_text(re.compile("It would be accepted: 2 meetings"))).to_be_visible()
    dialog.get_by_role("button", name="Leave it out").click()
    expect(meetings).to_have_count(2)
    expect(meetings.nth(1)).to_contain_text(say(at(9, 14)))
    held = school.ask("GET", "/api/reservations/switching")["status"]["held"]
    assert {one["occurrence"] for one in held} == {1, 3}


def test_a_hand_out_is_read_printed_and_taken_along(tess: Watched) -> None:
    page = tess.open("/reservations/today")
    page.get_by_role("link", name="Hand-out").click()
    table = page.get_by_role("table")
    expect(table.get_by_role("row").filter(has_text=ADA)).to_be_visible()
    assert find_axe_faults(page, in_dark=True) == []
    with page.expect_download() as got:
        page.get_by_role("button", name="Download CSV").click()
    assert got.value.suggested_filename == "today.csv"
    text = got.value.path().read_text()
    assert text.startswith("when,seat,learner")
    assert ADA in text
    with page.expect_download() as got:
        page.get_by_role("button", name="Download HTML").click()
    assert f"<td>{BOB}</td>" in got.value.path().read_text()
    page.emulate_media(media="print")
    expect(page.get_by_role("button", name="Print")).to_be_hidden()
    expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
    expect(table).to_be_visible()
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert not is_wider_than_screen(page)


def board_of(page: Page) -> Locator:
    return page.get_by_role("img", name=re.compile("Bookings of 1 machine"))


def test_a_class_is_dragged_to_another_hour_and_moved_back(tess: Watched, school: Installation) -> None:
    reserve(school, school.token("tess", "instructor"), "dragged", at(18), definition="solo:1.0.0")
    tess.allowed.add("409")
    page = tess.open("/calendar?pool=solo&span=7d")
    board = board_of(page)
    expect(board).to_be_visible()
    box = board.bounding_box()
    assert box is not None

    def place(hour: float) -> float:
        return ((at(hour) - datetime.now(UTC)) / timedelta(days=7) + 0.15) * box["width"]

    def drag(hour: float, to: float) -> None:
        page.mouse.move(box["x"] + place(hour), box["y"] + 60)
        expect(page.locator(".tip")).to_contain_text("Drag it to move it")
        page.mouse.down()
        page.mouse.move(box["x"] + place(hour) + 8, box["y"] + 60)
        page.mouse.move(box["x"] + place(to), box["y"] + 60, steps=4)
        expect(page.locator(".tip")).to_contain_text("to ")
        page.mouse.up()

    dialog = page.get_by_role("dialog").filter(visible=True)
    drag(18.5, 10.5)
    expect(dialog.get_by_role("heading", name="Move dragged?")).to_be_visible()
    expect(dialog.get_by_role("alert")).to_contain_text("The nearest times")
    dialog.get_by_role("button", name="Leave it as it is").click()
    drag(18.5, 21.5)
    expect(dialog.get_by_text("It would be accepted")).to_be_visible()
    dialog.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_text(re.compile("dragged moved from"))).to_be_visible()
    moved = school.ask("GET", "/api/reservations/dragged")["spec"]["timeslot_start"]
    assert timedelta(hours=-1) < datetime.fromisoformat(moved) - at(21) < timedelta(hours=1)
    page.get_by_role("button", name="Move it back").click()
    expect(page.get_by_text("dragged is where it was.")).to_be_visible()
    assert datetime.fromisoformat(school.ask("GET", "/api/reservations/dragged")["spec"]["timeslot_start"]) == at(18)


def test_what_can_be_dragged_can_be_moved_with_the_keyboard_and_nothing_of_others(tess: Watched) -> None:
    page = tess.open("/calendar?span=7d")
    page.get_by_text("As a list").click()
    bookings = page.get_by_role("region", name="Bookings in view")
    expect(bookings.get_by_role("cell", name="booked", exact=True).first).to_be_visible()  # another's, without a name
    button = bookings.get_by_role("button", name="Move routing").first
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog").filter(visible=True)
    expect(dialog.get_by_label("What moves")).to_have_value("one")
    assert find_axe_faults(page, in_dark=True) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("USD a day")).to_have_count(0)
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert not is_wider_than_screen(page)


def test_an_instructor_looks_into_a_seat_and_the_learner_is_told(
    tess: Watched, chromium: Browser, school: Installation
) -> None:
    page = tess.open("/")
    board = page.get_by_role("region", name="today")
    seat = board.get_by_role("listitem").filter(has_text=ADA)
    expect(seat).to_contain_text("Running", timeout=180_000)
    with watch(chromium, school.url, **HERE) as hers:
        hers.enter(school.link("ada", "user", email=ADA))
        mine = hers.open("/")
        expect(mine.get_by_text("Booked for you by tess.").first).to_be_visible()
        mine.get_by_role("link", name="Open console").click()
        expect(mine.get_by_role("tab", name="R1 serial")).to_contain_text("connected")
        seat.get_by_role("link", name="Look in").click()
        page.get_by_role("tab", name="R1 serial").click()
        expect(page.get_by_text(f"This is the lab of {ADA}")).to_be_visible()
        page.get_by_role("button", name=re.compile("^Open R1")).click()
        expect(page.get_by_role("tab", name="R1 serial")).to_contain_text("looking")
        expect(mine.get_by_text(re.compile("tess .* looks along"))).to_be_visible()


def test_an_invitation_opens_one_seat_and_nothing_else(tess: Watched, chromium: Browser, school: Installation) -> None:
    page = tess.open("/reservations/today")
    page.get_by_role("listitem").filter(has_text=BOB).get_by_role("button", name=re.compile("^Invite")).click()
    dialog = page.get_by_role("dialog").filter(visible=True)
    dialog.get_by_role("button", name="Make the link").click()
    link = dialog.locator("code").inner_text()
    assert link.startswith(school.url)
    with watch(chromium, school.url, **HERE) as theirs:
        home = theirs.sign_in(link)
        expect(home.get_by_role("region", name="Your next lab")).to_contain_text("Booked for you by tess.")
        pages = home.get_by_role("navigation", name="Pages").get_by_role("link")
        expect(pages).to_have_count(1)
        expect(home.get_by_role("link", name=re.compile("^Book"))).to_have_count(0)
        wait_for_content(home)
        assert find_axe_faults(home) == []
        home.get_by_role("link", name=re.compile("^Details")).click()
        expect(home.get_by_role("heading", name="Booking", level=2)).to_be_visible()
        for verb in ("Extend", "End", "Cancel", "Move"):
            expect(home.get_by_role("button", name=verb, exact=True)).to_have_count(0)
