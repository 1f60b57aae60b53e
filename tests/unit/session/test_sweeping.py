"""Which files are nobody's, and that they go."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
import structlog

from harness import given
from harness.session_world import HOUR, PORTS, S1, Lablets, prepared
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.controllers.session.progress import collected_uri
from lcm.controllers.session.sweeping import find_leftover_files
from lcm.model.base.errors import Gone
from lcm.model.kinds.session import Artifact, LabletSession, SessionPhase
from lcm.model.kinds.settings import ArtifactSettings
from lcm.providers.protocols.artifacts import ListedArtifact, digest_of
from lcm.sim.time.loop import run

NOW = given.moment("10:00", day=60)
DAY, MONTH = timedelta(days=1), timedelta(days=30)
S2 = Ref(LabletSession, "s2")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def listed(name: str, age: timedelta) -> ListedArtifact:
    return ListedArtifact(uri=f"artifact://tmp/{name}", size_bytes=1, stored_at=NOW - age)


def left(name: str, age: timedelta, **known: LabletSession) -> bool:
    sessions = {"live": given.asap(phase=SessionPhase.RUNNING)} | known
    return bool(find_leftover_files([listed(name, age)], sessions.get, NOW, kept_for=MONTH))


def ended(kept_for: timedelta | None) -> LabletSession:
    """Return a session that ended three days ago and left a file."""
    at = NOW - 3 * DAY
    until = None if kept_for is None else at + kept_for
    file = Artifact(name="lab.yaml", digest=digest_of(b""), size_bytes=0, collected_at=at, expires_at=until)
    return given.asap(phase=SessionPhase.COMPLETED, artifacts=(file,))


def test_a_live_sessions_file_is_kept_and_one_of_an_ended_session_is_not() -> None:
    assert not left("live/lab.yaml", 2 * DAY)
    assert left("ended/lab.yaml", 2 * HOUR)
    assert left("ended/lab.yaml", 2 * HOUR, ended=ended(MONTH))
    assert not left("ended/lab.yaml", timedelta(minutes=59)), "its session may not be known yet"


def test_what_was_collected_is_kept_as_long_as_its_owner_was_told() -> None:
    name = "collected/default/ended/lab.yaml"
    assert not left(name, 29 * DAY)
    assert left(name, MONTH), "who could have been told is not known"
    assert left(name, 3 * DAY, ended=ended(3 * DAY))
    assert not left(name, 40 * DAY, ended=ended(50 * DAY))
    assert not left(name, 40 * DAY, ended=ended(None))


async def _is_stored(world: Lablets, name: str) -> bool:
    return await world.artifacts.find(collected_uri(await world.session(name))) is not None


def test_how_long_collected_work_is_kept_is_a_setting_and_then_it_is_removed() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, slot=HOUR)
        others = {name: port + 10 for name, port in PORTS.items()}
        await world.given_running(worker, name="s2", slot=2 * HOUR, allocated_ports=others)
        async with world.attended():
            await world.comes_to(SessionPhase.COMPLETED)
            await world.otto.create(given.settings(artifacts=ArtifactSettings(retention_days=1)))
            await world.comes_to(SessionPhase.COMPLETED, "s2")
            await asyncio.sleep((DAY - HOUR).total_seconds())
            assert await world.otto.download(S2, "lab.yaml")
            await asyncio.sleep((3 * HOUR).total_seconds())
            await Housekeeping(world.store, clock=world.clock).tidy()  # archives them
            await asyncio.sleep((2 * HOUR).total_seconds())
            assert [await _is_stored(world, name) for name in ("s1", "s2")] == [True, False]
            assert list(await world.otto.artifacts(S2)) == []
            with pytest.raises(Gone, match=r"lab.yaml of session s2 expired at .*raise artifacts.retention_days"):
                await world.otto.download(S2, "lab.yaml")
            assert await world.otto.download(S1, "lab.yaml"), "what was promised before stays so"

    run(life, horizon=2 * DAY)
