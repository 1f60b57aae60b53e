"""A pool's seats as places: the worker that fills one, or what would be opened for it. Pure; for `view`."""

from collections import deque
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from statistics import median
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lcm.model.base.capacity import Claim
from lcm.model.kinds.session import CLEAN_UP, SESSION, LabletSession, SessionPhase, is_asap
from lcm.model.kinds.worker import LabWorker
from lcm.placement.claims import Terms, boot_lead, usual_boot
from lcm.placement.limits import OPENING
from lcm.placement.places import Row, seat_place, template_room, usable_from, worker_place
from lcm.placement.request import BOOTING, Place

KEPT: Final = 50
"""The latest of so many count."""
SOON: Final = timedelta(minutes=1)
"""What should be over and is not is expected to be in so long, again and again."""
_MOST_COUNTED: Final = 20_000
_P: Final = SessionPhase


class Boot(NamedTuple):
    """How long a machine usually takes to boot, and how far ahead of a claim it is started, which is never shorter."""

    usual: timedelta
    lead: timedelta


class Pace:
    """What was measured: by definition from the assignment to RUNNING, and of all sessions the clean-up."""

    def __init__(self) -> None:
        self._starts: dict[str, deque[float]] = {}
        self._clean_ups: deque[float] = deque(maxlen=KEPT)
        self._counted: set[tuple[str, str]] = set()

    def note(self, session: LabletSession) -> None:
        """Learn from a session's story, once from each part of it."""
        began, ran = session.status.assigned_at, _entered(session, _P.RUNNING)
        if began and ran and ran > began and self._new(session, "start"):
            of = self._starts.setdefault(session.spec.definition, deque(maxlen=KEPT))
            of.append((ran - began).total_seconds())
        ended = _entered(session, _P.COLLECTING) if session.status.phase in SESSION.final else None
        if ended and self._new(session, "end"):
            self._clean_ups.append((session.status.history[-1].at - ended).total_seconds())

    def start_up(self, definition: str, terms: Terms) -> timedelta:
        """Say how long a session of a definition usually takes from its worker to RUNNING."""
        known = self._starts.get(definition) or [one for several in self._starts.values() for one in several]
        return timedelta(seconds=median(known)) if known else terms.instantiation

    def clean_up(self) -> timedelta:
        """Say how long a session usually is on its worker after its time."""
        return min(CLEAN_UP, timedelta(seconds=median(self._clean_ups))) if self._clean_ups else CLEAN_UP

    def likely(self, session: LabletSession, claim: Claim, now: datetime, terms: Terms) -> Claim:
        """Give a session's claim as long as it will likely last: it ends with the session, rarely later."""
        end = self._likely_end(session, terms)
        if end is None:
            return claim
        # What came up late runs past its claim, and is known to.
        least = end if session.status.phase is _P.RUNNING else min(end, claim.end)
        return msgspec.structs.replace(claim, end=max(least, now + SOON))

    def _likely_end(self, session: LabletSession, terms: Terms) -> datetime | None:
        status = session.status
        if status.worker_id is None:
            return None
        if status.phase in (_P.COLLECTING, _P.STOPPING):
            return status.history[-1].at + self.clean_up() if status.history else None
        if status.ends_at is not None:
            return status.ends_at + self.clean_up()
        if is_asap(session) and status.assigned_at is not None:
            length = timedelta(minutes=session.spec.duration_minutes or 0)
            return status.assigned_at + self.start_up(session.spec.definition, terms) + length + self.clean_up()
        return None

    def _new(self, session: LabletSession, part: str) -> bool:
        key = session.metadata.uid, part
        known = key in self._counted
        if len(self._counted) >= _MOST_COUNTED:
            self._counted.clear()
        self._counted.add(key)
        return not known


def _entered(session: LabletSession, phase: SessionPhase) -> datetime | None:
    return next((line.at for line in reversed(session.status.history) if line.phase == phase), None)


_BEYOND: Final = "its seat is beyond the pool's size"
_ENDING: Final = "its pool is being deleted"
_AS_IS: Final = "its pool opens no seats"


def places_of(row: Row, now: datetime, terms: Terms, claimed: Collection[int]) -> Iterator[tuple[int, Place]]:
    """Give the place that each seat of a pool is now, by its number; a seat that gets no worker is none.

    One that is claimed gets its worker even where none else would, and takes no others then: every pool launches for
    what it promised.
    """
    room, boot, most = template_room(row), boot_of(row, terms), row.pool.spec.max_workers
    ending = _ENDING if row.pool.metadata.deletion_timestamp is not None else ""
    idle = ending or ("" if row.pool.spec.policy in OPENING else _AS_IS)
    for number in sorted({*range(1, most + 1), *row.workers, *claimed}):
        worker = row.workers.get(number)
        if worker is not None and usable_from(worker, now, boot.usual) is not None:
            place = _promising(worker_place(worker, now, boot=boot.usual, room=room), worker)
            closed = ending or (_BEYOND if number > most else "")
            yield number, replace(place, closed=closed) if closed else place
        elif room is not None:
            closed = idle if number <= most else _BEYOND
            if not closed or number in claimed:
                yield number, seat_place(row, number, room, now + boot.lead, closed=closed)


def boot_of(row: Row | None, terms: Terms) -> Boot:
    """Say how long a pool's machines take to boot, or any if none is given."""
    usual = usual_boot(row.pool if row else None, terms)
    return Boot(usual, boot_lead(row.pool, terms) if row else terms.boot + terms.buffer)


def _promising(place: Place, worker: LabWorker) -> Place:
    """Let a machine that boots count as the seat it fills: what its template promises is not seen of it yet.

    Were it turned away for having no licence yet, another would be started for each who waits for it.
    """
    if place.closed != BOOTING:
        return place
    return replace(place, seat=True, licensed=None if worker.spec.cml.license_token else place.licensed)
