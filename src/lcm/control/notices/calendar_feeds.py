"""What a calendar feed shows: all that is somebody's, or one class. Its entries are those of mails.

A session of a class is shown as part of its class, so that a calendar program takes the entry of a mail and that of a
feed for the same. What has ended is shown as long as it is among the live sessions. Called by `api.routes.feeds`.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lcm.control.notices.bookings import Booking, Find, class_of, read_own_class, read_own_session, user_of
from lcm.control.notices.entries import Entry, write_feed
from lcm.control.notices.notice_records import read_told
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import UIDS, read_entry, ref_of_key
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.access.identity import OWN_CALENDAR, Caller
from lcm.model.access.learner import can_see, is_learner, is_owner
from lcm.model.access.mail_address import find_mail_address, normalize_address
from lcm.model.base.resource import shorten_text, to_one_line
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation, ReservationPhase
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.store.base import Store, scan_all
from lcm.system.tasks import TimeSlice

MOST_ENTRIES: Final = 500
MOST_SLOTS: Final = 2_000
"""How many times of all entries a feed shows: each may be an exception of its series, with an event of its own."""
_MAX_REASON: Final = 300
_UNKNOWN: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OwnBooking:
    """A booking in a feed, and the address under which its holder hears of it, if there is one."""

    booking: Booking
    changed_at: datetime
    heard_as: str | None = None


async def make_feed(store: Store, cache: Cache | None, holder: Caller, now: datetime) -> bytes | None:
    """Return the calendar that the holder of a feed's secret reads; None when its class is not there for them."""
    if holder.reach.calendar == OWN_CALENDAR:
        known = await _read_known(store, cache)
        several, title = [one async for one in _find_own(known, holder)], "Labs"
    else:
        found = await _find_class(store, holder.reach.calendar)
        if found is None or not can_see(holder, found):
            return None
        known = await _read_known(store, cache)
        several, title = [_own_class(found, _all_claims(found), known.find)], f"Class {found.metadata.name}"
    shown = choose_shown(several, now)
    return write_feed([await _make_entry(store, one) for one in shown], title)


def choose_shown(several: Iterable[OwnBooking], now: datetime) -> Sequence[OwnBooking]:
    """Return the bookings that a feed has room for, in the order of their first times: of too many, the nearest."""
    timed = [one for one in several if one.booking.slots]
    chosen, slots = list[OwnBooking](), 0
    for one in sorted(timed, key=lambda one: (_distance(one.booking, now), one.booking.key))[:MOST_ENTRIES]:
        if slots + len(one.booking.slots) <= MOST_SLOTS:
            slots += len(one.booking.slots)
            chosen.append(one)
    return sorted(chosen, key=lambda one: (min(one.booking.slots.values()), one.booking.key))


def _distance(booking: Booking, now: datetime) -> float:
    return min(abs((start - now).total_seconds()) for start, _ in booking.slots.values())


@dataclass(frozen=True, slots=True)
class _Known:
    """The sessions and classes of an installation."""

    resources: Iterable[Resource]
    find: Find


async def _read_known(store: Store, cache: Cache | None) -> _Known:
    """Return what this process knows; what is in the store, where it follows nothing."""
    if cache is not None and cache.is_ready:
        return _Known((*cache.all(Reservation), *cache.all(LabletSession)), cache.get)
    found: dict[Ref[Any], Resource] = {}
    for kind in (Reservation, LabletSession, LabWorkerPool):
        entries = (await scan_all(store, KINDS[kind.__name__].prefix)).entries
        found |= {ref_of(one): one for one in (read_entry(entry, kind) for entry in entries)}
    return _Known(tuple(found.values()), found.get)


async def _find_class(store: Store, uid: str) -> Reservation | None:
    named = await store.get(UIDS + uid)
    ref = ref_of_key(named.value.decode()) if named else None
    entry = await store.get(ref.key) if ref is not None and ref.kind is Reservation else None
    found = read_entry(entry, Reservation) if entry else None
    return found if found is not None and found.metadata.uid == uid else None


async def _find_own(known: _Known, holder: Caller) -> AsyncIterator[OwnBooking]:
    """Yield what is the holder's: owned, or for the address that they have proven."""
    time_slice = TimeSlice()
    for resource in known.resources:
        await time_slice.yield_if_over()
        if isinstance(resource, Reservation):
            if numbers := _claims_of(resource, holder, known.find):
                yield _own_class(resource, numbers, known.find, find_mail_address(_heard_as(resource, holder)))
        elif isinstance(resource, LabletSession) and _is_own_session(resource, holder, known.find):
            heard_as = find_mail_address(_heard_as(resource, holder))
            yield OwnBooking(read_own_session(resource, known.find), changed_at(resource), heard_as)


def _is_own_session(session: LabletSession, holder: Caller, find: Find) -> bool:
    """Return whether a session is the holder's and is not shown with its class."""
    if not (is_owner(holder, session) or is_learner(holder, session)):
        return False
    whole = class_of(session, find)
    held = next((one for one in whole.status.held if one.session == session.metadata.name), None) if whole else None
    return whole is None or held is None or held.number not in _claims_of(whole, holder, find)


def _claims_of(whole: Reservation, holder: Caller, find: Find) -> Collection[int]:
    """Return the numbers of the claims of a class that are a person's: all are its owner's."""
    if whole.status.phase is ReservationPhase.PENDING:
        return ()
    if is_owner(holder, whole):
        return _all_claims(whole)
    own = holder.reach.email
    return {one.number for one in whole.status.held if own and user_of(whole, one, find) == own}


def _all_claims(whole: Reservation) -> Collection[int]:
    return {one.number for one in whole.status.held}


def _heard_as(resource: LabletSession | Reservation, holder: Caller) -> str:
    """Return the address, as it was written into a booking, under which somebody hears of it."""
    spec = resource.spec
    written = (spec.student_email,) if isinstance(spec, LabletSessionSpec) else spec.student_emails
    own = holder.reach.email
    return next((one for one in written if one and own and normalize_address(one) == own), spec.owner)


def _own_class(whole: Reservation, numbers: Collection[int], find: Find, heard_as: str | None = None) -> OwnBooking:
    several = (
        find(Ref(LabletSession, one.session, whole.metadata.namespace)) for one in whole.status.held if one.session
    )
    newest = max(changed_at(one) for one in (whole, *several) if one is not None)
    return OwnBooking(read_own_class(whole, numbers, find), newest, heard_as)


def changed_at(resource: Resource) -> datetime:
    """Return when an object's phase last changed, or else when it was made."""
    history, created = resource.status.history, resource.metadata.created_at
    moments = [one for one in (created, history[-1].at if history else None) if one is not None]
    return max(moments, default=_UNKNOWN)


async def _make_entry(store: Store, own: OwnBooking) -> Entry:
    """Return a booking's entry, with the sequence that the entry in a mail to the same person has."""
    booking = own.booking
    told = await read_told(store, booking.key, own.heard_as) if own.heard_as else None
    is_same = told is not None and told.uid == booking.uid
    return Entry(
        uid=booking.series.uid,
        summary=f"Lab {booking.title}",
        slots=booking.slots,
        sequence=told.sequence if told and is_same else 0,
        description="\n".join(_describe(booking)),
        rule=booking.series.rule,
        first=booking.series.first,
        is_cancelled=bool(booking.failure or booking.cancelled),
        changed_at=max(own.changed_at, told.at) if told and is_same else own.changed_at,
    )


def _describe(booking: Booking) -> Iterator[str]:
    yield f"Booking {booking.name}"
    if reason := booking.failure or booking.cancelled:
        yield f"Reason: {shorten_text(to_one_line(reason), _MAX_REASON)}"
