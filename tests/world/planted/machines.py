"""Planted faults of machines: launches, records, licences, and workers that are taken from under sessions."""

import itertools
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from lcm.control.accounts import licences
from lcm.controllers.discovery import orphans, search
from lcm.controllers.runtime.lifecycle import Do, Failure, enter_phase
from lcm.controllers.worker import alerts, effects, launching, licensing, look, serving, stopping
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.view import Decision, EffectOutcome, EndSessions, StopMachine, WorkerView
from lcm.model.base.errors import Later
from lcm.model.kinds.session import LabletSession, SessionPhase, needs_its_worker
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import LicenceSeat
from lcm.providers.protocols.compute import Launch
from world.checks.licences import UNRETURNED
from world.checks.machines import NO_RECORD, TAKEN, TWO_MACHINES, UNNOTICED
from world.planted.deeds import (
    both,
    busy_worker_is_drained,
    launches_are_not_answered,
    machine_is_nobodys,
    people_want_a_lab_now,
    somebody_terminates_a_machine,
    worker_is_deleted,
)
from world.planted.faults import QUIET, Planted, changed, everywhere

SOMEBODY: Final = people_want_a_lab_now(1, minutes=80)
DRAINED: Final = both(SOMEBODY, busy_worker_is_drained)
LONGER: Final = changed(QUIET, hours=1.5, quiet_hours=1.0)


def token_is_made_for_each_try(patch: pytest.MonkeyPatch) -> None:
    real, numbers = launching.launch_of, itertools.count()

    def anew(worker: LabWorker) -> Launch:
        launch = real(worker)
        return msgspec.structs.replace(launch, token=f"{launch.token}-{next(numbers)}")

    everywhere(patch, real, anew)


def silence_is_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    real = effects.WorkerEffects._on_machine

    async def refused(self: effects.WorkerEffects, view: WorkerView, effect: Any) -> EffectOutcome:
        try:
            return await real(self, view, effect)
        except Later as error:
            return Failure("NoCapacity", str(error))

    patch.setattr(effects.WorkerEffects, "_on_machine", refused)


def orphans_stay_fresh(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, orphans.GRACE, timedelta(days=1_000))


def last_of_a_batch_is_not_imported(patch: pytest.MonkeyPatch) -> None:
    real = search.RegionSearch._import_instances

    async def one_less(self: search.RegionSearch, region: str, source: str, instances: Any) -> Any:
        return await real(self, region, source, instances[:-1])

    patch.setattr(search.RegionSearch, "_import_instances", one_less)


def end_of_a_machine_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, serving.check_machine, lambda _view: None)


def serving_machine_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = look._needs_machine
    everywhere(patch, real, lambda worker, rules: worker.status.phase not in SERVING and real(worker, rules))


def licence_is_forgotten_by_a_drain(patch: pytest.MonkeyPatch) -> None:
    def on(view: WorkerView, why: str) -> Decision:
        return enter_phase(
            view, WorkerPhase.STOPPING, why, cml=msgspec.structs.replace(view.status.cml, licensed=False)
        )

    everywhere(patch, stopping._leave_draining, on)


def licence_is_believed_to_be_returned(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, licensing.decide_unlicensing, licensing._enter_stopping)


def seat_of_a_lost_machine_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = licences.seat_after

    def forgotten(before: LabWorker, after: LabWorker, seat: LicenceSeat | None, now: datetime) -> LicenceSeat | None:
        return None if after.status.phase is WorkerPhase.TERMINATED else real(before, after, seat, now)

    everywhere(patch, real, forgotten)


def busy_worker_is_stopped_as_idle(patch: pytest.MonkeyPatch) -> None:
    real = serving.decide_active

    def stopped(view: WorkerView) -> Decision:
        busy = [one for one in view.sessions if one.status.phase is SessionPhase.RUNNING]
        return Do(StopMachine()) if busy else real(view)

    everywhere(patch, real, stopped)


def running_session_needs_no_worker(patch: pytest.MonkeyPatch) -> None:
    def needs(session: LabletSession, now: datetime, horizon: timedelta) -> bool:
        runs = session.status.phase is SessionPhase.RUNNING
        return not runs and needs_its_worker(session, now, horizon)

    everywhere(patch, needs_its_worker, needs)


def drain_has_no_deadline(patch: pytest.MonkeyPatch) -> None:
    real = stopping.decide_draining

    def at_once(view: WorkerView) -> Decision:
        lingering = [one for one in view.sessions if one.status.phase is SessionPhase.RUNNING]
        names = [(one.metadata.namespace, one.metadata.name) for one in lingering]
        return Do(EndSessions(names, "its worker is drained")) if names else real(view)

    everywhere(patch, real, at_once)


def drain_is_not_warned_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alerts, "_CHECKS", tuple(one for one in alerts._CHECKS if one is not alerts._check_drain_deadline))


MACHINES: Final = (
    Planted("a token is made for each try", TWO_MACHINES, token_is_made_for_each_try, QUIET, launches_are_not_answered),
    Planted(
        "silence is taken for a refusal", TWO_MACHINES, silence_is_taken_for_a_refusal, QUIET, launches_are_not_answered
    ),
    Planted("orphans stay fresh", NO_RECORD, orphans_stay_fresh, QUIET, machine_is_nobodys),
    Planted(
        "the last of a batch is not imported", NO_RECORD, last_of_a_batch_is_not_imported, QUIET, machine_is_nobodys
    ),
    Planted(
        "the end of a machine is not noticed",
        UNNOTICED,
        end_of_a_machine_is_not_noticed,
        QUIET,
        somebody_terminates_a_machine,
    ),
    Planted(
        "a serving machine is not looked at",
        UNNOTICED,
        serving_machine_is_not_looked_at,
        QUIET,
        somebody_terminates_a_machine,
    ),
    Planted("a drain forgets the licence", UNRETURNED, licence_is_forgotten_by_a_drain, QUIET, worker_is_deleted),
    Planted(
        "a licence is believed to be returned", UNRETURNED, licence_is_believed_to_be_returned, QUIET, worker_is_deleted
    ),
    Planted(
        "the seat of a lost machine is forgotten",
        UNRETURNED,
        seat_of_a_lost_machine_is_forgotten,
        QUIET,
        somebody_terminates_a_machine,
    ),
    Planted("a busy worker is stopped as idle", TAKEN, busy_worker_is_stopped_as_idle, LONGER, SOMEBODY),
    Planted("a running session needs no worker", TAKEN, running_session_needs_no_worker, LONGER, DRAINED),
    Planted("a drain has no deadline", TAKEN, drain_has_no_deadline, LONGER, DRAINED),
    Planted("a drain is not warned of", TAKEN, drain_is_not_warned_of, LONGER, DRAINED),
)
