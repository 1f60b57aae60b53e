"""Packing changes of many objects into commits within the store's limits, and collecting what is wrong with them.

`pack_bundles` makes the commits; it is pure. `DocumentFaults` collects what is wrong with many documents, each fault
with its document's place, up to a limit. Used by `control.objects.apply` and `control.objects.imports`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from lcm.control.access.audit import AuditedAction
from lcm.control.admission.admit import Draft
from lcm.control.admission.references import Target, check_unchanged
from lcm.control.booking.request import PromisePreconditions
from lcm.control.objects.records import POOLS_CHANGED, Record, key_of
from lcm.control.plane.protocol import Applied
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid
from lcm.model.base.event import encode_event
from lcm.model.kinds.registry import Resource
from lcm.store.base import MAX_BYTES, MAX_OPERATIONS, CheckRevision, Op, Put

_OPERATIONS: Final = MAX_OPERATIONS - 16
_BYTES: Final = MAX_BYTES - 100_000
"""The rest of a commit is left for its fence, its events, its audit record and what a quota or guard adds."""

_OVERHEAD_BYTES: Final = 16
_SMALLER: Final = "make it smaller, or split it"


@dataclass(frozen=True, slots=True)
class BundleItem:
    """One document, the stored object it is about, and the change it makes; `draft` is None for no change."""

    place: int
    resource: Resource
    record: Record[Any] | None
    draft: Draft[Any] | None
    preconditions: PromisePreconditions | None = None
    """The guards and pools that the item's promise relies on, if it was promised."""
    alone: "Bundle | None" = field(default=None, compare=False, repr=False)
    """The item as a commit of its own, once that was computed."""

    @property
    def key(self) -> str:
        """The key under which the store keeps the object."""
        return key_of(self.resource)

    @property
    def is_new(self) -> bool:
        """Whether the object is yet to be created."""
        return self.record is None

    @property
    def after(self) -> Resource:
        """The object as it will be."""
        if self.draft is None:
            assert self.record is not None, "what is not there differs from any document"
            return self.record.resource  # type: ignore[no-any-return]
        return self.draft.edit.after  # type: ignore[no-any-return]

    def outcome(self, revision: int | None = None) -> Applied:
        """Return the outcome of the document; without a revision, nothing was written."""
        metadata = self.resource.metadata
        before = self.record.revision if self.record else 0
        return Applied(
            kind=self.resource.kind,
            namespace=metadata.namespace,
            name=metadata.name,
            outcome="unchanged" if self.draft is None else "created" if self.is_new else "configured",
            resource_version=before if revision is None else revision,
            deleting=self.after.metadata.deletion_timestamp is not None,
        )


@dataclass(slots=True)
class Bundle:
    """The contents of one commit."""

    items: list[BundleItem] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    targets: dict[str, Target] = field(default_factory=dict)
    guards: dict[str, int] = field(default_factory=dict)
    """The guards that were claimed from and the pools that promised it, each at the revision that was read."""
    pools: dict[str, int] = field(default_factory=dict)
    size: int = 0

    @property
    def audited_actions(self) -> Sequence[AuditedAction]:
        """What the audit records of the bundle."""
        return [item.draft.edit.audited_action() for item in self.items if item.draft is not None]

    def add(self, other: "Bundle") -> None:
        """Merge another bundle into this one."""
        self.items += other.items
        # All pools and templates of a namespace share one change marker; it is written once.
        self.ops += [op for op in other.ops if not (op.key.startswith(POOLS_CHANGED) and op in self.ops)]
        self.events += other.events
        self.targets |= other.targets
        self.guards |= other.guards
        self.pools |= other.pools
        self.size += other.size

    def checks(self, written: Mapping[str, int]) -> Sequence[Op]:
        """Return checks that targets are as they were read, or as an earlier bundle wrote them; own items need none."""
        within = {item.key for item in self.items}
        targets = [
            check_unchanged(target, written.get(key)) for key, target in self.targets.items() if key not in within
        ]
        pools = [CheckRevision(key, written.get(key, seen)) for key, seen in self.pools.items() if key not in within]
        by = self.items[0].after.metadata.uid.encode()
        return [*targets, *pools, *(Put(key, by, at=written.get(key, seen)) for key, seen in self.guards.items())]

    @property
    def count(self) -> int:
        """The number of operations in the commit."""
        return len(self.ops) + len(self.targets) + len(self.guards) + len(self.pools)


def pack_bundles(items: Sequence[BundleItem], *, now: datetime, most: int = MAX_OPERATIONS) -> Iterator[Bundle]:
    """Pack items into bundles in their order, at most `most` in each."""
    bundle = Bundle()
    for item in items:
        one = item.alone or _bundle_of(item, now)
        full = bundle.count + one.count > _OPERATIONS or bundle.size + one.size > _BYTES or len(bundle.items) >= most
        if bundle.items and full:
            yield bundle
            bundle = Bundle()
        bundle.add(one)
    if bundle.items:
        yield bundle


def with_promise(item: BundleItem, made: Resource, preconditions: PromisePreconditions | None) -> BundleItem:
    """Return an item with the object that the promise made of it."""
    assert item.draft is not None, "only what is new is promised"
    draft = replace(item.draft, edit=replace(item.draft.edit, after=made))
    return replace(item, draft=draft, preconditions=preconditions, alone=None)


def with_own_bundle(item: BundleItem, now: datetime) -> BundleItem:
    """Return an item with its own bundle computed. Raise Invalid if no commit could hold it."""
    if item.draft is None:
        return item
    alone = _bundle_of(item, now)
    if alone.size > _BYTES:
        raise Invalid(Fault("document", f"{alone.size} bytes when stored; the limit is {_BYTES}", _SMALLER))
    return replace(item, alone=alone)


def _bundle_of(item: BundleItem, now: datetime) -> Bundle:
    assert item.draft is not None, "only changes are written"
    ops = list(item.draft.edit.ops())
    events = [encode_event(event) for event in item.draft.edit.events(now)]
    target, preconditions = item.draft.target, item.preconditions or PromisePreconditions()
    size = sum(map(_op_size, ops)) + sum(len(event) + _OVERHEAD_BYTES for event in events)
    return Bundle(
        items=[item],
        ops=ops,
        events=events,
        targets={key_of(target): target} if target is not None else {},
        guards=dict(preconditions.guards),
        pools=dict(preconditions.pools),
        size=size,
    )


def _op_size(op: Op) -> int:
    size = len(op.key) + _OVERHEAD_BYTES
    if isinstance(op, Put):
        size += len(op.value) + sum(4 * (len(name) + len(text)) + _OVERHEAD_BYTES for name, text in op.labels.items())
    return size


MOST_FAULTS: Final = 500
"""The most faults that are reported for one request."""

_MORE_FAULTS: Final = Fault("documents", "and more faults", "correct the faults above first")


@dataclass(slots=True)
class DocumentFaults:
    """The faults of documents, by place."""

    late: bool = False
    """Others wrote in between: errors that only those writes can explain are raised as they are."""
    found: dict[int, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    @property
    def is_full(self) -> bool:
        """Whether so many faults were found that more would help nobody."""
        return self.count >= MOST_FAULTS

    def add(self, place: int, error: Invalid | Conflict | Forbidden, *, but: str | None = None) -> None:
        """Record an error of a document. `but` is a path whose fault another document is to blame for."""
        # The target is being deleted and may yet stay: that is no fault of a document.
        passing = isinstance(error, Conflict) and 0 < error.wanted == error.found
        if passing or (self.late and not isinstance(error, Invalid)):
            raise error
        where, told = f"documents[{place}]", error.faults if isinstance(error, Invalid) else [_error_fault(error)]
        for fault in told:
            if fault.path != but:
                path = where if fault.path == "document" else f"{where}.{fault.path}"
                self.found[place].append(Fault(path, fault.problem, fault.remedy))
                self.count += 1

    def raise_if_any(self) -> None:
        """Raise Invalid if any fault was recorded."""
        if not self.count:
            return
        every = [fault for place in sorted(self.found) for fault in self.found[place]]
        raise Invalid(*every[:MOST_FAULTS], *([_MORE_FAULTS] if self.is_full else []))


def _error_fault(error: Conflict | Forbidden) -> Fault:
    if isinstance(error, Forbidden):
        return Fault("document", str(error), "ask somebody who may do that")
    if not error.wanted:
        return Fault("metadata.name", "the name is taken", "use another")
    now_at = f"at {error.found}" if error.found else "not there"
    problem = f"{error.wanted} was asked for, but the object is {now_at}"
    return Fault("metadata.resource_version", problem, "read it again, or leave resource_version out")
