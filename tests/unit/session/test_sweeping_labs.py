"""Labs that nobody owns any more go, strangers' and those of sessions that live there stay."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
import structlog

from harness.session_world import HOUR, MINUTE, PORTS, S1, SMALL, Lablets, LateHost, Through, prepared
from lcm.control.plane.protocol import RemoveLab, Terminate, ref_of
from lcm.controllers.session.held_labs import UNKNOWN_LAB
from lcm.controllers.session.progress import owner_of, title_of
from lcm.model.base.errors import Refused
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.labhost import LabState
from lcm.sim.time.loop import run

_P = SessionPhase


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@pytest.mark.parametrize(("seconds", "swept"), [(50.0, False), (200.0, True)])
def test_a_lab_whose_import_landed_after_its_session_had_ended_is_removed(seconds: float, *, swept: bool) -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker, slot=2 * HOUR)
        LateHost.seconds = seconds
        async with world.attended(hosts=Through(world, LateHost)):
            await world.comes_to(_P.INSTANTIATING, within=MINUTE)
            await asyncio.sleep(2)
            await world.otto.act(S1, Terminate())
            await world.comes_to(_P.TERMINATED, within=10 * MINUTE)
            await asyncio.sleep(200)
            assert len(await world.labs(worker)) == swept
            await asyncio.sleep(HOUR.total_seconds() / 2)
        assert await world.labs(worker) == []

    run(life)


def test_labs_of_strangers_and_of_sessions_that_live_there_are_not_swept() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, ends_at=world.clock.now() + 3 * HOUR)
        elsewhere = await world.given_session(None, _P.PENDING, name="elsewhere", spec={"give_up_at": None})
        cml = world.machine(worker)
        titles = ["my lab", "my lab [draft]", title_of(elsewhere)]
        for title in titles:
            cml.import_lab(SMALL, cml.users.administrator, title)
        world.lab_of(worker, session).title = titles[-1] + " "
        world.lab_of(worker, elsewhere).title = titles[-1]
        async with world.attended():
            await asyncio.sleep(HOUR.total_seconds())
        assert sorted(lab.title for lab in await world.labs(worker)) == [titles[-1] + " ", *titles[:2]]

    run(life)


def test_a_lab_of_an_earlier_try_on_other_ports_is_not_taken_for_this_one() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_session(worker, slot=HOUR)
        cml = world.machine(worker)
        cml.import_lab(SMALL.replace(":500", ":690"), cml.users.administrator, title_of(session))
        async with world.attended():
            await world.comes_to(_P.RUNNING, within=5 * MINUTE)
        assert set(cml.patty_ports()) == set(PORTS.values())

    run(life)


def test_only_a_title_with_a_uid_at_its_end_is_ours() -> None:
    uid = "0b8c7f6e-1234-4abc-8def-0123456789ab"
    assert owner_of(f"default/s1 [{uid}]") == uid
    for title in (f"s1 [{uid}] copy", f"[{uid}]", "s1 [uid]", uid, ""):
        assert owner_of(title) is None


LOST = "0b8c7f6e-1234-4abc-8def-0123456789ab"
WEEK = timedelta(days=7)


async def given_lost_lab(world: Lablets, worker: LabWorker, uid: str = LOST) -> str:
    """Put a lab on a worker that somebody works in, and of whose session the store knows nothing."""
    host = await world.host(worker)
    lab = await host.ensure(f"default/booked-later [{uid}]", SMALL)
    await host.start(lab.lab_id)
    return lab.lab_id


def test_a_lab_of_an_unknown_session_is_collected_and_held_with_an_alert() -> None:
    async def life() -> None:
        world, worker = await prepared()
        lab_id = await given_lost_lab(world, worker)
        async with world.attended():
            await asyncio.sleep(HOUR.total_seconds())
        async with world.attended():  # another leader goes on counting
            await asyncio.sleep((WEEK - 2 * HOUR).total_seconds())
            assert [lab.state for lab in await world.labs(worker)] == [LabState.STARTED]
            assert [(one.alert, one.name) for one in await world.otto.alerts()] == [(UNKNOWN_LAB, "w1")]
            saved = await world.artifacts.get(f"artifact://tmp/collected/default/{LOST}/held-{lab_id}.yaml")
            assert b"hostname PC" in saved
            await asyncio.sleep(2 * HOUR.total_seconds())
        assert await world.labs(worker) == []
        assert await world.otto.alerts() == []
        assert (await world.worker("w1")).metadata.annotations == {}

    run(life)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_held_lab_goes_by_a_persons_word(*, deleted: bool) -> None:
    async def life() -> None:
        world, worker = await prepared()
        lab_id = await given_lost_lab(world, worker)
        ref = ref_of(worker)
        async with world.attended():
            await asyncio.sleep(HOUR.total_seconds())
            if deleted:
                await world.otto.delete(ref)
            with pytest.raises(Refused, match=f"held are {lab_id}"):
                await world.otto.act(ref, RemoveLab(lab_id="another"))
            await world.otto.act(ref, RemoveLab(lab_id=lab_id))
            await asyncio.sleep(HOUR.total_seconds() / 2)
        assert await world.labs(worker) == []
        assert await world.otto.alerts() == []

    run(life)


def test_a_lab_of_a_deleted_session_is_known_to_be_over() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_session(None, _P.COMPLETED)
        await world.put(session)
        await world.otto.delete(S1)
        async with world.attended():
            await asyncio.sleep(MINUTE.total_seconds())
            await given_lost_lab(world, worker, session.metadata.uid)
            await asyncio.sleep(HOUR.total_seconds())
        assert await world.labs(worker) == []

    run(life)


def test_a_running_lab_of_a_session_that_a_restore_put_back_is_held() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_session(None, _P.PENDING, spec={"give_up_at": None})
        await given_lost_lab(world, worker, session.metadata.uid)
        async with world.attended():
            await asyncio.sleep(HOUR.total_seconds())
        assert len(await world.labs(worker)) == 1
        assert [one.alert for one in await world.otto.alerts()] == [UNKNOWN_LAB]

    run(life)
