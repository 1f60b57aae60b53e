"""What a pool reports: its scaling decisions with their reasons, its figures, and its alerts. Pure.

Called by `PoolReconciler` after a plan was applied.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from lcm.controllers.pool.demand import PoolPlan, seats_text
from lcm.controllers.pool.effects import AppliedPlan
from lcm.controllers.pool.view import PoolView, is_over
from lcm.controllers.runtime.lifecycle import stuck_alert
from lcm.model.base.capacity import ZERO_AMOUNT
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.pool import (
    BOOTS_KEPT,
    POOL_MACHINE,
    PoolCapacitySummary,
    PoolPhase,
    ScalingDecision,
    count_machines,
    with_decision,
)
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.placement.candidate import format_moment
from lcm.placement.places import COMING_PHASES, is_accepting, is_wanted


def add_decisions(view: PoolView, plan: PoolPlan, done: AppliedPlan) -> tuple[ScalingDecision, ...]:
    """Return a pool's decisions with the new ones; a decision to do nothing is added only if its reason is new."""
    decisions = view.status.decisions
    before = sum(map(is_wanted, view.workers))
    after = before + len(done.launched) + len(done.resumed)
    if done.has_additions:
        new = ScalingDecision(
            at=view.now,
            action="scale_up",
            reason=_scale_up_reason(view, plan, done),
            workers_before=before,
            workers_after=after,
        )
        decisions = with_decision(decisions, new)
    fewer = after - len(done.paused) - len(done.retired) - sum(map(is_wanted, done.removed))
    if done.has_removals and any(not is_over(one) for one in (*done.paused.values(), *done.retired, *done.removed)):
        new = ScalingDecision(
            at=view.now,
            action="scale_down",
            reason=_scale_down_reason(plan, done),
            workers_before=after,
            workers_after=fewer,
        )
        decisions = with_decision(decisions, new)
    if done.has_additions or done.has_removals or plan.let_go:
        return decisions
    reason = _no_change_reason(plan, done)
    last = next((one.reason for one in reversed(decisions) if one.action == "none"), None)
    if reason == last:
        return decisions
    none = ScalingDecision(at=view.now, action="none", reason=reason, workers_before=before, workers_after=before)
    return with_decision(decisions, none)


def _scale_up_reason(view: PoolView, plan: PoolPlan, done: AppliedPlan) -> str:
    told = [*_describe_workers("launched", done.launched), *_describe_workers("resumed", done.resumed)]
    numbers = [*done.launched, *done.resumed]
    booked = [number for number in numbers if number > view.minimum]
    why = [f"the pool keeps at least {view.minimum}"] if len(booked) < len(numbers) else []
    starts = [plan.needed[number].start_by for number in booked]
    if starts:
        why.append(f"{seats_text(booked)} claimed from {format_moment(min(starts) + view.lead)} on")
    return shorten_text(f"{'; '.join(told)}: {' and '.join(why)}")


def _scale_down_reason(plan: PoolPlan, done: AppliedPlan) -> str:
    told = list(_describe_workers("paused", done.paused))
    if done.paused:
        told[-1] += f", not claimed before {format_moment(min(plan.next[number].start_by for number in done.paused))}"
    told += [f"{one.metadata.name} is paused once the sessions on it have ended" for one in done.retired]
    if done.removed:
        names = ", ".join(one.metadata.name for one in done.removed)
        errors = [one.status.last_error for one in done.removed if one.status.failure and one.status.last_error]
        told.append(f"deleted {names}: {f'it failed: {errors[0]}' if errors else 'nothing is booked there'}")
    return shorten_text("; ".join(told))


def _no_change_reason(plan: PoolPlan, done: AppliedPlan) -> str:
    notes = list(dict.fromkeys(plan.notes))
    if done.trouble:
        notes.insert(0, done.trouble)
    if notes:
        return shorten_text("; ".join(notes))
    return "every planned worker that needs a machine has one" if plan.needed else "no planned worker needs a machine"


def _describe_workers(verb: str, workers: Mapping[int, LabWorker]) -> Iterator[str]:
    if workers:
        names = ", ".join(one.metadata.name for one in workers.values())
        yield f"{verb} {names} for {seats_text(list(workers))}"


SETTLE_TIME: Final = timedelta(seconds=10)
"""A boot is counted after this time, when all that were ready before it are known."""
_P: Final = WorkerPhase
_DOWN: Final = frozenset({_P.PENDING, _P.STOPPED})
_STARTING: Final = frozenset({_P.PROVISIONING_EC2, _P.STARTING})
_READY: Final = frozenset({_P.READY, _P.ACTIVE})


class MeasuredBoot(NamedTuple):
    """A machine that came up: when, and after how many seconds."""

    ready_at: datetime
    seconds: int


def summarize_capacity(view: PoolView, workers: Sequence[LabWorker]) -> PoolCapacitySummary:
    """Return the totals of a pool's workers, and what is claimed of them now."""
    living = [one for one in workers if not is_over(one)]
    begun = view.claims.starting_before(view.now + timedelta.resolution)
    now = [one.held.claim.need for one in begun if view.now < one.held.claim.end]
    return PoolCapacitySummary(
        workers=len(living),
        ready_workers=sum(map(is_accepting, living)),
        booting_workers=sum(
            one.status.phase in COMING_PHASES and is_wanted(one) and not is_accepting(one) for one in living
        ),
        labs=sum(view.sessions.get(one.metadata.uid, 0) for one in living),
        declared=sum(
            (one.status.capacity or declared_capacity(one.spec) or ZERO_AMOUNT for one in living if is_accepting(one)),
            ZERO_AMOUNT,
        ),
        claimed=sum(now, ZERO_AMOUNT),
    )


def count_by_phase(workers: Sequence[LabWorker]) -> Mapping[str, int]:
    """Count workers by phase, in the order of the life cycle."""
    counts = Counter(one.status.phase for one in workers)
    return {str(phase): counts[phase] for phase in WorkerPhase if counts[phase]}


def measure_boots(view: PoolView) -> tuple[tuple[int, ...], datetime | None]:
    """Return the latest boot times including the new ones, and until when boots are counted now."""
    before = view.status.boots_counted_until
    fresh = sorted(
        boot
        for worker in view.workers
        for boot in find_boots(worker, after=before)
        if boot.ready_at <= view.now - SETTLE_TIME
    )
    if not fresh:
        return view.status.boot_seconds, before
    return (*view.status.boot_seconds, *(one.seconds for one in fresh))[-BOOTS_KEPT:], fresh[-1].ready_at


def next_boot_count_at(view: PoolView) -> datetime | None:
    """Return when the next boot is old enough to be counted; None if there is none."""
    young = [boot.ready_at for one in view.workers for boot in find_boots(one, after=view.now - SETTLE_TIME)]
    return min(young) + SETTLE_TIME if young else None


def find_boots(worker: LabWorker, *, after: datetime | None = None) -> Iterator[MeasuredBoot]:
    """Find in a worker's history how long its machine took from the request until it served after a moment.

    A boot that failed on the way is skipped: it does not show how long a boot takes.
    """
    history = worker.status.history
    if after is not None and history and history[-1].at <= after:
        return
    ready = _READY if worker.spec.cml.license_token else _READY | {_P.READY_UNLICENSED}
    began: datetime | None = None
    before = ""
    for line in history:
        if before in _DOWN and line.phase in _STARTING:  # an adopted worker was running already
            began = line.at
        if line.phase == _P.FAILED or line.phase in _DOWN:
            began = None
        elif line.phase in ready and began is not None:
            if after is None or line.at > after:
                yield MeasuredBoot(line.at, int((line.at - began).total_seconds()))
            began = None
        before = line.phase


POOL_FAILED: Final = "PoolFailed"
POOL_OVERDUE: Final = "PoolOverdue"
POOL_STUCK: Final = "PoolStuck"
POOL_ABOVE_MAXIMUM: Final = "PoolAboveMaximum"
ALERT_NAMES: Final = (POOL_FAILED, POOL_OVERDUE, POOL_STUCK, POOL_ABOVE_MAXIMUM)


def find_alerts(view: PoolView, trouble: str) -> Sequence[AlertFinding]:
    """Return the alerts of a pool now; `trouble` is why a launch was refused."""
    found = (
        _failed_alert(view),
        _overdue_alert(view),
        _above_maximum_alert(view),
        stuck_alert(POOL_STUCK, view.pool.metadata.name, "Refused", trouble) if trouble else None,
    )
    return [one for one in found if one is not None]


def _failed_alert(view: PoolView) -> AlertFinding | None:
    if view.status.phase is not PoolPhase.FAILED:
        return None
    text = f"{view.pool.metadata.name}: {view.status.last_error}"
    return AlertFinding(
        alert=POOL_FAILED, severity=Severity.CRITICAL, reason="MinimumNotReady", message=shorten_text(text)
    )


def _above_maximum_alert(view: PoolView) -> AlertFinding | None:
    """Return the alert of a pool whose drained workers have been replaced while they still run; None if none was."""
    draining = [one for one in view.workers if one.status.phase is WorkerPhase.DRAINING]
    machines, most = count_machines(view.workers), view.pool.spec.max_workers
    if machines <= most or not draining:
        return None
    names = ", ".join(sorted(one.metadata.name for one in draining))
    deadlines = [one.status.drain_deadline_at for one in draining if one.status.drain_deadline_at is not None]
    until = f", until {format_moment(max(deadlines))} at the latest" if deadlines else ""
    above = f"{view.pool.metadata.name} runs {machines} machines, and its max_workers is {most}"
    text = f"{above}: {names} being drained{until}, and then stopped; end the sessions there to stop it sooner"
    return AlertFinding(alert=POOL_ABOVE_MAXIMUM, severity=Severity.WARNING, reason="Drain", message=shorten_text(text))


def _overdue_alert(view: PoolView) -> AlertFinding | None:
    phase = view.status.phase
    due = POOL_MACHINE.deadline(phase, view.status)
    if due is None or due[1].target is not None or view.now < due[0]:
        return None
    hours = (view.now - view.status.history[-1].at) // timedelta(hours=1)
    if phase is not PoolPhase.DRAINING:
        reason = "its workers are not seen gone"
    elif (end := view.claims.last_end()) is not None:
        last = format_moment(end)
        reason = f"it is booked until {last}, and ends after that, or when those bookings are cancelled"
    else:
        reason = "sessions are on its workers whose time is over"
    text = f"{view.pool.metadata.name} has been {phase} for {hours} hours: {reason}"
    severity = Severity.WARNING if phase is PoolPhase.DRAINING else Severity.CRITICAL
    return AlertFinding(alert=POOL_OVERDUE, severity=severity, reason=str(phase), message=text)
