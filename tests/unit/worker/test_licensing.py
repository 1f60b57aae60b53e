"""Licences that are not to be had, or cannot be given back: nobody waits for ever, and somebody is told."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from harness import given
from harness.fleet_world import W1, Unreliable, virtually
from harness.workers import story
from lcm.control.plane.protocol import Drain
from lcm.controllers.runtime.lifecycle import Do, Failure, Report, Unknown
from lcm.controllers.worker.alerts import LICENCE, OVERDUE
from lcm.controllers.worker.lifecycle import decide, react
from lcm.controllers.worker.view import Register, WorkerView
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import CmlFacts, IdlePolicy, LabWorker, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.model.telemetry.idle import find_last_activity
from lcm.providers.protocols.compute import StatusCheckResult, StatusChecks
from lcm.providers.protocols.labhost import Licence
from lcm.settings.load import Settings
from lcm.sim.cml.faults import CmlDown

P = WorkerPhase
NOW = given.moment("12:00")
SILENT = CmlDown(listening=False, there=False)
HALF_AN_HOUR = timedelta(minutes=30)
NOT_REGISTERED = Licence(registration="NOT_REGISTERED", authorization="INIT", product="CML_Enterprise", node_limit=5)
UNPAID = Licence(registration="COMPLETED", authorization="OUT_OF_COMPLIANCE", product="CML_Enterprise", node_limit=5)


async def raised(fleet: Unreliable) -> set[str]:
    return {one.alert for one in await fleet.otto.alerts()}


async def retoken(fleet: Unreliable, token: str | None) -> None:
    worker = await fleet.worker()
    cml = replace(worker.spec.cml, license_token=token)
    await fleet.otto.replace(replace(worker, spec=replace(worker.spec, cml=cml)))


def registering(token: str | None, licence: Licence | Unknown, sessions: Sequence[LabletSession] = ()) -> WorkerView:
    worker = given.worker(phase=P.LICENSING)
    cml = replace(worker.spec.cml, license_token=token)
    history = (PhaseChange(phase=P.LICENSING, at=NOW, by="worker-controller"),)
    status = replace(worker.status, cml=CmlFacts(licensed=None), history=history)
    worker = replace(worker, spec=replace(worker.spec, cml=cml), status=status)
    return WorkerView(worker, NOW, licence=licence, sessions=sessions)


def decided(view: WorkerView) -> tuple[WorkerPhase, bool | None]:
    decision = decide(view)
    assert isinstance(decision, Report), decision
    return decision.status.phase, decision.status.cml.licensed


def test_a_token_that_is_removed_during_registration_leaves_nothing_registered() -> None:
    busy = [given.session(phase=SessionPhase.RUNNING)]
    assert decided(registering(None, NOT_REGISTERED)) == (P.READY_UNLICENSED, False)
    assert decided(registering(None, UNPAID)) == (P.UNLICENSING, None)
    assert decided(registering(None, UNPAID, busy)) == (P.READY_UNLICENSED, None)
    assert not isinstance(decide(registering(None, Unknown("no answer"))), Report)


def test_a_registration_that_is_refused_fails_no_worker_under_a_session() -> None:
    view = registering("env:TOKEN", NOT_REGISTERED, [given.session(phase=SessionPhase.RUNNING)])
    decision = decide(view)
    assert isinstance(decision, Do)
    assert isinstance(decision.effect, Register)
    for seen, phase in ((view, P.READY_UNLICENSED), (replace(view, sessions=()), P.FAILED)):
        report = react(seen, decision.effect, Failure("LicenceTokenRefused", "no"))
        assert isinstance(report, Report)
        assert (report.status.phase, report.status.failure) == (phase, "LicenceTokenRefused")


@virtually
async def test_a_worker_whose_token_is_removed_during_registration_serves_without() -> None:
    fleet = Unreliable()
    fleet.licences.reachable = False
    async with fleet.running():
        await fleet.create()
        await fleet.reaches(P.LICENSING)
        await retoken(fleet, None)
        await fleet.reaches(P.READY_UNLICENSED)
        await fleet.stays(P.READY_UNLICENSED, HALF_AN_HOUR)
        assert (await fleet.otto.licences()).seats == ()
        assert await raised(fleet) == set()
        fleet.licences.reachable = True
        await retoken(fleet, "env:CML_LICENSE_TOKEN")
        await fleet.reaches(P.READY)


@virtually
async def test_a_session_that_comes_during_registration_is_drained_before_its_worker_is_deleted() -> None:
    fleet = Unreliable()
    fleet.licences.reachable = False
    async with fleet.running():
        await fleet.create()
        await fleet.host_session(await fleet.reaches(P.LICENSING))
        await fleet.otto.delete(W1)
        await fleet.reaches(P.DRAINING, within=timedelta(minutes=10))
        await fleet.stays(P.DRAINING, HALF_AN_HOUR)
        await fleet.end_session()
        await fleet.vanishes()
        assert fleet.living() == []


@virtually
async def test_a_licence_server_that_never_answers_is_asked_ever_more_seldom_and_complained_of() -> None:
    fleet = Unreliable()
    fleet.licences.reachable = False
    async with fleet.running():
        await fleet.create(idle=IdlePolicy(enabled=False))
        await fleet.reaches(P.LICENSING)
        await asyncio.sleep(6 * 3600)
        worker = await fleet.worker()
        assert await raised(fleet) == {LICENCE}
        assert (worker.status.failure, worker.status.retry_count) == ("LicenceNotObtained", 0)
        tries = [one.at for one in worker.status.history if one.phase == P.LICENSING]
        gaps = [later - earlier for earlier, later in pairwise(tries)]
        assert gaps == sorted(gaps), story(worker)
        assert gaps[0] < timedelta(minutes=25) < timedelta(minutes=40) < gaps[-1]
        fleet.licences.reachable = True
        await fleet.reaches(P.READY, within=timedelta(hours=1))
        assert await raised(fleet) == set()


@virtually
async def test_a_worker_that_gets_no_licence_is_paused_when_nobody_uses_it() -> None:
    fleet = Unreliable(settings=Settings(require_licensed_for_cml=False))
    fleet.licences.reachable = False
    async with fleet.controlled():
        await fleet.create()
        await fleet.reaches(P.LICENSING)
        worker = await fleet.reaches(P.STOPPED, within=timedelta(hours=2))
        assert worker.status.pause_count == 1


def test_attempts_to_get_a_licence_are_no_activity() -> None:
    def stepped(*phases: WorkerPhase) -> LabWorker:
        worker = given.worker()
        times = (NOW + timedelta(minutes=number) for number in range(len(phases)))
        steps = (PhaseChange(phase=one, at=at, by="worker-controller") for one, at in zip(phases, times, strict=True))
        status = replace(worker.status, history=tuple(steps), ready_at=None)
        return replace(worker, status=status)

    trying = (P.LICENSING, P.READY_UNLICENSED) * 4
    assert find_last_activity(stepped(P.READY_UNLICENSED, *trying), None) == NOW
    assert find_last_activity(stepped(P.READY_UNLICENSED, *trying, P.LICENSING, P.READY), None) == NOW + 10 * timedelta(
        minutes=1
    )
    assert find_last_activity(stepped(), None) is None


@virtually
async def test_a_deleted_worker_whose_machine_is_dead_ends_and_its_seat_is_complained_of() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create(idle=IdlePolicy(enabled=False))
        await fleet.reaches(P.READY)
        fleet.cml_trouble = SILENT
        await fleet.otto.delete(W1)
        await fleet.reaches(P.UNLICENSING)
        await fleet.stays(P.UNLICENSING, timedelta(minutes=100))
        (alert,) = await fleet.otto.alerts()
        assert alert.alert == OVERDUE
        assert "given up after 2 hours" in alert.message
        await fleet.vanishes()
        assert fleet.living() == []
        assert [one.state for one in (await fleet.otto.licences()).seats] == [SeatState.ORPHANED]
        assert await raised(fleet) == {"LicenceOrphaned"}


@virtually
async def test_a_deleted_worker_that_was_silent_for_an_hour_still_gives_its_licence_back() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create(idle=IdlePolicy(enabled=False))
        await fleet.reaches(P.READY)
        fleet.cml_trouble = SILENT
        await fleet.otto.delete(W1)
        await fleet.reaches(P.UNLICENSING)
        await fleet.stays(P.UNLICENSING, timedelta(hours=1))
        fleet.cml_trouble = None
        await fleet.vanishes()
        assert fleet.licences.taken == {}
        assert (await fleet.otto.licences()).seats == ()


@virtually
async def test_a_silent_machine_that_is_only_drained_keeps_its_licence() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await fleet.create(idle=IdlePolicy(enabled=False))
        await fleet.reaches(P.READY)
        fleet.cml_trouble = SILENT
        await fleet.otto.act(W1, Drain())
        await fleet.reaches(P.UNLICENSING)
        await fleet.stays(P.UNLICENSING, timedelta(hours=4))
        fleet.cml_trouble = None
        await fleet.reaches(P.STOPPED)
        assert fleet.licences.taken == {}


@virtually
async def test_a_licensed_machine_that_ec2_calls_impaired_is_replaced_and_its_seat_asked_for() -> None:
    fleet = Unreliable()
    usual, ill = fleet.cloud.checks, ""

    async def checks(region: str, ids: Sequence[str]) -> dict[str, StatusChecks]:
        impaired = StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.IMPAIRED)
        return {one: impaired if one == ill else said for one, said in (await usual(region, ids)).items()}

    fleet.cloud.checks = checks  # type: ignore[method-assign,assignment]
    async with fleet.controlled():
        await fleet.create(idle=IdlePolicy(enabled=False))
        ill = (await fleet.reaches(P.READY)).status.ec2.instance_id
        fleet.cml_trouble = SILENT
        worker = await fleet.reaches(P.PENDING, P.PROVISIONING_EC2, within=timedelta(hours=4))
        assert not await fleet.is_on(worker)
        fleet.cml_trouble = None
        worker = await fleet.reaches(P.READY_UNLICENSED)
        await asyncio.sleep(60)
        assert worker.status.ec2.instance_id != ill
        assert await raised(fleet) >= {"LicenceOrphaned", LICENCE}
        await fleet.otto.free_licence(worker.metadata.uid)
        await fleet.reaches(P.READY, within=timedelta(hours=1))
        await asyncio.sleep(60)
        assert not await raised(fleet) & {"LicenceOrphaned", LICENCE}


@pytest.mark.parametrize("reason", ["CmlCredentialsRefused", ""])
def test_an_answer_that_a_person_must_change_is_no_silence(reason: str) -> None:
    view = registering("env:TOKEN", Unknown("wrong password", answered=True, reason=reason))
    long_ago = NOW - timedelta(days=1)
    history = (PhaseChange(phase=P.UNLICENSING, at=long_ago, by="worker-controller"),)
    status = replace(view.status, phase=P.UNLICENSING, history=history, retry_at=NOW - timedelta(minutes=1))
    metadata = replace(view.worker.metadata, deletion_timestamp=long_ago)
    decision = decide(replace(view, resource=replace(view.worker, status=status, metadata=metadata)))
    assert isinstance(decision, Report)
    assert decision.status.phase is (P.UNLICENSING if reason else P.STOPPING)
    assert decision.status.retry_at is None
