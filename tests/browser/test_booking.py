"""Booking by the calendar, the calendar of machines, and reservations for classes, as people do them in the browser."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from browser.browser import PHONE, Watched, find_axe_faults, hold_requests, is_wider_than_screen, wait_until, watch
from browser.installation import Installation

ZONE = ZoneInfo("Europe/Berlin")
HERE: dict[str, Any] = {"timezone_id": "Europe/Berlin", "locale": "en-GB"}
"""Where the people of these tests are: what a page shows depends on it."""
DAY = datetime.now(ZONE).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=2)
"""The day that is booked: the same for all tests, and still to come if midnight passes between them."""


def at(hour: int) -> datetime:
    """Return an hour of the day that is booked, by the clocks here."""
    return DAY + timedelta(hours=hour)


def make_lab(installation: Installation, name: str, cores: int, **pool: Any) -> None:
    """Publish a lab with a track and a pool of its own."""
    spec: dict[str, Any] = installation.ask("GET", "/api/lablet-definitions/ccna-basics:1.0.0")["spec"]
    spec |= {"lab_track": name, "version": "1.0.0", "resource_requirements": {"cpu_cores": cores, "memory_gb": 8}}
    installation.ask("POST", "/api/lablet-definitions", json={"metadata": {"name": f"{name}:1.0.0"}, "spec": spec})
    wanted = {"lab_track": name, "template": "metal", "min_workers": 0, "max_workers": 1, "policy": "SCHEDULED"}
    installation.ask("POST", "/api/worker-pools", json={"metadata": {"name": name}, "spec": wanted | pool})


@pytest.fixture(scope="module")
def labs(installation: Installation) -> Installation:
    """One lab that fills a machine, of which there is one, taken at ten; one that there is no money for."""
    make_lab(installation, "solo", 40)
    make_lab(installation, "dear", 4, budget={"monthly_usd": "0.5"})
    slot = {"timeslot_start": at(10).isoformat(), "timeslot_end": at(12).isoformat()}
    taken = {"metadata": {"name": "taken"}, "spec": {"definition": "solo:1.0.0", "owner": "bob", **slot}}
    installation.ask("POST", "/api/lablet-sessions", json=taken)
    return installation


@pytest.fixture
def ada(chromium: Browser, labs: Installation) -> Iterator[Watched]:
    with watch(chromium, labs.url, **HERE) as watched:
        watched.enter(labs.link("ada", "user"))
        yield watched


@pytest.fixture
def otto(chromium: Browser, labs: Installation) -> Iterator[Watched]:
    with watch(chromium, labs.url, **HERE) as watched:
        watched.enter(labs.link("otto", "operator"))
        yield watched


def start_at(page: Page, hour: int) -> Locator:
    """Find a start of the day that is booked. The short name of September is not the same for Python and Chromium."""
    name = re.compile(f"^{DAY:%a} {DAY.day} {DAY:%b}t?, {hour:02}:00 to")
    return page.get_by_role("grid", name="Starts").get_by_role("button", name=name)


@contextmanager
def limits(labs: Installation, **quotas: int) -> Iterator[None]:
    """Limit what owners may book, in the block."""
    labs.ask("PATCH", "/api/settings/system", json={"spec": {"quotas": quotas}})
    try:
        yield
    finally:
        labs.ask("PATCH", "/api/settings/system", json={"spec": {"quotas": dict.fromkeys(quotas)}})


def lose_answer(watched: Watched, page: Page, url: str) -> None:
    """Lose the answer to the next request to an address, which is done."""

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    watched.allowed.add("ERR_FAILED")
    page.route(url, lose, times=1)


def test_a_learner_books_a_free_start_and_sees_the_price_before(ada: Watched, labs: Installation) -> None:
    page = ada.open("/")
    page.get_by_role("link", name=re.compile("^Book an?")).click()
    expect(page.get_by_role("heading", name="Book a lab", level=1)).to_be_focused()
    page.get_by_role("button", name="solo:1.0.0").click()
    booking = page.get_by_role("complementary", name="Your booking")
    expect(booking.get_by_role("button", name="Book")).to_be_disabled()
    for hour in (9, 10, 11):
        expect(start_at(page, hour)).to_have_attribute("aria-disabled", "true")
    start_at(page, 10).hover()
    expect(page.get_by_text(re.compile("10:00 to 12:00: Fully booked"))).to_be_visible()
    start_at(page, 10).click(force=True)
    expect(booking.get_by_role("button", name="Book")).to_be_disabled()
    start_at(page, 14).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(start_at(page, 15)).to_be_focused()
    page.keyboard.press("Enter")
    expect(booking).to_contain_text(re.compile(r"15:00 to 17:00"))
    expect(booking).to_contain_text(re.compile(r"[1-9][0-9]?\.[0-9]{2} USD"))
    assert find_axe_faults(page) == []
    lose_answer(ada, page, "**/api/lablet-sessions")
    booking.get_by_role("button", name="Book").click()
    expect(booking.get_by_text("It is not known whether it was booked.")).to_be_visible()
    expect(start_at(page, 15)).to_have_attribute("aria-disabled", "true")
    booking.get_by_role("button", name="Book").click()
    page.wait_for_url(re.compile("/sessions/solo-"))
    expect(page.get_by_text("Booked", exact=True).first).to_be_visible()
    expect(page.get_by_text("Room on a machine is kept for it.")).to_be_visible()
    mine = [one for one in labs.ask("GET", "/api/lablet-sessions")["items"] if one["spec"]["owner"] == "ada"]
    assert [one["spec"]["definition"] for one in mine].count("solo:1.0.0") == 1
    page.goto(f"{ada.url}/book?lab=solo:1.0.0")
    expect(start_at(page, 15)).to_have_attribute("aria-disabled", "true")
    expect(start_at(page, 19)).to_have_attribute("aria-disabled", "false")


def test_a_learner_without_time_is_told_how_long_it_takes_and_books_now(ada: Watched) -> None:
    page = ada.open("/book?lab=ccna-basics:1.0.0")
    page.get_by_label("For how long").select_option("30")
    page.get_by_label("As soon as possible").check()
    expect(page.get_by_text(re.compile("Ready in about"))).to_be_visible()
    booking = page.get_by_role("complementary", name="Your booking")
    expect(booking).to_contain_text(re.compile(r"about 0\.[0-9]{2} USD"))
    with hold_requests(page, "**/api/placement/*") as held:
        page.get_by_label("For how long").select_option("60")
        wait_until(page, lambda: len(held) >= 2)  # with each minute both are asked for again
        expect(page.get_by_text("Asking how long it takes")).to_be_visible()
        expect(booking).not_to_contain_text("USD")
        expect(booking.get_by_role("button", name="Book")).to_be_disabled()
    expect(page.get_by_text(re.compile("Ready in about"))).to_be_visible()
    booking.get_by_role("button", name="Book").click()
    page.wait_for_url(re.compile("/sessions/ccna-basics-"))
    expect(page.get_by_text("Running", exact=True).first).to_be_visible()


def test_what_money_and_limits_forbid_is_said_in_plain_words(ada: Watched, labs: Installation) -> None:
    page = ada.open("/book?lab=dear:1.0.0")
    expect(page.get_by_text("Nothing can be booked on these days.")).to_be_visible()
    expect(page.get_by_text(re.compile("The month's budget is used up"))).to_be_visible()
    with limits(labs, horizon_days=3):
        page.goto(f"{ada.url}/book?lab=ccna-basics:1.0.0")
        page.get_by_role("button", name="Later days").click()
        expect(page.get_by_text(re.compile("Too far ahead to be booked yet"))).to_be_visible()
    with limits(labs, max_pending=0):
        page.get_by_label("As soon as possible").check()
        expect(page.get_by_text("You have as many labs waiting as you may have")).to_be_visible()
        expect(page.get_by_role("button", name="Book", exact=True)).to_be_disabled()


def test_a_learner_books_on_a_narrow_phone(chromium: Browser, labs: Installation) -> None:
    with watch(chromium, labs.url, screen=PHONE, **HERE) as mine:
        mine.enter(labs.link("pia", "user"))
        page = mine.open("/book")
        page.get_by_role("button", name="ccna-basics:1.0.0").click()
        page.get_by_role("group", name="Day").get_by_role("button", name=f"{DAY:%a} {DAY.day}").click()
        start_at(page, 14).click()
        assert not is_wider_than_screen(page)
        assert find_axe_faults(page) == []
        page.get_by_role("button", name="Book", exact=True).click()
        page.wait_for_url(re.compile("/sessions/ccna-basics-"))
        page.goto(labs.url)
        expect(page.get_by_text("Why: Room on a machine is kept for it.")).to_be_visible()


def test_minutes_pass_and_what_somebody_looks_at_stays(ada: Watched) -> None:
    """Every minute all starts are asked for again."""
    ada.context.clock.install()
    page = ada.open("/book?lab=ccna-basics:1.0.0")

    def let_minutes_pass() -> None:
        for _ in range(2):  # the second answer comes after the first one was shown
            with page.expect_response("**/api/placement/slots"):
                page.clock.run_for(61_000)

    start_at(page, 14).click()
    table = page.locator(".scroll")
    table.evaluate("it => { it.scrollTop = 7 }")
    let_minutes_pass()
    assert table.evaluate("it => it.scrollTop") == 7
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    day = page.get_by_role("group", name="Day").get_by_role("button").nth(3)
    day.click()
    let_minutes_pass()
    expect(day).to_have_attribute("aria-pressed", "true")


def test_the_calendar_zooms_and_a_bar_leads_to_its_session(otto: Watched) -> None:
    page = otto.open("/calendar?pool=solo")
    board = page.get_by_role("img", name=re.compile("Bookings of 1 machine"))
    expect(board).to_be_visible()
    for _ in range(2):
        page.get_by_role("button", name="Zoom out").click()
    expect(page.get_by_label("Span shown")).to_have_value("7d")
    page.get_by_text("As a list").click()
    expect(page.get_by_role("link", name="taken")).to_be_visible()
    expect(page.get_by_text("USD a day")).to_be_visible()
    box = board.bounding_box()
    assert box is not None
    week, now = timedelta(days=7), datetime.now(UTC)
    x = ((at(11) - now) / week + 0.15) * box["width"]
    board.hover(position={"x": x, "y": 60})
    expect(page.locator(".tip")).to_contain_text("taken")
    board.click(position={"x": x, "y": 60})
    page.wait_for_url(re.compile("/sessions/taken"))
    page.go_back()
    page.get_by_label("Span shown").select_option("1h")
    expect(page.get_by_role("button", name="Zoom in")).to_be_disabled()


def test_staff_reserve_for_a_class_every_week_and_cancel_it(otto: Watched) -> None:
    page = otto.open("/reservations")
    page.get_by_role("link", name="Reserve for a class").first.click()
    page.get_by_role("combobox", name=re.compile("^Lab")).select_option("ccna-basics:1.0.0")
    page.get_by_label("Name", exact=True).fill("mondays")
    page.get_by_label("Begins").fill(f"{at(9):%Y-%m-%dT%H:%M}")
    otto.allowed.add("409")
    page.get_by_label("Seats").fill("90")
    expect(page.get_by_text(re.compile("of 90 fit"))).to_be_visible()
    expect(page.get_by_role("button", name="Reserve", exact=True)).to_be_disabled()
    page.get_by_label("Seats").fill("4")
    page.get_by_label("How often").select_option("week")
    page.get_by_label("Last day").fill(f"{DAY + timedelta(days=14):%Y-%m-%d}")
    page.get_by_label("Every so many weeks").fill("2")
    expect(page.get_by_text(re.compile("It would be accepted: 2 meetings .* 8 labs in all"))).to_be_visible()
    page.get_by_label("Every so many weeks").fill("1")
    expect(page.get_by_text(re.compile("It would be accepted: 3 meetings .* 12 labs in all"))).to_be_visible()
    assert find_axe_faults(page) == []
    page.get_by_role("button", name="Reserve", exact=True).click()
    expect(page.get_by_role("heading", name="mondays", level=1)).to_be_visible()
    expect(page.get_by_text("4 seats each time, 3 times")).to_be_visible()
    expect(page.get_by_text(re.compile("planned on ccna|mondays-")).first).to_be_visible()
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("others may take them at once")
    dialog.get_by_role("button", name="Cancel the reservation").click()
    expect(page.get_by_text(re.compile("Cancelled|There is no reservation")).first).to_be_visible()
