"""A client of the event stream that is cut off and resumes elsewhere after the last event: no gap, no duplicate."""

import asyncio
from bisect import bisect_right
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from lcm.control.delivery.feed import WHOLE_COMMIT, Feed, Position
from lcm.model.access.identity import SEES_ALL, Role
from lcm.model.base.errors import LcmError, Relist
from lcm.model.base.event import Event
from lcm.sim.world.process import Process
from lcm.sim.world.world import BUG, Violation
from world.checked import CheckedWorld
from world.checks.events import heard_each_once
from world.people.person import Person

_STAYS_SECONDS: Final = 1_800
_AWAY_SECONDS: Final = 60
_SOON_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class EventScope:
    """The events that somebody may receive: all, or those that are public or their own."""

    name: str
    everything: bool
    rows: bool = False

    def wants(self, event: Event) -> bool:
        """Return whether an event is among them."""
        return self.everything or event.public or event.owner == self.name


class Listener(Person):
    """One client of the event stream."""

    def __init__(self, world: CheckedWorld, name: str, role: Role) -> None:
        super().__init__(world, name, role)
        self.dice = world.stage.chance.stream(f"listener {name}")
        self._scope = EventScope(name, everything=role in SEES_ALL)
        self._received: list[Position] = []
        self._at: Position | None = None
        self._since = Position(0, WHOLE_COMMIT)
        """Everything after this position, up to the last one received, must have been received."""
        self._compared = 0
        """How many of all events are accounted for."""
        self._restores = 0
        """How many restores of the store it knows of."""

    async def listen(self) -> None:
        """Follow one process after the other."""
        while True:
            able = [one for one in self.world.alive if one.is_reachable and one.feed.caught_up]
            if not able:
                await asyncio.sleep(_SOON_SECONDS)
                continue
            await self._follow_process(self.dice.choice(able))
            if self._restores == self.witness.restores:
                self._compare()
            else:
                self._forget()
            await self.wait_about(_AWAY_SECONDS)

    async def _follow_process(self, process: Process) -> None:
        """Follow a process until it ends, or for a while."""
        following = process.host.spawn(self._follow_until_error(process.feed))
        dying = asyncio.ensure_future(process.host.until_dead())
        stay = self.dice.expovariate(1 / _STAYS_SECONDS)
        await asyncio.wait({following, dying}, timeout=stay, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if not following.done():
            following.cancel()
            return
        bug = None if following.cancelled() else following.exception()
        if bug is not None:
            self.witness.add_violations([Violation(BUG, f"{process.name}, heard by {self.caller.name}: {bug!r}")])

    async def _follow_until_error(self, feed: Feed) -> None:
        with suppress(LcmError):  # whatever the error, the client reconnects
            await self._follow(feed)

    async def _follow(self, feed: Feed) -> None:
        """Receive on a host what its API would send, as the event stream does."""
        while True:
            if self._at is None:
                self._restart_at(Position(feed.revision, WHOLE_COMMIT))
            at = self._at
            assert at is not None, "it has just begun"
            try:
                async with aclosing(feed.follow(self._scope, at)) as following:
                    async for frames in following:
                        self._receive(frames)
            except Relist:
                self._at = None
                continue
            return

    def _forget(self) -> None:
        """Start over: the store has another history."""
        self._restores, self._at, self._compared = self.witness.restores, None, 0
        self._received.clear()

    def _restart_at(self, at: Position) -> None:
        """Start over at a position: what came before it is not expected any more."""
        if self._restores != self.witness.restores:
            self._forget()
        self._compare()
        self._at = self._since = at
        self._received.clear()

    def _receive(self, frames: bytes) -> None:
        for one in frames.split():
            revision, _, place = one.partition(b".")
            self._at = Position(int(revision), int(place))
            self._received.append(self._at)

    def _compare(self) -> None:
        """Compare what was received with what the witness saw, up to the last event received."""
        if not self._received:
            return
        events, last = self.witness.events, self._received[-1]
        upto = bisect_right(events, last, key=lambda told: Position(told.revision, told.number))
        told = events[self._compared : upto]
        self.witness.add_violations(heard_each_once(self.caller, self._received, told, after=self._since, until=last))
        self._compared, self._since, self._received = upto, last, []
