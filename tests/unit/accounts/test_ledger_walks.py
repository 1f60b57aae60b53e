"""Whatever life a worker leads, and wherever its controller is stopped, the ledgers beside it are true."""

import random
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from crash.everywhere import crash_everywhere
from harness.plane_world import NOW, Stage, Standing
from harness.workers import BY, P, intervals, move, pass_time, seats, worker
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import IllegalStep
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker
from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.model.money.licences import SeatState
from lcm.sim.time.loop import VirtualClock
from lcm.store.base import Entry, Page
from lcm.store.memory import MemoryStore

STATES = ["", "pending", "running", "running", "stopping", "stopped", "shutting-down", "terminated"]
PAID = {"running": "running", "stopping": "stopped", "stopped": "stopped"}
SEEDS, STEPS = range(24), 60


def drawn(chance: random.Random, at: LabWorker) -> dict[str, Any]:
    """Draw what is seen next: mostly a step of the table, with whatever facts."""
    targets = [
        step.target for step in WORKER_MACHINE.steps if step.source is at.status.phase and step.by == WORKER_CONTROLLER
    ]
    phase = chance.choice(targets) if targets and chance.random() < 0.7 else at.status.phase
    machine = {"state": chance.choice(STATES), "instance_id": chance.choice(["", "i-1", "i-2"]), "gone_at": NOW}
    facts = {
        "licensed": chance.choice([None, True, False]),
        "license_status": chance.choice(["", "LicenceSeatUnknown"]),
    }
    keep = chance.random() < 0.4
    fields = {} if keep else {"ec2": {**machine, "client_token": chance.choice(["", "t"])}, "cml": facts}
    return {"phase": phase, **fields, "last_error": "seen", "retry_count": chance.randrange(9)}


async def check(stage: Stage, at: LabWorker, paid: dict[str, timedelta]) -> None:
    """Hold the ledgers against the worker and against the time that was counted beside them."""
    going, closed = await intervals(stage.store)
    state = PAID.get(at.status.ec2.state)
    assert [one.state for one in going] == ([state] if state else [])
    ends = sorted([(one.since, one.until or stage.clock.now()) for one in (*going, *closed)])
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(ends)), "two at once"
    for name, span in paid.items():
        counted = [(one.until or stage.clock.now()) - one.since for one in (*going, *closed) if one.state == name]
        assert sum(counted, timedelta(0)) == span
    seat = (await seats(stage.store)).get(at.metadata.uid)
    if at.status.cml.licensed and at.status.phase is not P.PENDING:
        assert seat is not None, "what is licensed has a seat"
    if seat is not None and at.status.phase is P.TERMINATED:
        assert seat.state is SeatState.ORPHANED
    if at.status.phase is P.LICENSING:
        assert seat is not None
    raised = [alert for alert in await stage[BY].alerts() if alert.alert == "LicenceOrphaned"]
    assert len(raised) == (seat is not None and seat.state is SeatState.ORPHANED)


@pytest.mark.parametrize("seed", SEEDS)
async def test_seats_and_intervals_are_consistent_on_any_walk(seed: int) -> None:
    chance, stage = random.Random(seed), Stage()
    at = await stage.put(worker(phase=chance.choice([P.PENDING, P.READY_UNLICENSED, P.READY]), ec2={"state": ""}))
    paid, taken = {"running": timedelta(0), "stopped": timedelta(0)}, 0
    for _ in range(STEPS):
        state = PAID.get(at.status.ec2.state)
        span = timedelta(seconds=chance.randrange(1, 5000))
        if state:
            paid[state] += span
        assert isinstance(stage.clock, Standing)
        pass_time(stage, stage.clock.moment + span)
        try:
            at = await move(stage, at, **drawn(chance, at))
            taken += 1
        except IllegalStep:
            pass
        await check(stage, at, paid)
    assert taken >= 3


LIFE: tuple[tuple[Any, dict[str, Any]], ...] = (
    (P.LICENSING, {}),
    (P.READY, {"cml": {"licensed": True}}),
    (P.STOPPING, {}),
    (P.STOPPED, {"ec2": {"state": "stopped"}}),
    (P.STARTING, {}),
    (P.STARTING, {"ec2": {"state": "running"}}),
    (P.TERMINATED, {"ec2": {"state": "terminated", "gone_at": NOW}}),
)


async def begun() -> Stage:
    stage = Stage(store=MemoryStore(), clock=VirtualClock())
    await stage.put(worker(ec2={"state": ""}))
    return stage


async def live(stage: Stage) -> None:
    """Lead a worker's life from wherever it is, as a controller does that knows nothing but what is stored."""
    while True:
        at = await stage[BY].get(Ref(LabWorker, "w1"))
        assert at is not None
        done = at.status.retry_count
        if done == len(LIFE):
            return
        phase, facts = LIFE[done]
        await move(stage, at, phase, **facts, retry_count=done + 1)


async def is_right(stage: Stage) -> None:
    at = await stage[BY].get(Ref(LabWorker, "w1"))
    assert at is not None
    assert at.status.phase is P.TERMINATED
    going, closed = await intervals(stage.store)
    assert not going
    assert [one.state for one in closed] == ["stopped", "running"]
    assert [seat.state for seat in (await seats(stage.store)).values()] == [SeatState.ORPHANED]
    assert (at.spec.wanted_state, at.metadata.generation) == ("running", 3)
    assert (await stage.types()).count("alert.raised") == 1


def test_a_controller_that_is_stopped_anywhere_leaves_true_ledgers(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("steps with companions", begun, live, is_right, report=tell)
    assert awaits >= 30


class Counting(MemoryStore):
    """Counts what is read."""

    reads = 0

    async def get(self, key: str) -> Entry | None:
        self.reads += 1
        return await super().get(key)

    async def scan(self, prefix: str, **options: Any) -> Page:
        self.reads += 1
        return await super().scan(prefix, **options)


@pytest.mark.parametrize(
    ("facts", "reads"),
    [
        ({"retry_count": 1}, 1),
        ({"ec2": {"public_ip": "192.0.2.1"}, "cml": {"healthy": True}}, 1),
        ({"ec2": {"state": "stopped"}}, 3),
        ({"phase": P.ACTIVE}, 3),
        ({"phase": P.STOPPING}, 5),
    ],
    ids=str,
)
async def test_a_step_reads_only_what_it_may_change(facts: dict[str, Any], reads: int) -> None:
    store = Counting()
    stage = Stage(store=store)
    at = await stage.put(worker(phase=P.READY, cml={"licensed": True}))
    store.reads = 0
    await move(stage, at, **facts)
    assert store.reads == reads
