"""Somebody who follows the events, is cut off, and goes on elsewhere after the last one heard: no gap, no duplicate."""

import asyncio
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lcm.control.delivery.feed import WHOLE, Feed, Position
from lcm.model.access.identity import SEES_ALL, Role
from lcm.model.base.errors import LcmError, Relist
from lcm.model.base.event import Event
from lcm.sim.world.checks.events import heard_each_once
from lcm.sim.world.checks.violation import Violation
from lcm.sim.world.people.person import Person
from lcm.sim.world.process import Process
from lcm.sim.world.world import BUG, World

_STAYS_SECONDS: Final = 1_800
_AWAY_SECONDS: Final = 60
_SOON_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Own:
    """What one may hear of: everything, or what is public or one's own."""

    name: str
    everything: bool

    def wants(self, event: Event) -> bool:
        """Tell whether an event is among it."""
        return self.everything or event.public or event.owner == self.name


class Listener(Person):
    """One client of the event stream."""

    def __init__(self, world: World, name: str, role: Role) -> None:
        super().__init__(world, name, role)
        self.dice = world.stage.chance.stream(f"listener {name}")
        self._question = Own(name, everything=role in SEES_ALL)
        self._heard: list[Position] = []
        self._at: Position | None = None
        self._since = Position(0, WHOLE)
        """After which position everything must have been heard that is before the last one heard."""
        self._compared = 0
        """How many of all events are accounted for."""

    async def listen(self) -> None:
        """Follow one process after the other."""
        while True:
            able = [one for one in self.world.alive if one.answers and one.feed.caught_up]
            if not able:
                await asyncio.sleep(_SOON_SECONDS)
                continue
            await self._stay(self.dice.choice(able))
            self._compare()
            await self.rest(_AWAY_SECONDS)

    async def _stay(self, process: Process) -> None:
        """Follow a process until that ends, or for a while."""
        following = process.host.spawn(self._try(process.feed))
        dying = asyncio.ensure_future(process.host.until_dead())
        stay = self.dice.expovariate(1 / _STAYS_SECONDS)
        await asyncio.wait({following, dying}, timeout=stay, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if not following.done():
            following.cancel()
            return
        bug = None if following.cancelled() else following.exception()
        if bug is not None:
            self.witness.note([Violation(BUG, f"{process.name}, heard by {self.caller.name}: {bug!r}")])

    async def _try(self, feed: Feed) -> None:
        with suppress(LcmError):  # whatever it is, one comes back
            await self._follow(feed)

    async def _follow(self, feed: Feed) -> None:
        """Receive on a host what its API would send, as the event stream does."""
        while True:
            if self._at is None:
                self._begin_anew(Position(feed.revision, WHOLE))
            at = self._at
            assert at is not None, "it has just begun"
            after = at.revision
            try:
                async for missed, after in feed.history(self._question, at):  # noqa: B007  the last one is where to join
                    self._hear(missed)
            except Relist:
                self._at = None
                continue
            break
        subscriber = feed.join(self._question, after=after)
        try:
            while (frames := await subscriber.take()) is not None:
                self._hear(frames)
        finally:
            feed.leave(self._question, subscriber)

    def _begin_anew(self, at: Position) -> None:
        """Be told to forget the past: what came before is not asked for any more."""
        self._compare()
        self._at = self._since = at
        self._heard.clear()

    def _hear(self, frames: bytes) -> None:
        for one in frames.split():
            revision, _, place = one.partition(b".")
            self._at = Position(int(revision), int(place))
            self._heard.append(self._at)

    def _compare(self) -> None:
        """Hold what was heard against what the witness saw, as far as it was heard."""
        if not self._heard:
            return
        events, last = self.witness.events, self._heard[-1]
        upto = bisect_right(events, last, key=lambda told: Position(told.revision, told.number))
        told = events[self._compared : upto]
        self.witness.note(heard_each_once(self.caller, self._heard, told, after=self._since, until=last))
        self._compared, self._since, self._heard = upto, last, []
