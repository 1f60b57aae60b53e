"""What a pool reports: its scaling decisions with their reasons, its figures, and its alerts. Pure.

Called by `PoolReconciler` after a plan was applied.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from lcm.controllers.pool.demand import PoolPlan, seats_text
from lcm.controllers.pool.effects import AppliedPlan
from lcm.controllers.pool.view import PoolView, is_over, is_small
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
from lcm.placement.limits import LOAD_LIMITS
from lcm.placement.places import COMING_PHASES, is_accepting, is_wanted
from lcm.placement.scaling import LOAD_REASONS, PoolLoad, SizeDecision, summarize_load

Action = Literal["scale_up", "scale_down", "none"]


def add_decisions(view: PoolView, plan: PoolPlan, done: AppliedPlan, size: SizeDecision) -> tuple[ScalingDecision, ...]:
    """Return a pool's decisions with the new ones; a decision to do nothing is added only if its reason is new."""
    decisions, before = view.status.decisions, sum(map(is_wanted, view.workers))
    added = {**done.launched, **done.resumed}
    after, fewer = before + len(added), len(done.paused) + len(done.retired) + sum(map(is_wanted, done.removed))
    for load in (False, True):
        numbers = [number for number in added if (number in plan.open - plan.promised) is load]
        if numbers:
            new = _make_decision(view, "scale_up", before, after, [added[number] for number in numbers])
            why, reason = _scale_up_reason(view, plan, done, numbers)
            decisions = _record_done(decisions, replace(new, why=why, reason=reason), load=load)
    gone = [*done.paused.values(), *done.retired, *done.removed]
    if any(not is_over(one) for one in gone):
        new = _make_decision(view, "scale_down", after, after - fewer, gone)
        why = "failed" if any(one.status.failure for one in done.removed) else "released"
        decisions = _record_done(decisions, replace(new, why=why, reason=_scale_down_reason(plan, done)), load=True)
    if size.action != "none":
        return with_decision(decisions, _describe_size(view, size, after - fewer))
    if added or gone or plan.let_go:
        return decisions
    none = _make_decision(view, "none", before, before, ())
    why, reason = _no_change_reason(plan, done, size)
    if decisions and (decisions[-1].action, decisions[-1].why, decisions[-1].reason) == ("none", why, reason):
        return decisions
    return with_decision(decisions, replace(none, why=why, reason=reason, considered=size.considered))


_LOAD_STOPS: Final = frozenset({"idle", *LOAD_LIMITS})
"""The words of decisions by which load gives up workers."""


def stops_for_load(decisions: Sequence[ScalingDecision], done: AppliedPlan) -> bool:
    """Return whether a look has stopped workers that the load gave up before: its cooldown begins with that."""
    last = next((one for one in reversed(decisions) if one.action == "scale_down"), None)
    return done.has_removals and last is not None and last.why in _LOAD_STOPS and not last.workers


def add_failure(
    decisions: tuple[ScalingDecision, ...], why: str, reason: str, now: datetime
) -> tuple[ScalingDecision, ...]:
    """Return decisions with one to do nothing because of a fault, unless that is the last one."""
    last = decisions[-1] if decisions else None
    if last is not None and (last.why, last.reason) == (why, reason):
        return decisions
    count = last.workers_after if last else 0
    new = ScalingDecision(at=now, action="none", reason=reason, workers_before=count, workers_after=count, why=why)
    return with_decision(decisions, new)


def _make_decision(
    view: PoolView, action: Action, before: int, after: int, workers: Iterable[LabWorker]
) -> ScalingDecision:
    names = tuple(one.metadata.name for one in workers)
    return ScalingDecision(
        at=view.now, action=action, reason="", workers_before=before, workers_after=max(0, after), workers=names
    )


def _describe_size(view: PoolView, size: SizeDecision, before: int) -> ScalingDecision:
    made = _make_decision(view, size.action, before, size.size, ())
    return replace(made, why=size.why, reason=shorten_text(size.reason), considered=size.considered)


def _record_done(
    decisions: tuple[ScalingDecision, ...], new: ScalingDecision, *, load: bool
) -> tuple[ScalingDecision, ...]:
    """Add what was done, or complete the decision for load from which it follows."""
    last = next((place for place, one in enumerate(reversed(decisions), 1) if one.action == new.action), 0)
    wanted = decisions[-last] if last else None
    if wanted is None or not load or wanted.workers or not wanted.why:
        return with_decision(decisions, new)
    told = replace(wanted, reason=shorten_text(f"{new.reason}: {wanted.reason}"), workers=new.workers)
    return (*decisions[: len(decisions) - last], told, *decisions[len(decisions) - last + 1 :])


def _scale_up_reason(view: PoolView, plan: PoolPlan, done: AppliedPlan, numbers: Sequence[int]) -> tuple[str, str]:
    """Return why planned workers got machines, in a word and in a sentence."""
    of = set(numbers)
    told = [
        *_describe_workers("launched", {number: one for number, one in done.launched.items() if number in of}),
        *_describe_workers("resumed", {number: one for number, one in done.resumed.items() if number in of}),
    ]
    booked = [number for number in numbers if number > view.minimum]
    why = [f"the pool keeps at least {view.minimum}"] if len(booked) < len(numbers) else []
    claimed = [plan.needed[number].start_by for number in booked if number in plan.claimed_until]
    if claimed:
        why.append(f"{seats_text(booked)} claimed from {format_moment(min(claimed) + view.lead)} on")
    said = f": {' and '.join(why)}" if why else ""
    return "booked" if booked else "minimum", shorten_text(f"{'; '.join(told)}{said}")


def _scale_down_reason(plan: PoolPlan, done: AppliedPlan) -> str:
    told = list(_describe_workers("paused", done.paused))
    starts = [plan.next[number].start_by for number in done.paused if number in plan.next]
    if starts:
        told[-1] += f", not claimed before {format_moment(min(starts))}"
    told += [f"{one.metadata.name} is paused once the sessions on it have ended" for one in done.retired]
    if done.removed:
        names = ", ".join(one.metadata.name for one in done.removed)
        errors = [one.status.last_error for one in done.removed if one.status.failure and one.status.last_error]
        told.append(f"deleted {names}: {f'it failed: {errors[0]}' if errors else 'nothing is booked there'}")
    return shorten_text("; ".join(told))


def _no_change_reason(plan: PoolPlan, done: AppliedPlan, size: SizeDecision) -> tuple[str, str]:
    """Return why nothing was done, in a word and in a sentence."""
    notes = list(dict.fromkeys(plan.notes))
    if done.trouble:
        return "launch_failed", shorten_text("; ".join([done.trouble, *notes]))
    if notes and size.why in _QUIET:
        return "sessions", shorten_text("; ".join(notes))
    return size.why, shorten_text("; ".join([size.reason, *notes]))


_QUIET: Final = frozenset({"minimum", "booked", "thresholds", "promised"})
"""Words that only say that nothing is to be done; what keeps a worker from being released says more."""


def _describe_workers(verb: str, workers: Mapping[int, LabWorker]) -> Iterator[str]:
    if workers:
        names = ", ".join(one.metadata.name for one in workers.values())
        yield f"{verb} {names} for {seats_text(list(workers))}"
        small = [one.spec.aws.instance_type for one in workers.values() if is_small(one) and verb == "launched"]
        if small:
            yield f"all that is claimed there fits {' and '.join(sorted(set(small)))}, which costs less"


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


def summarize_capacity(
    view: PoolView, workers: Sequence[LabWorker], load: PoolLoad | None = None
) -> PoolCapacitySummary:
    """Return the totals of a pool's workers, what is claimed of them now, and how much of them the load uses."""
    used = summarize_load(load) if load else PoolCapacitySummary()
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
        cpu_utilization=_round_share(used.cpu_utilization),
        memory_utilization=_round_share(used.memory_utilization),
    )


def _round_share(share: float | None) -> float | None:
    return None if share is None else round(share, 2)


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
POOL_AT_MAXIMUM: Final = "PoolAtMaximum"
POOL_FLAPPING: Final = "PoolFlapping"
ALERT_NAMES: Final = (
    POOL_FAILED,
    POOL_OVERDUE,
    POOL_STUCK,
    POOL_ABOVE_MAXIMUM,
    POOL_AT_MAXIMUM,
    POOL_FLAPPING,
)
FLAPPING_SHOWN: Final = timedelta(hours=1)
"""How long an alert stays after a worker was started soon after one was stopped."""
_CAUSES: Final = {**dict.fromkeys(LOAD_REASONS, "load"), "booked": "bookings", "released": "bookings"}
"""What made a pool change, by the word of the decision."""


def find_alerts(view: PoolView, trouble: str, load: PoolLoad | None = None) -> Sequence[AlertFinding]:
    """Return the alerts of a pool now; `trouble` is why a launch was refused."""
    found = (
        _failed_alert(view),
        _overdue_alert(view),
        _above_maximum_alert(view),
        _at_maximum_alert(view, load) if load else None,
        _flapping_alert(view),
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


def _at_maximum_alert(view: PoolView, load: PoolLoad) -> AlertFinding | None:
    """Return the alert of a pool that may not grow although people wait whom nobody holds soon; None if it may."""
    if not load.waiting or load.current < load.most or load.closed:
        return None
    name = view.pool.metadata.name
    text = (
        f"{name} has its max_workers, {load.most}, and sessions wait whom no worker will hold soon; raise max_workers"
    )
    return AlertFinding(alert=POOL_AT_MAXIMUM, severity=Severity.WARNING, reason="SessionsWait", message=text)


def _flapping_alert(view: PoolView) -> AlertFinding | None:
    """Return the alert of a pool that started a worker within one cooldown of a stop for the same reason."""
    span = timedelta(minutes=view.pool.spec.thresholds.scale_up_cooldown_minutes)
    stops = dict[str, datetime]()
    for one in view.status.decisions:
        cause = _CAUSES.get(one.why, "")
        if one.action == "scale_down" and cause:
            stops[cause] = one.at
        stopped = stops.get(cause) if one.action == "scale_up" else None
        if stopped is not None and one.at < stopped + span and view.now < one.at + FLAPPING_SHOWN:
            text = (
                f"{view.pool.metadata.name} started a worker at {format_moment(one.at)}, and had stopped one at "
                f"{format_moment(stopped)}, both for {cause}: use longer cooldowns, a larger minimum, or warm_workers"
            )
            return AlertFinding(
                alert=POOL_FLAPPING, severity=Severity.WARNING, reason=cause.title(), message=shorten_text(text)
            )
    return None


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
