"""Pages of lists, with selectors, for one caller. Used by `local`."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Self

import msgspec

from lcm.control.objects.records import NAME, located, mentions, opened
from lcm.control.objects.writer import Ledger
from lcm.control.plane.protocol import LONGEST_PAGE, PAGE, Changes, Listing, R, Ref, Seen
from lcm.control.upkeep.archive import archived_prefix
from lcm.model.access.identity import PERMITTED, SEES_ALL, Verb, sees
from lcm.model.base.errors import Fault, Forbidden, Invalid, LcmError
from lcm.model.base.selector import Where, selects
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.store.base import Change, Cursor, Watch, check_key, not_yet

_GREATEST: Final = 2**53
_decoder: Final = msgspec.msgpack.Decoder(tuple[int, str])


@dataclass(frozen=True, slots=True)
class Asked(Generic[R]):
    """What somebody wants to see: live objects, or those in the archive."""

    kind: type[R]
    namespace: str | None
    where: Where
    limit: int
    archived: bool = False

    @property
    def prefix(self) -> str:
        """Below which keys they are."""
        if self.archived:
            return archived_prefix(self.kind)
        plural = KINDS[self.kind.__name__].plural
        return f"{plural}/{self.namespace}/" if self.namespace is not None else f"{plural}/"

    def fits(self, resource: R) -> bool:
        """Tell whether an object is one of them."""
        return self.namespace in (None, resource.metadata.namespace) and selects(self.where, resource)


async def listed(ledger: Ledger, asked: Asked[R], cursor: str | None) -> Listing[R]:
    """Read a page."""
    namespace, limit = asked.namespace, asked.limit
    if not 1 <= limit <= LONGEST_PAGE:
        raise Invalid(Fault("limit", f"{limit} is out of range", f"use 1 to {LONGEST_PAGE}"))
    if namespace is not None and not NAME.fullmatch(namespace):
        raise Invalid(Fault("namespace", f"{namespace[:80]!r} is no name", "use lower-case letters, digits and -"))
    start = _decoded(cursor, asked.prefix) if cursor is not None else None
    if not _picky(ledger, asked):
        page = await ledger.store.scan(asked.prefix, labels=asked.where.exact_labels, limit=limit, cursor=start)
        return Listing([opened(entry, asked.kind) for entry in page.entries], page.revision, _encoded(page.next))
    return await _picked(ledger, asked, start)


def _picky(ledger: Ledger, asked: Asked[R]) -> bool:
    """Tell whether there is more to look at than the store can."""
    where = asked.where
    beyond = asked.archived or bool(where.fields) or len(where.exact_labels) < len(where.labels)
    return beyond or _limited(ledger, asked.kind)


def _limited(ledger: Ledger, kind: type[R]) -> bool:
    return kind in (LabletSession, Reservation) and ledger.caller.role not in SEES_ALL


async def _picked(ledger: Ledger, asked: Asked[R], start: Cursor | None) -> Listing[R]:
    limited, found, last = _limited(ledger, asked.kind), list[R](), start
    labels = asked.where.exact_labels
    page = await ledger.store.scan(asked.prefix, labels=labels, limit=PAGE, cursor=start)
    while True:
        for entry in page.entries:
            if limited and not mentions(entry, ledger.caller.name):
                continue
            resource = opened(entry, asked.kind)
            if not (sees(ledger.caller, resource) and asked.fits(resource)):
                continue
            if len(found) == asked.limit:
                return Listing(found, page.revision, _encoded(last))
            found.append(resource)
            last = Cursor(page.revision, entry.key)
        if page.next is None:
            return Listing(found, page.revision, None)
        page = await ledger.store.scan(asked.prefix, labels=labels, limit=PAGE, cursor=page.next)


def _encoded(cursor: Cursor | None) -> str | None:
    if cursor is None:
        return None
    return base64.urlsafe_b64encode(msgspec.msgpack.encode((cursor.revision, cursor.key))).decode().rstrip("=")


def _decoded(text: str, prefix: str) -> Cursor:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        revision, key = _decoder.decode(raw)
        check_key(key)
    except (binascii.Error, ValueError, Invalid) as error:
        raise _strange() from error
    if not (0 < revision < _GREATEST and key.startswith(prefix)):
        raise _strange()
    return Cursor(revision, key)


def _strange() -> Invalid:
    return Invalid(Fault("cursor", "not one of this list", "use `next` of the page before, with the same arguments"))


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
