"""The lablet controller: the elected leader takes sessions from their worker to their end.

Started by `compose`. Everything it must remember is in the store, so the next leader continues from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Plane, SessionRef, WorkerRef, ref_of
from lcm.controllers.runtime.election import ElectedController
from lcm.controllers.runtime.lifecycle import share_host_timer
from lcm.controllers.runtime.reconcile import RESYNC, Runtime
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.controllers.session.effects import SessionEffects
from lcm.controllers.session.held_labs import HeldLabs
from lcm.controllers.session.lab_watch import LabWatch
from lcm.controllers.session.lifecycle import SessionLifecycle, rest_of
from lcm.controllers.session.look import LookMemory, SessionLook, find_next_starts
from lcm.controllers.session.sweeping import FileSweep, LabSweep
from lcm.controllers.session.view import SessionRules, is_reclaimed
from lcm.controllers.worker.occupants import Occupants
from lcm.model.base.clock import Clock
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.artifacts import Artifacts
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.system.tasks import run_until_first_ends

LEASE: Final = "lablet-controller"
CONCURRENCY: Final = 64
"""How many sessions are handled at once: a removal may take a minute, a CML that does not answer seconds per look."""

_MIN_POLL: Final = timedelta(seconds=0.1)
_MIN_INTERVAL: Final = timedelta(seconds=0.2)
"""However fast the cloud's time runs, labs are not looked at more often, nor is anything else done."""


@dataclass(frozen=True, slots=True)
class LabletController(ElectedController):
    """The lablet controller of one process."""

    lease = LEASE
    kinds = (LabletSession, LabWorker, LabletDefinition, SystemSettings)
    """Sessions are listed first: what they refer to existed before them."""

    hosts: Hosts
    artifacts: Artifacts
    speed: float = 1.0
    """How fast the cloud's time runs: labs are polled that much more often."""

    async def _work(self, plane: Plane, cache: Cache, settings: CurrentSettings) -> None:
        share_host_timer()
        occupants, rules = await Occupants.follow(cache), settings.derive(self._make_rules)
        eyes = SessionLook(plane, cache, self.hosts, self.clock, occupants, LookMemory(self.clock))
        hands = SessionEffects(plane, self.hosts, self.artifacts, self.clock)

        def wake(ref: SessionRef) -> None:
            runtime.enqueue(ref)

        watch = LabWatch(cache, self.hosts, wake, clock=self.clock, chance=self.chance, rules=rules)
        lifecycle = SessionLifecycle(plane, cache, eyes, hands, clock=self.clock, rules=rules, rest=watch.follow)
        await lifecycle.load_alerts()
        runtime = Runtime(
            LEASE,
            lifecycle.reconcile,
            cache,
            LabletSession,
            clock=self.clock,
            chance=self.chance,
            concurrency=CONCURRENCY,
            resync=lambda: max(RESYNC, rules().watch),
            resting=lambda session: rest_of(session, self.clock.now()),
            concerns=lambda seen: lifecycle.is_concerned(seen.ref),
            report_bug=lifecycle.report_bug,
            counts=self.counts,
        )
        waiting = _WaitingSessions(cache, occupants, self.clock, rules, runtime.enqueue)
        stop = cache.subscribe(waiting.on_change)
        occupants.subscribe(lambda ref, _: waiting.requeue_on(ref))
        try:
            sweep = FileSweep(plane, self.artifacts, cache, self.clock, self.chance, rules)
            held = HeldLabs(plane, self.artifacts, self.clock)
            labs = LabSweep(plane, self.hosts, cache, self.clock, self.chance, held, occupants)
            await run_until_first_ends(runtime.run(), watch.run(), sweep.run(), labs.run())
        finally:
            stop()
            occupants.stop()

    def _make_rules(self, settings: Settings) -> SessionRules:
        usual = SessionRules()
        return SessionRules(
            poll=max(usual.poll / self.speed, _MIN_POLL),
            watch=timedelta(seconds=settings.lablet_watch_interval),
            again=max(usual.again / self.speed, _MIN_INTERVAL),
            told_every=max(usual.told_every / self.speed, _MIN_INTERVAL),
            settle=max(usual.settle / self.speed, _MIN_INTERVAL),
            kept_for=timedelta(days=settings.artifacts_retention_days),
            behind_gateway=settings.lab_access == "gateway",
        )


@dataclass(frozen=True, slots=True)
class _WaitingSessions:
    """Requeues the sessions that wait for a worker, or for others to have started there."""

    cache: Cache
    occupants: Occupants
    clock: Clock
    rules: Callable[[], SessionRules]
    poke: Callable[[SessionRef], object]

    def on_change(self, seen: ObjectChange) -> None:
        """Requeue the sessions of a worker that changed; all of them if the cloud takes its machine away."""
        if seen.ref.kind is not LabWorker:
            return
        self.requeue_on(seen.ref)
        worker = seen.resource if isinstance(seen.resource, LabWorker) else None
        if worker is not None and is_reclaimed(worker):
            for session in self.occupants.on(worker):
                self.poke(ref_of(session))

    def requeue_on(self, ref: WorkerRef) -> None:
        """Requeue the sessions whose turn it is to start on a worker."""
        worker = self.cache.get(ref)
        others = self.occupants.on(worker) if worker else ()
        for session in find_next_starts(others, self.rules().starts, self.clock.now()):
            self.poke(ref_of(session))
