"""What is stored about notices: what each person was told of each booking, and how much mail each got today.

Kept in memory by the process that delivers, and written under its lease. Housekeeping sweeps what is no longer needed.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import date, datetime, timedelta
from typing import Final, TypeVar

import msgspec
import structlog

from lcm.control.delivery.sinks import scan_entries, split_batches
from lcm.control.notices.decisions import ToldBooking
from lcm.control.objects.records import CODEC
from lcm.control.objects.writer import commit_ops
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Stuck
from lcm.model.base.resource import Count, Moment, Part
from lcm.store.base import Entry, Fence, Op, Put, Store

T = TypeVar("T", ToldBooking, "MailedPerson")
NOTICES: Final = "notices/"
TOLD: Final = f"{NOTICES}told/"
PEOPLE: Final = f"{NOTICES}people/"
SINCE_KEY: Final = f"{NOTICES}since"
RECORDS_KEPT: Final = timedelta(days=2)
"""How long it is kept what was told about a booking that is over, and how much mail somebody got."""
SWEEP_INTERVAL: Final = timedelta(hours=1)
_log: Final = structlog.get_logger()


class MailedPerson(Part):
    """How many mails somebody got on a day, and when the last about troubles was sent."""

    recipient: str
    at: Moment
    sent: Count = 0
    trouble_at: Moment | None = None

    def sent_on(self, day: date) -> int:
        """Return how many mails they got on a day of UTC."""
        return self.sent if self.at.date() == day else 0

    def with_mail(self, now: datetime, *, is_trouble: bool) -> "MailedPerson":
        """Return the record with one more mail."""
        trouble_at = now if is_trouble else self.trouble_at
        return msgspec.structs.replace(self, at=now, sent=self.sent_on(now.date()) + 1, trouble_at=trouble_at)


class FirstNotice(Part):
    """When notices were first sent here. Who booked before that knows of it."""

    at: Moment


class NoticeRecords:
    """The records of all people, during one lease."""

    def __init__(self, store: Store, fence: Fence, clock: Clock) -> None:
        self._store = store
        self._fence = fence
        self._clock = clock
        self._told: dict[str, dict[str, ToldBooking]] = defaultdict(dict)
        self._people: dict[str, MailedPerson] = {}
        self._swept_at = self.since = clock.now()
        """When notices were first sent."""

    async def read(self) -> None:
        """Read what is stored. What this version cannot read is left out, and told again."""
        found = await self._store.get(SINCE_KEY)
        if found is None:
            first = FirstNotice(at=self.since)
            await commit_ops(self._store, Put(SINCE_KEY, CODEC.encode(first)), fence=self._fence)
        else:
            self.since = CODEC.decode(found.value, FirstNotice).at
        async for entry in scan_entries(self._store, TOLD):
            if (told := _decode_or_none(entry, ToldBooking)) is not None:
                self._told[told.key][told.recipient] = told
        async for entry in scan_entries(self._store, PEOPLE):
            if (person := _decode_or_none(entry, MailedPerson)) is not None:
                self._people[person.recipient] = person

    def booking_keys(self) -> Collection[str]:
        """Return the keys of all bookings of which somebody was told."""
        return list(self._told)

    def recipients(self, key: str) -> Collection[str]:
        """Return who was told of a booking."""
        return list(self._told[key]) if key in self._told else ()

    def find(self, key: str, recipient: str) -> ToldBooking | None:
        """Return what somebody was told of a booking; None means nothing."""
        return self._told[key].get(recipient) if key in self._told else None

    def person(self, recipient: str) -> MailedPerson:
        """Return how much mail somebody got."""
        known = self._people.get(recipient)
        return known or MailedPerson(recipient=recipient, at=self._clock.now())

    async def save(self, several: Iterable[ToldBooking], person: MailedPerson | None = None) -> None:
        """Store what people know from now on, and that one of them got a mail."""
        told = list(several)
        ops: list[Op] = [Put(told_key(one.key, one.recipient), CODEC.encode(one)) for one in told]
        if person is not None:
            ops.append(Put(person_key(person.recipient), CODEC.encode(person)))
        for batch in split_batches(ops):
            await commit_ops(self._store, *batch, fence=self._fence)
        for one in told:
            self._told[one.key][one.recipient] = one
        if person is not None:
            self._people[person.recipient] = person
        self._forget_old()

    def _forget_old(self) -> None:
        """Forget, as housekeeping does, what has been over for long; now and then, as it looks at everything."""
        now = self._clock.now()
        if now - self._swept_at < SWEEP_INTERVAL:
            return
        self._swept_at, before = now, now - RECORDS_KEPT
        kept = {
            key: {who: one for who, one in people.items() if not is_outdated_told(one, before)}
            for key, people in self._told.items()
        }
        self._told.clear()
        self._told.update({key: people for key, people in kept.items() if people})
        self._people = {who: one for who, one in self._people.items() if one.at >= before}


async def read_told(store: Store, key: str, recipient: str) -> ToldBooking | None:
    """Read what somebody was told of a booking; None means nothing."""
    entry = await store.get(told_key(key, recipient))
    return _decode_or_none(entry, ToldBooking) if entry else None


def told_key(key: str, recipient: str) -> str:
    """Return the store key of what somebody was told of a booking."""
    return f"{TOLD}{_digest(key)}/{_digest(recipient)}"


def person_key(recipient: str) -> str:
    """Return the store key of how much mail somebody got."""
    return PEOPLE + _digest(recipient)


def is_outdated_told(told: ToldBooking, before: datetime) -> bool:
    """Return whether nobody needs to know any more what was told of a booking."""
    return told.is_over and told.at < before


def is_old_record(entry: Entry, before: datetime) -> bool:
    """Return whether a stored record is no longer needed."""
    if entry.key.startswith(TOLD):
        told = _decode_or_none(entry, ToldBooking)
        return told is not None and is_outdated_told(told, before)
    person = _decode_or_none(entry, MailedPerson) if entry.key.startswith(PEOPLE) else None
    return person is not None and person.at < before


def _decode_or_none(entry: Entry, kind: type[T]) -> T | None:
    try:
        return CODEC.decode(entry.value, kind)
    except Stuck as error:
        _log.error("notice record left out", key=entry.key, error=str(error))
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
