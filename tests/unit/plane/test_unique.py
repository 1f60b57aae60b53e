"""What only one object of a namespace may have."""

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, ROOT, Stage, active, service
from lcm.control.objects.records import key_of
from lcm.control.plane.protocol import ref_of
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.base.errors import Conflict, Invalid
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.store.base import ABSENT, Put


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


async def test_a_track_may_have_several_pools_made_one_by_one_or_together() -> None:
    stage = await staged()
    await stage[ROOT].create(pool("first"))
    await stage[ROOT].create(pool("second"))
    await stage[ROOT].apply([as_document(pool(name)) for name in ("third", "fourth")])
    assert not await marks(stage)


async def test_a_store_of_an_earlier_version_loses_the_marks_of_its_tracks_when_it_is_opened() -> None:
    stage = await staged()
    await stage.put(pool("first"))
    mark, own = f"unique/tracks/default/{sha256(b'ccna').hexdigest()}", key_of(pool("first"))
    await stage.store.commit(Put(mark, own.encode(), at=ABSENT))
    await stage[ROOT].create(session("s1"))
    await stage[ROOT].create(pool("second"))
    await Housekeeping(stage.store, clock=stage.clock).tidy()
    assert [one.partition("/")[2].partition("/")[0] for one in await marks(stage)] == ["reservation-ids"]


async def test_a_pool_that_is_there_exists_already() -> None:
    stage = await staged()
    await stage[ROOT].create(pool("first"))
    with pytest.raises(Conflict):
        await stage[ROOT].create(pool("first"))


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
