"""Workers that fail: each reason is kept, tried again a few times with growing pauses, and forgotten by nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from harness.clouds import HERE, THERE
from harness.fleet_world import W1, Fleet, Unreliable, virtually
from harness.installations import ByAddress, RestFleet
from harness.stores import FallibleStore
from harness.workers import beside, spec, story
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import License, Pause, Ref, Resume
from lcm.controllers.worker.alerts import FAILED, OVERDUE, STUCK
from lcm.model.access.secret import Secret
from lcm.model.base.errors import IllegalStep, Stuck, Unreachable
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.worker import AwsSpec, CmlSpec, LabWorker, WorkerCondition, WorkerPhase
from lcm.model.telemetry.alert import Severity
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.compute import InstanceState, Unauthorized
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cloud.machines import PENDING, RUNNING, StateChange
from lcm.sim.cml.faults import CmlDown
from lcm.sim.time.loop import run

P = WorkerPhase
LONG = timedelta(days=1)
FAR = timedelta(days=30)
PLAIN = CmlSpec()
Given = Callable[[Unreliable], Awaitable[None]]


async def without_image(fleet: Unreliable) -> None:
    await fleet.create(aws=AwsSpec(region=HERE, ami_name_pattern="NONE-*"))


async def without_that_image(fleet: Unreliable) -> None:
    await fleet.create(aws=AwsSpec(region=HERE, ami_id="ami-0123456789abcdef0"))


async def without_quota(fleet: Unreliable) -> None:
    fleet.cloud.account.limit(HERE, 0)
    await fleet.create()


async def without_capacity(fleet: Unreliable) -> None:
    fleet.cloud.account.add_shortage(HERE, "m5zn.metal", fleet.clock.now() + FAR)
    await fleet.create()


async def without_permission(fleet: Unreliable) -> None:
    fleet.cloud.fail_next("ensure", Unauthorized("no", action="ec2:RunInstances"), times=99)
    await fleet.create()


async def dead_on_arrival(fleet: Unreliable) -> None:
    await fleet.create()
    machine = await fleet.machine()
    fleet.cloud.account.die(HERE, machine.instance_id, fleet.clock.now() + timedelta(seconds=20))


async def pending_for_ever(fleet: Unreliable) -> None:
    await fleet.create()
    machine, now = await fleet.machine(), fleet.clock.now()
    machine.changes[:] = [StateChange(now, PENDING), StateChange(now + FAR, RUNNING)]


async def without_address(fleet: Unreliable) -> None:
    await fleet.create()
    (await fleet.machine()).addresses.clear()


async def without_cml(fleet: Unreliable) -> None:
    fleet.cml_trouble = CmlDown(listening=True)
    await fleet.create()


async def without_checks(fleet: Unreliable) -> None:
    fleet.cloud.account.never_boot(99)
    await fleet.create()


async def with_a_bad_token(fleet: Unreliable) -> None:
    fleet.licences.bad_tokens.add("good-token")
    await fleet.create()


async def without_a_seat(fleet: Unreliable) -> None:
    fleet.licences.seats = 0
    await fleet.create()


async def paused_without_capacity(fleet: Unreliable) -> None:
    await fleet.create()
    await fleet.reaches(P.READY)
    await fleet.otto.act(W1, Pause())
    await fleet.reaches(P.STOPPED)
    fleet.cloud.account.add_shortage(HERE, "m5zn.metal", fleet.clock.now() + FAR)
    await fleet.otto.act(W1, Resume())


REASONS: list[tuple[Given, str, int]] = [
    (without_image, "ImageMissing", 0),
    (without_that_image, "ImageMissing", 0),
    (without_quota, "QuotaExceeded", 0),
    (without_capacity, "NoCapacity", 0),
    (without_permission, "Unauthorized", 0),
    (dead_on_arrival, "LaunchDied", 0),
    (pending_for_ever, "LaunchTimeout", 1),
    (without_address, "NoAddress", 1),
    (without_cml, "CmlNotUp", 1),
    (without_checks, "ChecksFailed", 1),
    (with_a_bad_token, "LicenceTokenRefused", 1),
    (without_a_seat, "LicenceOutOfCompliance", 1),
    (paused_without_capacity, "MachineNotUp", 1),
]
EVERY_REASON = pytest.mark.parametrize(
    ("given", "reason", "machines"), REASONS, ids=[given.__name__ for given, _, _ in REASONS]
)


async def alerts(fleet: Unreliable) -> dict[str, Severity]:
    return {alert.alert: alert.severity for alert in await fleet.otto.alerts()}


async def imported(fleet: Unreliable, *, boots: bool = True) -> str:
    """Import somebody's machine."""
    fleet.cloud.account.never_boot(0 if boots else 99)
    found = fleet.cloud.account.run(LaunchOrder(HERE, "m5zn.metal", fleet.cloud.account.images(HERE)[0].image_id))
    seen = DiscoveredInstance(instance_id=found.instance_id, state="pending", name="w1", instance_type="m5zn.metal")
    await fleet.plane().import_workers(BulkImport(discovered_instances=(seen,), aws_region=HERE))
    return found.instance_id


@EVERY_REASON
@virtually
async def test_a_failure_keeps_its_reason_and_says_when_it_is_tried_again(
    given: Given, reason: str, machines: int
) -> None:
    fleet = Unreliable()
    async with fleet.running():
        await given(fleet)
        worker = await fleet.reaches(P.FAILED)
        status, failed_at = worker.status, worker.status.history[-1].at
        assert (status.failure, status.retry_count) == (reason, 1)
        assert status.last_error
        assert status.retry_at == failed_at + timedelta(minutes=1)
        assert reason in status.history[-1].reason
        assert len(fleet.living()) == machines
        await asyncio.sleep(15)
        assert await alerts(fleet) == {FAILED: Severity.WARNING}


@virtually
async def test_the_alert_that_stays_through_all_attempts_names_no_moment() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await without_image(fleet)
        await fleet.reaches(P.FAILED)
        await asyncio.sleep(15)
        (alert,) = await fleet.otto.alerts()
    assert alert.message.endswith("it is tried again by itself, up to 5 times")


@EVERY_REASON
@virtually
async def test_a_failed_worker_is_deleted_with_all_that_it_has(given: Given, reason: str, machines: int) -> None:
    fleet = Unreliable()
    async with fleet.running():
        await given(fleet)
        worker = await fleet.reaches(P.FAILED)
        assert worker.status.failure == reason
        fleet.cml_trouble = None
        if reason == "MachineNotUp":  # it has a licence, which only a machine that runs can give back
            fleet.cloud.account._shortages.clear()
        await fleet.otto.delete(W1)
        await fleet.vanishes()
        assert fleet.living() == []
        assert len(fleet.cloud.account.machines) in {machines, 1}
        assert fleet.licences.taken == {}
        assert (await fleet.otto.licences()).seats == ()
        assert await alerts(fleet) == {}


@virtually
async def test_lesson_28_retries_are_counted_in_the_store_and_survive_every_failover() -> None:
    fleet = Unreliable()
    await without_capacity(fleet)
    tries = []
    worker = await fleet.worker()
    for number in range(1, 7):  # each time another leader
        async with fleet.running():
            worker = await fleet.reaches(P.FAILED)
            while worker.status.retry_count < number:
                await asyncio.sleep(1)
                worker = await fleet.worker()
        assert worker.status.retry_count == number
        tries.append(worker.status.history[-1].at)
    gaps = [(later - earlier) // timedelta(minutes=1) for earlier, later in pairwise(tries)]
    assert gaps == [1, 2, 4, 8, 16]
    assert worker.status.retry_at is None
    async with fleet.running():
        worker = await fleet.stays(P.FAILED, timedelta(hours=1))
    assert worker.status.retry_count == 6
    assert await alerts(fleet) == {FAILED: Severity.CRITICAL}
    assert fleet.cloud.account.machines == {}


@virtually
async def test_a_deleted_worker_whose_licence_cannot_be_given_back_yet_goes_on_for_days() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await paused_without_capacity(fleet)
        worker = await fleet.reaches(P.FAILED)
        many = msgspec.structs.replace(worker.status, retry_count=60)
        await fleet.plane().step(worker, many)
        await fleet.otto.delete(W1)
        while (await fleet.worker()).status.retry_count < 62:
            await asyncio.sleep(60)
        assert len(fleet.living()) == len(fleet.licences.taken) == 1
        fleet.cloud.account._shortages.clear()
        await fleet.vanishes()
        assert fleet.licences.taken == {}


@virtually
async def test_a_machine_that_cannot_start_is_not_replaced_while_it_has_a_licence() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await paused_without_capacity(fleet)
        while (worker := await fleet.worker()).status.retry_count < 4:
            await asyncio.sleep(60)
            assert worker.status.phase in {P.STOPPED, P.STARTING, P.FAILED}, story(worker)
        fleet.cloud.account._shortages.clear()
        worker = await fleet.reaches(P.READY)
        assert worker.spec.wanted_state == "running"
        assert len(fleet.cloud.account.machines) == 1


@virtually
async def test_a_changed_spec_makes_it_try_again() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await without_capacity(fleet)
        while (await fleet.worker()).status.retry_count < 6:
            await asyncio.sleep(30)
        await fleet.otto.patch(W1, {"spec": {"aws": {"instance_type": "c5.metal"}}})
        worker = await fleet.reaches(P.READY)
        assert (worker.status.failure, worker.status.last_error, worker.status.retry_count) == ("", "", 0)
        await asyncio.sleep(60)
        assert await alerts(fleet) == {}


@virtually
async def test_no_capacity_tries_the_next_subnet_then_the_next_type_and_says_so() -> None:
    fleet = Unreliable()
    said: list[str] = []
    now = fleet.clock.now()
    fleet.cloud.account.add_shortage(HERE, "m5zn.metal", now + FAR)
    fleet.cloud.account.add_shortage(HERE, f"{HERE}a", now + FAR)
    aws = msgspec.structs.replace(
        spec().aws, subnet_ids=("subnet-a", "subnet-b"), instance_type_alternatives=("c5.metal",)
    )

    async def listen() -> None:
        async for changes in fleet.otto.watch(LabWorker, after=(await fleet.otto.list(LabWorker)).revision):
            workers = [seen.resource for seen in changes.seen if isinstance(seen.resource, LabWorker)]
            said.extend(one.status.last_error for one in workers if one.status.last_error not in said)

    async with beside(listen()), fleet.running():
        await fleet.create(aws=aws)
        worker = await fleet.reaches(P.READY)
    assert (worker.status.ec2.instance_type, worker.status.ec2.availability_zone) == ("c5.metal", f"{HERE}b")
    assert [one.rpartition("trying ")[2] for one in said if one] == [
        "m5zn.metal in subnet-b",
        "c5.metal in subnet-a",
        "c5.metal in subnet-b",
    ]
    assert worker.status.ec2.launch_attempt == 4
    assert P.FAILED not in {line.phase for line in worker.status.history}


@virtually
async def test_a_machine_that_does_not_boot_is_tried_twice_more_and_then_replaced_by_exactly_one() -> None:
    fleet = Unreliable()
    fleet.cloud.account.never_boot(1)
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(fleet.living()))
            await asyncio.sleep(1)

    async with beside(count()), fleet.running():
        await fleet.create()
        worker = await fleet.reaches(P.READY, within=timedelta(hours=6))
    assert most == 1
    assert len(fleet.cloud.account.machines) == 2
    assert worker.status.retry_count == 0
    assert [line.phase for line in worker.status.history].count(P.FAILED) == 3


@virtually
async def test_a_machine_of_ours_that_nothing_helps_is_given_up_and_costs_nothing_more() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await without_checks(fleet)
        worker = await fleet.reaches(P.TERMINATED, within=LONG)
        assert worker.status.failure == "ChecksFailed"
        await asyncio.sleep(60)
        assert fleet.living() == []
        assert await alerts(fleet) == {FAILED: Severity.CRITICAL}
        await fleet.otto.delete(W1)
        assert await fleet.gone()


@virtually
async def test_an_imported_machine_is_never_terminated_by_giving_up() -> None:
    fleet = Unreliable()
    instance_id = await imported(fleet, boots=False)
    async with fleet.running():
        await fleet.reaches(P.FAILED)
        while (worker := await fleet.worker()).status.retry_count < 6:
            await asyncio.sleep(60)
            assert worker.status.phase in {P.FAILED, P.STARTING}
        worker = await fleet.stays(P.FAILED, timedelta(hours=1))
        assert worker.status.retry_count == 6
        assert [one.instance_id for one in fleet.living()] == [instance_id]


@pytest.mark.parametrize("phase", [P.READY, P.READY_UNLICENSED], ids=str)
@virtually
async def test_a_worker_that_is_ill_again_after_its_reboot_is_replaced(phase: WorkerPhase) -> None:
    fleet = Unreliable()
    async with fleet.controlled():
        await fleet.create(cml=PLAIN if phase is P.READY_UNLICENSED else spec().cml)
        for _ in range(2):
            worker = await fleet.reaches(phase)
            await asyncio.sleep(60)
            fleet.cloud.account.impair(HERE, worker.status.ec2.instance_id)
            await fleet.reaches(P.STARTING, P.FAILED, P.UNLICENSING, P.TERMINATING_EC2, within=timedelta(minutes=15))
        worker = await fleet.reaches(phase)
        told = [line.reason for line in worker.status.history if line.phase == P.FAILED]
        assert [reason.partition(":")[0] for reason in told] == ["Unhealthy"]
        assert len(fleet.living()) == 1
        assert len(fleet.cloud.account.machines) == 2
        assert len(fleet.licences.taken) == (1 if phase is P.READY else 0)


@virtually
async def test_an_imported_machine_that_is_ill_again_after_its_reboot_is_kept() -> None:
    fleet = Unreliable()
    instance_id = await imported(fleet)
    await fleet.otto.patch(W1, {"spec": {"auto_remediate": True}})
    async with fleet.controlled():
        await fleet.reaches(P.READY_UNLICENSED, P.READY)
        await asyncio.sleep(60)
        fleet.cloud.account.impair(HERE, instance_id)
        await fleet.reaches(P.STARTING, within=timedelta(minutes=15))
        worker = await fleet.reaches(P.READY_UNLICENSED, P.READY)
        fleet.cloud.account.impair(HERE, instance_id)
        await fleet.stays(worker.status.phase, timedelta(minutes=20))
        assert [one.instance_id for one in fleet.living()] == [instance_id]


@virtually
async def test_a_licence_that_somebody_took_away_is_registered_again() -> None:
    fleet = Unreliable()
    async with fleet.controlled():
        await fleet.create()
        worker = await fleet.reaches(P.READY)
        fleet.cml(worker.status.ec2.instance_id).licence.deregister(running_nodes=0)
        while fleet.licences.taken == {}:
            await asyncio.sleep(5)
        worker = await fleet.reaches(P.READY)
        assert P.READY_UNLICENSED in [line.phase for line in worker.status.history[-3:]]
        assert len((await fleet.otto.licences()).seats) == 1


@virtually
async def test_lesson_27_an_imported_machine_that_is_pending_is_waited_for() -> None:
    fleet = Unreliable()
    instance_id = await imported(fleet)
    async with fleet.running():
        await fleet.reaches(P.READY_UNLICENSED, P.READY)
        assert list(fleet.cloud.account.machines) == [instance_id]


@virtually
async def test_a_refused_licence_costs_no_second_machine_and_another_token_helps() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await with_a_bad_token(fleet)
        while (await fleet.worker()).status.retry_count < 4:
            await asyncio.sleep(10)
        assert len(fleet.cloud.account.machines) == 1
        fleet.licences.bad_tokens.clear()
        await fleet.reaches(P.FAILED)
        await fleet.otto.act(W1, License())
        worker = await fleet.reaches(P.READY, within=timedelta(minutes=20))
        assert worker.status.retry_count == 0


@virtually
async def test_a_worker_whose_licence_is_refused_for_good_ends_stopped_without_a_seat() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await with_a_bad_token(fleet)
        worker = await fleet.reaches(P.STOPPED, within=LONG)
        assert worker.status.failure == "LicenceTokenRefused"
        assert worker.spec.wanted_state == "stopped"
        assert len(fleet.cloud.account.machines) == 1
        assert (await fleet.otto.licences()).seats == ()


@virtually
async def test_a_worker_without_a_token_that_serves_again_has_all_its_retries_again() -> None:
    fleet = Unreliable()
    fleet.cml_trouble = CmlDown(listening=True)
    async with fleet.running():
        await fleet.create(cml=PLAIN)
        await fleet.reaches(P.FAILED)
        fleet.cml_trouble = None
        await fleet.reaches(P.READY_UNLICENSED)
        await asyncio.sleep(60)
        assert (await fleet.worker()).status.retry_count == 0


@virtually
async def test_lesson_4_a_launch_whose_answer_is_lost_is_not_repeated() -> None:
    fleet = Unreliable(listed_within=timedelta(minutes=1))
    fleet.cloud.lose_answer_next("ensure", times=3)
    async with fleet.running():
        await fleet.create()
        worker = await fleet.reaches(P.READY)
    assert list(fleet.cloud.account.machines) == [worker.status.ec2.instance_id]
    assert worker.status.ec2.launch_attempt == 1


@virtually
async def test_lesson_5_a_worker_elsewhere_is_launched_stopped_and_ended_there() -> None:
    fleet = Unreliable()
    fleet.cloud.account.add_image(THERE, "CML-2.9.0", fleet.clock.now())
    async with fleet.running():
        await fleet.create(aws=AwsSpec(region=THERE, ami_name_pattern="CML-*"), cml=PLAIN)
        worker = await fleet.reaches(P.READY_UNLICENSED)
        machine = fleet.cloud.account.machine(THERE, worker.status.ec2.instance_id)
        await fleet.otto.act(W1, Pause())
        await fleet.reaches(P.STOPPED)
        assert machine.state(fleet.clock.now()) is InstanceState.STOPPED
        await fleet.otto.delete(W1)
        await fleet.vanishes()
        assert machine.state(fleet.clock.now()) is InstanceState.TERMINATED


@pytest.mark.parametrize("error", [Stuck("TerminationProtected", "it is protected"), Unreachable("no answer")], ids=str)
@virtually
async def test_lesson_7_a_failed_terminate_is_not_taken_for_one(error: Stuck | Unreachable) -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create(cml=PLAIN)
        await fleet.reaches(P.READY_UNLICENSED)
        fleet.cloud.fail_next("remove", error, times=6)
        await fleet.otto.delete(W1)
        await fleet.reaches(P.TERMINATING_EC2)
        await fleet.stays(P.TERMINATING_EC2, timedelta(seconds=20))
        assert len(fleet.living()) == 1
        await fleet.vanishes()
        assert fleet.living() == []


@virtually
async def test_a_terminate_that_is_not_seen_for_five_minutes_raises_an_alert_and_goes_on() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create(cml=PLAIN)
        await fleet.reaches(P.READY_UNLICENSED)
        fleet.cloud.fail_next("remove", Stuck("TerminationProtected", "it is protected"), times=60)
        await fleet.otto.delete(W1)
        await asyncio.sleep(7 * 60)
        assert await alerts(fleet) == {OVERDUE: Severity.CRITICAL}
        assert "protected" in (await fleet.worker()).status.last_error
        await fleet.vanishes()
        assert await alerts(fleet) == {}


@virtually
async def test_lesson_9_without_a_store_nobody_leads_and_nothing_is_launched() -> None:
    store = FallibleStore()
    fleet = Unreliable(store=store)
    await fleet.create()
    with fleet.store_outage():
        async with fleet.controlled():
            await asyncio.sleep(600)
            assert fleet.cloud.account.machines == {}
    async with fleet.controlled():
        await fleet.reaches(P.READY)


@virtually
async def test_lesson_23_no_session_is_accepted_before_cml_is_ready_and_its_licence_known() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create()
        while (worker := await fleet.worker()).status.phase is not P.READY:
            accepting = find_condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS)
            assert accepting is None or accepting.status is not Truth.TRUE, story(worker)
            await asyncio.sleep(1)
    accepting = find_condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS)
    assert accepting is not None
    assert accepting.status is Truth.TRUE


@virtually
async def test_lesson_31_an_illegal_step_is_refused_and_nothing_says_that_it_happened() -> None:
    fleet = Unreliable()
    worker = await fleet.create()
    for phase in (P.READY, P.ACTIVE, P.STOPPING, P.TERMINATING_EC2, P.DRAINING):
        status: Any = msgspec.structs.replace(worker.status, phase=phase)
        with pytest.raises(IllegalStep):
            await fleet.plane().step(worker, status, reason="it happened")
    assert await fleet.otto.get(Ref(LabWorker, "w1")) == worker


def test_what_only_a_person_can_mend_is_an_alert_until_it_is_mended() -> None:
    async def forbidden() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.running():
            await fleet.reaches(WorkerPhase.STARTING)
            fleet.cloud.fail_next("find", Unauthorized("may not look", action="ec2:DescribeInstances"), times=3)
            async with asyncio.timeout(600):
                while not (alerts := await fleet.otto.alerts()):
                    await asyncio.sleep(1)
            assert [(one.alert, one.reason) for one in alerts] == [("WorkerStuck", "Unauthorized")]
            await fleet.reaches(WorkerPhase.READY)
            assert await fleet.otto.alerts() == []

    run(forbidden)


class NoSecret:
    """Has lost what it should reveal, or gives the wrong one."""

    def __init__(self, wrong: str | None) -> None:
        self._wrong = wrong

    async def reveal(self, _: str) -> Secret:
        await asyncio.sleep(0)
        if self._wrong is None:
            raise Stuck("SecretMissing", "env:CML_ADMIN_PASSWORD is not set")
        return Secret(self._wrong)


@pytest.mark.parametrize(("secret", "reason"), [("wrong", "CmlCredentialsRefused"), (None, "SecretMissing")])
@virtually
async def test_a_password_that_cml_refuses_is_told_and_fails_the_boot(secret: str | None, reason: str) -> None:
    fleet = RestFleet()
    fleet.hosts = CmlHosts(NoSecret(secret), transport=ByAddress(fleet))
    async with fleet.running():
        await fleet.create()
        worker = await fleet.reaches(P.STARTING)
        while not (alerts := await fleet.otto.alerts()):
            await asyncio.sleep(10)
        assert [(one.alert, one.reason) for one in alerts] == [(STUCK, reason)]
        worker = await fleet.reaches(P.FAILED, within=timedelta(minutes=20))
        assert worker.status.failure == reason
        assert [(one.alert, one.reason) for one in await fleet.otto.alerts()] == [(FAILED, reason)]
        await fleet.otto.delete(W1)
        await fleet.vanishes()
        assert fleet.living() == []
    await fleet.hosts.close()


@virtually
async def test_who_may_not_look_any_more_is_told_why_a_deleted_worker_does_not_end() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create()
        await fleet.reaches(P.READY)
        fleet.cloud.fail_next("find", Unauthorized("may not look", action="ec2:DescribeInstances"), times=100)
        await fleet.otto.delete(W1)
        await fleet.reaches(P.TERMINATING_EC2)
        worker = await fleet.stays(P.TERMINATING_EC2, timedelta(minutes=10))
        assert "may not look" in worker.status.last_error
        assert {one.alert for one in await fleet.otto.alerts()} == {STUCK, OVERDUE}
        await fleet.vanishes()
        assert await fleet.otto.alerts() == []


class Buggy(SimHosts):
    """Meets a bug of ours with one worker."""

    bad = "w1"

    async def of(self, worker: LabWorker) -> Any:
        assert worker.metadata.name != self.bad, "a bug"
        return await super().of(worker)


@virtually
async def test_a_bug_that_one_worker_meets_is_an_alert_and_nobody_elses_trouble() -> None:
    fleet = Unreliable()
    fleet.hosts = hosts = Buggy(fleet.cloud)
    async with fleet.running():
        await fleet.create()
        await fleet.reaches(P.STARTING)
        await fleet.create("w2")
        await fleet.reaches(P.READY, name="w2")
        await asyncio.sleep(1800)
        (alert,) = await fleet.otto.alerts()
        assert (alert.name, alert.alert, alert.reason) == ("w1", STUCK, "AssertionError")
        hosts.bad = ""
        await fleet.reaches(P.READY)
        await asyncio.sleep(60)
        assert await fleet.otto.alerts() == []
