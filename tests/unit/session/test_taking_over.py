"""A prebuilt lab on a real CML: whoever takes it over has it until the end, and nothing of it is left afterwards."""

from datetime import timedelta
from typing import Any

import pytest

from harness.booking_world import from_monday
from harness.session_world import MINUTE, SMALL, Lablets
from harness.workers import beside
from lcm.control.plane.protocol import Ref, Terminate
from lcm.controllers.session.progress import lab_uid, title_of
from lcm.controllers.session.sweeping import find_leftover_labs
from lcm.model.base.capacity import Claim
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.session import PREBUILT_OWNER, LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.placement.claims import need_of

_P = SessionPhase
PREBUILT = {"owner": PREBUILT_OWNER, "prebuilt": True, "lab_track": "ccna", "duration_minutes": 480}


async def warm(world: Lablets, **fields: Any) -> tuple[LabWorker, LabletSession]:
    """Have a worker with a prebuilt lab that runs."""
    definition = await world.define(SMALL, prebuilt=PrebuiltPolicy(count=1), **fields)
    worker, need, now = await world.serving(licensed=True), need_of(None, definition), world.clock.now()
    assert need is not None
    worker = await world.put_worker(worker, lab_track="ccna")
    claim = Claim(start=now, end=now + timedelta(hours=9), need=need)
    return worker, await world.given_running(
        worker,
        name="prebuilt-1",
        spec=PREBUILT,
        claim=claim,
        ends_at=now + timedelta(hours=8),
        prebuilt_in=world.core.store.epoch,
    )


@from_monday
async def test_after_a_restore_no_lab_of_before_is_given_to_anybody() -> None:
    world = Lablets(quick=True)
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        _, lab = await warm(world)
        await world.put(lab, prebuilt_in="the epoch before")
        asks = await world.wants("s1")
        assert asks.status.phase is _P.PENDING
        assert (await world.session("prebuilt-1")).status.taken_by is None


@from_monday
async def test_the_lab_is_taken_as_it_is_collected_at_the_end_and_nothing_of_it_stays() -> None:
    world = Lablets(quick=True)
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        worker, lab = await warm(world)
        async with world.attended():
            taker = await world.wants("s1", minutes=30)
            assert taker.status.phase is _P.RUNNING
            (there,) = await world.labs(worker)
            assert (there.lab_id, there.title) == (taker.status.cml_lab_id, title_of(lab))
            assert title_of(taker) == there.title
            left = await world.session("prebuilt-1")
            assert (left.status.phase, left.status.cost_usd is None) == (_P.COMPLETED, True)
            ended = await world.comes_to(_P.COMPLETED)
            assert [one.name for one in ended.status.artifacts] == ["lab.yaml"]
            assert ended.status.observation_count
            assert not await world.labs(worker)
            assert not await world.temporary()


@from_monday
async def test_a_lab_that_was_taken_over_is_found_by_its_title_and_is_no_leftover() -> None:
    world = Lablets(quick=True)
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        worker, lab = await warm(world)
        taker = await world.wants("s1")
        assert lab_uid(taker) == lab.metadata.uid
        labs = await world.labs(worker)
        sessions = [taker, await world.session("prebuilt-1")]
        assert not find_leftover_labs(labs, sessions, worker.metadata.uid)
        gone = await world.put(taker, phase=_P.COMPLETED)
        assert find_leftover_labs(labs, [gone], worker.metadata.uid) == labs


@from_monday
async def test_a_taken_lab_that_is_lost_is_built_anew_under_the_takers_own_name() -> None:
    world = Lablets(quick=True)
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        worker, lab = await warm(world)
        taker = await world.wants("s1")
        async with world.attended():
            world.machine(worker).labs.lose_lab(world.lab_of(worker, taker))
            again = await world.comes_to(_P.PENDING)
            assert again.status.taken_from is None
            assert lab.metadata.uid not in title_of(again)


@from_monday
async def test_one_that_nobody_wanted_is_removed_without_being_collected() -> None:
    world = Lablets(quick=True)
    worker, _ = await warm(world)
    async with world.attended():
        await world.otto.act(Ref(LabletSession, "prebuilt-1"), Terminate(reason="its room is needed"))
        ended = await world.comes_to(_P.TERMINATED, "prebuilt-1", 10 * MINUTE)
        assert not ended.status.artifacts
        assert not ended.status.observation_count
        assert not await world.labs(worker)


@from_monday
async def test_a_lab_that_was_found_stopped_is_given_to_nobody() -> None:
    world = Lablets(quick=True)
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        worker, lab = await warm(world)
        host = await world.host(worker)
        async with world.attended():
            await host.stop(lab.status.cml_lab_id or "")
            await world.until(lambda one: any(c.type == "LabRuns" for c in one.status.conditions), "prebuilt-1")
            assert (await world.wants("s1")).status.phase is _P.PENDING


@pytest.mark.parametrize("path", ["", "/api/lablet-sessions/prebuilt-1/consoles/PC_serial"])
@from_monday
async def test_the_addresses_are_those_of_the_session_that_has_the_lab_now(path: str) -> None:
    world = Lablets(quick=True)
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        _, lab = await warm(world)
        await world.put(lab, access_urls={"PC_serial": path or "telnet://10.0.0.1:6001"})
        taker = await world.wants("s1")
        wanted = "/api/lablet-sessions/s1/consoles/PC_serial" if path else "telnet://10.0.0.1:6001"
        assert taker.status.access_urls["PC_serial"] == wanted
