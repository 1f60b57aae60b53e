"""The store is kept small: history of an hour, requests of a day."""

import asyncio
from datetime import timedelta

import pytest

import given
from backstage import ADA, NOW, ROOT, Stage, Standing, active
from lcm.control.housekeeping import Housekeeping
from lcm.control.plane import Ref
from lcm.control.requests import sweep
from lcm.model.errors import Gone, Relist
from lcm.model.session import LabletSession
from lcm.sim.loop import VirtualClock, run


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
    assert await sweep(stage.store, clock.moment) == 1


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
    stage = Stage()
    await stage.put(active())
    await stage[ADA].create(given.session(), request="r-1")
    await stage[ADA].delete(Ref(LabletSession, "s1"))
    with pytest.raises(Gone):
        await stage[ADA].create(given.session(), request="r-1")
    await sweep(stage.store, NOW + timedelta(days=2))
    assert (await stage[ADA].create(given.session(), request="r-1")).metadata.uid == "uid-2"
