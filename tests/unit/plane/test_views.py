"""What callers were shown is remembered: for them alone, while the object stays as it is, and not for ever."""

import pytest

from harness import given
from harness.plane_world import ADA, BOB, NOW, OTTO, ROOT, Stage, service
from lcm.control.objects import views
from lcm.control.objects.views import ObjectViews
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Forbidden
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.pool import LabWorkerPool, PoolPause
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import Delete, Entry
from lcm.store.memory import MemoryStore

W1, S1, POOL = Ref(LabWorker, "w1"), Ref(LabletSession, "s1"), Ref(LabWorkerPool, "ccna")


@pytest.fixture(name="stage")
async def make_stage() -> Stage:
    return Stage()


async def test_an_object_that_did_not_change_is_shown_as_before(stage: Stage) -> None:
    await stage.put(given.worker())
    first = await stage[ROOT].get(W1)
    assert first is not None
    assert await stage[ROOT].get(W1) is first


async def test_every_change_is_shown_whoever_made_it() -> None:
    store = MemoryStore()
    here, there = Stage(store), Stage(store)
    await there[ROOT].create(given.worker())
    for track in ("ccna", "ccnp", "ccie"):
        changed = await there[ROOT].patch(W1, {"spec": {"lab_track": track}})
        for _ in range(2):
            assert await here[ROOT].get(W1) == changed


async def test_an_object_that_is_gone_or_made_anew_is_not_shown_as_it_was(stage: Stage) -> None:
    old = await stage.put(given.worker())
    assert await stage[ROOT].get(W1) == old
    await stage.store.commit(Delete(W1.key))
    assert await stage[ROOT].get(W1) is None
    new = await stage.put(given.worker(uid="another"))
    assert await stage[ROOT].get(W1) == new != old


async def test_what_a_service_was_shown_of_a_secret_is_shown_to_nobody_else(stage: Stage) -> None:
    await stage[OTTO].create(given.worker(cml={"admin_password": "plain:swordfish"}))
    controller = service(WORKER_CONTROLLER)
    for _ in range(2):
        shown = {caller.name: await stage[caller].get(W1) for caller in (controller, ROOT, OTTO)}
        secrets = {name: str(worker.spec.cml.admin_password) for name, worker in shown.items() if worker}
        assert secrets["service"].startswith("sealed:")
        assert secrets["root"] == secrets["otto"] != secrets["service"]
        with pytest.raises(Forbidden):
            await stage[ADA].get(W1)


async def test_whose_object_it_is_no_longer_does_not_see_it(stage: Stage) -> None:
    await stage.put(given.session(owner="ada"))
    for _ in range(2):
        assert await stage[ADA].get(S1) is not None
        assert await stage[BOB].get(S1) is None
    await stage.store.commit(Delete(S1.key))
    await stage.put(given.session(owner="bob", uid="another"))
    for _ in range(2):
        assert await stage[ADA].get(S1) is None
        assert await stage[BOB].get(S1) is not None


async def test_an_object_is_found_by_its_uid_as_it_is_now(stage: Stage) -> None:
    made = await stage[ROOT].create(given.worker())
    by_uid = Ref(LabWorker, made.metadata.uid)
    assert await stage[ROOT].get(by_uid) == made
    changed = await stage[ROOT].patch(W1, {"spec": {"lab_track": "ccna"}})
    assert await stage[ROOT].get(by_uid) == changed


def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_MOST_VIEWS", 3)
    kept, shown = ObjectViews(), given.worker()
    refs = [Ref(LabWorker, f"w{number}") for number in range(7)]
    for ref in refs:
        kept.keep(ref, ROOT, Entry(ref.key, b"", {}, 1, 1), shown)
        assert sum(kept.find(one, ROOT) is not None for one in refs) <= 3
    large = Ref(LabWorker, "large")
    kept.keep(large, ROOT, Entry(large.key, bytes(8_193), {}, 1, 1), shown)
    assert kept.find(large, ROOT) is None


async def test_a_viewer_is_not_told_who_paused_a_pool_and_why(stage: Stage) -> None:
    await stage.put(given.pool(pause=PoolPause(since=NOW, by="ada", reason="Bob is ill")))
    viewer = Caller(name="vera", role=Role.VIEWER)
    for caller, told in ((OTTO, ("ada", "Bob is ill")), (viewer, ("somebody", ""))):
        pool, explained = await stage[caller].get(POOL), await stage[caller].explain_pool(POOL)
        assert pool is not None
        for pause in (pool.status.pause, explained.pause):
            assert pause is not None
            assert (pause.by, pause.reason) == told
