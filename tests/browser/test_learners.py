"""What learners and viewers find in the browser: seats booked for them, saves to go on from, and a fleet to look at."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Browser, expect

from browser.browser import PHONE, Watched, find_axe_faults, is_wider_than_screen, wait_for_content, watch
from browser.installation import Installation

LAB = "ccna-basics:1.0.0"
ADA = "ada@example.org"


def book(it: Installation, name: str, token: str, **more: Any) -> None:
    """Book a lab for now."""
    spec = {"definition": LAB, "duration_minutes": 60, **more}
    it.ask("POST", "/api/lablet-sessions", token=token, json={"metadata": {"name": name}, "spec": spec})


def test_a_lab_is_saved_while_it_runs_and_continued_after_it_has_ended(
    learner: Watched, installation: Installation
) -> None:
    book(installation, "saved", installation.token("ada", "user"))
    installation.wait_for("/api/lablet-sessions/saved", phases={"RUNNING"})
    page = learner.open("/sessions/saved")
    page.get_by_role("button", name="Save now").click()
    dialog = page.get_by_role("dialog").filter(visible=True)
    dialog.get_by_role("textbox").fill("Before BGP")
    expect(dialog.get_by_text("Use lower-case letters")).to_be_visible()
    expect(dialog.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    dialog.get_by_role("textbox").fill("before-bgp")
    assert find_axe_faults(page, in_dark=True) == []
    dialog.get_by_role("button", name="Save", exact=True).click()
    files = page.get_by_role("region", name="Saved labs and files")
    save = files.get_by_role("listitem").filter(has_text="Save before-bgp")
    expect(save).to_contain_text("save-before-bgp.yaml")
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("dialog").filter(visible=True).get_by_role("button", name="End it").click()
    expect(files.get_by_role("listitem").filter(has_text="The lab as it ended")).to_be_visible()
    assert find_axe_faults(page, in_dark=True) == []
    save.get_by_role("link", name=re.compile("^Continue from here")).click()
    page.wait_for_url(re.compile("/book"))
    going = page.get_by_role("region", name="It continues where you stopped")
    expect(going).to_contain_text("the save before-bgp of saved")
    page.get_by_label("As soon as possible").check()
    booking = page.get_by_role("complementary", name="Your booking")
    expect(booking).to_contain_text("saved, before-bgp")
    booking.get_by_role("button", name="Book", exact=True).click()
    page.wait_for_url(re.compile("/sessions/ccna-basics-"))
    expect(page.get_by_text("Continues", exact=True)).to_be_visible()
    name = page.url.rpartition("/")[2]
    spec = installation.ask("GET", f"/api/lablet-sessions/{name}")["spec"]
    assert spec["continue_from"] == {"session": "saved", "save": "before-bgp"}


def test_what_has_changed_since_a_lab_was_saved_is_told_before_it_is_continued(
    learner: Watched, installation: Installation
) -> None:
    book(installation, "older", installation.token("ada", "user"))
    installation.wait_for("/api/lablet-sessions/older", phases={"RUNNING"})
    installation.ask("POST", "/api/lablet-sessions/older/terminate", json={})
    installation.wait_for("/api/lablet-sessions/older", phases={"TERMINATED"})
    spec: dict[str, Any] = installation.ask("GET", f"/api/lablet-definitions/{LAB}")["spec"]
    text = installation.ask("GET", f"/api/lablet-definitions/{LAB}/topology")["text"]
    renamed = text.replace("label: R2", "label: R9")
    made = installation.upload("/api/topologies", renamed, "application/yaml")
    topology = {"uri": made["uri"], "digest": made["digest"]}
    spec |= {"version": "1.9.0", "topology": topology, "port_template": made["port_template"]}
    newer = {"metadata": {"name": "ccna-basics:1.9.0"}, "spec": spec}
    installation.ask("POST", "/api/lablet-definitions", json=newer)
    page = learner.open("/")
    page.get_by_role("region", name="Past labs").get_by_role("link", name="Continue older").click()
    going = page.get_by_role("region", name="It continues where you stopped")
    expect(going).to_contain_text("The lab has changed since.")
    expect(page.get_by_role("complementary", name="Your booking")).to_contain_text("ccna-basics:1.9.0")
    assert find_axe_faults(page, in_dark=True) == []
    page.get_by_role("button", name="Start afresh instead").click()
    expect(going).to_have_count(0)


def test_a_seat_booked_for_a_learner_is_theirs_to_use_and_not_to_change(
    chromium: Browser, installation: Installation
) -> None:
    tess = installation.token("tess", "instructor")
    book(installation, "for-ada", tess, student_email=ADA)
    book(installation, "longer", tess, student_email=ADA, learner_may=["extend"])
    for name in ("for-ada", "longer"):
        installation.wait_for(f"/api/lablet-sessions/{name}", phases={"RUNNING"})
    with watch(chromium, installation.url) as hers:
        hers.enter(installation.link("ada.l", "user", email=ADA))
        page = hers.open("/")
        for name in ("for-ada", "longer"):
            expect(page.get_by_role("link", name=name, exact=True)).to_be_visible()
        expect(page.get_by_text("Booked for you by tess.").first).to_be_visible()
        assert find_axe_faults(page) == []
        page.goto(f"{hers.url}/sessions/for-ada")
        expect(page.get_by_text("tess, for you")).to_be_visible()
        expect(page.get_by_role("button", name="Save now")).to_be_visible()
        for verb in ("Extend", "End"):
            expect(page.get_by_role("button", name=verb, exact=True)).to_have_count(0)
        page.goto(f"{hers.url}/sessions/longer")
        expect(page.get_by_role("button", name="Extend", exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="End", exact=True)).to_have_count(0)
        page.goto(f"{hers.url}/reservations")
        expect(page.get_by_role("table")).to_have_count(0)


def test_a_viewer_sees_the_fleet_without_people_and_is_offered_nothing_that_is_refused(
    chromium: Browser, installation: Installation
) -> None:
    start = datetime.now(UTC) + timedelta(days=1)
    slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=1)).isoformat()}
    group = {"metadata": {"name": "secret-class"}, "spec": {"definition": LAB, "owner": "dora", **slot}}
    installation.ask("POST", "/api/reservations", json=group)
    with watch(chromium, installation.url) as theirs:
        theirs.enter(installation.link("vera", "viewer"))
        page = theirs.open("/")
        expect(page.get_by_role("heading", name="The fleet", level=1)).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="workshop")).to_be_visible()
        expect(page.get_by_text("an hour now")).to_be_visible()
        assert find_axe_faults(page, in_dark=True) == []
        addresses = page.get_by_role("navigation", name="Pages").get_by_role("link")
        paths = [str(addresses.nth(place).get_attribute("href")) for place in range(addresses.count())]
        assert paths == ["/", "/calendar", "/tokens"]
        for path in paths:  # what is refused would be an error in the console
            page.goto(theirs.url + path)
            wait_for_content(page)
            expect(page.get_by_role("alert")).to_have_count(0)
            for told in ("dora", "secret-class"):
                expect(page.get_by_text(told)).to_have_count(0)
            page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
            assert not is_wider_than_screen(page)
        page.goto(f"{theirs.url}/book")
        expect(page.get_by_role("button", name="Book")).to_have_count(0)
