"""Removes the labs that nobody owns any more: of sessions that ended, or went elsewhere, before their lab came to be.

A session's end removes its lab until its host knows none of that title. An import that took longer than anybody waited
for makes one after that. Whatever carries a session's uid in its title is ours; no other lab is touched.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.cache import Cache
from lcm.control.plane import Plane, ref_of
from lcm.controllers.session.effects import EFFECT_SECONDS
from lcm.controllers.session.names import owner_of
from lcm.controllers.session.view import machine_gone
from lcm.controllers.worker.measure import SERVING
from lcm.model.clock import Clock
from lcm.model.errors import Gone, Later, Refused, Stuck
from lcm.model.session import LabletSession, worker_of
from lcm.model.worker import LabWorker
from lcm.providers.hosts import Hosts
from lcm.providers.labhost import LabHost, LabSummary
from lcm.providers.permit import permit

EVERY: Final = timedelta(minutes=10)
GRACE: Final = timedelta(minutes=10)
"""A lab that has been nobody's for less than this may be of a session that is not known here yet."""
_LIST_SECONDS: Final = 30.0
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LabSweep:
    """Looks through the labs of all workers that serve, once in a while."""

    plane: Plane
    hosts: Hosts
    cache: Cache
    clock: Clock
    chance: Callable[[], float]
    _since: dict[str, Mapping[str, datetime]] = field(default_factory=dict)
    """Since when a worker's labs are known to be nobody's, by its uid and their id."""

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(EVERY.total_seconds() * (0.5 + self.chance()))
            await self.sweep()

    async def sweep(self) -> None:
        """Remove what is nobody's; a host that cannot say, or does not let it go, is asked the next time."""
        serving = [one for one in self.cache.all(LabWorker) if one.status.phase in SERVING and not machine_gone(one)]
        for gone in self._since.keys() - {one.metadata.uid for one in serving}:
            del self._since[gone]
        for worker in serving:
            try:
                await self._on(worker)
            except (Later, Stuck, Refused, Gone, TimeoutError) as error:
                _log.warning("cannot sweep labs", worker=worker.metadata.name, error=str(error))

    async def _on(self, worker: LabWorker) -> None:
        uid, host = worker.metadata.uid, await self.hosts.of(worker)
        async with asyncio.timeout(_LIST_SECONDS):
            labs = await host.labs()
        now, known = self.clock.now(), self._since.get(uid, {})
        left = left_behind(labs, self.cache.all(LabletSession), uid)
        since = self._since[uid] = {lab.lab_id: known.get(lab.lab_id, now) for lab in left}
        for lab in left:
            if now - since[lab.lab_id] >= GRACE and await self._is_nobodys(lab, uid):
                await self._remove(host, lab, worker)

    async def _is_nobodys(self, lab: LabSummary, worker_id: str) -> bool:
        """Make sure by what is written now: its session may have come back to this very worker."""
        uid = owner_of(lab.title)
        known = [one for one in self.cache.all(LabletSession) if one.metadata.uid == uid]
        fresh = [await self.plane.get(ref_of(one)) for one in known]
        return bool(left_behind([lab], filter(None, fresh), worker_id))

    async def _remove(self, host: LabHost, lab: LabSummary, worker: LabWorker) -> None:
        permit()
        async with asyncio.timeout(EFFECT_SECONDS):
            await host.remove(lab.lab_id)
        _log.warning("lab of no session removed", worker=worker.metadata.name, title=lab.title)


def left_behind(labs: Iterable[LabSummary], sessions: Iterable[LabletSession], worker_id: str) -> Sequence[LabSummary]:
    """Say which labs on a worker are ours, but of no session that is there or is to come there."""
    here = [one for one in sessions if worker_of(one) == worker_id]
    owners, ids = {one.metadata.uid for one in here}, {one.status.cml_lab_id for one in here}
    return [
        lab for lab in labs if (uid := owner_of(lab.title)) is not None and uid not in owners and lab.lab_id not in ids
    ]
