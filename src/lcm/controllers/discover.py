"""Looks for machines that nobody recorded: strangers by their image, and orphans by our own tag.

Runs in the worker controller's term, so that one process scans: at once after an election, and then every interval.
What is looked for, and where, may change while it runs. `orphans` says what the listed machines are; the plane makes
the records. Nothing is ever written off here: what a list does not show is only looked at by its own controller.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.config_values import Settings
from lcm.control.plane import BulkImport, DiscoveredInstance, Plane, Ref, Seen, WorkerRef, ref_of
from lcm.controllers.cache import Cache
from lcm.controllers.orphans import ALERTS, Sorting, Stray, is_orphan, orphaned
from lcm.controllers.together import ended
from lcm.model.alert import Complaint
from lcm.model.clock import Clock
from lcm.model.errors import Conflict, Deposed, Gone, Later, LcmError, Relist
from lcm.model.resource import Condition, Truth, with_condition
from lcm.model.settings import SystemSettings
from lcm.model.worker import LabWorker
from lcm.providers.compute import ENDING, WORKER_TAG, Compute, Instance

FOUND: Final = "worker-controller-discovery"
ORPHANS: Final = "worker-controller-orphan"
CONDITION: Final = "DiscoverySucceeded"
"""Of the SystemSettings object, if there is one: how the last scan went."""

BATCH: Final = 200
"""So many instances in one import, so that its body stays within the limits of a request."""

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

    @classmethod
    def by(cls, settings: Settings) -> "Wanted":
        """Read them."""
        return cls(
            enabled=settings.worker_discovery_enabled,
            regions=tuple(dict.fromkeys(settings.worker_discovery_regions)),
            pattern=settings.worker_discovery_ami_name,
            interval=timedelta(seconds=settings.worker_discovery_interval),
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """What became of the last scan of a region. With an `error` the rest is not known."""

    region: str
    at: datetime
    seconds: float = 0.0
    found: int = 0
    imported: int = 0
    known: int = 0
    orphans: int = 0
    error: str = ""


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
        self._plane = plane
        self._cache = cache
        self._cloud = cloud
        self._clock = clock
        self._chance = chance
        self._settings = settings
        self._poke = poke
        self._changed = asyncio.Event()
        self.scans: dict[str, Scan] = {}
        """The last scan of each region that is searched."""

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

    async def scan(self) -> Sequence[Scan]:
        """Search every region once, side by side: what goes wrong in one is no matter of the others."""
        wanted = self._wanted
        regions = wanted.regions if wanted.enabled else ()
        tasks = [asyncio.create_task(self._region(region, wanted.pattern)) for region in regions]
        try:
            if tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            await ended(tasks)
        self.scans = {region: self.scans[region] for region in regions}
        await self._show(wanted)
        return list(self.scans.values())

    @property
    def _wanted(self) -> Wanted:
        return Wanted.by(self._settings())

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

    async def _region(self, region: str, pattern: str) -> None:
        began = self._clock.now()
        try:
            scan = await self._search(Scan(region, began), pattern)
        except Deposed:
            raise
        except LcmError as error:
            told = f"{type(error).__name__}: {error}"
            tell = _log.warning if isinstance(error, Later | Conflict | Relist) else _log.error
            tell("Discovery scan failed", region=region, error=told)
            scan = Scan(region, began, error=told)
        self.scans[region] = replace(scan, seconds=(self._clock.now() - began).total_seconds())
        if not scan.error:
            kept = msgspec.to_builtins(self.scans[region])
            _log.info("Discovery scan finished", **{name: kept[name] for name in _LOGGED})

    async def _search(self, scan: Scan, pattern: str) -> Scan:
        # The cloud before the records: a record made in between is then seen, and its machine is no orphan.
        owned = await self._cloud.list_owned(scan.region)
        matching = await self._cloud.list_by_image(scan.region, pattern)
        workers = await self._workers()
        found = Sorting(scan.region, workers, self._clock.now()).sort(owned, matching)
        for ref in found.look_at:
            self._poke(ref)
        made = await self._import(scan.region, FOUND, found.strangers)
        orphans = [one for one in found.orphans if await self._lives(one)]
        made_of_orphans = await self._import(scan.region, ORPHANS, orphans)
        strays = [one for one in found.strays if await self._lives(one.instance)]
        await self._tell([*self._here(scan.region, workers), *await self._read(made_of_orphans)], strays)
        return replace(
            scan,
            found=found.total,
            imported=len(made) + len(made_of_orphans),
            known=len(found.known),
            orphans=len(orphans),
        )
