"""Packing changes of many objects into commits within the store's limits. Pure. Used by `applying` and `importing`."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from lcm.control.access.audit import Deed
from lcm.control.admission.admit import Draft
from lcm.control.admission.references import Target, hold
from lcm.control.booking.request import Footing
from lcm.control.objects.records import POOLS_CHANGED, Record, key_of
from lcm.control.plane.protocol import Applied
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid
from lcm.model.base.event import encode
from lcm.model.kinds.registry import Resource
from lcm.store.base import MAX_BYTES, MAX_OPERATIONS, Check, Op, Put

_OPERATIONS: Final = MAX_OPERATIONS - 16
_BYTES: Final = MAX_BYTES - 100_000
"""What is left of a commit for its fence, its events, its audit record and what a quota or guard adds."""

_OVERHEAD_BYTES: Final = 16
_SMALLER: Final = "make it smaller, or several of it"


@dataclass(frozen=True, slots=True)
class Item:
    """One document, what was stored of it, and what it changes: None for nothing."""

    place: int
    resource: Resource
    record: Record[Any] | None
    draft: Draft[Any] | None
    footing: Footing | None = None
    """What its promise stands on, if it is one that was promised."""
    alone: "Bundle | None" = field(default=None, compare=False, repr=False)
    """What it would be as a commit of its own, once that is known."""

    @property
    def key(self) -> str:
        """Where the store keeps it."""
        return key_of(self.resource)

    @property
    def is_new(self) -> bool:
        """Tell whether the object is yet to be made."""
        return self.record is None

    @property
    def after(self) -> Resource:
        """The object as it will be."""
        if self.draft is None:
            assert self.record is not None, "what is not there differs from any document"
            return self.record.resource  # type: ignore[no-any-return]
        return self.draft.edit.after  # type: ignore[no-any-return]

    def applied(self, revision: int | None = None) -> Applied:
        """Say what became of it; without a revision, nothing was written."""
        metadata = self.resource.metadata
        before = self.record.revision if self.record else 0
        return Applied(
            kind=self.resource.kind,
            namespace=metadata.namespace,
            name=metadata.name,
            outcome="unchanged" if self.draft is None else "created" if self.is_new else "configured",
            resource_version=before if revision is None else revision,
        )


@dataclass(slots=True)
class Bundle:
    """What goes into one commit."""

    items: list[Item] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    targets: dict[str, Target] = field(default_factory=dict)
    guards: dict[str, int] = field(default_factory=dict)
    """What was claimed from, and the pools that promised it, each at the revision seen."""
    pools: dict[str, int] = field(default_factory=dict)
    size: int = 0

    @property
    def deeds(self) -> Sequence[Deed]:
        """What the audit is to know of it."""
        return [item.draft.edit.deed() for item in self.items if item.draft is not None]

    def takes(self, other: "Bundle", most: int) -> bool:
        """Tell whether another fits in as well."""
        return not self.items or (
            self.count + other.count <= _OPERATIONS and self.size + other.size <= _BYTES and len(self.items) < most
        )

    def add(self, other: "Bundle") -> None:
        """Take another in."""
        self.items += other.items
        # What pools and templates are announced by is the same for all of them, and put once.
        self.ops += [op for op in other.ops if not (op.key.startswith(POOLS_CHANGED) and op in self.ops)]
        self.events += other.events
        self.targets |= other.targets
        self.guards |= other.guards
        self.pools |= other.pools
        self.size += other.size

    def checks(self, written: Mapping[str, int]) -> Sequence[Op]:
        """Hold what is referred to as it was seen, or as an earlier bundle wrote it; what is within needs no hold."""
        within = {item.key for item in self.items}
        targets = [hold(target, written.get(key)) for key, target in self.targets.items() if key not in within]
        pools = [Check(key, written.get(key, seen)) for key, seen in self.pools.items() if key not in within]
        by = self.items[0].after.metadata.uid.encode()
        return [*targets, *pools, *(Put(key, by, at=written.get(key, seen)) for key, seen in self.guards.items())]

    @property
    def count(self) -> int:
        """How many operations it takes."""
        return len(self.ops) + len(self.targets) + len(self.guards) + len(self.pools)


def bundled(items: Sequence[Item], *, now: datetime, most: int = MAX_OPERATIONS) -> Iterator[Bundle]:
    """Pack items in their order, at most so many a commit."""
    bundle = Bundle()
    for item in items:
        one = item.alone or _single(item, now)
        if not bundle.takes(one, most):
            yield bundle
            bundle = Bundle()
        bundle.add(one)
    if bundle.items:
        yield bundle


def seat(item: Item, made: Resource, footing: Footing | None) -> Item:
    """Give an item that was promised as it is then."""
    assert item.draft is not None, "only what is new is promised"
    draft = replace(item.draft, edit=replace(item.draft.edit, after=made))
    return replace(item, draft=draft, footing=footing, alone=None)


def weighed(item: Item, now: datetime) -> Item:
    """Give an item with its commit made ready; raises Invalid if no commit could hold it."""
    if item.draft is None:
        return item
    alone = _single(item, now)
    if alone.size > _BYTES:
        raise Invalid(Fault("document", f"{alone.size} bytes as it is kept; the limit is {_BYTES}", _SMALLER))
    return replace(item, alone=alone)


def _single(item: Item, now: datetime) -> Bundle:
    assert item.draft is not None, "only changes are written"
    ops = list(item.draft.edit.ops())
    events = [encode(event) for event in item.draft.edit.events(now)]
    target, footing = item.draft.target, item.footing or Footing()
    size = sum(map(_op_size, ops)) + sum(len(event) + _OVERHEAD_BYTES for event in events)
    return Bundle(
        items=[item],
        ops=ops,
        events=events,
        targets={key_of(target): target} if target is not None else {},
        guards=dict(footing.guards),
        pools=dict(footing.pools),
        size=size,
    )


def _op_size(op: Op) -> int:
    size = len(op.key) + _OVERHEAD_BYTES
    if isinstance(op, Put):
        size += len(op.value) + sum(4 * (len(name) + len(text)) + _OVERHEAD_BYTES for name, text in op.labels.items())
    return size


MOST_FAULTS: Final = 500
"""So many faults are told of one request."""

_BREATH_SECONDS: Final = 0.01
_MORE: Final = Fault("documents", "and more faults", "correct those told first")


@dataclass(slots=True)
class Verdicts:
    """The faults of documents, by place."""

    late: bool = False
    """Others wrote in between: what only they can explain is raised as it is."""
    found: dict[int, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    @property
    def enough(self) -> bool:
        """Tell whether looking for more would tell nobody anything."""
        return self.count >= MOST_FAULTS

    def add(self, place: int, error: Invalid | Conflict | Forbidden, *, but: str | None = None) -> None:
        """Note what was said against a document; `but` is a path that something else is to blame for."""
        # What is being deleted may go or stay: no document is to blame for that.
        passing = isinstance(error, Conflict) and 0 < error.wanted == error.found
        if passing or (self.late and not isinstance(error, Invalid)):
            raise error
        faults = [_placed(place, fault) for fault in _faults(error) if fault.path != but]
        self.found[place] += faults
        self.count += len(faults)

    def settle(self) -> None:
        """Raise Invalid if anything was noted."""
        if not self.count:
            return
        every = [fault for place in sorted(self.found) for fault in self.found[place]]
        raise Invalid(*every[:MOST_FAULTS], *([_MORE] if self.enough else []))


@dataclass(slots=True)
class Breath:
    """Gives others their turn during long work."""

    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    async def take(self) -> None:
        """Let others run if they have waited for a while."""
        time = asyncio.get_running_loop().time
        if time() - self.since > _BREATH_SECONDS:
            await asyncio.sleep(0)
            self.since = time()


def _placed(place: int, fault: Fault) -> Fault:
    where = f"documents[{place}]"
    return Fault(where if fault.path == "document" else f"{where}.{fault.path}", fault.problem, fault.remedy)


def _faults(error: Invalid | Conflict | Forbidden) -> Sequence[Fault]:
    return error.faults if isinstance(error, Invalid) else tuple(_single_fault(error))


def _single_fault(error: Conflict | Forbidden) -> Iterator[Fault]:
    if isinstance(error, Forbidden):
        yield Fault("document", str(error), "leave that to somebody who may")
    elif error.wanted:
        problem = f"{error.wanted} was asked for, but the object is {_at(error.found)}"
        yield Fault("metadata.resource_version", problem, "read it again, or leave resource_version out")
    else:
        yield Fault("metadata.name", "the name is taken", "use another")


def _at(revision: int) -> str:
    return f"at {revision}" if revision else "not there"
