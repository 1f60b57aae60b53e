"""Labs that run undisturbed: their worker is watched, and whatever happens to one of them is noticed as soon."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import pytest
import structlog

from harness.lab_hosts import client
from harness.session_world import HOUR, PORTS, Lablets, Through, prepared
from lcm.controllers.session.progress import LAB_RUNS
from lcm.model.base.resource import Truth, has_condition
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.labhost import LabHost, LabSummary, NodeFacts
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.time.loop import run

_SOON = timedelta(seconds=20)
"""A watch interval, and a little."""
MakeHost = Callable[[Cml], LabHost]


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


class CountingHost(DirectHost):
    """Counts what it is asked about running labs."""

    asked: Counter[str] = Counter()

    async def look(self, lab_id: str) -> LabSummary | None:
        self.asked["look"] += 1
        return await super().look(lab_id)

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        self.asked["all nodes"] += 1
        return await super().all_nodes()


async def given_labs(world: Lablets, worker: LabWorker, count: int) -> Sequence[LabletSession]:
    shifted = [{port: number + 10 * place for port, number in PORTS.items()} for place in range(count)]
    return [
        await world.given_running(worker, name=f"s{place + 1}", slot=4 * HOUR, allocated_ports=ports)
        for place, ports in enumerate(shifted)
    ]


def test_labs_at_rest_are_asked_for_together_and_seldom_one_by_one() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await given_labs(world, worker, 2)
        async with world.attended(hosts=Through(world, CountingHost)):
            await asyncio.sleep(60)
            CountingHost.asked.clear()
            await asyncio.sleep(3600)
        assert 3600 / 15 - 2 <= CountingHost.asked["all nodes"] <= 3600 / 15 + 2
        assert CountingHost.asked["look"] <= 2 * 3600 / 300 + 2

    run(life)


async def stop_lab(world: Lablets, worker: LabWorker, session: LabletSession) -> None:
    world.machine(worker).labs.stop(world.lab_of(worker, session))


async def delete_lab(world: Lablets, worker: LabWorker, session: LabletSession) -> None:
    await (await world.host(worker)).remove(world.lab_of(worker, session).id)


async def lose_worker(world: Lablets, worker: LabWorker, _: LabletSession) -> None:
    await world.change_worker(worker, phase=WorkerPhase.FAILED)


def is_disturbed(session: LabletSession) -> bool:
    return session.status.phase != "RUNNING" or has_condition(session.status.conditions, LAB_RUNS, Truth.FALSE)


@pytest.mark.parametrize("make", [DirectHost, client], ids=["direct", "client"])
@pytest.mark.parametrize("mishap", [stop_lab, delete_lab, lose_worker])
def test_what_happens_to_a_lab_at_rest_is_noticed_within_a_watch_interval(
    make: MakeHost, mishap: Callable[[Lablets, LabWorker, LabletSession], Awaitable[None]]
) -> None:
    async def life() -> None:
        world, worker = await prepared()
        first, _ = await given_labs(world, worker, 2)
        hosts = Through(world, make)
        async with world.attended(hosts=hosts):
            await asyncio.sleep(20 * 60 + 7)
            assert not is_disturbed(await world.session("s1")), "it rests"
            await mishap(world, worker, first)
            await world.until(is_disturbed, "s1", within=_SOON)
            assert is_disturbed(await world.session("s2")) is (mishap is lose_worker)
        await hosts.close()

    run(life)
