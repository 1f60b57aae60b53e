"""Sends notices: looks at bookings that changed or are due, decides, sends one mail at a time, and records it.

Runs in the process that holds the lease of the sinks' deliveries (`delivery.outbox`). What each person was told of each
booking is stored after the mail was taken, so that a notice is sent at least once, and again only if this process ends
between the two. Mail is paced; several troubles of one person go into one mail; nobody gets more than a number of
mails a day, whatever is booked in their name.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog

from lcm.control.delivery.courier import DeliveryContext
from lcm.control.notices.bookings import Booking, class_of, read_bookings
from lcm.control.notices.decisions import (
    TROUBLES,
    NoticeKind,
    Remember,
    Rest,
    Tell,
    ToldBooking,
    decide_notice,
    tells_before,
)
from lcm.control.notices.mail_trouble import MailTrouble
from lcm.control.notices.notice_records import MailedPerson, NoticeRecords
from lcm.control.notices.texts import MailStyle, Notice, write_mail
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import key_of, ref_of_key
from lcm.control.plane.protocol import ObjectChange
from lcm.model.base.errors import Later, Refused, Stuck
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.providers.protocols.mail import Mailer, RecipientBusy
from lcm.system.tasks import TimeSlice

MAILS_PER_DAY: Final = 100
"""The most mails that one person gets on one day."""
TROUBLE_HOLD: Final = timedelta(seconds=20)
"""How long a trouble waits for others of the same person."""
TROUBLE_INTERVAL: Final = timedelta(minutes=10)
"""How long after a mail about troubles its recipient gets the next one."""
BUSY_INTERVAL: Final = timedelta(minutes=5)
"""When the next mail is tried to somebody whose mailbox takes none."""
MOST_BUSY: Final = 10
"""When as many mailboxes take no mail at once, it is the server that takes none."""
MOST_IN_ONE_MAIL: Final = 30
LOOK_AGAIN: Final = timedelta(minutes=1)

_RANKS: Final[Mapping[NoticeKind, int]] = {NoticeKind.ENDS_SOON: 0, NoticeKind.READY: 1} | dict.fromkeys(TROUBLES, 2)
_LAST_RANK: Final = 3
_KINDS: Final = (LabletSession, Reservation)
_log: Final = structlog.get_logger()


class _Address(NamedTuple):
    """A person's part in a booking."""

    key: str
    recipient: str


@dataclass(frozen=True, slots=True)
class _DueNotice:
    notice: Notice
    since: datetime


class NoticeDelivery:
    """Tells people about their bookings, while this process may deliver."""

    def __init__(self, cache: Cache, mailer: Mailer, style: MailStyle, *, mails_per_minute: int = 120) -> None:
        self._cache = cache
        self._mailer = mailer
        self._style = style
        self._pause_seconds = 60 / mails_per_minute

    async def run(self, context: DeliveryContext) -> None:
        """Send people what they do not know yet, until cancelled. Raise what the store raises."""
        await self._cache.ready()
        records = NoticeRecords(context.store, context.fence, context.clock)
        await records.read()
        trouble = MailTrouble(context)
        await trouble.open()
        term = _NoticeTerm(
            self._cache,
            self._mailer,
            self._style,
            context=context,
            records=records,
            trouble=trouble,
            pause_seconds=self._pause_seconds,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(term.run())
            group.create_task(trouble.send_replays(self._mailer))


class _NoticeTerm:
    """What one leader knows: which bookings to look at, which notices are due, and when to look again."""

    def __init__(
        self,
        cache: Cache,
        mailer: Mailer,
        style: MailStyle,
        *,
        context: DeliveryContext,
        records: NoticeRecords,
        trouble: MailTrouble,
        pause_seconds: float,
    ) -> None:
        self._cache = cache
        self._mailer = mailer
        self._style = style
        self._context = context
        self._records = records
        self._trouble = trouble
        self._pause_seconds = pause_seconds
        self._unseen: dict[str, None] = {}
        self._due: dict[_Address, _DueNotice] = {}
        self._waiting: dict[str, list[str]] = {}
        """For whom something is due, by booking."""
        self._busy_until: dict[str, datetime] = {}
        self._later: dict[str, datetime] = {}
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Look, send, and wait for news."""
        end = await self._cache.replay(self._on_change, _KINDS)
        try:
            for key in self._records.booking_keys():
                self._mark(key)
            while True:
                await self._look()
                self._trouble.record_position(self._cache.known_revision)
                batch = self._next_batch()
                if not batch:
                    await self._wait()
                elif await self._send(batch):
                    await asyncio.sleep(self._pause_seconds)
        finally:
            end()

    @property
    def _now(self) -> datetime:
        return self._context.clock.now()

    def _mark(self, key: str) -> None:
        self._unseen[key] = None
        self._news.set()

    def _on_change(self, change: ObjectChange) -> None:
        resource, before = change.resource, change.before
        if change.ref.kind in _KINDS:
            self._mark(change.ref.key)
        session = resource or before
        if isinstance(session, LabletSession) and _changes_class(before, resource):
            whole = class_of(session, self._cache.get)
            if whole is not None:
                self._mark(key_of(whole))

    async def _look(self) -> None:
        """Decide about everything that changed, or whose time has come."""
        now, time_slice = self._now, TimeSlice()
        for key in [key for key, at in self._later.items() if at <= now]:
            del self._later[key]
            self._mark(key)
        while self._unseen:
            key = next(iter(self._unseen))
            del self._unseen[key]
            await self._look_at(key)
            await time_slice.yield_if_over()

    async def _look_at(self, key: str) -> None:
        ref = ref_of_key(key)
        resource = self._cache.get(ref) if ref is not None else None
        bookings = read_bookings(resource, self._cache.get) if isinstance(resource, _KINDS) else {}
        remembered = list[ToldBooking]()
        self._later.pop(key, None)
        waiting = self._waiting.pop(key, ())
        for recipient in dict.fromkeys((*bookings, *self._records.recipients(key), *waiting)):
            remembered += self._decide(_Address(key, recipient), bookings.get(recipient))
        if remembered:
            await self._records.save(remembered)
            self._mark(key)

    def _decide(self, address: _Address, booking: Booking | None) -> Iterator[ToldBooking]:
        """Keep what is to be told, and yield what is only to be remembered."""
        told, now = self._records.find(*address), self._now
        if told is not None and booking is not None and told.uid != booking.uid:
            # Another booking has the name: whoever knew of the one before is told that it is gone, then of this one.
            booking, told = (booking, None) if told.is_over else (None, told)
        decision = decide_notice(booking, told, now)
        waiting = self._due.pop(address, None)
        match decision:
            case Tell() if told is None and booking is not None and tells_before(booking, self._records.since):
                yield decision.after
            case Tell():
                since = waiting.since if waiting else now
                self._due[address] = _DueNotice(Notice(decision, booking, self._sequence_of(booking)), since)
                self._waiting.setdefault(address.key, []).append(address.recipient)
            case Remember(after):
                yield after
            case Rest(until) if until is not None:
                self._later[address.key] = min(until, self._later.get(address.key, until))

    def _sequence_of(self, booking: Booking | None) -> int:
        """Return how often the entry of a session's class was changed for this person."""
        found = self._cache.get(ref) if booking and (ref := ref_of_key(booking.key)) else None
        whole = class_of(found, self._cache.get) if isinstance(found, LabletSession) else None
        told = self._records.find(key_of(whole), booking.recipient) if whole and booking else None
        return told.sequence if told else 0

    def _next_batch(self) -> Sequence[Notice]:
        """Return what goes into the next mail: the most urgent notice, or all troubles of one person."""
        now = self._now
        ready = [(address, due) for address, due in self._due.items() if self._due_at(due) <= now]
        if not ready:
            return ()
        address, first = min(ready, key=lambda one: (_rank(one[1].notice), one[1].since))
        if first.notice.decision.kind not in TROUBLES:
            return (first.notice,)
        same = [
            due.notice
            for other, due in self._due.items()
            if other.recipient == address.recipient and due.notice.decision.kind in TROUBLES
        ]
        return same[:MOST_IN_ONE_MAIL]

    def _due_at(self, due: _DueNotice) -> datetime:
        recipient = due.notice.told.recipient
        first = max(due.since, self._busy_until.get(recipient, due.since))
        if due.notice.decision.kind not in TROUBLES:
            return first
        last = self._records.person(recipient).trouble_at
        return max(first, due.since + TROUBLE_HOLD, last + TROUBLE_INTERVAL if last else first)

    async def _send(self, batch: Sequence[Notice]) -> bool:
        """Send one mail and record it; return whether one was sent. What cannot be sent now stays due."""
        now, recipient = self._now, batch[0].told.recipient
        person = self._records.person(recipient)
        mail = write_mail(batch, self._style, now)
        if person.sent_on(now.date()) >= MAILS_PER_DAY:
            _log.warning("notice not sent: its recipient got too many today", notice=mail.id)
            await self._finish(batch, None)
            return False
        self._context.check()
        self._busy_until.pop(recipient, None)
        try:
            await self._mailer.send(mail)
        except Refused as error:
            await self._trouble.give_up(mail, batch[0].decision.kind, batch[0].told, str(error))
            await self._finish(batch, None)
            return True
        except (Later, Stuck) as error:
            if not (isinstance(error, RecipientBusy) and self._defer(recipient)):
                await self._trouble.back_off(error)
            self._remark(batch)
            return isinstance(error, RecipientBusy)
        await self._trouble.record_success()
        is_trouble = batch[0].decision.kind in TROUBLES
        await self._finish(batch, person.with_mail(now, is_trouble=is_trouble))
        _log.info("notice sent", notice=mail.id, kind=batch[0].decision.kind, bookings=len(batch))
        return True

    def _defer(self, recipient: str) -> bool:
        """Delay the mails of somebody whose mailbox takes none now; return False if too many wait like that."""
        now = self._now
        self._busy_until = {who: until for who, until in self._busy_until.items() if until > now}
        if len(self._busy_until) >= MOST_BUSY:
            return False
        self._busy_until[recipient] = now + BUSY_INTERVAL
        _log.warning("a mailbox takes no notices now", until=self._busy_until[recipient])
        return True

    async def _finish(self, batch: Sequence[Notice], person: MailedPerson | None) -> None:
        await self._records.save([one.told for one in batch], person)
        self._remark(batch)

    def _remark(self, batch: Sequence[Notice]) -> None:
        """Look at the bookings of these notices anew: there may be more to tell, or nothing any more."""
        for one in batch:
            self._mark(one.told.key)

    async def _wait(self) -> None:
        self._news.clear()
        if self._unseen:
            return
        now = self._now
        moments = [*self._later.values(), *(self._due_at(due) for due in self._due.values()), now + LOOK_AGAIN]
        with suppress(TimeoutError):
            async with asyncio.timeout(max((min(moments) - now).total_seconds(), 0)):
                await self._news.wait()


def _rank(notice: Notice) -> int:
    return _RANKS.get(notice.decision.kind, _LAST_RANK)


def _changes_class(before: Any, after: Any) -> bool:  # noqa: ANN401 - two states of a session, or None
    """Return whether a change of a session may change what its class is to people."""
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return True
    return _gist(before) != _gist(after)


def _gist(session: LabletSession) -> tuple[object, ...]:
    status = session.status
    spec, is_over = session.spec, status.phase in SESSION_MACHINE.final
    return spec.student_email, spec.timeslot_start, status.ends_at, is_over
