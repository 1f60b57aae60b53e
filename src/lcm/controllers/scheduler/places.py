"""A pool's seats as places, and how long sessions and boots usually take. Pure; used by `SchedulerView` and its places.

The durations are learned from the histories of other sessions, and estimates for waiting sessions are made from them.
They are read from the store's objects, so a new leader knows as much.
"""

from collections import deque
from datetime import datetime, timedelta
from statistics import median
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import CLEAN_UP_TIME, SESSION_MACHINE, LabletSession, SessionPhase, is_asap
from lcm.model.kinds.worker import LabWorker
from lcm.placement.claims import Terms, boot_lead, usual_boot
from lcm.placement.limits import OPENING_POLICIES
from lcm.placement.places import (
    PoolSnapshot,
    seat_place,
    small_run_room,
    template_room,
    usable_from,
    with_image_facts,
    worker_place,
)
from lcm.placement.request import BOOTING, Place
from lcm.placement.workers import image_of

SAMPLES_KEPT: Final = 50
"""How many of the latest samples count."""
OVERRUN_STEP: Final = timedelta(minutes=1)
"""A session that should have ended and has not is expected to end after this time, again and again."""
_P: Final = SessionPhase


class BootTime(NamedTuple):
    """How long a machine usually takes to boot, and how long before a claim it is started, which is never shorter."""

    usual: timedelta
    lead: timedelta


class SessionDurations:
    """Measured durations: per definition from assignment to RUNNING, and for all sessions the clean-up."""

    def __init__(self) -> None:
        self._starts: dict[str, deque[float]] = {}
        self._clean_ups: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._counted: dict[Ref[LabletSession], tuple[str, set[str]]] = {}
        """The uid of each session, and from which parts of its history was learned."""

    def learn(self, session: LabletSession) -> None:
        """Learn from a session's history, once from each part of it."""
        began, ran = session.status.assigned_at, _entered_at(session, _P.RUNNING)
        if began and ran and ran > began and self._is_new(session, "start"):
            of = self._starts.setdefault(session.spec.definition, deque(maxlen=SAMPLES_KEPT))
            of.append((ran - began).total_seconds())
        ended = _entered_at(session, _P.COLLECTING) if session.status.phase in SESSION_MACHINE.final else None
        if ended and self._is_new(session, "end"):
            self._clean_ups.append((session.status.history[-1].at - ended).total_seconds())

    def forget(self, ref: Ref[LabletSession]) -> None:
        """Forget which session had this name, now that there is none. What was learned from it stays."""
        self._counted.pop(ref, None)

    def usual_start_up(self, definition: str, terms: Terms) -> timedelta:
        """Return how long a session of a definition usually takes from its assignment to RUNNING."""
        known = self._starts.get(definition) or [one for several in self._starts.values() for one in several]
        return timedelta(seconds=median(known)) if known else terms.instantiation

    def usual_clean_up(self) -> timedelta:
        """Return how long a session usually stays on its worker after its time."""
        return min(CLEAN_UP_TIME, timedelta(seconds=median(self._clean_ups))) if self._clean_ups else CLEAN_UP_TIME

    def likely_claim(self, session: LabletSession, claim: Claim, now: datetime, terms: Terms) -> Claim:
        """Return a session's claim as long as it will likely last: it ends with the session, rarely later.

        A prebuilt lab leaves as soon as somebody needs its room.
        """
        if session.spec.prebuilt:
            return msgspec.structs.replace(claim, end=now + OVERRUN_STEP)
        end = self._likely_end(session, terms)
        if end is None:
            return claim
        # A session that came up late runs past the end of its claim.
        least = end if session.status.phase is _P.RUNNING else min(end, claim.end)
        return msgspec.structs.replace(claim, end=max(least, now + OVERRUN_STEP))

    def _likely_end(self, session: LabletSession, terms: Terms) -> datetime | None:
        status = session.status
        if status.worker_id is None:
            return None
        if status.phase in (_P.COLLECTING, _P.STOPPING):
            return status.history[-1].at + self.usual_clean_up() if status.history else None
        if status.ends_at is not None:
            return status.ends_at + self.usual_clean_up()
        if is_asap(session) and status.assigned_at is not None:
            length = timedelta(minutes=session.spec.duration_minutes or 0)
            return (
                status.assigned_at
                + self.usual_start_up(session.spec.definition, terms)
                + length
                + self.usual_clean_up()
            )
        return None

    def _is_new(self, session: LabletSession, part: str) -> bool:
        ref, uid = ref_of(session), session.metadata.uid
        if self._counted.get(ref, ("", set()))[0] != uid:
            self._counted[ref] = uid, set()
        parts = self._counted[ref][1]
        known = part in parts
        parts.add(part)
        return not known


def _entered_at(session: LabletSession, phase: SessionPhase) -> datetime | None:
    return next((line.at for line in reversed(session.status.history) if line.phase == phase), None)


_BEYOND_SIZE: Final = "its place is beyond the pool's size"
_ENDING: Final = "its pool is being deleted"
_OPENS_NONE: Final = "its pool starts no workers for bookings"


class SeatPlaces:
    """What all places of a pool's seats have in common, and how each is made."""

    def __init__(self, row: PoolSnapshot, terms: Terms) -> None:
        self._row = row
        self._room = template_room(row)
        self._most = row.pool.spec.max_workers
        self._ending = _ENDING if row.pool.metadata.deletion_timestamp is not None else ""
        self._idle = self._ending or ("" if row.pool.spec.policy in OPENING_POLICIES else _OPENS_NONE)
        self._until = {one.number: one.until for one in row.pool.status.small_runs}
        self.boot = boot_time_of(row, terms)
        self.image = image_of(row.template.spec.worker)
        self.numbers = {*range(1, self._most + 1), *row.workers}
        """The seats that a pool has whether they are claimed or not."""

    def is_made_of(self, pool: LabWorkerPool) -> bool:
        """Return whether a pool is as it was, apart from which workers fill its seats."""
        known = self._row.pool
        return (known.spec, known.metadata.deletion_timestamp, known.status.boot_seconds, known.status.small_runs) == (
            pool.spec,
            pool.metadata.deletion_timestamp,
            pool.status.boot_seconds,
            pool.status.small_runs,
        )

    def make(self, number: int, worker: LabWorker | None, now: datetime, *, is_claimed: bool) -> Place | None:
        """Return the place of a seat; None if it gets no worker, and so is no place.

        A claimed seat gets its worker even where no other seat would, and is then closed to others: every pool launches
        for what it promised.
        """
        room, until = small_run_room(self._row, number) or self._room, self._until.get(number)
        if worker is not None and usable_from(worker, now, self.boot.usual) is not None:
            made = worker_place(worker, now, boot=self.boot.usual, room=room)
            place, closed = _as_booting_seat(made, worker, self._row), self._ending
            closed = closed or (_BEYOND_SIZE if number > self._most else "")
            return replace(place, closed=closed or place.closed, until=until) if closed or until else place
        closed = self._idle if number <= self._most else _BEYOND_SIZE
        if room is None or (closed and not is_claimed):
            return None
        place = seat_place(self._row, number, room, now + self.boot.lead, closed=closed)
        return replace(place, until=until) if until else place


def boot_time_of(row: PoolSnapshot | None, terms: Terms) -> BootTime:
    """Return how long a pool's machines take to boot, or the general value if no pool is given."""
    usual = usual_boot(row.pool if row else None, terms)
    return BootTime(usual, boot_lead(row.pool, terms) if row else terms.boot + terms.buffer)


def _as_booting_seat(place: Place, worker: LabWorker, row: PoolSnapshot) -> Place:
    """Return the place of a booting machine as the seat it fills: what its template promises is not visible on it yet.

    If it were rejected because it has no licence yet, another machine would be started for each session that waits
    for it.
    """
    if place.closed != BOOTING:
        return place
    licensed = None if worker.spec.cml.license_token else place.licensed
    return replace(with_image_facts(place, worker, row), seat=True, licensed=licensed)
