"""What each action makes of an object, in every phase, and what it refuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness import given
from harness.plane_world import ADA, ANNA, BOB, NOW, OTTO, ROOT, Stage, active, service
from lcm.control.objects.actions import perform_action
from lcm.control.plane.protocol import (
    Action,
    Drain,
    Extend,
    License,
    Pause,
    Ref,
    Resume,
    Snooze,
    Telemetry,
    Terminate,
    Undrain,
)
from lcm.model.base.errors import Forbidden, Gone, IllegalStep, Invalid, Refused
from lcm.model.base.machine import CONTROL_PLANE, WORKER_CONTROLLER
from lcm.model.base.resource import Owner
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, IdleVerdict, LabWorker, LicenseFlavour, WorkerPhase
from lcm.model.kinds.worker_machine import WORKER_MACHINE

W1 = Ref(LabWorker, "w1")
S1 = Ref(LabletSession, "s1")
HOSTS = sorted(HOSTING_PHASES)
_S = SessionPhase


def act(resource: Any, action: Action, **more: Any) -> Any:
    return perform_action(resource, action, now=NOW, author="otto", **more)


@pytest.mark.parametrize("phase", HOSTS)
def test_a_drain_has_a_deadline_and_wants_the_machine_stopped(phase: WorkerPhase) -> None:
    worker = act(given.worker(phase=phase, drain_deadline_minutes=90), Drain())
    assert worker.status.phase is WorkerPhase.DRAINING
    assert worker.status.drain_deadline_at == NOW + timedelta(minutes=90)
    assert worker.spec.wanted_state == "stopped"
    line = worker.status.history[-1]
    assert (line.phase, line.by, line.at, line.reason) == ("DRAINING", "otto", NOW, "drain requested")


def test_a_drain_may_bring_its_own_deadline_and_change_it_later() -> None:
    worker = act(given.worker(phase=WorkerPhase.READY), Drain(deadline_minutes=10))
    assert worker.status.drain_deadline_at == NOW + timedelta(minutes=10)
    sooner = act(worker, Drain(deadline_minutes=5))
    assert sooner.status.drain_deadline_at == NOW + timedelta(minutes=5)
    assert len(sooner.status.history) == 1


def test_a_repeated_drain_changes_nothing() -> None:
    worker = act(given.worker(phase=WorkerPhase.READY), Drain())
    assert perform_action(worker, Drain(), now=given.moment("10:00"), author="otto") is worker


@pytest.mark.parametrize("phase", HOSTS)
def test_a_cancelled_drain_leads_back_to_where_it_began(phase: WorkerPhase) -> None:
    before = given.worker(phase=phase, history=given.history("STARTING", phase))
    worker = act(act(before, Drain()), Undrain())
    assert (worker.status.phase, worker.status.drain_deadline_at) == (phase, None)
    assert worker.spec.wanted_state == "running"


@pytest.mark.parametrize(
    ("licensed", "phase"),
    [(True, WorkerPhase.READY), (False, WorkerPhase.READY_UNLICENSED), (None, WorkerPhase.READY_UNLICENSED)],
)
def test_a_drain_whose_beginning_is_forgotten_leads_back_by_the_licence(licensed: object, phase: WorkerPhase) -> None:
    worker = given.changed(given.worker(phase=WorkerPhase.DRAINING), {"status": {"cml": {"licensed": licensed}}})
    assert act(worker, Undrain()).status.phase is phase


def test_a_repeated_undrain_changes_nothing() -> None:
    worker = given.worker(phase=WorkerPhase.READY)
    assert act(worker, Undrain()) is worker


@pytest.mark.parametrize("phase", [one for one in WorkerPhase if one not in {*HOSTING_PHASES, WorkerPhase.DRAINING}])
def test_only_what_may_host_can_be_drained_or_undrained(phase: WorkerPhase) -> None:
    for action in (Drain(), Undrain()):
        with pytest.raises(IllegalStep, match=rf"w1 is {phase}: no (un)?drain; .*: \w+"):
            act(given.worker(phase=phase), action)


def test_what_is_drained_is_undrained_and_not_resumed() -> None:
    with pytest.raises(IllegalStep, match="undrain it"):
        act(given.worker(phase=WorkerPhase.DRAINING, wanted_state="stopped"), Resume())
    with pytest.raises(IllegalStep, match="resume it"):
        act(given.worker(phase=WorkerPhase.STOPPED), Undrain())


@pytest.mark.parametrize("generation", [3, 4])
async def test_a_failed_worker_that_is_paused_is_not_tried_again_for_that(generation: int) -> None:
    failed = given.worker(phase=WorkerPhase.FAILED, generation=4, observed_generation=generation)
    known = generation == failed.metadata.generation
    paused = act(failed, Pause())
    assert paused.metadata.generation == failed.metadata.generation + 1
    assert (paused.status.observed_generation == paused.metadata.generation) is known
    resumed = act(paused, Resume())
    assert resumed.status.observed_generation != resumed.metadata.generation, "who wants it to run wants it tried"
    stage = Stage()
    await stage.put(failed)
    patched = await stage[OTTO].patch(W1, {"spec": {"wanted_state": "stopped"}})
    assert patched == given.changed(paused, {"metadata": {"resource_version": patched.metadata.resource_version}})
    other = await stage[OTTO].patch(W1, {"spec": {"lab_track": "ccnp"}})
    assert other.status.observed_generation != other.metadata.generation


def test_pause_and_resume_say_what_is_wanted() -> None:
    paused = act(given.worker(phase=WorkerPhase.ACTIVE, generation=3), Pause())
    assert (paused.spec.wanted_state, paused.metadata.generation) == ("stopped", 4)
    assert act(paused, Pause()) is paused
    resumed = act(paused, Resume())
    assert (resumed.spec.wanted_state, resumed.metadata.generation) == ("running", 5)
    assert act(resumed, Resume()) is resumed


def test_a_snooze_lasts_as_long_as_is_asked_or_as_the_spec_says() -> None:
    worker = given.worker(phase=WorkerPhase.READY)
    assert act(worker, Snooze(minutes=5)).status.idle.snoozed_until == NOW + timedelta(minutes=5)
    assert act(worker, Snooze()).status.idle.snoozed_until == NOW + timedelta(minutes=60)


def test_a_snooze_puts_off_a_pause_that_was_announced() -> None:
    soon = NOW + timedelta(minutes=2)
    verdict = IdleVerdict(idle=True, reason="quiet", judged_at=NOW, idle_since=NOW, pause_at=soon)
    worker = given.changed(given.worker(phase=WorkerPhase.READY), {"status": {"idle": verdict}})
    idle = act(worker, Snooze(minutes=30)).status.idle
    assert (idle.pause_at, idle.reason) == (NOW + timedelta(minutes=30), "quiet")


def test_another_licence_is_named_by_reference_and_what_failed_is_tried_again() -> None:
    failed = given.worker(phase=WorkerPhase.FAILED, failure="LicenceRefused", last_error="no", retry_count=3)
    worker = act(failed, License(license_token="env:CML_OTHER", license_flavour=LicenseFlavour.PERSONAL))
    assert (worker.spec.cml.license_token, worker.spec.cml.license_flavour) == ("env:CML_OTHER", "personal")
    assert worker.metadata.generation == failed.metadata.generation + 1
    assert (worker.status.failure, worker.status.last_error, worker.status.retry_count) == ("", "", 0)
    assert worker.status.retry_at == NOW


def test_a_licence_without_a_new_token_only_tries_again_with_the_one_it_has() -> None:
    worker = given.changed(given.worker(phase=WorkerPhase.READY), {"spec": {"cml": {"license_token": "env:CML_T"}}})
    assert act(worker, License()) is worker
    waiting = given.changed(worker, {"status": {"phase": WorkerPhase.READY_UNLICENSED, "retry_at": NOW}})
    assert act(waiting, License()).status.retry_at is None
    with pytest.raises(Invalid, match="has no licence token"):
        act(given.worker(phase=WorkerPhase.READY), License())


def test_a_licence_does_not_forget_a_failure_of_another_kind() -> None:
    failed = given.worker(phase=WorkerPhase.FAILED, failure="LaunchFailed", last_error="no room", retry_count=3)
    worker = act(failed, License(license_token="env:CML_OTHER"))
    assert (worker.status.failure, worker.status.retry_count) == ("LaunchFailed", 3)


def test_telemetry_is_switched_in_the_spec() -> None:
    worker = act(given.worker(phase=WorkerPhase.READY), Telemetry(enabled=True))
    assert worker.spec.cml.telemetry
    assert act(worker, Telemetry(enabled=True)) is worker


async def test_a_licence_token_written_in_clear_is_sealed_before_anybody_sees_it() -> None:
    stage = Stage()
    await stage.put(given.worker())
    made = await stage[OTTO].act(W1, License(license_token="plain:secret-token"))
    assert made.spec.cml.license_token is not None
    assert made.spec.cml.license_token.startswith("sealed:")


def test_a_pools_worker_is_not_paused_because_the_pool_would_undo_it() -> None:
    owner = Owner(kind="LabWorkerPool", name="ccna", uid="u")
    seated = given.worker(phase=WorkerPhase.ACTIVE, owner=owner)
    told = "belongs to pool ccna, which .* would undo it; lower min_workers of ccna .* or drain"
    with pytest.raises(Refused, match=told):
        act(seated, Pause())
    assert act(seated, Drain()).status.phase is WorkerPhase.DRAINING
    paused = given.worker(phase=WorkerPhase.STOPPED, owner=owner, wanted_state="stopped")
    assert act(paused, Pause()) is paused
    leaving = given.worker(phase=WorkerPhase.ACTIVE, owner=owner, deletion_timestamp=given.moment("09:00"))
    assert act(leaving, Pause()).spec.wanted_state == "stopped"
    alone = given.worker(phase=WorkerPhase.ACTIVE, owner=Owner(kind="Other", name="x", uid="u"))
    assert act(alone, Pause()).spec.wanted_state == "stopped"


@pytest.mark.parametrize("action", [Drain(), Undrain(), Pause(), Resume(), Snooze()])
def test_nothing_can_be_done_with_a_worker_that_is_gone(action: Action) -> None:
    gone = given.worker(phase=WorkerPhase.TERMINATED, history=given.history("STOPPED", "TERMINATED"))
    with pytest.raises(IllegalStep, match=r"(?s)w1 is TERMINATED: .*make another.*its story"):
        act(gone, action)


@pytest.mark.parametrize("action", [Undrain(), Resume(), Snooze()])
def test_nothing_brings_back_a_worker_that_is_to_be_deleted(action: Action) -> None:
    with pytest.raises(Refused, match="being deleted"):
        act(given.worker(phase=WorkerPhase.DRAINING, deletion_timestamp=NOW), action)


def test_the_drain_of_a_worker_that_is_to_be_deleted_can_be_made_shorter() -> None:
    worker = given.worker(phase=WorkerPhase.DRAINING, deletion_timestamp=NOW)
    assert act(worker, Drain(deadline_minutes=1)).status.drain_deadline_at == NOW + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("phase", "follows"),
    [
        (_S.PENDING, _S.TERMINATED),
        (_S.SCHEDULED, _S.TERMINATED),
        (_S.INSTANTIATING, _S.STOPPING),
        (_S.RUNNING, _S.COLLECTING),
    ],
)
def test_a_session_that_is_ended_goes_by_way_of_what_is_on_its_worker(phase: _S, follows: _S) -> None:
    ended = act(given.session(phase=phase), Terminate(reason="enough"))
    assert (ended.status.phase, ended.status.outcome) == (follows, _S.TERMINATED)
    assert (ended.status.outcome_reason, ended.status.history[-1].reason) == ("enough", "enough")
    assert act(ended, Terminate()) is ended


@pytest.mark.parametrize("phase", [_S.COMPLETED, _S.FAILED, _S.TERMINATED, _S.EXPIRED, _S.COLLECTING, _S.STOPPING])
def test_a_session_that_ends_already_is_left_alone(phase: _S) -> None:
    session = given.session(phase=phase, outcome=_S.COMPLETED)
    assert act(session, Terminate()) is session


def test_a_session_whose_start_failed_is_not_tried_again_once_it_is_ended() -> None:
    ended = act(given.session(phase=_S.STOPPING, outcome=_S.FAILED), Terminate())
    assert (ended.status.phase, ended.status.outcome) == (_S.STOPPING, _S.TERMINATED)


def test_an_extension_moves_the_end_and_the_claim() -> None:
    session = given.session(
        phase=_S.RUNNING,
        ends_at=given.moment("11:00"),
        expires_at=given.moment("11:00"),
        claim=given.claim("08:45", "11:10"),
    )
    later = act(session, Extend(minutes=30), longest=timedelta(minutes=150))
    assert (later.status.ends_at, later.status.expires_at) == (given.moment("11:30"), given.moment("11:30"))
    assert later.status.claim.end == given.moment("11:40")
    assert later.spec == session.spec


@pytest.mark.parametrize("phase", [_S.PENDING, _S.SCHEDULED, _S.INSTANTIATING])
def test_a_booked_session_can_be_extended_before_it_runs(phase: _S) -> None:
    session = given.session(phase=phase, ends_at=given.moment("11:00"))
    assert act(session, Extend(minutes=30)).status.ends_at == given.moment("11:30")


def test_a_session_without_a_slot_can_be_extended_once_it_runs() -> None:
    with pytest.raises(Refused, match="no end yet"):
        act(given.asap(), Extend(minutes=5))
    running = given.asap(
        phase=_S.RUNNING,
        ends_at=given.moment("11:00"),
        expires_at=given.moment("09:30"),
        history=given.history(_S.RUNNING),
    )
    later = act(running, Extend(minutes=60), longest=timedelta(minutes=180))
    assert (later.status.ends_at, later.status.expires_at) == (given.moment("12:00"), given.moment("09:30"))
    with pytest.raises(Refused, match="180 minutes"):
        act(running, Extend(minutes=61), longest=timedelta(minutes=180))


@pytest.mark.parametrize(
    "phase", [_S.COLLECTING, _S.STOPPING, *(one for one in _S if one in {_S.COMPLETED, _S.FAILED})]
)
def test_what_ends_cannot_be_extended(phase: _S) -> None:
    with pytest.raises(IllegalStep):
        act(given.session(phase=phase, ends_at=given.moment("11:00")), Extend(minutes=5))


def test_an_extension_that_is_over_already_or_of_what_is_to_be_deleted_is_refused() -> None:
    with pytest.raises(Refused, match="over by now"):
        act(given.session(phase=_S.RUNNING, ends_at=given.moment("07:00")), Extend(minutes=60))
    with pytest.raises(Refused, match="being deleted"):
        act(given.session(phase=_S.RUNNING, ends_at=given.moment("11:00"), deletion_timestamp=NOW), Extend(minutes=60))


@pytest.mark.parametrize(
    ("resource", "action"),
    [
        (given.worker(), Extend(minutes=1)),
        (given.session(), Drain()),
        (given.pool(), Pause()),
        (given.settings(), Drain()),
    ],
)
def test_each_kind_has_its_own_actions(resource: Any, action: Action) -> None:
    with pytest.raises(Invalid, match="has no action"):
        act(resource, action)


async def test_an_action_is_committed_with_its_event() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY))
    start = await stage.revision()
    done = await stage[OTTO].act(W1, Drain())
    assert await stage[ROOT].get(W1) == done
    (event,) = await stage.told(start)
    assert (event.type, event.time) == ("worker.status.updated", NOW)
    assert b'"reason":"drain requested"' in bytes(event.data)


async def test_an_action_that_changes_nothing_spends_no_revision() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY))
    revision = await stage.revision()
    await stage[OTTO].act(W1, Undrain())
    assert await stage.revision() == revision


async def test_an_action_that_is_tried_out_leaves_nothing() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY))
    revision = await stage.revision()
    assert (await stage[OTTO].act(W1, Drain(), dry_run=True)).status.phase is WorkerPhase.DRAINING
    assert await stage.revision() == revision


async def test_who_may_act_on_what() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY))
    await stage.put(given.session(owner="ada"))
    for caller in (ADA, ANNA, service(WORKER_CONTROLLER)):
        with pytest.raises(Forbidden):
            await stage[caller].act(W1, Drain())
    for caller in (BOB, ANNA):
        with pytest.raises(Gone, match="there is no LabletSession s1 in namespace default"):
            await stage[caller].act(S1, Terminate())
    assert (await stage[ADA].act(S1, Terminate())).status.phase is _S.TERMINATED


@pytest.mark.parametrize("minutes", [0, -1, 366 * 24 * 60 + 1, 2**31, 10**30])
def test_minutes_are_at_most_those_of_a_year(minutes: int) -> None:
    running = given.session(phase=_S.RUNNING, ends_at=given.moment("11:00"))
    worker = given.worker(phase=WorkerPhase.READY)
    for resource, action in (
        (running, Extend(minutes=minutes)),
        (worker, Drain(deadline_minutes=minutes)),
        (worker, Snooze(minutes=minutes)),
    ):
        with pytest.raises(Invalid, match="at most a year"):
            act(resource, action)


@pytest.mark.parametrize("year", [2100, 2101, 9999])
def test_no_session_is_extended_beyond_the_years_that_can_be_booked(year: int) -> None:
    session = given.session(phase=_S.RUNNING, ends_at=datetime(year, 12, 31, 23, tzinfo=UTC))
    with pytest.raises(Invalid, match="before the year 2101"):
        act(session, Extend(minutes=366 * 24 * 60))


async def test_a_learner_extends_within_what_the_definition_allows_and_staff_beyond() -> None:
    stage = Stage()
    await stage.put(active(max_duration_minutes=150))
    await stage.put(given.session(owner="ada", phase=_S.RUNNING, ends_at=given.moment("11:00")))
    await stage[ADA].act(S1, Extend(minutes=30))
    with pytest.raises(Refused, match="150 minutes"):
        await stage[ADA].act(S1, Extend(minutes=1))
    extended = await stage[OTTO].act(S1, Extend(minutes=60))
    assert extended.status.ends_at == given.moment("12:30")
    assert (await stage.types())[-2:] == ["lablet.session.updated"] * 2


def test_every_step_of_a_worker_that_the_plane_takes_is_one_of_drain_and_undrain() -> None:
    mine = {(step.source, step.target) for step in WORKER_MACHINE.steps if step.by == CONTROL_PLANE}
    there = {(phase, WorkerPhase.DRAINING) for phase in HOSTING_PHASES}
    assert mine == there | {(target, source) for source, target in there}
