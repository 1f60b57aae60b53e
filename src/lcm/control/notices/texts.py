"""Notices in words: subject, text and calendar entry of a mail. Pure. Used by `notices.delivery`."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from lcm.control.notices.bookings import Booking
from lcm.control.notices.decisions import NoticeKind, Tell, ToldBooking
from lcm.control.notices.entries import CANCEL, REQUEST, Entry, write_calendar
from lcm.model.base.resource import DEFAULT_NAMESPACE, shorten_text, to_one_line
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import Reservation, Slot
from lcm.providers.protocols.mail import Mail

MOST_SLOTS: Final = 30
MOST_PEOPLE: Final = 60
_MAX_REASON: Final = 600
_CANCELLING: Final = frozenset({NoticeKind.CANCELLED, NoticeKind.REFUSED})
_CLASS_PREFIX: Final = KINDS[Reservation.__name__].prefix


@dataclass(frozen=True, slots=True)
class MailStyle:
    """What all notices share: from whom they come, where the pages are, and in which time zone times are written."""

    sender: str
    public_url: str = ""
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Notice:
    """What one person is told about one booking; `booking` None means that the booking is gone."""

    decision: Tell
    booking: Booking | None
    sequence: int = 0
    """That of the series, for a part of one."""

    @property
    def told(self) -> ToldBooking:
        """What the person knows when they have read it."""
        return self.decision.after

    @property
    def id(self) -> str:
        """The same for the same notice, whoever sends it and how often."""
        told = self.told
        risk = (told.risk, told.risk_at.date() if told.risk_at else "")
        slots = tuple((one.number, one.start, one.end) for one in told.slots)
        parts = (told.uid, told.recipient, self.decision.kind, told.run, told.sequence, told.warned_for, slots, *risk)
        return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


def write_mail(notices: Sequence[Notice], style: MailStyle, now: datetime) -> Mail:
    """Return the mail that tells these notices, which are for one person: one of them, or several troubles."""
    first = notices[0]
    subject = _write_subject(first, style)
    if len(notices) > 1:
        subject = f"{len(notices)} of your labs are in trouble"
    entries = tuple(
        write_calendar([entry], _method_of(one), now).decode()
        for one in notices
        if (entry := make_entry(one, style)) is not None
    )
    text = "\n\n".join("\n".join(_write_lines(one, style)) for one in notices)
    mark = (
        first.id if len(notices) == 1 else hashlib.sha256("".join(one.id for one in notices).encode()).hexdigest()[:32]
    )
    return Mail(
        id=mark,
        recipient=first.told.recipient,
        subject=subject,
        text=f"{text}\n\n-- \nSent by the Lablet Cloud Manager; answers are not read.\n",
        method=_method_of(first),
        entries=entries,
    )


def make_entry(notice: Notice, style: MailStyle) -> Entry | None:
    """Return the calendar entry of a notice; None for a booking that never had a time, or is somebody else's."""
    told, booking = notice.told, notice.booking
    if booking is not None and booking.is_for_another:
        return None
    slots: Mapping[int, Slot] = booking.slots if booking else {}
    slots = slots or {one.number: (one.start, one.end) for one in told.slots}
    if not slots:
        return None
    series = booking.series if booking else None
    return Entry(
        uid=told.series_uid,
        summary=f"Lab {told.title}",
        slots=slots,
        sequence=max(told.sequence, notice.sequence),
        description="\n".join(_write_lines(notice, style)),
        url=_link_to(told, style),
        organizer=style.sender,
        attendee=told.recipient,
        rule=series.rule if series else None,
        first=series.first if series else None,
        occurrence=told.occurrence,
        is_cancelled=notice.decision.kind in _CANCELLING,
    )


def format_slot(slot: Slot, zone: str) -> str:
    """Return a slot in words: the day once, and the zone."""
    start, end = (moment.astimezone(ZoneInfo(zone)) for moment in slot)
    until = f"{end:%H:%M}" if end.date() == start.date() else f"{end:%a %d %b %Y %H:%M}"
    return f"{start:%a %d %b %Y, %H:%M} - {until} ({start:%Z})"


def _method_of(notice: Notice) -> str:
    return CANCEL if notice.decision.kind in _CANCELLING else REQUEST


def _write_subject(notice: Notice, style: MailStyle) -> str:
    told, booking, kind = notice.told, notice.booking, notice.decision.kind
    slots = (
        sorted(booking.slots.values()) if booking and booking.slots else [(one.start, one.end) for one in told.slots]
    )
    when = f", {format_slot(slots[0], style.time_zone)}" if slots else ""
    lab = f"{'class' if _is_class(told) else 'lab'} {told.title}"
    return {
        NoticeKind.BOOKED: f"Booked: {lab}{when}",
        NoticeKind.MOVED: f"Changed: {lab}{when}",
        NoticeKind.CANCELLED: f"Cancelled: {lab}{when}",
        NoticeKind.READY: f"Ready: {lab}",
        NoticeKind.ENDS_SOON: f"Ends in 10 minutes: {lab}",
        NoticeKind.REFUSED: f"Could not take place: {lab}{when}",
        NoticeKind.AT_RISK: f"At risk: {lab}{when}",
    }[kind]


def _write_lines(notice: Notice, style: MailStyle) -> Iterator[str]:
    told, booking, decision = notice.told, notice.booking, notice.decision
    yield _OPENINGS[decision.kind](told)
    if decision.reason:
        yield f"Reason: {shorten_text(to_one_line(decision.reason), _MAX_REASON)}"
    slots = (
        sorted(booking.slots.values()) if booking and booking.slots else [(one.start, one.end) for one in told.slots]
    )
    yield from (f"When: {format_slot(slot, style.time_zone)}" for slot in islice(slots, MOST_SLOTS))
    if len(slots) > MOST_SLOTS:
        yield f"and {len(slots) - MOST_SLOTS} more times"
    if booking and booking.run and decision.kind in {NoticeKind.READY, NoticeKind.ENDS_SOON}:
        yield from (f"{to_one_line(name)}: {to_one_line(url)}" for name, url in booking.urls.items())
        if booking.ends_at is not None:
            yield f"Ends: {booking.ends_at.astimezone(ZoneInfo(style.time_zone)):%a %d %b %Y, %H:%M (%Z)}"
    if booking and booking.people and decision.kind in {NoticeKind.BOOKED, NoticeKind.MOVED}:
        yield f"For: {', '.join(booking.people[:MOST_PEOPLE])}"
    if link := _link_to(told, style):
        yield f"Page: {link}"


_OPENINGS: Final[Mapping[NoticeKind, Callable[[ToldBooking], str]]] = {
    NoticeKind.BOOKED: lambda told: f"{_describe(told)} is booked for you.",
    NoticeKind.MOVED: lambda told: f"{_describe(told)} has other times than before.",
    NoticeKind.CANCELLED: lambda told: f"{_describe(told)} is cancelled.",
    NoticeKind.READY: lambda told: f"{_describe(told)} is ready.",
    NoticeKind.ENDS_SOON: lambda told: f"{_describe(told)} ends in 10 minutes. Save your work, or extend it.",
    NoticeKind.REFUSED: lambda told: f"{_describe(told)} could not take place.",
    NoticeKind.AT_RISK: lambda told: f"{_describe(told)} may not start on time.",
}


def _describe(told: ToldBooking) -> str:
    return f"{'The class' if _is_class(told) else 'The lab'} {told.title} ({told.name})"


def _is_class(told: ToldBooking) -> bool:
    return told.key.startswith(_CLASS_PREFIX)


def _link_to(told: ToldBooking, style: MailStyle) -> str:
    if not style.public_url:
        return ""
    _, namespace, name = told.key.split("/")
    page = "reservations" if _is_class(told) else "sessions"
    where = "" if namespace == DEFAULT_NAMESPACE else f"?namespace={quote(namespace)}"
    return f"{style.public_url.rstrip('/')}/{page}/{quote(name)}{where}"
