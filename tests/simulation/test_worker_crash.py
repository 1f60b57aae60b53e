"""A worker controller that dies or sleeps anywhere leaves, with its successor, the machines and licences wanted."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import structlog

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.fleet_world import QUICKLY, UNLICENSED, W1, Witnessed
from harness.suite import TIMES
from lcm.control.plane.protocol import Drain
from lcm.controllers.worker.view import WorkerRules
from lcm.model.kinds.worker import LabWorker, WorkerPhase

LEASE = timedelta(seconds=15)
A_NAP, A_NIGHT = timedelta(seconds=40), timedelta(minutes=5)
"""Both longer than a lease: it wakes up while another goes on, or after that has finished."""


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Let thousands of runs not write down what each of them did."""
    with structlog.testing.capture_logs():
        yield


def fleet() -> Witnessed:
    # A launch that shows only after a new leader was elected is not found by its tag: then only its token helps.
    return Witnessed(seed=13, quick=True, rules=WorkerRules(poll=QUICKLY), listed_within=timedelta(minutes=1))


async def wished_for() -> Witnessed:
    world = fleet()
    await world.create(cml=UNLICENSED)
    return world


async def unlicensed() -> Witnessed:
    world = fleet()
    await world.given_worker(WorkerPhase.READY_UNLICENSED)
    return world


async def licensed() -> Witnessed:
    world = fleet()
    await world.given_worker(WorkerPhase.READY, licensed=True)
    return world


async def drained_and_licensed() -> Witnessed:
    world = await licensed()
    await world.otto.act(W1, Drain())
    return world


async def drained_with_a_session() -> Witnessed:
    world = fleet()
    worker = await world.given_worker(WorkerPhase.READY_UNLICENSED, cml=UNLICENSED)
    await world.host_session(worker)
    await world.otto.act(W1, Drain())
    world.soon(40, world.end_session)
    return world


async def deleted() -> Witnessed:
    world = await licensed()
    world.watch_records()
    await world.otto.delete(W1)
    return world


async def deleted_during_its_launch() -> Witnessed:
    world = await wished_for()
    world.watch_records()
    world.soon(3, lambda: world.otto.delete(W1))
    return world


@dataclass(frozen=True)
class Path:
    """Where a worker is, where it is to come, and what must be left then."""

    name: str
    world: Callable[[], Awaitable[Witnessed]]
    goal: WorkerPhase | None
    machines: int = 1
    seats: int = 0

    def __str__(self) -> str:
        return self.name

    def reached(self, worker: LabWorker | None) -> bool:
        return worker is None if self.goal is None else worker is not None and worker.status.phase is self.goal

    async def body(self, world: Witnessed) -> None:
        await world.runs_until(self.reached)

    async def check(self, world: Witnessed) -> None:
        assert self.reached(await world.otto.get(W1))
        await world.check_invariants(machines=self.machines, seats=self.seats)


PATHS = [
    Path("launch", wished_for, WorkerPhase.READY_UNLICENSED),
    Path("licence", unlicensed, WorkerPhase.READY, seats=1),
    Path("give the licence back", drained_and_licensed, WorkerPhase.STOPPED),
    Path("drain", drained_with_a_session, WorkerPhase.STOPPED),
    Path("terminate", deleted, None, machines=0),
    Path("delete during launch", deleted_during_its_launch, None, machines=0),
]
SLEEPERS = [(path, asleep) for path in PATHS for asleep in ((A_NAP, A_NIGHT) if TIMES > 1 else (A_NAP,))]
EVERY_PATH = pytest.mark.parametrize("path", PATHS, ids=str)


@EVERY_PATH
def test_a_controller_that_dies_anywhere_is_replaced(path: Path, tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere(
        f"worker: {path.name}", path.world, path.body, path.check, restart_after=LEASE, report=tell
    )
    assert awaits >= 30


@pytest.mark.parametrize(("path", "asleep"), SLEEPERS, ids=str)
def test_a_controller_that_sleeps_anywhere_does_nothing_when_it_wakes_up(
    path: Path, asleep: timedelta, tell: Callable[[str], None]
) -> None:
    name = f"worker: {path.name}, for {asleep}"
    awaits = pause_everywhere(name, path.world, path.body, path.check, pause_for=asleep, report=tell)
    assert awaits >= 30
