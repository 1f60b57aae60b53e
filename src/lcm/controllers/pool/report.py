"""Why a pool changed, or why it did not, in sentences. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from lcm.controllers.pool.demand import Plan, in_words
from lcm.controllers.pool.effects import Done
from lcm.controllers.pool.view import View, is_over, is_wanted
from lcm.model.base.capacity import NOTHING, Amount
from lcm.model.kinds.pool import BOOTS_KEPT, POOL, PoolCapacitySummary, PoolPhase, ScalingDecision, with_decision
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.model.telemetry.alert import Complaint, Severity
from lcm.placement.places import COMING, accepting

_LONGEST = 2000


def decided(view: View, plan: Plan, done: Done) -> tuple[ScalingDecision, ...]:
    """Add what was decided to a pool's decisions; that nothing was only if the reason is another than before."""
    decisions = view.status.decisions
    before = sum(map(is_wanted, view.workers))
    after = before + len(done.launched) + len(done.resumed)
    if done.up:
        new = ScalingDecision(
            at=view.now, action="scale_up", reason=_up(view, plan, done), workers_before=before, workers_after=after
        )
        decisions = with_decision(decisions, new)
    fewer = after - len(done.paused) - len(done.retired) - sum(map(is_wanted, done.removed))
    if done.down and any(not is_over(one) for one in (*done.paused.values(), *done.retired, *done.removed)):
        new = ScalingDecision(
            at=view.now, action="scale_down", reason=_down(plan, done), workers_before=after, workers_after=fewer
        )
        decisions = with_decision(decisions, new)
    if done.up or done.down or plan.let_go:
        return decisions
    reason = _nothing(plan, done)
    last = next((one.reason for one in reversed(decisions) if one.action == "none"), None)
    if reason == last:
        return decisions
    none = ScalingDecision(at=view.now, action="none", reason=reason, workers_before=before, workers_after=before)
    return with_decision(decisions, none)


def _up(view: View, plan: Plan, done: Done) -> str:
    told = [*_named("launched", done.launched), *_named("resumed", done.resumed)]
    numbers = [*done.launched, *done.resumed]
    booked = [number for number in numbers if number > view.minimum]
    why = [f"the pool keeps at least {view.minimum}"] if len(booked) < len(numbers) else []
    starts = [plan.needed[number].start_by for number in booked]
    if starts:
        why.append(f"{in_words(booked)} claimed from {_clock(min(starts) + view.lead)} on")
    return f"{'; '.join(told)}: {' and '.join(why)}"[:_LONGEST]


def _down(plan: Plan, done: Done) -> str:
    told = list(_named("paused", done.paused))
    if done.paused:
        told[-1] += f", not claimed before {_clock(min(plan.next[number].start_by for number in done.paused))}"
    told += [f"{one.metadata.name} is paused once the sessions on it have ended" for one in done.retired]
    if done.removed:
        names = ", ".join(one.metadata.name for one in done.removed)
        errors = [one.status.last_error for one in done.removed if one.status.failure and one.status.last_error]
        told.append(f"deleted {names}: {f'it failed: {errors[0]}' if errors else 'nothing is booked there'}")
    return "; ".join(told)[:_LONGEST]


def _nothing(plan: Plan, done: Done) -> str:
    notes = list(dict.fromkeys(plan.notes))
    if done.trouble:
        notes.insert(0, done.trouble)
    if notes:
        return "; ".join(notes)[:_LONGEST]
    return "every seat that needs a worker has one" if plan.needed else "no seat needs a worker"


def _named(verb: str, workers: Mapping[int, LabWorker]) -> Iterator[str]:
    if workers:
        names = ", ".join(one.metadata.name for one in workers.values())
        yield f"{verb} {names} for {in_words(list(workers))}"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%MZ}"


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


FAILED: Final = "PoolFailed"
OVERDUE: Final = "PoolOverdue"
STUCK: Final = "PoolStuck"
NAMES: Final = (FAILED, OVERDUE, STUCK)
_WAITS: Final = {
    PoolPhase.SCALING_DOWN: "its workers are not seen gone",
    PoolPhase.TERMINATING: "its workers are not seen gone",
}


def complaints(view: View, trouble: str) -> Sequence[Complaint]:
    """List what is wrong with a pool now; `trouble` is what it was refused."""
    found = (_failed(view), _overdue(view), stuck(view.pool.metadata.name, "Refused", trouble) if trouble else None)
    return [one for one in found if one is not None]


def stuck(name: str, reason: str, why: str) -> Complaint:
    """Say that a pool cannot go on before a person has mended something."""
    return Complaint(alert=STUCK, severity=Severity.CRITICAL, reason=reason, message=f"{name}: {why}"[:2000])


def _failed(view: View) -> Complaint | None:
    if view.status.phase is not PoolPhase.FAILED:
        return None
    text = f"{view.pool.metadata.name}: {view.status.last_error}"
    return Complaint(alert=FAILED, severity=Severity.CRITICAL, reason="MinimumNotReady", message=text[:2000])


def _overdue(view: View) -> Complaint | None:
    phase = view.status.phase
    due = POOL.deadline(phase, view.status)
    if due is None or due[1].target is not None or view.now < due[0]:
        return None
    hours = (view.now - view.status.history[-1].at) // timedelta(hours=1)
    text = f"{view.pool.metadata.name} has been {phase} for {hours} hours: {_WAITS.get(phase) or _booked(view)}"
    severity = Severity.WARNING if phase is PoolPhase.DRAINING else Severity.CRITICAL
    return Complaint(alert=OVERDUE, severity=severity, reason=str(phase), message=text)


def _booked(view: View) -> str:
    if not view.claims:
        return "sessions are on its workers whose time is over"
    last = max(one.held.claim.end for one in view.claims)
    return f"it is booked until {last:%Y-%m-%d %H:%MZ}, and ends after that, or when those bookings are cancelled"
