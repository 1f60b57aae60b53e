"""A pool's figures: its workers added up, and how long they took to boot. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from lcm.controllers.pool.view import View, is_over, is_wanted
from lcm.model.capacity import NOTHING, Amount
from lcm.model.instance_types import declared_capacity
from lcm.model.pool import BOOTS_KEPT, PoolCapacitySummary
from lcm.model.worker import LabWorker, WorkerPhase
from lcm.placement.roster import COMING, accepting

SETTLED: Final = timedelta(seconds=10)
"""A boot is counted when it is so old that all that were ready before it are known."""
_P: Final = WorkerPhase
_DOWN: Final = frozenset({_P.PENDING, _P.STOPPED})
_BEGUN: Final = frozenset({_P.PROVISIONING_EC2, _P.STARTING})
_LASTING: Final = frozenset({_P.READY, _P.ACTIVE})


class Boot(NamedTuple):
    """A machine that came up."""

    ready_at: datetime
    seconds: int


def summary(view: View, workers: Sequence[LabWorker]) -> PoolCapacitySummary:
    """Add up the workers of a pool, and what is claimed of them now."""
    living = [one for one in workers if not is_over(one)]
    now = [one.held.claim.need for one in view.claims if one.held.claim.start <= view.now < one.held.claim.end]
    return PoolCapacitySummary(
        workers=len(living),
        ready_workers=sum(map(accepting, living)),
        booting_workers=sum(one.status.phase in COMING and is_wanted(one) and not accepting(one) for one in living),
        labs=sum(view.sessions.get(one.metadata.uid, 0) for one in living),
        declared=sum((_declared(one) for one in living if accepting(one)), NOTHING),
        claimed=sum(now, NOTHING),
    )


def by_phase(workers: Sequence[LabWorker]) -> Mapping[str, int]:
    """Count workers by their phases, in the order of a life."""
    counts = Counter(one.status.phase for one in workers)
    return {str(phase): counts[phase] for phase in WorkerPhase if counts[phase]}


def measured(view: View) -> tuple[tuple[int, ...], datetime | None]:
    """Give the latest boots with those that were not counted yet, and until when they are counted now."""
    before = view.status.boots_counted_until
    fresh = sorted(
        boot
        for worker in view.workers
        for boot in boots(worker)
        if (before is None or boot.ready_at > before) and boot.ready_at <= view.now - SETTLED
    )
    if not fresh:
        return view.status.boot_seconds, before
    return (*view.status.boot_seconds, *(one.seconds for one in fresh))[-BOOTS_KEPT:], fresh[-1].ready_at


def counted_at(view: View) -> datetime | None:
    """Say when the next boot will be old enough to be counted; None if there is none."""
    young = [boot.ready_at for one in view.workers for boot in boots(one) if boot.ready_at > view.now - SETTLED]
    return min(young) + SETTLED if young else None


def boots(worker: LabWorker) -> Iterator[Boot]:
    """Find in a worker's story how long its machine took from being asked for to serving.

    One that failed on the way says nothing about how long a boot takes.
    """
    ready = _LASTING if worker.spec.cml.license_token else _LASTING | {_P.READY_UNLICENSED}
    began: datetime | None = None
    before = ""
    for line in worker.status.history:
        if before in _DOWN and line.phase in _BEGUN:  # what was adopted runs already
            began = line.at
        if line.phase == _P.FAILED or line.phase in _DOWN:
            began = None
        elif line.phase in ready and began is not None:
            yield Boot(line.at, int((line.at - began).total_seconds()))
            began = None
        before = line.phase


def _declared(worker: LabWorker) -> Amount:
    return worker.status.capacity or declared_capacity(worker.spec) or NOTHING
