"""What a new folder begins with: once, as a whole, and never again; and slots that are said from now on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from harness import suite
from harness.api_world import Shell
from lcm.cli.documents.lab_files import resolve_times
from lcm.cli.documents.sources import gather
from lcm.cli.server.greeting import FirstDocuments, read_first_documents
from lcm.compose.process import EmbeddedProcess, run_embedded
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep.installation import begin_setup, read_setup
from lcm.controllers.runtime.settings import terms_of
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Invalid
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.placement.claims import Terms
from lcm.settings.load import Settings

EXAMPLES = suite.ROOT / "examples"
PATHS = [str(EXAMPLES / "first"), str(EXAMPLES / "timetable")]
ADMIN = Caller(name="ada", role=Role.ADMIN)
TEMPLATE = Ref(WorkerTemplate, "metal")
ADA = Ref(LabletSession, "taster-ada")


@asynccontextmanager
async def started(folder: Path, what: FirstDocuments | None, speed: float = 120) -> AsyncIterator[EmbeddedProcess]:
    """Start everything but the controllers, which would act."""
    async with run_embedded(Settings(data_dir=folder, port=0), speed=speed, controllers=(), before=what) as it:
        yield it


def read(*paths: str) -> FirstDocuments:
    found = read_first_documents(paths or PATHS)
    assert found is not None
    return found


async def test_a_new_folder_begins_with_the_examples_and_what_is_deleted_stays_away(tmp_path: Path) -> None:
    once, again = read(), read()
    async with started(tmp_path, once) as it:
        plane = it.running.control.plane_for(ADMIN)
        assert "2 pools, 2 workers, 10 reservations, 5 sessions" in once.outcome
        found = await plane.get(ADA)
        assert found is not None
        assert found.status.seat is not None
        assert found.spec.timeslot_end is not None
        assert found.spec.timeslot_end - datetime.now(UTC) < timedelta(minutes=1)
        template = await plane.get(TEMPLATE)
        assert template is not None
        await plane.delete(Ref(LabletSession, "lesson-cleo"))
    async with started(tmp_path, again) as it:
        plane = it.running.control.plane_for(ADMIN)
        assert "when this folder was new" in again.outcome
        assert await plane.get(ADA) == found
        gone = await plane.get(Ref(LabletSession, "lesson-cleo"))
        assert gone is None or gone.metadata.deletion_timestamp is not None


async def test_a_start_that_died_over_it_is_gone_on_with(tmp_path: Path) -> None:
    sources = gather(PATHS[:1], recursive=False).sources
    async with started(tmp_path, None) as it:
        await begin_setup(it.running.store, datetime(2026, 1, 1, tzinfo=UTC))
        plane = it.running.control.plane_for(ADMIN)
        await plane.apply([one.value for one in sources if one.value["kind"] == "WorkerTemplate"])
        made = await plane.get(TEMPLATE)
        assert made is not None
    async with started(tmp_path, read()) as it:
        known, plane = await read_setup(it.running.store), it.running.control.plane_for(ADMIN)
        assert known is not None
        assert known.done_at is not None
        assert await plane.get(TEMPLATE) == made
        assert await plane.get(ADA) is not None


async def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    async with started(tmp_path, None) as it:
        await it.running.control.plane_for(ADMIN).apply([{"kind": "SystemSettings", "metadata": {"name": "system"}}])
    late = read()
    async with started(tmp_path, late) as it:
        assert "this folder is not new" in late.outcome
        assert await it.running.control.plane_for(ADMIN).get(TEMPLATE) is None


async def test_slots_that_are_too_soon_at_a_slower_speed_are_told_and_the_rest_is_there(tmp_path: Path) -> None:
    slow = read()
    async with started(tmp_path, slow, speed=1) as it:
        assert "more bookings have no room" in slow.outcome
        assert "has a machine from" in slow.outcome
        plane = it.running.control.plane_for(ADMIN)
        assert await plane.get(ADA) is None
        assert await plane.get(Ref(LabletSession, "lesson-cleo")) is not None


def test_what_cannot_be_read_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="there is no"):
        read_first_documents([str(tmp_path / "nothing")])
    (tmp_path / "bad.yaml").write_text("kind: [")
    with pytest.raises(Invalid, match=r"bad\.yaml:"):
        read_first_documents([str(tmp_path)])
    assert read_first_documents([]) is None


def test_nothing_begins_by_itself_where_machines_cost_money(tmp_path: Path) -> None:
    refused = Shell(tmp_path).lcm("up", "--cloud=aws", "--first", PATHS[0], "--data", tmp_path / "data")
    assert refused.exit_code == 2
    assert "where machines cost money" in " ".join(refused.stderr.split())
    assert not (tmp_path / "data").exists()


def test_a_slot_may_be_said_from_now_on(tmp_path: Path) -> None:
    file = tmp_path / "slots.yaml"
    file.write_text(
        "kind: Reservation\nmetadata: {name: r}\n"
        "spec: {timeslot_start: +90s, timeslot_end: +2h, recurrence: {until: +7d}}\n---\n"
        "kind: LabletSession\nmetadata: {name: s}\nspec: {timeslot_start: 2031-11-03T09:00:00Z, owner: +5m}\n"
    )
    now = datetime(2026, 12, 1, 8, 59, 59, 5, tzinfo=UTC)
    (series, session), moving = resolve_times(gather([str(file)], recursive=False).sources, now)
    assert series.value["spec"] == {
        "timeslot_start": "2026-12-01T09:01:30+00:00",
        "timeslot_end": "2026-12-01T11:00:00+00:00",
        "recurrence": {"until": "2026-12-08"},
    }
    assert session.value["spec"]["owner"] == "+5m"
    assert moving == {0}


def test_bookings_count_on_the_speed_of_a_simulated_cloud() -> None:
    fast = terms_of(Settings(cloud="simulated", sim_speed=60))
    assert (fast.boot, fast.instantiation) == (timedelta(seconds=20), timedelta(seconds=15))
    assert terms_of(Settings(cloud="simulated", sim_speed=10_000)).boot == timedelta(seconds=5)
    assert terms_of(Settings(cloud="simulated", sim_speed=0.5)).boot == timedelta(minutes=40)
    assert terms_of(Settings(cloud="aws", sim_speed=60)).horizon == Terms().horizon
