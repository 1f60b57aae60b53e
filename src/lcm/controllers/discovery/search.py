"""Searches the cloud for instances without a worker record: unmanaged ones by their image, and orphans by our own tag.

Unmanaged instances are searched in the regions of the settings, if discovery is enabled. Orphans cost money, so they
are always searched, wherever we may have launched something. `Discovery` runs within the worker controller's term, so
that one process scans: right after an election, and then every interval. The settings may change while it runs.

`RegionSearch` does the work in one region. It lists the cloud before it reads the records, so a record that is created
in between is seen. It never removes a record: for an instance that a list does not show, the worker's own controller is
asked.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import ObjectChange, Plane, Ref, WorkerRef, ref_of
from lcm.controllers.discovery.orphans import (
    ALERTS,
    ORPHAN_ALERT,
    STRAY_ALERT,
    UNKNOWN_OWNER,
    InstanceSorter,
    Stray,
    is_orphan,
    orphan_alert,
)
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Deposed, Gone, Later, LcmError, Relist
from lcm.model.base.resource import Condition, Truth, shorten_text, with_condition
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.compute import ENDING, WORKER_TAG, Compute, Instance
from lcm.settings.values import Settings
from lcm.system.tasks import cancel_and_wait

UNMANAGED_SOURCE: Final = "worker-controller-discovery"
ORPHAN_SOURCE: Final = "worker-controller-orphan"
BATCH: Final = 200
"""The number of instances in one import. Over HTTP an import is one request, whose body is limited."""


@dataclass(frozen=True, slots=True)
class RegionResult:
    """What was found in a region. If `error` is set, nothing is known about the region."""

    region: str
    at: datetime
    found: int = 0
    known: int = 0
    imported: int = 0
    orphans: int = 0
    strays: Sequence[Stray] = ()
    workers: Sequence[LabWorker] = ()
    """The workers of the region, including those just imported as orphans."""
    error: str = ""


class RegionSearch:
    """Searches one region."""

    def __init__(self, plane: Plane, cloud: Compute, *, clock: Clock, poke: Callable[[WorkerRef], object]) -> None:
        self._plane = plane
        self._cloud = cloud
        self._clock = clock
        self._poke = poke

    async def run(self, region: str, pattern: str | None) -> RegionResult:
        """Search a region once; with a pattern also for unmanaged instances. May be repeated or interrupted."""
        began = self._clock.now()
        owned = await self._cloud.list_owned(region)
        matching = () if pattern is None else await self._cloud.list_by_image(region, pattern)
        workers = await self._list_workers()
        sorted_out = await InstanceSorter(region, self._clock.now()).sort(workers, owned, matching)
        for ref in sorted_out.to_reconcile:
            self._poke(ref)
        made = await self._import_instances(region, UNMANAGED_SOURCE, sorted_out.unmanaged)
        orphans = [
            # The tag of the worker that it was launched for marks an instance as an orphan.
            msgspec.structs.replace(one, tags={WORKER_TAG: UNKNOWN_OWNER, **one.tags})
            for one in sorted_out.orphans
            if await self._is_alive(one)
        ]
        names = await self._import_instances(region, ORPHAN_SOURCE, orphans)
        found_again = [one for name in names if (one := await self._plane.get(Ref(LabWorker, name))) is not None]
        return RegionResult(
            region,
            began,
            found=sorted_out.total,
            known=len(sorted_out.known),
            imported=len(made) + len(found_again),
            orphans=len(orphans),
            strays=[one for one in sorted_out.strays if await self._is_alive(one.instance)],
            workers=[*(one for one in workers if one.spec.aws.region == region), *found_again],
        )

    async def _list_workers(self) -> Sequence[LabWorker]:
        page = await self._plane.list(LabWorker)
        found = [*page.items]
        while page.next is not None:
            page = await self._plane.list(LabWorker, cursor=page.next)
            found += page.items
        return found

    async def _import_instances(self, region: str, source: str, instances: Sequence[Instance]) -> Sequence[str]:
        made: list[str] = []
        for at in range(0, len(instances), BATCH):
            some = tuple(map(_discovered_instance, instances[at : at + BATCH]))
            found = BulkImport(discovered_instances=some, aws_region=region, source=source)
            made += (await self._plane.import_workers(found)).imported
        return made

    async def _is_alive(self, instance: Instance) -> bool:
        """Look up one instance again: since it was listed it may have ended, and its record with it."""
        found = await self._cloud.find(instance.region, instance.instance_id)
        return found is not None and found.state not in ENDING


def _discovered_instance(instance: Instance) -> DiscoveredInstance:
    return DiscoveredInstance(
        instance_id=instance.instance_id,
        instance_type=instance.instance_type,
        state=str(instance.state),
        name=instance.tags.get("Name", ""),
        ami_id=instance.image_id,
        availability_zone=instance.zone,
        private_ip=instance.private_ip,
        public_ip=instance.public_ip,
        launched_at=instance.launched_at,
        tags=instance.tags,
        spot=instance.spot,
    )


CONDITION: Final = "DiscoverySucceeded"
"""The condition of the SystemSettings object, if there is one, that shows the result of the last scan."""

_MIN_PAUSE: Final = timedelta(seconds=1)
_JITTER: Final = 0.1
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DiscoveryScope:
    """The part of the settings that concerns discovery."""

    enabled: bool
    regions: tuple[str, ...]
    pattern: str
    interval: timedelta
    home: str
    """The region of a worker whose spec names none."""


class Discovery:
    """Scans regions periodically. `poke` queues a worker for its own controller."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        cloud: Compute,
        *,
        clock: Clock,
        chance: Callable[[], float],
        settings: Callable[[], Settings],
        poke: Callable[[WorkerRef], object],
    ) -> None:
        """Scan by the settings in force at that time. `chance` adds jitter between installations."""
        self._plane = plane
        self._cache = cache
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._search = RegionSearch(plane, cloud, clock=clock, poke=poke)
        self._changed = asyncio.Event()
        self._known_regions: set[str] = set()
        self.last_results: Mapping[str, RegionResult] = {}
        """The result of the last scan by region, for `/metrics`."""

    async def run(self) -> None:
        """Scan now and then every interval, until cancelled or deposed."""
        await self._cache.ready()
        end = self._cache.subscribe(self._on_change)
        _log.info("Discovery started", regions=self._scope.regions, pattern=self._scope.pattern)
        try:
            while True:
                began, wanted = self._clock.now(), self._scope
                await self.scan()
                await self._wait_for_next(wanted, self._clock.now() - began)
        finally:
            end()
            _log.info("Discovery stopped")

    async def scan(self) -> Mapping[str, RegionResult]:
        """Search every region once, concurrently. A failure in one region does not affect the others."""
        wanted = self._scope
        self.last_results = await self._search_regions(self._patterns_by_region(wanted))
        try:
            await self._sync_alerts([one for one in self.last_results.values() if not one.error])
            await self._write_condition(wanted)
        except Deposed:
            raise
        except LcmError as error:
            _log.warning("Discovery could not report what it found", error=f"{type(error).__name__}: {error}")
        return self.last_results

    @property
    def _scope(self) -> DiscoveryScope:
        settings = self._settings()
        return DiscoveryScope(
            enabled=settings.worker_discovery_enabled,
            regions=tuple(dict.fromkeys(settings.worker_discovery_regions)),
            pattern=settings.worker_discovery_ami_name,
            interval=timedelta(seconds=settings.worker_discovery_interval),
            home=settings.aws_region,
        )

    def _patterns_by_region(self, wanted: DiscoveryScope) -> Mapping[str, str | None]:
        """Return for each region the image pattern to search for; None means that only orphans are searched.

        Regions that ever had workers are remembered, and so are the regions of templates: the only record of a region
        may be the one that was lost.
        """
        self._known_regions.update(worker.spec.aws.region for worker in self._cache.all(LabWorker))
        self._known_regions.update(template.spec.worker.aws.region for template in self._cache.all(WorkerTemplate))
        strangers = {region: wanted.pattern for region in wanted.regions if wanted.enabled}
        return strangers | {
            region: None
            for region in (*wanted.regions, wanted.home, *sorted(self._known_regions))
            if region not in strangers
        }

    def _on_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind is SystemSettings:
            self._changed.set()

    async def _wait_for_next(self, wanted: DiscoveryScope, spent: timedelta) -> None:
        """Wait for the next scan; changed settings end the wait at once."""
        span = max(wanted.interval * (1 - _JITTER * self._chance()) - spent, _MIN_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(span.total_seconds()):
                while self._scope == wanted:
                    self._changed.clear()
                    await self._changed.wait()

    async def _search_regions(self, patterns: Mapping[str, str | None]) -> Mapping[str, RegionResult]:
        found: dict[str, RegionResult] = {}

        async def one(region: str) -> None:
            found[region] = await self._search_region(region, patterns[region])

        tasks = [asyncio.create_task(one(region)) for region in patterns]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await cancel_and_wait(tasks)
        return {region: found[region] for region in patterns}

    async def _search_region(self, region: str, pattern: str | None) -> RegionResult:
        began = self._clock.now()
        try:
            found = await self._search.run(region, pattern)
        except Deposed:
            raise
        except LcmError as error:
            tell = _log.warning if isinstance(error, Later | Conflict | Relist) else _log.error
            tell("Discovery scan failed", region=region, error=f"{type(error).__name__}: {error}")
            return RegionResult(region, began, error=type(error).__name__)
        _log.info(
            "Discovery scan finished",
            region=region,
            found=found.found,
            imported=found.imported,
            known=found.known,
            orphans=found.orphans,
            seconds=round((self._clock.now() - began).total_seconds(), 3),
        )
        return found

    async def _sync_alerts(self, searched: Sequence[RegionResult]) -> None:
        """Raise and clear the alerts about orphans and strays, only in the regions that answered."""
        workers = [worker for one in searched for worker in one.workers]
        strays = [stray for one in searched for stray in one.strays]
        wanted = {(ref_of(one), ORPHAN_ALERT): orphan_alert(one) for one in workers if is_orphan(one)}
        wanted |= {(ref_of(one.worker), STRAY_ALERT): one.alert() for one in strays}
        here = {ref_of(worker) for worker in workers}
        raised = [
            (Ref(LabWorker, one.name, one.namespace), one.alert)
            for one in await self._plane.alerts()
            if one.kind == LabWorker.__name__ and one.alert in ALERTS
        ]
        for (ref, alert), complaint in wanted.items():
            if (ref, alert) not in raised:
                with suppress(Gone):
                    await self._plane.raise_alert(ref, complaint)
        for ref, alert in raised:
            if ref in here and (ref, alert) not in wanted:
                with suppress(Gone):
                    await self._plane.clear_alert(ref, alert)

    async def _write_condition(self, wanted: DiscoveryScope) -> None:
        """Write the result of the scan to the SystemSettings object, only when it differs from before."""
        failed = [one.region for one in self.last_results.values() if one.error]
        told = "; ".join(f"{one.region}: {one.error or f'{one.found} found'}" for one in self.last_results.values())
        new = Condition(
            type=CONDITION,
            status=Truth.FALSE if failed else Truth.TRUE if wanted.enabled else Truth.UNKNOWN,
            reason="RegionFailed" if failed else "Scanned" if wanted.enabled else "Disabled",
            message=shorten_text(told),
            last_transition_at=self._clock.now(),
        )
        for settings in self._cache.all(SystemSettings):
            conditions = with_condition(settings.status.conditions, new)
            status = msgspec.structs.replace(settings.status, conditions=conditions)
            with suppress(Conflict, Gone):  # changed at the same time; the next scan writes it again
                await self._plane.step(settings, status)
