"""Whether there will be a licence for what was promised. Pure but for reading the ledger; `placing` and `seeking` ask.

Bookings are promised only while licences are left of those that are counted. Whoever licenses a machine by hand, or
leaves a seat behind, takes one that was promised: those are told whose time has too few.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from lcm.control.plane.protocol import Plane
from lcm.controllers.scheduler.index import PoolRef
from lcm.controllers.scheduler.risk import NO_LICENCE, Risk
from lcm.controllers.scheduler.view import View
from lcm.model.base.capacity import Claim
from lcm.model.kinds.session import LabletSession, is_cml_type
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import LicenceLedger, LicenceSeat, SeatState, token_id
from lcm.placement.candidate import clock

_REMEDY: Final = "give one of those back (`lcm licenses`), or raise CML_LICENSE_SEATS"
_TRYING: Final = frozenset({WorkerPhase.READY_UNLICENSED, WorkerPhase.LICENSING})
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Span:
    """A time at which more workers need a licence than get one."""

    start: datetime
    end: datetime
    needed: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """When a token's pools lack licences, how many are left to them, and who has the others."""

    spans: Sequence[Span]
    left: int
    held_by: str

    def risk(self, claim: Claim) -> Risk | None:
        """Judge a claim whose worker has no licence yet."""
        met = next((one for one in self.spans if one.start < claim.end and claim.start < one.end), None)
        if met is None:
            return None
        told = f"at {clock(met.start)} {met.needed} workers need a licence and {self.left} are left"
        return Risk(NO_LICENCE, f"{told}: {self.held_by}; {_REMEDY}", _REMEDY)


Shortages = Mapping[PoolRef, Shortage]


class Lookout:
    """Reads the ledger once in a while, as long as anything is promised."""

    def __init__(self, plane: Plane, every: Callable[[], timedelta]) -> None:
        self._plane = plane
        self._every = every
        self._ledger = LicenceLedger(tokens=(), seats=())
        self._read_at: datetime | None = None

    async def lacking(self, view: View, now: datetime) -> Shortages:
        """Say which pools have too few licences."""
        if not view.line_up.promised:
            return {}
        if self._read_at is None or now >= self._read_at + self._every():
            self._ledger, self._read_at = await self._plane.licences(), now
        return shortages(self._ledger, view)


def shortages(ledger: LicenceLedger, view: View) -> Shortages:
    """Find the pools to which more was promised than there are licences left."""
    if not view.terms().require_licensed:
        return {}
    found: dict[PoolRef, Shortage] = {}
    for token in ledger.tokens:
        pools = [ref for ref, one in view.tokens() if token_id(one) == token.token]
        outside = [one for one in ledger.seats if one.token == token.token and _is_outside(one, view)]
        if token.seats is None or not pools:
            continue
        left = max(0, token.seats - len(outside))
        spans = list(_beyond([claims for ref in pools for claims in view.claims_on(ref)], left))
        if spans:
            found |= dict.fromkeys(pools, Shortage(spans, left, _holders(outside, token.seats)))
    return found


def unlicensed(session: LabletSession, worker: LabWorker | None, view: View) -> Risk | None:
    """Judge a session whose seat's worker asked for a licence in vain."""
    if worker is None or not is_cml_type(session) or not view.terms().require_licensed:
        return None
    status = worker.status
    if status.phase not in _TRYING or not status.failure or worker.spec.cml.license_token is None:
        return None
    why = status.last_error or status.failure
    return Risk(NO_LICENCE, f"{worker.metadata.name}, which has its seat, gets no licence: {why}; {_REMEDY}", _REMEDY)


def needs_one(session: LabletSession, worker: LabWorker | None) -> bool:
    """Tell whether a licence is still to be found for a session."""
    return is_cml_type(session) and not (worker is not None and worker.status.cml.licensed)


def _is_outside(seat: LicenceSeat, view: View) -> bool:
    """Tell whether a seat is taken that no pool counts with; what leaves a pool gives its own back."""
    worker = view.worker(seat.worker_id)
    if seat.state is SeatState.ORPHANED or worker is None:
        return seat.state is SeatState.ORPHANED
    return worker.metadata.owner is None and not view.is_pooled(seat.worker_id)


def _holders(outside: Sequence[LicenceSeat], seats: int) -> str:
    if not outside:
        return f"there are {seats}"
    names = ", ".join(one.worker_name for one in outside[:_NAMED])
    more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
    return f"of {seats}, {names}{more} took {len(outside)} outside of pools"


def _beyond(seats: Sequence[Iterable[Claim]], left: int) -> Iterator[Span]:
    """Give the times at which more than so many seats are claimed."""
    if len(seats) <= left:
        return
    steps = sorted((moment, step) for claims in seats for moment, step in _occupied(claims))
    count, since, most = 0, None, 0
    for moment, several in groupby(steps, key=lambda one: one[0]):
        count += sum(step for _, step in several)
        if since is not None and count <= left:
            yield Span(since, moment, most)
            since, most = None, 0
        elif count > left:
            since, most = since or moment, max(most, count)


def _occupied(claims: Iterable[Claim]) -> Iterator[tuple[datetime, int]]:
    """Give when a seat begins to be claimed and when it ends to be, as steps up and down."""
    end: datetime | None = None
    for claim in sorted(claims, key=lambda one: one.start):
        if end is None or claim.start > end:
            if end is not None:
                yield end, -1
            yield claim.start, 1
            end = claim.end
        end = max(end, claim.end)
    if end is not None:
        yield end, -1
