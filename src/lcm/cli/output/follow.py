"""Reading all there is and following it from then on, whatever breaks in between. Called by get, wait and delete."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lcm.control.plane.protocol import LONGEST_PAGE, Listing, Plane, Ref, ref_of
from lcm.model.base.errors import Later, Relist
from lcm.model.base.selector import EVERYTHING, Term, Where, selects
from lcm.model.kinds.registry import Resource

R = TypeVar("R", bound=Resource)
Wheres = Mapping[type[Resource], Where]
"""What is wanted of each kind."""

_READ_AGAIN: Final = 5
_WAITS_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Change:
    """An object as it is now; None: it is gone, and `last` is how it was seen before."""

    ref: Ref[Any]
    resource: Resource | None
    last: Resource | None


def named(*names: str) -> Where:
    """Want objects of these names."""
    return Where(fields=(Term("metadata.name", names),))


async def everything(
    plane: Plane, kind: type[R], *, namespace: str | None = None, where: Where = EVERYTHING, archived: bool = False
) -> Listing[R]:
    """Read all pages of a list, all true at one revision."""

    async def page(cursor: str | None) -> Listing[R]:
        return await plane.list(
            kind, namespace=namespace, where=where, limit=LONGEST_PAGE, cursor=cursor, archived=archived
        )

    for _ in range(_READ_AGAIN):
        try:
            return await _pages(page)
        except Relist:
            continue  # what the first page was true at is forgotten: begin anew
    return await _pages(page)


async def follow(plane: Plane, wheres: Wheres, *, namespace: str | None) -> AsyncIterator[Sequence[Change]]:
    """Tell everything that is there, then what each commit changes, without end.

    What happened while the history was lost or nobody answered is told when it is back. Only the first list may fail.
    """
    known: dict[str, Resource] = {}
    lists = await _lists(plane, wheres, namespace)
    while True:
        yield _differences(known, lists.values(), wheres)
        try:
            async for seen in _watched(plane, lists, namespace):
                if changes := [change for ref, now in seen if (change := _take(known, ref, now, wheres))]:
                    yield changes
        except Relist:
            lists = await _lists_again(plane, wheres, namespace)


async def _pages(read: Callable[[str | None], Awaitable[Listing[R]]]) -> Listing[R]:
    page = await read(None)
    items, revision = list(page.items), page.revision
    while page.next is not None:
        page = await read(page.next)
        items += page.items
    return Listing(items, revision)


async def _lists(plane: Plane, wheres: Wheres, namespace: str | None) -> dict[type[Resource], Listing[Any]]:
    return {kind: await everything(plane, kind, namespace=namespace, where=where) for kind, where in wheres.items()}


async def _lists_again(plane: Plane, wheres: Wheres, namespace: str | None) -> dict[type[Resource], Listing[Any]]:
    tries = 0
    while True:
        try:
            return await _lists(plane, wheres, namespace)
        except (Later, Relist):
            await asyncio.sleep(_WAITS_SECONDS[min(tries, len(_WAITS_SECONDS) - 1)])
            tries += 1


async def _watched(
    plane: Plane, lists: Mapping[type[Resource], Listing[Any]], namespace: str | None
) -> AsyncIterator[list[tuple[Ref[Any], Resource | None]]]:
    """Watch from the oldest of the lists, leaving out what the others knew already."""
    async with plane.watch(*lists, after=min(listing.revision for listing in lists.values())) as watch:
        async for changes in watch:
            yield [
                (seen.ref, seen.resource)
                for seen in changes.seen
                if changes.revision > lists[seen.ref.kind].revision and namespace in {None, seen.ref.namespace}
            ]


def _differences(known: dict[str, Resource], lists: Iterable[Listing[Any]], wheres: Wheres) -> list[Change]:
    there = {ref_of(one).key: one for listing in lists for one in listing.items}
    gone = [ref_of(last) for key, last in known.items() if key not in there]
    now: list[tuple[Ref[Any], Resource | None]] = [(ref_of(one), one) for one in there.values()]
    now += [(ref, None) for ref in gone]
    return [change for ref, one in now if (change := _take(known, ref, one, wheres))]


def _take(known: dict[str, Resource], ref: Ref[Any], now: Resource | None, wheres: Wheres) -> Change | None:
    """Note how an object is now; None when that is nothing new, or not wanted before and after."""
    last = known.get(ref.key)
    if now is None or not selects(wheres[ref.kind], now):
        known.pop(ref.key, None)
        return Change(ref, now, last) if last is not None else None
    known[ref.key] = now
    if last is not None and last.metadata.resource_version == now.metadata.resource_version:
        return None
    return Change(ref, now, last)
