"""What people do about money and size in the browser: the bill, quotas, pools paused or scaled, many at once."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Locator, Page, expect

from browser.browser import Watched, find_axe_faults
from browser.installation import Installation

LAB = "ccna-basics:1.0.0"
SOON = {"definition": LAB, "duration_minutes": 240}
FAR = "eu-west-1"


def book_tomorrow(it: Installation, name: str, token: str = "") -> None:
    """Book a slot of two hours, tomorrow."""
    start = datetime.now(UTC) + timedelta(days=1)
    slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=2)).isoformat()}
    body = {"metadata": {"name": name}, "spec": {"definition": LAB, **slot}}
    it.ask("POST", "/api/lablet-sessions", token=token, json=body)


def cents_of(cell: Locator) -> int:
    """Return an amount of dollars in cents."""
    return int(re.sub(r"[^0-9]", "", cell.inner_text()))


def rows_of(page: Page, table: str) -> Locator:
    return page.get_by_role("region", name=table, exact=True).get_by_role("row")


def test_the_bill_is_divided_its_parts_add_up_and_a_learner_sees_the_own_part(
    staff: Watched, learner: Watched, installation: Installation
) -> None:
    token = installation.token("ada", "user")
    body = {"metadata": {"name": "paid"}, "spec": SOON | {"region_required": "us-east-1"}}
    installation.ask("POST", "/api/lablet-sessions", token=token, json=body)
    book_tomorrow(installation, "ahead", token)
    installation.wait_for("/api/lablet-sessions/paid", phases={"RUNNING"})
    (budget,) = [one for one in installation.ask("GET", "/api/budgets")["items"] if one["name"] == "ccna"]
    nearly = {"monthly_usd": str(round(float(budget["month_usd"]) * 1.1, 2))}
    installation.ask("PATCH", "/api/worker-pools/ccna", json={"spec": {"budget": nearly}})
    page = staff.open("/costs?by=owner")
    mine = rows_of(page, "Costs by owner").filter(has_text="ada")
    expect(mine).to_contain_text("USD")
    lines = rows_of(page, "Costs by owner").all()[1:]
    *parts, total = [cents_of(line.get_by_role("cell").first) for line in lines]
    assert sum(parts) == total > 0
    expect(rows_of(page, "Costs by owner").filter(has_text="Unused")).to_have_count(1)
    expect(page.get_by_text("Booked, still ahead")).to_be_visible()
    expect(page.get_by_text("Saved by spot machines")).to_be_visible()
    expect(rows_of(page, "Budgets").filter(has_text="Pool ccna")).to_contain_text(re.compile("80 % or more|used up"))
    installation.ask("PATCH", "/api/worker-pools/ccna", json={"spec": {"budget": {"monthly_usd": "2500"}}})
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV").click()
    text = download.value.path().read_text()
    assert text.startswith("owner,usd,unused_usd,forecast_usd\n")
    assert "\nada," in text
    for by, table in (("pool", "Costs by pool"), ("day", "Costs by day"), ("definition", "Costs by lab")):
        page.get_by_role("combobox", name="Grouped by").select_option(by)
        expect(rows_of(page, table).filter(has_text="Total")).to_have_count(1)
    page.get_by_role("combobox", name="Month").select_option(index=4)
    expect(page.get_by_text("Nothing was spent or booked in")).to_be_visible()

    own = learner.open("/costs")
    expect(own.get_by_role("combobox", name="Grouped by").locator("option")).to_have_count(5)
    own.get_by_role("combobox", name="Grouped by").select_option("session")
    month = datetime.now(UTC).strftime("%Y-%m")
    ledger = installation.ask("GET", f"/api/costs/ledger?by=session&month={month}", token=token)
    names = {row["name"].removeprefix("default/") for row in ledger["rows"]}
    assert {"paid", "ahead"} <= names, ledger
    expect(rows_of(own, "Costs by session")).to_have_count(len(names) + 2)  # and the heading, the total
    expect(own.get_by_text("Unused")).to_have_count(0)
    expect(rows_of(own, "Budgets")).to_have_count(2)


def test_a_quota_rule_is_refused_at_its_field_made_felt_and_removed(staff: Watched, learner: Watched) -> None:
    staff.allowed.add("422")
    page = staff.open("/quotas")
    page.get_by_role("button", name="New rule").click()
    dialog = page.get_by_role("dialog", name="New rule")
    dialog.get_by_label("Owner").fill("ada")
    dialog.get_by_label("CML nodes at the same time").fill("many")
    dialog.get_by_role("button", name="Make it").click()
    field = dialog.locator("label").filter(has_text="CML nodes at the same time")
    expect(field.get_by_role("alert")).to_contain_text("int")
    assert not find_axe_faults(page)
    dialog.get_by_label("CML nodes at the same time").fill("44")
    dialog.get_by_role("button", name="Make it").click()
    expect(page.get_by_text("There is a rule for ada.")).to_be_visible()
    own = learner.open("/quotas")
    nodes = rows_of(own, "Limits everywhere").filter(has_text="CML nodes")
    expect(nodes).to_contain_text("44")
    expect(nodes).to_contain_text("a rule for owner ada")
    expect(own.get_by_text("Administrators and operators can grant you more")).to_be_visible()
    expect(own.get_by_role("button", name="New rule")).to_have_count(0)
    page.get_by_role("textbox", name="Owner").fill("ada")
    page.get_by_role("button", name="Show").click()
    expect(rows_of(page, "Limits everywhere").filter(has_text="a rule for owner ada")).to_have_count(1)
    page.get_by_role("button", name="New rule").click()
    dialog.get_by_label("Owner").fill("ada")
    dialog.get_by_label("Labs waiting").fill("3")
    dialog.get_by_role("button", name="Make it").click()
    expect(dialog.get_by_role("alert")).to_contain_text(re.compile("same|twice|another", re.IGNORECASE))
    dialog.get_by_role("button", name="Leave it as it is").click()
    page.get_by_role("button", name="Remove the rule for ada").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove it").click()
    expect(page.get_by_text("There are none: everybody has the defaults.")).to_be_visible()


def test_a_pool_is_paused_resumed_and_scaled_and_promises_are_kept_or_ended_as_asked(
    staff: Watched, installation: Installation
) -> None:
    staff.allowed.add("422")
    book_tomorrow(installation, "promised")
    page = staff.open("/pools/ccna")
    now = page.get_by_role("region", name="Now", exact=True)
    expect(now.get_by_text(re.compile("Why nothing more|Added workers|Let workers go"))).to_be_visible()
    expect(now.get_by_text("Next change:")).to_be_visible()
    now.get_by_text("What was considered").click()
    expect(now.get_by_text(re.compile("^workers: "))).to_be_visible()
    page.get_by_role("button", name="Pause", exact=True).click()
    dialog = page.get_by_role("dialog", name="Pause ccna")
    dialog.get_by_label("Until").fill("2020-01-01T07:00")
    expect(dialog.get_by_role("alert")).to_contain_text("passed")
    dialog.get_by_label("Until").fill("")
    dialog.get_by_label("Why").fill("no lessons this week")
    expect(dialog.get_by_role("link", name="promised")).to_be_visible()
    expect(dialog).to_contain_text("kept: ")
    assert not find_axe_faults(page)
    dialog.get_by_role("button", name="Pause it").click()
    expect(page.get_by_text("ccna is paused until somebody resumes it.")).to_be_visible()
    expect(now).to_contain_text("no lessons this week")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Pools").click()
    expect(page.get_by_role("row").filter(has_text="ccna").filter(has_text="Paused")).to_be_visible()
    page.go_back()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog", name="Resume ccna").get_by_role("button", name="Resume it").click()
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    assert installation.ask("GET", "/api/lablet-sessions/promised")["status"]["phase"] == "SCHEDULED"
    page.get_by_role("button", name="Change the pause").or_(
        page.get_by_role("button", name="Pause", exact=True)
    ).click()
    dialog.get_by_label("Until").fill("")
    dialog.get_by_label("End them").check()
    dialog.get_by_role("button", name="Pause it").click()
    expect(page.get_by_text(re.compile("promised bookings? ended"))).to_be_visible()
    assert installation.ask("GET", "/api/lablet-sessions/promised")["status"]["phase"] == "TERMINATED"
    installation.ask("POST", "/api/worker-pools/ccna/resume")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    page.get_by_role("button", name="Scale").click()
    sizes = page.get_by_role("dialog", name="Scale ccna")
    sizes.get_by_label("Fewest workers").fill("9")
    expect(sizes.get_by_role("alert")).to_contain_text("max_workers")
    sizes.get_by_label("Fewest workers").fill("0")
    sizes.get_by_label("Most workers").fill("5")
    sizes.get_by_role("button", name="Scale it").click()
    expect(page.get_by_role("region", name="What it may do")).to_contain_text("from 0 to 5")


def test_a_booking_says_where_it_may_run_on_what_and_at_what_price(
    learner: Watched, installation: Installation
) -> None:
    template: Any = installation.ask("GET", "/api/worker-templates/metal")
    template["spec"]["worker"]["aws"]["region"] = FAR
    made = {"metadata": {"name": "far"}, "spec": template["spec"] | {"price_per_hour_usd": "9"}}
    installation.ask("POST", "/api/worker-templates", json=made)
    pool = {"lab_track": "ccna", "template": "far", "min_workers": 0, "max_workers": 1}
    installation.ask("POST", "/api/worker-pools", json={"metadata": {"name": "far"}, "spec": pool})
    page = learner.open(f"/book?lab={LAB}")
    booking = page.get_by_role("complementary", name="Your booking")
    expect(booking).to_contain_text(re.compile(r"from [0-9.]+ USD"))
    page.get_by_label("Region").select_option(FAR)
    page.get_by_label("If there is no room").select_option("do not book it")
    page.get_by_role("radio", name="As soon as possible").check()
    page.get_by_label("It may run on a spot machine").check()
    expect(booking).to_contain_text(re.compile(r"about [0-9.]+ USD"))
    expect(booking).to_contain_text(FAR)
    assert not find_axe_faults(page)
    page.get_by_role("button", name="Book", exact=True).click()
    expect(page.get_by_text("is booked.")).to_be_visible()
    name = page.url.rsplit("/", 1)[1]
    spec = installation.ask("GET", f"/api/lablet-sessions/{name}")["spec"]
    assert (spec["region_required"], spec["allow_spot"]) == (FAR, True)


def test_many_are_chosen_labelled_drained_and_cancelled_and_each_answer_is_shown(
    staff: Watched, learner: Watched, installation: Installation
) -> None:
    token = installation.token("ada", "user")
    for name in ("many-1", "many-2"):
        book_tomorrow(installation, name, token)
    staff.allowed.add("422")
    page = staff.open("/workers?q=workshop")
    page.get_by_label("Choose workshop").check()
    page.get_by_role("button", name="Label").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Labels").fill("room")
    dialog.get_by_role("button", name="Label").click()
    expect(dialog.get_by_role("alert")).to_contain_text("name=value")
    dialog.get_by_label("Labels").fill("room=7")
    dialog.get_by_role("button", name="Label").click()
    answers = page.get_by_role("region", name="What became of them")
    expect(answers).to_contain_text("1 worker done.")
    assert installation.ask("GET", "/api/workers/workshop")["metadata"]["labels"]["room"] == "7"
    row = page.get_by_role("row").filter(has_text="workshop")
    expect(row).to_contain_text("Ready")  # what still starts cannot be drained
    page.get_by_label("Choose workshop").check()
    page.get_by_role("button", name="Drain them").click()
    dialog.get_by_role("button", name="Drain them").click()
    drained = re.compile("Draining|drains until|Stopp")  # nothing is on it
    expect(row).to_contain_text(drained)

    own = learner.open("/sessions?q=many")
    own.get_by_label("Choose all 2").check()
    assert not find_axe_faults(own)
    expect(own.get_by_text("2 sessions chosen")).to_be_visible()
    own.get_by_role("button", name="Cancel them").click()
    own.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    cancelled = own.get_by_role("region", name="What became of them")
    expect(cancelled).to_contain_text("2 sessions done.")
    expect(own.get_by_role("row").filter(has_text="many-1")).to_contain_text("Terminated")
    own.get_by_label("Choose many-1").check()
    own.get_by_role("button", name="Cancel them").click()
    own.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    expect(cancelled).to_contain_text("1 session done.")  # to end what has ended may be repeated
