"""`lcm move`, `skip`, `resize`, `learners`, `swap` and `hand-out` against an API that promises."""

import csv
import io
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from harness.booking_world import TERMS, furnish
from lcm.cli.booking.hand_out import HandOut, write_csv, write_html, write_text
from lcm.cli.booking.roster import RosterRow
from lcm.cli.output.times import parse_moment
from lcm.cli.output.zone import find_zone
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import SCHEDULER
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Reservation, held_slot
from lcm.system.clock import SystemClock

BERLIN = find_zone("Europe/Berlin")


@pytest.fixture(name="api")
def api_that_promises() -> Iterator[ApiServer]:
    with served(terms=TERMS) as api:
        furnish(api)
        yield api


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, columns=80, TZ="Europe/Berlin")


def said(text: str) -> str:
    return " ".join(text.split())


def routing(api: ApiServer) -> Reservation:
    async def ask(plane: Plane) -> Reservation | None:
        return await plane.get(Ref(Reservation, "routing"))

    found = api.do(ask)
    assert found is not None
    return found


def book(desk: Shell, *more: str) -> None:
    desk.out("book", "basics", "--name", "routing", "--at", "next tuesday 9:00", "--for", "1h", "--count", "3", *more)


def hours(one: Reservation) -> list[str]:
    return sorted({f"{BERLIN.local(held_slot(one.spec, held)[0]):%H:%M}" for held in one.status.held})


def test_a_class_is_moved_by_an_amount_or_to_a_start(api: ApiServer, desk: Shell) -> None:
    book(desk)
    assert "would be moved" in desk.out("move", "reservation", "routing", "--by", "1h", "--dry-run")
    assert hours(routing(api)) == ["09:00"]
    assert "reservation/routing is moved: Tue" in said(desk.out("move", "reservation", "routing", "--by", "1h"))
    assert hours(routing(api)) == ["10:00"]
    assert "08:00-09:00" in said(desk.out("move", "r/routing", "--to", "next tuesday 8:00"))
    desk.out("move", "reservation", "routing", "--by", "-30m")
    assert hours(routing(api)) == ["07:30"]
    desk.out("move", "reservation", "routing", "--by", "40w")
    assert hours(routing(api)) == ["07:30"], "by the clock on the wall, in summer as in winter"


def test_of_a_series_a_part_is_moved_extended_and_left_out(api: ApiServer, desk: Shell) -> None:
    first = BERLIN.local(parse_moment("next tuesday 9:00", SystemClock().now(), BERLIN)).date()
    book(desk, "--every", "week", "--until", f"{first + timedelta(days=15)}", "--time-zone", "Europe/Berlin")
    assert "and 1 more" in said(desk.out("move", "reservation", "routing", "--by", "1h", "--from", "2"))
    desk.out("move", "reservation", "routing", "--by", "1h", "--occurrence", "3")
    assert hours(routing(api)) == ["09:00", "10:00", "11:00"]
    assert "occurrence 2 of reservation/routing ends 30m later" in said(
        desk.out("extend", "reservation", "routing", "30m", "--occurrence", "2")
    )
    assert "is left out: 2 are left" in said(desk.out("skip", "reservation", "routing", f"{first}"))
    assert "is left out: 1 are left" in said(desk.out("skip", "routing", "2"))
    assert desk.lcm("skip", "routing", "2").exit_code == 5
    assert desk.lcm("skip", "routing", "2020-01-01").exit_code == 2


def test_what_does_not_fit_is_refused_with_times_to_paste(desk: Shell) -> None:
    book(desk)
    desk.out("book", "basics", "--name", "other", "--at", "next tuesday 12:00", "--for", "3h")
    desk.out("book", "basics", "--name", "more", "--at", "next tuesday 12:00", "--for", "3h")
    refused = desk.lcm("move", "reservation", "routing", "--to", "next tuesday 13:00")
    assert refused.exit_code == 5
    line = next(line for line in refused.stderr.splitlines() if "--to" in line)
    desk.out("move", "reservation", "routing", "--to", line.split("'")[1])
    assert "session/other is moved: Thu" in said(desk.out("move", "session", "other", "--by", "2d"))


def test_learners_come_from_a_file_and_two_of_them_swap(api: ApiServer, desk: Shell, tmp_path: Path) -> None:
    book(desk)
    file = tmp_path / "class.csv"
    file.write_text("\ufeffemail,name\nada@example.org,Ada\nben@example.org,Ben\n\ncy@example.org,\n")
    assert "3 seats: ada@example.org" in said(desk.out("learners", "reservation", "routing", "--from", file))
    assert "ada@example.org has seat 2" in said(desk.out("swap", "routing", "ada@example.org", "ben@example.org"))
    assert routing(api).spec.student_emails == ("ben@example.org", "ada@example.org", "cy@example.org")
    assert "dora@example.org has seat 3" in said(desk.out("swap", "routing", "cy@example.org", "dora@example.org"))
    file.write_text("ada@example.org\nben@example.org\n")
    assert desk.lcm("learners", "routing", "--from", file).exit_code == 5
    desk.out("learners", "routing", "--from", file, "--resize")
    assert routing(api).spec.count == 2
    assert desk.lcm("resize", "routing", "4").exit_code == 5, "who are they?"
    text = desk.out("describe", "reservation", "routing")
    assert "1: ben@example.org" in text
    assert "Cost" in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("name,mail\nA,b@c.de\n", "no column `email`"),
        ("email\nnobody\n", "line 2: 'nobody' is no e-mail address"),
        ("email\na@b.org\nA@B.org\n", "line 3: A@B.org is there twice"),
        ("", "names nobody"),
        ("email\n" + "".join(f"p{n}@example.org\n" for n in range(OCCURRENCES_LIMIT + 1)), "more than 400 learners"),
        ("a@b.org\n" * 200_000, "larger than"),
        ('email\n"a@b.org\n', "is no CSV file"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused_with_its_line(
    desk: Shell, tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / "c.csv"
    file.write_text(content)
    result = desk.lcm("learners", "routing", "--from", file)
    assert (result.exit_code, problem in said(result.stderr.replace("│", ""))) == (2, True), result.stderr


def test_wrong_usage_is_said(desk: Shell) -> None:
    for words in (
        ("move", "reservation", "routing"),
        ("move", "worker", "w1", "--by", "1h"),
        ("move", "reservation", "x", "--by", "1h", "--occurrence", "1", "--from", "2"),
        ("skip", "routing"),
        ("resize", "routing", "many"),
        ("resize", "routing", "1000"),
        ("swap", "routing", "a@b.org"),
        ("extend", "mine", "30m", "--from", "2"),
        ("learners", "routing"),
    ):
        assert desk.lcm(*words).exit_code == 2, words
    assert desk.lcm("move", "reservation", "nope", "--by", "1h").exit_code == 3
    assert desk.lcm("hand-out", "nope").exit_code == 3


class Cells(HTMLParser):
    """Reads what a browser would show, and which elements there are."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text += data


def evil() -> HandOut:
    slot = given.moment("09:00"), given.moment("11:00")
    urls = {"lab": "https://a.example/?q=<x>", "bad": "javascript:alert(1)"}
    rows = [
        RosterRow(1, 1, "=cmd@x.org", slot, "RUNNING", "routing-1", "w1", urls),
        RosterRow(1, 2, "ben@example.org", slot, "BOOKED"),
    ]
    names = {"=cmd@x.org": "<script>alert(1)</script>", "ben@example.org": '=HYPERLINK("http://x")'}
    return HandOut(given.reservation(), rows, names, find_zone("UTC"))


def test_no_name_is_obeyed_by_a_browser_a_spreadsheet_or_a_terminal() -> None:
    page = Cells()
    page.feed("\n".join(write_html(evil())))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert page.links == ["https://a.example/?q=<x>"], "javascript: is no link"
    rows = list(csv.reader(io.StringIO("\n".join(write_csv(evil())))))
    assert [row[2:4] for row in rows[1:]] == [
        ["'=cmd@x.org", "<script>alert(1)</script>"],
        ["ben@example.org", '\'=HYPERLINK("http://x")'],
    ]
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    text = list(write_text(evil()))
    assert "  1  =cmd@x.org (<script>alert(1)</script>): routing-1, RUNNING, on w1" in "\n".join(text)


def test_the_hand_out_says_who_goes_where(api: ApiServer, desk: Shell, tmp_path: Path) -> None:
    people = [one for name in ("ada", "ben", "cy") for one in ("--email", f"{name}@example.org")]
    book(desk, *people)

    async def come(plane: Plane) -> None:
        await plane.fulfil(Ref(Reservation, "routing"), 1, 2)

    api.acting(SCHEDULER, come)
    names = tmp_path / "names.csv"
    names.write_text("email,name\nAda@Example.org,Ada Lovelace\n")
    text = desk.out("hand-out", "reservation", "routing", "--names", names)
    assert "1  ada@example.org (Ada Lovelace): routing-1, PENDING" in text
    assert "3  cy@example.org: BOOKED" in text
    assert "09:00-10:00 CE" in text
    rows = list(csv.DictReader(io.StringIO(desk.out("hand-out", "routing", "-o", "csv"))))
    assert [row["learner"] for row in rows] == ["ada@example.org", "ben@example.org", "cy@example.org"]
    assert "<td>ada@example.org</td>" in desk.out("hand-out", "routing", "-o", "html")
    described = desk.out("describe", "reservation", "routing")
    assert "1: ada@example.org" in described
    assert "session routing-1" in said(described)
