"""Sees every commit and every effect, writes the trace, and runs the checks, so that a violation is found at once."""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lcm.model.access.identity import Caller
from lcm.model.kinds.registry import Resource
from lcm.sim.cloud.effects import SENDER, Effect
from lcm.sim.time.host import HOST
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Witness
from lcm.store.base import Change, Entry
from world.checks.events import EventPosition, heard_each_once
from world.checks.privacy import committed_no_secret, shown_is_their_own, told_no_secret
from world.checks.table import (
    AFTER_EFFECT,
    ALWAYS,
    EACH_COMMIT,
    EVERY_MINUTE,
    LOOKING,
    LOOKING_AT_COMMIT,
    OTHERS,
    at_rest,
)
from world.checks.versions import newer_fields_are_kept
from world.checks.writes import Acknowledgement, is_kept
from world.observed import ObservedChange, ObservedEffect, ObservedState, PublishedEvent
from world.story import describe_change, names_in

MINUTE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class StoryLine:
    """Something that happened in the world, for the story of a run, and the names of what it is about."""

    at: str
    text: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.at} {self.text}"


class CheckingWitness(Witness):
    """Records a run, and keeps the violations that its checks find."""

    def __init__(self, stage: Environment, *, calm: bool = False, undisturbed: bool = False) -> None:
        super().__init__()
        self.seen = ObservedState(calm=calm, undisturbed=undisturbed)
        self.log: list[StoryLine] = []
        """What people did and what went wrong, in order."""
        self.story: list[StoryLine] = []
        """The same, with the changes of objects and the effects on the outside."""
        self._stage = stage
        self._clock = stage.clock
        self._trace = hashlib.sha256()
        self._acknowledged: list[Acknowledgement] = []
        self.restores = 0
        """How often the store was put back to an earlier state."""

    @property
    def trace(self) -> str:
        """A hash of everything that was committed until now, in its order: the same hash means the same run."""
        return self._trace.hexdigest()[:16]

    @property
    def events(self) -> Sequence[PublishedEvent]:
        """All published events, in order."""
        return self.seen.events

    def tell(self, text: str) -> None:
        """Write down something that no commit shows."""
        line = self._story_line(text, names_in(text))
        self.log.append(line)
        self.story.append(line)
        self._trace.update(text.encode())
        self.add_violations(told_no_secret("what somebody was told", text))

    def record_commit(self, revision: int, changes: Sequence[Change]) -> None:
        """Record and check a commit, on the host that made it."""
        now, host = self._clock.now(), _current_host()
        self.commits += 1
        self._trace.update(f"{revision} {now.timestamp()} {host}".encode())
        for change in changes:
            self._trace.update(change.key.encode())
            self._trace.update(change.entry.value if change.entry else b"-")
        self.add_violations(committed_no_secret(changes))
        self.add_violations(newer_fields_are_kept(self.seen, changes))
        commit = self.seen.apply_commit(revision, changes, now, host)
        for turn in commit.turns:
            self._check_change(turn)
        for check in EACH_COMMIT:
            self.add_violations(check(self.seen, commit))
        for look in LOOKING_AT_COMMIT:
            self.add_violations(look(self.seen, commit, self._stage))

    def record_restore(self, entries: Sequence[Entry], revision: int, taken_at: datetime) -> None:
        """Begin anew with an earlier state of the store; what was acknowledged since then is lost."""
        self.restores += 1
        kept = [one for one in self._acknowledged if one.resource.metadata.resource_version <= revision]
        self._acknowledged = [one for one in kept if one.at <= taken_at]
        self.seen.restore(entries, taken_at, self._clock.now())

    def record_effect(self, effect: Effect) -> None:
        """Record and check an effect on the outside, on the host that causes it."""
        deed = ObservedEffect(self._clock.now(), _current_host() or SENDER.get(), effect)
        text = f"{deed.host or 'somebody'}: {effect.verb} {effect.instance_id} {effect.lab}".rstrip()
        self._trace.update(text.encode())
        worker = self.seen.worker_with(effect.instance_id)
        about = (effect.instance_id, *names_in(effect.lab), *((worker.metadata.name,) if worker else ()))
        self.story.append(self._story_line(text, about))
        for check in AFTER_EFFECT:
            self.add_violations(check(self.seen, deed, self._stage))

    def check_log_line(self, line: str) -> None:
        """Check a log line."""
        self.add_violations(told_no_secret("a log", line))

    def check_shown(self, caller: Caller, resources: Iterable[Resource]) -> None:
        """Check what somebody was shown."""
        self.add_violations(shown_is_their_own(caller, resources))

    def check_heard(
        self, caller: Caller, places: Sequence[EventPosition], *, after: EventPosition, until: EventPosition
    ) -> None:
        """Check which events somebody received between two places, however often they were interrupted."""
        self.add_violations(heard_each_once(caller, places, self.events, after=after, until=until))

    def record_acknowledged(self, resource: Resource, what: str, *, removed: bool = False) -> None:
        """Record and check that somebody was told that an object is now as they were given it, or will be removed."""
        told = Acknowledgement(self._clock.now(), resource, what, removed)
        self._acknowledged.append(told)
        self.add_violations(is_kept(self.seen, told))

    def check_at_rest(self) -> None:
        """Make the last checks, when nothing is going on any more."""
        self.add_violations(at_rest(self.seen, self._stage))
        for told in self._acknowledged:
            self.add_violations(is_kept(self.seen, told))

    async def watch(self) -> None:
        """Check every minute, as long as the world lasts."""
        while True:
            await asyncio.sleep(MINUTE_SECONDS)
            self.check_minute()

    def check_minute(self) -> None:
        """Check what may not be so for long."""
        for check in EVERY_MINUTE:
            self.add_violations(check(self.seen, self._stage, self._clock.now()))

    def record_robbed_lease(self, name: str, holder: str) -> None:
        """Record that the store ended a lease whose holder still believes in it."""
        self.seen.robbed[name, holder] = self._clock.now()

    def _check_change(self, turn: ObservedChange[Resource]) -> None:
        if text := describe_change(turn):
            self.story.append(self._story_line(f"{turn.host or 'somebody'}: {text}", (turn.latest.metadata.name,)))
        kind = type(turn.latest)
        for check in ALWAYS.get(kind, OTHERS):
            self.add_violations(check(self.seen, turn))
        for look in LOOKING.get(kind, ()):
            self.add_violations(look(self.seen, turn, self._stage))

    def _story_line(self, text: str, about: tuple[str, ...]) -> StoryLine:
        return StoryLine(f"{self._clock.now():%d %H:%M:%S}", text, about)


def _current_host() -> str | None:
    host = HOST.get()
    return host.name if host else None
