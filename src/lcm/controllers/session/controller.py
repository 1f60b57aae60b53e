"""The lablet controller: of all processes that run one, the elected one takes sessions from their worker to their end.

Put together by `compose`. Everything it knows is in the store, so that whoever is elected next goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Seen, SessionRef, WorkerRef, ref_of
from lcm.controllers.runtime.election import Election
from lcm.controllers.runtime.reconcile import RESYNC, Runtime
from lcm.controllers.runtime.settings import Current
from lcm.controllers.session.effects import Hands
from lcm.controllers.session.lifecycle import Lifecycle, rests
from lcm.controllers.session.look import Eyes, Memory
from lcm.controllers.session.sweeping import LabSweep, Sweep
from lcm.controllers.session.view import Rules
from lcm.controllers.worker.occupants import Occupants
from lcm.model.base.clock import Clock, Stopwatch
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.artifacts import Artifacts
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.system.tasks import together

LEASE: Final = "lablet-controller"
CONCURRENCY: Final = 64
"""How many sessions are looked at or acted on at once: a removal may take a minute, a silent CML seconds a look."""
KINDS: Final = (LabletSession, LabWorker, LabletDefinition, SystemSettings)
"""Sessions are listed first: what they refer to was there before them."""
_SHORTEST: Final = timedelta(seconds=0.2)
_HORIZON: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LabletController:
    """One process's lablet controller."""

    plane: Plane
    hosts: Hosts
    artifacts: Artifacts
    clock: Clock
    stopwatch: Stopwatch
    chance: Callable[[], float]
    settings: Settings
    holder: str
    speed: float = 1.0
    """How fast the cloud's time goes: who waits for a lab looks as much more often."""

    async def run(self) -> None:
        """Lead whenever elected, until cancelled."""
        election = Election(
            self.plane,
            LEASE,
            self.holder,
            ttl_seconds=self.settings.worker_controller_leader_lease_ttl,
            stopwatch=self.stopwatch,
            chance=self.chance,
        )
        await election.run(self.lead)

    async def lead(self, plane: Plane) -> None:
        """Take sessions through their lives, until cancelled."""
        cache = Cache(plane, *KINDS, chance=self.chance)
        await together(cache.run(), self._work(plane, cache))

    async def _work(self, plane: Plane, cache: Cache) -> None:
        await cache.ready()
        occupants, rules = Occupants(cache), Current(self.settings, cache).made(self._rules)
        eyes = Eyes(plane, cache, self.hosts, self.clock, occupants, Memory(self.clock))
        hands = Hands(plane, self.hosts, self.artifacts, self.clock)
        lifecycle = Lifecycle(plane, cache, eyes, hands, clock=self.clock, rules=rules)
        await lifecycle.recall()
        runtime = Runtime(
            LEASE,
            lifecycle.reconcile,
            cache,
            LabletSession,
            clock=self.clock,
            chance=self.chance,
            concurrency=CONCURRENCY,
            resync=lambda: max(RESYNC, rules().watch),
            resting=lambda session: rests(session, self.clock.now()),
            troubled=lifecycle.troubled,
        )
        waiting = _Waiting(cache, occupants, self.clock, runtime.poke)
        stop = cache.subscribe(waiting.note)
        occupants.tell(waiting.of)
        try:
            sweep = Sweep(plane, self.artifacts, cache, self.clock, self.chance, rules)
            labs = LabSweep(plane, self.hosts, cache, self.clock, self.chance)
            await together(runtime.run(), sweep.run(), labs.run())
        finally:
            stop()
            occupants.stop()

    def _rules(self, settings: Settings) -> Rules:
        usual = Rules()
        return Rules(
            poll=max(usual.poll / self.speed, _SHORTEST),
            watch=timedelta(seconds=settings.lablet_watch_interval),
            again=max(usual.again / self.speed, _SHORTEST),
            told_every=max(usual.told_every / self.speed, _SHORTEST),
            settle=max(usual.settle / self.speed, _SHORTEST),
            kept_for=timedelta(days=settings.artifacts_retention_days),
        )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Has those looked at who wait for a worker, or for others to have started there."""

    cache: Cache
    occupants: Occupants
    clock: Clock
    poke: Callable[[SessionRef], object]

    def note(self, seen: Seen) -> None:
        """Hear of a worker that changed."""
        if seen.ref.kind is LabWorker:
            self.of(seen.ref)

    def of(self, ref: WorkerRef) -> None:
        """Have those looked at who are to start on a worker."""
        worker = self.cache.get(ref)
        others = self.occupants.of(worker, self.clock.now(), _HORIZON) if worker else ()
        for session in others:
            if session.status.phase is SessionPhase.SCHEDULED:
                self.poke(ref_of(session))
