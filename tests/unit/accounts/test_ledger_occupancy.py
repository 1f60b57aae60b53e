"""A worker is not taken away from under a session, whoever is faster; and it is wanted as its steps left it."""

import asyncio
from typing import Any

import pytest

from harness import given
from harness.plane_world import NOW, OTTO, ROOT, Stage, active, service
from harness.workers import P, move, pass_time, worker
from lcm.control.booking.guards import worker_guard_key
from lcm.control.objects.steps import TEARDOWN
from lcm.control.plane.protocol import Ref, Terminate
from lcm.model.base.errors import Conflict, IllegalStep
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.store.memory import MemoryStore

S = SessionPhase
ON = {"worker_id": "uid-w1", "allocated_ports": {"PC_serial": 2000}, "claim": given.claim(), "cml_lab_id": "lab"}
SOON, FAR = given.moment("08:30"), given.moment("09:30")
"""Within, and beyond, the time that a machine takes to come back."""
TAKEN_AWAY = [
    *((source, target) for source in (P.READY_UNLICENSED, P.READY) for target in (P.STOPPING, P.STARTING, P.FAILED)),
    (P.READY_UNLICENSED, P.LICENSING),
    (P.LICENSING, P.UNLICENSING),
    (P.LICENSING, P.FAILED),
]


def session(phase: SessionPhase, **more: object) -> LabletSession:
    return given.session(**{"phase": phase, "timeslot_start": SOON, **ON, **more})


async def placed(stage: Stage, name: str = "s1") -> LabletSession:
    """Put a waiting session onto the worker, as the scheduler does."""
    waiting = await stage.read(given.session(name=name, uid=f"uid-{name}"))
    assert waiting is not None
    fields = {"phase": S.SCHEDULED, **ON, "cml_lab_id": None}
    return await stage[service(SCHEDULER)].step(waiting, given.changed(waiting.status, fields))


@pytest.mark.parametrize(("source", "target"), TAKEN_AWAY)
@pytest.mark.parametrize("phase", [S.SCHEDULED, *sorted(ON_WORKER_PHASES)])
async def test_no_step_takes_a_worker_away_from_under_a_session(
    source: WorkerPhase, target: WorkerPhase, phase: SessionPhase
) -> None:
    stage = Stage()
    at = await stage.put(worker(phase=source, last_error="unhealthy"))
    await stage.put(session(phase))
    with pytest.raises(IllegalStep, match=rf"{source} -> {target}: lablet-sessions/default/s1 \({phase}\)"):
        await move(stage, at, target)
    assert await stage.read(at) == at


@pytest.mark.parametrize(("source", "target"), TAKEN_AWAY)
async def test_sessions_that_have_ended_are_elsewhere_or_far_away_hold_nothing_up(
    source: WorkerPhase, target: WorkerPhase
) -> None:
    stage = Stage()
    at = await stage.put(worker(phase=source, last_error="unhealthy"))
    await stage.put(session(S.SCHEDULED, name="s4", uid="uid-s4", timeslot_start=FAR))
    await stage.put(session(S.COMPLETED))
    await stage.put(session(S.RUNNING, name="s2", uid="uid-s2", worker_id="uid-w2"))
    await stage.put(session(S.SCHEDULED, name="s3", uid="uid-s3", worker_id=None))
    assert (await move(stage, at, target)).status.phase is target


@pytest.mark.parametrize("target", [P.UNLICENSING, P.STOPPING])
async def test_a_drain_waits_for_sessions_until_its_deadline(target: WorkerPhase) -> None:
    stage = Stage()
    licensed = target is P.UNLICENSING
    at = await stage.put(worker(phase=P.DRAINING, cml={"licensed": licensed}, drain_deadline_at=given.moment("09:00")))
    await stage.put(session(S.RUNNING))
    with pytest.raises(IllegalStep, match="must end first"):
        await move(stage, at, target)
    pass_time(stage, given.moment("09:00"))
    assert (await move(stage, at, target)).status.phase is target


@pytest.mark.parametrize("source", [P.READY, P.ACTIVE, P.DRAINING])
@pytest.mark.parametrize("target", [P.STOPPED, P.TERMINATED])
async def test_what_somebody_did_by_hand_is_a_fact(source: WorkerPhase, target: WorkerPhase) -> None:
    stage = Stage()
    at = await stage.put(worker(phase=source, drain_deadline_at=given.moment("09:00")))
    await stage.put(session(S.RUNNING))
    assert (await move(stage, at, target, ec2={"gone_at": NOW})).status.phase is target


class Indexed(MemoryStore):
    """Refuses to read all sessions."""

    async def scan(self, prefix: str, **more: Any) -> Any:
        assert not prefix.startswith("lablet-sessions"), "it is known which sessions are on a worker"
        return await super().scan(prefix, **more)


async def on_worker(stage: Stage, uid: str = "uid-w1") -> list[str]:
    return [key for key in await stage.keys() if key.startswith(f"on-worker/{uid}/")]


async def test_who_is_on_a_worker_is_known_without_reading_all_sessions() -> None:
    stage = Stage(store=Indexed())
    at = await stage.put(worker(phase=P.READY))
    await stage.put(active())
    await stage.put(given.session(timeslot_start=SOON))
    assert await on_worker(stage) == []
    await placed(stage)
    assert await on_worker(stage) == ["on-worker/uid-w1/default/s1"]
    with pytest.raises(IllegalStep, match="s1"):
        await move(stage, at, P.STOPPING)
    found = await stage[service(WORKER_CONTROLLER)].detect_idle(Ref(LabWorker, "w1"))
    assert "a session on it begins" in found.reason


async def test_a_session_that_ends_moves_or_is_removed_is_on_no_list() -> None:
    stage = Stage()
    await stage.put(active())
    for name in ("s1", "s2"):
        await stage.put(session(S.SCHEDULED, name=name, uid=f"uid-{name}", finalizers=(TEARDOWN,)))
    assert len(await on_worker(stage)) == 2
    await stage[OTTO].act(Ref(LabletSession, "s1"), Terminate())
    await stage[OTTO].delete(Ref(LabletSession, "s2"))
    assert await on_worker(stage) == []
    moving = await stage.put(session(S.RUNNING, name="s3", uid="uid-s3"))
    status = given.changed(moving.status, {"worker_id": "uid-w2"})
    await stage[service(LABLET_CONTROLLER)].step(moving, status)
    assert (await on_worker(stage), len(await on_worker(stage, "uid-w2"))) == ([], 1)


async def test_a_few_sessions_are_named_and_the_rest_counted() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.READY))
    for number in range(5):
        await stage.put(session(S.RUNNING, name=f"s{number}", uid=f"uid-{number}"))
    with pytest.raises(IllegalStep, match=r"s2 .* and 2 more must end first"):
        await move(stage, at, P.STOPPING)


class Interrupted(MemoryStore):
    """Does something else just before a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.first: Any = None

    async def commit(self, *ops: Any, **more: Any) -> int:
        first, self.first = self.first, None
        if first is not None:
            await first()
        return await super().commit(*ops, **more)


async def test_a_session_that_comes_between_look_and_commit_is_noticed() -> None:
    store = Interrupted()
    here, there = Stage(store=store), Stage(store=store)
    at = await here.put(worker(phase=P.READY))
    await here.put(active())
    await here.put(given.session(timeslot_start=SOON))
    store.first = lambda: placed(there)
    with pytest.raises(IllegalStep, match="s1"):
        await move(here, at, P.STOPPING)
    assert await here.read(at) == at


async def test_a_session_that_leaves_in_between_lets_the_worker_go() -> None:
    store = Interrupted()
    here, there = Stage(store=store), Stage(store=store)
    at = await here.put(worker(phase=P.READY))
    await here.put(session(S.STOPPING, outcome=S.COMPLETED))
    with pytest.raises(IllegalStep):
        await move(here, at, P.STOPPING)
    seen = await here.read(given.session())
    assert seen is not None
    done = given.changed(seen.status, {"phase": S.COMPLETED})
    await there[service(LABLET_CONTROLLER)].step(seen, done)
    await move(here, at, P.STOPPING)


async def test_a_step_that_lost_its_own_revision_is_told_so_and_not_tried_again() -> None:
    store = Interrupted()
    stage = Stage(store=store)
    at = await stage.put(worker(phase=P.READY))
    store.first = lambda: stage[OTTO].patch(Ref(LabWorker, "w1"), {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await move(stage, at, P.STOPPING)


async def test_of_a_stop_and_a_placement_at_once_the_guard_is_touched_by_both() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.READY))
    await stage.put(active())
    await stage.put(given.session(timeslot_start=SOON))
    outcomes = await asyncio.gather(move(stage, at, P.STOPPING), placed(stage), return_exceptions=True)
    assert not isinstance(outcomes[1], Exception)
    guard = await stage.store.get(worker_guard_key("uid-w1"))
    assert guard is not None
    assert guard.value == b"uid-s1"


async def test_the_guard_goes_with_its_worker() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.READY))
    at = await move(stage, at, P.STOPPING)
    assert worker_guard_key("uid-w1") in await stage.keys()
    await move(stage, at, P.TERMINATED, ec2={"gone_at": NOW})
    assert worker_guard_key("uid-w1") not in await stage.keys()


@pytest.mark.parametrize(
    ("source", "target", "wanted", "becomes"),
    [
        (P.READY, P.STOPPING, "running", "stopped"),
        (P.READY_UNLICENSED, P.STOPPING, "running", "stopped"),
        (P.DRAINING, P.STOPPING, "running", "stopped"),
        (P.UNLICENSING, P.STOPPING, "running", "running"),
        (P.ACTIVE, P.STOPPED, "running", "stopped"),
        (P.PENDING, P.STOPPED, "running", "stopped"),
        (P.STOPPED, P.STARTING, "stopped", "running"),
        (P.STOPPED, P.STARTING, "running", "running"),
        (P.READY, P.STARTING, "running", "running"),
    ],
)
async def test_a_worker_is_wanted_as_its_step_left_it(
    source: WorkerPhase, target: WorkerPhase, wanted: str, becomes: str
) -> None:
    stage = Stage()
    at = await stage.put(worker(phase=source, wanted_state=wanted))
    after = await move(stage, at, target)
    assert after.spec.wanted_state == becomes
    assert after.metadata.generation == at.metadata.generation + (wanted != becomes)
    assert await stage.read(at) == after


@pytest.mark.parametrize(
    ("source", "target"), [(P.DRAINING, P.STOPPING), (P.READY, P.STOPPED), (P.STOPPED, P.STARTING)]
)
async def test_what_is_to_be_deleted_is_wanted_as_it_was(source: WorkerPhase, target: WorkerPhase) -> None:
    stage = Stage()
    wanted = "stopped" if source is P.STOPPED else "running"
    at = await stage.put(worker(phase=source, wanted_state=wanted, deletion_timestamp=NOW))
    assert (await move(stage, at, target)).spec == at.spec


async def test_lesson_31_a_step_that_is_refused_leaves_nothing_beside_it() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.READY, cml={"licensed": True}))
    await stage.put(session(S.RUNNING))
    keys, revision = await stage.keys(), await stage.revision()
    for target in (P.STOPPING, P.LICENSING, P.TERMINATED):
        with pytest.raises(IllegalStep):
            await move(stage, at, target, ec2={"state": "stopping"})
    assert (await stage.keys(), await stage.revision()) == (keys, revision)


async def test_lesson_7_a_machine_is_paid_for_until_it_was_seen_gone() -> None:
    stage = Stage()
    at = await move(stage, await stage.put(worker(phase=P.FAILED)), P.TERMINATING_EC2)
    pass_time(stage, given.moment("09:00"))
    at = await move(stage, at, last_error="EC2 refused to terminate it")
    with pytest.raises(IllegalStep, match="gone_at"):
        await move(stage, at, P.TERMINATED)
    (one,) = await stage[ROOT].costs(since=NOW, until=given.moment("10:00"))
    assert one.until is None
