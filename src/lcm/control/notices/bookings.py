"""What a booking is to one person who is told of it: its slots, its state, its troubles. Pure.

A session concerns the learner whom it is for, or else its owner, if their name is an address. A class (a Reservation)
concerns its learners and its owner: it is announced as a whole, and its sessions tell only what happens to them. Who
owns a session that is for somebody else hears of its troubles only. Used by `notices.delivery`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from lcm.control.objects.records import key_of
from lcm.control.plane.protocol import Ref
from lcm.model.access.mail_address import normalize_address
from lcm.model.base.resource import Metadata, Truth, find_condition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import (
    Recurrence,
    Reservation,
    ReservationClaim,
    ReservationPhase,
    Slot,
    held_slot,
    learner_of,
    occurrence_of,
    occurrences,
)
from lcm.model.kinds.rules import NOTICES_ANNOTATION, NOTICES_OFF
from lcm.model.kinds.session import (
    SESSION_MACHINE,
    LabletSession,
    RiskReason,
    SessionCondition,
    SessionPhase,
)

Find = Callable[[Ref[Resource]], Resource | None]
"""Returns an object as it is known; None means that there is none."""

_P: Final = SessionPhase
_RISK_REASONS: Final = frozenset(map(str, RiskReason))
_FAILURES: Final = frozenset({_P.FAILED, _P.EXPIRED})
_CANCELLED_PHASES: Final = frozenset({ReservationPhase.CANCELLING, ReservationPhase.CANCELLED})


@dataclass(frozen=True, slots=True)
class Series:
    """The calendar entry that a booking is part of. `occurrence` is when this part of it was to begin at first."""

    uid: str
    rule: Recurrence | None = None
    first: Slot | None = None
    occurrence: datetime | None = None


@dataclass(frozen=True, slots=True)
class Booking:
    """A booking as one person sees it.

    `slots` are its times by their number in the series. Only one that `announces` tells of being booked, moved and
    cancelled. `run` identifies the lab that runs now. `failure` is why it did not take place, `cancelled` why it will
    not; with either, or otherwise at its end, it `is_over`.
    """

    key: str
    uid: str
    name: str
    recipient: str
    title: str
    series: Series
    created_at: datetime | None
    slots: Mapping[int, Slot] = field(default_factory=dict)
    announces: bool = True
    run: str = ""
    urls: Mapping[str, str] = field(default_factory=dict)
    ends_at: datetime | None = None
    risk: tuple[str, str] = ("", "")
    failure: str = ""
    cancelled: str = ""
    is_over: bool = False
    ended_at: datetime | None = None
    silent: bool = False
    is_for_another: bool = False
    """Whether somebody else uses it, so that it stands in their calendar alone."""
    people: tuple[str, ...] = ()
    """The learners of a class, for its owner."""


def read_bookings(resource: LabletSession | Reservation, find: Find) -> Mapping[str, Booking]:
    """Return what a session or a class is to each person whom it concerns, by address."""
    several = _session_views(resource, find) if isinstance(resource, LabletSession) else _class_views(resource, find)
    return {one.recipient: one for one in several}


def read_own_session(session: LabletSession, find: Find) -> Booking:
    """Return what a session is by itself, whoever it concerns."""
    return _session_view(session, None, find)


def read_own_class(whole: Reservation, numbers: Collection[int], find: Find) -> Booking:
    """Return what a class is to whoever has the claims of these numbers in it: to its owner, with all of them."""
    slots = dict[int, Slot]()
    for held in whole.status.held:
        slot = _held_slot(whole, held, _find_session(whole, held, find)) if held.number in numbers else None
        if slot is not None:
            slots.setdefault(occurrence_of(whole.spec, held) - 1, slot)
    return replace(_class_view(whole, find), slots=slots)


def user_of(whole: Reservation, held: ReservationClaim, find: Find) -> str:
    """Return the address of whom a claim of a class is for, as it is now; empty if nobody is named."""
    session = _find_session(whole, held, find)
    return normalize_address(session.spec.student_email if session else learner_of(whole.spec, held))


def class_of(session: LabletSession, find: Find) -> Reservation | None:
    """Return the class that a session belongs to; None for a session of its own."""
    owner = session.metadata.owner
    if owner is None or owner.kind != Reservation.__name__:
        return None
    found = find(Ref(Reservation, owner.name, session.metadata.namespace))
    return found if isinstance(found, Reservation) and found.metadata.uid == owner.uid else None


def slot_of(session: LabletSession) -> Slot | None:
    """Return from when to when a session is promised, or runs; None for one that waits for a place."""
    spec, status = session.spec, session.status
    runs = [line.at for line in status.history if line.phase == _P.RUNNING]
    start = spec.timeslot_start or (runs[-1] if runs else None)
    end = status.ends_at or spec.timeslot_end
    return (start, end) if start is not None and end is not None and end > start else None


def _session_views(session: LabletSession, find: Find) -> Iterator[Booking]:
    learner, owner = normalize_address(session.spec.student_email), normalize_address(session.spec.owner)
    user = learner or (owner if session.spec.student_email is None else "")
    whole, belongs = class_of(session, find), session.metadata.owner is not None
    view = _session_view(session, whole, find)
    if user:
        yield replace(view, recipient=user, announces=view.announces and not belongs)
    if owner and owner != user:
        yield replace(view, recipient=owner, announces=False, run="", cancelled="", is_for_another=True)


def _session_view(session: LabletSession, whole: Reservation | None, find: Find) -> Booking:
    metadata, status, slot = session.metadata, session.status, slot_of(session)
    risk = find_condition(status.conditions, SessionCondition.AT_RISK)
    is_at_risk = risk is not None and risk.status is Truth.TRUE and risk.reason in _RISK_REASONS
    is_over, is_running = status.phase in SESSION_MACHINE.final, status.phase is _P.RUNNING
    pool = status.seat.pool if status.seat else None
    return Booking(
        key=key_of(session),
        uid=metadata.uid,
        name=metadata.name,
        recipient="",
        title=session.spec.definition,
        series=_series_of_session(session, whole),
        created_at=metadata.created_at,
        slots={0: slot} if slot else {},
        announces=session.spec.timeslot_start is not None,
        run=f"{status.worker_id}/{status.cml_lab_id}" if is_running else "",
        urls=dict(status.access_urls) or ({"lab": status.access_url} if status.access_url else {}),
        ends_at=status.ends_at,
        risk=(risk.reason, risk.message) if risk and is_at_risk and not is_over else ("", ""),
        failure=_reason_of(session) if status.phase in _FAILURES else "",
        cancelled=_cancellation_of(session) if status.phase is _P.TERMINATED else "",
        is_over=is_over,
        ended_at=status.history[-1].at if is_over and status.history else None,
        silent=_is_silent(metadata)
        or (whole is not None and _is_silent(whole.metadata))
        or _is_pool_silent(pool, metadata.namespace, find),
    )


def _series_of_session(session: LabletSession, whole: Reservation | None) -> Series:
    if whole is None:
        return Series(session.metadata.uid)
    held = next((one for one in whole.status.held if one.session == session.metadata.name), None)
    occurrence = _planned_start(whole, held) if held and whole.spec.recurrence else None
    return Series(whole.metadata.uid, rule=whole.spec.recurrence, occurrence=occurrence)


def _reason_of(session: LabletSession) -> str:
    status = session.status
    return (
        status.outcome_reason
        or status.last_error
        or (status.history[-1].reason if status.history else "")
        or "it failed"
    )


def _cancellation_of(session: LabletSession) -> str:
    """Return why a session was ended, unless the person who used it ended it; then nobody needs to be told."""
    history, own = session.status.history, {session.spec.owner, session.spec.student_email}
    runs = [place for place, line in enumerate(history) if line.phase == _P.RUNNING]
    end = history[runs[-1] + 1] if runs and runs[-1] + 1 < len(history) else history[-1] if history else None
    if end is None or (runs and end.by in own):
        return ""
    return end.reason or "it was cancelled"


def _class_views(whole: Reservation, find: Find) -> Iterator[Booking]:
    phase, spec = whole.status.phase, whole.spec
    if phase is ReservationPhase.PENDING:
        return
    owner = normalize_address(spec.owner)
    learners = [normalize_address(one) for one in spec.student_emails]
    base = _class_view(whole, find)
    slots: dict[str, dict[int, Slot]] = {one: {} for one in (*learners, owner) if one}
    for held in whole.status.held:
        session = _find_session(whole, held, find)
        slot, occurrence = _held_slot(whole, held, session), occurrence_of(spec, held) - 1
        for person in {owner, user_of(whole, held, find)} - {""}:
            if slot is not None:
                slots.setdefault(person, {}).setdefault(occurrence, slot)
    for person, own in slots.items():
        people = tuple(one for one in learners if one) if person == owner else ()
        yield replace(base, recipient=person, slots=own, people=people)


def _class_view(whole: Reservation, find: Find) -> Booking:
    metadata, status, phase = whole.metadata, whole.status, whole.status.phase
    pool = next((one.seat.pool for one in status.held if one.seat), None)
    first = (whole.spec.timeslot_start, whole.spec.timeslot_end)
    failure = status.last_error or "not all of it fits" if phase is ReservationPhase.FAILED else ""
    reason = status.history[-1].reason if status.history else ""
    cancelled = reason or "it was cancelled"
    is_over = bool(failure) or phase in _CANCELLED_PHASES or phase is ReservationPhase.COMPLETED
    return Booking(
        key=key_of(whole),
        uid=metadata.uid,
        name=metadata.name,
        recipient="",
        title=whole.spec.definition,
        series=Series(metadata.uid, rule=whole.spec.recurrence, first=first),
        created_at=metadata.created_at,
        failure=failure,
        cancelled=cancelled if phase in _CANCELLED_PHASES else "",
        is_over=is_over,
        ended_at=status.history[-1].at if is_over and status.history else None,
        silent=_is_silent(metadata) or _is_pool_silent(pool, metadata.namespace, find),
    )


def _find_session(whole: Reservation, held: ReservationClaim, find: Find) -> LabletSession | None:
    found = find(Ref(LabletSession, held.session, whole.metadata.namespace)) if held.session is not None else None
    return found if isinstance(found, LabletSession) and _is_of(found, whole) else None


def _held_slot(whole: Reservation, held: ReservationClaim, session: LabletSession | None) -> Slot | None:
    """Return when a session of a class is, as it is now; None for one that was cancelled by itself."""
    promised = held_slot(whole.spec, held)
    if held.session is None:
        return promised
    if session is None or session.status.phase is _P.TERMINATED:
        return None
    return promised if session.status.phase in SESSION_MACHINE.final else slot_of(session) or promised


def _is_of(session: LabletSession, whole: Reservation) -> bool:
    return session.metadata.owner is not None and session.metadata.owner.uid == whole.metadata.uid


def _planned_start(whole: Reservation, held: ReservationClaim) -> datetime:
    """Return when the occurrence of a claim begins by the rule of the series, wherever it was moved."""
    planned, number = occurrences(whole.spec), occurrence_of(whole.spec, held)
    return planned[number - 1][0] if number <= len(planned) else held_slot(whole.spec, held)[0]


def _is_silent(metadata: Metadata) -> bool:
    return metadata.annotations.get(NOTICES_ANNOTATION) == NOTICES_OFF


def _is_pool_silent(pool: str | None, namespace: str, find: Find) -> bool:
    found = find(Ref(LabWorkerPool, pool, namespace)) if pool else None
    return found is not None and _is_silent(found.metadata)
