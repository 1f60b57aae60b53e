"""The plane's contract: watches."""

import asyncio

import pytest

from harness import given
from harness.plane_world import World, either, everywhere, names, on, on_any_wire, over_http, quiet, take, template
from harness.stores import puts
from lcm.control.plane.protocol import Changes, Plane, Ref
from lcm.model.base.errors import Forbidden, Relist
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import Put

METAL = Ref(WorkerTemplate, "metal")
SLOW = 150
"""Commits of a large object that no reader's socket holds."""


def label(n: int) -> dict[str, object]:
    return {"metadata": {"labels": {"n": str(n)}}}


def numbers(batches: list[Changes]) -> list[str]:
    found = [seen.resource for batch in batches for seen in batch.seen]
    return [resource.metadata.labels["n"] for resource in found if resource is not None]


async def written(plane: Plane, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        await plane.patch(METAL, label(n))


@everywhere
async def test_a_watch_tells_of_commits_in_order_each_once(world: World) -> None:
    start = (await world.root.list(WorkerTemplate)).revision
    async with world.root.watch(WorkerTemplate, LabWorker, after=start) as watch:
        made = await world.root.create(template())
        await world.root.create(given.settings())
        worker = await world.root.create(given.worker())
        changed = await world.root.patch(METAL, label(1))
        await world.root.delete(METAL)
        batches = await take(watch, 3)
        assert [[one.resource for one in batch.seen] for batch in batches] == [[made], [worker], [changed]]
        assert [batch.revision for batch in batches] == [
            one.metadata.resource_version for one in (made, worker, changed)
        ]
        assert [one.ref for batch in batches for one in batch.seen] == [METAL, Ref(LabWorker, "w1"), METAL]
        left = await take(watch)
        while names(left[-1]) != [("metal", False)]:
            assert names(left[-1]) == [("metal", True)], "only its mark may come before it is gone"
            left += await take(watch)
        assert await quiet(watch)


@everywhere
async def test_history_and_the_present_join_without_gap_or_duplicate(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    await written(world.root, 20)
    writing = asyncio.create_task(written(world.root, 20, start=20))
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        batches = await take(watch, 40)
        await writing
        assert await quiet(watch)
    assert numbers(batches) == [str(n) for n in range(40)]
    assert [batch.revision for batch in batches] == list(range(start + 1, start + 41))


@everywhere
async def test_a_reader_resumes_where_it_stopped(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    await written(world.root, 10)
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        seen = await take(watch, 4)
    async with world.root.watch(WorkerTemplate, after=seen[-1].revision) as watch:
        seen += await take(watch, 6)
    assert numbers(seen) == [str(n) for n in range(10)]


@on_any_wire
async def test_several_readers_see_the_same(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    watches = [plane.watch(WorkerTemplate, after=start) for plane in (world.root, world.person("anna"))]
    writing = asyncio.create_task(written(world.root, 25))
    first, second = await asyncio.gather(*(take(watch, 25) for watch in watches))
    await writing
    assert first == second
    for watch in watches:
        await watch.aclose()


@either
async def test_what_one_commit_did_stays_together(world: World) -> None:
    start = await world.revision()
    documents = [{"kind": "WorkerTemplate", "metadata": {"name": f"t{n}"}, "spec": SPEC} for n in range(20)]
    await world.root.apply(documents)
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        batches = await take(watch, 1)
    told = [name for name, _ in names(batches[0])]
    assert len(told) > 1
    assert told == sorted(told, key=lambda name: int(name[1:]))


SPEC = {"worker": {"aws": {"ami_name_pattern": "CML-*"}}}


@everywhere
async def test_a_user_sees_what_is_theirs_and_that_it_went(world: World) -> None:
    await world.root.create(given.definition(state="active"))
    start = await world.revision()
    mine, theirs = world.ada.watch(LabletSession, after=start), world.bob.watch(LabletSession, after=start)
    all_ = world.root.watch(LabletSession, after=start)
    await world.ada.create(given.session(name="hers"))
    await world.bob.create(given.session(name="his"))
    await world.root.create(given.session(name="for-her", owner="ada"))
    await world.bob.delete(Ref(LabletSession, "his"))
    await world.ada.delete(Ref(LabletSession, "hers"))
    assert [names(batch) for batch in await take(mine, 3)] == [[("hers", True)], [("for-her", True)], [("hers", False)]]
    assert [names(batch) for batch in await take(theirs, 2)] == [[("his", True)], [("his", False)]]
    assert [names(batch)[0][0] for batch in await take(all_, 5)] == ["hers", "his", "for-her", "his", "hers"]
    for watch in (mine, theirs):
        assert await quiet(watch)
    for watch in (mine, theirs, all_):
        await watch.aclose()


@either
async def test_a_resuming_user_hears_of_what_went_meanwhile_and_of_nobody_elses(world: World) -> None:
    await world.root.create(given.definition(state="active"))
    for plane, name in ((world.ada, "hers"), (world.bob, "his")):
        await plane.create(given.session(name=name))
    start = await world.revision()
    for plane, name in ((world.bob, "his"), (world.ada, "hers")):
        await plane.delete(Ref(LabletSession, name))
    async with world.ada.watch(LabletSession, after=start) as watch:
        assert [names(batch) for batch in await take(watch)] == [[("hers", False)]]
        assert await quiet(watch)


@on_any_wire
async def test_what_a_role_may_not_read_it_may_not_watch(world: World) -> None:
    with pytest.raises(Forbidden):
        await take(world.ada.watch(LabletSession, LabWorker, after=0))


@everywhere
async def test_watching_from_forgotten_history_says_relist(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    await written(world.root, 5)
    await world.store.compact(await world.revision())
    watch = world.root.watch(WorkerTemplate, after=start)
    for _ in range(2):
        with pytest.raises(Relist):
            await take(watch)
    listing = await world.root.list(WorkerTemplate)
    async with world.root.watch(WorkerTemplate, after=listing.revision) as watch:
        await written(world.root, 1)
        assert numbers(await take(watch)) == ["0"]


@on_any_wire
async def test_a_live_watch_does_not_mind_compaction(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        await written(world.root, 1)
        assert numbers(await take(watch)) == ["0"]
        await world.store.compact(await world.revision())
        await written(world.root, 1, start=1)
        assert numbers(await take(watch)) == ["1"]


@on("memory", "sqlite", backlog=10)
async def test_a_slow_reader_is_told_to_relist(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        await written(world.root, 1)
        await take(watch)
        await written(world.root, 40, start=1)
        with pytest.raises(Relist):
            await take(watch, 41)


@on("memory-http", "sqlite-http", backlog=10)
async def test_a_slow_reader_at_the_end_of_a_line_is_told_to_relist(world: World) -> None:
    pairs = {f"{n:02}-{100 * 'k'}": 250 * "é" for n in range(60)}
    large = given.changed(template(annotations=pairs), {"spec": {"labels": pairs, "annotations": pairs}})
    await world.root.create(large)
    start = await world.revision()
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        await written(world.root, 1)
        await take(watch)
        await written(world.root, SLOW, start=1)
        with pytest.raises(Relist):  # after what fits into all that lies between
            await take(watch, SLOW)


@everywhere
async def test_closing_ends_the_watch(world: World) -> None:
    watch = world.root.watch(WorkerTemplate, after=await world.revision())
    assert await quiet(watch)
    await watch.aclose()
    await watch.aclose()
    with pytest.raises(Relist):
        await take(watch)


@on_any_wire
async def test_a_reader_that_waits_is_woken_by_closing(world: World) -> None:
    watch = world.root.watch(WorkerTemplate, after=await world.revision())
    reading = asyncio.create_task(take(watch))
    await asyncio.sleep(0.05)
    await watch.aclose()
    with pytest.raises(Relist):
        await reading


@everywhere
async def test_a_cancelled_read_loses_nothing(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        for n in range(5):
            assert await quiet(watch, 0.02)
            await written(world.root, 1, start=n)
            assert numbers(await take(watch)) == [str(n)]


@everywhere
async def test_a_watch_from_a_revision_that_has_not_happened_says_relist(world: World) -> None:
    await world.root.create(template())
    for plane, kind in ((world.root, WorkerTemplate), (world.ada, LabletSession), (world.root, LabletSession)):
        start = await world.revision()
        async with plane.watch(kind, after=start + 2) as watch:
            for _ in range(2):
                with pytest.raises(Relist):
                    await take(watch)
        async with plane.watch(kind, after=start) as watch:
            assert await quiet(watch, 0.02)


@everywhere
async def test_a_restore_beneath_a_watch_says_relist(world: World) -> None:
    await world.root.create(template())
    watch = world.root.watch(WorkerTemplate, after=await world.revision())
    assert await quiet(watch, 0.05)
    page = await world.store.scan("", limit=500)
    entries = [Put(entry.key, entry.value, entry.labels) for entry in page.entries]
    await world.store.load(puts(*entries), epoch="another")
    with pytest.raises(Relist):
        await take(watch)
    assert (await world.root.list(WorkerTemplate)).items


@over_http
async def test_a_quiet_watch_stays_alive_and_tells_of_nothing(world: World) -> None:
    await world.root.create(template())
    start = await world.revision()
    async with world.root.watch(WorkerTemplate, after=start) as watch:
        await world.root.create(given.settings())
        assert await quiet(watch, 0.2)
        await written(world.root, 1)
        assert numbers(await take(watch)) == ["0"]
