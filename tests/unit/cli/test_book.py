"""`lcm book`, `extend` and `cancel` against an API that promises."""

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from harness.booking_world import TERMS, furnish
from harness.plane_world import service
from lcm.cli.booking.outcome import describe_start, describe_state
from lcm.cli.output.zone import find_zone
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.placement import Explanation
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, Progress, Seat, SessionPhase, Waiting
from lcm.system.clock import SystemClock

BERLIN = find_zone("Europe/Berlin")
NOW = given.moment("09:10")


@pytest.fixture(name="api")
def api_that_promises() -> Iterator[ApiServer]:
    with served(terms=TERMS) as api:
        furnish(api)
        yield api


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, columns=80, TZ="Europe/Berlin")


def said(text: str) -> str:
    """Undo the breaking of lines, which must fit."""
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def session(api: ApiServer, name: str) -> LabletSession:
    async def ask(plane: Plane) -> LabletSession | None:
        return await plane.get(Ref(LabletSession, name))

    found = api.do(ask)
    assert found is not None
    return found


def reservation(api: ApiServer, name: str) -> Reservation:
    async def ask(plane: Plane) -> Reservation | None:
        return await plane.get(Ref(Reservation, name))

    found = api.do(ask)
    assert found is not None
    return found


def step(api: ApiServer, actor: str, name: str, **fields: Any) -> None:
    """Let a controller report something; by a plane that promises nothing, which lets it put sessions anywhere."""

    async def work(_: Plane) -> None:
        plane = ControlPlane(api.store, clock=SystemClock()).plane_for(service(actor))
        found = await plane.get(Ref(LabletSession, name))
        assert found is not None
        await plane.step(found, msgspec.structs.replace(found.status, **fields))

    api.acting(actor, work)


def sessions(api: ApiServer) -> list[LabletSession]:
    async def ask(plane: Plane) -> list[LabletSession]:
        return list((await plane.list(LabletSession)).items)

    return api.do(ask)


def test_a_time_is_promised_with_its_seat_and_how_to_follow_it(api: ApiServer, desk: Shell) -> None:
    text = said(
        desk.out("book", "basics", "--at", "tomorrow 9:00", "--for", "90m", "--as", "ada", "--region", "us-east-1")
    )
    found = re.fullmatch(
        r"session/(basics-\w{5}) is promised, planned worker (ccna/\d):"
        r" (\w{3} \d{4}-\d\d-\d\d 09:00-10:30 CES?T) \(in \d+h\);"
        r" `lcm explain session \1` shows more",
        text,
    )
    assert found, text
    made = session(api, found[1])
    assert made.spec.owner == "ada"
    assert made.spec.timeslot_start is not None
    assert made.spec.timeslot_end == made.spec.timeslot_start + timedelta(minutes=90)
    assert BERLIN.local(made.spec.timeslot_start).hour == 9


def test_without_a_time_it_is_wanted_now_for_as_long_as_it_may_last(api: ApiServer, desk: Shell) -> None:
    text = said(desk.out("book", "basics", "--name", "mine", "--email", "ada@example.org", "--give-up-after", "1h"))
    assert text.startswith("session/mine, for 3h, waits for a machine that is being started (planned worker ccna/1): ")
    made = session(api, "mine").spec
    assert (made.timeslot_start, made.duration_minutes, made.student_email) == (None, 180, "ada@example.org")
    assert made.give_up_at is not None
    assert timedelta(minutes=58) < made.give_up_at - SystemClock().now() < timedelta(minutes=62)


def test_a_full_time_is_refused_with_free_ones_that_can_be_pasted(api: ApiServer, desk: Shell) -> None:
    for _ in range(4):
        desk.out("book", "basics", "--at", "tomorrow 9:00", "--for", "2h")
    result = desk.lcm("book", "basics", "--at", "tomorrow 9:00", "--for", "2h")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "all 2 planned workers are taken" in result.stderr
    offers = re.findall(r"^  (--at '(.+)' --for 2h)  # \w{3} \d\d:\d\d CES?T, in \d+h$", result.stderr, re.MULTILINE)
    assert offers
    desk.out("book", "basics", "--at", offers[0][1], "--for", "2h")
    assert len(sessions(api)) == 5


def test_several_are_promised_together_or_not_at_all(api: ApiServer, desk: Shell) -> None:
    text = said(desk.out("book", "basics", "--at", "tomorrow 9:00", "--for", "1h", "--count", "3", "--name", "class"))
    assert text.startswith("reservation/class is promised, 3 sessions of basics:1.0.0: ")
    assert "`lcm describe reservation class` shows more" in text
    assert len(reservation(api, "class").status.held) == 3
    assert desk.lcm("book", "basics", "--at", "tomorrow 9:00", "--for", "1h", "--count", "2").exit_code == 5
    assert "Seats: 1: " in " ".join(desk.out("describe", "reservation", "class").split())


def test_a_series_keeps_to_the_clocks_of_its_zone(api: ApiServer, desk: Shell) -> None:
    year = SystemClock().now().year + 1
    asked = ("--at", f"{year}-03-20 09:00", "--for", "1h", "--every", "day", "--until", f"{year}-04-05")
    text = said(desk.out("book", "basics", *asked, "--name", "daily", "--time-zone", "Europe/Berlin"))
    assert f"17 times until {year}-04-05 in Europe/Berlin time" in text
    held = reservation(api, "daily").status.held
    assert {BERLIN.local(one.claim.end - timedelta(minutes=10)).hour for one in held} == {10}
    assert len({one.claim.end.hour for one in held}) == 2


def test_a_dry_run_books_nothing(api: ApiServer, desk: Shell) -> None:
    for arguments in (["--at", "+3h", "--for", "1h"], ["--for", "1h"], ["--at", "+3h", "--for", "1h", "--count", "2"]):
        result = desk.lcm("book", "basics", *arguments, "--dry-run")
        assert result.exit_code == 0
        assert " would " in result.stdout
        assert result.stderr == "nothing was booked: --dry-run\n"
    assert sessions(api) == []


def test_what_was_booked_is_written_as_asked(desk: Shell) -> None:
    made = json.loads(desk.out("book", "basics", "--at", "+3h", "--for", "1h", "--name", "one", "-o", "json"))
    assert (made["kind"], made["metadata"]["name"], made["status"]["seat"]["pool"]) == ("LabletSession", "one", "ccna")
    assert desk.out("book", "basics", "--for", "1h", "--name", "two", "-o", "name") == "session/two\n"


def test_a_name_that_is_taken_is_said(desk: Shell) -> None:
    desk.out("book", "basics", "--for", "1h", "--name", "mine")
    result = desk.lcm("book", "basics", "--for", "1h", "--name", "mine")
    assert result.exit_code == 5
    assert "there is a session/mine already: choose another --name" in result.stderr


def test_what_one_may_not_and_what_is_not_there_is_refused(api: ApiServer, tmp_path: Path) -> None:
    ada = shell(api, tmp_path, "ada")
    assert ada.lcm("book", "basics", "--for", "1h", "--as", "bob").exit_code == 5
    assert ada.lcm("book", "basics", "--for", "1h", "--priority", "5").exit_code == 5
    assert "nothing:" not in (missing := ada.lcm("book", "nothing")).stdout
    assert (missing.exit_code, "spec.definition" in missing.stderr) == (5, True)
    assert ada.lcm("book", "basics", "--for", "9h").exit_code == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--at", "+1h", "--now"],
        ["--at", "9 o'clock"],
        ["--for", "90"],
        ["--count", "2"],
        ["--every", "week", "--until", "2030-01-01"],
        ["--at", "+1h", "--every", "week"],
        ["--at", "+1h", "--until", "2030-01-01"],
        ["--at", "+1h", "--on", "mon"],
        ["--at", "+1h", "--count", "2", "--watch"],
        ["--at", "+1h", "--give-up-after", "1h"],
        ["--at", "+1h", "--time-zone", "Nowhere"],
        ["--email", "a@b.c", "--email", "d@e.f"],
        ["--count", "0"],
    ],
)
def test_what_makes_no_sense_is_wrong_usage_before_anybody_is_asked(tmp_path: Path, arguments: list[str]) -> None:
    alone = Shell(tmp_path, LCM_URL="http://127.0.0.1:1", LCM_TOKEN="t", TZ="Europe/Berlin")
    assert alone.lcm("book", "basics", *arguments).exit_code == 2


def _placed() -> dict[str, Any]:
    now = SystemClock().now()
    claim = given.changed(given.claim(), {"start": now, "end": now + timedelta(hours=2)})
    fields = {"claim": claim, "worker_id": "u", "worker_name": "w1", "allocated_ports": {"PC_vnc": 2002}}
    return {"phase": SessionPhase.SCHEDULED, **fields}


def test_who_watches_sees_each_change_once_until_it_runs(api: ApiServer, desk: Shell) -> None:
    def world() -> None:
        now = SystemClock().now()
        waiting = Waiting(queue_position=2, estimated_start=now + timedelta(minutes=9), basis="a worker boots")
        step(api, SCHEDULER, "mine", waiting=waiting)
        step(api, SCHEDULER, "mine", waiting=msgspec.structs.replace(waiting, estimated_start=now))
        step(api, SCHEDULER, "mine", waiting=None, **_placed())
        step(api, LABLET_CONTROLLER, "mine", phase=SessionPhase.INSTANTIATING)
        for percent in (10, 10, 60):
            progress = Progress(step="import", percent=percent, message="the lab is sent", at=SystemClock().now())
            step(api, LABLET_CONTROLLER, "mine", progress=progress)
        ends = {"cml_lab_id": "1", "ends_at": now + timedelta(hours=1), "access_url": "https://x/lab/1"}
        urls = {"PC_vnc": "vnc://54.1.2.3:2002"}
        step(api, LABLET_CONTROLLER, "mine", phase=SessionPhase.RUNNING, access_urls=urls, **ends)

    then = api.once_watched(world)
    result = desk.lcm("book", "basics", "--for", "1h", "--name", "mine", "--watch")
    then.join()
    assert result.exit_code == 0, result.output
    lines = [line.split(" ", 1)[1] for line in result.stdout.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert [line.partition(":")[0] for line in lines] == [
        "PENDING",
        "PENDING",
        "SCHEDULED",
        "INSTANTIATING",
        "INSTANTIATING",
        "INSTANTIATING",
        "RUNNING",
    ]
    assert lines[1].startswith("PENDING: number 2 in the queue, starts about ")
    assert lines[2] == "SCHEDULED: on worker w1"
    assert lines[4:6] == ["INSTANTIATING: 10% import: the lab is sent", "INSTANTIATING: 60% import: the lab is sent"]
    assert lines[6].startswith("RUNNING: https://x/lab/1, until ")
    assert result.stdout.splitlines()[-1] == "  PC_vnc  vnc://54.1.2.3:2002"


def test_who_watches_something_that_ends_before_it_runs_is_told_with_eight(api: ApiServer, desk: Shell) -> None:
    failed = {"phase": SessionPhase.FAILED, "last_error": "no worker has 900 cores"}
    then = api.once_watched(lambda: step(api, SCHEDULER, "mine", **failed))
    result = desk.lcm("book", "basics", "--for", "1h", "--name", "mine", "-w")
    then.join()
    assert result.exit_code == 8
    assert "session/mine has ended before it ran: it is FAILED" in result.stderr


def test_a_session_is_extended_if_its_seat_is_free(api: ApiServer, tmp_path: Path) -> None:
    desk = shell(api, tmp_path, "ada", columns=80, TZ="Europe/Berlin")
    desk.out("book", "basics", "--at", "tomorrow 9:00", "--for", "1h", "--name", "mine")
    text = said(desk.out("extend", "mine", "30m"))
    assert re.fullmatch(r"session/mine ends 30m later: \w{3} \d{4}-\d\d-\d\d 10:30 CES?T \(in \d+h\)", text)
    assert "would end 15m later" in desk.out("extend", "session", "mine", "15m", "--dry-run")
    assert "ends 1h later" in desk.out("extend", "s/mine", "1h")
    refused = desk.lcm("extend", "mine", "2h")
    assert (refused.exit_code, "180 minutes its definition allows" in refused.stderr) == (5, True)
    ends = session(api, "mine").status.ends_at
    assert ends is not None
    assert BERLIN.local(ends).strftime("%H:%M") == "11:30"


def test_what_cannot_be_extended_is_said_and_what_to_do(desk: Shell) -> None:
    desk.out("book", "basics", "--at", "tomorrow 9:00", "--for", "1h", "--name", "mine")
    desk.out("cancel", "mine")
    over = desk.lcm("extend", "mine", "30m")
    assert over.exit_code == 5
    assert "session/mine is TERMINATED" in over.stderr
    assert "`lcm book basics:1.0.0` books another" in over.stderr
    assert desk.lcm("extend", "nope", "30m").exit_code == 3
    for words in (["mine"], ["mine", "30"], ["worker", "w1", "30m"], ["session", "a", "b", "30m"]):
        assert desk.lcm("extend", *words).exit_code == 2


def test_sessions_and_reservations_are_cancelled_by_name(api: ApiServer, desk: Shell) -> None:
    slot = ("--at", "tomorrow 9:00", "--for", "1h")
    desk.out("book", "basics", *slot, "--name", "one")
    desk.out("book", "basics", *slot, "--name", "class", "--count", "2")
    assert "nothing was done" in desk.lcm("cancel", "one", "--dry-run").stderr
    assert session(api, "one").status.phase is SessionPhase.PENDING
    result = desk.lcm("cancel", "one", "nope", "class", "--reason", "ill")
    assert result.exit_code == 3
    assert result.stdout == "session/one is cancelled: it has nothing on a worker\n"
    told = said(result.stderr)
    assert "there is no session/nope in namespace default; `lcm get sessions -A` lists what is there" in told
    assert "but a reservation: `lcm cancel reservation class` cancels that" in told
    assert session(api, "one").status.outcome_reason == "ill"
    assert "is being cancelled: its 2 sessions end" in said(desk.out("cancel", "reservation", "class"))
    assert reservation(api, "class").metadata.deletion_timestamp is not None


def test_a_running_session_is_collected_first(api: ApiServer, desk: Shell) -> None:
    api.put(given.session(name="run", phase=SessionPhase.RUNNING, owner="ada", ends_at=SystemClock().now()))
    text = said(desk.out("cancel", "s/run"))
    assert "its lab is collected and removed from its worker first (COLLECTING)" in text
    assert "`lcm wait session run --for phase=TERMINATED` waits for it" in text


def test_only_bookings_are_cancelled(desk: Shell) -> None:
    result = desk.lcm("cancel", "worker", "w1")
    assert (result.exit_code, "`lcm delete worker w1` removes it" in " ".join(result.stderr.split())) == (2, True)


def test_a_table_of_sessions_tells_the_seat_the_place_in_line_and_a_risk(api: ApiServer, desk: Shell) -> None:
    now = SystemClock().now()
    waiting = Waiting(queue_position=3, estimated_start=now + timedelta(minutes=9, seconds=30), basis="x")
    risk = Condition(
        type="AtRisk", status=Truth.TRUE, last_transition_at=now, reason="NoMachine", message="none starts"
    )
    seat = Seat(pool="ccna", number=2)
    api.put(
        given.asap(name="a", uid="uid-a", waiting=waiting),
        given.session(name="b", uid="uid-b", seat=seat, conditions=(risk,)),
        given.session(name="c", seat=seat, worker_name="w7", allocated_ports={"PC_vnc": 2002}),
    )
    rows = {line.split()[0]: line for line in desk.out("get", "sessions").splitlines()}
    assert "#3 in 9m" in rows["a"]
    assert "ccna/2" in rows["b"]
    assert "at risk" in rows["b"]
    assert "w7" in rows["c"]
    assert "PC_vnc:2002" in desk.out("get", "session", "c", "-o", "wide")
    assert "At risk:      none starts" in desk.out("describe", "session", "b")
    assert "Planned on:   planned worker ccna/2, whichever worker fills it" in desk.out("describe", "session", "b")


def _answer(outcome: str, **fields: Any) -> Explanation:
    return given.changed(
        Explanation(outcome="wait", why="", reason="because", worker=""), {"outcome": outcome, **fields}
    )


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (None, "starts as soon as there is room"),
        (_answer("assign", worker="w1"), "starts now on w1"),
        (_answer("wait"), "waits: because"),
        (_answer("refuse", remedy="change it"), "waits, because it cannot start at present: because; change it"),
        (
            _answer("wait", waiting=Waiting(queue_position=1, estimated_start=None, basis="nothing ends")),
            "waits: number 1 in the queue, start not known: nothing ends",
        ),
    ],
)
def test_who_wants_it_now_is_told_when_it_starts(answer: Explanation | None, want: str) -> None:
    assert describe_start(answer, NOW, BERLIN) == want


def test_every_phase_has_a_line_for_who_looks_on() -> None:
    moment: datetime = NOW
    for phase in SessionPhase:
        line = describe_state(given.session(phase=phase, history=given.history("PENDING")), moment, BERLIN)
        assert line.startswith(phase)
