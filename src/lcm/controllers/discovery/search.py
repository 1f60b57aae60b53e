"""Looks for machines that nobody recorded: strangers by their image, and orphans by our own tag.

Strangers are looked for where the settings say, if they say so. Orphans cost money, so they are looked for always, and
wherever we may have launched something.

Runs in the worker controller's term, so that one process scans: at once after an election, and then every interval.
What is looked for, and where, may change while it runs. `region_search` does the work in one region.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import BulkImport, DiscoveredInstance, Plane, Ref, Seen, WorkerRef, ref_of
from lcm.controllers.discovery.orphans import ALERTS, ORPHANED, STRAY, UNKNOWN, Sorting, Stray, is_orphan, orphaned
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Deposed, Gone, Later, LcmError, Relist
from lcm.model.base.resource import Condition, Truth, with_condition
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.telemetry.alert import Complaint
from lcm.providers.protocols.compute import ENDING, WORKER_TAG, Compute, Instance
from lcm.settings.values import Settings
from lcm.system.tasks import ended

STRANGERS: Final = "worker-controller-discovery"
ORPHANS: Final = "worker-controller-orphan"
BATCH: Final = 200
"""So many instances go into one import, which over HTTP is one request with a limited body."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found in a region. With an `error` nothing is known about it."""

    region: str
    at: datetime
    found: int = 0
    known: int = 0
    imported: int = 0
    orphans: int = 0
    strays: Sequence[Stray] = ()
    workers: Sequence[LabWorker] = ()
    """Those of the region, with those just made of orphans."""
    error: str = ""


class RegionSearch:
    """Searches a region."""

    def __init__(self, plane: Plane, cloud: Compute, *, clock: Clock, poke: Callable[[WorkerRef], object]) -> None:
        self._plane = plane
        self._cloud = cloud
        self._clock = clock
        self._poke = poke

    async def run(self, region: str, pattern: str | None) -> Searched:
        """Search it once, for strangers too if there is a pattern. May be repeated, and stopped anywhere."""
        began = self._clock.now()
        owned = await self._cloud.list_owned(region)
        matching = () if pattern is None else await self._cloud.list_by_image(region, pattern)
        workers = await self._workers()
        sorted_out = Sorting(region, workers, self._clock.now()).sort(owned, matching)
        for ref in sorted_out.look_at:
            self._poke(ref)
        made = await self._import(region, STRANGERS, sorted_out.strangers)
        orphans = [_named(one) for one in sorted_out.orphans if await self._lives(one)]
        found_again = await self._read(await self._import(region, ORPHANS, orphans))
        return Searched(
            region,
            began,
            found=sorted_out.total,
            known=len(sorted_out.known),
            imported=len(made) + len(found_again),
            orphans=len(orphans),
            strays=[one for one in sorted_out.strays if await self._lives(one.instance)],
            workers=[*(one for one in workers if one.spec.aws.region == region), *found_again],
        )

    async def _workers(self) -> Sequence[LabWorker]:
        page = await self._plane.list(LabWorker)
        found = [*page.items]
        while page.next is not None:
            page = await self._plane.list(LabWorker, cursor=page.next)
            found += page.items
        return found

    async def _import(self, region: str, source: str, instances: Sequence[Instance]) -> Sequence[str]:
        made: list[str] = []
        for at in range(0, len(instances), BATCH):
            some = tuple(map(_discovered, instances[at : at + BATCH]))
            found = BulkImport(discovered_instances=some, aws_region=region, source=source)
            made += (await self._plane.import_workers(found)).imported
        return made

    async def _read(self, names: Sequence[str]) -> Sequence[LabWorker]:
        found = [await self._plane.get(Ref(LabWorker, name)) for name in names]
        return [one for one in found if one is not None]

    async def _lives(self, instance: Instance) -> bool:
        """Ask for one machine: between the list and the records it may have ended, and its record with it."""
        found = await self._cloud.find(instance.region, instance.instance_id)
        return found is not None and found.state not in ENDING


def _named(orphan: Instance) -> Instance:
    """Have an orphan say whose it was, by which everybody knows that it is one."""
    return msgspec.structs.replace(orphan, tags={WORKER_TAG: UNKNOWN, **orphan.tags})


def _discovered(instance: Instance) -> DiscoveredInstance:
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
    )


CONDITION: Final = "DiscoverySucceeded"
"""Of the SystemSettings object, if there is one: how the last scan went."""

_BRIEFEST: Final = timedelta(seconds=1)
_SPREAD: Final = 0.1
_LONGEST_MESSAGE: Final = 2000
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the settings say about discovery now."""

    enabled: bool
    regions: tuple[str, ...]
    pattern: str
    interval: timedelta
    home: str
    """Where a worker is launched that does not say."""


class Discovery:
    """Scans regions again and again. `poke` has a worker looked at by its own controller."""

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
        """Scan by the settings that are in force when asked; `chance` keeps several installations apart."""
        self._plane = plane
        self._cache = cache
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._search = RegionSearch(plane, cloud, clock=clock, poke=poke)
        self._changed = asyncio.Event()
        self._used: set[str] = set()
        self.last: Mapping[str, Searched] = {}
        """What the last scan found, by region; for `/metrics`."""

    async def run(self) -> None:
        """Scan now and then every interval, until cancelled or deposed."""
        await self._cache.ready()
        end = self._cache.subscribe(self._note)
        _log.info("Discovery started", regions=self._wanted.regions, pattern=self._wanted.pattern)
        try:
            while True:
                began, wanted = self._clock.now(), self._wanted
                await self.scan()
                await self._rest(wanted, self._clock.now() - began)
        finally:
            end()
            _log.info("Discovery stopped")

    async def scan(self) -> Mapping[str, Searched]:
        """Search every region once, side by side: what goes wrong in one is no matter of the others."""
        wanted = self._wanted
        self.last = await self._everywhere(self._patterns(wanted))
        try:
            await self._tell([one for one in self.last.values() if not one.error])
            await self._show(wanted)
        except Deposed:
            raise
        except LcmError as error:
            _log.warning("Discovery could not tell what it found", error=f"{type(error).__name__}: {error}")
        return self.last

    @property
    def _wanted(self) -> Wanted:
        settings = self._settings()
        return Wanted(
            enabled=settings.worker_discovery_enabled,
            regions=tuple(dict.fromkeys(settings.worker_discovery_regions)),
            pattern=settings.worker_discovery_ami_name,
            interval=timedelta(seconds=settings.worker_discovery_interval),
            home=settings.aws_region,
        )

    def _patterns(self, wanted: Wanted) -> Mapping[str, str | None]:
        """Say of each region which strangers are looked for; None: only orphans are.

        Regions where workers were are remembered, and templates name theirs: the last record of a region may be the one
        that was lost.
        """
        self._used.update(worker.spec.aws.region for worker in self._cache.all(LabWorker))
        self._used.update(template.spec.worker.aws.region for template in self._cache.all(WorkerTemplate))
        strangers = {region: wanted.pattern for region in wanted.regions if wanted.enabled}
        return strangers | {
            region: None for region in (*wanted.regions, wanted.home, *sorted(self._used)) if region not in strangers
        }

    def _note(self, seen: Seen) -> None:
        if seen.ref.kind is SystemSettings:
            self._changed.set()

    async def _rest(self, wanted: Wanted, spent: timedelta) -> None:
        """Wait for the next scan; other settings are followed at once."""
        span = max(wanted.interval * (1 - _SPREAD * self._chance()) - spent, _BRIEFEST)
        with suppress(TimeoutError):
            async with asyncio.timeout(span.total_seconds()):
                while self._wanted == wanted:
                    self._changed.clear()
                    await self._changed.wait()

    async def _everywhere(self, patterns: Mapping[str, str | None]) -> Mapping[str, Searched]:
        found: dict[str, Searched] = {}

        async def one(region: str) -> None:
            found[region] = await self._in_one(region, patterns[region])

        tasks = [asyncio.create_task(one(region)) for region in patterns]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await ended(tasks)
        return {region: found[region] for region in patterns}

    async def _in_one(self, region: str, pattern: str | None) -> Searched:
        began = self._clock.now()
        try:
            found = await self._search.run(region, pattern)
        except Deposed:
            raise
        except LcmError as error:
            tell = _log.warning if isinstance(error, Later | Conflict | Relist) else _log.error
            tell("Discovery scan failed", region=region, error=f"{type(error).__name__}: {error}")
            return Searched(region, began, error=type(error).__name__)
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

    async def _tell(self, searched: Sequence[Searched]) -> None:
        """Raise and clear alerts about orphans and strays, in the regions that answered only."""
        workers = [worker for one in searched for worker in one.workers]
        wanted = dict(_complaints(searched, workers))
        here = {ref_of(worker) for worker in workers}
        raised = [
            (Ref(LabWorker, one.name, one.namespace), one.alert)
            for one in await self._plane.alerts()
            if one.kind == LabWorker.__name__ and one.alert in ALERTS
        ]
        for (ref, alert), complaint in wanted.items():
            if (ref, alert) not in raised:
                with suppress(Gone):
                    await self._plane.complain(ref, complaint)
        for ref, alert in raised:
            if ref in here and (ref, alert) not in wanted:
                with suppress(Gone):
                    await self._plane.settle(ref, alert)

    async def _show(self, wanted: Wanted) -> None:
        """Let the SystemSettings object say how the scan went; spends a revision only when that is news."""
        for settings in self._cache.all(SystemSettings):
            conditions = with_condition(settings.status.conditions, self._condition(wanted))
            status = msgspec.structs.replace(settings.status, conditions=conditions)
            with suppress(Conflict, Gone):  # somebody changes it just now; the next scan says it again
                await self._plane.step(settings, status)

    def _condition(self, wanted: Wanted) -> Condition:
        failed = [one.region for one in self.last.values() if one.error]
        told = "; ".join(f"{one.region}: {one.error or f'{one.found} found'}" for one in self.last.values())
        status = Truth.FALSE if failed else Truth.TRUE if wanted.enabled else Truth.UNKNOWN
        reason = "RegionFailed" if failed else "Scanned" if wanted.enabled else "Disabled"
        now = self._clock.now()
        return Condition(
            type=CONDITION, status=status, reason=reason, message=told[:_LONGEST_MESSAGE], last_transition_at=now
        )


def _complaints(
    searched: Iterable[Searched], workers: Iterable[LabWorker]
) -> Iterable[tuple[tuple[WorkerRef, str], Complaint]]:
    for worker in workers:
        if is_orphan(worker):
            yield (ref_of(worker), ORPHANED), orphaned(worker)
    for one in searched:
        for stray in one.strays:
            yield (ref_of(stray.worker), STRAY), stray.complaint()
