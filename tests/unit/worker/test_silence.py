"""CMLs that accept a question and never answer it: how long a look at one takes, and that others do not wait for it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from harness import given
from harness.fleet_world import Fleet
from lcm.controllers.runtime.lifecycle import HOST_SECONDS, Unknown
from lcm.controllers.worker.look import WorkerLook
from lcm.controllers.worker.view import WorkerRules
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cml.direct import DirectHost
from lcm.sim.time.loop import run

CLIENT_SECONDS = 60
"""As long as a client of CML waits for an answer."""


class SilentHosts(SimHosts):
    """Some of them never answer; notes who is asked for."""

    silent: Sequence[str] = ()
    asked = 0

    async def of(self, worker: LabWorker) -> DirectHost:
        self.asked += 1
        if worker.metadata.name in self.silent:
            await asyncio.sleep(CLIENT_SECONDS)
        return await super().of(worker)


def serving(*, token: str | None, licensed: bool | None) -> LabWorker:
    """Make a worker that is READY_UNLICENSED."""
    made = given.worker(phase=WorkerPhase.READY_UNLICENSED, ec2={"instance_id": "i-1", "state": "running"})
    made = given.changed(made, {"spec": {"cml": {"license_token": token}}})
    return given.changed(made, {"status": {"cml": {"licensed": licensed}}})


def test_ninety_silent_hypervisors_do_not_keep_another_worker_waiting() -> None:
    async def main() -> None:
        fleet = Fleet(quick=True)
        fleet.hosts = hosts = SilentHosts(fleet.cloud)
        hosts.silent = [f"silent-{number}" for number in range(90)]
        for name in hosts.silent:
            await fleet.create(name)
        async with fleet.controlled():
            for name in hosts.silent:
                await fleet.reaches(WorkerPhase.STARTING, name=name)
            await asyncio.sleep(120)
            await fleet.create("w1")
            await fleet.reaches(WorkerPhase.READY, within=timedelta(minutes=3))

    run(main, horizon=timedelta(days=1))


def test_a_look_at_a_silent_hypervisor_ends_soon_and_says_nothing() -> None:
    async def main() -> None:
        fleet = Fleet()
        hosts = SilentHosts(fleet.cloud)
        hosts.silent = ["w1"]
        began = fleet.clock.now()
        worker = serving(token="env:TOKEN", licensed=False)
        view = await WorkerLook(fleet.cloud, hosts, fleet.clock).look(worker, (), WorkerRules())
        assert fleet.clock.now() - began == timedelta(seconds=HOST_SECONDS)
        assert view.licence == Unknown("no answer within 10 s")

    run(main)


@pytest.mark.parametrize(
    ("token", "licensed", "rules", "asked"),
    [
        (None, False, WorkerRules(), 0),
        (None, False, WorkerRules(monitored=False), 1),
        (None, None, WorkerRules(), 1),
        (None, True, WorkerRules(), 1),
        ("env:TOKEN", False, WorkerRules(), 1),
    ],
)
def test_without_a_token_the_licence_is_asked_for_only_when_it_is_not_known(
    token: str | None, licensed: Any, rules: WorkerRules, asked: int
) -> None:
    async def main() -> None:
        fleet = Fleet()
        hosts = SilentHosts(fleet.cloud)
        worker = serving(token=token, licensed=licensed)
        await WorkerLook(fleet.cloud, hosts, fleet.clock).look(worker, (), rules)
        assert hosts.asked == asked

    run(main)
