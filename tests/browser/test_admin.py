"""What those who run the system do in the browser: settings, sinks, the audit, and a worker's console output."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browser.browser import Watched, find_axe_faults, watch
from browser.installation import Installation, run_installation

LOCAL_SINKS = {"WEBHOOK_NETWORKS": "127.0.0.0/8", "WEBHOOK_HTTP_ALLOWED": "true"}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with run_installation(tmp_path_factory.mktemp("admin"), settings=LOCAL_SINKS) as it:
        yield it


@contextmanager
def run_receiver() -> Iterator[tuple[str, dict[str, int], list[str]]]:
    """Run a receiver of events; yields its address, the status that it answers, and what it accepted."""
    answers, accepted = {"status": 400}, list[str]()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            if answers["status"] == 200:
                accepted.append(body)
            self.send_response(answers["status"])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", answers, accepted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_setting_is_refused_then_changed_and_given_back(staff: Watched) -> None:
    staff.allowed.add("422")
    page = staff.open("/settings")
    page.get_by_label("Filter settings").fill("idle_threshold")
    group = page.get_by_role("region", name="Monitoring and idleness")
    expect(group.get_by_text("IDLE_THRESHOLD_MINUTES")).to_be_visible()
    group.get_by_role("button", name="Change IDLE_THRESHOLD_MINUTES").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("soon")
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("minutes")
    dialog.get_by_role("textbox").fill("-5")
    dialog.get_by_role("button", name="Change it").click()
    expect(dialog.get_by_role("alert")).to_contain_text(">= ")
    assert not find_axe_faults(page)
    dialog.get_by_role("textbox").fill("45")
    dialog.get_by_role("button", name="Change it").click()
    expect(page.get_by_text("IDLE_THRESHOLD_MINUTES is 45 now.")).to_be_visible()
    expect(group).to_contain_text("set here, else 30")
    group.get_by_role("button", name="Reset IDLE_THRESHOLD_MINUTES").click()
    expect(page.get_by_text("IDLE_THRESHOLD_MINUTES is 30 again.")).to_be_visible()
    page.get_by_label("Filter settings").fill("CML_ADMIN_PASSWORD")
    expect(page.get_by_text("needs a restart")).to_be_visible()


def test_a_sink_is_made_tested_changed_and_its_dead_letters_are_sent_again(staff: Watched) -> None:
    staff.allowed.update({"422", "404"})
    with run_receiver() as (url, answers, accepted):
        page = staff.open("/sinks")
        page.get_by_role("button", name="New sink").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("ops-chat")
        dialog.get_by_label("Address").fill("gopher://nowhere")
        dialog.get_by_label("Types of events").fill("sink.*, worker.updated")
        dialog.get_by_role("button", name="Make it").click()
        expect(dialog.get_by_role("alert")).to_contain_text("url")
        dialog.get_by_label("Address").fill(url)
        dialog.get_by_role("button", name="Make it").click()
        page.get_by_role("link", name="ops-chat").click()
        page.get_by_role("button", name="Send a test event").click()
        letters = page.get_by_role("table", name="Dead letters")
        expect(letters.get_by_role("row").filter(has_text="sink.test")).to_contain_text("400")
        assert not find_axe_faults(page)
        answers["status"] = 200
        page.get_by_role("button", name="Send all again").click()
        page.get_by_role("dialog").get_by_role("button", name="Send again").click()
        expect(page.get_by_text("Everything was accepted")).to_be_visible()
        assert any("sink.test" in one for one in accepted), accepted
        page.get_by_role("button", name="Change", exact=True).click()
        dialog = page.get_by_role("dialog", name="Change ops-chat")
        dialog.get_by_label("Types of events").fill("alert.*")
        for _ in range(2):  # the sink is read again meanwhile
            page.wait_for_event("response", lambda answer: answer.url.endswith("/api/sinks/ops-chat"))
        expect(dialog.get_by_label("Types of events")).to_have_value("alert.*")
        dialog.get_by_role("button", name="Change it").click()
        expect(page.get_by_role("region", name="Delivery")).to_contain_text("alert.*")
        page.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("ops-chat")
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_text("There are no sinks")).to_be_visible()


def test_the_audit_shows_who_did_what_to_one_thing_only_to_administrators(
    staff: Watched, chromium: Browser, installation: Installation
) -> None:
    token = installation.token("otto", "operator")
    change = {"metadata": {"labels": {"seen": "by-otto"}}}
    installation.ask("PATCH", "/api/workers/workshop", token=token, json=change)
    page = staff.open("/audit")
    expect(page.get_by_role("table", name="Audit")).to_be_visible()
    page.get_by_label("Who").fill("otto")
    page.get_by_label("Kind of thing").fill("LabWorker")
    page.locator("main").get_by_role("button", name="Search").click()
    rows = page.get_by_role("table", name="Audit").get_by_role("row").filter(has_text="otto")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("LabWorker workshop")
    page.get_by_role("button", name="Earlier").click()
    expect(page.get_by_text("Nothing was done in this time")).to_be_visible()
    page.get_by_role("button", name="Later").click()
    expect(rows).to_have_count(1)
    with watch(chromium, installation.url) as other:
        operator = other.sign_in(installation.url + str(installation.ask("POST", "/api/sign-in", token=token)["path"]))
        expect(operator.get_by_role("link", name="Settings")).to_be_visible()
        expect(operator.get_by_role("link", name="Audit")).to_have_count(0)
        operator.goto(f"{installation.url}/audit")
        expect(operator.get_by_role("heading", name="Not for your role")).to_be_visible()


def test_a_worker_shows_its_console_output_its_claims_and_its_ports(staff: Watched, installation: Installation) -> None:
    session = {"metadata": {"name": "with-ports"}, "spec": {"definition": "ccna-basics:1.0.0", "duration_minutes": 60}}
    installation.ask("POST", "/api/lablet-sessions", json=session)
    installation.wait_for("/api/lablet-sessions/with-ports", phases={"RUNNING"})
    where = installation.ask("GET", "/api/lablet-sessions/with-ports")["status"]["worker_name"]
    staff.allowed.add("503")
    page = staff.open()
    page.route("**/api/lablet-sessions?*", lambda route: route.fulfill(status=503))
    page.route("**/api/calendar?*", lambda route: route.fulfill(status=503))
    page.goto(f"{installation.url}/workers/{where}")
    ports = page.get_by_role("region", name="Ports")
    expect(page.get_by_text("Bookings that are planned for it may be missing")).to_be_visible()
    expect(ports.get_by_role("alert")).to_be_visible()
    expect(ports.get_by_text("None is in use.")).to_be_hidden()
    page.unroute_all()
    ports.get_by_role("button", name="Try again").click()
    expect(ports.get_by_role("link", name="with-ports").first).to_be_visible()
    expect(ports).to_contain_text("_serial")
    expect(page.get_by_role("img", name="Claimed at most")).to_be_visible()
    output = page.get_by_role("region", name="EC2 console output")
    output.get_by_role("button", name="Show").click()
    expect(output.get_by_label("Console output of")).to_contain_text("running")
    assert not find_axe_faults(page)
    other = next(name for name in names_of(installation, "/api/workers") if name != where)
    page.keyboard.press("/")
    page.keyboard.type(other)
    page.get_by_role("option").filter(has_text=other).first.click()
    expect(page.get_by_role("heading", name=other, level=1)).to_be_focused()
    expect(page.get_by_label("Console output of")).to_have_count(0)


def names_of(installation: Installation, path: str) -> list[str]:
    """Return the names of all objects of a kind."""
    return [one["metadata"]["name"] for one in installation.ask("GET", path)["items"]]


def test_a_page_that_cannot_be_shown_says_so_and_the_others_stay(staff: Watched) -> None:
    page = staff.context.new_page()  # not watched: the exception is wanted
    record = {"id": "twice", "at": "2031-11-03T09:00:00Z", "who": "ada", "role": "user", "deeds": []}
    page.route("**/api/audit?*", lambda route: route.fulfill(json={"items": [record, record]}))
    page.goto(f"{staff.url}/audit")
    expect(page.get_by_role("alert")).to_contain_text("This page could not be shown")
    page.get_by_role("link", name="Sinks").click()
    expect(page.get_by_role("heading", name="Sinks", level=1)).to_be_visible()
