"""A pool's phase and conditions, derived from what its seats need and have. Pure. No work waits for a phase."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, Literal, NamedTuple

from lcm.controllers.pool.demand import PoolPlan, seats_text
from lcm.controllers.pool.view import PoolView, is_over
from lcm.model.base.resource import Condition, Truth, shorten_text, with_condition
from lcm.model.kinds.pool import POOL_MACHINE, LabWorkerPool, PoolCondition, PoolPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.places import PoolSnapshot, is_accepting, template_room

RETRIES: Final = 5
"""After this many failures a pool's minimum is not retried: it waits for a person, or for its workers to come up."""
RETRY_AFTER: Final = timedelta(minutes=15)
_SCALE_UP_WINDOW: Final = timedelta(hours=1)
_P: Final = PoolPhase


ConditionParts = tuple[PoolCondition, Truth, str, str]
"""A condition: its type, status, reason and message."""


class PoolPhaseChange(NamedTuple):
    """The next phase and why; whether scaling up or down ends with it, and what went wrong."""

    phase: PoolPhase
    reason: str = ""
    scaled: Literal["up", "down", ""] = ""
    error: str = ""


def next_phase(view: PoolView, plan: PoolPlan) -> PoolPhaseChange:
    """Return the phase that a pool is in from now on; at most one step further."""
    return _DECIDERS[view.status.phase](view, plan)


def retry_at(view: PoolView) -> datetime | None:
    """Return when a failed pool is retried; None if it is not retried automatically."""
    story = [line for line in view.status.history if line.phase in {_P.READY, _P.FAILED}]
    since = next((place for place, line in enumerate(reversed(story)) if line.phase == _P.READY), len(story))
    return story[-1].at + RETRY_AFTER if story and since <= RETRIES else None


def unserved_seats(plan: PoolPlan) -> Sequence[int]:
    """Return the seats that need a worker and have none yet that accepts sessions."""
    return [number for number in plan.needed if not _is_serving(plan.seats.get(number))]


def leaving_workers(view: PoolView) -> Sequence[LabWorker]:
    """Return the pool's workers that were released and still exist."""
    still = [one for one in view.workers if view.owns(one) and not is_over(one)]
    down = {WorkerPhase.STOPPED, WorkerPhase.FAILED}
    return [
        one
        for one in still
        if one.metadata.deletion_timestamp is not None
        or (one.spec.wanted_state == "stopped" and one.status.phase not in down)
    ]


def with_conditions(pool: LabWorkerPool, said: Iterable[ConditionParts], now: datetime) -> tuple[Condition, ...]:
    """Return a pool's conditions with the given ones replaced."""
    found = pool.status.conditions
    for name, truth, reason, message in said:
        found = with_condition(
            found, Condition(type=name, status=truth, last_transition_at=now, reason=reason, message=message)
        )
    return found


def describe_conditions(view: PoolView, plan: PoolPlan, trouble: str) -> Sequence[ConditionParts]:
    """Return all conditions of a pool as they are now."""
    row = PoolSnapshot(view.pool, view.template, plan.seats)
    known = template_room(row) is not None
    type_ = view.template.spec.worker.aws.instance_type
    size = (
        (PoolCondition.CAPACITY_KNOWN, Truth.TRUE, "Known", "")
        if known
        else (PoolCondition.CAPACITY_KNOWN, Truth.FALSE, "UnknownType", f"it is not known what a {type_} holds")
    )
    return [(PoolCondition.TEMPLATE_FOUND, Truth.TRUE, "Found", ""), size, _ready_condition(plan, trouble)]


def _ready_condition(plan: PoolPlan, trouble: str) -> ConditionParts:
    if trouble:
        return PoolCondition.READY, Truth.FALSE, "Refused", trouble
    missing = unserved_seats(plan)
    if not missing:
        return PoolCondition.READY, Truth.TRUE, "SeatsFilled", ""
    failed = [one for number in missing if (one := plan.seats.get(number)) and one.status.phase is WorkerPhase.FAILED]
    if failed:
        text = f"{failed[0].metadata.name}: {failed[0].status.last_error}"
        return PoolCondition.READY, Truth.FALSE, "WorkerFailed", shorten_text(text)
    return PoolCondition.READY, Truth.FALSE, "Booting", f"waiting for a machine: {seats_text(missing)}"


def _decide_pending(_view: PoolView, _plan: PoolPlan) -> PoolPhaseChange:
    return PoolPhaseChange(_P.INITIALIZING, "its template exists")


def _decide_initializing(view: PoolView, plan: PoolPlan) -> PoolPhaseChange:
    missing = _missing_minimum(view, plan)
    if not missing:
        return PoolPhaseChange(_P.READY, "the wanted minimum is ready")
    due = POOL_MACHINE.deadline(_P.INITIALIZING, view.status)
    if due is None or view.now < due[0]:
        return PoolPhaseChange(_P.INITIALIZING)
    error = f"{seats_text(missing)} got no machine within an hour"
    errors = [one.status.last_error for number in missing if (one := plan.seats.get(number)) and one.status.last_error]
    told = f"{error}: {errors[0]}" if errors else error
    return PoolPhaseChange(_P.FAILED, "the wanted minimum did not come up", error=shorten_text(told))


def _decide_failed(view: PoolView, plan: PoolPlan) -> PoolPhaseChange:
    due = retry_at(view)
    if not _missing_minimum(view, plan):
        return PoolPhaseChange(_P.INITIALIZING, "its minimum is up now")
    if view.pool.metadata.generation != view.status.observed_generation:
        return PoolPhaseChange(_P.INITIALIZING, "tried again: its spec was changed")
    return (
        PoolPhaseChange(_P.INITIALIZING, "tried again")
        if due is not None and due <= view.now
        else PoolPhaseChange(_P.FAILED)
    )


def _decide_ready(view: PoolView, plan: PoolPlan) -> PoolPhaseChange:
    if rising := _opening_seats(view, plan):
        return PoolPhaseChange(_P.SCALING_UP, f"{seats_text(rising)} must be started")
    if leaving := leaving_workers(view):
        names = ", ".join(one.metadata.name for one in leaving)
        return PoolPhaseChange(_P.SCALING_DOWN, shorten_text(f"{names} given up"))
    return PoolPhaseChange(_P.READY)


def _decide_scaling_up(view: PoolView, plan: PoolPlan) -> PoolPhaseChange:
    due = POOL_MACHINE.deadline(_P.SCALING_UP, view.status)
    if not unserved_seats(plan):
        return PoolPhaseChange(_P.READY, "the workers asked for are there", "up")
    if due is not None and view.now >= due[0]:
        reason = f"no machine after an hour for {seats_text(unserved_seats(plan))}; still trying"
        return PoolPhaseChange(_P.READY, reason, "up")
    return PoolPhaseChange(_P.SCALING_UP)


def _decide_scaling_down(view: PoolView, plan: PoolPlan) -> PoolPhaseChange:
    if not leaving_workers(view):
        return PoolPhaseChange(_P.READY, "the workers given up are gone", "down")
    if rising := _opening_seats(view, plan):
        return PoolPhaseChange(_P.READY, f"{seats_text(rising)} must be started meanwhile", "down")
    return PoolPhaseChange(_P.SCALING_DOWN)


def _decide_draining(view: PoolView, _plan: PoolPlan) -> PoolPhaseChange:
    if view.claims or any(view.is_busy(one) for one in view.workers if view.owns(one)):
        return PoolPhaseChange(_P.DRAINING)
    return PoolPhaseChange(_P.TERMINATING, "nothing is booked on it any more, and no session is on any of its workers")


def _decide_terminating(view: PoolView, _plan: PoolPlan) -> PoolPhaseChange:
    if any(view.owns(one) for one in view.workers):
        return PoolPhaseChange(_P.TERMINATING)
    return PoolPhaseChange(_P.TERMINATED, "all its workers are gone")


_DECIDERS: Final[Mapping[PoolPhase, Callable[[PoolView, PoolPlan], PoolPhaseChange]]] = {
    _P.PENDING: _decide_pending,
    _P.INITIALIZING: _decide_initializing,
    _P.FAILED: _decide_failed,
    _P.READY: _decide_ready,
    _P.SCALING_UP: _decide_scaling_up,
    _P.SCALING_DOWN: _decide_scaling_down,
    _P.DRAINING: _decide_draining,
    _P.TERMINATING: _decide_terminating,
}


def _missing_minimum(view: PoolView, plan: PoolPlan) -> Sequence[int]:
    """Return the seats of the minimum that have no worker that accepts sessions."""
    return [number for number in range(1, view.minimum + 1) if not _is_serving(plan.seats.get(number))]


def _opening_seats(view: PoolView, plan: PoolPlan) -> Sequence[int]:
    """Return the seats whose worker was requested recently; what takes longer no longer counts as scaling."""
    found = []
    for number in unserved_seats(plan):
        if (worker := plan.seats.get(number)) is not None:
            up = list(takewhile(lambda line: line.phase != WorkerPhase.STOPPED, reversed(worker.status.history)))
            # A worker that is still stopped is about to start.
            if (up[-1].at if up else view.now) > view.now - _SCALE_UP_WINDOW:
                found.append(number)
    return found


def _is_serving(worker: LabWorker | None) -> bool:
    return worker is not None and is_accepting(worker)
