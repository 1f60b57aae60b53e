"""The audit: who did what to which objects, when and from where, written in the very commit that did it.

`Ledger.submit` writes one record for every commit that a caller asked for; what controllers report of objects, their
status and their measurements, is in the objects' own stories and not here. Nor is what was refused: nothing came of it.
`Pen` serves those who write something that is no object, such as tokens and sinks. `housekeeping` sweeps old records.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from lcm.model.access.identity import SERVICE, Caller, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import Moment, Part
from lcm.store.base import ABSENT, Cursor, Delete, Entry, Put, Store
from lcm.store.codec import Codec
from lcm.system.clock import new_id

PREFIX: Final = "audit/"
KEPT: Final = timedelta(days=90)
_CODEC: Final = Codec()
_PAGE: Final = 500
_PAGES: Final = 10
"""So many pages are looked through for one answer, however little in them fits."""
_SWEPT: Final = 100
_PLACE: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[!-~]{1,128}")


class Origin(NamedTuple):
    """Where a write comes from: an address, the request's id, and the id of the token that it came with."""

    address: str = ""
    request: str = ""
    token: str = ""


NOWHERE: Final = Origin()
"""Within this very process."""


class Deed(Part):
    """What was done to one thing."""

    verb: str
    kind: str
    name: str
    namespace: str = ""


class AuditRecord(Part):
    """One commit that somebody asked for. `revision` is null once a restore has begun another history."""

    id: str
    at: Moment
    who: str
    role: Role
    address: str
    request: str
    token: str
    deeds: tuple[Deed, ...]
    epoch: str
    revision: int | None = None


class Wish(NamedTuple):
    """Which records somebody wants: from a moment, up to but without another, and by whom or of what."""

    since: datetime | None = None
    until: datetime | None = None
    who: str = ""
    kind: str = ""
    name: str = ""


class Found(NamedTuple):
    """Records, newest last; `next` is where to go on, None at the end."""

    records: Sequence[AuditRecord]
    next: str | None


@dataclass(frozen=True, slots=True)
class Pen:
    """Writes records."""

    store: Store
    clock: Clock
    ids: Callable[[], str] = new_id

    def note(self, caller: Caller, origin: Origin, *deeds: Deed) -> Put:
        """Give what must be put into the commit that does this."""
        at, name = self.clock.now(), self.ids()
        record = AuditRecord(
            id=name,
            at=at,
            who=author_of(caller),
            role=caller.role,
            address=origin.address,
            request=origin.request,
            token=origin.token,
            deeds=deeds,
            epoch=self.store.epoch,
        )
        return Put(f"{PREFIX}{_stamp(at)}-{name}", _CODEC.encode(record), at=ABSENT)


def author_of(caller: Caller) -> str:
    """Give the name under which a caller stands in stories and in the audit: a service's is that of its part."""
    return caller.actor if caller.role in SERVICE and caller.actor not in ("", USER) else caller.name


async def search(store: Store, wish: Wish, *, limit: int, after: str | None = None) -> Found:
    """Look through the records; an answer may hold fewer than the limit, or none, and yet not be the last."""
    if after is not None and not _PLACE.fullmatch(after):
        raise Invalid(Fault("cursor", "not one of ours", "use `next` of the page before"))
    start = after or (_stamp(wish.since) if wish.since else "")
    end = PREFIX + (_stamp(wish.until) if wish.until else "~")
    revision = (await store.scan(PREFIX, limit=1)).revision
    cursor: Cursor | None = Cursor(revision, PREFIX + start)
    found: list[AuditRecord] = []
    for _ in range(_PAGES):
        page = await store.scan(PREFIX, limit=_PAGE, cursor=cursor)
        for entry in page.entries:
            if entry.key >= end:
                return Found(found, None)
            found += _fitting(entry, wish, store.epoch)
            if len(found) == limit:
                return Found(found, entry.key.removeprefix(PREFIX))
        cursor = page.next
        if cursor is None:
            return Found(found, None)
    assert cursor is not None, "the last page ends the search"
    return Found(found, cursor.key.removeprefix(PREFIX))


async def sweep(store: Store, before: datetime) -> int:
    """Forget the records from before a moment, and say how many those were. May be repeated."""
    swept, end = 0, PREFIX + _stamp(before)
    while True:
        page = await store.scan(PREFIX, limit=_SWEPT)
        old = [entry.key for entry in page.entries if entry.key < end]
        if old:
            await store.commit(*map(Delete, old))
        swept += len(old)
        if len(old) < _SWEPT:
            return swept


def _fitting(entry: Entry, wish: Wish, epoch: str) -> Iterator[AuditRecord]:
    record = _CODEC.decode(entry.value, AuditRecord)
    if (not wish.who or record.who == wish.who) and any(_fits(deed, wish) for deed in record.deeds):
        revision = entry.revision if record.epoch == epoch else None
        yield msgspec.structs.replace(record, revision=revision)


def _fits(deed: Deed, wish: Wish) -> bool:
    return (not wish.kind or deed.kind == wish.kind) and (not wish.name or deed.name == wish.name)


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
