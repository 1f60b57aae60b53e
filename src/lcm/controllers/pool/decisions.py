"""Why a pool changed, or why it did not, in sentences. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from lcm.controllers.pool.demand import Plan, in_words
from lcm.controllers.pool.hands import Done
from lcm.controllers.pool.view import View, is_over, is_wanted
from lcm.model.pool import ScalingDecision, with_decision
from lcm.model.worker import LabWorker

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
