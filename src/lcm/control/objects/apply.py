"""Many documents at once: all are admitted before any is written, then written in as few commits as the limits allow.

Bookings among them are promised together, as if each had been created by itself once the others were there. Somebody
who writes in between only makes the rest be planned anew. Used by `local`; `bundles` packs the commits.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from lcm.control.admission.admit import Drafts, Quota
from lcm.control.admission.references import Sought, Target, sought
from lcm.control.booking.promise import Desk, timed
from lcm.control.objects.bundles import Breath, Item, Verdicts, bundled, seat, weighed
from lcm.control.objects.deletion import present
from lcm.control.objects.records import Record, key_of, mark_of, nameable, opened, refusal
from lcm.control.objects.writer import ATTEMPTS, Ledger, taken
from lcm.control.plane.protocol import LONGEST_APPLY, Applied, Document, Ref, ref_of
from lcm.model.access.identity import Verb, sees
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid, TooLarge
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.store.base import MAX_OPERATIONS, Entry, everything


class Read(Protocol):
    """Gives a document its type; what it says nothing of may stay as it is in what it is put onto."""

    def __call__(self, document: object, *, onto: Resource | None) -> Resource:
        """Raise Invalid with every fault."""
        ...


ORDER: Final = (
    "SystemSettings",
    "WorkerTemplate",
    "LabletDefinition",
    "LabWorkerPool",
    "LabWorker",
    "Reservation",
    "LabletSession",
)
"""Each kind after those it may refer to."""

_FEW: Final = 32
"""So many objects are read one by one; more of one kind and namespace, by a scan."""

Family = tuple[str, str, str]
"""A kind, a namespace, and a name without its version."""

_TWICE: Final = Fault("metadata.name", "the same object twice", "keep one of them")


@dataclass(slots=True)
class Known:
    """What names may mean: what the store holds, and what was admitted just now."""

    ledger: Ledger
    marks: dict[str, str]
    """What only one object may have, and where that is."""
    read: dict[Sought, Sequence[Target]] = field(default_factory=dict)
    fresh: dict[tuple[type, str, str], dict[str, Target]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, resource: Resource) -> None:
        """Let a name mean an object that is about to be written; Invalid if another one has what it must have."""
        mark, key = mark_of(resource), key_of(resource)
        if mark is not None and (holder := self.marks.setdefault(mark, key)) != key:
            raise refusal(mark, holder)
        if isinstance(resource, WorkerTemplate | LabletDefinition):
            name = resource.metadata.name
            self.fresh[type(resource), resource.metadata.namespace, _family(name)][name] = resource

    async def found(self, wanted: Sought) -> Sequence[Target]:
        """Give every object that a name may mean."""
        if wanted not in self.read:
            self.read[wanted] = await present(self.ledger, wanted)
        fresh = self.fresh.get((wanted.kind, wanted.namespace, _family(wanted.name)), {})
        mine = [one for name, one in fresh.items() if not wanted.exact or name == wanted.name]
        return [*mine, *(one for one in self.read[wanted] if one.metadata.name not in fresh)]


@dataclass(frozen=True, slots=True)
class Application:
    """Applies documents for one caller."""

    ledger: Ledger
    drafts: Drafts
    quota: Quota
    read: Read
    desk: Desk | None = None
    """Where slots are promised; without it, nothing is."""

    async def run(self, documents: Sequence[Document], *, dry_run: bool) -> Sequence[Applied]:
        """Create or replace every object, or none if one may not be."""
        if len(documents) > LONGEST_APPLY:
            raise TooLarge(f"{len(documents)} documents at once; the limit is {LONGEST_APPLY}")
        verdicts = Verdicts()
        entries = await self._entries(documents)
        resources = await self._typed(dict(enumerate(documents)), entries, verdicts)
        for kind in dict.fromkeys(type(resource) for _, resource in resources):
            self.ledger.allow(Verb.WRITE, kind)
        lost = {_family_of(documents[place]) for place in verdicts.found}
        items = await self._planned(resources, entries, verdicts, lost)
        verdicts.settle()
        await self.quota(self.ledger.caller, [item.after for item in items if item.is_new])
        async with self._turn(items):
            items = await self._promised(items, Verdicts())
            done = {item.place: item.applied() for item in items if dry_run or item.draft is None}
            await self._write([item for item in items if item.place not in done], done, documents)
        return [done[place] for place in range(len(documents))]

    async def _typed(
        self, documents: Mapping[int, Document], entries: Mapping[str, Entry], verdicts: Verdicts
    ) -> list[tuple[int, Resource]]:
        """Read every document that can be read, each with its place."""
        resources: dict[str, tuple[int, Resource]] = {}
        breath = Breath()
        for place, document in documents.items():
            await breath.take()
            if verdicts.enough:
                break
            try:
                resource = self.read(document, onto=self._stored(document, entries))
            except Invalid as error:
                verdicts.add(place, error)
                continue
            if key_of(resource) in resources:
                verdicts.add(place, Invalid(_TWICE))
            else:
                resources[key_of(resource)] = (place, resource)
        return list(resources.values())

    def _stored(self, document: object, entries: Mapping[str, Entry]) -> Resource | None:
        """Give what a document is put onto, as far as that exists for the caller."""
        ref = _named(document)
        entry = entries.get(ref.key) if ref else None
        found = opened(entry, ref.kind) if ref and entry else None
        return found if found is not None and sees(self.ledger.caller, found) else None

    async def _planned(
        self,
        resources: Sequence[tuple[int, Resource]],
        entries: Mapping[str, Entry],
        verdicts: Verdicts,
        lost: Collection[Family] = (),
    ) -> list[Item]:
        """Admit every document against the store and those before it, and note what speaks against each.

        That one refers to what is `lost`, documents that cannot be read, is not held against it.
        """
        known, items, breath = Known(self.ledger, await self._marks(resources)), list[Item](), Breath()
        for place, resource in sorted(resources, key=_rank):
            await breath.take()
            if verdicts.enough:
                break
            try:
                item = await self._item(place, resource, entries.get(key_of(resource)), known)
                known.add(item.after)
            except (Invalid, Conflict, Forbidden) as error:
                verdicts.add(place, error, but=_reference_to(lost, resource))
                continue
            items.append(item)
        return items

    async def _item(self, place: int, resource: Resource, entry: Entry | None, known: Known) -> Item:
        return weighed(await self._drafted(place, resource, entry, known), self.ledger.clock.now())

    async def _drafted(self, place: int, resource: Resource, entry: Entry | None, known: Known) -> Item:
        if entry is None:
            done = await self.drafts.done(resource)
            draft = await self.drafts.new(resource, found=known.found) if done is None else None
            return Item(place, resource, done, draft)
        record = Record(opened(entry, type(resource)), entry)
        if not sees(self.ledger.caller, record.resource):
            raise taken(ref_of(resource))
        demanded = resource.metadata.resource_version
        if demanded not in (0, entry.revision):
            raise Conflict(entry.key, wanted=demanded, found=entry.revision)
        return Item(place, resource, record, await self.drafts.changed(record, resource, found=known.found))

    @asynccontextmanager
    async def _turn(self, items: Iterable[Item]) -> AsyncIterator[None]:
        """Wait for one's turn, if anything is to be promised."""
        bookings = [item.after for item in items if _is_booking(item)]
        if self.desk is None or not bookings:
            yield
            return
        async with self.desk.turn(bookings):
            yield

    async def _promised(self, items: list[Item], verdicts: Verdicts) -> list[Item]:
        """Give new bookings their seats, all or none, as pools and templates will be; NoRoom names the document."""
        bookings = [item for item in items if _is_booking(item)]
        if self.desk is None or not bookings:
            return items
        found = await self.desk.foreseeing([item.after for item in items]).promised(
            [item.after for item in bookings],
            [item.draft.target if item.draft else None for item in bookings],
            names=[f"documents[{item.place}]" for item in bookings],
        )
        seated = {item.place: item for item in map(seat, bookings, found.made, found.footings)}
        made = list[Item]()
        for item in items:
            try:
                made.append(weighed(seated[item.place], self.ledger.clock.now()) if item.place in seated else item)
            except Invalid as error:
                verdicts.add(item.place, error)
        verdicts.settle()
        return made

    async def _entries(self, documents: Iterable[object]) -> dict[str, Entry]:
        """Read what is stored of the objects that documents are about."""
        return await self._read(ref.key for ref in filter(None, map(_named, documents)))

    async def _marks(self, resources: Iterable[tuple[int, Resource]]) -> dict[str, str]:
        """Read who has what only one object may have, of what these must have."""
        wanted = (mark for _, one in resources if (mark := mark_of(one)) is not None)
        return {key: entry.value.decode() for key, entry in (await self._read(wanted)).items()}

    async def _read(self, keys: Iterable[str]) -> dict[str, Entry]:
        groups: dict[str, list[str]] = defaultdict(list)
        for key in keys:
            groups[key.rpartition("/")[0]].append(key)
        entries: list[Entry | None] = []
        for folder, within in groups.items():
            if len(within) > _FEW:
                entries += (await everything(self.ledger.store, f"{folder}/")).entries
            else:
                entries += [await self.ledger.store.get(key) for key in within]
        return {entry.key: entry for entry in entries if entry is not None}

    async def _write(self, items: Sequence[Item], done: dict[int, Applied], documents: Sequence[Document]) -> None:
        """Write items, and what the commits made of them into `done`; what somebody disturbs is planned anew.

        Smaller commits are harder to disturb; the Conflict of one that holds one object names the first not written.
        """
        most, in_vain = MAX_OPERATIONS, 0
        while items:
            before = len(done)
            try:
                await self._commit(items, done, most=most)
            except Conflict:
                in_vain = in_vain + 1 if len(done) == before else 0
                if in_vain == ATTEMPTS:
                    raise
                most = max(1, most // 2)
                if self.desk is not None:
                    await self.desk.breathe()
                items = await self._again(
                    {item.place: documents[item.place] for item in items if item.place not in done}
                )
                done |= {item.place: item.applied() for item in items if item.draft is None}
            items = [item for item in items if item.place not in done]

    async def _again(self, documents: Mapping[int, Document]) -> list[Item]:
        """Plan anew what is not written yet."""
        verdicts, entries = Verdicts(late=True), await self._entries(documents.values())
        planned = await self._planned(await self._typed(documents, entries, verdicts), entries, verdicts)
        verdicts.settle()
        return await self._promised(planned, Verdicts(late=True))

    async def _commit(self, items: Sequence[Item], done: dict[int, Applied], *, most: int) -> None:
        written: dict[str, int] = {}
        for bundle in bundled(items, now=self.ledger.clock.now(), most=most):
            extra = await self.quota(self.ledger.caller, [item.after for item in bundle.items if item.is_new])
            ops = [*bundle.ops, *bundle.checks(written), *extra]
            revision = await self.ledger.submit(ops, bundle.events, deeds=bundle.deeds)
            written |= dict.fromkeys(bundle.guards, revision)
            for item in bundle.items:
                written[item.key] = revision
                done[item.place] = item.applied(revision)


def _is_booking(item: Item) -> bool:
    return item.is_new and timed(item.after)


def _named(document: object) -> Ref[Resource] | None:
    """Say which object a document is about, before it is read; None if it cannot be read."""
    said = document if isinstance(document, Mapping) else {}
    known, metadata = KINDS.get(str(said.get("kind"))), said.get("metadata")
    if known is None or not isinstance(metadata, Mapping):
        return None
    ref: Ref[Resource] = Ref(known.struct, str(metadata.get("name")), str(metadata.get("namespace", DEFAULT_NAMESPACE)))
    return ref if nameable(ref) else None


def _rank(placed: tuple[int, Resource]) -> int:
    return ORDER.index(placed[1].kind)


def _family(name: str) -> str:
    return name.partition(":")[0]


def _family_of(document: object) -> Family:
    """Say by what a document that cannot be read was to be found."""
    said = document if isinstance(document, Mapping) else {}
    metadata = said.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    return str(said.get("kind")), str(named.get("namespace", DEFAULT_NAMESPACE)), _family(str(named.get("name")))


def _reference_to(lost: Collection[Family], resource: Resource) -> str | None:
    """Say where an object refers to one of these; None if it does not."""
    wanted = sought(resource)
    if wanted is None or (wanted.kind.__name__, wanted.namespace, _family(wanted.name)) not in lost:
        return None
    return wanted.path
