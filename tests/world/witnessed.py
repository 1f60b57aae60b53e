"""A witness of a made-up world: what is known before, and then one commit or effect that it must judge."""

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from harness import given
from lcm.control.access.audit import AUDIT_PREFIX, AuditRecord
from lcm.control.delivery.events import derive_events
from lcm.control.objects.records import CODEC, key_of
from lcm.model.access.identity import Role
from lcm.model.base.event import encode_event
from lcm.model.base.machine import ACTORS
from lcm.model.base.resource import PhaseChange, with_change
from lcm.model.kinds.registry import Resource
from lcm.sim.cloud.effects import Effect
from lcm.sim.time.host import HOST, Host
from lcm.sim.time.loop import run
from lcm.sim.world.environment import Environment
from lcm.sim.world.scenario import Scenario
from lcm.store.base import EVENTS_KEY, LEASES_PREFIX, Change, Entry, Lease, pack_events
from world.witness import CheckingWitness

LEADER = "process-1"
OTHER = "process-2"


@dataclass
class Watched:
    """A stage with a witness; `LEADER` leads as every controller."""

    calm: bool = False
    stage: Environment = field(init=False)
    witness: CheckingWitness = field(init=False)
    _revision: int = 1

    def __post_init__(self) -> None:
        self.stage = Environment(Scenario(), lambda *_: None, self._done)
        self.witness = CheckingWitness(self.stage, calm=self.calm)
        self.known(*(self._lease(actor, LEADER) for actor in sorted(ACTORS)))

    @property
    def now(self) -> datetime:
        return self.stage.clock.now()

    def known(self, *before: Resource | Change) -> None:
        """Have something happened before, of which nobody is asked what it was."""
        changes = [one if isinstance(one, Change) else self.change(one) for one in before]
        self.witness.seen.apply_commit(self._next(), changes, self.now, None)

    def commit(
        self,
        *after: Resource,
        gone: Sequence[Resource] = (),
        also: Sequence[Change] = (),
        host: str | None = LEADER,
        untold: bool = False,
    ) -> None:
        """Commit objects on a host, with what that tells the outside."""
        seen = self.witness.seen.objects
        told = [one for new in after for one in derive_events(seen.get(key_of(new)), new, now=self.now)]
        told += [one for old in gone for one in derive_events(old, old, now=self.now, removed=True)]
        changes = [*map(self.change, after), *(Change(key_of(one), None) for one in gone), *also]
        if told and not untold:
            changes.append(self.entry(EVENTS_KEY, pack_events([encode_event(one) for one in told])))
        self.on(host, lambda: self.witness.record_commit(self._next(), changes))

    def on(self, host: str | None, doing: Callable[[], object]) -> None:
        """Do something on a host, or as the world."""
        context = copy_context()
        context.run(HOST.set, Host(host) if host else None)
        context.run(doing)

    def change(self, resource: Resource) -> Change:
        return self.entry(key_of(resource), CODEC.encode(resource))

    def entry(self, key: str, value: bytes) -> Change:
        return Change(key, Entry(key, value, {}, self._revision, self._revision))

    def audit(self, who: str, role: Role = Role.USER) -> Change:
        """Write down whose commit it is."""
        record = AuditRecord(
            id="a", at=self.now, who=who, role=role, address="", request="", token="", deeds=(), epoch=""
        )
        return self.entry(f"{AUDIT_PREFIX}a", CODEC.encode(record))

    def deposed(self, actor: str) -> None:
        """Have somebody else elected."""
        self.known(self._lease(actor, OTHER))

    def step(self, before: Resource, phase: str, by: str, **fields: object) -> Resource:
        """Return an object in another phase, with the line in its story."""
        line = PhaseChange(phase=phase, at=self.now, by=by, reason="because")
        history = with_change(before.status.history, line)
        status: Any = before.status
        return given.with_fields(before, {"phase": type(status.phase)(phase), "history": history} | fields)

    def _lease(self, actor: str, holder: str) -> Change:
        return self.entry(LEASES_PREFIX + actor, msgspec.json.encode(Lease(actor, holder, 1, 15)))

    def _next(self) -> int:
        self._revision += 1
        return self._revision

    def _done(self, effect: Effect) -> None:
        self.witness.record_effect(effect)


def judged(story: Callable[[Watched], object], *, calm: bool = False, start: str = "08:00") -> list[str]:
    """Play a story and return the rules that were broken, each once."""

    async def life() -> list[str]:
        watched = Watched(calm)
        story(watched)
        return list(dict.fromkeys(one.rule for one in watched.witness.violations))

    return run(life, start=given.moment(start))
