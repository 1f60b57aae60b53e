"""What a change of a booking comes to: which of its sessions are placed anew, get longer, are added or released.

Pure. A `BookingPlan` follows from the booking as it is, the sessions that exist of it, and the action. What has begun
does not move: an action about it is refused. `control.booking.changes` promises and commits plans.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from lcm.control.plane.booking_actions import Move, Resize, SetLearners, Skip, Swap
from lcm.control.plane.protocol import Extend, ReservationAction
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.reservation import (
    OCCURRENCES_LIMIT,
    Recurrence,
    Reservation,
    ReservationClaim,
    ReservationSpec,
    Slot,
    held_slot,
    learner_of,
    occurrence_of,
    occurrences,
    place_of,
)
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.placement.candidate import format_moment

_WEEK_DAYS: Final = 7
_ALL_BEGUN: Final = "nothing of it is left that has not begun: book another"


class PartState(StrEnum):
    """Whether a session of a booking is ahead, has something on a worker, or is over or gone."""

    AHEAD = "ahead"
    BEGUN = "begun"
    OVER = "over"


class PartChange(StrEnum):
    """What a plan does with a session: leave it, give it more time where it is, or place it anew."""

    KEEP = "keep"
    EXTEND = "extend"
    PLACE = "place"


_STATES: Final = {
    SessionPhase.PENDING: PartState.AHEAD,
    SessionPhase.SCHEDULED: PartState.AHEAD,
    SessionPhase.INSTANTIATING: PartState.BEGUN,
    SessionPhase.RUNNING: PartState.BEGUN,
}


@dataclass(frozen=True, slots=True)
class BookingPart:
    """One session of a booking: its claim, with all fields, and the session once there is one."""

    held: ReservationClaim
    slot: Slot
    state: PartState
    session: LabletSession | None = None
    change: PartChange = PartChange.KEEP

    @property
    def occurrence(self) -> int:
        """The number of its slot."""
        return self.held.occurrence or 1


@dataclass(frozen=True, slots=True)
class BookingPlan:
    """A booking as it is to be. A `spec` of None means that the class keeps its own."""

    parts: Sequence[BookingPart]
    spec: ReservationSpec | None = None
    removed: Sequence[BookingPart] = ()
    shift_to: Callable[[Slot], Sequence[Slot]] | None = None
    """Returns the slots of what is placed anew, if the first of them were another one; None if only time is added."""

    @property
    def adds(self) -> bool:
        """Whether anything more or other is to be promised."""
        return any(one.change is not PartChange.KEEP for one in self.parts)


def read_parts(booking: Reservation, sessions: Mapping[str, LabletSession], now: datetime) -> Sequence[BookingPart]:
    """Return the sessions of a class as they are; `sessions` are those that exist, by name."""
    spec = booking.spec
    found = list[BookingPart]()
    for one in booking.status.held:
        session = sessions.get(one.session or "")
        slot = session_slot(session) if session is not None else held_slot(spec, one)
        state = _state_of(session) if one.session is not None else _state_of_claim(one, now)
        held = msgspec.structs.replace(
            one, occurrence=occurrence_of(spec, one), place=place_of(spec, one), starts_at=held_slot(spec, one)[0]
        )
        found.append(BookingPart(held, slot, state, session))
    return found


def read_session(session: LabletSession) -> BookingPart:
    """Return a session of its own as the only part of a booking."""
    claim, status = session.status.claim, session.status
    assert claim is not None, "what has a slot was promised a claim"
    held = ReservationClaim(number=1, claim=claim, seat=status.seat, session=session.metadata.name, occurrence=1)
    return BookingPart(held, session_slot(session), _state_of(session), session)


def session_slot(session: LabletSession) -> Slot:
    """Return the slot of a session that was booked for a time."""
    start, end = session.spec.timeslot_start, session.status.ends_at or session.spec.timeslot_end
    assert start is not None, "it was booked for a time"
    assert end is not None, "which has an end"
    return start, end


def _state_of(session: LabletSession | None) -> PartState:
    return _STATES.get(session.status.phase, PartState.OVER) if session is not None else PartState.OVER


def _state_of_claim(held: ReservationClaim, now: datetime) -> PartState:
    return PartState.AHEAD if held.claim.end > now else PartState.OVER


def plan_change(booking: Reservation, parts: Sequence[BookingPart], action: ReservationAction) -> BookingPlan:
    """Return what an action makes of a class. Raise Refused or Invalid if it may not be."""
    match action:
        case Move():
            return _plan_move(booking, parts, action)
        case Extend():
            return _plan_extension(booking, parts, action)
        case Skip(occurrence=number):
            return _plan_skip(booking, parts, number)
        case Resize(seats=seats, student_emails=emails):
            return _plan_seats(booking, parts, seats, emails)
        case SetLearners(student_emails=emails):
            return _plan_learners(booking, parts, emails)
        case Swap():
            return _rename_seats(booking, parts, _swap_learners(booking, action))


def plan_session_move(session: LabletSession, action: Move) -> BookingPlan:
    """Return what a move makes of one session. Raise Refused once it has begun."""
    name = session.metadata.name
    if action.occurrence is not None or action.onward:
        raise Invalid(Fault("occurrence", "a session has no occurrences", "leave it out, or move its reservation"))
    if session.spec.timeslot_start is None or session.status.claim is None:
        raise Refused(f"{name} has no slot: it starts as soon as possible")
    part = read_session(session)
    if part.state is not PartState.AHEAD:
        raise Refused(f"{name} is {session.status.phase}: what has begun is not moved; extend it, or book another")
    return _move_parts([part], [part], action, _zone_of(None, action))


def _plan_move(booking: Reservation, parts: Sequence[BookingPart], action: Move) -> BookingPlan:
    zone = _zone_of(booking.spec.recurrence, action)
    chosen = _choose_parts(booking, parts, action.occurrence, onward=action.onward)
    plan = _move_parts(parts, chosen, action, zone)
    is_whole = len(chosen) == len(parts)
    return replace(plan, spec=_shift_spec(booking.spec, _find_shift(chosen, action, zone), zone)) if is_whole else plan


def _move_parts(
    parts: Sequence[BookingPart], chosen: Sequence[BookingPart], action: Move, zone: ZoneInfo
) -> BookingPlan:
    by = _find_shift(chosen, action, zone)
    moving = {one.held.number for one in chosen}
    if not by:
        return BookingPlan(parts)

    def move(one: BookingPart) -> BookingPart:
        return _with_slot(one, shift_slot(one.slot, by, zone), PartChange.PLACE)

    def shift_to(first: Slot) -> Sequence[Slot]:
        again = _wall(first[0], zone) - _wall(chosen[0].slot[0], zone)
        return [shift_slot(one.slot, again, zone) for one in chosen]

    return BookingPlan([move(one) if one.held.number in moving else one for one in parts], shift_to=shift_to)


def _find_shift(chosen: Sequence[BookingPart], action: Move, zone: ZoneInfo) -> timedelta:
    if (action.start is None) == (action.minutes is None):
        raise Invalid(Fault("start", "neither or both of start and minutes", "say one of them"))
    if action.minutes is not None:
        return timedelta(minutes=action.minutes)
    assert action.start is not None, "one of the two is given"
    return _wall(action.start, zone) - _wall(chosen[0].slot[0], zone)


def shift_slot(slot: Slot, by: timedelta, zone: ZoneInfo) -> Slot:
    """Return a slot that begins later by the wall clock of a zone, and is as long as before."""
    try:
        start = (_wall(slot[0], zone) + by).replace(tzinfo=zone).astimezone(UTC)
        return start, start + (slot[1] - slot[0])
    except OverflowError as error:
        raise Invalid(Fault("start", "too far away", "use an earlier moment")) from error


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _zone_of(series: Recurrence | None, action: Move) -> ZoneInfo:
    name = series.time_zone if series is not None else action.time_zone or "UTC"
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(Fault("time_zone", f"{name!r} is no time zone", "use a name such as Europe/Berlin")) from error


def _shift_spec(spec: ReservationSpec, by: timedelta, zone: ZoneInfo) -> ReservationSpec:
    """Return a spec whose slots are all later; the same one if no rule describes them.

    A series that is moved by days has its days of the week moved too.
    """
    start, end = shift_slot((spec.timeslot_start, spec.timeslot_end), by, zone)
    series, days = spec.recurrence, (_wall(start, zone).date() - _wall(spec.timeslot_start, zone).date()).days
    if series is not None:
        names = tuple(Weekday)
        weekdays = tuple(names[(names.index(day) + days) % _WEEK_DAYS] for day in series.weekdays)
        series = msgspec.structs.replace(series, until=series.until + timedelta(days=days), weekdays=weekdays)
    made = msgspec.structs.replace(spec, timeslot_start=start, timeslot_end=end, recurrence=series)
    return made if list(occurrences(made)) == [shift_slot(one, by, zone) for one in occurrences(spec)] else spec


def _plan_extension(booking: Reservation, parts: Sequence[BookingPart], action: Extend) -> BookingPlan:
    more = timedelta(minutes=action.minutes)
    chosen = _choose_parts(booking, parts, action.occurrence, onward=action.onward, begun=True)
    longer = {one.held.number for one in chosen}
    made = [
        _with_slot(one, (one.slot[0], one.slot[1] + more), PartChange.EXTEND) if one.held.number in longer else one
        for one in parts
    ]
    is_whole = len(chosen) == len(parts)
    spec = msgspec.structs.replace(booking.spec, timeslot_end=booking.spec.timeslot_end + more) if is_whole else None
    return BookingPlan(made, spec)


def _plan_skip(booking: Reservation, parts: Sequence[BookingPart], number: int) -> BookingPlan:
    chosen = _choose_parts(booking, parts, number)
    gone = {one.held.number for one in chosen}
    left = [one for one in parts if one.held.number not in gone]
    if all(one.state is PartState.OVER for one in left):
        name = booking.metadata.name
        raise Refused(f"nothing of {name} would be left: cancel it instead (`lcm cancel reservation {name}`)")
    return BookingPlan(left, removed=chosen)


def _plan_learners(booking: Reservation, parts: Sequence[BookingPart], emails: Sequence[str]) -> BookingPlan:
    if emails and len(emails) != booking.spec.count:
        problem = f"{len(emails)} for {booking.spec.count} seats"
        raise Invalid(Fault("student_emails", problem, "name one for each seat, or change the number of seats as well"))
    _refuse_repetitions(emails)
    named = _keep_places(booking.spec.student_emails, emails)
    return _rename_seats(booking, parts, msgspec.structs.replace(booking.spec, student_emails=named))


def _rename_seats(booking: Reservation, parts: Sequence[BookingPart], spec: ReservationSpec) -> BookingPlan:
    """Return a class with other learners. Raise Refused if nothing is left, or somebody would have two seats at once.

    Who works in a seat that has begun keeps it.
    """
    if all(one.state is not PartState.AHEAD for one in parts):
        raise Refused(f"{booking.metadata.name}: {_ALL_BEGUN}")
    begun = {(one.occurrence, _learner_at_work(one)) for one in parts if one.state is PartState.BEGUN}
    for one in parts:
        learner = learner_of(spec, one.held) or ""
        is_given = one.state is PartState.AHEAD and learner != learner_of(booking.spec, one.held)
        if learner and is_given and (one.occurrence, learner.casefold()) in begun:
            problem = f"the seat of {learner} in occurrence {one.occurrence} of {booking.metadata.name} has begun"
            raise Refused(f"{problem}, and nobody gets two at once: give the other seat to somebody else")
    return BookingPlan(parts, spec)


def _learner_at_work(part: BookingPart) -> str:
    return (part.session.spec.student_email or "").casefold() if part.session is not None else ""


def _plan_seats(booking: Reservation, parts: Sequence[BookingPart], seats: int, emails: Sequence[str]) -> BookingPlan:
    spec = booking.spec
    if len(emails) != seats and (emails or (spec.student_emails and seats != spec.count)):
        problem = f"{len(emails)} named for {seats} seats"
        raise Invalid(Fault("student_emails", problem, "name all learners that the class has then, one for each seat"))
    _refuse_repetitions(emails)
    upcoming = _upcoming_slots(parts)
    if not upcoming:
        raise Refused(f"{booking.metadata.name}: {_ALL_BEGUN}")
    stays, new_place = _keep_seats(spec, seats, emails)
    made, removed = list[BookingPart](), list[BookingPart]()
    for one in parts:
        is_changed = one.occurrence in upcoming and one.state is PartState.AHEAD
        place = new_place.get(one.held.place or 1)
        if is_changed and place is None:
            removed.append(one)
        else:  # what has begun or is over keeps its learner, whose place may be no more
            made.append(replace(one, held=msgspec.structs.replace(one.held, place=place or 0)))
    added = _new_parts(booking, made, upcoming, sorted(set(range(1, seats + 1)) - set(new_place.values())))
    if len(made) + len(added) > OCCURRENCES_LIMIT:
        problem = f"{len(made) + len(added)} sessions in all"
        raise Invalid(Fault("seats", problem, f"book at most {OCCURRENCES_LIMIT} at once"))
    changed = msgspec.structs.replace(spec, count=seats, student_emails=tuple(stays))
    return BookingPlan(sorted([*made, *added], key=lambda one: one.held.number), changed, removed)


def _keep_seats(spec: ReservationSpec, seats: int, emails: Sequence[str]) -> tuple[Sequence[str], Mapping[int, int]]:
    """Return the learners of a class of another size by place, and the new place of each old one that stays."""
    if not (emails and spec.student_emails):
        return emails, {place: place for place in range(1, min(seats, spec.count) + 1)}
    old = {email.casefold(): place for place, email in enumerate(spec.student_emails, start=1)}
    kept = sorted(old[email.casefold()] for email in emails if email.casefold() in old)
    stays = [spec.student_emails[place - 1] for place in kept]
    named = [*stays, *(email for email in emails if email.casefold() not in old)]
    # Who is new takes over the seat of somebody who leaves, before a seat is added.
    free = iter([place for place in sorted(old.values()) if place not in kept])
    places = {place: new for new, place in enumerate(kept, start=1)}
    for new in range(len(kept) + 1, seats + 1):
        if (place := next(free, None)) is not None:
            places[place] = new
    return named, places


def _new_parts(
    booking: Reservation, made: Sequence[BookingPart], slots: Mapping[int, Slot], places: Iterable[int]
) -> Sequence[BookingPart]:
    taken = {one.number for one in booking.status.held} | {one.held.number for one in made}
    numbers = (number for number in range(1, 2 * OCCURRENCES_LIMIT + 1) if number not in taken)
    like = booking.status.held[0].claim
    return [
        _with_slot(
            BookingPart(
                ReservationClaim(number=next(numbers), claim=like, occurrence=number, place=place),
                slot,
                PartState.AHEAD,
            ),
            slot,
            PartChange.PLACE,
        )
        for number, slot in slots.items()
        for place in places
    ]


def _upcoming_slots(parts: Iterable[BookingPart]) -> Mapping[int, Slot]:
    """Return the slots of the occurrences of which nothing has begun, by number."""
    slots = dict[int, Slot]()
    begun = {one.occurrence for one in parts if one.state is PartState.BEGUN}
    for one in parts:
        if one.state is PartState.AHEAD and one.occurrence not in begun:
            slots.setdefault(one.occurrence, one.slot)
    return slots


def _choose_parts(
    booking: Reservation, parts: Sequence[BookingPart], number: int | None, *, onward: bool = False, begun: bool = False
) -> Sequence[BookingPart]:
    """Return the sessions that an action is about: of one occurrence, from one on, or all that is left.

    Raise Refused if the occurrence has begun, and with `begun` if it is over.
    """
    if onward and number is None:
        raise Invalid(Fault("onward", "from which occurrence?", "say its number"))
    selected = {
        one for one in {part.occurrence for part in parts} if number in (None, one) or (onward and one > (number or 0))
    }
    if number is not None and number not in selected:
        known = sorted({one.occurrence for one in parts})
        raise Invalid(Fault("occurrence", f"there is no occurrence {number}", f"use one of {_list_numbers(known)}"))
    free = {PartState.AHEAD, PartState.BEGUN} if begun else {PartState.AHEAD}
    held_back = set() if begun else {one.occurrence for one in parts if one.state is PartState.BEGUN}
    chosen = [one for one in parts if one.occurrence in selected - held_back and one.state in free]
    if number is not None and not any(one.occurrence == number for one in chosen):
        raise Refused(_explain_begun(booking, parts, number))
    if not chosen:
        raise Refused(f"{booking.metadata.name}: {_ALL_BEGUN}")
    return chosen


def _explain_begun(booking: Reservation, parts: Sequence[BookingPart], number: int) -> str:
    own = [one for one in parts if one.occurrence == number]
    is_over = all(one.state is PartState.OVER for one in own)
    left = sorted(_upcoming_slots(parts))
    remedy = f"occurrence {left[0]} is the first that has not begun" if left else _ALL_BEGUN
    what = f"occurrence {number} of {booking.metadata.name}, {format_moment(own[0].slot[0])},"
    return f"{what} {'is over' if is_over else 'has begun'} and is not changed: {remedy}"


def _list_numbers(numbers: Sequence[int]) -> str:
    few = 10
    more = f" and {len(numbers) - few} more" if len(numbers) > few else ""
    return ", ".join(map(str, numbers[:few])) + more


def _with_slot(part: BookingPart, slot: Slot, change: PartChange) -> BookingPart:
    return replace(part, slot=slot, change=change, held=msgspec.structs.replace(part.held, starts_at=slot[0]))


def _swap_learners(booking: Reservation, action: Swap) -> ReservationSpec:
    emails = list(booking.spec.student_emails)
    known = [one.casefold() for one in emails]
    learner, other = action.learner.casefold(), action.other.casefold()
    faults = [
        Fault("learner", f"{action.learner} is no learner of {booking.metadata.name}", "use the address of one who is")
    ] * (learner not in known)
    faults += [Fault("other", "the same as learner", "name two")] * (learner == other)
    if faults:
        raise Invalid(*faults)
    first = known.index(learner)
    if other in known:
        second = known.index(other)
        emails[first], emails[second] = emails[second], emails[first]
    else:
        emails[first] = action.other
    return msgspec.structs.replace(booking.spec, student_emails=tuple(emails))


def _keep_places(before: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    """Return learners in an order in which those who stay have the places that they had."""
    if not before or not wanted:
        return tuple(wanted)
    left = {one.casefold(): one for one in wanted}
    kept = [left.pop(one.casefold(), None) for one in before]
    new = iter(left.values())
    return tuple(next(new) if one is None else one for one in kept)


def _refuse_repetitions(emails: Sequence[str]) -> None:
    seen = set[str]()
    for place, one in enumerate(emails):
        if one.casefold() in seen:
            raise Invalid(Fault(f"student_emails[{place}]", f"{one} is named twice", "name everybody once"))
        seen.add(one.casefold())
