"""Whether there will be a licence for what was promised.

Pure except for reading the ledger; used by `PlacementLoop` and `controllers.scheduler.seekers`. Bookings are promised
only while counted licences are left. Somebody who licenses a machine by hand, or leaves a licence behind, takes one
that was promised. The sessions whose time then has too few are told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from lcm.control.plane.protocol import Plane
from lcm.controllers.scheduler.index import PoolRef
from lcm.controllers.scheduler.risk import Risk
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.capacity import Claim
from lcm.model.kinds.session import LabletSession, RiskReason, is_cml_type
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import LicenceLedger, LicenceSeat, SeatState, token_id
from lcm.placement.candidate import format_moment

_REMEDY: Final = "return one of those (`lcm licenses`), or raise CML_LICENSE_SEATS"
_LICENSING: Final = frozenset({WorkerPhase.READY_UNLICENSED, WorkerPhase.LICENSING})
_NAMES_SHOWN: Final = 5
_UNCOUNTED_EVERY: Final = 10
"""Where no licences are counted, the ledger is read once in so many intervals."""


@dataclass(frozen=True, slots=True)
class ShortageSpan:
    """A time during which more workers need a licence than get one."""

    start: datetime
    end: datetime
    needed: int


@dataclass(frozen=True, slots=True)
class LicenceShortage:
    """When the pools of a token lack licences, how many are left to them, and who has the others."""

    spans: Sequence[ShortageSpan]
    left: int
    held_by: str

    def risk(self, claim: Claim) -> Risk | None:
        """Return the risk of a claim whose worker has no licence yet, or None."""
        met = next((one for one in self.spans if one.start < claim.end and claim.start < one.end), None)
        if met is None:
            return None
        told = f"at {format_moment(met.start)} {met.needed} workers need a licence and {self.left} are left"
        return Risk(RiskReason.NO_LICENCE, f"{told}: {self.held_by}; {_REMEDY}")


Shortages = Mapping[PoolRef, LicenceShortage]


class LicenceWatch:
    """Reads the licence ledger at intervals, as long as anything is promised; seldom where no licences are counted."""

    def __init__(self, plane: Plane, every: Callable[[], timedelta]) -> None:
        self._plane = plane
        self._interval = every
        self._ledger = LicenceLedger(tokens=(), seats=())
        self._read_at: datetime | None = None

    async def find_shortages(self, view: SchedulerView, now: datetime) -> Shortages:
        """Return the pools that have too few licences."""
        if not view.session_index.promised:
            return {}
        counted = any(token.seats is not None for token in self._ledger.tokens)
        pause = self._interval() * (1 if counted else _UNCOUNTED_EVERY)
        if self._read_at is None or now >= self._read_at + pause:
            self._ledger, self._read_at = await self._plane.licences(), now
        return compute_shortages(self._ledger, view)


def compute_shortages(ledger: LicenceLedger, view: SchedulerView) -> Shortages:
    """Find the pools to which more was promised than there are licences left."""
    if not view.terms().require_licensed:
        return {}
    found: dict[PoolRef, LicenceShortage] = {}
    for token in ledger.tokens:
        pools = [ref for ref, one in view.licence_tokens() if token_id(one) == token.token]
        if token.seats is None or not pools:
            continue
        outside = [one for one in ledger.seats if one.token == token.token and _is_outside_pools(one, view)]
        left = max(0, token.seats - len(outside))
        spans = list(_spans_beyond([claims for ref in pools for claims in view.claims_on(ref)], left))
        if spans:
            found |= dict.fromkeys(pools, LicenceShortage(spans, left, _holders_text(outside, token.seats)))
    return found


def unlicensed_risk(session: LabletSession, worker: LabWorker | None, view: SchedulerView) -> Risk | None:
    """Return the risk of a session whose seat's worker asked for a licence in vain, or None."""
    if worker is None or not is_cml_type(session) or not view.terms().require_licensed:
        return None
    status = worker.status
    if status.phase not in _LICENSING or not status.failure or worker.spec.cml.license_token is None:
        return None
    why = status.last_error or status.failure
    return Risk(
        RiskReason.NO_LICENCE, f"{worker.metadata.name}, the worker planned for it, gets no licence: {why}; {_REMEDY}"
    )


def needs_licence(session: LabletSession, worker: LabWorker | None) -> bool:
    """Return whether a licence is still to be found for a session."""
    return is_cml_type(session) and not (worker is not None and worker.status.cml.licensed)


def _is_outside_pools(seat: LicenceSeat, view: SchedulerView) -> bool:
    """Return whether a licence is taken that no pool accounts for; a worker that leaves a pool returns its own."""
    worker = view.worker(seat.worker_id)
    if seat.state is SeatState.ORPHANED or worker is None:
        return seat.state is SeatState.ORPHANED
    return worker.metadata.owner is None and not view.is_pooled(seat.worker_id)


def _holders_text(outside: Sequence[LicenceSeat], seats: int) -> str:
    if not outside:
        return f"there are {seats}"
    names = ", ".join(one.worker_name for one in outside[:_NAMES_SHOWN])
    more = f" and {len(outside) - _NAMES_SHOWN} more" if len(outside) > _NAMES_SHOWN else ""
    return f"{names}{more} took {len(outside)} of {seats} outside of pools"


def _spans_beyond(seats: Sequence[Iterable[Claim]], left: int) -> Iterator[ShortageSpan]:
    """Yield the times at which more than `left` seats are claimed."""
    if len(seats) <= left:
        return
    steps = sorted((moment, step) for claims in seats for moment, step in _occupancy_steps(claims))
    count, since, most = 0, None, 0
    for moment, several in groupby(steps, key=lambda one: one[0]):
        count += sum(step for _, step in several)
        if since is not None and count <= left:
            yield ShortageSpan(since, moment, most)
            since, most = None, 0
        elif count > left:
            since, most = since or moment, max(most, count)


def _occupancy_steps(claims: Iterable[Claim]) -> Iterator[tuple[datetime, int]]:
    """Yield when a seat begins to be claimed and when it ends, as steps +1 and -1."""
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
