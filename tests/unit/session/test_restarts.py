"""Labs that are found stopped while their time goes on, and do not come up again so easily."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from harness.session_world import HOUR, PORTS, Lablets, prepared
from lcm.controllers.session.lifecycle import LAB_STOPPED
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.session import SessionPhase
from lcm.sim.time.loop import run

_P = SessionPhase


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def test_labs_that_never_come_up_again_keep_nobody_else_from_starting() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define()
        worker = await world.serving(licensed=True)
        for place in range(4):
            ports = {port: number + 10 * place for port, number in PORTS.items()}
            await world.given_running(worker, name=f"old{place}", slot=4 * HOUR, allocated_ports=ports)
        cml = world.machine(worker)
        cml.labs.never_boot("PC", times=4)
        for lab in list(cml.labs):
            cml.labs.stop(lab)
        async with world.attended():
            await asyncio.sleep(300)
            ports = {port: number + 200 for port, number in PORTS.items()}
            await world.given_session(worker, name="new", slot=2 * HOUR, allocated_ports=ports)
            await world.comes_to(_P.RUNNING, "new", within=HOUR / 2)

    run(life)


def test_a_lab_that_cannot_be_started_again_is_left_for_a_while_and_that_is_said() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=4 * HOUR)
        labs = world.machine(worker).labs
        labs.stop(world.lab_of(worker, session))
        (await world.host(worker)).fail_next("start", NoRoom("no licence left"), times=1000)
        async with world.attended():
            await asyncio.sleep(300)
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.severity) == (LAB_STOPPED, "warning")
            assert "no licence left" in alert.message
            await asyncio.sleep(45 * 60)
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.severity) == (LAB_STOPPED, "critical")
            assert "not started again" in alert.message

    run(life)


def test_reboots_of_a_machine_are_forgiven() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=8 * HOUR)
        lab, labs = world.lab_of(worker, session), world.machine(worker).labs
        async with world.attended():
            for _ in range(5):
                labs.stop(lab)
                await asyncio.sleep(50 * 60)
                assert [str(one.state) for one in await world.labs(worker)] == ["STARTED"]
            assert await world.otto.alerts() == [], "an hour later it is no news"

    run(life)
