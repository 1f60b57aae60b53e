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
_CURSOR: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[!-~]{1,128}")


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


class AuditFilter(NamedTuple):
    """Which records are wanted: from `since` up to but without `until`, by whom, and about what."""

    since: datetime | None = None
    until: datetime | None = None
    who: str = ""
    kind: str = ""
    name: str = ""


class AuditPage(NamedTuple):
    """Records, newest last; `next` is the cursor of the next page, None at the end."""

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
    )
    return Put(f"{AUDIT_PREFIX}{_stamp(at)}-{name}", _CODEC.encode(record), at=ABSENT)


def author_of(caller: Caller) -> str:
    """Return a caller's name in object histories and in the audit; for a service, the name of its part."""
    return caller.actor if caller.role in SERVICE and caller.actor not in ("", USER) else caller.name


async def search_records(store: Store, wish: AuditFilter, *, limit: int, after: str | None = None) -> AuditPage:
    """Search the records. A page may hold fewer than the limit, or none, and yet not be the last."""
    if after is not None and not _CURSOR.fullmatch(after):
        raise Invalid(Fault("cursor", "not a cursor of the audit", "use `next` of the page before"))
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
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
