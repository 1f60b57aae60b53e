"""The newest known state of all objects of some kinds: listed once, then followed. Controllers decide by it.

It may be behind but never wrong. While nothing can be listed it keeps the last known state, and before the first list
is complete it cannot be read. One is enough for a process: `compose` runs it, and all controllers read it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Final

import structlog

from lcm.control.plane.protocol import Changes, ObjectChange, Plane, PlaneWatch, R, Ref, ref_of
from lcm.model.base.errors import Later, LcmError, Relist, Stuck, WentBack
from lcm.model.kinds.registry import Resource
from lcm.store.base import went_back_error
from lcm.system.tasks import TimeSlice

_FIRST_PAUSE: Final = timedelta(seconds=0.5)
_LONGEST_PAUSE: Final = timedelta(seconds=30)
_DOUBLINGS: Final = 8
_NOT_LISTED: Final = "what was not listed is unknown, which is not the same as empty: see `ready`"
_log: Final = structlog.get_logger()


def fixed_chance() -> float:
    """Return a constant in place of a random number, for callers that leave nothing to chance."""
    return 0.5


class Cache:
    """The newest known objects of some kinds, by name."""

    def __init__(self, plane: Plane, *kinds: type[Resource], chance: Callable[[], float] = fixed_chance) -> None:
        """Follow these kinds. `chance` spreads out the processes that list again after the same outage."""
        self._plane = plane
        self._objects: dict[type[Any], dict[Ref[Any], Resource]] = {kind: {} for kind in kinds}
        self._listed: dict[type[Any], dict[Ref[Any], Resource]] | None = None
        """The same, once everything was listed."""
        self._uids: dict[type[Any], dict[str, Ref[Any]]] = {kind: {} for kind in kinds}
        self._listed_at: dict[type[Any], int] = {}
        self._chance = chance
        self._callbacks: dict[object, Callable[[ObjectChange], None]] = {}
        self._complete = asyncio.Event()
        self._revision = 0
        self._watch: PlaneWatch | None = None
        self._waiters: dict[asyncio.Future[None], int] = {}
        self._failures = 0
        self._last_error = ""

    async def run(self) -> None:
        """List and follow, without end. An outage only makes the known state older.

        Raises WentBack when the store is older than what is known.
        """
        while True:
            try:
                await self._follow(await self._list())
            except WentBack:
                raise
            except (Later, Relist, Stuck) as error:
                await self._pause(error)

    async def ready(self) -> None:
        """Wait until everything was listed once."""
        await self._complete.wait()

    def get(self, ref: Ref[R]) -> R | None:
        """Return an object by its name; None means that there is none, as far as is known."""
        known = self._listed
        assert known is not None, _NOT_LISTED
        return known[ref.kind].get(ref)  # type: ignore[return-value]  # of that kind; asked too often to look

    def find(self, kind: type[R], uid: str) -> R | None:
        """Return an object by its uid; None means that there is none, as far as is known."""
        ref = self._uids[kind].get(uid)
        return self.get(ref) if ref is not None else None

    def all(self, kind: type[R]) -> Sequence[R]:
        """Return all objects of a kind, in no particular order."""
        return [found for found in self._objects_of(kind).values() if isinstance(found, kind)]

    @property
    def known_revision(self) -> int:
        """The newest revision at which everything here is known to be as it was; what came later may be here, too."""
        return max(self._revision, self._watch.passed_revision if self._watch else 0)

    @property
    def is_ready(self) -> bool:
        """Whether everything was listed once."""
        return self._complete.is_set()

    def has_reached(self, revision: int) -> bool:
        """Return whether the state of these kinds at a revision is known."""
        return self._revision >= revision

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until the state of these kinds at a revision is known; it must be that of one of their objects."""
        if self.has_reached(revision):
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[reached] = revision
        try:
            await reached
        finally:
            self._waiters.pop(reached, None)

    def subscribe(self, callback: Callable[[ObjectChange], None]) -> Callable[[], None]:
        """Call `callback` with every object that changes from now on, and with what was held of it until then.

        Call the returned function to unsubscribe.
        """
        token = object()
        self._callbacks[token] = callback

        def end() -> None:
            self._callbacks.pop(token, None)

        return end

    async def replay(self, callback: Callable[[ObjectChange], None], kinds: Sequence[type[Any]]) -> Callable[[], None]:
        """Subscribe, and call `callback` with every known object of some kinds, in their order, as if it was new.

        Others have their turn in between, and what changes meanwhile is told at once, so an object may be told twice.
        Call the returned function to unsubscribe.
        """
        time_slice = TimeSlice()
        with ExitStack() as joined:
            end = joined.callback(self.subscribe(callback))
            for kind in kinds:
                held = self._objects_of(kind)
                for ref in list(held):
                    if (resource := held.get(ref)) is not None:
                        callback(ObjectChange(ref, resource))
                    await time_slice.yield_if_over()
            joined.pop_all()
        return end

    def accept(self, resource: Resource) -> None:
        """Store the answer to a write of our own before the watch reports it."""
        kind, version = type(resource), resource.metadata.resource_version
        # An older version was already reported by the watch; if it is missing here, the object was deleted since.
        if version > max(self._revision, self._listed_at.get(kind, 0)):
            self._update(ref_of(resource), resource, version)

    def _objects_of(self, kind: type[Any]) -> dict[Ref[Any], Resource]:
        assert self._listed is not None, _NOT_LISTED
        return self._listed[kind]

    async def _list(self) -> int:
        revisions = [await self._list_kind(kind) for kind in self._objects]
        self._failures = 0
        if self._last_error:
            self._last_error = ""
            _log.info("cache caught up", kinds=self._kind_names)
        self._listed = self._objects
        self._complete.set()
        self._advance(min(revisions))
        return self._revision

    async def _list_kind(self, kind: type[Any]) -> int:
        page = await self._plane.list(kind)
        if page.revision < self._revision:
            raise went_back_error(self._revision, page.revision)
        revision, left, time_slice = page.revision, set(self._objects[kind]), TimeSlice()
        while True:
            for item in page.items:
                ref = ref_of(item)
                left.discard(ref)
                self._update(ref, item, item.metadata.resource_version)
                await time_slice.yield_if_over()
            if page.next is None:
                break
            page = await self._plane.list(kind, cursor=page.next)
        await self._drop(left, revision)
        self._listed_at[kind] = revision
        return revision

    async def _drop(self, unlisted: Iterable[Ref[Any]], revision: int) -> None:
        """Drop what a list does not have, unless it is newer than the list."""
        time_slice = TimeSlice()
        for ref in unlisted:
            self._update(ref, None, revision)
            await time_slice.yield_if_over()

    async def _follow(self, after: int) -> None:
        async with self._plane.watch(*self._objects, after=after) as self._watch:
            async for changes in self._watch:
                self._apply_changes(changes)

    def _apply_changes(self, changes: Changes) -> None:
        for seen in changes.seen:
            # Kinds are listed one after another, so the list of some may be newer than this commit.
            if changes.revision > self._listed_at[seen.ref.kind]:
                self._update(seen.ref, seen.resource, changes.revision)
        self._advance(changes.revision)

    def _update(self, ref: Ref[Any], resource: Resource | None, revision: int) -> None:
        held = self._objects[ref.kind]
        before = held.get(ref)
        if before is not None and before.metadata.resource_version >= revision:
            return
        if before is not None and self._uids[ref.kind].get(before.metadata.uid) == ref:
            del self._uids[ref.kind][before.metadata.uid]
        if resource is None:
            held.pop(ref, None)
        else:
            held[ref] = resource
            self._uids[ref.kind][resource.metadata.uid] = ref
        change = ObjectChange(ref, resource, before)
        for callback in list(self._callbacks.values()):
            callback(change)

    def _advance(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        for reached, wanted in list(self._waiters.items()):
            if wanted <= self._revision and not reached.done():
                reached.set_result(None)

    async def _pause(self, error: LcmError) -> None:
        if str(error) != self._last_error:
            self._last_error = str(error)
            _log.warning("cache interrupted", kinds=self._kind_names, error=self._last_error)
        least = error.after if isinstance(error, Later) else timedelta(0)
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, _DOUBLINGS)
        await asyncio.sleep(max(least, longest * (0.5 + self._chance())).total_seconds())

    @property
    def _kind_names(self) -> list[str]:
        return [kind.__name__ for kind in self._objects]
