"""The audit: who did what to which objects, when and from where, written in the commit that did it.

`control.objects.writer` writes one record for every commit that a caller asked for. What controllers report (status
and measurements) is in the objects' own histories, not here. What people asked for and were refused is recorded by
`api.http.refusals`, within limits. Housekeeping removes old records.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from lcm.model.access.identity import SERVICE, Caller, Role
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import Moment, Part
from lcm.store.base import ABSENT, Cursor, Entry, Put, Store
from lcm.store.codec import Codec

AUDIT_PREFIX: Final = "audit/"
AUDIT_KEPT: Final = timedelta(days=90)
_CODEC: Final = Codec()
_PAGE: Final = 500
_MAX_PAGES: Final = 10
"""How many pages are searched for one answer, however few records in them match."""
_CURSOR: Final = re.compile(r"([0-9]{8}T[0-9]{6}\.[0-9]{6}Z)(-[!-~]{1,128})?")
_STAMP: Final = "%Y%m%dT%H%M%S.%fZ"
_FIRST_SPAN: Final = timedelta(hours=1)
_SHORTEST_SPAN: Final = timedelta(milliseconds=1)
"""Stores are read forwards. Backwards, a span of time is read after the other, made so long that a page holds it."""


class Origin(NamedTuple):
    """Where a write comes from: an address, the id of the request, and the id of its token."""

    address: str = ""
    request: str = ""
    token: str = ""


LOCAL_ORIGIN: Final = Origin()
"""The origin of writes from within this process."""


class AuditedAction(Part):
    """What was done to one object."""

    verb: str
    kind: str
    name: str
    namespace: str = ""


class AuditRecord(Part):
    """One commit that a caller asked for, or its refusal. `revision` is null after a restore began another history."""

    id: str
    at: Moment
    who: str
    role: Role
    address: str
    request: str
    token: str
    deeds: tuple[AuditedAction, ...]
    epoch: str
    revision: int | None = None
    refused: str = ""
    """Why it was not done; empty for what was."""
    left_out: int = 0
    """How many refusals of this caller before this one were not recorded, as there were too many."""
    detail: str = ""
    """What there is to say of it besides: for example how long a console was open."""


class AuditFilter(NamedTuple):
    """Which records are wanted: from `since` up to but without `until`, by whom, and about what."""

    since: datetime | None = None
    until: datetime | None = None
    who: str = ""
    kind: str = ""
    name: str = ""


class AuditPage(NamedTuple):
    """Records in the order that was asked for; `next` is the cursor of the next page, None at the end."""

    records: Sequence[AuditRecord]
    next: str | None


def make_record(
    caller: Caller,
    origin: Origin,
    deeds: Sequence[AuditedAction],
    *,
    at: datetime,
    name: str,
    epoch: str,
    refused: str = "",
    left_out: int = 0,
    detail: str = "",
) -> Put:
    """Return the operation that must be part of the commit that does this, or that records why it was refused."""
    record = AuditRecord(
        id=name,
        at=at,
        who=author_of(caller),
        role=caller.role,
        address=origin.address,
        request=origin.request,
        token=origin.token,
        deeds=tuple(deeds),
        epoch=epoch,
        refused=refused,
        left_out=left_out,
        detail=detail,
    )
    return Put(f"{AUDIT_PREFIX}{_stamp(at)}-{name}", _CODEC.encode(record), at=ABSENT)


def author_of(caller: Caller) -> str:
    """Return a caller's name in object histories and in the audit; for a service, the name of its part."""
    return caller.actor if caller.role in SERVICE and caller.actor not in ("", USER) else caller.name


async def search_records(store: Store, wish: AuditFilter, *, limit: int, after: str | None = None) -> AuditPage:
    """Search the records, newest last. A page may hold fewer than the limit, or none, and yet not be the last."""
    if after is not None:
        _parse_cursor(after)
    start = after or (_stamp(wish.since) if wish.since else "")
    end = AUDIT_PREFIX + (_stamp(wish.until) if wish.until else "~")
    revision = (await store.scan(AUDIT_PREFIX, limit=1)).revision
    cursor: Cursor | None = Cursor(revision, AUDIT_PREFIX + start)
    found: list[AuditRecord] = []
    for _ in range(_MAX_PAGES):
        page = await store.scan(AUDIT_PREFIX, limit=_PAGE, cursor=cursor)
        for entry in page.entries:
            if entry.key >= end:
                return AuditPage(found, None)
            found += _matching_record(entry, wish, store.epoch)
            if len(found) == limit:
                return AuditPage(found, entry.key.removeprefix(AUDIT_PREFIX))
        cursor = page.next
        if cursor is None:
            return AuditPage(found, None)
    assert cursor is not None, "the last page ends the search"
    return AuditPage(found, cursor.key.removeprefix(AUDIT_PREFIX))


async def search_newest_records(
    store: Store, wish: AuditFilter, *, limit: int, now: datetime, after: str | None = None
) -> AuditPage:
    """Search the records, newest first. A page may hold fewer than the limit, or none, and yet not be the last."""
    top = min(now, wish.until or now) if after is None else _parse_cursor(after)
    high = AUDIT_PREFIX + (after or (_stamp(wish.until) if wish.until else "~"))
    oldest = await store.scan(AUDIT_PREFIX, limit=1)
    if not oldest.entries:
        return AuditPage((), None)
    low = _parse_cursor(oldest.entries[0].key.removeprefix(AUDIT_PREFIX))
    low = max(low, wish.since or low)
    found, span = list[AuditRecord](), _FIRST_SPAN
    for _ in range(_MAX_PAGES):
        begin = top - span if top - low > span else low
        start = Cursor(oldest.revision, AUDIT_PREFIX + _stamp(begin))
        entries = await _read_between(store, start, high, whole=span <= _SHORTEST_SPAN)
        if entries is None:
            span = max(span / 8, _SHORTEST_SPAN)
            continue
        for entry in reversed(entries):
            found += _matching_record(entry, wish, store.epoch)
            if len(found) == limit:
                return AuditPage(found, entry.key.removeprefix(AUDIT_PREFIX))
        if begin <= low:
            return AuditPage(found, None)
        top, high = begin, AUDIT_PREFIX + _stamp(begin)
        span = span * 4 if len(entries) < _PAGE // 8 else span
    return AuditPage(found, high.removeprefix(AUDIT_PREFIX))


async def _read_between(store: Store, start: Cursor, high: str, *, whole: bool) -> Sequence[Entry] | None:
    """Read the records after a cursor and before a key; None when they fill more than a page, unless all are wanted."""
    found, cursor = list[Entry](), start
    while True:
        page = await store.scan(AUDIT_PREFIX, limit=_PAGE, cursor=cursor)
        found += (entry for entry in page.entries if entry.key < high)
        if page.next is None or page.next.key >= high:
            return found
        if not whole:
            return None
        cursor = page.next


def is_older_record(entry: Entry, before: datetime) -> bool:
    """Return whether a record is from before a moment."""
    return entry.key < AUDIT_PREFIX + _stamp(before)


def _matching_record(entry: Entry, wish: AuditFilter, epoch: str) -> Iterator[AuditRecord]:
    record = _CODEC.decode(entry.value, AuditRecord)
    deeds = [deed for deed in record.deeds if wish.kind in ("", deed.kind) and wish.name in ("", deed.name)]
    if deeds and wish.who in ("", record.who):
        revision = entry.revision if record.epoch == epoch else None
        yield msgspec.structs.replace(record, revision=revision)


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):{_STAMP}}"


def _parse_cursor(text: str) -> datetime:
    """Return the moment of a cursor, which is a record's key or the beginning of one. Raise Invalid if it is none."""
    found = _CURSOR.fullmatch(text)
    try:
        return datetime.strptime(found[1] if found else "", _STAMP).replace(tzinfo=UTC)
    except ValueError as error:
        raise Invalid(Fault("cursor", "not a cursor of the audit", "use `next` of the page before")) from error
