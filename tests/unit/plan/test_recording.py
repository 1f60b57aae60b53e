"""A day of a live system, written down as a timetable: what people wanted comes back, and can be played again."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from lcm.cli.documents.texts import write_document
from lcm.control.plane.protocol import Plane
from lcm.control.upkeep import housekeeping
from lcm.model.base.resource import Owner, PhaseChange
from lcm.model.kinds.definition import DefinitionState, ResourceRequirements
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.sim.plan.reading import LiveSystem, inventory_of, read_timetable
from lcm.sim.plan.recording import History, MachineFailure, record_timetable
from lcm.sim.plan.timetable import Extension, SessionRequest, Timetable
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import read_variants

DAY = "2026-11-02"
P = SessionPhase
at = given.moment


def story(*phases: tuple[str, str]) -> tuple[PhaseChange, ...]:
    """Return when something came into which phase."""
    return tuple(PhaseChange(phase=phase, at=at(clock), by="x", reason="a\nreason") for phase, clock in phases)


def session(name: str, **fields: Any) -> LabletSession:
    usual = {"lab_track": "ccna", "owner": "ada", "created_at": at("07:00")}
    return given.session(**{"name": name, "uid": f"uid-{name}", **usual, **fields})


def wanted() -> list[LabletSession]:
    """Return a day: kept as booked, extended, cancelled, as soon as possible, booked long before, of another day."""
    ran = (("PENDING", "07:00"), ("RUNNING", "09:00"), ("COLLECTING", "11:00"), ("COMPLETED", "11:03"))
    over = {"phase": P.COMPLETED, "outcome": P.COMPLETED, "history": story(*ran)}
    cancelled = story(("PENDING", "07:00"), ("RUNNING", "09:00"), ("COLLECTING", "10:00"), ("TERMINATED", "10:02"))
    soon = story(("PENDING", "12:30"), ("RUNNING", "12:34"), ("COLLECTING", "13:34"), ("COMPLETED", "13:36"))
    return [
        session("kept", **over),
        session("extended", ends_at=at("11:30") - timedelta(milliseconds=9), **over),
        session("cancelled", phase=P.TERMINATED, outcome=P.TERMINATED, history=cancelled),
        session("soon", **over | {"history": soon}, created_at=at("12:30"), **slotless(60)),
        session("early", **over, created_at=at("07:00") - timedelta(days=20), owner=""),
        session("tomorrow", timeslot_start=at("09:00", day=1), timeslot_end=at("11:00", day=1)),
    ]


def slotless(minutes: int) -> dict[str, Any]:
    return {"timeslot_start": None, "timeslot_end": None, "duration_minutes": minutes}


def broken() -> LabWorker:
    lines = story(("READY", "08:00"), ("FAILED", "10:00"))
    return given.worker(phase=WorkerPhase.FAILED, history=lines)


def estate() -> dict[str, Any]:
    needs = ResourceRequirements(cpu_cores=4, memory_gb=8, storage_gb=10)
    lab = {"resource_requirements": needs, "node_count": 4, "lab_track": "ccna", "state": DefinitionState.ACTIVE}
    return {
        "definitions": [given.definition(**lab)],
        "templates": [given.template(price_per_hour_usd=Decimal("3.5"))],
        "pools": [given.pool(min_workers=0, max_workers=3)],
    }


def history(*sessions: LabletSession, **more: Any) -> History:
    return History(**{"since": at("00:00"), "until": at("00:00", day=1), "sessions": sessions, **estate(), **more})


@pytest.fixture(name="api")
def serve() -> Iterator[ApiServer]:
    with served() as api:
        kinds = estate()
        api.put(*kinds["definitions"], *kinds["templates"], *kinds["pools"], *wanted(), broken())
        yield api


@pytest.fixture(name="desk")
def seat(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, TZ="UTC")


def test_a_session_without_a_track_is_played_where_it_was_served() -> None:
    lab = given.definition(
        resource_requirements=ResourceRequirements(cpu_cores=4, memory_gb=8, storage_gb=10),
        lab_track="",
        state=DefinitionState.ACTIVE,
    )
    pools = [given.pool(min_workers=0, max_workers=3), given.pool(name="voice", lab_track="voice", min_workers=0)]
    seated = session("seated", lab_track="", seat=Seat(pool="voice", number=1))
    made = record_timetable(history(seated, session("free", lab_track=""), definitions=[lab], pools=pools))
    assert {row["track"] for row in made.timetable["sessions"]} == {"voice", "ccna"}
    assert not made.without_pool
    found = read_timetable("day.yaml", write_document(made.timetable).encode())
    trial = play(found, read_variants(())[0])
    assert (trial.wanted, trial.promised, trial.refused) == (2, 2, ())
    live = LiveSystem(at=at("06:00"), definitions=(lab,), pools=tuple(pools), sessions=(seated,))
    assert [one.track for one in inventory_of(live).sessions] == ["voice"]


def test_a_session_that_a_reservation_made_was_booked_with_the_reservation() -> None:
    owner = Owner(kind="Reservation", name="class", uid="uid-class")
    reserved = given.changed(session("class-1"), {"metadata": {"owner": owner}})
    booked = given.reservation(name="class", uid="uid-class", created_at=at("01:00"))
    (row,) = record_timetable(history(reserved, reservations=[booked])).timetable["sessions"]
    assert row["booked_at"] == "2026-11-02T01:00:00Z"
    (row,) = record_timetable(history(reserved)).timetable["sessions"]
    assert "booked_at" not in row, "the reservation is gone: it was long before"


def by_owner_and_start(sessions: tuple[SessionRequest, ...]) -> list[tuple[str, datetime | None, datetime | None]]:
    return [(one.owner, one.start, one.booked_at) for one in sessions]


def test_a_day_is_recorded_from_the_archive_and_from_what_is_live_and_played_again(
    api: ApiServer, desk: Shell, tmp_path: Path
) -> None:
    async def archived(_: Plane) -> int:
        return await housekeeping.archive_ended(api.store, at("23:00"), at("11:10"))

    assert api.do(archived) == 4
    file = tmp_path / "monday.yaml"
    assert desk.out("record", file, "--day", DAY) == f"{file}: 5 sessions; `lcm plan {file}` simulates them\n"
    text = file.read_text()
    assert "# Machines failed 1 times; `--faults 0.042` simulates about as many failures:" in text
    assert "# 2026-11-02T10:00:00Z w1 FAILED: a reason" in text
    found = read_timetable(file.name, file.read_bytes())
    check(found)
    trial = play(found, read_variants(())[0])
    assert (trial.wanted, trial.promised, len(trial.waits_seconds)) == (5, 4, 1), "one waits, the others are promised"
    assert (trial.refused, trial.late, trial.unserved) == ((), (), 0)


def check(found: Timetable) -> None:
    """Hold what was read back against what happened."""
    (pool,) = found.pools
    assert (pool.spec.lab_track, pool.spec.min_workers, pool.spec.max_workers) == ("ccna", 0, 3)
    assert found.templates[0].spec.price_per_hour_usd == Decimal("3.5")
    needs = found.definitions[0].spec.resource_requirements
    assert needs == ResourceRequirements(cpu_cores=4, memory_gb=8, storage_gb=10)
    nine, seven = at("09:00"), at("07:00")
    assert by_owner_and_start(found.sessions) == [
        ("", nine, None),
        ("ada", nine, seven),
        ("ada", nine, seven),
        ("ada", nine, seven),
        ("ada", None, at("12:30")),
    ]
    _, cancelled, extended, kept, soon = found.sessions
    assert (kept.minutes, soon.minutes, cancelled.cancelled_at) == (120, 60, at("10:00"))
    assert extended.extended == (Extension(at=at("10:50"), minutes=30),)
    assert not kept.extended
    assert kept.cancelled_at is None


def test_nothing_is_written_over_and_a_day_on_which_nothing_was_wanted_is_said_so(desk: Shell, tmp_path: Path) -> None:
    file = tmp_path / "day.yaml"
    empty = desk.lcm("record", file, "--day", "2020-01-01")
    assert empty.exit_code == 5
    assert "no session was booked from 2020-01-01 00:00:00Z" in empty.stderr
    assert not file.exists()
    file.write_text("mine")
    refused = desk.lcm("record", file, "--day", DAY)
    assert (refused.exit_code, file.read_text()) == (5, "mine")
    assert "name another file, or add --force" in refused.stderr
    desk.out("record", file, "--day", DAY, "--force")
    assert file.read_text().endswith(desk.out("record", "-", "--day", DAY).partition("\n")[2])
    assert desk.lcm("record", "-", "--day", "someday").exit_code == 2
    assert "too far away" in desk.lcm("record", "-", "--day", "9999-12-31").stderr
    assert "cannot be written" in desk.lcm("record", tmp_path / "none" / "day.yaml", "--day", DAY).stderr


def test_it_is_for_staff_and_whoever_may_not_read_the_audit_is_told_what_is_a_guess(
    api: ApiServer, desk: Shell, tmp_path: Path
) -> None:
    result = shell(api, tmp_path, "anna").lcm("record", "-", "--day", DAY)
    assert result.exit_code == 5
    assert "only operators and administrators" in result.stderr
    api.tokens["otto"] = desk.out("token", "create", "otto", "--role", "operator").splitlines()[-1]
    written = shell(api, tmp_path, "otto", TZ="UTC").out("record", "-", "--day", DAY)
    assert "# The times of extensions are estimates: only administrators may read the audit.\n" in written


def test_extensions_come_when_they_were_asked_for_and_add_up() -> None:
    longer = session("longer", ends_at=at("11:45"))
    made = record_timetable(history(longer, extensions={"longer": [at("10:40"), at("10:10")]}))
    (row,) = made.timetable["sessions"]
    assert row["extended"] == [
        {"at": "2026-11-02T10:10:00Z", "minutes": 22},
        {"at": "2026-11-02T10:40:00Z", "minutes": 23},
    ]


def test_what_was_reserved_was_booked_by_its_reservation() -> None:
    reserved = given.reservation(created_at=at("05:00"))
    mine = session("mine", reservation_id="r1", created_at=at("08:40"))
    lost = session("lost", reservation_id="r2", created_at=at("08:40"))
    rows = record_timetable(history(mine, lost, reservations=[reserved])).timetable["sessions"]
    assert [row.get("booked_at") for row in rows] == [None, "2026-11-02T05:00:00Z"]


def test_a_lab_whose_definition_is_gone_needs_what_its_session_claimed_and_versions_are_told_apart() -> None:
    sessions = [
        session("old", definition="basics:0.9.0", claim=given.claim(cpu_millis=2_500)),
        session("new"),
    ]
    labs = record_timetable(history(*sessions)).timetable["definitions"]
    assert [(lab["name"], lab["cpu"]) for lab in labs] == [("basics-0.9.0", 2.5), ("basics-1.0.0", 4)]


def test_what_was_cancelled_long_before_is_left_out_and_who_still_waits_is_not() -> None:
    gone = story(("PENDING", "07:00"), ("TERMINATED", "08:00"))
    before = tuple(msgspec.structs.replace(one, at=one.at - timedelta(days=5)) for one in gone)
    sessions = [
        session("today", phase=P.TERMINATED, outcome=P.TERMINATED, history=gone),
        session("before", phase=P.TERMINATED, outcome=P.TERMINATED, history=before, owner="bob"),
        session("waits", created_at=at("20:00", day=-1), owner="eve", **slotless(60)),
    ]
    rows = record_timetable(history(*sessions)).timetable["sessions"]
    assert [(row["owner"], row.get("cancelled_at")) for row in rows] == [("eve", None), ("ada", "2026-11-02T08:00:00Z")]


def test_a_track_that_no_pool_serves_is_told_and_pools_of_one_track_are_kept_apart() -> None:
    pools = [given.pool(name=name, uid=name, min_workers=1, max_workers=2) for name in ("a", "b")]
    made = record_timetable(history(session("s"), session("t", lab_track="ccnp"), pools=pools))
    assert made.without_pool == ["ccnp"]
    assert [(pool["name"], pool["min"], pool["max"]) for pool in made.timetable["fleet"]] == [("a", 1, 2), ("b", 1, 2)]


def test_a_failure_that_events_tell_too_is_one_failure() -> None:
    told = [MachineFailure(at("10:00"), "w1", "FAILED: x"), MachineFailure(at("09:00"), "gone", "FAILED: y")]
    failures = record_timetable(history(session("s"), workers=[broken()], failures=told)).failures
    assert [(one.at, one.worker) for one in failures] == [(at("09:00"), "gone"), (at("10:00"), "w1")]
