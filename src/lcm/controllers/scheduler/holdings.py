"""Who has a claim on which seat and on which worker: an index of all bookings, kept up to date one by one. For `view`.

A session that has both counts on both: its seat is its timeline, and its worker may have left that seat.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from lcm.control.plane import Ref, SessionRef
from lcm.model.capacity import Claim
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession, holds
from lcm.placement.request import Held
from lcm.placement.roster import held_by, session_holder

PoolRef = Ref[LabWorkerPool]
Spot = tuple[PoolRef, int] | str
"""A seat, or a worker by its uid."""
_NONE: Mapping[str, Held] = {}


class Holdings:
    """Claims by spot and holder."""

    def __init__(self, likely: Callable[[LabletSession, Claim], Claim]) -> None:
        """Hold the claims of sessions as long as they `likely` last."""
        self._likely = likely
        self._at: dict[Spot, dict[str, Held]] = {}
        self._seats: dict[PoolRef, set[int]] = {}
        self._of: dict[Ref[Any], dict[tuple[Spot, str], Held]] = {}
        self._ends: dict[SessionRef, datetime] = {}

    def at(self, spot: Spot) -> Mapping[str, Held]:
        """Give what is held on a spot."""
        return self._at.get(spot, _NONE)

    def spots(self) -> Collection[Spot]:
        """Give the spots on which anything is held."""
        return self._at.keys()

    def seats(self, pool: PoolRef) -> Collection[int]:
        """Give the numbers of a pool's seats on which anything is held."""
        return self._seats.get(pool, ())

    def note(self, ref: Ref[Any], booking: LabletSession | Reservation | None) -> Iterable[tuple[Spot, str]]:
        """Take note of a booking as it is now; gives what changed: spots, and the holder on each."""
        before, after = self._of.pop(ref, {}), dict(self._spots(ref, booking)) if booking else {}
        for spot, holder in before.keys() - after.keys():
            self._release(spot, holder)
        for key, held in after.items():
            if before.get(key) != held:
                self._hold(key[0], held)
        if after:
            self._of[ref] = after
        self._ends.pop(ref, None)
        if isinstance(booking, LabletSession) and booking.status.worker_id is not None and after:
            self._ends[ref] = next(iter(after.values())).claim.end
        return [key for key in before | after if before.get(key) != after.get(key)]

    def overdue(self, now: datetime) -> Iterable[SessionRef]:
        """Name the sessions on workers that should have been gone by now."""
        return [ref for ref, end in self._ends.items() if end <= now]

    def _hold(self, spot: Spot, held: Held) -> None:
        if spot not in self._at and not isinstance(spot, str):
            self._seats.setdefault(spot[0], set()).add(spot[1])
        self._at.setdefault(spot, {})[held.holder] = held

    def _release(self, spot: Spot, holder: str) -> None:
        here = self._at.get(spot, {})
        here.pop(holder, None)
        if here:
            return
        self._at.pop(spot, None)
        if not isinstance(spot, str) and spot[0] in self._seats:
            self._seats[spot[0]].discard(spot[1])
            if not self._seats[spot[0]]:
                del self._seats[spot[0]]

    def _spots(self, ref: Ref[Any], booking: LabletSession | Reservation) -> Iterator[tuple[tuple[Spot, str], Held]]:
        claim = holds(booking) if isinstance(booking, LabletSession) else None
        likely = self._likely(booking, claim) if isinstance(booking, LabletSession) and claim else None
        for pool, number, held in held_by(booking):
            spot = Ref(LabWorkerPool, pool, ref.namespace), number
            yield (spot, held.holder), Held(held.holder, likely) if likely else held
        if isinstance(booking, LabletSession) and likely and booking.status.worker_id is not None:
            holder = session_holder(booking)
            yield (booking.status.worker_id, holder), Held(holder, likely)


def sessions_in(holders: Iterable[str]) -> Iterator[SessionRef]:
    """Name the sessions among holders; the others are claims of reservations."""
    for holder in holders:
        namespace, _, name = holder.partition("/")
        if "#" not in name:
            yield Ref(LabletSession, name, namespace)
