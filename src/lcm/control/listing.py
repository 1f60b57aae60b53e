"""Pages of lists, with selectors, for one caller. Used by `local`."""

import base64
import binascii
from dataclasses import dataclass
from typing import Final, Generic

import msgspec

from lcm.control.archive import archived_prefix
from lcm.control.ledger import Ledger
from lcm.control.plane import LONGEST_PAGE, PAGE, Listing, R
from lcm.control.records import NAME, mentions, opened
from lcm.model.errors import Fault, Invalid
from lcm.model.identity import SEES_ALL, sees
from lcm.model.kinds import KINDS
from lcm.model.reservation import Reservation
from lcm.model.selector import Where, selects
from lcm.model.session import LabletSession
from lcm.store.base import Cursor, check_key

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
