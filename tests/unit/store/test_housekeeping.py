"""The store is kept small: history of an hour, requests of a day."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from crash.everywhere import crash_everywhere
from harness import given
from harness.plane_world import ADA, NOW, ROOT, Stage, Standing, active, service
from harness.workers import beside
from lcm.control.delivery import sinks
from lcm.control.objects import records
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import encode_checked, key_of
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep import housekeeping
from lcm.control.upkeep.housekeeping import INTERVAL, MOST_ENDED, Housekeeping
from lcm.model.base.errors import Gone, Relist
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import Put


@pytest.mark.parametrize("history", [timedelta(minutes=1), timedelta(hours=12)])
def test_history_is_kept_as_long_as_is_set_and_no_longer(history: timedelta) -> None:
    async def main() -> None:
        stage = Stage(clock=VirtualClock())
        every = min(INTERVAL, history)
        keeping = asyncio.create_task(Housekeeping(stage.store, clock=stage.clock, every=every, history=history).run())
        await stage.put(active())
        start = await stage.revision()
        await stage[ADA].create(given.session())
        await asyncio.sleep((history - timedelta(seconds=1)).total_seconds())
        assert (await anext(stage[ROOT].watch(LabletSession, after=start))).seen
        await asyncio.sleep((2 * every).total_seconds())
        with pytest.raises(Relist):
            await anext(stage[ROOT].watch(LabletSession, after=start))
        keeping.cancel()

    run(main, start=NOW, horizon=timedelta(days=2))


def test_history_of_more_than_an_hour_is_forgotten() -> None:
    async def main() -> None:
        stage = Stage(clock=VirtualClock())
        keeping = asyncio.create_task(Housekeeping(stage.store, clock=stage.clock).run())
        await stage.put(active())
        start = await stage.revision()
        await stage[ADA].create(given.session())
        await stage[ADA].delete(Ref(LabletSession, "s1"))
        await asyncio.sleep(3_590)
        assert (await anext(stage[ROOT].watch(LabletSession, after=start))).seen
        await asyncio.sleep(1_200)
        with pytest.raises(Relist):
            await anext(stage[ROOT].watch(LabletSession, after=start))
        middle = await stage.revision()
        await stage[ADA].create(given.session(name="s2"))
        await asyncio.sleep(1_200)
        assert (await anext(stage[ROOT].watch(LabletSession, after=middle))).seen
        keeping.cancel()

    run(main, start=NOW)


async def test_a_request_is_forgotten_after_a_day() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    await stage.put(active())
    keeping = Housekeeping(stage.store, clock=clock)
    for number in range(150):  # more than one page
        await stage[ADA].create(given.session(name=f"s{number}"), request=f"r-{number}")
    clock.moment += timedelta(hours=1)
    await stage[ADA].create(given.session(name="later"), request="later")
    clock.moment += timedelta(hours=23)
    await keeping.tidy()
    assert len([key for key in await stage.keys() if key.startswith("requests/")]) == 151
    clock.moment += timedelta(seconds=1)
    await keeping.tidy()
    assert len([key for key in await stage.keys() if key.startswith("requests/")]) == 1
    clock.moment += timedelta(hours=1)
    await keeping.tidy()
    assert not [key for key in await stage.keys() if key.startswith("requests/")]


def test_a_store_that_is_away_is_tried_again() -> None:
    async def main() -> None:
        stage = Stage(clock=VirtualClock())
        keeping = asyncio.create_task(Housekeeping(stage.store, clock=stage.clock).run())
        await stage.store.close()
        await asyncio.sleep(3_600)
        assert not keeping.done()
        keeping.cancel()

    run(main)


async def test_what_was_swept_can_be_asked_for_anew() -> None:
    stage, clock = Stage(), Standing()
    await stage.put(active())
    await stage[ADA].create(given.session(), request="r-1")
    await stage[ADA].delete(Ref(LabletSession, "s1"))
    with pytest.raises(Gone):
        await stage[ADA].create(given.session(), request="r-1")
    clock.moment += timedelta(days=2)
    await Housekeeping(stage.store, clock=clock).tidy()
    assert (await stage[ADA].create(given.session(), request="r-1")).metadata.uid == "uid-2"


async def test_a_deletion_is_forgotten_as_late_as_an_archived_session() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    await stage.put(active())
    made = await stage[ADA].create(given.session())
    await stage[ADA].delete(Ref(LabletSession, "s1"))
    lablets = stage[service(LABLET_CONTROLLER)]
    for days, remembered in ((364, True), (2, False)):
        clock.moment += timedelta(days=days)
        await Housekeeping(stage.store, clock=clock).tidy()
        assert bool(await lablets.find_deletion(made.metadata.uid)) is remembered


async def test_a_deletion_that_was_left_half_way_is_finished() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    await stage.put(given.template(deletion_timestamp=NOW))
    keeping = Housekeeping(stage.store, clock=clock)
    await keeping.tidy()
    assert await stage[ROOT].get(Ref(WorkerTemplate, "metal"))
    clock.moment += timedelta(minutes=5)
    await keeping.tidy()
    assert await stage[ROOT].get(Ref(WorkerTemplate, "metal")) is None


async def aged(stage: Stage, clock: Standing, hours: int) -> None:
    """Let processes come and go that live for ten minutes each, with something written in every one's time."""
    for number in range(hours * 6):
        await Housekeeping(stage.store, clock=clock).tidy()
        await stage.store.commit(Put("x/y", str(number).encode()))
        clock.moment += timedelta(minutes=10)


async def test_processes_that_never_live_for_an_hour_forget_as_well() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    await aged(stage, clock, 2)
    with pytest.raises(Relist):
        await anext(stage.store.watch("x/", after=1))


async def test_what_a_sink_was_not_told_yet_is_kept() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    await stage[ROOT].create(given.sink())
    made = await sinks.oldest_needed_revision(stage.store, NOW)
    assert made is not None
    await aged(stage, clock, 2)
    assert (await anext(stage.store.watch("x/", after=made))).changes


async def ended_world() -> Stage:
    stage = Stage(clock=VirtualClock())
    for number in range(20):  # more than one commit
        story = given.history("PENDING", "EXPIRED")
        await stage.put(
            given.session(name=f"s{number}", uid=f"uid-{number}", phase=SessionPhase.EXPIRED, history=story)
        )
    await stage[service(SCHEDULER)].raise_alert(
        Ref(LabletSession, "s1"),
        AlertFinding(alert="SessionAtRisk", severity=Severity.CRITICAL, reason="a", message="b"),
    )
    return stage


async def move(stage: Stage) -> None:
    await asyncio.gather(*(housekeeping.archive_ended(stage.store, NOW, given.moment("12:00")) for _ in range(2)))


async def test_a_session_that_ends_after_it_was_looked_at_is_archived_all_the_same() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    cache = Cache(stage[ROOT], LabletSession)
    keeping = Housekeeping(stage.store, clock=clock, linger=timedelta(hours=1), cache=cache)
    await stage.put(given.session(uid="uid-1", history=given.history("PENDING")))
    async with beside(cache.run()):
        await cache.ready()
        assert await keeping.archive() == 0
        ended = given.session(uid="uid-1", phase=SessionPhase.EXPIRED, history=given.history("PENDING", "EXPIRED"))
        revision = await stage.store.commit(Put(key_of(ended), encode_checked(ended)))
        await cache.wait_for_revision(revision)
        assert await keeping.archive() == 0
        clock.moment = given.moment("12:00")
        assert await keeping.archive() == 1
        assert await keeping.archive() == 0


async def all_moved(stage: Stage) -> None:
    assert not (await stage[ROOT].list(LabletSession)).items
    found = await stage[ROOT].list(LabletSession, archived=True)
    assert sorted(one.metadata.uid for one in found.items) == sorted(f"uid-{number}" for number in range(20))
    assert list(await stage[ROOT].alerts()) == []
    assert Counter(await stage.types()) == {"alert.raised": 1, "alert.cleared": 1, "lablet.session.archived": 20}


def test_sessions_are_archived_once_whoever_dies_or_does_it_as_well(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("archive", ended_world, move, all_moved, twice=False, report=tell) > 10


async def test_only_those_that_ended_last_stay_among_the_live_ones() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    for number in range(MOST_ENDED + 20):
        ended = PhaseChange(phase=SessionPhase.COMPLETED, at=NOW + timedelta(seconds=number), by="test", reason="")
        await stage.put(
            given.session(name=f"s{number}", uid=f"uid-{number}", phase=SessionPhase.COMPLETED, history=(ended,))
        )
    await stage.put(given.session(name="live", uid="uid-live", phase=SessionPhase.RUNNING))
    keeping, first = Housekeeping(stage.store, clock=clock), Ref(LabletSession, "s0")
    assert await stage[ROOT].get(first) is not None
    assert first.key in records._cached
    assert (await keeping.archive(), await keeping.archive()) == (20, 0)
    assert first.key not in records._cached
    left = {one.metadata.name for one in (await stage[ROOT].list(LabletSession, limit=1000)).items}
    assert left == {"live", *(f"s{number}" for number in range(20, MOST_ENDED + 20))}
    assert await stage[ROOT].get(first) is not None
