"""Watches for callers who see everything and for those who see only what is theirs."""

import asyncio

import pytest

from harness import given
from harness.plane_world import ADA, ANNA, BOB, OTTO, ROOT, Stage, active, service
from lcm.control.plane.protocol import Changes, PlaneWatch, Ref, Terminate
from lcm.model.access.identity import Caller
from lcm.model.base.errors import Forbidden, Relist
from lcm.model.base.machine import SCHEDULER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker


async def booked(*owners: str) -> Stage:
    """Return a stage with a session for each of these, by their place."""
    stage = Stage()
    await stage.put(active())
    for number, owner in enumerate(owners):
        await stage[OTTO].create(given.session(name=f"s{number}", owner=owner))
    return stage


def told(changes: Changes) -> list[str]:
    return [f"{'' if seen.resource else 'no '}{seen.ref.name}" for seen in changes.seen]


async def following(watch: PlaneWatch, count: int) -> list[list[str]]:
    async with asyncio.timeout(60):
        return [told(await anext(watch)) for _ in range(count)]


async def nothing_more(watch: PlaneWatch) -> bool:
    try:
        async with asyncio.timeout(0.02):
            await anext(watch)
    except TimeoutError:
        return True
    return False


async def test_what_is_watched_is_read_as_its_kind_at_its_revision() -> None:
    stage = await booked()
    start = await stage.revision()
    made = await stage[ADA].create(given.session())
    async with stage[ROOT].watch(LabletSession, after=start) as watch:
        changes = await anext(watch)
    assert changes.revision == made.metadata.resource_version
    assert [(seen.ref, seen.resource) for seen in changes.seen] == [(Ref(LabletSession, "s1"), made)]


async def test_several_kinds_come_in_the_order_of_their_commits() -> None:
    stage = await booked()
    start = await stage.revision()
    async with stage[ROOT].watch(LabletSession, LabWorker, after=start) as watch:
        await stage[ROOT].create(given.worker())
        await stage[ROOT].create(given.template())
        await stage[ADA].create(given.session())
        await stage[ROOT].patch(Ref(LabWorker, "w1"), {"metadata": {"labels": {"a": "b"}}})
        await stage[ADA].delete(Ref(LabletSession, "s1"))
        assert await following(watch, 4) == [["w1"], ["s1"], ["w1"], ["no s1"]]
        assert await nothing_more(watch)


async def test_no_kind_means_all_that_the_caller_may_read() -> None:
    stage = await booked()
    start = await stage.revision()
    async with stage[ANNA].watch(after=start) as watch:
        await stage[ROOT].create(given.settings())
        await stage[ROOT].create(given.worker())
        assert await following(watch, 1) == [["w1"]]


@pytest.mark.parametrize("kind", [LabletSession, Reservation])
async def test_a_learner_is_told_of_their_own_only(kind: type[LabletSession] | type[Reservation]) -> None:
    stage = await booked()
    start = await stage.revision()
    make = given.session if kind is LabletSession else given.reservation
    async with stage[ADA].watch(kind, LabletDefinition, after=start) as watch:
        await stage[BOB].create(make(name="his"))
        await stage[ADA].create(make(name="mine"))
        await stage[BOB].delete(Ref(kind, "his"))
        await stage[ADA].delete(Ref(kind, "mine"))
        await stage[ANNA].patch(Ref(LabletDefinition, "basics:1.0.0"), {"spec": {"description": "new"}})
        assert await following(watch, 3) == [["mine"], ["no mine"], ["basics:1.0.0"]]
        assert await nothing_more(watch)


async def test_not_even_the_end_of_a_foreign_object_is_told() -> None:
    stage = await booked("bob", "ada", "bob")
    start = await stage.revision()
    await stage[OTTO].delete(Ref(LabletSession, "s0"))
    await stage[OTTO].delete(Ref(LabletSession, "s1"))
    async with stage[ADA].watch(LabletSession, after=start) as watch:
        await stage[OTTO].delete(Ref(LabletSession, "s2"))
        assert await following(watch, 1) == [["no s1"]]
        assert await nothing_more(watch)


async def test_a_name_that_passes_to_somebody_else_is_gone_for_the_first() -> None:
    stage = await booked("ada")
    start = await stage.revision()
    await stage[ADA].delete(Ref(LabletSession, "s0"))
    await stage[BOB].create(given.session(name="s0"))
    await stage[BOB].act(Ref(LabletSession, "s0"), Terminate())
    async with (
        stage[ADA].watch(LabletSession, after=start) as mine,
        stage[BOB].watch(LabletSession, after=start) as his,
    ):
        assert await following(mine, 1) == [["no s0"]]
        assert await nothing_more(mine)
        assert await following(his, 2) == [["s0"], ["s0"]]


async def test_what_is_ours_is_known_at_the_revision_the_watch_begins_at() -> None:
    stage = await booked("ada", "bob")
    start = await stage.revision()
    for number in range(2, 600):  # more than one page
        await stage[OTTO].create(given.session(name=f"s{number}", owner="ada" if number % 2 else "bob"))
    then = await stage.revision()
    for number in (0, 1, 2, 3, 598, 599):
        await stage[OTTO].delete(Ref(LabletSession, f"s{number}"))
    async with stage[ADA].watch(LabletSession, after=then) as watch:
        assert await following(watch, 3) == [["no s0"], ["no s3"], ["no s599"]]
    async with stage[ADA].watch(LabletSession, after=start) as watch:
        assert [line for line in await following(watch, 299 + 3) if line[0].startswith("no")] == [
            ["no s0"],
            ["no s3"],
            ["no s599"],
        ]


@pytest.mark.parametrize("caller", [ADA, ROOT])
async def test_a_history_that_is_gone_says_so(caller: Caller) -> None:
    stage = await booked("ada", "bob")
    await stage.store.compact(await stage.revision())
    with pytest.raises(Relist):
        await anext(stage[caller].watch(LabletSession, after=1))


async def test_a_cancelled_read_loses_nothing_for_a_learner_either() -> None:
    stage = await booked("ada")
    async with stage[ADA].watch(LabletSession, after=await stage.revision()) as watch:
        for _ in range(3):
            assert await nothing_more(watch)
        await stage[ADA].create(given.session(name="s9"))
        assert await following(watch, 1) == [["s9"]]


@pytest.mark.parametrize("caller", [ADA, ANNA, OTTO, ROOT, service(SCHEDULER)])
async def test_who_may_not_read_a_kind_may_not_watch_it(caller: Caller) -> None:
    stage = Stage()
    for known in KINDS.values():
        readable = True
        try:
            await stage[caller].list(known.struct)
        except Forbidden:
            readable = False
        watch = stage[caller].watch(known.struct, after=1)
        if not readable:
            with pytest.raises(Forbidden):
                await anext(watch)
        await watch.aclose()


async def test_a_closed_watch_says_relist() -> None:
    stage = await booked()
    watch = stage[ROOT].watch(LabletSession, after=await stage.revision())
    await watch.aclose()
    await watch.aclose()
    with pytest.raises(Relist):
        await anext(watch)
