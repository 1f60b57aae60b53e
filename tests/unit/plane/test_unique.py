"""What only one object of a namespace may have."""

import asyncio
from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, ROOT, Stage, active, service
from lcm.control.plane.protocol import ref_of
from lcm.model.base.errors import Conflict, Invalid, Refused
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER
from lcm.model.kinds.pool import LabWorkerPool, PoolPhase
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, SessionPhase


def pool(name: str, **overrides: object) -> LabWorkerPool:
    return given.pool(**{"name": name, "uid": f"uid-{name}"} | overrides)


def session(name: str, **overrides: object) -> LabletSession:
    return given.session(**{"name": name, "reservation_id": "R/1 ü"} | overrides)


def as_document(resource: Resource) -> dict[str, Any]:
    """Write an object as somebody would send it."""
    spec = msgspec.to_builtins(resource.spec)
    return {"api_version": "lcm/v1", "kind": resource.kind, "metadata": {"name": resource.metadata.name}, "spec": spec}


async def staged() -> Stage:
    stage = Stage()
    await stage.put(given.template())
    await stage.put(active())
    return stage


async def marks(stage: Stage) -> list[str]:
    return [key for key in await stage.keys() if key.startswith("unique/")]


@pytest.mark.parametrize("track", ["ccna", "", "a track / with ü"])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_track_has_one_pool(track: str, *, dry_run: bool) -> None:
    stage = await staged()
    await stage[ROOT].create(pool("first", lab_track=track))
    with pytest.raises(Invalid, match="pool first serves the track already; change that pool, or use another track"):
        await stage[ROOT].create(pool("second", lab_track=track), dry_run=dry_run)
    with pytest.raises(Refused, match="pool first serves the track already"):
        await stage[ROOT].apply([as_document(pool("second", lab_track=track))], dry_run=dry_run)
    await stage[ROOT].create(pool("third", lab_track="other"))
    assert len(await marks(stage)) == 2


async def test_one_apply_makes_no_two_pools_of_a_track() -> None:
    stage = await staged()
    pools = [as_document(pool(name)) for name in ("first", "second")]
    with pytest.raises(Refused, match="pool first serves the track already"):
        await stage[ROOT].apply(pools)
    assert not await marks(stage)
    await stage[ROOT].apply(pools[:1])
    (again,) = await stage[ROOT].apply(pools[:1])
    assert again.outcome == "unchanged"


async def test_of_two_who_make_a_pool_of_a_track_at_once_one_is_told_why_not() -> None:
    stage = await staged()
    deeds = [stage[ROOT].create(pool(name)) for name in ("first", "second")]
    answers = await asyncio.gather(*deeds, return_exceptions=True)
    (error,) = [one for one in answers if isinstance(one, BaseException)]
    assert isinstance(error, Invalid)
    assert "serves the track already" in str(error)


async def test_a_pool_that_is_there_exists_already() -> None:
    stage = await staged()
    await stage[ROOT].create(pool("first"))
    with pytest.raises(Conflict):
        await stage[ROOT].create(pool("first"))


async def test_a_track_is_free_again_once_its_pool_is_gone() -> None:
    stage = await staged()
    made = await stage.put(pool("first", phase=PoolPhase.TERMINATING, finalizers=("lcm/teardown",)))
    await stage[ROOT].delete(ref_of(made))
    with pytest.raises(Refused):
        await stage[ROOT].create(pool("second"))
    going = await stage.read(made)
    assert going is not None
    over = given.changed(going.status, {"phase": PoolPhase.TERMINATED})
    await stage[service(POOL_CONTROLLER)].step(going, over)
    assert not await marks(stage)
    await stage[ROOT].create(pool("second"))


async def test_a_reservation_id_is_of_one_live_session() -> None:
    stage = await staged()
    await stage[ROOT].create(session("s1"))
    for same in (stage[ADA].create(session("s2")), stage[ROOT].apply([as_document(session("s3"))])):
        with pytest.raises(Invalid, match="another session has this reservation id; use another"):
            await same
    await stage[ROOT].create(session("s4", reservation_id="R/2"))
    await stage[ROOT].create(session("s5", reservation_id=None))
    assert len(await marks(stage)) == 2


@pytest.mark.parametrize("deleted", [True, False])
async def test_a_reservation_id_is_free_again_once_its_session_has_ended(*, deleted: bool) -> None:
    stage = await staged()
    there = {"phase": SessionPhase.STOPPING, "outcome": SessionPhase.COMPLETED, "finalizers": ("lcm/teardown",)}
    made = await stage.put(session("s1", **there))
    if deleted:
        made = await stage[ROOT].delete(ref_of(made))
    assert await marks(stage)
    over = given.changed(made.status, {"phase": SessionPhase.COMPLETED})
    await stage[service(LABLET_CONTROLLER)].step(made, over)
    assert not await marks(stage)
    assert (await stage.read(made) is None) == deleted
    await stage[ROOT].create(session("s2"))
