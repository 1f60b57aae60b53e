"""What authors and planners do: labs are published and compared, timetables are planned, pools say why."""

import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from browser.browser import Watched, hold_requests, wait_until, watch
from browser.installation import EXAMPLES, Installation

LAB = (EXAMPLES / "labs" / "ccna-basics.yaml").read_text()
TIMETABLE = """\
definitions: [{name: basics, track: ccna, cpu: 4, memory: 16}]
fleet: [{track: ccna, instance_type: m5zn.metal, max: 2, price: "4.00"}]
sessions: [{definition: basics, at: 2031-11-03T09:00, for: 2h, count: 3}]
"""


def choose(page: Page, name: str, text: str) -> None:
    page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "text/yaml", "buffer": text.encode()})


def drop(page: Page, where: str, name: str, text: str) -> None:
    script = "([name, text]) => { const it = new DataTransfer(); it.items.add(new File([text], name)); return it }"
    given = page.evaluate_handle(script, [name, text])
    page.get_by_role("group", name=where).dispatch_event("drop", {"dataTransfer": given})


def test_a_broken_topology_is_told_at_its_line_and_corrected_and_published_and_booked(
    chromium: Browser, installation: Installation
) -> None:
    before = installation.ask("GET", "/api/lablet-definitions")["items"]
    with watch(chromium, installation.url) as author:
        author.allowed.add("422")
        page = author.sign_in(installation.link("anna", "author"))
        page.get_by_role("link", name="Definitions").click()
        page.get_by_role("link", name="Publish a lab").click()
        broken = LAB.replace("serial:2001", "serial:two", 1)
        line = broken[: broken.index("serial:two")].count("\n") + 1
        drop(page, "Choose a topology file", "mine.yaml", broken)
        expect(page.get_by_role("heading", name="1 thing is wrong in mine.yaml; nothing is published")).to_be_visible()
        marked = page.get_by_role("region", name="The file with what is wrong").locator("tr[data-mark]")
        expect(marked).to_have_text(re.compile(rf"^\s*{line}\s*!\s*- serial:two"))
        expect(page.get_by_text("cannot be rewritten")).to_be_in_viewport()
        expect(page.get_by_role("button", name=re.compile("^Publish"))).to_have_count(0)
        assert installation.ask("GET", "/api/lablet-definitions")["items"] == before

        page.get_by_role("button", name="Correct it here").click()
        page.get_by_label("The topology's text").fill(LAB)
        page.get_by_role("button", name="Check it").click()
        expect(page.get_by_role("img", name="4 nodes and 3 links")).to_be_visible()
        expect(page.get_by_text("serial console of R1")).to_be_visible()
        expect(page.get_by_text("From the file: 4 CPU, 2.25 GB memory, 16 GB disk")).to_be_visible()
        page.get_by_label("Name", exact=True).fill("ccna-basics")
        expect(page.get_by_label("Track")).to_have_value("ccna")
        page.get_by_label("Name", exact=True).fill("annas-lab")
        expect(page.get_by_label("Track")).to_have_value("")
        page.get_by_label("Track").fill("ccna")
        page.get_by_role("button", name="Publish annas-lab:1.0.0").click()
        expect(page.get_by_role("heading", name="annas-lab:1.0.0", level=1)).to_be_visible()
        expect(page.get_by_text("There is no other version")).to_be_visible()
    told = installation.ask("POST", "/api/placement/preview", json={"definition": "annas-lab", "duration_minutes": 30})
    assert told["outcome"] in {"assign", "scale_up", "wait"}, told


def test_a_new_version_shows_its_differences_and_takes_over_what_was_observed(
    staff: Watched, installation: Installation
) -> None:
    page = staff.open("/definitions/ccna-basics:1.0.0")
    page.get_by_role("link", name="New version").click()
    with hold_requests(page, "**/api/topologies") as held:
        choose(page, "late.yaml", LAB.replace("title: CCNA basics", "title: Another"))
        wait_until(page, lambda: len(held) == 1)
        choose(page, "next.yaml", LAB.replace("title: CCNA basics", "title: CCNA basics again"))
        wait_until(page, lambda: len(held) == 2)
        held.pop().continue_()
        expect(page.get_by_role("heading", name="CCNA basics again")).to_be_visible()
        with page.expect_response("**/api/topologies"):
            held.pop().continue_()
    expect(page.get_by_text("1 line added, 1 line removed")).to_be_visible()
    expect(page.get_by_role("heading", name="CCNA basics again")).to_be_visible()
    expect(page.get_by_label("Track")).to_have_value("ccna")
    page.get_by_label("CPU").fill("9")
    page.get_by_label("Memory, GB").fill("5")
    page.get_by_label("Disk, GB").fill("16")
    page.get_by_role("button", name="Publish ccna-basics:1.1.0").click()
    expect(page.get_by_role("heading", name="ccna-basics:1.1.0", level=1)).to_be_visible()
    versions = page.get_by_role("region", name="Versions")
    expect(versions.get_by_text("resource_requirements.memory_gb")).to_be_visible()
    expect(versions.locator("tr.removed")).to_contain_text("title: CCNA basics")
    expect(versions.locator("tr.added")).to_contain_text("title: CCNA basics again")

    wish = {"definition": "ccna-basics:1.1.0", "duration_minutes": 60}
    installation.ask("POST", "/api/lablet-sessions", json={"metadata": {"name": "looked-at"}, "spec": wish})
    expect(page.get_by_role("link", name="looked-at")).to_be_visible()
    installation.wait_for("/api/lablet-sessions/looked-at", phases={"RUNNING"})
    installation.ask("POST", "/api/lablet-sessions/looked-at/terminate", json={})
    observed = page.get_by_role("region", name="Observed against declared").first
    expect(observed.get_by_role("button", name="Apply what was observed")).to_be_visible()
    installation.wait_for("/api/lablet-sessions/looked-at", phases={"TERMINATED"})
    expect(page.get_by_role("region", name="Lab", exact=True)).to_contain_text("9 CPU")
    observed.get_by_role("button", name="Apply what was observed").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("9 CPU, 5 GB memory, 16 GB disk")
    expect(dialog).to_contain_text("keep what they were promised")
    dialog.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("new bookings use that")).to_be_visible()
    expect(page.get_by_role("region", name="Lab", exact=True)).to_contain_text("4 CPU")
    page.get_by_role("button", name="Deprecate").click()
    expect(page.get_by_role("dialog")).to_contain_text("gets 1.0.0 from now on")
    page.get_by_role("dialog").get_by_role("button", name="Deprecate").click()
    expect(page.get_by_text("can no longer be booked")).to_be_visible()


def test_a_timetable_is_dropped_played_read_and_taken_home(staff: Watched, chromium: Browser, tmp_path: Path) -> None:
    staff.allowed.add("422")
    page = staff.open("/planner")
    drop(page, "Choose a timetable", "week.yaml", TIMETABLE.replace("for: 2h", "for: long"))
    page.get_by_role("button", name="Plan it").click()
    wrong = page.get_by_role("region", name="The timetable with what is wrong").locator("tr[data-mark]")
    expect(wrong).to_contain_text("for: long")
    drop(page, "Choose a timetable", "week.yaml", TIMETABLE)
    expect(page.get_by_label("Go on from this system")).not_to_be_checked()
    page.get_by_role("button", name="Plan it").click()
    expect(page.get_by_role("heading", name=re.compile("Playing week.yaml|^week$"))).to_be_visible()
    results = page.get_by_role("region", name="Results")
    expect(results.get_by_role("row").nth(1)).to_contain_text("3")
    expect(page.get_by_role("img", name="Workers over time, 1 at most")).to_be_visible()
    staff.allowed.add("ERR_FAILED")
    page.route(re.compile("/api/plan/[^/]+$"), lambda route: route.abort(), times=1)
    page.reload()
    expect(page.get_by_role("region", name="Results")).to_be_visible()
    expect(page.get_by_text("The server does not answer")).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the report").click()
    assert download.value.suggested_filename == "week.html"
    file = tmp_path / "week.html"
    download.value.save_as(file)
    alone = chromium.new_context(offline=True).new_page()
    problems: list[str] = []
    alone.on("pageerror", lambda error: problems.append(str(error)))
    alone.on("request", lambda request: problems.append(request.url) if request.url != file.as_uri() else None)
    alone.goto(file.as_uri())
    expect(alone.get_by_role("heading", name="week", level=1)).to_be_visible()
    expect(alone.locator("canvas")).to_have_count(4)
    expect(alone.get_by_role("region", name="Cost by day and track")).to_contain_text("2031-11-03")
    alone.context.close()
    assert not problems


def test_a_pool_says_what_it_wants_and_why_it_does_nothing(staff: Watched, installation: Installation) -> None:
    page = staff.open("/pools")
    page.get_by_role("link", name="ccna", exact=True).click()
    now = page.get_by_role("region", name="Now")
    expect(now).to_contain_text(re.compile("Why nothing more:.*(machine|worker)"))
    expect(page.get_by_role("img", name=re.compile("workers wanted"))).to_be_visible()
    expect(page.get_by_role("region", name="Budget and template")).to_contain_text("of 2,500.00 USD")
    installation.lcm("book", "ccna-basics:1.0.0", "--at", "tomorrow 09:00", "--for", "1h", "--name", "promised")
    expect(page.get_by_role("region", name="Promised in the next seven days")).to_contain_text("1 booking")
    expect(page.get_by_role("region", name="Decisions")).to_contain_text("Did nothing")
    page.get_by_role("link", name="Home").click()
    expect(page.get_by_role("region", name="Cost")).to_contain_text("of 2,500.00 USD budgeted a month")
    installation.ask("PATCH", "/api/worker-pools/ccna", json={"spec": {"budget": {"monthly_usd": "2600"}}})
    expect(page.get_by_role("region", name="Cost")).to_contain_text("of 2,600.00 USD budgeted a month")
