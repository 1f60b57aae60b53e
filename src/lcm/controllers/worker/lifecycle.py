"""The lifecycle of workers: look, decide, do one thing, return when to look again. `controller` runs it.

`DECIDERS` names the function that decides for each phase, `REACTIONS` the one that handles an effect's outcome.
"""

from collections.abc import Callable, Mapping
from typing import Final

import structlog
from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref
from lcm.controllers.runtime.lifecycle import Life, Lifecycle, RaisedAlerts, Report, Wait, poll_again
from lcm.controllers.runtime.reconcile import DONE, Requeue
from lcm.controllers.worker import failing, launching, licensing, serving, stopping
from lcm.controllers.worker.alerts import ALERT_NAMES, STUCK, find_complaints, unchanged_alerts
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
    WorkerRules,
    WorkerView,
)
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import Truth, has_condition, shorten_text
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.worker import LabWorker, LabWorkerSpec, LabWorkerStatus, WorkerCondition, WorkerPhase

DECIDERS: Final[Mapping[WorkerPhase, Decide]] = {
    WorkerPhase.PENDING: launching.decide_pending,
    WorkerPhase.PROVISIONING_EC2: launching.decide_provisioning,
    WorkerPhase.EC2_READY: launching.decide_ec2_ready,
    WorkerPhase.STARTING: launching.decide_starting,
    WorkerPhase.READY_UNLICENSED: licensing.decide_unlicensed,
    WorkerPhase.LICENSING: licensing.decide_licensing,
    WorkerPhase.READY: serving.decide_ready,
    WorkerPhase.ACTIVE: serving.decide_active,
    WorkerPhase.DRAINING: stopping.decide_draining,
    WorkerPhase.UNLICENSING: licensing.decide_unlicensing,
    WorkerPhase.STOPPING: stopping.decide_stopping,
    WorkerPhase.STOPPED: stopping.decide_stopped,
    WorkerPhase.TERMINATING_EC2: stopping.decide_terminating,
    WorkerPhase.FAILED: failing.decide_failed,
}
REACTIONS: Final[Mapping[type[Effect], Callable[[WorkerView, EffectOutcome], Decision]]] = {
    LaunchMachine: launching.after_launch,
    StartMachine: launching.after_start,
    RebootMachine: launching.after_reboot,
    Register: licensing.after_register,
    Deregister: licensing.after_deregister,
    SetTelemetry: serving.after_set_telemetry,
    StopMachine: stopping.after_stop_or_remove,
    RemoveMachine: stopping.after_stop_or_remove,
}
"""What follows an effect's outcome. Effects that are not here are judged by the next look alone."""

_RESTING_PHASES: Final = frozenset({WorkerPhase.READY, WorkerPhase.ACTIVE, WorkerPhase.STOPPED})
"""Phases in which a worker waits for somebody to need it, or no longer."""
_log: Final = structlog.get_logger()


def decide(view: WorkerView) -> Decision:
    """Decide what a worker needs next."""
    decider = DECIDERS.get(view.status.phase)
    return decider(view) if decider else Wait()


def react(view: WorkerView, effect: Effect, outcome: EffectOutcome) -> Decision:
    """Decide what follows from an effect's outcome."""
    reaction = REACTIONS.get(type(effect))
    return reaction(view, outcome) if reaction else poll_again(view)


def rest_of(worker: LabWorker, occupants: Occupants, *, monitored: bool) -> Requeue | None:
    """Return whether nothing follows from the passing of time for a worker; None if it does not rest.

    Whatever else may happen to it is a change. The idle countdown is waited for by the look that began it.
    """
    status = worker.status
    calm = not status.unhealthy_since and not status.remedies and not status.failure and not status.last_error
    quiet = worker.metadata.deletion_timestamp is None and not occupants.expects_session(worker)
    reachable = not has_condition(status.conditions, WorkerCondition.REACHABLE, Truth.FALSE)
    return DONE if monitored and status.phase in _RESTING_PHASES and calm and quiet and reachable else None


def is_serving_on(worker: LabWorker | None) -> bool:
    """Return whether nothing follows for a worker from how far the sessions on it are."""
    return worker is not None and worker.status.phase is WorkerPhase.ACTIVE


class WorkerLifecycle(Lifecycle[LabWorker, WorkerView, LabWorkerStatus, Effect]):
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
        life = Life(
            look=self._look,
            decide=decide,
            act=hands.do,
            react=react,
            find_alerts=find_complaints,
            unchanged_alerts=unchanged_alerts,
            complete=self._complete,
        )
        super().__init__(plane, cache, clock, life, RaisedAlerts(plane, LabWorker, ALERT_NAMES, stuck=STUCK))
        self._eyes = eyes
        self._hosts = hands.hosts
        self._rules = rules
        self._occupants = occupants

    async def _look(self, worker: LabWorker) -> WorkerView:
        rules = self._rules()
        sessions = self._occupants.of(worker, self._clock.now(), rules.horizon)
        return await self._eyes.look(worker, sessions, rules)

    def _complete(self, view: WorkerView, decision: Wait | Report[LabWorkerStatus]) -> Wait | Report[LabWorkerStatus]:
        """Report conditions with each status, and on their own when they changed with the spec, settings or sessions.

        What a person must fix is reported while there is nothing else to do.
        """
        if isinstance(decision, Report):
            return Report(self._with_conditions(view, decision.status), decision.reason)
        if view.status.phase is WorkerPhase.TERMINATED:
            return decision
        told = {"last_error": shorten_text(view.blocker.why)} if view.blocker else {}
        status = self._with_conditions(view, replace(view.status, **told))
        return Report(status) if status != view.status else decision

    async def _write(self, view: WorkerView, report: Report[LabWorkerStatus]) -> None:
        try:
            await super()._write(view, report)
        except NoRoom as error:
            report = licensing.report_no_seat(view, str(error))
            await super()._write(view, Report(self._with_conditions(view, report.status)))
        phase = report.status.phase
        if phase is not view.status.phase:
            _log.info("worker stepped", worker=view.worker.metadata.name, phase=str(phase), reason=report.reason)
        if phase is WorkerPhase.TERMINATED:
            await self._hosts.forget(view.worker)

    def _with_conditions(self, view: WorkerView, status: LabWorkerStatus) -> LabWorkerStatus:
        if status.phase is not WorkerPhase.FAILED:  # FAILED still has to notice a changed spec
            status = replace(status, observed_generation=view.worker.metadata.generation)
        return with_conditions(
            view.worker,
            status,
            sessions=view.sessions,
            require_licensed=view.rules.require_licensed,
            now=self._clock.now(),
            template=self._template_of(view.worker),
        )

    def _template_of(self, worker: LabWorker) -> LabWorkerSpec | None:
        """Return the spec that a worker's pool makes workers by; None if no pool made it, or none is known.

        A machine of one of the template's smaller types is meant to be smaller.
        """
        owner, namespace = worker.metadata.owner, worker.metadata.namespace
        pool = self._cache.get(Ref(LabWorkerPool, owner.name, namespace)) if owner else None
        template = self._cache.get(Ref(WorkerTemplate, pool.spec.template, namespace)) if pool else None
        if template is None or worker.spec.aws.instance_type not in template.spec.smaller_types:
            return template.spec.worker if template else None
        wanted, own = template.spec.worker, worker.spec.aws
        types = {"instance_type": own.instance_type, "instance_type_alternatives": own.instance_type_alternatives}
        return replace(wanted, aws=replace(wanted.aws, **types))
