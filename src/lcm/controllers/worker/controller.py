"""The worker controller of one process; the elected one takes workers through their lifecycle.

`compose` makes it. It runs the lifecycle, the monitor, discovery and idle detection together. Everything it knows is
in the store, so the next elected leader can go on.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane
from lcm.controllers.discovery.search import Discovery
from lcm.controllers.runtime.election import ElectedController
from lcm.controllers.runtime.lifecycle import share_host_timer
from lcm.controllers.runtime.reconcile import Runtime
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.controllers.worker.effects import WorkerEffects
from lcm.controllers.worker.lifecycle import WorkerLifecycle, is_serving_on, rest_of
from lcm.controllers.worker.look import WorkerLook
from lcm.controllers.worker.monitor import Monitor
from lcm.controllers.worker.occupants import IdleDetection, Occupants
from lcm.controllers.worker.region_watch import SPOT_INTERVAL, SpotWatch, TemplateCheck
from lcm.controllers.worker.view import WorkerRules
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.compute import Compute
from lcm.providers.protocols.labhost import Hosts
from lcm.providers.protocols.secrets import Secrets
from lcm.settings.load import Settings
from lcm.system.tasks import run_until_first_ends

LEASE: Final = "worker-controller"
CONCURRENCY: Final = 64
"""How many workers are looked at or acted on at once.

A registration may take minutes, a look at a silent CML seconds.
"""
_MIN_INTERVAL: Final = timedelta(seconds=0.2)
_HORIZON_MARGIN: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class WorkerController(ElectedController):
    """The worker controller of one process."""

    lease = LEASE
    kinds = (LabWorker, LabletSession, SystemSettings, WorkerTemplate, LabWorkerPool)

    cloud: Compute
    hosts: Hosts
    secrets: Secrets
    speed: float = 1.0
    """How fast the cloud's time goes. Machines are polled that much more often."""

    async def _work(self, plane: Plane, cache: Cache, settings: CurrentSettings) -> None:
        share_host_timer()
        occupants = await Occupants.follow(cache)
        eyes = WorkerLook(self.cloud, self.hosts, self.clock)
        hands = WorkerEffects(plane, self.cloud, self.hosts, self.secrets)
        lifecycle = WorkerLifecycle(
            plane,
            cache,
            eyes,
            hands,
            clock=self.clock,
            rules=settings.derive(self._rules),
            occupants=occupants,
        )
        await lifecycle.load_alerts()
        runtime = Runtime(
            LEASE,
            lifecycle.reconcile,
            cache,
            LabWorker,
            clock=self.clock,
            chance=self.chance,
            concurrency=CONCURRENCY,
            resync=lambda: timedelta(seconds=settings().worker_controller_reconcile_interval),
            resting=lambda worker: rest_of(worker, occupants, monitored=settings().worker_monitoring_enabled),
            report_bug=lifecycle.report_bug,
            counts=self.counts,
        )

        clock, chance, enqueue = self.clock, self.chance, runtime.enqueue
        monitor = Monitor(plane, cache, self.cloud, self.hosts, clock=clock, chance=chance, settings=settings)
        discovery = Discovery(plane, cache, self.cloud, clock=clock, chance=chance, settings=settings, poke=enqueue)
        occupants.subscribe(lambda ref, stays: None if stays and is_serving_on(cache.get(ref)) else enqueue(ref))
        try:
            await run_until_first_ends(
                runtime.run(),
                runtime.enqueue_all_on(SystemSettings),
                runtime.enqueue_all_on(WorkerTemplate),
                monitor.run(),
                discovery.run(),
                IdleDetection(plane, cache, occupants, settings=settings).run(),
                SpotWatch(plane, cache, self.cloud, every=max(SPOT_INTERVAL / self.speed, _MIN_INTERVAL)).run(),
                TemplateCheck(plane, cache, self.cloud, clock=clock).run(),
            )
        finally:
            occupants.stop()

    def _rules(self, settings: Settings) -> WorkerRules:
        lead = settings.worker_bootup_delay_minutes + settings.lablet_instantiation_delay_minutes
        return WorkerRules(
            horizon=timedelta(minutes=lead) + _HORIZON_MARGIN,
            require_licensed=settings.require_licensed_for_cml,
            monitored=settings.worker_monitoring_enabled,
            console_trust=settings.cml_certificate_trust == "console",
            poll=max(WorkerRules().poll / self.speed, _MIN_INTERVAL),
        )
