"""The lifecycle of workers: look, decide, do one thing, return when to look again. `controller` runs it.

`DECIDERS` names the function that decides for each phase, `REACTIONS` the one that handles an effect's outcome.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.runtime.reconcile import DONE, Requeue, requeue_after, requeue_at
from lcm.controllers.worker import failing, hosting, launching, licensing, stopping
from lcm.controllers.worker import hosting as draining
from lcm.controllers.worker import launching as booting
from lcm.controllers.worker.alerts import ALERT_NAMES, STUCK, find_complaints, stuck_complaint, unchanged_alerts
from lcm.controllers.worker.conditions import with_conditions
from lcm.controllers.worker.effects import WorkerEffects
from lcm.controllers.worker.look import WorkerLook
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import (
    Decide,
    Decision,
    Deregister,
    Effect,
    EffectOutcome,
    LaunchMachine,
    RebootMachine,
    Register,
    RemoveMachine,
    SetTelemetry,
    StartMachine,
    StopMachine,
    WorkerDo,
    WorkerFailure,
    WorkerReport,
    WorkerRules,
    WorkerView,
    WorkerWait,
    poll_again,
)
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase
from lcm.model.telemetry.alert import Severity

DECIDERS: Final[Mapping[WorkerPhase, Decide]] = {
    WorkerPhase.PENDING: launching.decide_pending,
    WorkerPhase.PROVISIONING_EC2: launching.decide_provisioning,
    WorkerPhase.EC2_READY: launching.decide_ec2_ready,
    WorkerPhase.STARTING: booting.decide_starting,
    WorkerPhase.READY_UNLICENSED: licensing.decide_unlicensed,
    WorkerPhase.LICENSING: licensing.decide_licensing,
    WorkerPhase.READY: hosting.decide_ready,
    WorkerPhase.ACTIVE: hosting.decide_active,
    WorkerPhase.DRAINING: draining.decide_draining,
    WorkerPhase.UNLICENSING: licensing.decide_unlicensing,
    WorkerPhase.STOPPING: stopping.decide_stopping,
    WorkerPhase.STOPPED: stopping.decide_stopped,
    WorkerPhase.TERMINATING_EC2: stopping.decide_terminating,
    WorkerPhase.FAILED: failing.decide_failed,
}
REACTIONS: Final[Mapping[type[Effect], Callable[[WorkerView, EffectOutcome], Decision]]] = {
    LaunchMachine: launching.after_launch,
    StartMachine: booting.after_start,
    RebootMachine: booting.after_reboot,
    Register: licensing.after_register,
    Deregister: licensing.after_deregister,
    SetTelemetry: hosting.after_set_telemetry,
    StopMachine: stopping.after_stop_or_remove,
    RemoveMachine: stopping.after_stop_or_remove,
}
"""What follows an effect's outcome. Effects that are not here are judged by the next look alone."""

_log: Final = structlog.get_logger()


def decide(view: WorkerView) -> Decision:
    """Decide what a worker needs next."""
    return DECIDERS[view.status.phase](view)


def react(view: WorkerView, effect: Effect, outcome: EffectOutcome) -> Decision:
    """Decide what follows from an effect's outcome."""
    reaction = REACTIONS.get(type(effect))
    return reaction(view, outcome) if reaction else poll_again(view)


_AlertKey = tuple[Severity, str]
"""Severity and reason of a complaint. When they change, it is raised again."""


class WorkerLifecycle:
    """Takes each worker one step further."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        eyes: WorkerLook,
        hands: WorkerEffects,
        *,
        clock: Clock,
        rules: Callable[[], WorkerRules],
        occupants: Occupants,
    ) -> None:
        self._plane = plane
        self._cache = cache
        self._look = eyes
        self._effects = hands
        self._clock = clock
        self._rules = rules
        self._occupants = occupants
        self._raised_alerts: dict[str, dict[str, _AlertKey | None]] = {}
        self._uids: dict[Ref[LabWorker], str] = {}
        self._buggy: set[str] = set()
        """Workers whose last look met a bug of ours. The alert of that bug is not settled by the next look."""

    async def reconcile(self, ref: Ref[LabWorker]) -> Requeue:
        """Look at a worker, decide, do one thing, and return when to look again."""
        worker = self._cache.get(ref)
        self._track(ref, worker)
        if worker is None:
            return DONE
        rules = self._rules()
        sessions = self._occupants.of(worker, self._clock.now(), rules.horizon)
        if worker.status.phase is WorkerPhase.TERMINATED:
            await self._sync_alerts(WorkerView(worker, self._clock.now(), rules, sessions))  # settles most alerts
            return DONE
        view = await self._look.look(worker, sessions, rules)
        await self._sync_alerts(view)
        decision = decide(view)
        if isinstance(decision, WorkerDo):
            outcome = await self._effects.do(view, decision.effect)
            refusal = outcome.reason if isinstance(outcome, WorkerFailure) else None
            _log.info("effect", worker=ref.name, effect=type(decision.effect).__name__, refused=refusal)
            answered = replace(view, now=self._clock.now())  # an effect may take minutes
            decision = react(answered, decision.effect, outcome)
        again = await self._apply_decision(view, decision)
        self._buggy.discard(worker.metadata.uid)
        return again

    async def report_bug(self, ref: Ref[LabWorker], error: Exception) -> None:
        """Raise an alert for a bug of ours that keeps a worker from being reconciled."""
        worker = self._cache.get(ref)
        if worker is None:
            return
        self._buggy.add(worker.metadata.uid)
        self._raised_alerts.get(worker.metadata.uid, {})[STUCK] = None
        bug = type(error).__name__
        await self._plane.raise_alert(
            ref, stuck_complaint(ref.name, bug, f"a bug of ours, please report it: {bug}: {error}")
        )

    async def _apply_decision(self, view: WorkerView, decision: Decision) -> Requeue:
        if isinstance(decision, WorkerWait):
            decision = self._report_changes(view) or decision
        if isinstance(decision, WorkerReport):
            try:
                await self._write_status(view, decision)
            except NoRoom as error:
                await self._write_status(view, licensing.report_no_seat(view, str(error)))
            return requeue_after(view.rules.poll)
        assert isinstance(decision, WorkerWait), "an effect is not followed by another"
        return DONE if decision.until is None else requeue_at(decision.until, self._clock.now())

    def _report_changes(self, view: WorkerView) -> WorkerReport | None:
        """Report conditions that changed with the spec, settings or sessions, and what a person must fix."""
        said = (
            msgspec.structs.replace(view.status, last_error=shorten_text(view.blocker.why))
            if view.blocker
            else view.status
        )
        status = self._with_conditions(view, WorkerReport(said))
        return WorkerReport(status) if status != view.status else None

    async def _write_status(self, view: WorkerView, report: WorkerReport) -> None:
        worker = view.worker
        status = self._with_conditions(view, report)
        stepped = await self._plane.step(worker, status, reason=report.reason)
        self._cache.accept(stepped)
        if status.phase is not worker.status.phase:
            _log.info("worker stepped", worker=worker.metadata.name, phase=str(status.phase), reason=report.reason)
        if status.phase is WorkerPhase.TERMINATED:
            await self._effects.hosts.forget(worker)

    def _with_conditions(self, view: WorkerView, report: WorkerReport) -> LabWorkerStatus:
        status = report.status
        if status.phase is not WorkerPhase.FAILED:  # FAILED still has to notice a changed spec
            status = msgspec.structs.replace(status, observed_generation=view.worker.metadata.generation)
        return with_conditions(
            view.worker,
            status,
            sessions=len(view.sessions),
            require_licensed=view.rules.require_licensed,
            now=self._clock.now(),
        )

    async def _sync_alerts(self, view: WorkerView) -> None:
        """Raise what is wrong and settle what no longer is.

        Both may be repeated, so a new leader does all of it once.
        """
        ref, uid = ref_of(view.worker), view.worker.metadata.uid
        wrong = {one.alert: one for one in find_complaints(view)}
        known = self._raised_alerts.get(uid)
        kept = unchanged_alerts(view) | ({STUCK} if uid in self._buggy else frozenset())
        for name in sorted(set(ALERT_NAMES if known is None else known) - set(wrong) - kept):
            await self._plane.clear_alert(ref, name)
        gists: dict[str, _AlertKey | None] = {name: (one.severity, one.reason) for name, one in wrong.items()}
        for name, complaint in wrong.items():
            if known is None or known.get(name) != gists[name]:
                await self._plane.raise_alert(ref, complaint)
        still = {name: known.get(name) if known else None for name in kept if known is None or name in known}
        self._raised_alerts[uid] = still | gists

    def _track(self, ref: Ref[LabWorker], worker: LabWorker | None) -> None:
        """Record a worker's uid, and forget a worker that is gone, also when another one has its name."""
        uid, before = worker.metadata.uid if worker else None, self._uids.get(ref)
        if before is not None and before != uid:
            del self._uids[ref]
            self._raised_alerts.pop(before, None)
            self._buggy.discard(before)
        if uid is not None:
            self._uids[ref] = uid
