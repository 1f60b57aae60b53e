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
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from lcm.config_values import Settings
from lcm.control.cache import Cache
from lcm.control.plane import Plane, Ref, Seen, WorkerRef, ref_of
from lcm.controllers.orphans import ALERTS, ORPHANED, STRAY, is_orphan, orphaned
from lcm.controllers.region_search import RegionSearch, Searched
from lcm.controllers.together import ended
from lcm.model.alert import Complaint
from lcm.model.clock import Clock
from lcm.model.errors import Conflict, Deposed, Gone, Later, LcmError, Relist
from lcm.model.pool import WorkerTemplate
from lcm.model.resource import Condition, Truth, with_condition
from lcm.model.settings import SystemSettings
from lcm.model.worker import LabWorker
from lcm.providers.compute import Compute

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
