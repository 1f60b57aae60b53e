"""Removes the files that nobody owns any more: those of sessions that ended unseen, and what was kept long enough.

A session's end removes its own file; one that was written at that very moment, by who did not lead any more, is left.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.objects.session_files import COLLECTED
from lcm.control.plane.protocol import Plane, Ref, SessionRef, ref_of
from lcm.controllers.session.effects import EFFECT_SECONDS
from lcm.controllers.session.progress import owner_of
from lcm.controllers.session.view import Rules, machine_gone
from lcm.controllers.worker.measure import SERVING
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Refused, Stuck
from lcm.model.kinds.session import SESSION, Artifact, LabletSession, worker_of
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.artifacts import Artifacts, Listed, parse
from lcm.providers.protocols.labhost import Hosts, LabHost, LabSummary
from lcm.providers.protocols.permit import permit

EVERY: Final = timedelta(hours=1)
GRACE: Final = timedelta(hours=1)
"""A file younger than this may be of a session that is not known here yet."""
_NAME: Final = re.compile(rf"{COLLECTED}([^/]+)/([^/]+)/(.+)")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Looks through the files by name, once in a while."""

    plane: Plane
    artifacts: Artifacts
    cache: Cache
    clock: Clock
    chance: Callable[[], float]
    rules: Callable[[], Rules]

    async def run(self) -> None:
        """Sweep for ever; what cannot be listed or removed now is swept the next time."""
        while True:
            await asyncio.sleep(EVERY.total_seconds() * (0.5 + self.chance()))
            try:
                await self.sweep()
            except (Later, Stuck) as error:
                _log.warning("cannot sweep", error=str(error))

    async def sweep(self) -> None:
        """Remove what is nobody's."""
        listed = await self.artifacts.list_temporary()
        now = self.clock.now()
        sessions = {one.metadata.uid: one for one in self.cache.all(LabletSession)}
        for uri in leftovers(listed, sessions, now, kept_for=self.rules().kept_for):
            if await self._lasts(uri, now):
                continue
            permit()
            await self.artifacts.remove(uri, before=now)
            _log.info("file removed", uri=uri)

    async def _lasts(self, uri: str, now: datetime) -> bool:
        """Tell whether the owner of a collected file was told of a later end than the rule says by now."""
        whose = _collected(uri)
        told = _told(await self.plane.get(whose.session), whose.file) if whose else None
        return told is not None and not _is_over(told, now)


def leftovers(
    listed: Iterable[Listed], sessions: Mapping[str, LabletSession], now: datetime, *, kept_for: timedelta
) -> Sequence[str]:
    """Say which files are nobody's: of no live session, or collected too long ago. Sessions are given by their uid."""

    def is_left(one: Listed) -> bool:
        name, age = parse(one.uri).name, now - one.stored_at
        if not name.startswith(COLLECTED):
            return age >= GRACE and not _lives(sessions.get(name.partition("/")[0]))
        whose = _collected(one.uri)
        told = _told(sessions.get(whose.session.name), whose.file) if whose else None
        return _is_over(told, now) if told else age >= kept_for

    return [one.uri for one in listed if is_left(one)]


class _Whose(NamedTuple):
    """A file that was collected, and from which session, by its uid."""

    session: SessionRef
    file: str


def _collected(uri: str) -> _Whose | None:
    """Say whose a collected file is; None of any other."""
    found = _NAME.fullmatch(parse(uri).name)
    return _Whose(Ref(LabletSession, found[2], found[1]), found[3]) if found else None


def _told(session: LabletSession | None, file: str) -> Artifact | None:
    """Find what a session's owner was told of a file; what was saved and not noted was not told."""
    return next((one for one in session.status.artifacts if one.name == file), None) if session else None


def _is_over(told: Artifact, now: datetime) -> bool:
    return told.expires_at is not None and told.expires_at <= now


def _lives(session: LabletSession | None) -> bool:
    return session is not None and session.status.phase not in SESSION.final


LAB_SWEEP_INTERVAL: Final = timedelta(minutes=10)
LAB_GRACE: Final = timedelta(minutes=10)
"""A lab that has been nobody's for less than this may be of a session that is not known here yet."""
_LIST_SECONDS: Final = 30.0


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
            await asyncio.sleep(LAB_SWEEP_INTERVAL.total_seconds() * (0.5 + self.chance()))
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
            if now - since[lab.lab_id] >= LAB_GRACE and await self._is_nobodys(lab, uid):
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
