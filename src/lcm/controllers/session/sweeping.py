"""Removes the files that nobody owns any more: those of sessions that ended unseen, and what was kept long enough.

A session's end removes its own file; one that was written at that very moment, by who did not lead any more, is left.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from lcm.control.cache import Cache
from lcm.control.plane import Plane, Ref, SessionRef
from lcm.control.session_files import COLLECTED
from lcm.controllers.session.view import Rules
from lcm.model.clock import Clock
from lcm.model.errors import Later, Stuck
from lcm.model.session import SESSION, Artifact, LabletSession
from lcm.providers.artifacts import Artifacts, Listed, parse
from lcm.providers.permit import permit

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
