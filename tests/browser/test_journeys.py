"""What people do in the browser, from the link that `lcm up` prints on."""

import re

from playwright.sync_api import Browser, expect

from browser.browser import PHONE, Watched, is_wider_than_screen, wait_for_content, wait_until, watch
from browser.installation import Installation

WORKER = {"metadata": {"name": "by-hand"}, "spec": {"aws": {"ami_name_pattern": "CML-2.9*"}}}
PHONE_PAGES = (
    "/",
    "/calendar",
    "/costs",
    "/quotas",
    "/reservations",
    "/reservations/new",
    "/sessions",
    "/workers",
    "/workers/workshop",
    "/alerts",
    "/events",
    "/tokens",
    "/audit",
    "/settings",
    "/sinks",
    "/definitions/ccna-basics:1.0.0",
    "/planner",
    "/pools/ccna",
)


def test_a_one_time_link_signs_in_once_and_signing_out_ends_it(chromium: Browser, installation: Installation) -> None:
    link = installation.link()
    with watch(chromium, installation.url) as mine:
        page = mine.sign_in(link)
        expect(page.get_by_role("heading", name="Now", level=1)).to_be_visible()
        expect(page.get_by_text("local-admin").first).to_be_visible()
        with watch(chromium, installation.url) as other:
            other.allowed.add("401")
            again = other.open(link.removeprefix(installation.url))
            again.get_by_role("button", name="Sign in").click()
            expect(again.get_by_text("not valid or has expired")).to_be_visible()
        mine.allowed.add("401")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_text("Sign in with a link that works once")).to_be_visible()


def test_a_worker_comes_up_before_the_eyes_of_its_operator(staff: Watched, installation: Installation) -> None:
    page = staff.open("/workers")
    expect(page.get_by_role("table", name="Workers")).to_be_visible()
    installation.ask("POST", "/api/workers", json=WORKER)
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="by-hand"))
    expect(row).to_be_visible()
    expect(row).to_contain_text(re.compile("Ready"))
    row.get_by_role("link", name="by-hand").click()
    expect(page.get_by_role("heading", name="by-hand", level=1)).to_be_focused()
    expect(page.get_by_text("checks pass and CML").first).to_be_visible()
    page.get_by_role("button", name="Terminate").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be undone")
    expect(dialog.get_by_role("button", name="Terminate")).to_be_disabled()
    dialog.get_by_role("textbox").fill("by-hand")
    dialog.get_by_role("button", name="Terminate").click()
    expect(page.get_by_text("by-hand will be terminated.")).to_be_visible()


def test_a_booking_from_a_terminal_is_seen_live_and_ended_in_the_browser(
    learner: Watched, installation: Installation
) -> None:
    page = learner.open("/")
    expect(page.get_by_text("You have no lab booked")).to_be_visible()
    token = installation.token("ada", "user")
    session = {"metadata": {"name": "adas"}, "spec": {"definition": "ccna-basics:1.0.0", "duration_minutes": 60}}
    installation.ask("POST", "/api/lablet-sessions", token=token, json=session)
    mine = page.get_by_role("region", name="Your next lab")
    expect(mine.get_by_role("link", name="adas")).to_be_visible()
    expect(mine).to_contain_text("left, until")
    mine.get_by_role("link", name="Details, extend or end").click()
    page.get_by_role("button", name="End", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="End it").click()
    expect(page.get_by_text("adas is being ended.")).to_be_visible()
    expect(page.get_by_text("Terminated", exact=True).first).to_be_visible()


def test_a_command_in_a_terminal_changes_what_an_operator_sees(staff: Watched, installation: Installation) -> None:
    page = staff.open("/sessions")
    installation.lcm("book", "ccna-basics", "--now", "--for", "30m", "--name", "by-command")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="by-command"))
    expect(row).to_contain_text("Running")
    page.get_by_label("Filter sessions").fill("by-comm")
    expect(page.get_by_text(re.compile("1 of [0-9]+ session"))).to_be_visible()
    installation.lcm("cancel", "by-command")
    expect(row).to_contain_text("Terminated")


def test_a_worker_with_a_session_on_it_is_drained_and_taken_back(staff: Watched, installation: Installation) -> None:
    wish = {"metadata": {"name": "stays"}, "spec": {"definition": "ccna-basics:1.0.0", "duration_minutes": 60}}
    installation.ask("POST", "/api/lablet-sessions", json=wish)
    installation.wait_for("/api/lablet-sessions/stays", phases={"RUNNING"})
    where = installation.ask("GET", "/api/lablet-sessions/stays")["status"]["worker_name"]
    page = staff.open(f"/workers/{where}")
    page.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(re.compile("1 session is on it|sessions are on it"))
    expect(dialog).to_contain_text("They may go on until they end, or until the drain's deadline.")
    dialog.get_by_label("Deadline, in minutes from now").fill("120")
    dialog.get_by_role("button", name="Drain").click()
    expect(page.get_by_text(f"{where} is draining.")).to_be_visible()
    expect(page.get_by_text("Draining", exact=True).first).to_be_visible()
    expect(page.get_by_text("It drains: sessions on it may go on until")).to_be_visible()
    assert installation.ask("GET", "/api/lablet-sessions/stays")["status"]["phase"] == "RUNNING"
    page.get_by_role("button", name="Cancel the drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the drain").click()
    expect(page.get_by_role("button", name="Drain", exact=True)).to_be_visible()
    installation.ask("POST", "/api/lablet-sessions/stays/terminate", json={})


def test_an_alert_comes_says_what_to_do_and_goes(staff: Watched, installation: Installation) -> None:
    page = staff.open("/alerts")
    expect(page.get_by_role("heading", name="Alerts", level=1)).to_be_visible()
    failing = {"metadata": {"name": "hopeless"}, "spec": {"aws": {"ami_name_pattern": "NO-SUCH-IMAGE*"}}}
    alert = page.locator(".alert").filter(has_text="hopeless")
    expect(alert).to_have_count(0)
    installation.ask("POST", "/api/workers", json=failing)
    installation.ask("POST", "/api/workers", json={**failing, "metadata": {"name": "hopeless", "namespace": "other"}})
    expect(alert).to_have_count(2)
    page.get_by_role("link", name="Home").click()
    urgent = page.get_by_role("region", name="What needs a person")
    expect(urgent.locator(".alert").filter(has_text="hopeless")).to_have_count(2)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Alerts").click()
    expect(alert.first).to_contain_text("NO-SUCH-IMAGE*")
    expect(page.get_by_role("status").filter(has_text=re.compile("alerts? raised"))).to_be_visible()
    alert.get_by_role("link", name="hopeless").first.click()
    expect(page.get_by_role("heading", name="hopeless", level=1)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Alerts", level=1)).to_be_visible()
    expect(alert).to_have_count(2)
    installation.ask("DELETE", "/api/workers/hopeless")
    installation.ask("DELETE", "/api/workers/hopeless?namespace=other")
    expect(alert).to_have_count(0)


def test_two_tabs_share_one_stream_and_one_person(staff: Watched, installation: Installation) -> None:
    first, second = staff.open("/workers"), staff.open("/events")
    expect(first.get_by_role("table", name="Workers")).to_be_visible()
    expect(second.get_by_role("table", name="Events")).to_be_visible()
    installation.ask("PATCH", "/api/workers/workshop", json={"metadata": {"labels": {"seen": "twice"}}})
    expect(second.get_by_role("row").filter(has_text="worker.updated").first).to_be_visible()
    one_stream = re.compile(r"^lcm_http_streams 1(\.0)?$", re.MULTILINE)
    wait_until(first, lambda: one_stream.search(installation.ask_text("/metrics")) is not None)
    staff.allowed.add("403")
    staff.enter(installation.link("ada", "user"))
    second.goto(installation.url)
    expect(first.get_by_role("heading", name="Not for your role")).to_be_visible()


def test_a_list_that_was_scrolled_begins_anew_after_a_filter_that_nothing_matched(
    staff: Watched, installation: Installation
) -> None:
    for number in range(30):
        installation.ask("PATCH", "/api/workers/workshop", json={"metadata": {"labels": {"seen": str(number)}}})
    page = staff.open("/events")
    page.set_viewport_size({"width": 1280, "height": 400})
    table = page.get_by_role("table", name="Events")
    expect(table).to_have_attribute("aria-rowcount", re.compile("^([3-9][0-9]|[0-9]{3})$"))  # those of before are there
    table.evaluate("table => table.scrollTo(0, table.scrollHeight)")
    expect(table.locator("[aria-rowindex='2']")).to_have_count(0)
    page.get_by_label("Filter events").fill("nothing-has-this-name")
    page.get_by_role("button", name="Show all").click()
    expect(table.locator("[aria-rowindex='2']")).to_be_visible()


def test_the_connection_is_lost_and_heals_while_the_state_changes(chromium: Browser, empty: Installation) -> None:
    with watch(chromium, empty.url) as mine:
        mine.allowed.update({"ERR_", "Failed to fetch dynamically imported module"})
        page = mine.sign_in(empty.link())
        page.get_by_role("link", name="Workers").first.click()
        expect(page.get_by_text("There are no workers yet")).to_be_visible()
        asking, opening = mine.open("/tokens"), mine.open("/workers")
        expect(asking.get_by_role("table", name="Tokens")).to_be_visible()
        asking.get_by_role("link", name="Home").first.click()
        expect(opening.get_by_text("There are no workers yet")).to_be_visible()
        empty.kill()
        expect(page.get_by_text("No connection.")).to_be_visible()
        expect(page.get_by_text("What you see is as of")).to_be_visible()
        asking.get_by_role("link", name="Tokens").first.click()
        expect(asking.get_by_text("The server does not answer.")).to_be_visible()
        opening.get_by_role("link", name="Sinks").first.click()
        expect(opening.get_by_role("alert")).to_be_visible()
        expect(opening.get_by_text("No connection.")).to_be_visible()
        empty.start()
        empty.ask("POST", "/api/workers", json=WORKER)
        expect(page.get_by_role("link", name="by-hand")).to_be_visible()
        expect(page.get_by_text("No connection.")).to_be_hidden()
        expect(asking.get_by_role("table", name="Tokens")).to_be_visible()
        expect(opening.get_by_text("There are no sinks")).to_be_visible()


def test_a_learner_sees_neither_the_fleet_nor_another_s_session(learner: Watched, installation: Installation) -> None:
    learner.allowed.update({"404", "403"})
    token = installation.token("bob", "user")
    session = {"metadata": {"name": "bobs"}, "spec": {"definition": "ccna-basics:1.0.0", "duration_minutes": 60}}
    installation.ask("POST", "/api/lablet-sessions", token=token, json=session)
    page = learner.open("/sessions/bobs")
    expect(page.get_by_text("it is somebody else's")).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Workers")).to_have_count(0)
    page.goto(f"{installation.url}/workers")
    expect(page.get_by_role("heading", name="Not for your role")).to_be_visible()


def test_everything_is_found_by_its_name_with_the_keyboard_alone(staff: Watched) -> None:
    page = staff.open("/")
    expect(page.get_by_role("heading", name="Now", level=1)).to_be_visible()
    search = page.get_by_role("dialog", name="Search")

    def type_search(text: str) -> None:
        expect(search).to_be_hidden()
        page.keyboard.press("/")
        expect(search).to_be_visible()
        page.keyboard.type(text)

    type_search("worksh")
    expect(page.get_by_role("option").first).to_contain_text("workshop")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="workshop", level=1)).to_be_visible()
    chosen = search.get_by_role("option", selected=True)
    staff.allowed.add("404")
    for typed, found, heading in (
        ("writes_per", "setting", "Settings"),
        ("metal", "template", "ccna"),
        ("long-gone", "look in the archive", "long-gone"),
    ):
        type_search(typed)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        expect(chosen).to_contain_text(found)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    type_search("a")
    for _ in range(25):
        page.keyboard.press("ArrowDown")
    expect(chosen).to_be_in_viewport()
    page.keyboard.press("Escape")  # this empties the field
    page.keyboard.press("Escape")
    expect(search).to_be_hidden()


def test_nothing_is_wider_than_a_small_phone(chromium: Browser, installation: Installation) -> None:
    with watch(chromium, installation.url, screen=PHONE) as mine:
        mine.enter(installation.link())
        page = mine.open("/")
        for path in PHONE_PAGES:
            page.goto(installation.url + path)
            wait_for_content(page)
            assert not is_wider_than_screen(page), path
        page.get_by_role("button", name="Menu").click()
        expect(page.get_by_role("link", name="Sessions").first).to_be_visible()
        assert not is_wider_than_screen(page)


def test_a_token_is_made_shown_once_and_revoked(staff: Watched) -> None:
    page = staff.open("/tokens")
    page.get_by_role("button", name="Make a token").click()
    expect(page.get_by_text("never shown again")).to_be_visible()
    text = page.get_by_text(re.compile("^lcm_")).inner_text()
    page.reload()
    expect(page.get_by_role("table", name="Tokens")).to_be_visible()
    expect(page.get_by_text(text)).to_have_count(0)
    row = page.get_by_role("row").filter(has_text="programs").filter(has_not_text="never").first
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("The token is revoked.")).to_be_visible()
