"""What must never happen outside: machines, labs and licences of a simulated cloud, and what is left at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from harness import given
from lcm.control.accounts.licences import SEATS_PREFIX
from lcm.control.objects.records import ALERTS, CODEC
from lcm.control.telemetry.alert_records import ActiveAlert, Alerts
from lcm.controllers.session.progress import title_of
from lcm.model.base.machine import LABLET_CONTROLLER, WORKER_CONTROLLER
from lcm.model.base.resource import Owner
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.model.telemetry.alert import Alert, Severity
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.documents import Registration
from lcm.sim.time.loop import run
from lcm.sim.world.scenario import REGION, ScenarioLab, lab_topology
from world.checked import RunOutcome
from world.checks.capacity import NO_CAPACITY
from world.checks.events import GAP
from world.checks.labs import LEFT
from world.checks.leaders import DEPOSED
from world.checks.licences import UNRETURNED
from world.checks.machines import NO_RECORD, TAKEN, TWO_MACHINES, UNNOTICED
from world.checks.rest import AT_REST
from world.scenarios import CROWDED
from world.story import describe_outcome
from world.witnessed import LEADER, OTHER, Watched

BOOT = timedelta(minutes=20)
Story = Callable[[Watched], Awaitable[None]]


def judged(story: Story) -> list[str]:
    """Play a story and return the rules that were broken, each once."""

    async def life() -> list[str]:
        watched = Watched()
        await story(watched)
        return list(dict.fromkeys(one.rule for one in watched.witness.violations))

    return run(life, start=given.moment("08:00"))


def launched(watched: Watched, *, host: str | None = LEADER, worker: str = "uid-w1") -> str:
    """Launch a machine for a worker."""
    account, made = watched.stage.cloud.account, []
    tags = {OWNER_TAG: "lcm", WORKER_TAG: worker}
    order = LaunchOrder(
        region=REGION, instance_type="m5zn.metal", image_id=account.images(REGION)[0].image_id, tags=tags
    )
    watched.on(host, lambda: made.append(account.run(order).instance_id))
    return made[0]


async def serving(watched: Watched) -> tuple[str, LabWorker, Cml]:
    """Return a machine that is up, known as a worker's."""
    instance_id = launched(watched)
    await asyncio.sleep(BOOT.total_seconds())
    cml = watched.stage.cml(instance_id)
    assert cml is not None, "it has booted"
    worker = given.worker(phase=WorkerPhase.READY, ec2={"instance_id": instance_id})
    watched.known(worker)
    return instance_id, worker, cml


def imported(watched: Watched, cml: Cml, session: LabletSession, host: str | None = LEADER) -> None:
    text = lab_topology(ScenarioLab(name="basics", track="ccna"))
    watched.on(host, lambda: cml.import_lab(text, cml.users.administrator, title_of(session)))


def stop(watched: Watched, instance_id: str, host: str | None = LEADER) -> None:
    watched.on(host, lambda: watched.stage.cloud.account.stop(REGION, instance_id))


def terminate(watched: Watched, instance_id: str, host: str | None = LEADER) -> None:
    watched.on(host, lambda: watched.stage.cloud.account.terminate(REGION, instance_id))


def test_a_worker_has_one_machine() -> None:
    async def twice(watched: Watched) -> None:
        launched(watched)
        launched(watched)

    async def by_hand(watched: Watched) -> None:
        launched(watched)
        launched(watched, host=None)

    async def again(watched: Watched) -> None:
        terminate(watched, launched(watched))
        launched(watched)

    assert judged(twice) == [TWO_MACHINES]
    assert judged(by_hand) == []
    assert judged(again) == []


def test_an_effect_is_the_leaders() -> None:
    async def machine(watched: Watched) -> None:
        launched(watched, host=OTHER)

    async def lab(watched: Watched) -> None:
        _, _, cml = await serving(watched)
        watched.deposed(LABLET_CONTROLLER)
        imported(watched, cml, given.session(phase=SessionPhase.INSTANTIATING))

    async def licence(watched: Watched) -> None:
        _, _, cml = await serving(watched)
        watched.deposed(WORKER_CONTROLLER)
        watched.on(LEADER, lambda: cml.licence.register(Registration(token="t" * 16)))

    assert judged(machine) == [DEPOSED]
    assert judged(lab) == [DEPOSED]
    assert judged(licence) == [DEPOSED]


def test_a_machine_has_a_record_and_a_record_its_machine() -> None:
    async def forgotten(watched: Watched) -> None:
        launched(watched)
        await asyncio.wait({asyncio.ensure_future(watched.witness.watch())}, timeout=3_600)

    async def gone(watched: Watched) -> None:
        instance_id, _, _ = await serving(watched)
        stop(watched, instance_id, host=None)
        await asyncio.wait({asyncio.ensure_future(watched.witness.watch())}, timeout=3_600)

    async def known(watched: Watched) -> None:
        await serving(watched)
        await asyncio.wait({asyncio.ensure_future(watched.witness.watch())}, timeout=3_600)

    assert judged(forgotten) == [NO_RECORD]
    assert judged(gone) == [UNNOTICED]
    assert judged(known) == []


def test_no_machine_is_taken_from_under_a_session() -> None:
    async def story(watched: Watched, host: str | None, *busy: LabletSession) -> None:
        instance_id, _, _ = await serving(watched)
        watched.known(*busy)
        stop(watched, instance_id, host)

    running = given.session(phase=SessionPhase.RUNNING, worker_id="uid-w1")
    assert judged(lambda watched: story(watched, LEADER, running)) == [TAKEN]
    assert judged(lambda watched: story(watched, None, running)) == []
    assert judged(lambda watched: story(watched, LEADER)) == []


def test_no_lab_outlives_its_session() -> None:
    stopping = given.session(
        phase=SessionPhase.STOPPING, outcome=SessionPhase.COMPLETED, worker_id="uid-w1", timeslot_start=None
    )

    async def ended(watched: Watched, *, left: bool) -> None:
        _, _, cml = await serving(watched)
        watched.known(stopping)
        if left:
            imported(watched, cml, stopping)
        watched.commit(watched.step(stopping, "COMPLETED", LABLET_CONTROLLER))

    async def late(watched: Watched) -> None:
        _, _, cml = await serving(watched)
        over = given.with_fields(stopping, {"phase": SessionPhase.COMPLETED, "history": given.history("COMPLETED")})
        watched.known(over)
        imported(watched, cml, over)

    assert judged(lambda watched: ended(watched, left=True)) == [LEFT]
    assert judged(lambda watched: ended(watched, left=False)) == []
    assert judged(late) == [LEFT]


def test_a_licence_is_given_back_before_its_machine_ends() -> None:
    async def story(watched: Watched, *, back: bool = False, orphaned: bool = False) -> None:
        instance_id, _, cml = await serving(watched)
        watched.on(LEADER, lambda: cml.licence.register(Registration(token="t" * 16)))
        if back:
            watched.on(LEADER, lambda: cml.licence.deregister(running_nodes=0))
        if orphaned:
            seat = given.seat(state=SeatState.ORPHANED)
            watched.known(watched.entry(f"{SEATS_PREFIX}uid-w1", CODEC.encode(seat)))
        terminate(watched, instance_id)

    assert judged(story) == [UNRETURNED]
    assert judged(lambda watched: story(watched, back=True)) == []
    assert judged(lambda watched: story(watched, orphaned=True)) == []


def test_at_rest_nothing_is_left() -> None:
    async def calm(watched: Watched) -> None:
        watched.known(given.pool(min_workers=0), given.template())
        watched.witness.check_at_rest()

    async def left(watched: Watched) -> None:
        instance_id, worker, cml = await serving(watched)
        owner = Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
        over = given.session(
            phase=SessionPhase.COMPLETED, timeslot_start=None, history=given.history("COMPLETED"), uid="uid-over"
        )
        late = given.session(
            phase=SessionPhase.RUNNING, ends_at=given.moment("07:00"), history=given.history("RUNNING")
        )
        watched.known(
            given.pool(min_workers=0), given.template(), given.with_fields(worker, {"owner": owner}), over, late
        )
        imported(watched, cml, over, host=None)
        cml.licence.register(Registration(token="t" * 16))
        await watched.stage.artifacts.put_temporary("uid-over/lab.yaml", b"lab")
        await asyncio.sleep(4 * 3_600)
        watched.witness.check_at_rest()
        found = [one.text for one in watched.witness.violations]
        assert sum(instance_id in one for one in found) == 1
        assert "its file uid-over/lab.yaml is left" in found
        watched.witness.violations.clear()
        terminate(watched, instance_id, host=None)
        watched.witness.check_at_rest()

    assert judged(calm) == []
    assert judged(left) == [AT_REST, UNRETURNED]


def test_nothing_is_late_for_long() -> None:
    async def story(watched: Watched, *known: LabletSession | Reservation) -> None:
        watched.known(*known)
        await asyncio.wait({asyncio.ensure_future(watched.witness.watch())}, timeout=3_600)

    running = given.session(phase=SessionPhase.RUNNING, ends_at=given.moment("08:10"))
    held = ReservationClaim(number=1, claim=given.claim("08:10"), seat=None)
    promised = given.reservation(phase=ReservationPhase.PROMISED, held=(held,))
    fulfilled = given.with_fields(promised, {"held": (given.changed(held, {"session": "s1"}),)})
    assert judged(lambda watched: story(watched, running)) == [NO_CAPACITY]
    assert judged(lambda watched: story(watched, promised)) == [NO_CAPACITY]
    assert judged(lambda watched: story(watched, fulfilled)) == []


def test_at_rest_no_worker_is_half_way_and_no_seat_is_kept_for_none() -> None:
    async def story(watched: Watched, phase: WorkerPhase) -> None:
        watched.known(given.worker(phase=phase), watched.entry(f"{SEATS_PREFIX}uid-w1", CODEC.encode(given.seat())))
        watched.witness.check_at_rest()

    assert judged(lambda watched: story(watched, WorkerPhase.READY)) == []
    assert judged(lambda watched: story(watched, WorkerPhase.STOPPING)) == [AT_REST]
    assert judged(lambda watched: story(watched, WorkerPhase.TERMINATED)) == [UNRETURNED]


def test_an_alert_that_stands_was_told() -> None:
    alert = Alert(
        kind="LabWorker", name="w1", namespace="default", uid="uid-w1", alert="Odd", severity=Severity.WARNING,
        reason="Odd", message="odd", since=given.moment("08:00"),
    )  # fmt: skip

    async def story(watched: Watched) -> None:
        board = Alerts(standing=(ActiveAlert(alert=alert),))
        watched.known(watched.entry(f"{ALERTS}workers/default/w1", CODEC.encode(board)))
        watched.witness.check_at_rest()

    assert judged(story) == [GAP]


def test_a_story_is_told_with_its_seed_and_of_those_it_is_about() -> None:
    async def life() -> str:
        watched = Watched()
        instance_id, _, _ = await serving(watched)
        watched.witness.tell("somebody trips over w1")
        watched.witness.tell("somebody trips over w2")
        watched.known(given.session(phase=SessionPhase.RUNNING, worker_id="uid-w1"))
        stop(watched, instance_id)
        witness = watched.witness
        scenario = msgspec.structs.replace(CROWDED, seed=7, hours=2)
        return describe_outcome(
            RunOutcome(scenario, witness.trace, 1, tuple(witness.violations), (), tuple(witness.story))
        )

    told = run(life, start=given.moment("08:00"))
    assert told.startswith(f"seed 7: {TAKEN}")
    assert "make sim ONE='seed 7 hours 2 mishaps 0 processes 3 quiet 8 crowded'" in told
    assert "trips over w1" in told
    assert "trips over w2" not in told
    assert f"{LEADER}: stop i-" in told
