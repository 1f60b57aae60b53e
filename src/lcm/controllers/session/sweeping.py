"""Removes files and labs that no session owns any more. Both sweeps run within the lablet controller's term.

A session's end removes its own file; one that a deposed leader wrote at that very moment is left. It also removes its
lab until the host knows none with that title; an import that took longer than anybody waited for creates one after
that. Only labs with a session's uid in their title are ours; no other lab is touched. A lab whose session is not known
to have ended may hold somebody's work: `held_labs` keeps it.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.objects.session_files import COLLECTED_PREFIX
from lcm.control.plane.protocol import Plane, Ref, SessionRef
from lcm.controllers.session.held_labs import HeldLabs, remove_lab
from lcm.controllers.session.progress import lab_uid, namespace_in, owner_of
from lcm.controllers.session.view import SessionRules, is_machine_gone
from lcm.controllers.worker.measure import SERVING
from lcm.controllers.worker.occupants import Occupants
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Refused, Stuck
from lcm.model.kinds.saved_lab import save_of_file
from lcm.model.kinds.session import SESSION_MACHINE, Artifact, LabletSession, worker_of
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.artifacts import Artifacts, ListedArtifact, parse_address
from lcm.providers.protocols.labhost import Hosts, LabHost, LabState, LabSummary
from lcm.providers.protocols.permit import check_permit
from lcm.system.tasks import TimeLimit

FILE_SWEEP_INTERVAL: Final = timedelta(hours=1)
FILE_GRACE: Final = timedelta(hours=1)
"""A file younger than this may belong to a session that is not known here yet."""
_COLLECTED_NAME: Final = re.compile(rf"{COLLECTED_PREFIX}([^/]+)/([^/]+)/(.+)")
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FileSweep:
    """Looks through the stored files by name, at intervals."""

    plane: Plane
    artifacts: Artifacts
    cache: Cache
    clock: Clock
    chance: Callable[[], float]
    rules: Callable[[], SessionRules]

    async def run(self) -> None:
        """Sweep for ever; what cannot be listed or removed now is swept the next time."""
        while True:
            await asyncio.sleep(FILE_SWEEP_INTERVAL.total_seconds() * (0.5 + self.chance()))
            try:
                await self.sweep()
            except (Later, Stuck) as error:
                _log.warning("cannot sweep", error=str(error))

    async def sweep(self) -> None:
        """Remove the files that no session owns."""
        listed = await self.artifacts.list_temporary()
        now = self.clock.now()
        kept_for = self.rules().kept_for
        for uri in find_leftover_files(listed, partial(self.cache.find, LabletSession), now, kept_for=kept_for):
            if await self._is_kept_longer(uri, now):
                continue
            check_permit()
            await self.artifacts.remove(uri, before=now)
            _log.info("file removed", uri=uri)

    async def _is_kept_longer(self, uri: str, now: datetime) -> bool:
        """Return whether the owner of a collected file was told a later end than the present rule gives."""
        whose = _parse_collected(uri)
        told = _find_artifact(await self.plane.get(whose[0]), whose[1]) if whose else None
        return told is not None and not _is_expired(told, now)


def find_leftover_files(
    listed: Iterable[ListedArtifact],
    find_session: Callable[[str], LabletSession | None],
    now: datetime,
    *,
    kept_for: timedelta,
) -> Sequence[str]:
    """Return the files that belong to no live session, or were collected too long ago. Sessions are found by uid."""

    def is_left(one: ListedArtifact) -> bool:
        name, age = parse_address(one.uri).name, now - one.stored_at
        if not name.startswith(COLLECTED_PREFIX):
            owner = find_session(name.partition("/")[0]) if age >= FILE_GRACE else None
            return age >= FILE_GRACE and (owner is None or owner.status.phase in SESSION_MACHINE.final)
        whose = _COLLECTED_NAME.fullmatch(name)
        session = find_session(whose[2]) if whose else None
        told = _find_artifact(session, whose[3]) if whose else None
        if told is None and session is not None and whose is not None and save_of_file(whose[3]) is not None:
            return age >= FILE_GRACE  # newer saves have taken its place, or nobody recorded it in time
        return _is_expired(told, now) if told else age >= kept_for

    return [one.uri for one in listed if is_left(one)]


def _parse_collected(uri: str) -> tuple[SessionRef, str] | None:
    """Return which session, by uid, a collected file is from, and the file's name; None for any other file."""
    found = _COLLECTED_NAME.fullmatch(parse_address(uri).name)
    return (Ref(LabletSession, found[2], found[1]), found[3]) if found else None


def _find_artifact(session: LabletSession | None, file: str) -> Artifact | None:
    """Find what a session's status says of a file; None if the file was saved but never recorded."""
    return next((one for one in session.status.artifacts if one.name == file), None) if session else None


def _is_expired(told: Artifact, now: datetime) -> bool:
    return told.expires_at is not None and told.expires_at <= now


LAB_SWEEP_INTERVAL: Final = timedelta(minutes=10)
LAB_GRACE: Final = timedelta(minutes=10)
"""A lab without an owner for less than this may belong to a session that is not known here yet."""
_LIST_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class LabSweep:
    """Looks through the labs of all serving workers, at intervals."""

    plane: Plane
    hosts: Hosts
    cache: Cache
    clock: Clock
    chance: Callable[[], float]
    held: HeldLabs
    occupants: Occupants
    _unowned_since: dict[str, Mapping[str, datetime]] = field(default_factory=dict)
    """Since when a worker's labs are known to have no owner, by worker uid and lab id."""

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(LAB_SWEEP_INTERVAL.total_seconds() * (0.5 + self.chance()))
            await self.sweep()

    async def sweep(self) -> None:
        """Remove the labs that no session owns. A host that does not answer, or refuses, is asked the next time."""
        serving = [one for one in self.cache.all(LabWorker) if one.status.phase in SERVING and not is_machine_gone(one)]
        for gone in self._unowned_since.keys() - {one.metadata.uid for one in serving}:
            del self._unowned_since[gone]
        for worker in serving:
            try:
                await self._sweep_worker(worker)
            except (Later, Stuck, Refused, Gone, TimeoutError) as error:
                _log.warning("cannot sweep labs", worker=worker.metadata.name, error=str(error))

    async def _sweep_worker(self, worker: LabWorker) -> None:
        uid, host = worker.metadata.uid, await self.hosts.of(worker)
        with TimeLimit(_LIST_SECONDS):
            labs = await host.labs()
        now, known = self.clock.now(), self._unowned_since.get(uid, {})
        left = find_leftover_labs(labs, self.occupants.on(worker), uid)
        since = self._unowned_since[uid] = {lab.lab_id: known.get(lab.lab_id, now) for lab in left}
        for lab in left:
            if now - since[lab.lab_id] >= LAB_GRACE:
                await self._settle(host, lab, worker)
        await self.held.forget_others(worker, {lab.lab_id for lab in left})

    async def _settle(self, host: LabHost, lab: LabSummary, worker: LabWorker) -> None:
        """Remove a leftover lab, or hold it, by what the plane says of its session now."""
        uid = owner_of(lab.title) or ""
        cached = self.cache.find(LabletSession, uid)
        namespace = cached.metadata.namespace if cached else namespace_in(lab.title)
        owner = await self.plane.get(Ref(LabletSession, uid, namespace))
        if not find_leftover_labs([lab], [owner] if owner else [], worker.metadata.uid):
            return  # the session has come back to this very worker
        is_over = owner.status.phase in SESSION_MACHINE.final if owner else await self.plane.find_deletion(uid)
        if is_over or (owner is not None and lab.state is LabState.DEFINED):  # an import that came too late
            await remove_lab(host, lab, worker)
        else:
            await self.held.settle(host, lab, worker)


def find_leftover_labs(
    labs: Iterable[LabSummary], sessions: Iterable[LabletSession], worker_id: str
) -> Sequence[LabSummary]:
    """Return the labs on a worker that are ours, but of no session that is there or is to come there."""
    here = [one for one in sessions if worker_of(one) == worker_id]
    owners, ids = {lab_uid(one) for one in here}, {one.status.cml_lab_id for one in here}
    return [
        lab for lab in labs if (uid := owner_of(lab.title)) is not None and uid not in owners and lab.lab_id not in ids
    ]
