"""Following what changes, typed, for one caller.

Whoever does not see everything is told nothing of foreign objects, not even that one went: the watch knows which keys
were the caller's own at the revision it begins at. Used by `local`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from lcm.control.ledger import Ledger
from lcm.control.plane import Changes, Ref, Seen
from lcm.control.records import located, mentions, opened
from lcm.model.errors import Forbidden, LcmError
from lcm.model.identity import PERMITTED, SEES_ALL, Verb, sees
from lcm.model.kinds import KINDS, Kind, Resource
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession
from lcm.store.base import Change, Cursor, Watch, not_yet

_OWNED: Final = (LabletSession, Reservation)
_PAGE: Final = 500


class LocalWatch:
    """Changes of some kinds, as one caller sees them."""

    def __init__(self, ledger: Ledger, kinds: Sequence[type[Resource]], after: int) -> None:
        self._ledger = ledger
        self._caller = ledger.caller
        self._after = after
        self._kinds = {KINDS[kind.__name__].plural: KINDS[kind.__name__] for kind in kinds or _readable(ledger)}
        self._own: set[str] | None = None
        self._refusal: LcmError | None = _refusal(ledger, self._kinds.values())
        prefix = f"{next(iter(self._kinds))}/" if len(self._kinds) == 1 else ""
        self._watch: Watch | None = None if self._refusal else ledger.store.watch(prefix, after=after)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes:
        if self._refusal is not None:
            raise self._refusal
        assert self._watch is not None, "what is not refused is watched"
        if self._own is None:
            await self._begun()
            self._own = await self._own_keys()
        while True:
            changed = await anext(self._watch)
            if seen := [one for change in changed.changes if (one := self._seen(change, self._own))]:
                return Changes(changed.revision, seen)

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _seen(self, change: Change, own: set[str]) -> Seen | None:
        ref = located(change.key)
        if ref is None or ref.known.plural not in self._kinds:
            return None
        entry = change.entry
        if not self._limited(ref.known):
            return Seen(ref, opened(entry, ref.kind) if entry else None)
        resource = opened(entry, ref.kind) if entry and mentions(entry, self._caller.name) else None
        if resource is not None and sees(self._caller, resource):
            own.add(change.key)
            return Seen(ref, resource)
        return self._lost(ref, change.key, own)

    def _lost(self, ref: Ref[Any], key: str, own: set[str]) -> Seen | None:
        if key not in own:
            return None
        own.discard(key)
        return Seen(ref, None)

    async def _begun(self) -> None:
        """Make sure that the revision to begin after has happened: what comes before it would be missed."""
        page = await self._ledger.store.scan(f"{next(iter(self._kinds))}/", limit=1)
        if self._after > page.revision:
            self._refusal = not_yet(self._after)
            await self.aclose()
            raise self._refusal

    async def _own_keys(self) -> set[str]:
        keys: set[str] = set()
        for kind in filter(self._limited, self._kinds.values()):
            prefix = f"{kind.plural}/"
            at: Cursor | None = Cursor(self._after, prefix)
            while at is not None:
                page = await self._ledger.store.scan(prefix, limit=_PAGE, cursor=at)
                mine = (entry for entry in page.entries if mentions(entry, self._caller.name))
                keys.update(entry.key for entry in mine if sees(self._caller, opened(entry, kind.struct)))
                at = page.next
        return keys

    def _limited(self, kind: Kind) -> bool:
        return kind.struct in _OWNED and self._caller.role not in SEES_ALL


def _readable(ledger: Ledger) -> list[type[Resource]]:
    return [kind.struct for kind in KINDS.values() if ledger.caller.role in PERMITTED[kind.name][Verb.READ]]


def _refusal(ledger: Ledger, kinds: Iterable[Kind]) -> Forbidden | None:
    """Find out whether a kind is not for this caller; that is said on the first read, as over HTTP it must be."""
    try:
        for kind in kinds:
            ledger.allow(Verb.READ, kind.struct)
    except Forbidden as error:
        return error
    return None
