"""Applying many documents at once: all are admitted before any is written, then written in few commits.

Bookings among them are promised together, as if each had been created once the others were there. A write by others in
between only makes the rest be planned again. Used by `control.plane.local`; `control.objects.bundles` packs the commits
and collects the faults.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from lcm.control.admission.admit import Admission, Quota
from lcm.control.admission.references import Reference, Target, reference_of
from lcm.control.booking.promise import Promises
from lcm.control.booking.request import has_slot
from lcm.control.objects.bundles import BundleItem, DocumentFaults, pack_bundles, with_own_bundle, with_promise
from lcm.control.objects.deletion import find_targets
from lcm.control.objects.records import Record, is_nameable, key_of, read_entry, unique_key_error, unique_key_of
from lcm.control.objects.writer import ATTEMPTS, Writer, name_taken_error
from lcm.control.plane.protocol import LONGEST_APPLY, Applied, Document, Ref, ref_of
from lcm.model.access.identity import Verb
from lcm.model.access.learner import can_see
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid, TooLarge
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.store.base import MAX_OPERATIONS, Entry, scan_all
from lcm.system.tasks import TimeSlice


class ReadDocument(Protocol):
    """Reads a document as its type; fields it leaves out may keep the values of the object it is put onto."""

    def __call__(self, document: object, *, onto: Resource | None) -> Resource:
        """Return the typed document. Raise Invalid with every fault."""
        ...


KIND_ORDER: Final = (
    "SystemSettings",
    "Sink",
    "WorkerTemplate",
    "LabletDefinition",
    "LabWorkerPool",
    "LabWorker",
    "Reservation",
    "LabletSession",
)
"""Each kind comes after those it may refer to."""

_MOST_SINGLE_READS: Final = 32
"""Up to this many objects are read one by one; more of one kind and namespace are read by a scan."""

NameFamily = tuple[str, str, str]
"""A kind, a namespace, and a name without its version."""

_DUPLICATE: Final = Fault("metadata.name", "the same object twice", "keep one of them")


@dataclass(slots=True)
class ReferenceIndex:
    """The objects that references may mean: those in the store, and those admitted just now."""

    writer: Writer
    unique_holders: dict[str, str]
    """The unique keys that are taken, and the key of the object that holds each."""
    read: dict[Reference, Sequence[Target]] = field(default_factory=dict)
    fresh: dict[tuple[type, str, str], dict[str, Target]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, resource: Resource) -> None:
        """Add an object that is about to be written. Raise Invalid if another one holds its unique key."""
        mark, key = unique_key_of(resource), key_of(resource)
        if mark is not None and self.unique_holders.setdefault(mark, key) != key:
            raise unique_key_error()
        if isinstance(resource, WorkerTemplate | LabletDefinition):
            name = resource.metadata.name
            self.fresh[type(resource), resource.metadata.namespace, _without_version(name)][name] = resource

    async def find_targets(self, wanted: Reference) -> Sequence[Target]:
        """Return every object that a reference may mean."""
        if wanted not in self.read:
            self.read[wanted] = await find_targets(self.writer, wanted)
        fresh = self.fresh.get((wanted.kind, wanted.namespace, _without_version(wanted.name)), {})
        mine = [one for name, one in fresh.items() if not wanted.is_exact or name == wanted.name]
        return [*mine, *(one for one in self.read[wanted] if one.metadata.name not in fresh)]


@dataclass(frozen=True, slots=True)
class Applier:
    """Applies documents for one caller."""

    writer: Writer
    admission: Admission
    quota: Quota
    read: ReadDocument
    promises: Promises | None = None
    """Promises slots to bookings; without it, nothing is promised."""

    async def run(self, documents: Sequence[Document], *, dry_run: bool) -> Sequence[Applied]:
        """Create or replace every object, or none if one of them may not be written."""
        if len(documents) > LONGEST_APPLY:
            raise TooLarge(f"{len(documents)} documents at once; the limit is {LONGEST_APPLY}")
        verdicts = DocumentFaults()
        entries = await self._read_stored(documents)
        resources = await self._read_documents(dict(enumerate(documents)), entries, verdicts)
        for kind in dict.fromkeys(type(resource) for _, resource in resources):
            self.writer.require_permission(Verb.WRITE, kind)
        lost = {_family_of(documents[place]) for place in verdicts.found}
        items = await self._plan_items(resources, entries, verdicts, lost)
        verdicts.raise_if_any()
        async with self._booking_turn(items):
            await self.quota(self.writer.caller, [item.after for item in items if item.is_new])
            items = await self._promise_items(items, DocumentFaults())
            done = {item.place: item.outcome() for item in items if dry_run or item.draft is None}
            await self._write_items([item for item in items if item.place not in done], done, documents)
        return [done[place] for place in range(len(documents))]

    async def _read_documents(
        self, documents: Mapping[int, Document], entries: Mapping[str, Entry], verdicts: DocumentFaults
    ) -> list[tuple[int, Resource]]:
        """Read every document that can be read, each with its place."""
        resources: dict[str, tuple[int, Resource]] = {}
        time_slice = TimeSlice()
        for place, document in documents.items():
            await time_slice.yield_if_over()
            if verdicts.is_full:
                break
            try:
                resource = self.read(document, onto=self._stored_object(document, entries))
            except Invalid as error:
                verdicts.add(place, error)
                continue
            if key_of(resource) in resources:
                verdicts.add(place, Invalid(_DUPLICATE))
            else:
                resources[key_of(resource)] = (place, resource)
        return list(resources.values())

    def _stored_object(self, document: object, entries: Mapping[str, Entry]) -> Resource | None:
        """Return the stored object that a document is put onto, if the caller may see it."""
        ref = _ref_of_document(document)
        entry = entries.get(ref.key) if ref else None
        found = read_entry(entry, ref.kind) if ref and entry else None
        return found if found is not None and can_see(self.writer.caller, found) else None

    async def _plan_items(
        self,
        resources: Sequence[tuple[int, Resource]],
        entries: Mapping[str, Entry],
        verdicts: DocumentFaults,
        lost: Collection[NameFamily] = (),
    ) -> list[BundleItem]:
        """Admit every document against the store and the documents before it, and note the faults of each.

        A reference to one of the `lost` documents, which cannot be read, does not count as a fault.
        """
        wanted = (mark for _, one in resources if (mark := unique_key_of(one)) is not None)
        taken = {key: entry.value.decode() for key, entry in (await self._read_keys(wanted)).items()}
        known, items, time_slice = ReferenceIndex(self.writer, taken), list[BundleItem](), TimeSlice()
        for place, resource in sorted(resources, key=lambda placed: KIND_ORDER.index(placed[1].kind)):
            await time_slice.yield_if_over()
            if verdicts.is_full:
                break
            try:
                admitted = await self._admit_item(place, resource, entries.get(key_of(resource)), known)
                item = with_own_bundle(admitted, self.writer.clock.now())
                known.add(item.after)
            except (Invalid, Conflict, Forbidden) as error:
                verdicts.add(place, error, but=_reference_to(lost, resource))
                continue
            items.append(item)
        return items

    async def _admit_item(
        self, place: int, resource: Resource, entry: Entry | None, known: ReferenceIndex
    ) -> BundleItem:
        if entry is None:
            done = await self.admission.find_archived_match(resource)
            draft = await self.admission.admit_new(resource, found=known.find_targets) if done is None else None
            return BundleItem(place, resource, done, draft)
        record = Record(read_entry(entry, type(resource)), entry)
        if not can_see(self.writer.caller, record.resource):
            raise name_taken_error(ref_of(resource))
        demanded = resource.metadata.resource_version
        if demanded not in (0, entry.revision):
            raise Conflict(entry.key, wanted=demanded, found=entry.revision)
        return BundleItem(
            place, resource, record, await self.admission.admit_change(record, resource, found=known.find_targets)
        )

    @asynccontextmanager
    async def _booking_turn(self, items: Iterable[BundleItem]) -> AsyncIterator[None]:
        """Wait for the turn of the bookings, if anything is to be promised or counts towards somebody's limits."""
        made = [item.after for item in items if item.is_new]
        bookings = [one for one in made if has_slot(one)]
        quotas = self.promises.quota_keys(self.writer.caller, made) if self.promises else ()
        if self.promises is None or not (bookings or quotas):
            yield
            return
        async with self.promises.lock_guards(bookings, quotas):
            yield

    async def _promise_items(self, items: list[BundleItem], verdicts: DocumentFaults) -> list[BundleItem]:
        """Give new bookings their seats, all or none, on pools and templates as they will be.

        NoRoom names the document.
        """
        bookings = [item for item in items if _is_booking(item)]
        if self.promises is None or not bookings:
            return items
        found = await self.promises.with_planned([item.after for item in items]).promise_bookings(
            [item.after for item in bookings],
            [item.draft.target if item.draft else None for item in bookings],
            names=[f"documents[{item.place}]" for item in bookings],
        )
        seated = {item.place: item for item in map(with_promise, bookings, found.made, found.preconditions)}
        made = list[BundleItem]()
        for item in items:
            try:
                made.append(
                    with_own_bundle(seated[item.place], self.writer.clock.now()) if item.place in seated else item
                )
            except Invalid as error:
                verdicts.add(item.place, error)
        verdicts.raise_if_any()
        return made

    async def _read_stored(self, documents: Iterable[object]) -> dict[str, Entry]:
        """Read the stored entries of the objects that documents are about."""
        return await self._read_keys(ref.key for ref in filter(None, map(_ref_of_document, documents)))

    async def _read_keys(self, keys: Iterable[str]) -> dict[str, Entry]:
        groups: dict[str, list[str]] = defaultdict(list)
        for key in keys:
            groups[key.rpartition("/")[0]].append(key)
        entries: list[Entry | None] = []
        for folder, within in groups.items():
            if len(within) > _MOST_SINGLE_READS:
                entries += (await scan_all(self.writer.store, f"{folder}/")).entries
            else:
                entries += [await self.writer.store.get(key) for key in within]
        return {entry.key: entry for entry in entries if entry is not None}

    async def _write_items(
        self, items: Sequence[BundleItem], done: dict[int, Applied], documents: Sequence[Document]
    ) -> None:
        """Write the items and record their outcomes in `done`. Items disturbed by other writes are planned again.

        Smaller commits are disturbed less often. The Conflict of a commit with one object names the first not written.
        """
        most, in_vain = MAX_OPERATIONS, 0
        while items:
            before = len(done)
            try:
                await self._commit_bundles(items, done, most=most)
            except Conflict:
                in_vain = in_vain + 1 if len(done) == before else 0
                if in_vain == ATTEMPTS:
                    raise
                most = max(1, most // 2)
                if self.promises is not None:
                    await self.promises.back_off()
                items = await self._replan(
                    {item.place: documents[item.place] for item in items if item.place not in done}
                )
                done |= {item.place: item.outcome() for item in items if item.draft is None}
            items = [item for item in items if item.place not in done]

    async def _replan(self, documents: Mapping[int, Document]) -> list[BundleItem]:
        """Plan again what is not written yet."""
        verdicts, entries = DocumentFaults(late=True), await self._read_stored(documents.values())
        planned = await self._plan_items(await self._read_documents(documents, entries, verdicts), entries, verdicts)
        verdicts.raise_if_any()
        return await self._promise_items(planned, DocumentFaults(late=True))

    async def _commit_bundles(self, items: Sequence[BundleItem], done: dict[int, Applied], *, most: int) -> None:
        written: dict[str, int] = {}
        for bundle in pack_bundles(items, now=self.writer.clock.now(), most=most):
            extra = await self.quota(self.writer.caller, [item.after for item in bundle.items if item.is_new])
            own = {item.key for item in items}  # the settings that are checked may be among what is applied
            ops = [*bundle.ops, *bundle.checks(written), *(op for op in extra if op.key not in own)]
            revision = await self.writer.submit(ops, bundle.events, deeds=bundle.audited_actions)
            written |= dict.fromkeys(bundle.guards, revision)
            for item in bundle.items:
                written[item.key] = revision
                done[item.place] = item.outcome(revision)


def _is_booking(item: BundleItem) -> bool:
    return item.is_new and isinstance(item.after, LabletSession | Reservation)


def _ref_of_document(document: object) -> Ref[Resource] | None:
    """Return which object a document is about, before it is read; None if that cannot be told."""
    fields = document if isinstance(document, Mapping) else {}
    known, metadata = KINDS.get(str(fields.get("kind"))), fields.get("metadata")
    if known is None or not isinstance(metadata, Mapping):
        return None
    ref: Ref[Resource] = Ref(known.struct, str(metadata.get("name")), str(metadata.get("namespace", DEFAULT_NAMESPACE)))
    return ref if is_nameable(ref) else None


def _without_version(name: str) -> str:
    return name.partition(":")[0]


def _family_of(document: object) -> NameFamily:
    """Return the name family of a document that cannot be read."""
    fields = document if isinstance(document, Mapping) else {}
    metadata = fields.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    return (
        str(fields.get("kind")),
        str(named.get("namespace", DEFAULT_NAMESPACE)),
        _without_version(str(named.get("name"))),
    )


def _reference_to(lost: Collection[NameFamily], resource: Resource) -> str | None:
    """Return the path at which an object refers to one of these families; None if it does not."""
    wanted = reference_of(resource)
    if wanted is None or (wanted.kind.__name__, wanted.namespace, _without_version(wanted.name)) not in lost:
        return None
    return wanted.path
