"""What a booking asks of a pool: its claim, its request, and how far ahead a machine must be started.

Pure. Bookings, the scheduler and the pool controller all use this, so that they agree.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.quantity import parse_limits
from lcm.model.kinds.definition import LabletDefinition, Requirements, compute_amount, get_requirements
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationClaim, find_claim, held_slot
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, LabletSessionSpec, is_asap
from lcm.model.kinds.settings import SchedulerSettings, SystemSettings
from lcm.placement.request import PlacementRequest
from lcm.placement.strategies import BIN_PACK

FEWEST_BOOTS: Final = 20
"""Fewer measured boots say nothing about the slowest of them."""
_SLOWEST_SHARE: Final = 0.99
_SHORTEST_DURATION: Final = timedelta(seconds=5)
"""However fast a cloud is simulated, the control plane's own part takes as long as ever."""

_START_GRACE: Final = timedelta(minutes=1)
"""A session that gets a claim has at least this long to begin by it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the settings say: how long machines and labs take to come up, and how sessions are placed."""

    boot: timedelta = timedelta(minutes=20)
    instantiation: timedelta = timedelta(minutes=15)
    buffer: timedelta = timedelta(minutes=5)
    require_licensed: bool = True
    strategy: str = BIN_PACK
    speed: float = 1.0
    """How many times faster than the clock a simulated cloud runs."""

    @property
    def horizon(self) -> timedelta:
        """How long before a slot its machine must be there or be started."""
        return self.boot + self.buffer + self.instantiation

    def with_settings(self, system: SystemSettings | None) -> "Terms":
        """Return the terms overridden by what the SystemSettings object sets."""
        settings = system.spec.scheduler if system else SchedulerSettings()
        boot, instantiation = settings.worker_bootup_delay_minutes, settings.lablet_instantiation_delay_minutes
        licensed = settings.require_licensed_for_cml
        return Terms(
            boot=self.boot if boot is None else scale_duration(timedelta(minutes=boot), self.speed),
            instantiation=(
                self.instantiation
                if instantiation is None
                else scale_duration(timedelta(minutes=instantiation), self.speed)
            ),
            buffer=self.buffer,
            require_licensed=self.require_licensed if licensed is None else licensed,
            strategy=settings.strategy or self.strategy,
            speed=self.speed,
        )


def scale_duration(usual: timedelta, speed: float) -> timedelta:
    """Return how long something takes on a cloud that is simulated at a speed."""
    return min(usual, max(usual / speed, _SHORTEST_DURATION)) if speed > 1 else usual / speed


def boot_lead(pool: LabWorkerPool, terms: Terms) -> timedelta:
    """Return how long before it is needed a machine of a pool must be started: never less than it usually takes.

    If it were less, an empty seat would always seem to be ready before one whose machine already boots.
    """
    measured = sorted(pool.status.boot_seconds)
    if len(measured) < FEWEST_BOOTS:
        return max(terms.boot, usual_boot(pool, terms)) + terms.buffer
    slowest = timedelta(seconds=measured[ceil(len(measured) * _SLOWEST_SHARE) - 1])
    return max(terms.boot, slowest) + terms.buffer


def usual_boot(pool: LabWorkerPool | None, terms: Terms) -> timedelta:
    """Return how long a machine usually takes to boot; waiting sessions are told when it comes by this."""
    measured = sorted(pool.status.boot_seconds) if pool else []
    return timedelta(seconds=measured[len(measured) // 2]) if measured else terms.boot


def slot_claim(start: datetime, end: datetime, need: Amount, terms: Terms) -> Claim:
    """Return the claim of a slot, with the instantiation before it and the clean-up after it."""
    return Claim(start=start - terms.instantiation, end=end + CLEAN_UP_TIME, need=need)


def asap_claim(session: LabletSession, at: datetime, need: Amount, terms: Terms) -> Claim:
    """Return the claim of a session that would be put on a machine at a moment."""
    return Claim(start=at, end=at + terms.instantiation + asap_length(session, at) + CLEAN_UP_TIME, need=need)


def asap_length(session: LabletSession, at: datetime) -> timedelta:
    """Return how long a session wanted as soon as possible would run from a moment on.

    That is what it asked for, or, if it has run before, what is left until the end it was given then.
    """
    end = session.status.ends_at
    return timedelta(minutes=session.spec.duration_minutes or 0) if end is None else max(end - at, timedelta(0))


def latest_start(session: LabletSession) -> datetime | None:
    """Return until when a session wanted as soon as possible may begin and still gets its time.

    None means that it has a slot, or no claim.
    """
    claim = session.status.claim
    if claim is None or not is_asap(session):
        return None
    return max(claim.end - CLEAN_UP_TIME - asap_length(session, claim.start), claim.start + _START_GRACE)


def is_too_late(session: LabletSession, now: datetime) -> bool:
    """Return whether a session must not begin by its claim any more, but needs another one."""
    by = latest_start(session)
    return by is not None and now >= by


def slot_of(claim: Claim, terms: Terms) -> tuple[datetime, datetime]:
    """Return the slot that a claim is for."""
    return claim.start + terms.instantiation, claim.end - CLEAN_UP_TIME


def booked_slot(
    booking: LabletSession | Reservation, claim: Claim, number: int | None = None
) -> tuple[datetime, datetime]:
    """Return the slot that a booking's claim is for, whatever the settings were when it was booked.

    Of a reservation it is the claim with this number.
    """
    spec, end = booking.spec, claim.end - CLEAN_UP_TIME
    if isinstance(booking, Reservation):
        held = find_claim(booking, number) if number is not None else None
        return held_slot(booking.spec, held or ReservationClaim(number=number or 1, claim=claim))
    assert isinstance(spec, LabletSessionSpec), "only the two kinds are bookings"
    if spec.timeslot_start is not None:
        return spec.timeslot_start, end
    return end - timedelta(minutes=spec.duration_minutes or 0), end


def need_of(session: LabletSession | None, definition: LabletDefinition) -> Amount | None:
    """Return what a session takes of a worker; None while its definition does not say."""
    need = compute_amount((as_continued(definition, session.status.continues) if session else definition).spec)
    limits = session.spec.resource_limits if session else None
    if need is None or limits is None:
        return need
    own = parse_limits(limits)
    return msgspec.structs.replace(need, cpu_millis=own.cpu_millis, memory_mb=own.memory_mb)


def requirements_of(booking: LabletSession | Reservation, definition: LabletDefinition) -> Requirements:
    """Return what a booking asks of a worker besides room; a promised booking keeps what it asked then."""
    kept = booking.status.requirements
    if kept is not None:
        return kept
    lab = booking.status.continues if isinstance(booking, LabletSession) else None
    return get_requirements(as_continued(definition, lab).spec)


def request_for(session: LabletSession, definition: LabletDefinition, claim: Claim, terms: Terms) -> PlacementRequest:
    """Return what a session asks of the place it is put on."""
    spec, asks = session.spec, requirements_of(session, definition)
    return PlacementRequest(
        name=f"{session.metadata.namespace}/{session.metadata.name}",
        claim=claim,
        lab_type=definition.spec.lab_type,
        affinity=asks.license_affinity,
        track=spec.lab_track,
        region_required=spec.region_required,
        region_preferred=spec.region_preferred,
        cml_version_min=asks.ami_requirements.cml_version_min,
        cml_version_max=asks.ami_requirements.cml_version_max,
        node_definitions=frozenset(asks.ami_requirements.node_definitions),
        require_licensed=terms.require_licensed,
        allow_spot=spec.allow_spot,
        movable=spec.timeslot_start is None,
    )
