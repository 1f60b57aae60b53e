"""The plane's contract about the archive: what ended long ago is found as before, and in nobody's way."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.booking_world import counter_lab
from harness.plane_world import NOW, World, everywhere, on_any_wire
from lcm.control.objects.archive import find_archived
from lcm.control.objects.records import creation_ops
from lcm.control.plane.protocol import Extend, Plane, Ref, Terminate
from lcm.control.upkeep import housekeeping
from lcm.model.base.errors import Conflict, Gone, IllegalStep, Invalid
from lcm.model.base.event import decode_event
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.selector import parse_selector
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.store.backup import restore_backup, write_backup
from lcm.store.memory import MemoryStore

DAY = timedelta(days=1)
S1 = Ref(LabletSession, "s1")
OLD = Ref(LabletSession, "uid-s1")


def ended(name: str = "s1", *, days_ago: int = 2, owner: str = "ada", **more: Any) -> LabletSession:
    """Return a session that ended some days ago."""
    phase = more.pop("phase", SessionPhase.COMPLETED)
    story = tuple(
        given.changed(one, {"at": NOW - days_ago * DAY}) for one in given.history("PENDING", "SCHEDULED", str(phase))
    )
    plain = {"name": name, "uid": f"uid-{name}", "owner": owner, "phase": phase, "history": story}
    return given.asap(**plain | more)


async def there(world: World, *sessions: LabletSession) -> None:
    await world.store.commit(*creation_ops(counter_lab()))
    for one in sessions:
        await world.store.commit(*creation_ops(one))


async def names(plane: Plane, *, archived: bool = False, **more: Any) -> list[str]:
    page = await plane.list(LabletSession, archived=archived, **more)
    found = list(page.items)
    while page.next is not None:
        page = await plane.list(LabletSession, archived=archived, cursor=page.next, **more)
        found += page.items
    return [one.metadata.name for one in found]


async def archived(world: World, before: timedelta = DAY) -> int:
    return await housekeeping.archive_ended(world.store, NOW, NOW - before)


@everywhere
async def test_what_ended_a_while_ago_moves_and_is_still_found(world: World) -> None:
    live = given.asap(name="s2", uid="uid-s2", owner="ada")
    await there(world, ended(), live, ended("s3", days_ago=0), ended("s4", owner="bob", phase=SessionPhase.FAILED))
    before, revision = await world.ada.get(S1), await world.revision()
    assert await archived(world) == 2
    assert await archived(world) == 0
    async with world.store.events(after=revision) as reader:
        told = [decode_event(raw) for raw in (await anext(reader)).events]
    assert sorted((event.type, event.name, event.owner) for event in told) == [
        ("lablet.session.archived", "s1", "ada"),
        ("lablet.session.archived", "s4", "bob"),
    ]
    seen = (await anext(world.root.watch(LabletSession, after=revision))).seen
    assert sorted((one.ref.name, one.resource) for one in seen) == [("s1", None), ("s4", None)]
    assert await names(world.root) == ["s2", "s3"]
    assert await names(world.root, archived=True) == ["s1", "s4"]
    found = await world.ada.get(S1)
    assert found is not None
    assert before is not None
    assert given.changed(found, {"metadata": {"resource_version": 0}}) == given.changed(
        before, {"metadata": {"resource_version": 0}}
    )
    assert await world.ada.get(OLD) == found
    assert "COMPLETED" in await world.ada.logs(S1)
    assert list(await world.ada.artifacts(OLD)) == []
    assert await world.bob.get(S1) is await world.bob.get(OLD) is None
    assert await names(world.ada, archived=True) == ["s1"]


@on_any_wire
async def test_the_archive_is_listed_in_pages_by_namespace_and_by_what_they_say(world: World) -> None:
    for number in range(5):
        await world.store.commit(
            *creation_ops(ended(f"s{number}", days_ago=9 - number, labels={"row": str(number % 2)}))
        )
    await world.store.commit(*creation_ops(ended("other", namespace="lab")))
    assert await archived(world) == 6
    assert await names(world.root, archived=True, limit=2) == ["s0", "s1", "s2", "s3", "s4", "other"]
    assert await names(world.root, archived=True, namespace="lab") == ["other"]
    odd = parse_selector(LabletSession, "row=1", "status.phase=COMPLETED")
    assert await names(world.root, archived=True, where=odd, limit=1) == ["s1", "s3"]
    assert (await world.root.list(type(counter_lab()), archived=True)).items == []


@on_any_wire
async def test_nothing_changes_what_is_archived_but_it_can_be_deleted(world: World) -> None:
    await there(world, ended())
    await archived(world)
    for doing in (
        world.ada.act(S1, Terminate()),
        world.ada.act(OLD, Extend(minutes=5)),
        world.ada.patch(S1, {"metadata": {"labels": {"a": "b"}}}),
    ):
        with pytest.raises(IllegalStep, match="in the archive"):
            await doing
    with pytest.raises(Gone):
        await world.bob.delete(S1)
    assert await world.ada.delete(S1, dry_run=True) == await world.ada.get(S1)
    with pytest.raises(Conflict):
        await world.ada.delete(S1, at=1)
    lablets = world.service(LABLET_CONTROLLER)
    assert await lablets.find_deletion(OLD.name) is None
    await world.ada.delete(S1)
    assert await world.ada.get(S1) is await world.ada.get(OLD) is None
    assert await lablets.find_deletion(OLD.name)
    assert await lablets.find_deletion("no-such-uid") is None
    left = [entry.key for entry in (await world.store.scan("")).entries]
    assert not [key for key in left if "s1" in key and not key.startswith(("audit/", "tokens/", "deleted-sessions/"))]


@everywhere
async def test_a_name_is_free_once_its_session_is_archived(world: World) -> None:
    await there(world, ended())
    with pytest.raises(Conflict):
        await world.ada.create(given.asap(uid="", give_up_at=NOW + DAY))
    await archived(world)
    made = await world.ada.create(given.asap(uid="", give_up_at=NOW + DAY))
    assert made.metadata.uid != "uid-s1"
    assert await world.ada.get(S1) == made
    old = await world.ada.get(OLD)
    assert old is not None
    assert old.status.phase is SessionPhase.COMPLETED
    await world.ada.delete(OLD)
    assert await world.ada.get(S1) == made
    assert await world.ada.get(OLD) is None


@on_any_wire
async def test_of_those_of_one_name_the_last_is_found(world: World) -> None:
    for number in (2, 1, 3):
        await world.store.commit(*creation_ops(ended(uid=f"uid-{number}", days_ago=number + 1)))
        await archived(world)
    found = await world.ada.get(S1)
    assert found is not None
    assert found.metadata.uid == "uid-1"
    await housekeeping.sweep_archive(world.store, NOW - 3 * DAY - timedelta(hours=1))
    assert await world.ada.get(Ref(LabletSession, "uid-3")) is None
    assert await names(world.root, archived=True) == ["s1", "s1"]
    assert await housekeeping.sweep_archive(world.store, NOW) == 2
    assert await world.ada.get(S1) is None
    assert not (await world.store.scan("archive")).entries


@on_any_wire
async def test_a_file_that_is_applied_again_repeats_nothing_that_is_archived(world: World) -> None:
    await there(world)
    document = {
        "kind": "LabletSession",
        "api_version": "lcm/v1",
        "metadata": {"name": "s1"},
        "spec": {"definition": "basics:1.0.0", "duration_minutes": 30},
    }
    (first,) = await world.ada.apply([document])
    made = await world.ada.get(S1)
    assert made is not None
    over = given.changed(made.status, {"phase": SessionPhase.EXPIRED})
    await world.service(SCHEDULER).step(made, over)
    assert await archived(world, before=-DAY) == 1
    (again,) = await world.ada.apply([document])
    assert (first.outcome, again.outcome) == ("created", "unchanged")
    assert await names(world.ada) == []
    (other,) = await world.ada.apply([document | {"spec": document["spec"] | {"duration_minutes": 60}}])  # type: ignore[operator]
    assert other.outcome == "created"


@on_any_wire
async def test_a_request_that_is_repeated_finds_its_session_in_the_archive(world: World) -> None:
    await there(world)
    asked = given.asap(uid="", give_up_at=NOW + DAY)
    made = await world.ada.create(asked, request="r-1")
    over = given.changed(made.status, {"phase": SessionPhase.EXPIRED})
    await world.service(SCHEDULER).step(made, over)
    await archived(world, before=-DAY)
    assert (await world.ada.create(asked, request="r-1")).metadata.uid == made.metadata.uid
    with pytest.raises(Invalid):
        await world.ada.create(given.asap(name="s2", uid=""), request="r-1")


async def test_a_backup_carries_the_archive(tmp_path: Path) -> None:
    here, there_ = MemoryStore(), MemoryStore()
    await here.commit(*creation_ops(ended()))
    await housekeeping.archive_ended(here, NOW, NOW)
    await write_backup(here, tmp_path / "b", now=NOW)
    await restore_backup(there_, tmp_path / "b", epoch="another")
    found = await find_archived(there_, OLD)
    assert found is not None
    assert found.resource.metadata.name == "s1"
