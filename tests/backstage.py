"""A control plane in process and its callers, and a way behind it: objects in any phase, events as committed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import TypeVar

import given
from lcm.control.access.sealing import Sealer
from lcm.control.accounts.step_records import NO_LIMITS, FleetSettings
from lcm.control.admission.admit import Quota, allow_all
from lcm.control.objects.records import creation_ops, find_record
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.base.clock import Clock
from lcm.model.base.event import Event, decode_event
from lcm.model.kinds.definition import DefinitionState, LabletDefinition
from lcm.model.kinds.registry import Resource
from lcm.store.base import Store
from lcm.store.memory import MemoryStore
from seals import given_keys

R = TypeVar("R", bound=Resource)
NOW = given.moment("08:00")
ROOT = Caller(name="root", role=Role.ADMIN)
OTTO = Caller(name="otto", role=Role.OPERATOR)
ANNA = Caller(name="anna", role=Role.AUTHOR)
ADA = Caller(name="ada", role=Role.USER)
BOB = Caller(name="bob", role=Role.USER)


def service(actor: str) -> Caller:
    return Caller(name="service", role=Role.SERVICE, actor=actor)


@dataclass
class Standing:
    """A clock that stands still until a test sets it."""

    moment: datetime = NOW

    def now(self) -> datetime:
        return self.moment


@dataclass
class Stage:
    """A store with a plane for each caller."""

    store: Store = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=Standing)
    quota: Quota = allow_all
    sealer: Sealer = field(default_factory=given_keys)
    fleet: FleetSettings = NO_LIMITS

    def __post_init__(self) -> None:
        numbers = count(1)
        ids = lambda: f"uid-{next(numbers)}"  # noqa: E731
        self.core = ControlPlane(
            self.store, clock=self.clock, ids=ids, quota=self.quota, sealer=self.sealer, fleet=self.fleet
        )

    def __getitem__(self, caller: Caller) -> LocalPlane:
        return self.core.plane_for(caller)

    async def put(self, resource: R) -> R:
        """Place an object as it is, whatever its phase, and read it back."""
        await self.store.commit(*creation_ops(resource))
        record = await find_record(self.store, ref_of(resource))
        assert record is not None
        return record.resource

    async def read(self, resource: R) -> R | None:
        record = await find_record(self.store, ref_of(resource))
        return record.resource if record else None

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision

    async def keys(self) -> list[str]:
        """Name everything that is stored but the audit and the guards."""
        every = [entry.key for entry in (await self.store.scan("", limit=1000)).entries]
        return [key for key in every if not key.startswith(("audit/", "guards/"))]

    async def told(self, after: int = 0) -> Sequence[Event]:
        """Read every event committed after a revision."""
        end = await self.revision()
        events: list[Event] = []
        async with self.store.events(after=after) as reader:
            # A commit of ours marks the end, so that nobody waits for what does not come.
            await self.store.commit(events=[b"end"])
            async for happened in reader:
                if happened.revision > end:
                    return events
                events += [decode_event(raw) for raw in happened.events]
        raise AssertionError("the reader ended by itself")

    async def types(self, after: int = 0) -> list[str]:
        return [event.type for event in await self.told(after)]


def active(**overrides: object) -> LabletDefinition:
    """Give a definition that may be booked."""
    return given.definition(**{"state": DefinitionState.ACTIVE} | overrides)
