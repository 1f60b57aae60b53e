"""Sees every commit and every effect, writes the trace, and asks the checks: what must never happen is seen at once."""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lcm.model.access.identity import Caller
from lcm.model.kinds.registry import Resource
from lcm.sim.cloud.effects import SENDER, Effect
from lcm.sim.time.host import HOST
from lcm.sim.world.checks.events import Place, heard_each_once
from lcm.sim.world.checks.privacy import committed_no_secret, shown_is_their_own, told_no_secret
from lcm.sim.world.checks.table import AFTER_EFFECT, ALWAYS, EACH_COMMIT, EVERY_MINUTE, LOOKING, OTHERS, at_rest
from lcm.sim.world.checks.violation import Violation
from lcm.sim.world.checks.writes import Acknowledged, is_kept
from lcm.sim.world.seen import Deed, Seen, Told, Turn
from lcm.sim.world.stage import Stage
from lcm.sim.world.telling import names_in, told_of
from lcm.store.base import Change

MINUTE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened in the world, for the story of a run, and the names of what it is about."""

    at: str
    text: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.at} {self.text}"


class Witness:
    """What is known of a run, and the first thing that was wrong with it."""

    def __init__(self, stage: Stage, *, calm: bool = False) -> None:
        self.seen = Seen(calm=calm)
        self.violations: list[Violation] = []
        self.violated = asyncio.Event()
        self.commits = 0
        self.log: list[Line] = []
        """What people did and what went wrong, in order."""
        self.story: list[Line] = []
        """The same, with the changes of objects and what was done to the outside."""
        self._stage = stage
        self._clock = stage.clock
        self._trace = hashlib.sha256()
        self._acknowledged: list[Acknowledged] = []

    @property
    def trace(self) -> str:
        """Name everything that was committed until now, in its order: the same name, the same run."""
        return self._trace.hexdigest()[:16]

    @property
    def events(self) -> Sequence[Told]:
        """Everything that was told to the outside, in order."""
        return self.seen.events

    def tell(self, text: str) -> None:
        """Write down what happened that no commit tells."""
        line = self._line(text, names_in(text))
        self.log.append(line)
        self.story.append(line)
        self._trace.update(text.encode())
        self.note(told_no_secret("what somebody was told", text))

    def commit(self, revision: int, changes: Sequence[Change]) -> None:
        """See a commit, on the host that made it."""
        now, host = self._clock.now(), _host()
        self.commits += 1
        self._trace.update(f"{revision} {now.timestamp()} {host}".encode())
        for change in changes:
            self._trace.update(change.key.encode())
            self._trace.update(change.entry.value if change.entry else b"-")
        self.note(committed_no_secret(changes))
        commit = self.seen.take(revision, changes, now, host)
        for turn in commit.turns:
            self._turn(turn)
        for check in EACH_COMMIT:
            self.note(check(self.seen, commit))

    def effect(self, effect: Effect) -> None:
        """See what is done to the outside, on the host that does it."""
        deed = Deed(self._clock.now(), _host() or SENDER.get(), effect)
        text = f"{deed.host or 'somebody'}: {effect.verb} {effect.instance_id} {effect.lab}".rstrip()
        self._trace.update(text.encode())
        worker = self.seen.worker_with(effect.instance_id)
        about = (effect.instance_id, *names_in(effect.lab), *((worker.metadata.name,) if worker else ()))
        self.story.append(self._line(text, about))
        for check in AFTER_EFFECT:
            self.note(check(self.seen, deed, self._stage))

    def overhear(self, line: str) -> None:
        """See a line of a log."""
        self.note(told_no_secret("a log", line))

    def shown(self, caller: Caller, resources: Iterable[Resource]) -> None:
        """See what somebody was shown."""
        self.note(shown_is_their_own(caller, resources))

    def heard(self, caller: Caller, places: Sequence[Place], *, after: Place, until: Place) -> None:
        """See what somebody heard who listened to events behind one place up to another, however often interrupted."""
        self.note(heard_each_once(caller, places, self.events, after=after, until=until))

    def acknowledged(self, resource: Resource, what: str, *, removed: bool = False) -> None:
        """See that somebody was told that an object is now as it was given to them, or that it is to go."""
        told = Acknowledged(self._clock.now(), resource, what, removed)
        self._acknowledged.append(told)
        self.note(is_kept(self.seen, told))

    def rest(self) -> None:
        """Take the last look, when nothing is going on any more."""
        self.note(at_rest(self.seen, self._stage))
        for told in self._acknowledged:
            self.note(is_kept(self.seen, told))

    async def watch(self) -> None:
        """Look every minute, as long as the world lasts."""
        while True:
            await asyncio.sleep(MINUTE_SECONDS)
            self.minute()

    def minute(self) -> None:
        """Look at what may not be so for long."""
        for check in EVERY_MINUTE:
            self.note(check(self.seen, self._stage, self._clock.now()))

    def note(self, wrong: Sequence[Violation]) -> None:
        """Keep what is wrong, and wake whoever runs the world."""
        if wrong:
            self.violations += wrong
            self.violated.set()

    def _turn(self, turn: Turn[Resource]) -> None:
        if text := told_of(turn):
            self.story.append(self._line(f"{turn.host or 'somebody'}: {text}", (turn.now.metadata.name,)))
        kind = type(turn.now)
        for check in ALWAYS.get(kind, OTHERS):
            self.note(check(self.seen, turn))
        for look in LOOKING.get(kind, ()):
            self.note(look(self.seen, turn, self._stage))

    def _line(self, text: str, about: tuple[str, ...]) -> Line:
        return Line(f"{self._clock.now():%d %H:%M:%S}", text, about)


def _host() -> str | None:
    host = HOST.get()
    return host.name if host else None
