"""Changes of bookings: a class or a session moves, gets longer, other seats or other learners, all or none.

A plan (`control.booking.change_plans`) is promised as a booking is: guards are read, the calendar catches up, what the
booking holds is released on trial, seats are chosen, and one commit writes the class, every session of it that changes,
and the guards. So at no moment is anything of it promised twice, or not at all. Called by `control.plane.local`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

import msgspec

from lcm.control.admission.admit import require_track
from lcm.control.booking.change_plans import (
    BookingPart,
    BookingPlan,
    PartChange,
    PartState,
    plan_change,
    plan_session_move,
    read_parts,
)
from lcm.control.booking.promise import PoolOffer, Promises, SeatTrial
from lcm.control.booking.request import Booking, PromisedBookings, scope_of
from lcm.control.booking.schedule import fields_unassigned
from lcm.control.booking.step_records import NO_LIMITS, records_for_step
from lcm.control.objects.actions import terminate_session
from lcm.control.objects.records import Record, find_record, key_of, with_revision
from lcm.control.objects.requests import IdempotentRequest
from lcm.control.objects.writer import Edit, Writer, ops_of, retry_conflicts
from lcm.control.plane.booking_actions import Move
from lcm.control.plane.protocol import Action, Ref, ReservationAction
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Conflict, Fault, IllegalStep, Invalid, NoRoom, Refused, TooLarge
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase, learner_of
from lcm.model.kinds.rules import check_slot
from lcm.model.kinds.session import CLEAN_UP_TIME, SESSION_MACHINE, LabletSession, Seat
from lcm.model.kinds.validate import check_rules
from lcm.placement.claims import Terms, slot_claim
from lcm.placement.places import reservation_holder, session_holder
from lcm.placement.request import HeldClaim
from lcm.placement.seat_choice import SEAT_REMEDIES, choose_seat, explain_refusal
from lcm.store.base import CheckRevision, Op, check_commit

_CHANGEABLE: Final = frozenset({ReservationPhase.PROMISED, ReservationPhase.ACTIVE})
_MORE_TIME: Final = "more time, number {}"
Records = Mapping[str, Record[LabletSession]]
"""The sessions of a booking that exist, by name."""


@dataclass(frozen=True, slots=True)
class ChangedBooking:
    """A booking and its sessions after a change, with what must join their commit."""

    edits: Sequence[Edit[Any]]
    ops: Sequence[Op] = ()


def is_change(kind: type[Any], action: Action) -> bool:
    """Return whether an action of a kind is performed here."""
    return kind is Reservation or isinstance(action, Move)


class BookingChanges:
    """Changes of bookings by one caller."""

    def __init__(self, writer: Writer, promises: Promises) -> None:
        self._writer = writer
        self._promises = promises

    async def run(
        self, ref: Ref[Any], action: Action, *, at: int | None, dry_run: bool, asked: IdempotentRequest | None
    ) -> Booking:
        """Perform an action of a class, or move a session; return it as it is then."""

        async def attempt() -> Booking:
            if asked is not None and (earlier := await asked.find_earlier_answer(self._writer, ref)):
                found: Booking = earlier.resource
                return found
            record = await self._writer.require(ref, at=at)
            return await self._change(record, action, asked, dry_run=dry_run)

        await self._promises.calendar.ready()
        known = (await self._writer.require(ref)).resource
        keys = self._promises.quota_keys(self._writer.caller, [known])
        async with self._promises.lock_guards([known], keys):
            return await retry_conflicts(
                attempt,
                unless=lambda error: at is not None and error.key == key_of(known),
                pause=self._promises.back_off,
            )

    async def _change(
        self, record: Record[Any], action: Action, asked: IdempotentRequest | None, *, dry_run: bool
    ) -> Booking:
        booking: Booking = record.resource
        sessions = await self._read_sessions(booking)
        plan = self._plan(booking, sessions, action)
        await self._check_length(booking, plan)
        made = await self._promise(record, sessions, plan)
        verb, now = str(type(action).__struct_config__.tag), self._writer.clock.now()
        edits = [replace(one, verb=verb) for one in made.edits]
        after: Booking = next((one.after for one in edits if key_of(one.after) == record.key), booking)
        kept = [asked.record_answer(after, now)] if asked else []
        if edits:
            return await self._commit(after, edits, [*made.ops, *kept], dry_run=dry_run)
        if kept and not dry_run:
            await self._writer.commit_edits(ops=[*kept, CheckRevision(record.key, record.revision)])
        return after

    async def _commit(self, after: Booking, edits: Sequence[Edit[Any]], ops: Sequence[Op], *, dry_run: bool) -> Booking:
        try:
            check_commit([*ops_of(edits), *ops], (), self._writer.fence)
            revision = 0 if dry_run else await self._writer.commit_edits(*edits, ops=ops)
        except TooLarge as error:
            problem = f"{len(edits) - 1} of its sessions exist already and would change in one commit: {error}"
            raise TooLarge(f"{problem}; change one occurrence at a time, or cancel it and book it in parts") from error
        return after if dry_run else with_revision(after, revision)

    async def _read_sessions(self, booking: Booking) -> Records:
        if isinstance(booking, LabletSession):
            return {}
        found: dict[str, Record[LabletSession]] = {}
        for name in [one.session for one in booking.status.held if one.session is not None]:
            record = await find_record(self._writer.store, Ref(LabletSession, name, booking.metadata.namespace))
            owner = record.resource.metadata.owner if record else None
            if record is not None and owner is not None and owner.uid == booking.metadata.uid:
                found[name] = record
        return found

    def _plan(self, booking: Booking, sessions: Records, action: Action) -> BookingPlan:
        name, now = booking.metadata.name, self._writer.clock.now()
        if booking.metadata.deletion_timestamp is not None:
            raise Refused(f"{name} is being deleted")
        if isinstance(booking, LabletSession):
            assert isinstance(action, Move), "its other actions are performed elsewhere"
            return plan_session_move(booking, action)
        if not isinstance(action, ReservationAction):
            tag = type(action).__struct_config__.tag
            raise Invalid(Fault("action", f"a Reservation has no action {tag}", "use one of its actions"))
        if booking.status.phase not in _CHANGEABLE:
            raise IllegalStep(f"Reservation {name} is {booking.status.phase}: only what is booked can be changed")
        parts = read_parts(booking, {one: record.resource for one, record in sessions.items()}, now)
        return plan_change(booking, parts, action)

    async def _check_length(self, booking: Booking, plan: BookingPlan) -> None:
        """Raise Invalid or Refused for slots that could not be booked so."""
        now = self._writer.clock.now()
        if plan.spec is not None and isinstance(booking, Reservation):
            check_rules(msgspec.structs.replace(booking, spec=plan.spec))
        changed = [one for one in plan.parts if one.change is not PartChange.KEEP]
        if any(one.slot[0] <= now and one.change is PartChange.PLACE for one in changed):
            raise NoRoom("it would begin in the past; choose a later time", why="too_soon")
        for one in changed:
            if faults := list(check_slot(*one.slot)):
                raise Invalid(*faults)
        longer = [one for one in changed if one.change is PartChange.EXTEND]
        if longer and self._writer.caller.role not in SEES_ALL:
            definition = await self._read_definition(booking)
            most = definition.spec.max_duration_minutes
            if any(end - start > timedelta(minutes=most) for start, end in (one.slot for one in longer)):
                name = booking.metadata.name
                raise Refused(f"{name} would last longer than the {most} minutes its definition allows")

    async def _read_definition(self, booking: Booking) -> LabletDefinition:
        ref = Ref(LabletDefinition, booking.spec.definition, booking.metadata.namespace)
        return (await self._writer.require(ref)).resource

    async def _promise(self, record: Record[Any], sessions: Records, plan: BookingPlan) -> ChangedBooking:
        """Return the booking with its new seats; raise NoRoom with the reason if it cannot have them."""
        booking: Booking = record.resource
        if not plan.adds:
            return await self._edit(record, sessions, plan, {})
        require_track(self._writer.caller, booking.spec.lab_track)
        definition, quota, caller = await self._read_definition(booking), self._promises.quota, self._writer.caller
        counted = await quota.read_guards(caller, [booking]) if quota else ()
        guards, spent = await self._promises.read_guards_and_spending([booking])
        await self._promises.calendar.wait_for_revision(
            max([record.revision, *(one.revision for one in sessions.values())])
        )
        now = self._writer.clock.now()
        offers = self._promises.offers_for(booking, now, spent)
        chosen = _choose_seats(booking, definition, plan, offers, self._promises.calendar.terms)
        made = await self._edit(record, sessions, plan, chosen)
        if quota is not None:
            before = [booking, *(one.resource for one in sessions.values())]
            quota.check_change(caller, before, _live_after(before, made.edits))
        used = {one.seat.pool for one in chosen.values() if one.seat}
        rows = [offer.row for offer in offers if offer.row.pool.metadata.name in used]
        promised = PromisedBookings([booking], [self._promises.preconditions(row, guards) for row in rows])
        held = {op.key for op in (*promised.ops, *counted)}
        return replace(made, ops=[*promised.ops, *counted, *(op for op in made.ops if op.key not in held)])

    async def _edit(
        self, record: Record[Any], sessions: Records, plan: BookingPlan, chosen: Mapping[int, ReservationClaim]
    ) -> ChangedBooking:
        """Return the changes of a booking and of its sessions, given the claims that were chosen by number."""
        booking, now, author = record.resource, self._writer.clock.now(), self._writer.author
        own = {booking.metadata.name: record} if isinstance(booking, LabletSession) else sessions
        renamed = _find_new_learners(booking, plan) if isinstance(booking, Reservation) else {}
        edits, ops = list[Edit[Any]](), dict[str, Op]()
        for part in plan.parts:
            if part.session is None or part.state is PartState.OVER:
                continue
            known = own[part.session.metadata.name]
            after = _change_session(part, chosen.get(part.held.number), renamed, now)
            if after != known.resource:
                if part.state is PartState.BEGUN:
                    self._promises.refuse_past_drain(after)
                step = await records_for_step(self._writer.store, NO_LIMITS, known.resource, after, now)
                edits.append(Edit(known, step.after))
                ops |= {op.key: op for op in step.ops}
        for part in plan.removed:
            if part.session is not None:
                why = f"left out of {booking.metadata.name}"
                gone = terminate_session(part.session, now=now, author=author, reason=why)
                edits.append(Edit(own[part.session.metadata.name], gone))
        if isinstance(booking, Reservation):
            changed = _change_class(booking, plan, chosen)
            edits += [Edit(record, changed)] if changed != booking else []
        return ChangedBooking(edits, list(ops.values()))


def _live_after(before: Sequence[Booking], edits: Iterable[Edit[Any]]) -> Sequence[Booking]:
    """Return those of some bookings that have not ended after a change, as they are then."""
    changed = {key_of(edit.after): edit.after for edit in edits}
    after = [changed.get(key_of(one), one) for one in before]
    return [one for one in after if isinstance(one, Reservation) or one.status.phase not in SESSION_MACHINE.final]


def _find_new_learners(booking: Reservation, plan: BookingPlan) -> Mapping[int, str | None]:
    """Return by number whose the seats are that a class gives to somebody else.

    All others stay whose they are, also if somebody was named on a session itself.
    """
    spec, before = plan.spec or booking.spec, {one.number: learner_of(booking.spec, one) for one in booking.status.held}
    after = {
        one.held.number: learner_of(spec, one.held)
        for one in plan.parts
        if one.state is PartState.AHEAD and one.held.place
    }
    return {number: learner for number, learner in after.items() if learner != before.get(number)}


def _change_session(
    part: BookingPart, chosen: ReservationClaim | None, renamed: Mapping[int, str | None], now: datetime
) -> LabletSession:
    session = part.session
    assert session is not None, "it exists"
    fields: dict[str, Any] = {}
    status: dict[str, Any] = {}
    if part.held.number in renamed:
        fields["student_email"] = renamed[part.held.number]
    if chosen is not None:
        start, end = part.slot
        fields |= {"timeslot_start": start, "timeslot_end": end}
        status = {"claim": chosen.claim, "seat": chosen.seat, "ends_at": end, "expires_at": end}
        stays = part.change is PartChange.EXTEND and chosen.seat == session.status.seat
        if not stays and session.status.worker_id is not None:
            status |= fields_unassigned(session, now)
    changed = msgspec.structs.replace(session.spec, **fields)
    metadata = msgspec.structs.replace(
        session.metadata, generation=session.metadata.generation + (changed != session.spec)
    )
    return msgspec.structs.replace(
        session, metadata=metadata, spec=changed, status=msgspec.structs.replace(session.status, **status)
    )


def _change_class(booking: Reservation, plan: BookingPlan, chosen: Mapping[int, ReservationClaim]) -> Reservation:
    spec = plan.spec or booking.spec
    status = booking.status
    if plan.adds or plan.removed or spec.count != booking.spec.count:
        held = tuple(chosen.get(one.held.number, one.held) for one in plan.parts)
        made = sum(one.session is not None for one in held)
        starts, ends = min(one.claim.start for one in held), max(one.claim.end for one in held)
        status = msgspec.structs.replace(status, held=held, sessions_made=made, starts_at=starts, ends_at=ends)
    metadata = msgspec.structs.replace(
        booking.metadata, generation=booking.metadata.generation + (spec != booking.spec or status != booking.status)
    )
    return msgspec.structs.replace(booking, metadata=metadata, spec=spec, status=status)


def _choose_seats(
    booking: Booking, definition: LabletDefinition, plan: BookingPlan, offers: Sequence[PoolOffer], terms: Terms
) -> Mapping[int, ReservationClaim]:
    """Return the claims of what changes, by number. Nothing may be awaited while seats are on trial.

    What gets longer keeps its seat if it can; what has not begun may change it for that.
    """
    longer = [one for one in plan.parts if one.change is PartChange.EXTEND]
    placed = [one for one in plan.parts if one.change is PartChange.PLACE]
    with _MoreTime(booking, offers) as trial:
        kept = {one.held.number: claim for one in longer if (claim := trial.extend(one)) is not None}
        placed += [replace(one, change=PartChange.PLACE) for one in longer if one.held.number not in kept]
        if not placed:
            return kept
        claims = [_claim_at(one, one.slot, terms) for one in placed]
        shift = plan.shift_to

        def claims_at(first: tuple[datetime, datetime]) -> Sequence[Claim]:
            slots = shift(first) if shift is not None else ()
            return [_claim_at(one, slot, terms) for one, slot in zip(placed, slots, strict=False)]

        with _without_claims(booking, placed, offers), SeatTrial({scope_of(booking): offers}, terms) as seats:
            try:
                found = seats.choose_seats_for(booking, definition, claims, claims_at)
            except NoRoom as error:
                near = error.nearest if shift is not None else ()
                raise NoRoom(str(error), why=error.why, nearest=near, remedy=error.remedy) from error
        pool = found.row.pool.metadata.name
        return kept | {
            one.held.number: msgspec.structs.replace(one.held, claim=claim, seat=Seat(pool=pool, number=number))
            for one, claim, number in zip(placed, claims, found.seats, strict=True)
        }


def _claim_at(part: BookingPart, slot: tuple[datetime, datetime], terms: Terms) -> Claim:
    return slot_claim(*slot, part.held.claim.need, terms)


def _own_claim(booking: Booking, part: BookingPart) -> tuple[str, Claim, Seat | None]:
    """Return who holds the claim of a part now, the claim and its seat."""
    if part.session is not None:
        claim = part.session.status.claim
        assert claim is not None, "what has a slot was promised a claim"
        return session_holder(part.session), claim, part.session.status.seat
    assert isinstance(booking, Reservation), "a session holds its own claim"
    return reservation_holder(booking, part.held.number), part.held.claim, part.held.seat


@contextmanager
def _without_claims(booking: Booking, parts: Iterable[BookingPart], offers: Iterable[PoolOffer]) -> Iterator[None]:
    """Release what the parts of a booking hold inside the block. Raise Conflict if it has changed meanwhile."""
    pools = {offer.row.pool.metadata.name: offer.seats for offer in offers}
    released = list[tuple[Any, int, HeldClaim]]()
    try:
        for part in parts:
            holder, claim, seat = _own_claim(booking, part)
            seats = pools.get(seat.pool) if seat is not None else None
            if seat is None or seats is None or seat.number > len(seats):
                continue
            held = seats.release(seat.number, holder)
            if held is not None:
                released.append((seats, seat.number, held))
            if held is None or held.claim != claim:
                known, message = booking.metadata.resource_version, f"{holder} was changed meanwhile: read it again"
                raise Conflict(key_of(booking), wanted=known, found=known, message=message)
        yield
    finally:
        for seats, number, held in released:
            seats.hold(number, held)


class _MoreTime:
    """A trial of more time on the seats that the parts of a booking have; at its end all of it is released again."""

    def __init__(self, booking: Booking, offers: Iterable[PoolOffer]) -> None:
        self._booking = booking
        self._offers = {offer.row.pool.metadata.name: offer for offer in offers}
        self._held = list[tuple[Any, int, str]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for seats, number, holder in self._held:
            seats.release(number, holder)

    def extend(self, part: BookingPart) -> ReservationClaim | None:
        """Return the longer claim of a part on its seat; None if it must be placed anew, NoRoom if it has begun."""
        holder, claim, seat = _own_claim(self._booking, part)
        offer = self._offers.get(seat.pool) if seat is not None else None
        end = part.slot[1] + CLEAN_UP_TIME
        if seat is None or offer is None or offer.seats is None or seat.number > len(offer.seats):
            if part.state is PartState.AHEAD:
                return None
            raise NoRoom(f"{holder} cannot be extended: its pool is gone or being deleted", why="no_pool")
        more = Claim(start=claim.end, end=end, need=claim.need)
        if choose_seat(offer.seats, more, offer.rules, [seat.number]) is None:
            if part.state is PartState.AHEAD:
                return None
            why, details = explain_refusal(offer.seats, more, offer.rules, [seat.number])
            raise NoRoom(f"{holder} cannot be extended: {details}; {SEAT_REMEDIES[why]}", why=why)
        name = _MORE_TIME.format(len(self._held))
        offer.seats.hold(seat.number, HeldClaim(name, more))
        self._held.append((offer.seats, seat.number, name))
        longer = msgspec.structs.replace(claim, end=end)
        return msgspec.structs.replace(part.held, claim=longer, seat=seat)
