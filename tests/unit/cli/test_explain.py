"""`lcm explain`: the outcome first, then why, what helps, and what every place says."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from harness.booking_world import TERMS, furnish
from lcm.cli.booking.explain import MOST_PLACES, Subject, explanation_lines, reservation_texts
from lcm.cli.output.zone import find_zone
from lcm.model.base.resource import Owner
from lcm.model.kinds.placement import Explanation, PlaceAnswer, Slot
from lcm.model.kinds.session import SchedulingDecision, Seat, Waiting

NOW = given.moment("09:10")
BERLIN = find_zone("Europe/Berlin")
S1 = Subject("session/s1")
SLOT = Slot(start=given.moment("13:00"), end=given.moment("14:30"))
LONG = "its 48 CPU are taken by 6 sessions until 11:10, and the lab needs 8"


def told(found: Explanation, subject: Subject = S1, *, room: int = 80, whole: bool = False) -> list[str]:
    lines = list(explanation_lines(found, subject, NOW, BERLIN, room, whole=whole))
    assert max(map(len, lines)) <= room
    return lines


def test_somebody_who_waits_is_told_the_reason_the_remedy_one_time_and_free_slots() -> None:
    found = Explanation(
        outcome="wait",
        why="cpu",
        reason="a session on w1 ends before; w1: 4 cores needed, 2 cores free now",
        remedy="wait, or book one of the free slots",
        waiting=Waiting(queue_position=2, estimated_start=given.moment("11:10"), basis="a session on w1 ends before"),
        nearest=(SLOT,),
        decision=SchedulingDecision(action="wait", reason="w1 will fit it at 2026-11-02 10:55Z"),
        places=(
            PlaceAnswer(
                place="w1", kind="worker", reason="2 cores free", remedy="wait", earliest=given.moment("10:00")
            ),
            PlaceAnswer(place="w3", kind="worker", reason="its CML is 2.7, 2.10 is needed"),
        ),
    )
    assert told(found) == [
        "session/s1 waits: a session on w1 ends before; w1: 4 cores needed, 2 cores",
        "  free now",
        "Why:      cpu",
        "Remedy:   wait, or book one of the free slots",
        "Waiting:  number 2 in the queue, starts about Mon 2026-11-02 12:10 CET (in 2h):",
        "          a session on w1 ends before",
        "Free:     --at '2026-11-02 14:00' --for 1h30m  # Mon 14:00 CET, in 4h",
        "",
        "PLACE  KIND    FITS  REASON",
        "w1     worker  no    2 cores free",
        "w3     worker  no    its CML is 2.7, 2.10 is needed",
    ]


def test_somebody_who_has_no_place_in_the_queue_yet_is_told_when_each_place_is_free() -> None:
    found = Explanation(
        outcome="wait",
        why="capacity",
        reason="no worker has room before 11:10",
        remedy="wait, or book one of the free slots",
        nearest=(SLOT,),
        decision=SchedulingDecision(action="wait", reason="2 workers are full"),
        places=(
            PlaceAnswer(place="w1", kind="worker", reason=LONG, remedy="wait", earliest=given.moment("11:10")),
            PlaceAnswer(place="ccna/2", kind="seat", fits=True, score=0.5, earliest=NOW),
            PlaceAnswer(place="w3", kind="worker", reason="its CML is 2.7, 2.10 is needed"),
            PlaceAnswer(place="w4", kind="worker", reason="drains", earliest=given.moment("11:10", day=9)),
        ),
        places_left_off=3,
    )
    assert told(found) == [
        "session/s1 waits: no worker has room before 11:10",
        "Why:      capacity",
        "Remedy:   wait, or book one of the free slots",
        "Decision: wait: 2 workers are full",
        "Free:     --at '2026-11-02 14:00' --for 1h30m  # Mon 14:00 CET, in 4h",
        "",
        "PLACE   KIND            FITS  EARLIEST          REASON",
        "w1      worker          no    Mon 12:10         its 48 CPU are taken by 6",
        "                                                sessions until 11:10, and the",
        "                                                lab needs 8",
        "ccna/2  planned worker  yes   now",
        "w3      worker          no    never             its CML is 2.7, 2.10 is needed",
        "w4      worker          no    2026-11-11 12:10  drains",
        "and 3 more; `-o wide` shows more of them",
    ]


@pytest.mark.parametrize(
    ("outcome", "thought", "words"),
    [
        ("assign", False, "session/s1 can start now on worker w1, planned worker ccna/3: because"),
        ("assign", True, "session/s1 would start now on worker w1, planned worker ccna/3: because"),
        (
            "scale_up",
            False,
            "session/s1 waits for a machine that is being started (worker w1, planned worker ccna/3): because",
        ),
        (
            "promise",
            False,
            "session/s1 is promised worker w1, planned worker ccna/3 for Mon 2026-11-02 14:00-15:30 CET: because",
        ),
        ("promise", True, "session/s1 would be promised worker w1, planned worker ccna/3: because"),
        ("refuse", False, "session/s1 cannot be placed at present: because"),
        ("refuse", True, "session/s1 would be refused: because"),
        ("placed", False, "session/s1 is placed on worker w1, planned worker ccna/3: because"),
        ("over", False, "session/s1 is over: because"),
        ("wait", True, "session/s1 would wait: because"),
    ],
)
def test_the_first_sentence_says_what_becomes_of_it(outcome: str, thought: bool, words: str) -> None:  # noqa: FBT001 - a column of the table
    found = Explanation(outcome="wait", why="", reason="because", slot=SLOT, seat=Seat(pool="ccna", number=3))
    found = given.changed(found, {"outcome": outcome, "worker": "w1"})
    lines = told(found, Subject("session/s1", thought=thought))
    assert " ".join(line.strip() for line in lines) == words


def test_of_many_places_a_few_are_shown_unless_all_are_wanted() -> None:
    places = tuple(PlaceAnswer(place=f"a-pool-with-a-long-name/{n}", kind="seat", reason=LONG) for n in range(40))
    found = Explanation(outcome="refuse", why="full", reason="full", places=places)
    assert told(found)[-1] == f"and {40 - MOST_PLACES} more; `-o wide` shows more of them"
    assert sum("planned worker" in line for line in told(found, whole=True)) == 40


@pytest.mark.parametrize("room", [60, 80, 100])
def test_no_text_of_others_breaks_the_table(room: int) -> None:
    nasty = PlaceAnswer(place="w1\x1b[31m", kind="worker", reason="a\nb\x07 " * 30)
    lines = told(Explanation(outcome="refuse", why="x", reason="y\x1b[2J", places=(nasty,)), room=room)
    assert "\x1b" not in "".join(lines)


@pytest.fixture(name="open_api", scope="module")
def api_that_promises() -> Iterator[ApiServer]:
    with served(terms=TERMS) as api:
        furnish(api)
        yield api


@pytest.fixture(name="desk")
def desk_of_ada(open_api: ApiServer, tmp_path: Path) -> Shell:
    return shell(open_api, tmp_path, "ada", columns=80, TZ="Europe/Berlin")


def test_a_session_is_named_with_or_without_its_kind(desk: Shell) -> None:
    desk.out("book", "basics", "--at", "+5h", "--for", "1h", "--name", "mine")
    first = desk.out("explain", "mine")
    assert "session/mine is promised planned worker ccna/" in first
    assert desk.out("explain", "session", "mine") == desk.out("explain", "s/mine") == first
    assert json.loads(desk.out("explain", "mine", "-o", "json"))["outcome"] == "promise"
    assert desk.out("explain", "mine", "-o", "yaml").startswith("outcome: promise\n")


def test_a_reservation_is_explained_by_its_sessions_and_by_what_it_holds(desk: Shell, open_api: ApiServer) -> None:
    desk.out("book", "basics", "--at", "+9h", "--for", "1h", "--count", "2", "--name", "class")
    told = " ".join(desk.out("explain", "reservation", "class").split())
    assert told.startswith("reservation/class is ")
    assert "it is for 2 of basics:1.0.0 at a time, from " in told
    assert "session 2 is not made yet: planned worker ccna/" in told
    assert json.loads(desk.out("explain", "r/class", "-o", "json")) == {"reservation": "class", "sessions": {}}
    made = json.loads(desk.out("get", "reservation", "class", "-o", "json"))["metadata"]["uid"]
    owner = Owner(kind="Reservation", name="class", uid=made)
    session = given.changed(given.session(name="class-1", uid="uid-class-1"), {"metadata": {"owner": owner}})
    open_api.put(given.changed(session, {"spec": {"owner": "ada"}}))
    assert "session/class-1 " in desk.out("explain", "reservation", "class")
    missing = desk.lcm("explain", "reservation", "clas")
    assert (missing.exit_code, "did you mean class?" in missing.stderr) == (3, True)


def test_the_sessions_of_a_reservation_are_explained_one_by_one() -> None:
    found = Explanation(outcome="promise", why="", reason="because", slot=SLOT, seat=Seat(pool="ccna", number=3))
    texts = list(reservation_texts(given.reservation(), [("r1-1", found)], BERLIN))
    assert texts[2] == ("session/r1-1 is promised planned worker ccna/3 for Mon 2026-11-02 14:00-15:30 CET: because")


def test_a_booking_that_is_only_thought_of_is_explained_and_not_made(desk: Shell) -> None:
    asked = ("--definition", "basics", "--at", "+20h", "--for", "90m")
    assert desk.out("explain", *asked).startswith("a session of basics, ")
    assert "would be promised planned worker ccna/" in " ".join(desk.out("explain", *asked).split())
    assert "would be refused" in desk.out("explain", "definition", "basics", *asked[2:], "--count", "9")
    assert "now for 3h" in desk.out("explain", "definition", "basics")
    assert desk.lcm("get", "sessions", "--field-selector", "spec.owner=nobody").exit_code == 0


def test_what_is_not_there_or_makes_no_sense_is_said(desk: Shell) -> None:
    missing = desk.lcm("explain", "nope")
    assert (missing.exit_code, "there is no session/nope in namespace default" in missing.stderr) == (3, True)
    for arguments in (
        [],
        ["worker", "w1"],
        ["session", "a", "b"],
        ["mine", "--at", "+1h"],
        ["mine", "-o", "name"],
        ["--definition", "basics", "--for", "90"],
    ):
        assert desk.lcm("explain", *arguments).exit_code == 2


def test_moments_are_those_of_the_zone_that_is_named(desk: Shell) -> None:
    hour = (NOW + timedelta(days=3650)).strftime("%Y-%m-%d 09:00")
    told_in = desk.out("explain", "--definition", "basics", "--at", hour, "--for", "1h", "--time-zone", "Asia/Kolkata")
    assert "09:00-10:00 IST" in " ".join(told_in.split())
