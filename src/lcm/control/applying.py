"""Many documents at once: all are admitted before any is written, then written in as few commits as the limits allow.

Somebody who writes in between only makes the rest be planned anew. Used by `local`; `bundles` packs the commits.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lcm.control.bundles import Item, bundled
from lcm.control.drafts import Drafts, Quota
from lcm.control.ledger import ATTEMPTS, Ledger
from lcm.control.plane import LONGEST_APPLY, Applied, Document
from lcm.control.records import Record, key_of, opened
from lcm.control.references import Sought, Target, stored
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Conflict, Fault, Invalid, TooLarge
from lcm.model.identity import Verb, sees
from lcm.model.kinds import KINDS, Resource
from lcm.model.pool import WorkerTemplate
from lcm.store.base import MAX_OPERATIONS, Entry, Store, everything

Read = Callable[[object], Resource]
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

_BREATH: Final = 100
"""So many documents are worked on before others get their turn."""


@dataclass(slots=True)
class Known:
    """What names may mean: what the store holds, and what was admitted just now."""

    store: Store
    read: dict[Sought, Sequence[Target]] = field(default_factory=dict)
    fresh: dict[tuple[type, str, str], dict[str, Target]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, resource: Resource) -> None:
        """Let a name mean an object that is about to be written."""
        if isinstance(resource, WorkerTemplate | LabletDefinition):
            name = resource.metadata.name
            self.fresh[type(resource), resource.metadata.namespace, _family(name)][name] = resource

    async def found(self, wanted: Sought) -> Sequence[Target]:
        """Give every object that a name may mean."""
        if wanted not in self.read:
            self.read[wanted] = await stored(self.store, wanted)
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

    async def run(self, documents: Sequence[Document], *, dry_run: bool) -> Sequence[Applied]:
        """Create or replace every object, or none if one may not be."""
        if len(documents) > LONGEST_APPLY:
            raise TooLarge(f"{len(documents)} documents at once; the limit is {LONGEST_APPLY}")
        resources = await self._typed(documents)
        for kind in dict.fromkeys(map(type, resources)):
            self.ledger.allow(Verb.WRITE, kind)
        items = await self._planned(list(enumerate(resources)))
        await self.quota(self.ledger.caller, [item.after for item in items if item.is_new])
        done = {item.place: item.applied() for item in items if dry_run or item.draft is None}
        await self._write([item for item in items if item.place not in done], done)
        return [done[place] for place in range(len(resources))]

    async def _typed(self, documents: Sequence[Document]) -> list[Resource]:
        faults: list[Fault] = []
        resources: dict[str, Resource] = {}
        for place, document in enumerate(documents):
            await _breathe(place)
            try:
                resource = self.read(document)
            except Invalid as error:
                faults += _placed(place, error)
                continue
            if key_of(resource) in resources:
                faults.append(Fault(f"documents[{place}].metadata.name", "the same object twice", "keep one of them"))
            resources[key_of(resource)] = resource
        if faults:
            raise Invalid(*faults)
        return list(resources.values())

    async def _planned(self, resources: Sequence[tuple[int, Resource]]) -> list[Item]:
        """Admit every document against the store and those before it; raises Invalid with the faults of all."""
        entries = await self._entries([resource for _, resource in resources])
        known, items, faults = Known(self.ledger.store), list[Item](), list[Fault]()
        for count, (place, resource) in enumerate(sorted(resources, key=_rank)):
            await _breathe(count)
            try:
                item = await self._item(place, resource, entries.get(key_of(resource)), known)
            except Invalid as error:
                faults += _placed(place, error)
                continue
            known.add(item.after)
            items.append(item)
        if faults:
            raise Invalid(*faults)
        return items

    async def _item(self, place: int, resource: Resource, entry: Entry | None, known: Known) -> Item:
        if entry is None:
            return Item(place, resource, None, await self.drafts.new(resource, found=known.found))
        record = Record(opened(entry, type(resource)), entry)
        if not sees(self.ledger.caller, record.resource):
            raise Conflict(entry.key, wanted=0, found=entry.revision)
        demanded = resource.metadata.resource_version
        if demanded not in (0, entry.revision):
            raise Conflict(entry.key, wanted=demanded, found=entry.revision)
        return Item(place, resource, record, await self.drafts.changed(record, resource, found=known.found))

    async def _entries(self, resources: Iterable[Resource]) -> dict[str, Entry]:
        groups: dict[str, list[str]] = defaultdict(list)
        for resource in resources:
            groups[KINDS[resource.kind].key(resource.metadata.namespace, "")].append(key_of(resource))
        entries: list[Entry | None] = []
        for prefix, keys in groups.items():
            if len(keys) > _FEW:
                entries += (await everything(self.ledger.store, prefix)).entries
            else:
                entries += [await self.ledger.store.get(key) for key in keys]
        return {entry.key: entry for entry in entries if entry is not None}

    async def _write(self, items: Sequence[Item], done: dict[int, Applied]) -> None:
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
                items = await self._planned([(item.place, item.resource) for item in items if item.place not in done])
                done |= {item.place: item.applied() for item in items if item.draft is None}
            items = [item for item in items if item.place not in done]

    async def _commit(self, items: Sequence[Item], done: dict[int, Applied], *, most: int) -> None:
        written: dict[str, int] = {}
        for bundle in bundled(items, now=self.ledger.clock.now(), most=most):
            extra = await self.quota(self.ledger.caller, [item.after for item in bundle.items if item.is_new])
            revision = await self.ledger.submit([*bundle.ops, *bundle.checks(written), *extra], bundle.events)
            for item in bundle.items:
                written[item.key] = revision
                done[item.place] = item.applied(revision)


def _rank(placed: tuple[int, Resource]) -> int:
    return ORDER.index(placed[1].kind)


def _family(name: str) -> str:
    return name.partition(":")[0]


def _placed(place: int, error: Invalid) -> list[Fault]:
    """Say in which document each fault is."""
    where = f"documents[{place}]"
    return [
        Fault(where if fault.path == "document" else f"{where}.{fault.path}", fault.problem, fault.remedy)
        for fault in error.faults
    ]


async def _breathe(count: int) -> None:
    if count % _BREATH == _BREATH - 1:
        await asyncio.sleep(0)
