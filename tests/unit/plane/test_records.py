"""Objects as the store keeps them: found again, readable by the next version, on every engine alike."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, ROOT, Stage, active
from harness.stores import opened
from lcm.control.objects.apply import KIND_ORDER
from lcm.control.objects.records import encode_checked, find_record, ref_of_key
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.errors import Conflict, Invalid, LcmError
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import Put
from lcm.store.memory import MemoryStore

W1 = Ref(LabWorker, "w1")


@pytest.fixture(params=["memory", "sqlite"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    if request.param == "memory":
        yield Stage(MemoryStore())
        return
    async with opened(tmp_path / "store.db") as store:
        yield Stage(store)


async def test_every_kind_is_kept_and_found_again(stage: Stage) -> None:
    every = sorted(given.every(), key=lambda one: KIND_ORDER.index(one.kind))
    for resource in every:
        made = await stage[ROOT].create(active() if isinstance(resource, LabletDefinition) else resource)
        assert await stage[ROOT].get(ref_of(resource)) == made
        assert await stage[ROOT].get(Ref(type(resource), made.metadata.uid)) == made
        assert list((await stage[ROOT].list(type(resource))).items) == [made]
    assert stage.core.epoch == stage.store.epoch


async def test_fields_of_a_newer_version_survive_a_change(stage: Stage) -> None:
    await stage[ROOT].create(given.worker())
    entry = await stage.store.get(W1.key)
    assert entry is not None
    head, _, body = entry.value.partition(b"\n")
    document = msgspec.json.decode(body)
    document["spec"]["colour"] = "blue"
    await stage.store.commit(Put(W1.key, head + b"\n" + msgspec.json.encode(document)))
    changed = await stage[ROOT].patch(W1, {"spec": {"lab_track": "ccna"}})
    assert changed.spec.lab_track == "ccna"
    entry = await stage.store.get(W1.key)
    assert entry is not None
    assert b'"colour":"blue"' in entry.value
    assert b'"resource_version":0' in entry.value


async def test_writers_without_a_precondition_all_get_through(stage: Stage) -> None:
    await stage[ROOT].create(given.worker())
    patches = [{"metadata": {"labels": {f"l{number}": "x"}}} for number in range(20)]
    await asyncio.gather(*(stage[ROOT].patch(W1, patch) for patch in patches))
    worker = await stage[ROOT].get(W1)
    assert worker is not None
    assert len(worker.metadata.labels) == 20


async def test_of_writers_with_a_precondition_one_gets_through(stage: Stage) -> None:
    made = await stage[ROOT].create(given.worker())
    at = made.metadata.resource_version
    tries = (stage[ROOT].patch(W1, {"spec": {"lab_track": f"t{number}"}}, at=at) for number in range(8))
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, LabWorker) for one in outcomes) == 1
    assert sum(isinstance(one, Conflict) for one in outcomes) == 7


async def test_a_user_and_a_delete_never_both_win(stage: Stage) -> None:
    for number in range(6):
        lab = await stage.put(active(name=f"lab{number}:1.0.0", uid=f"lab{number}"))
        booking = given.session(name=f"s{number}", definition=f"lab{number}")
        await asyncio.gather(stage[ADA].create(booking), stage[ROOT].delete(ref_of(lab)), return_exceptions=True)
        assert (await stage.read(booking) is None) == (await stage.read(lab) is None)


async def test_a_dry_run_of_a_change_is_held_to_the_limits_too(stage: Stage) -> None:
    await stage[ROOT].create(given.worker())
    with pytest.raises(Invalid):
        await stage[ROOT].replace(given.worker(labels={"a": 300 * "x"}), dry_run=True)
    tried = await stage[ROOT].replace(given.worker(lab_track="ccna"), dry_run=True)
    assert (tried.spec.lab_track, tried.metadata.generation) == ("ccna", 2)
    with pytest.raises(Conflict):
        await stage[ROOT].create(given.worker(), dry_run=True)


async def test_a_uid_whose_name_has_passed_on_finds_nothing(stage: Stage) -> None:
    await stage.store.commit(Put("uids/ghost", b"workers/default/w1"), Put("uids/stray", b"settings/default/system"))
    assert await find_record(stage.store, Ref(LabWorker, "ghost")) is None
    await stage[ROOT].create(given.worker())
    assert await find_record(stage.store, Ref(LabWorker, "ghost")) is None
    assert await find_record(stage.store, Ref(LabWorker, "stray")) is None


@pytest.mark.parametrize("resource", given.every(), ids=lambda one: one.kind)
def test_a_key_says_which_object_it_holds(resource: Resource) -> None:
    key = KINDS[resource.kind].key("default", resource.metadata.name)
    assert ref_of_key(key) == ref_of(resource)
    assert ref_of_key("uids/x") is None


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(LcmError):
        encode_checked(given.telemetry(cpu_utilization=500.0))
    with pytest.raises(Invalid) as raised:
        encode_checked(given.worker(created_at=given.MONDAY.replace(tzinfo=None)))
    assert [fault.path for fault in raised.value.faults] == ["metadata.created_at"]
