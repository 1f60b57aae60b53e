"""Labs that nobody owns any more go, strangers' and those of sessions that live there stay."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from harness.session_world import HOUR, MINUTE, PORTS, S1, SMALL, LateHost, Through, prepared
from lcm.control.plane.protocol import Terminate
from lcm.controllers.session.progress import owner_of, title_of
from lcm.model.kinds.session import SessionPhase
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
            await world.until(lambda one: one.status.progress is not None and one.status.progress.step == "import")
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
