"""Reading all objects and following their changes, across lost history and outages. Called by get, wait and delete."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lcm.control.plane.protocol import LONGEST_PAGE, Listing, Plane, Ref, ref_of
from lcm.model.base.errors import Later, Relist
from lcm.model.base.selector import EVERYTHING, ObjectSelector, SelectorTerm, selects
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession

R = TypeVar("R", bound=Resource)
FiltersByKind = Mapping[type[Resource], ObjectSelector]
"""The filter of each kind."""

_MOST_RELISTS: Final = 5
_BACKOFF_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class FollowedChange:
    """An object as it is now. None means it was deleted; `last` is how it was seen before."""

    ref: Ref[Any]
    resource: Resource | None
    last: Resource | None


def filter_by_name(*names: str) -> ObjectSelector:
    """Return a filter for objects with these names."""
    return ObjectSelector(fields=(SelectorTerm("metadata.name", names),))


async def read_all(
    plane: Plane,
    kind: type[R],
    *,
    namespace: str | None = None,
    where: ObjectSelector = EVERYTHING,
    archived: bool = False,
) -> Listing[R]:
    """Read all pages of a list, consistent at one revision."""

    async def page(cursor: str | None) -> Listing[R]:
        return await plane.list(
            kind, namespace=namespace, where=where, limit=LONGEST_PAGE, cursor=cursor, archived=archived
        )

    for _ in range(_MOST_RELISTS):
        try:
            return await _read_pages(page)
        except Relist:
            continue  # the first page's revision has been compacted: start again
    return await _read_pages(page)


async def follow(
    plane: Plane, wheres: FiltersByKind, *, namespace: str | None
) -> AsyncIterator[Sequence[FollowedChange]]:
    """Yield everything that exists, then what each commit changes, without end.

    Changes made while history was lost or the API was down are yielded once it is back. Only the first list may fail.
    """
    known: dict[str, Resource] = {}
    lists = await _list_kinds(plane, wheres, namespace)
    while True:
        yield _changes_since(known, lists.values(), wheres)
        try:
            async for seen in _watch_changes(plane, lists, namespace):
                if changes := [change for ref, now in seen if (change := _record_change(known, ref, now, wheres))]:
                    yield changes
        except Relist:
            lists = await _relist_kinds(plane, wheres, namespace)


async def watch_session(plane: Plane, session: LabletSession) -> AsyncIterator[LabletSession]:
    """Yield a session as it is now and after each change, until it is deleted."""
    wheres: FiltersByKind = {LabletSession: filter_by_name(session.metadata.name)}
    async for changes in follow(plane, wheres, namespace=session.metadata.namespace):
        for change in changes:
            if not isinstance(change.resource, LabletSession):
                return
            yield change.resource


async def _read_pages(read: Callable[[str | None], Awaitable[Listing[R]]]) -> Listing[R]:
    page = await read(None)
    items, revision = list(page.items), page.revision
    while page.next is not None:
        page = await read(page.next)
        items += page.items
    return Listing(items, revision)


async def _list_kinds(plane: Plane, wheres: FiltersByKind, namespace: str | None) -> dict[type[Resource], Listing[Any]]:
    return {kind: await read_all(plane, kind, namespace=namespace, where=where) for kind, where in wheres.items()}


async def _relist_kinds(
    plane: Plane, wheres: FiltersByKind, namespace: str | None
) -> dict[type[Resource], Listing[Any]]:
    tries = 0
    while True:
        try:
            return await _list_kinds(plane, wheres, namespace)
        except (Later, Relist):
            await asyncio.sleep(_BACKOFF_SECONDS[min(tries, len(_BACKOFF_SECONDS) - 1)])
            tries += 1


async def _watch_changes(
    plane: Plane, lists: Mapping[type[Resource], Listing[Any]], namespace: str | None
) -> AsyncIterator[list[tuple[Ref[Any], Resource | None]]]:
    """Watch from the oldest of the lists; skip changes that the other lists already include."""
    async with plane.watch(*lists, after=min(listing.revision for listing in lists.values())) as watch:
        async for changes in watch:
            yield [
                (seen.ref, seen.resource)
                for seen in changes.seen
                if changes.revision > lists[seen.ref.kind].revision and namespace in {None, seen.ref.namespace}
            ]


def _changes_since(
    known: dict[str, Resource], lists: Iterable[Listing[Any]], wheres: FiltersByKind
) -> list[FollowedChange]:
    there = {ref_of(one).key: one for listing in lists for one in listing.items}
    gone = [ref_of(last) for key, last in known.items() if key not in there]
    now: list[tuple[Ref[Any], Resource | None]] = [(ref_of(one), one) for one in there.values()]
    now += [(ref, None) for ref in gone]
    return [change for ref, one in now if (change := _record_change(known, ref, one, wheres))]


def _record_change(
    known: dict[str, Resource], ref: Ref[Any], now: Resource | None, wheres: FiltersByKind
) -> FollowedChange | None:
    """Remember an object's present state. Return None when nothing changed, or it matched neither before nor now."""
    last = known.get(ref.key)
    if now is None or not selects(wheres[ref.kind], now):
        known.pop(ref.key, None)
        return FollowedChange(ref, now, last) if last is not None else None
    known[ref.key] = now
    if last is not None and last.metadata.resource_version == now.metadata.resource_version:
        return None
    return FollowedChange(ref, now, last)
