"""The lifecycle of workers: look, decide, do one thing, say when again. Run by `controller` through the runtime.

What each phase decides stands in the file named in `DECIDERS`; what an effect's answer means in `REACTIONS`.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.runtime.reconcile import DONE, Again, after, at
from lcm.controllers.worker import failing, hosting, launching, licensing, stopping
from lcm.controllers.worker import hosting as draining
from lcm.controllers.worker import launching as booting
from lcm.controllers.worker.alerts import NAMES, STUCK, complaints, standing, stuck
from lcm.controllers.worker.conditions import conditioned
from lcm.controllers.worker.effects import Hands
from lcm.controllers.worker.look import Eyes
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import (
    Ask,
    Decide,
    Decision,
    Deregister,
    Do,
    Effect,
    Failure,
    Outcome,
    RebootMachine,
    Register,
    RemoveMachine,
    Report,
    Rules,
    SetTelemetry,
    StartMachine,
    StopMachine,
    View,
    Wait,
    soon,
)
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.worker import LabWorker, LabWorkerStatus, WorkerPhase
from lcm.model.telemetry.alert import Severity

DECIDERS: Final[Mapping[WorkerPhase, Decide]] = {
    WorkerPhase.PENDING: launching.pending,
    WorkerPhase.PROVISIONING_EC2: launching.provisioning,
    WorkerPhase.EC2_READY: launching.ec2_ready,
    WorkerPhase.STARTING: booting.starting,
    WorkerPhase.READY_UNLICENSED: licensing.unlicensed,
    WorkerPhase.LICENSING: licensing.registering,
    WorkerPhase.READY: hosting.ready,
    WorkerPhase.ACTIVE: hosting.active,
    WorkerPhase.DRAINING: draining.draining,
    WorkerPhase.UNLICENSING: licensing.unlicensing,
    WorkerPhase.STOPPING: stopping.stopping,
    WorkerPhase.STOPPED: stopping.stopped,
    WorkerPhase.TERMINATING_EC2: stopping.terminating,
    WorkerPhase.FAILED: failing.failing,
}
REACTIONS: Final[Mapping[type[Effect], Callable[[View, Outcome], Decision]]] = {
    Ask: launching.launched,
    StartMachine: booting.started,
    RebootMachine: booting.rebooted,
    Register: licensing.registered,
    Deregister: licensing.deregistered,
    SetTelemetry: hosting.told,
    StopMachine: stopping.asked,
    RemoveMachine: stopping.asked,
}
"""Effects that are not here are judged by the next look alone."""

_TEXT: Final = 2000
_log: Final = structlog.get_logger()


def decide(view: View) -> Decision:
    """Say what a worker needs next."""
    return DECIDERS[view.status.phase](view)


def react(view: View, effect: Effect, outcome: Outcome) -> Decision:
    """Say what an effect's answer means."""
    reaction = REACTIONS.get(type(effect))
    return reaction(view, outcome) if reaction else soon(view)


_Gist = tuple[Severity, str]
"""What of a complaint is told again when it changes."""


class Lifecycle:
    """Takes each worker one step further."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        eyes: Eyes,
        hands: Hands,
        *,
        clock: Clock,
        rules: Callable[[], Rules],
        occupants: Occupants,
    ) -> None:
        self._plane = plane
        self._cache = cache
        self._eyes = eyes
        self._hands = hands
        self._clock = clock
        self._rules = rules
        self._occupants = occupants
        self._raised: dict[str, dict[str, _Gist | None]] = {}
        self._uids: dict[Ref[LabWorker], str] = {}
        self._broken: set[str] = set()
        """Workers whose last look met a bug of ours: what was complained of then is not settled by the next."""

    async def reconcile(self, ref: Ref[LabWorker]) -> Again:
        """Look at a worker, decide, do one thing, say when again."""
        worker = self._cache.get(ref)
        self._remember(ref, worker)
        if worker is None:
            return DONE
        rules = self._rules()
        sessions = self._occupants.of(worker, self._clock.now(), rules.horizon)
        if worker.status.phase is WorkerPhase.TERMINATED:
            await self._complain(View(worker, self._clock.now(), rules, sessions))  # most of what was wrong is over
            return DONE
        view = await self._eyes.look(worker, sessions, rules)
        await self._complain(view)
        decision = decide(view)
        if isinstance(decision, Do):
            outcome = await self._hands.do(view, decision.effect)
            refusal = outcome.reason if isinstance(outcome, Failure) else None
            _log.info("effect", worker=ref.name, effect=type(decision.effect).__name__, refused=refusal)
            answered = replace(view, now=self._clock.now())  # an effect may take minutes
            decision = react(answered, decision.effect, outcome)
        again = await self._report(view, decision)
        self._broken.discard(worker.metadata.uid)
        return again

    async def troubled(self, ref: Ref[LabWorker], error: Exception) -> None:
        """Complain of a bug of ours that a worker cannot be helped past."""
        worker = self._cache.get(ref)
        if worker is None:
            return
        self._broken.add(worker.metadata.uid)
        self._raised.get(worker.metadata.uid, {})[STUCK] = None
        bug = type(error).__name__
        await self._plane.complain(ref, stuck(ref.name, bug, f"a bug of ours, please report it: {bug}: {error}"))

    async def _report(self, view: View, decision: Decision) -> Again:
        if isinstance(decision, Wait):
            decision = self._noticed(view) or decision
        if isinstance(decision, Report):
            try:
                await self._step(view, decision)
            except NoRoom as error:
                await self._step(view, licensing.without_a_seat(view, str(error)))
            return after(view.rules.poll)
        assert isinstance(decision, Wait), "an effect is not followed by another"
        return DONE if decision.until is None else at(decision.until, self._clock.now())

    def _noticed(self, view: View) -> Report | None:
        """Report conditions that changed with the spec, the settings or the sessions, and what a person must mend."""
        said = msgspec.structs.replace(view.status, last_error=view.stuck.why[:_TEXT]) if view.stuck else view.status
        status = self._conditioned(view, Report(said))
        return Report(status) if status != view.status else None

    async def _step(self, view: View, report: Report) -> None:
        worker = view.worker
        status = self._conditioned(view, report)
        stepped = await self._plane.step(worker, status, reason=report.reason)
        self._cache.accept(stepped)
        if status.phase is not worker.status.phase:
            _log.info("worker stepped", worker=worker.metadata.name, phase=str(status.phase), reason=report.reason)
        if status.phase is WorkerPhase.TERMINATED:
            await self._hands.hosts.forget(worker)

    def _conditioned(self, view: View, report: Report) -> LabWorkerStatus:
        status = report.status
        if status.phase is not WorkerPhase.FAILED:  # there a change of the spec is still to be noticed
            status = msgspec.structs.replace(status, observed_generation=view.worker.metadata.generation)
        return conditioned(
            view.worker,
            status,
            sessions=len(view.sessions),
            require_licensed=view.rules.require_licensed,
            now=self._clock.now(),
        )

    async def _complain(self, view: View) -> None:
        """Raise what is wrong and settle what no longer is; both may be repeated, so a new leader does all once."""
        ref, uid = ref_of(view.worker), view.worker.metadata.uid
        wrong = {one.alert: one for one in complaints(view)}
        known = self._raised.get(uid)
        kept = standing(view) | ({STUCK} if uid in self._broken else frozenset())
        for name in sorted(set(NAMES if known is None else known) - set(wrong) - kept):
            await self._plane.settle(ref, name)
        gists: dict[str, _Gist | None] = {name: (one.severity, one.reason) for name, one in wrong.items()}
        for name, complaint in wrong.items():
            if known is None or known.get(name) != gists[name]:
                await self._plane.complain(ref, complaint)
        still = {name: known.get(name) if known else None for name in kept if known is None or name in known}
        self._raised[uid] = still | gists

    def _remember(self, ref: Ref[LabWorker], worker: LabWorker | None) -> None:
        """Forget a worker that is gone, also when another has its name."""
        uid, before = worker.metadata.uid if worker else None, self._uids.get(ref)
        if before is not None and before != uid:
            del self._uids[ref]
            self._raised.pop(before, None)
            self._broken.discard(before)
        if uid is not None:
            self._uids[ref] = uid
