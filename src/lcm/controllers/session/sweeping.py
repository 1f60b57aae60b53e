"""Removes the files that nobody owns any more: those of sessions that ended unseen, and what was kept long enough.

A session's end removes its own file; one that was written at that very moment, by who did not lead any more, is left.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.cache import Cache
from lcm.controllers.session.view import Rules
from lcm.model.clock import Clock
from lcm.model.errors import Later, Stuck
from lcm.model.session import SESSION, LabletSession
from lcm.providers.artifacts import Artifacts, Listed, parse
from lcm.providers.permit import permit

EVERY: Final = timedelta(hours=1)
GRACE: Final = timedelta(hours=1)
"""A file younger than this may be of a session that is not known here yet."""
_COLLECTED: Final = "collected/"
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Looks through the files by name, once in a while."""

    artifacts: Artifacts
    cache: Cache
    clock: Clock
    chance: Callable[[], float]
    rules: Rules

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
        sessions = self.cache.all(LabletSession)
        live = {one.metadata.uid for one in sessions if one.status.phase not in SESSION.final}
        for uri in leftovers(listed, live, now, kept_for=self.rules.kept_for):
            permit()
            await self.artifacts.remove(uri, before=now)
            _log.info("file removed", uri=uri)


def leftovers(listed: Iterable[Listed], live: Collection[str], now: datetime, *, kept_for: timedelta) -> Sequence[str]:
    """Say which files are nobody's: of no live session, or collected too long ago."""
    return [one.uri for one in listed if _is_left(parse(one.uri).name, now - one.stored_at, live, kept_for)]


def _is_left(name: str, age: timedelta, live: Collection[str], kept_for: timedelta) -> bool:
    if name.startswith(_COLLECTED):
        return age >= kept_for
    return age >= GRACE and name.partition("/")[0] not in live
