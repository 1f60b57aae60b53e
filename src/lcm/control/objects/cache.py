"""The newest known state of all objects of some kinds: listed once, then followed. Controllers decide by it.

It may be behind, never wrong: what cannot be listed keeps its last known state, and before the first list is complete
nothing can be asked. `runtime` looks at it; `compose` runs it.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import structlog

from lcm.control.plane.protocol import Changes, Plane, R, Ref, Seen, ref_of
from lcm.model.base.errors import Later, LcmError, Relist, Stuck
from lcm.model.kinds.registry import Resource

_FIRST_PAUSE: Final = timedelta(seconds=0.5)
_LONGEST_PAUSE: Final = timedelta(seconds=30)
_DOUBLINGS: Final = 8
_log: Final = structlog.get_logger()


def _half() -> float:
    return 0.5


class Cache:
    """Objects by name."""

    def __init__(self, plane: Plane, *kinds: type[Resource], chance: Callable[[], float] = _half) -> None:
        """Follow these kinds. `chance` spreads out those who list again after the same outage."""
        self._plane = plane
        self._held: dict[type[Any], dict[Ref[Any], Resource]] = {kind: {} for kind in kinds}
        self._listed: dict[type[Any], int] = {}
        self._chance = chance
        self._callbacks: dict[object, Callable[[Seen], None]] = {}
        self._complete = asyncio.Event()
        self._revision = 0
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._failures = 0
        self._trouble = ""

    async def run(self) -> None:
        """List and follow, for ever; an outage only makes what is known older."""
        while True:
            try:
                await self._follow(await self._list())
            except (Later, Relist, Stuck) as error:
                await self._pause(error)

    async def ready(self) -> None:
        """Wait until everything was listed once."""
        await self._complete.wait()

    def get(self, ref: Ref[R]) -> R | None:
        """Look up an object by its name; None: there is none, as far as is known."""
        found = self._of(ref.kind).get(ref)
        assert found is None or isinstance(found, ref.kind)
        return found

    def all(self, kind: type[R]) -> Sequence[R]:
        """Give all objects of a kind, in no particular order."""
        return [found for found in self._of(kind).values() if isinstance(found, kind)]

    def knows(self, revision: int) -> bool:
        """Tell whether what these kinds were at a revision is known."""
        return self._revision >= revision

    async def until(self, revision: int) -> None:
        """Wait until what these kinds were at this revision is known; it must be the revision of one of them."""
        if self.knows(revision):
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[reached] = revision
        try:
            await reached
        finally:
            self._waiting.pop(reached, None)

    def subscribe(self, callback: Callable[[Seen], None]) -> Callable[[], None]:
        """Be told of every object that changes from now on; call what is returned to be told no more."""
        token = object()
        self._callbacks[token] = callback

        def end() -> None:
            self._callbacks.pop(token, None)

        return end

    def accept(self, resource: Resource) -> None:
        """Take note of what a write of our own has answered, before the watch tells of it."""
        kind, version = type(resource), resource.metadata.resource_version
        # What the watch told of already is known: if it is not held, it went since then.
        if version > max(self._revision, self._listed.get(kind, 0)):
            self._take(ref_of(resource), resource, version)

    def _of(self, kind: type[Any]) -> dict[Ref[Any], Resource]:
        assert self._complete.is_set(), "what was not listed is unknown, which is not the same as empty: see `ready`"
        return self._held[kind]

    async def _list(self) -> int:
        revisions = [await self._list_kind(kind) for kind in self._held]
        self._failures = 0
        if self._trouble:
            self._trouble = ""
            _log.info("cache caught up", kinds=self._kinds)
        self._complete.set()
        self._advance(min(revisions))
        return self._revision

    async def _list_kind(self, kind: type[Any]) -> int:
        found: dict[Ref[Any], Resource] = {}
        page = await self._plane.list(kind)
        found.update((ref_of(item), item) for item in page.items)
        while page.next is not None:
            page = await self._plane.list(kind, cursor=page.next)
            found.update((ref_of(item), item) for item in page.items)
        self._replace(kind, found, page.revision)
        return page.revision

    def _replace(self, kind: type[Any], found: dict[Ref[Any], Resource], revision: int) -> None:
        for ref in [ref for ref in self._held[kind] if ref not in found]:
            self._take(ref, None, revision)
        for ref, resource in found.items():
            self._take(ref, resource, resource.metadata.resource_version)
        self._listed[kind] = revision

    async def _follow(self, after: int) -> None:
        async with self._plane.watch(*self._held, after=after) as watch:
            async for changes in watch:
                self._note(changes)

    def _note(self, changes: Changes) -> None:
        for seen in changes.seen:
            # The kinds were listed one after the other: of some the list knew more than this.
            if changes.revision > self._listed[seen.ref.kind]:
                self._take(seen.ref, seen.resource, changes.revision)
        self._advance(changes.revision)

    def _take(self, ref: Ref[Any], resource: Resource | None, revision: int) -> None:
        held = self._held[ref.kind]
        before = held.get(ref)
        if before is not None and before.metadata.resource_version >= revision:
            return
        if resource is None:
            held.pop(ref, None)
        else:
            held[ref] = resource
        for callback in list(self._callbacks.values()):
            callback(Seen(ref, resource))

    def _advance(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        for reached, wanted in list(self._waiting.items()):
            if wanted <= self._revision and not reached.done():
                reached.set_result(None)

    async def _pause(self, error: LcmError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("cache interrupted", kinds=self._kinds, error=self._trouble)
        told = error.after if isinstance(error, Later) else timedelta(0)
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, _DOUBLINGS)
        await asyncio.sleep(max(told, longest * (0.5 + self._chance())).total_seconds())

    @property
    def _kinds(self) -> list[str]:
        return [kind.__name__ for kind in self._held]
