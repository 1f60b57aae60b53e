"""A pool's phase and its conditions, by what its seats need and have. Pure. The work does not wait for any phase."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, Literal, NamedTuple

from lcm.controllers.pool.demand import Plan, in_words
from lcm.controllers.pool.view import View, is_over
from lcm.model.base.resource import Condition, Truth, with_condition
from lcm.model.kinds.pool import POOL, LabWorkerPool, PoolCondition, PoolPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.places import Row, accepting, template_room

RETRIES: Final = 5
"""A minimum that failed to come up so often waits for a person, or for its workers."""
RETRY_AFTER: Final = timedelta(minutes=15)
_UP_WITHIN: Final = timedelta(hours=1)
_P: Final = PoolPhase


Said = tuple[PoolCondition, Truth, str, str]
"""A condition: of what, how it is, in a word and in a sentence."""


class Turn(NamedTuple):
    """The phase that follows and why; whether a way up or down ends with it, and what went wrong."""

    phase: PoolPhase
    reason: str = ""
    scaled: Literal["up", "down", ""] = ""
    error: str = ""


def turn(view: View, plan: Plan) -> Turn:
    """Say which phase a pool is in from now on; at most one step further."""
    return _TURNS[view.status.phase](view, plan)


def retry_at(view: View) -> datetime | None:
    """Say when a pool that failed is tried again; None if not by itself."""
    story = [line for line in view.status.history if line.phase in {_P.READY, _P.FAILED}]
    since = next((place for place, line in enumerate(reversed(story)) if line.phase == _P.READY), len(story))
    return story[-1].at + RETRY_AFTER if story and since <= RETRIES else None


def coming(plan: Plan) -> Sequence[int]:
    """Give the seats that need a worker and have none yet that takes sessions."""
    return [number for number in plan.needed if not _serves(plan.seats.get(number))]


def going(view: View) -> Sequence[LabWorker]:
    """Give the pool's workers that were given up and are still there."""
    return [one for one in view.workers if view.owns(one) and not is_over(one) and _goes(one)]


def conditions(pool: LabWorkerPool, said: Iterable[Said], now: datetime) -> tuple[Condition, ...]:
    """Put conditions in place of a pool's."""
    found = pool.status.conditions
    for name, truth, reason, message in said:
        found = with_condition(
            found, Condition(type=name, status=truth, last_transition_at=now, reason=reason, message=message)
        )
    return found


def said_of(view: View, plan: Plan, trouble: str) -> Sequence[Said]:
    """Say of each aspect of a pool how it is."""
    row = Row(view.pool, view.template, plan.seats)
    known = template_room(row) is not None
    type_ = view.template.spec.worker.aws.instance_type
    size = (
        (PoolCondition.CAPACITY_KNOWN, Truth.TRUE, "Known", "")
        if known
        else (PoolCondition.CAPACITY_KNOWN, Truth.FALSE, "UnknownType", f"it is not known what a {type_} holds")
    )
    return [(PoolCondition.TEMPLATE_FOUND, Truth.TRUE, "Found", ""), size, _ready(plan, trouble)]


def _ready(plan: Plan, trouble: str) -> Said:
    if trouble:
        return PoolCondition.READY, Truth.FALSE, "Refused", trouble
    missing = coming(plan)
    if not missing:
        return PoolCondition.READY, Truth.TRUE, "SeatsFilled", ""
    failed = [one for number in missing if (one := plan.seats.get(number)) and one.status.phase is WorkerPhase.FAILED]
    if failed:
        text = f"{failed[0].metadata.name}: {failed[0].status.last_error}"
        return PoolCondition.READY, Truth.FALSE, "WorkerFailed", text[:2000]
    return PoolCondition.READY, Truth.FALSE, "Booting", f"{in_words(missing)} wait for a worker"


def _pending(_view: View, _plan: Plan) -> Turn:
    return Turn(_P.INITIALIZING, "its template exists")


def _initializing(view: View, plan: Plan) -> Turn:
    missing = _missing(view, plan)
    if not missing:
        return Turn(_P.READY, "the wanted minimum is ready")
    due = POOL.deadline(_P.INITIALIZING, view.status)
    if due is None or view.now < due[0]:
        return Turn(_P.INITIALIZING)
    error = f"{in_words(missing)} got no worker within an hour"
    errors = [one.status.last_error for number in missing if (one := plan.seats.get(number)) and one.status.last_error]
    told = f"{error}: {errors[0]}" if errors else error
    return Turn(_P.FAILED, "the wanted minimum did not come up", error=told[:2000])


def _failed(view: View, plan: Plan) -> Turn:
    due = retry_at(view)
    if not _missing(view, plan):
        return Turn(_P.INITIALIZING, "its minimum came up after all")
    if view.pool.metadata.generation != view.status.observed_generation:
        return Turn(_P.INITIALIZING, "tried again: its spec was changed")
    return Turn(_P.INITIALIZING, "tried again") if due is not None and due <= view.now else Turn(_P.FAILED)


def _ready_phase(view: View, plan: Plan) -> Turn:
    if rising := _rising(view, plan):
        return Turn(_P.SCALING_UP, f"{in_words(rising)} must be opened")
    if going(view):
        return Turn(_P.SCALING_DOWN, _gone_words(going(view)))
    return Turn(_P.READY)


def _scaling_up(view: View, plan: Plan) -> Turn:
    due = POOL.deadline(_P.SCALING_UP, view.status)
    if not coming(plan):
        return Turn(_P.READY, "the workers asked for are there", "up")
    if due is not None and view.now >= due[0]:
        reason = f"{in_words(coming(plan))} have no worker after an hour; they are tried on"
        return Turn(_P.READY, reason, "up")
    return Turn(_P.SCALING_UP)


def _scaling_down(view: View, plan: Plan) -> Turn:
    if not going(view):
        return Turn(_P.READY, "the workers given up are gone", "down")
    if rising := _rising(view, plan):
        return Turn(_P.READY, f"{in_words(rising)} must be opened meanwhile", "down")
    return Turn(_P.SCALING_DOWN)


def _draining(view: View, _plan: Plan) -> Turn:
    if view.claims or any(view.busy(one) for one in view.workers if view.owns(one)):
        return Turn(_P.DRAINING)
    return Turn(_P.TERMINATING, "nothing is booked on it any more, and no session is on any of its workers")


def _terminating(view: View, _plan: Plan) -> Turn:
    if any(view.owns(one) for one in view.workers):
        return Turn(_P.TERMINATING)
    return Turn(_P.TERMINATED, "all its workers are gone")


_TURNS: Final[Mapping[PoolPhase, Callable[[View, Plan], Turn]]] = {
    _P.PENDING: _pending,
    _P.INITIALIZING: _initializing,
    _P.FAILED: _failed,
    _P.READY: _ready_phase,
    _P.SCALING_UP: _scaling_up,
    _P.SCALING_DOWN: _scaling_down,
    _P.DRAINING: _draining,
    _P.TERMINATING: _terminating,
}


def _missing(view: View, plan: Plan) -> Sequence[int]:
    """Give the seats of the minimum that have no worker that takes sessions."""
    return [number for number in range(1, view.minimum + 1) if not _serves(plan.seats.get(number))]


def _rising(view: View, plan: Plan) -> Sequence[int]:
    """Give the seats for which a worker was asked not long ago; what takes longer is no scaling any more."""
    early = view.now - _UP_WITHIN
    seated = {number: plan.seats.get(number) for number in coming(plan)}
    return [number for number, one in seated.items() if one is not None and _asked_at(one, view.now) > early]


def _asked_at(worker: LabWorker, now: datetime) -> datetime:
    """Say when a worker's present way up began; one that is still stopped is about to begin it."""
    up = list(takewhile(lambda line: line.phase != WorkerPhase.STOPPED, reversed(worker.status.history)))
    return up[-1].at if up else now


def _serves(worker: LabWorker | None) -> bool:
    return worker is not None and accepting(worker)


def _goes(worker: LabWorker) -> bool:
    stopped = worker.status.phase in {WorkerPhase.STOPPED, WorkerPhase.FAILED}
    return worker.metadata.deletion_timestamp is not None or (worker.spec.wanted_state == "stopped" and not stopped)


def _gone_words(workers: Sequence[LabWorker]) -> str:
    return f"{', '.join(one.metadata.name for one in workers)} given up"[:2000]
