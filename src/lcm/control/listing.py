"""Pages of lists, with selectors, for one caller. Used by `local`."""

import base64
import binascii
from typing import Final

import msgspec

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


async def listed(
    ledger: Ledger, kind: type[R], *, namespace: str | None, where: Where, limit: int, cursor: str | None
) -> Listing[R]:
    """Read a page."""
    if not 1 <= limit <= LONGEST_PAGE:
        raise Invalid(Fault("limit", f"{limit} is out of range", f"use 1 to {LONGEST_PAGE}"))
    if namespace is not None and not NAME.fullmatch(namespace):
        raise Invalid(Fault("namespace", f"{namespace[:80]!r} is no name", "use lower-case letters, digits and -"))
    plural = KINDS[kind.__name__].plural
    prefix = f"{plural}/{namespace}/" if namespace is not None else f"{plural}/"
    start = _decoded(cursor, prefix) if cursor is not None else None
    if not _picky(ledger, kind, where):
        page = await ledger.store.scan(prefix, labels=where.exact_labels, limit=limit, cursor=start)
        return Listing([opened(entry, kind) for entry in page.entries], page.revision, _encoded(page.next))
    return await _picked(ledger, kind, prefix, where=where, limit=limit, start=start)


def _picky(ledger: Ledger, kind: type[R], where: Where) -> bool:
    """Tell whether there is more to look at than the store can."""
    return _limited(ledger, kind) or bool(where.fields) or len(where.exact_labels) < len(where.labels)


def _limited(ledger: Ledger, kind: type[R]) -> bool:
    return kind in (LabletSession, Reservation) and ledger.caller.role not in SEES_ALL


async def _picked(
    ledger: Ledger, kind: type[R], prefix: str, *, where: Where, limit: int, start: Cursor | None
) -> Listing[R]:
    limited, found, last = _limited(ledger, kind), list[R](), start
    page = await ledger.store.scan(prefix, labels=where.exact_labels, limit=PAGE, cursor=start)
    while True:
        for entry in page.entries:
            if limited and not mentions(entry, ledger.caller.name):
                continue
            resource = opened(entry, kind)
            if not (sees(ledger.caller, resource) and selects(where, resource)):
                continue
            if len(found) == limit:
                return Listing(found, page.revision, _encoded(last))
            found.append(resource)
            last = Cursor(page.revision, entry.key)
        if page.next is None:
            return Listing(found, page.revision, None)
        page = await ledger.store.scan(prefix, labels=where.exact_labels, limit=PAGE, cursor=page.next)


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
