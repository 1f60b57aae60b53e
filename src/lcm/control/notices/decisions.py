"""What a person is to be told next about a booking, from what they were told of it before. Pure.

The record of what somebody was told is compared with the booking as it is, not with the events in between: what is
changed back and forth while nothing could be sent is not told at all, and nothing is told twice. Used by
`notices.delivery`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from lcm.control.notices.bookings import Booking
from lcm.model.base.resource import Count, Moment, Part, ShortText
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Slot

WARNING_TIME: Final = timedelta(minutes=10)
"""How long before the end of a slot its user is told."""
REPEAT_AFTER: Final = timedelta(days=1)
"""After this time the same trouble is told again; and what ended longer ago is not told any more."""


class NoticeKind(StrEnum):
    """What a notice is about."""

    BOOKED = "booked"
    MOVED = "moved"
    CANCELLED = "cancelled"
    READY = "ready"
    ENDS_SOON = "ends-soon"
    REFUSED = "refused"
    AT_RISK = "at-risk"


TROUBLES: Final = frozenset({NoticeKind.REFUSED, NoticeKind.AT_RISK})


class ToldSlot(Part):
    """A slot as it was told, by its number in the series."""

    number: Count
    start: Moment
    end: Moment


class ToldBooking(Part):
    """What one person was told about one booking. `sequence` counts the changes of its calendar entry.

    `run` is the lab whose addresses they know, `warned_for` the end that they were warned of. After `is_over` nothing
    more is told.
    """

    key: str
    uid: str
    name: str
    recipient: str
    title: str
    series_uid: str
    at: Moment
    occurrence: Moment | None = None
    slots: Annotated[tuple[ToldSlot, ...], msgspec.Meta(max_length=OCCURRENCES_LIMIT)] = ()
    sequence: Count = 0
    run: ShortText = ""
    warned_for: Moment | None = None
    risk: ShortText = ""
    risk_at: Moment | None = None
    is_over: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a notice, then store what the person knows by it."""

    kind: NoticeKind
    after: ToldBooking
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Remember:
    """Store what the person knows without telling them anything."""

    after: ToldBooking


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be told before this moment; None means before the booking changes."""

    until: datetime | None = None


NoticeDecision = Tell | Remember | Rest


def decide_notice(booking: Booking | None, told: ToldBooking | None, now: datetime) -> NoticeDecision:
    """Return what to tell next. No booking means that it is gone, or does not concern that person any more."""
    if booking is None:
        decision = _decide_gone(told, now) if told is not None else Rest()
    elif booking.is_over:
        decision = _decide_over(booking, told, now)
    else:
        decision = _decide_live(booking, told, now)
    if not isinstance(decision, Tell):
        return decision
    is_silent = booking.silent if booking is not None else decision.after.silent
    return Remember(msgspec.structs.replace(decision.after, silent=True)) if is_silent else decision


def tells_before(booking: Booking, since: datetime) -> bool:
    """Return whether a booking is older than the first notice: people know of it already."""
    return booking.created_at is not None and booking.created_at < since


def _decide_gone(told: ToldBooking, now: datetime) -> NoticeDecision:
    if told.is_over:
        return Rest()
    after = _after(told, now, is_over=True)
    if _upcoming_told(told, now):
        return Tell(NoticeKind.CANCELLED, _next_entry(after), "it was removed")
    return Remember(after)


def _decide_over(booking: Booking, told: ToldBooking | None, now: datetime) -> NoticeDecision:
    if told is not None and told.is_over:
        return Rest()
    is_old = booking.ended_at is None or now - booking.ended_at >= REPEAT_AFTER
    after = _after(told or _first(booking, now), now, is_over=True)
    if booking.failure and not is_old:
        return Tell(NoticeKind.REFUSED, _next_entry(after), booking.failure)
    if booking.cancelled and told is not None and (_upcoming_told(told, now) or told.run):
        return Tell(NoticeKind.CANCELLED, _next_entry(after), booking.cancelled)
    return Remember(after) if told is not None else Rest()


def _decide_live(booking: Booking, told: ToldBooking | None, now: datetime) -> NoticeDecision:
    known = _first(booking, now) if told is None else _reopen(told) if told.is_over else told
    own = _store_slots(booking.slots)
    if booking.run and booking.run != known.run:
        ends, slots = booking.ends_at, own or known.slots
        warned = ends if ends is not None and ends - now <= WARNING_TIME else known.warned_for
        after = _after(known, now, run=booking.run, warned_for=warned, slots=slots)
        return Tell(NoticeKind.READY, after)
    if booking.announces and (change := _decide_slots(booking, known, now, is_new=told is None)):
        return change
    if booking.risk[0] and _is_new_risk(booking, known, now):
        return Tell(NoticeKind.AT_RISK, _after(known, now, risk=booking.risk[0], risk_at=now), booking.risk[1])
    return _decide_end(booking, known, now)


def _decide_slots(booking: Booking, known: ToldBooking, now: datetime, *, is_new: bool) -> Tell | None:
    own, before = _upcoming(booking.slots, now), _upcoming_told(known, now)
    if not any(_is_news(own.get(number), before.get(number), now) for number in {*own, *before}):
        return None
    after = _after(known, now, slots=_store_slots(booking.slots))
    if is_new:
        return Tell(NoticeKind.BOOKED, after)
    if not own:
        return Tell(NoticeKind.CANCELLED, _next_entry(after), "none of its times is left")
    return Tell(NoticeKind.MOVED if before else NoticeKind.BOOKED, _next_entry(after))


def _decide_end(booking: Booking, known: ToldBooking, now: datetime) -> NoticeDecision:
    ends = booking.ends_at
    if not booking.run or ends is None or known.warned_for == ends or now >= ends:
        return Rest()
    if now < ends - WARNING_TIME:
        return Rest(ends - WARNING_TIME)
    return Tell(NoticeKind.ENDS_SOON, _after(known, now, warned_for=ends))


def _is_new_risk(booking: Booking, known: ToldBooking, now: datetime) -> bool:
    same = booking.risk[0] == known.risk and known.risk_at is not None
    return not (same and known.risk_at is not None and now - known.risk_at < REPEAT_AFTER)


def _first(booking: Booking, now: datetime) -> ToldBooking:
    return ToldBooking(
        key=booking.key,
        uid=booking.uid,
        name=booking.name,
        recipient=booking.recipient,
        title=booking.title,
        series_uid=booking.series.uid,
        occurrence=booking.series.occurrence,
        silent=booking.silent,
        at=now,
    )


def _reopen(told: ToldBooking) -> ToldBooking:
    """Return what somebody knows who gets a booking back: nothing but how often its entry has changed."""
    return msgspec.structs.replace(told, is_over=False, slots=(), run="", warned_for=None, risk="", risk_at=None)


def _after(told: ToldBooking, now: datetime, **changes: Any) -> ToldBooking:  # noqa: ANN401 - fields of the record
    return msgspec.structs.replace(told, at=now, silent=False, **changes)


def _next_entry(told: ToldBooking) -> ToldBooking:
    return msgspec.structs.replace(told, sequence=told.sequence + 1)


def _store_slots(slots: Mapping[int, Slot]) -> tuple[ToldSlot, ...]:
    return tuple(ToldSlot(number=number, start=start, end=end) for number, (start, end) in sorted(slots.items()))


def _upcoming_told(told: ToldBooking, now: datetime) -> Mapping[int, Slot]:
    return _upcoming({one.number: (one.start, one.end) for one in told.slots}, now)


def _is_news(slot: Slot | None, known: Slot | None, now: datetime) -> bool:
    """Return whether to tell somebody of a slot's change. One that began and is gone has ended before its time."""
    only = slot or known
    return slot != known if slot and known else only is not None and only[0] > now


def _upcoming(slots: Mapping[int, Slot], now: datetime) -> Mapping[int, Slot]:
    return {number: slot for number, slot in slots.items() if slot[1] > now}
