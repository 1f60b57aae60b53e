"""Objects that are asked to go: what lives ends first, what is used stays, and no race slips through."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from crash.everywhere import crash_everywhere, pause_everywhere
from harness import given
from harness.plane_world import ADA, ANNA, BOB, NOW, OTTO, ROOT, Stage, Standing, active, service
from harness.suite import for_all
from lcm.control.objects.deletion import finish_deletions
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.errors import Conflict, Forbidden, Gone, Invalid, LcmError, Refused
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, WORKER_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, PoolPhase, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import ReservationPhase
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerPhase
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.sim.time.loop import VirtualClock, run

METAL = Ref(WorkerTemplate, "metal")
BASICS = Ref(LabletDefinition, "basics:1.0.0")
TEARDOWN = ("lcm/teardown",)
_S, _R = SessionPhase, ReservationPhase


async def deleted(resource: Resource) -> tuple[Stage, Any, Any]:
    """Put an object, delete it, and give what was answered and what is left."""
    stage = Stage()
    await stage.put(given.changed(resource, {"metadata": {"finalizers": TEARDOWN}}))
    answer = await stage[ROOT].delete(ref_of(resource))
    return stage, answer, await stage.read(resource)


@pytest.mark.parametrize("phase", sorted(HOSTING_PHASES))
async def test_a_worker_that_may_host_is_drained(phase: WorkerPhase) -> None:
    _, answer, left = await deleted(given.worker(phase=phase, drain_deadline_minutes=30))
    assert left == answer
    assert (left.metadata.deletion_timestamp, left.status.phase) == (NOW, WorkerPhase.DRAINING)
    assert left.status.drain_deadline_at == NOW + timedelta(minutes=30)


@pytest.mark.parametrize("phase", [one for one in WorkerPhase if one not in {*HOSTING_PHASES, WorkerPhase.TERMINATED}])
async def test_any_other_worker_is_marked(phase: WorkerPhase) -> None:
    _, _, left = await deleted(given.worker(phase=phase))
    assert (left.metadata.deletion_timestamp, left.status.phase) == (NOW, phase)


async def test_a_marked_worker_that_came_up_meanwhile_is_drained_when_asked_again() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY_UNLICENSED, deletion_timestamp=NOW))
    again = await stage[service(WORKER_CONTROLLER)].delete(Ref(LabWorker, "w1"))
    assert again.status.phase is WorkerPhase.DRAINING


async def test_what_has_ended_is_removed_at_once_with_all_that_hangs_on_it() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.TERMINATED, finalizers=()))
    await stage[service(WORKER_CONTROLLER)].report(Ref(LabWorker, "w1"), given.telemetry())
    assert {"telemetry/default/w1", "history/default/w1/2026110208"} <= set(await stage.keys())
    await stage[ROOT].delete(Ref(LabWorker, "w1"))
    assert await stage.keys() == []


@pytest.mark.parametrize("phase", [one for one in PoolPhase if one is not PoolPhase.TERMINATED])
async def test_a_pool_is_drained(phase: PoolPhase) -> None:
    _, _, left = await deleted(given.pool(phase=phase))
    ending = (PoolPhase.DRAINING, PoolPhase.TERMINATING)
    assert left.status.phase is (phase if phase in ending else PoolPhase.DRAINING)
    assert left.metadata.deletion_timestamp == NOW


@pytest.mark.parametrize("phase", [_S.PENDING, _S.SCHEDULED])
async def test_a_session_that_is_nowhere_yet_goes_at_once(phase: SessionPhase) -> None:
    stage, answer, left = await deleted(given.session(phase=phase))
    assert left is None
    assert (answer.status.phase, answer.status.outcome) == (_S.TERMINATED, _S.TERMINATED)
    assert answer.metadata.resource_version == await stage.revision()
    assert await stage.types() == ["lablet.session.status.changed", "lablet.session.deleted"]


@pytest.mark.parametrize(("phase", "follows"), [(_S.INSTANTIATING, _S.STOPPING), (_S.RUNNING, _S.COLLECTING)])
async def test_a_session_on_a_worker_ends_first(phase: SessionPhase, follows: SessionPhase) -> None:
    _, _, left = await deleted(given.session(phase=phase))
    assert (left.status.phase, left.status.outcome) == (follows, _S.TERMINATED)
    assert left.metadata.deletion_timestamp == NOW


@pytest.mark.parametrize("phase", [_S.COLLECTING, _S.STOPPING])
async def test_a_session_that_ends_already_is_marked(phase: SessionPhase) -> None:
    _, _, left = await deleted(given.session(phase=phase, outcome=_S.COMPLETED))
    assert (left.status.phase, left.status.outcome) == (phase, _S.COMPLETED)
    assert left.metadata.deletion_timestamp == NOW


@pytest.mark.parametrize("phase", [_R.PROMISED, _R.ACTIVE])
async def test_a_reservation_that_holds_something_is_cancelled(phase: ReservationPhase) -> None:
    _, _, left = await deleted(given.reservation(phase=phase))
    assert (left.status.phase, left.metadata.deletion_timestamp) == (_R.CANCELLING, NOW)


async def test_a_reservation_that_holds_nothing_goes_at_once() -> None:
    _, _, left = await deleted(given.reservation(phase=_R.PENDING))
    assert left is None
    _, _, left = await deleted(given.reservation(phase=_R.CANCELLING))
    assert left.status.phase is _R.CANCELLING


async def test_the_step_into_the_end_removes_what_is_to_go() -> None:
    stage = Stage()
    await stage.put(
        given.session(phase=_S.STOPPING, outcome=_S.TERMINATED, deletion_timestamp=NOW, finalizers=TEARDOWN)
    )
    session = await stage.read(given.session())
    assert session is not None
    status = msgspec.structs.replace(session.status, phase=_S.TERMINATED)
    last = await stage[service(LABLET_CONTROLLER)].step(session, status, reason="removed")
    assert last.status.phase is _S.TERMINATED
    assert await stage.keys() == ["deleted-sessions/uid-s1"]
    assert await stage.types() == ["lablet.session.status.changed", "lablet.session.deleted"]


async def test_what_ends_without_being_asked_to_go_stays() -> None:
    stage = Stage()
    pool = await stage.put(given.pool(phase=PoolPhase.TERMINATING, finalizers=TEARDOWN))
    ended = await stage[service(POOL_CONTROLLER)].step(
        pool, msgspec.structs.replace(pool.status, phase=PoolPhase.TERMINATED)
    )
    assert ended.metadata.finalizers == ()
    assert await stage.read(pool) == ended
    await stage[ROOT].delete(Ref(LabWorkerPool, "ccna"))
    assert await stage.read(pool) is None


@pytest.mark.parametrize(
    "resource", [given.worker(phase=WorkerPhase.READY), given.pool(), given.session(phase=_S.RUNNING)]
)
async def test_a_repeated_delete_changes_nothing(resource: Resource) -> None:
    stage, answer, _ = await deleted(resource)
    revision = await stage.revision()
    assert await stage[ROOT].delete(ref_of(resource)) == answer
    assert await stage.revision() == revision


async def test_what_is_gone_cannot_be_deleted() -> None:
    stage = Stage()
    await stage[ROOT].create(given.settings())
    await stage[ROOT].delete(ref_of(given.settings()))
    with pytest.raises(Gone):
        await stage[ROOT].delete(ref_of(given.settings()))


async def test_who_may_delete_what() -> None:
    stage = Stage()
    await stage.put(given.worker())
    await stage.put(given.session(owner="ada"))
    for caller in (ADA, ANNA):
        with pytest.raises(Forbidden):
            await stage[caller].delete(Ref(LabWorker, "w1"))
    with pytest.raises(Gone):
        await stage[BOB].delete(Ref(LabletSession, "s1"))
    await stage[ADA].delete(Ref(LabletSession, "s1"))
    await stage[OTTO].delete(Ref(LabWorker, "w1"))


async def test_a_template_in_use_stays_and_says_by_whom() -> None:
    stage = Stage()
    await stage[ROOT].create(given.template())
    await stage[ROOT].create(given.pool())
    revision = await stage.revision()
    for dry_run in (True, False):
        with pytest.raises(Refused, match="used by LabWorkerPool ccna"):
            await stage[ROOT].delete(METAL, dry_run=dry_run)
    assert await stage.revision() == revision


async def test_a_definition_in_use_stays_and_says_by_whom() -> None:
    stage = Stage()
    await stage.put(active())
    for number in range(7):
        await stage[ADA].create(given.session(name=f"s{number}"))
    with pytest.raises(Refused, match=r"LabletSession s0, .* and 2 more"):
        await stage[ROOT].delete(BASICS)
    for number in range(7):
        await stage[ADA].delete(Ref(LabletSession, f"s{number}"))
    await stage.put(given.reservation(phase=_R.PROMISED))
    with pytest.raises(Refused, match="Reservation r1"):
        await stage[ROOT].delete(BASICS)


async def test_whoever_deletes_hears_names_of_what_they_see_and_a_number_of_the_rest() -> None:
    stage = Stage()
    await stage.put(active())
    for who, name in ((ADA, "of-ada"), (BOB, "of-bob")):
        await stage[who].create(given.session(name=name))
    with pytest.raises(Refused) as raised:
        await stage[ANNA].delete(BASICS)
    assert "2 objects of other people" in str(raised.value)
    assert "of-" not in str(raised.value).replace("of other", "")
    await stage[ANNA].create(given.session(name="of-anna"))
    with pytest.raises(Refused, match="used by LabletSession of-anna and 2 more;"):
        await stage[ANNA].delete(BASICS)
    with pytest.raises(Refused, match="of-ada, LabletSession of-anna, LabletSession of-bob;"):
        await stage[OTTO].delete(BASICS)


async def left_marked(*others: Resource) -> tuple[Stage, Standing]:
    """Return a stage on which whoever deleted a definition and a template was stopped after they had marked them."""
    clock = Standing()
    stage = Stage(clock=clock)
    for one in (active(deletion_timestamp=NOW), given.template(deletion_timestamp=NOW), *others):
        await stage.put(one)
    return stage, clock


async def test_a_booking_of_what_is_being_deleted_may_be_tried_again() -> None:
    stage, _ = await left_marked()
    for attempt in (
        stage[ADA].create(given.session()),
        stage[ADA].apply([document(given.session())]),
        stage[ROOT].create(given.pool()),
        stage[ROOT].replace(active()),
        stage[ROOT].apply([document(active())]),
    ):
        with pytest.raises(Conflict, match="is being deleted; try again"):
            await attempt


async def test_a_booking_finishes_a_deletion_that_was_left_half_way() -> None:
    stage, clock = await left_marked()
    clock.moment += timedelta(minutes=2)
    with pytest.raises(Invalid, match="there is no LabletDefinition"):
        await stage[ADA].create(given.session())
    with pytest.raises(Invalid, match="there is no WorkerTemplate"):
        await stage[ROOT].apply([document(given.pool())])
    assert await stage.keys() == []
    assert await stage.types() == ["definition.deleted", "template.deleted"]


async def test_a_booking_of_what_is_used_lifts_a_mark_that_was_left_behind() -> None:
    stage, clock = await left_marked(given.session(name="s0"))
    clock.moment += timedelta(minutes=2)
    assert (await stage[ADA].create(given.session())).spec.definition == "basics:1.0.0"
    left = await stage.read(active())
    assert left is not None
    assert left.metadata.deletion_timestamp is None


async def test_who_writes_an_object_anew_lifts_a_mark_that_was_left_behind() -> None:
    stage, clock = await left_marked()
    clock.moment += timedelta(minutes=2)
    assert [one.outcome for one in await stage[ROOT].apply([document(active())])] == ["configured"]
    assert [one.outcome for one in await stage[ROOT].apply([document(active())])] == ["unchanged"]
    assert (await stage[ROOT].replace(given.template())).metadata.deletion_timestamp is None
    await stage[ADA].create(given.session())


async def test_housekeeping_finishes_what_nobody_meets() -> None:
    stage, clock = await left_marked(given.pool())
    assert await finish_deletions(stage.store, clock=clock) == 0
    clock.moment += timedelta(minutes=2)
    assert await finish_deletions(stage.store, clock=clock) == 2
    assert await finish_deletions(stage.store, clock=clock) == 0
    template = await stage.read(given.template())
    assert template is not None
    assert template.metadata.deletion_timestamp is None
    assert await stage.read(active()) is None


def document(resource: Resource) -> dict[str, Any]:
    """Write an object as somebody would send it."""
    spec = msgspec.to_builtins(resource.spec)
    return {"kind": resource.kind, "metadata": {"name": resource.metadata.name}, "spec": spec}


async def test_users_that_have_ended_or_live_elsewhere_keep_nothing() -> None:
    stage = Stage()
    await stage.put(active())
    await stage.put(given.template())
    await stage.put(given.session(phase=_S.COMPLETED))
    await stage.put(given.session(name="s2", uid="u2", namespace="elsewhere"))
    await stage.put(given.session(name="s3", uid="u3", definition="basics:2.0.0"))
    await stage.put(given.reservation(phase=_R.CANCELLED))
    await stage.put(given.pool(phase=PoolPhase.TERMINATED))
    assert (await stage[ANNA].delete(BASICS)).metadata.deletion_timestamp == NOW
    await stage[ROOT].delete(METAL)
    assert await stage.types() == ["definition.deleted", "template.deleted"]
    assert not [key for key in await stage.keys() if key.startswith(("lablet-definitions", "worker-templates"))]


async def test_a_dry_run_of_a_delete_leaves_everything() -> None:
    stage = Stage()
    await stage[ROOT].create(given.template())
    await stage.put(given.worker(phase=WorkerPhase.READY))
    revision = await stage.revision()
    assert (await stage[ROOT].delete(METAL, dry_run=True)).metadata.deletion_timestamp == NOW
    assert (await stage[ROOT].delete(Ref(LabWorker, "w1"), dry_run=True)).status.phase is WorkerPhase.DRAINING
    assert await stage.revision() == revision


async def test_a_delete_may_demand_a_revision() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.template())
    with pytest.raises(Conflict):
        await stage[ROOT].delete(METAL, at=made.metadata.resource_version - 1)
    await stage[ROOT].delete(METAL, at=made.metadata.resource_version)
    assert await stage.read(made) is None


async def test_a_mark_that_a_crash_left_is_taken_up_by_the_next_delete() -> None:
    stage = Stage()
    await stage.put(given.template(deletion_timestamp=NOW))
    await stage.put(given.pool())
    with pytest.raises(Refused):
        await stage[ROOT].delete(METAL)
    unmarked = await stage.read(given.template())
    assert unmarked is not None
    assert unmarked.metadata.deletion_timestamp is None


async def settled(*calls: Awaitable[object]) -> list[object]:
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def late(count: int, call: Callable[[], Awaitable[object]]) -> object:
    for _ in range(count):
        await asyncio.sleep(0)
    return await call()


@pytest.mark.parametrize("head_start", range(-12, 24, 2))
async def test_no_user_of_what_is_deleted_slips_through(head_start: int) -> None:
    stage = Stage()
    await stage.put(active())
    await stage.put(given.template())
    outcomes = await settled(
        late(max(0, head_start), lambda: stage[ADA].create(given.session(definition="basics"))),
        late(max(0, -head_start), lambda: stage[ROOT].delete(BASICS)),
        late(max(0, head_start), lambda: stage[ROOT].create(given.pool())),
        late(max(0, -head_start), lambda: stage[ROOT].delete(METAL)),
    )
    for user, used in ((given.session(), active()), (given.pool(), given.template())):
        target = await stage.read(used)
        assert (await stage.read(user) is None) == (target is None)
        assert target is None or target.metadata.deletion_timestamp is None
    refusals = [one for one in outcomes if isinstance(one, LcmError)]
    assert len(refusals) == 2
    assert all(isinstance(one, Refused | Invalid) for one in refusals)


@for_all(st.lists(st.integers(0, 30), min_size=7, max_size=7))
def test_nobody_comes_to_use_what_several_delete(pauses: list[int]) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.put(active())
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: stage[ROOT].delete(BASICS),
            lambda: stage[ANNA].delete(BASICS),
            lambda: stage[ADA].create(given.session()),
            lambda: stage[ADA].delete(Ref(LabletSession, "s1")),
            lambda: stage[BOB].create(given.session(name="s2")),
            lambda: stage[ANNA].patch(BASICS, {"spec": {"description": "new"}}),
            lambda: stage[ROOT].delete(BASICS),
        ]
        outcomes = await settled(*(late(pause, call) for pause, call in zip(pauses, calls, strict=True)))
        lab = await stage.read(active())
        assert not any(isinstance(one, Exception) and not isinstance(one, LcmError) for one in outcomes)
        assert lab is None or lab.metadata.deletion_timestamp is None
        assert lab is not None or not (await stage[ROOT].list(LabletSession)).items

    run(main)


async def test_of_several_who_delete_the_same_one_succeeds() -> None:
    stage = Stage()
    await stage[ROOT].create(given.template())
    outcomes = await settled(*(stage[ROOT].delete(METAL) for _ in range(5)))
    assert [type(one) for one in outcomes if isinstance(one, LcmError)] == [Gone] * 4
    assert await stage.types() == ["template.created", "template.deleted"]


async def world() -> Stage:
    stage = Stage(clock=VirtualClock())
    await stage.put(active())
    await stage.put(given.session(owner="ada", phase=_S.RUNNING, finalizers=TEARDOWN))
    await stage.put(given.session(name="s2", uid="u2", owner="ada", definition="other", finalizers=TEARDOWN))
    await stage.put(given.template())
    return stage


async def exactly_so(stage: Stage) -> None:
    running = await stage.read(given.session())
    assert running is not None
    assert running.status.phase is _S.COLLECTING
    assert len(running.status.history) == 1
    assert [key for key in await stage.keys() if not key.startswith("uids/")] == [
        "deleted-sessions/u2",
        "lablet-definitions/default/basics:1.0.0",
        "lablet-sessions/default/s1",
    ]
    assert sorted(await stage.types()) == [
        "lablet.session.deleted",
        "lablet.session.status.changed",
        "lablet.session.status.changed",
        "template.deleted",
    ]


async def delete_all(stage: Stage) -> None:
    await stage[ADA].delete(Ref(LabletSession, "s1"))
    with contextlib.suppress(Gone):
        await stage[ADA].delete(Ref(LabletSession, "s2"))
    with contextlib.suppress(Gone):
        await stage[ROOT].delete(METAL)


def test_deleting_survives_a_crash_anywhere(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("delete", world, delete_all, exactly_so, twice=True, report=tell) > 10


@dataclass
class Race:
    """A world in which the first to come uses something and the second deletes it, or the other way round."""

    stage: Stage
    use: Callable[[Stage], Awaitable[object]]
    end: Callable[[Stage], Awaitable[object]]
    turn: int = 0

    async def take_turn(self) -> None:
        self.turn += 1
        with contextlib.suppress(Refused, Gone):
            await (self.use if self.turn == 1 else self.end)(self.stage)


async def nothing_dangles(race: Race) -> None:
    keys = await race.stage.keys()
    labs = [key for key in keys if key.startswith("lablet-definitions/")]
    assert labs or not [key for key in keys if key.startswith("lablet-sessions/")]
    workers = [key for key in keys if key.startswith("workers/")]
    assert workers or not [key for key in keys if key.startswith(("telemetry/", "history/", "alerts/"))]


async def booking() -> Race:
    stage = Stage(clock=VirtualClock())
    await stage.put(active())
    return Race(
        stage,
        lambda stage: stage[ADA].create(given.session(definition="basics")),
        lambda stage: stage[ROOT].delete(BASICS),
    )


async def measuring() -> Race:
    stage = Stage(clock=VirtualClock())
    early = given.telemetry(collected_at=VirtualClock().now(), cpu_utilization=95.0)
    await stage.put(given.worker(phase=WorkerPhase.TERMINATED, finalizers=()))
    return Race(
        stage,
        lambda stage: stage[service(WORKER_CONTROLLER)].report(Ref(LabWorker, "w1"), early),
        lambda stage: stage[ROOT].delete(Ref(LabWorker, "w1")),
    )


async def complaining() -> Race:
    stage = Stage(clock=VirtualClock())
    complaint = AlertFinding(alert="Ill", severity=Severity.CRITICAL, reason="Ill", message="it is ill")
    await stage.put(given.worker(phase=WorkerPhase.TERMINATED, finalizers=()))
    return Race(
        stage,
        lambda stage: stage[service(WORKER_CONTROLLER)].raise_alert(Ref(LabWorker, "w1"), complaint),
        lambda stage: stage[ROOT].delete(Ref(LabWorker, "w1")),
    )


async def measured_meanwhile() -> Race:
    race = await measuring()
    return Race(race.stage, use=race.end, end=race.use)


async def complained_of_meanwhile() -> Race:
    race = await complaining()
    return Race(race.stage, use=race.end, end=race.use)


@pytest.mark.parametrize("world", [booking, measuring, complaining, measured_meanwhile, complained_of_meanwhile])
def test_who_slept_through_the_end_of_what_they_use_leaves_nothing_behind(
    world: Callable[[], Awaitable[Race]], tell: Callable[[str], None]
) -> None:
    pause_everywhere(
        f"use of what is deleted, {world.__name__}",
        world,
        Race.take_turn,
        nothing_dangles,
        pause_for=timedelta(hours=1),
        report=tell,
    )
