"""Checks how pools grow and shrink: cooldowns, minimum and maximum, allowed hours, budgets, and no flapping."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from lcm.controllers.pool.view import SEAT_LABEL
from lcm.model.access.identity import Role
from lcm.model.base.capacity import Claim
from lcm.model.kinds.hours import AllowedHours, Weekday
from lcm.model.kinds.pool import LabWorkerPool, PoolPhase, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.bills import month_start, planned_hourly, pool_bill
from world.checks.violation import violation
from world.observed import Commit, ObservedChange, ObservedState

COOLDOWN: Final = "a pool changed for load before its cooldown was over"
SIZE: Final = "a pool above its maximum, or below its minimum"
HOURS: Final = "a machine started, kept or promised outside of its pool's hours"
OVERSPENT: Final = "a budget exceeded by what nobody booked"
FLAPPING: Final = "a worker started soon after a stop for the same reason"

HONEST: Final = timedelta(minutes=1)
"""What a pool's status says of a moment, and when it is committed, differ by less."""
DUE: Final = timedelta(hours=3)
"""No boot lead is longer: what is claimed within this time may have its machine."""
CALM_GRACE: Final = timedelta(minutes=20)
"""A few looks of a controller, and a stop."""
GRACE: Final = timedelta(minutes=75)
"""The same with changes of leaders and a cloud that does not answer for a while."""
LOAD_POLICIES: Final = frozenset({ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED, ScalingPolicy.HYBRID})
_YIELDS: Final = frozenset({"hourly_budget", "monthly_budget", "price_unknown", "licences"})
"""Why load gives up machines at once, as the decision calls it."""
_LASTING: Final = frozenset({PoolPhase.READY, PoolPhase.SCALING_UP, PoolPhase.SCALING_DOWN})
_UP: Final = frozenset({WorkerPhase.READY, WorkerPhase.READY_UNLICENSED, WorkerPhase.ACTIVE})
_P: Final = WorkerPhase
_DOWN: Final = frozenset(
    {_P.DRAINING, _P.UNLICENSING, _P.STOPPING, _P.STOPPED, _P.FAILED, _P.TERMINATING_EC2, _P.TERMINATED}
)
_WEEK: Final = tuple(Weekday)
_LOAD_AHEAD_HOURS: Final = 1


class PoolStart(NamedTuple):
    """A worker that a pool has started, and for which of its planned workers."""

    pool: LabWorkerPool
    template: WorkerTemplate
    worker: LabWorker
    number: int
    at: datetime


def load_waits_for_cooldown(_seen: ObservedState, turn: ObservedChange[LabWorkerPool]) -> Sequence[Violation]:
    """Check a pool that opens or closes planned workers for load: its cooldown is over, and it says the true moment.

    A pool that is closed, that has another policy, or that yields to what is promised closes them at once.
    """
    before, after = turn.before, turn.after
    if before is None or after is None or before.status.open_seats in (None, after.status.open_seats):
        return ()
    old, new = set(before.status.open_seats or ()), set(after.status.open_seats or ())
    most, limits = after.spec.max_workers, after.spec.thresholds
    found = list[str]()
    if new - old:
        found += _early_step(before, after.status.load_up_at, limits.scale_up_cooldown_minutes, turn.at, "grows")
        if closed_reason(after, turn.at) and closed_reason(after, turn.at - HONEST):
            return [violation(HOURS, "it grows for load while it is closed", after)]
    if any(number <= most for number in old - new) and not _may_yield(after, turn.at):
        found += _early_step(before, after.status.load_down_at, limits.scale_down_cooldown_minutes, turn.at, "shrinks")
    return [violation(COOLDOWN, one, after) for one in found]


def start_is_allowed(seen: ObservedState, commit: Commit, stage: Environment) -> Sequence[Violation]:
    """Check a worker that a pool starts: its maximum, its hours, its budgets, and what it stopped just before."""
    found = list[Violation]()
    _remember_losses(seen, commit)
    for start in _starts(seen, commit):
        promised = [one for one in seat_claims(seen, start.pool, start.number) if _is_due(one[1], commit.at)]
        found += _check_size(seen, start, promised=bool(promised))
        found += _check_hours(start, promised=bool(promised))
        found += _check_budgets(seen, start, stage, promised=bool(promised))
        found += _check_flapping(seen, start, [booked_at for booked_at, _ in promised])
    for pool, worker in _stops(seen, commit):
        seen.pool_stops[pool.metadata.uid, _stop_cause(seen, pool, worker, commit.at)] = commit.at
        seen.machines_lost.pop((pool.metadata.uid, _seat_number(worker)), None)
    return found


def load_stop_is_remembered(seen: ObservedState, turn: ObservedChange[LabWorkerPool]) -> Sequence[Violation]:
    """Remember when each planned worker was given up for load: its machine stops soon after that.

    One that is claimed then stays for its claims, and stops when these have ended.
    """
    before, after = turn.before, turn.after
    if before is not None and after is not None and before.status.open_seats != after.status.open_seats:
        for number in {*(before.status.open_seats or ())} - {*(after.status.open_seats or ())}:
            if not any(_is_due(claim, turn.at) for _, claim in seat_claims(seen, after, number)):
                seen.given_up[after.metadata.uid, number] = turn.at
            seen.machines_lost.pop((after.metadata.uid, number), None)
    return ()


def promise_is_within_hours(
    seen: ObservedState, turn: ObservedChange[LabletSession | Reservation]
) -> Sequence[Violation]:
    """Check that nothing is booked for a time at which its pool is closed; what was booked before stays."""
    after = turn.after
    if turn.before is not None or after is None:
        return ()
    found = []
    for name, claim in _booked_claims(after):
        known = seen.pool(name, after.metadata.namespace)
        pool = known[0] if known else None
        if pool is None or (pool.spec.allowed_hours is None and pool.status.pause is None):
            continue
        # A pause that began while this was decided is checked by the commit itself.
        hours = (claim.end - HONEST - claim.start) // timedelta(hours=1)
        moments = [claim.start + timedelta(hours=n) for n in range(hours + 1)]
        shut = next((one for one in (*moments, claim.end - HONEST) if closed_reason(pool, one)), None)
        if shut is not None and turn.at - shut < timedelta(0):
            found.append(violation(HOURS, f"{name} is closed at {shut:%a %d %H:%M}", after, pool))
    return found


def pools_have_their_minimum(seen: ObservedState, _stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that a pool that is open has records of as many workers as its minimum, at the latest after a grace."""
    grace, found = CALM_GRACE if seen.calm else GRACE, []
    for pool in seen.pools.values():
        least, uid = min(pool.spec.min_workers, pool.spec.max_workers), pool.metadata.uid
        open_ = pool.status.phase in _LASTING and pool.metadata.deletion_timestamp is None
        short = open_ and bool(least) and not closed_reason(pool, now) and len(_wanted(seen, pool)) < least
        if seen.duration_of(("minimum", uid), now, is_so=short) > grace:
            found.append(violation(SIZE, f"fewer than its minimum, {least}, for long", pool))
    return found


def pools_keep_their_maximum(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that a pool stops what it has beyond its maximum, at the latest after a grace: also what others started.

    A machine on which somebody runs labs of their own stays.
    """
    grace, found = CALM_GRACE if seen.calm else GRACE, []
    for pool in seen.pools.values():
        wanted = [one for one in _wanted(seen, pool) if seen.on_worker[one.metadata.uid] or not _has_labs(stage, one)]
        names = _names_above_maximum(pool, wanted)
        if seen.duration_of(("maximum", pool.metadata.uid), now, is_so=bool(names)) > grace:
            text = f"{names} are to run for long, and {pool.spec.max_workers} are allowed"
            found.append(violation(SIZE, text, pool))
    return found


def closed_pools_rest(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that a closed pool runs no machine that nobody uses and nobody has claimed, at the latest after a grace."""
    grace, found = CALM_GRACE if seen.calm else GRACE, []
    shut = [one for one in seen.pools.values() if closed_reason(one, now)]
    for worker in seen.workers.values() if shut else ():
        pool = next((one for one in shut if _owner_uid(worker) == one.metadata.uid), None)
        if pool is None:
            continue
        idle = worker.status.phase in _UP and not seen.on_worker[worker.metadata.uid] and not _has_labs(stage, worker)
        soon = any(_is_due(one, now) for _, one in seat_claims(seen, pool, _seat_number(worker)))
        if seen.duration_of(("closed", worker.metadata.uid), now, is_so=idle and not soon) > grace:
            text = f"{worker.metadata.name} runs, and nobody uses it ({closed_reason(pool, now)})"
            found.append(violation(HOURS, text, pool, worker))
    return found


def hourly_budget_is_kept(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check, where nothing goes wrong, that what runs costs no more an hour than a pool's budget.

    The minimum is what an operator wants, whatever it costs.
    """
    found = []
    for pool in seen.pools.values() if seen.calm else ():
        most, known = pool.spec.budget.hourly_usd, seen.pool(pool.metadata.name, pool.metadata.namespace)
        hourly = planned_hourly(known[1]) if known else None
        if most is None or hourly is None:
            continue
        mine = (one for one in seen.workers.values() if _owner_uid(one) == pool.metadata.uid)
        count = sum(_runs(stage, one, now) for one in mine)
        dear = count > pool.spec.min_workers and count * hourly > most
        if seen.duration_of(("dear", pool.metadata.uid), now, is_so=dear) > HONEST:
            text = f"{count} machines cost {count * hourly} USD an hour, and {most} are allowed"
            found.append(violation(OVERSPENT, text, pool))
    return found


def closed_reason(pool: LabWorkerPool, at: datetime) -> str:
    """Return why a pool is closed at a moment, in a word; "" if it is open."""
    pause = pool.status.pause
    if pause is not None and pause.since <= at and (pause.until is None or at < pause.until):
        return "paused"
    hours = pool.spec.allowed_hours
    return "" if hours is None or _is_open(hours, at) else "hours"


def seat_claims(seen: ObservedState, pool: LabWorkerPool, number: int) -> Iterator[tuple[datetime, Claim]]:
    """Yield what is claimed of a planned worker, and when each was booked."""
    name = pool.metadata.name
    for one in seen.in_pool[name].values():
        seat, claim = one.status.seat, one.status.claim
        if seat is not None and seat.number == number and claim is not None:
            yield one.metadata.created_at or claim.start, claim
    for booking in seen.reservations.values():
        if booking.status.phase in RESERVATION_MACHINE.final:
            continue
        for held in booking.status.held:
            if held.session is None and held.seat is not None and (held.seat.pool, held.seat.number) == (name, number):
                yield booking.metadata.created_at or held.claim.start, held.claim


def _early_step(before: LabWorkerPool, said: datetime | None, minutes: int, at: datetime, verb: str) -> Iterator[str]:
    status = before.status
    last = max((one for one in (status.load_up_at, status.load_down_at) if one is not None), default=None)
    if said is None or not at - HONEST <= said <= at:
        yield f"it {verb} for load at {at:%H:%M:%S}, and says {said}"
    elif last is not None and said < last + timedelta(minutes=minutes):
        yield f"it {verb} for load {said - last} after the last change, and its cooldown is {minutes} minutes"


def _may_yield(pool: LabWorkerPool, at: datetime) -> bool:
    """Return whether a pool may give up what load keeps open without a cooldown."""
    if pool.spec.policy not in LOAD_POLICIES or pool.metadata.deletion_timestamp is not None:
        return True
    last = [one.why for one in pool.status.decisions if one.action == "scale_down"][-1:]
    return bool(closed_reason(pool, at) or closed_reason(pool, at - HONEST)) or last[0:1] in ([one] for one in _YIELDS)


def _starts(seen: ObservedState, commit: Commit) -> Iterator[PoolStart]:
    """Yield the workers that a pool starts with a commit; what a person starts is the person's decision.

    So is a machine that runs already when the record of its worker follows it.
    """
    for turn in commit.turns:
        after, before = turn.after, turn.before
        if not isinstance(after, LabWorker) or after.spec.wanted_state != "running" or _is_by_hand(commit):
            continue
        if isinstance(before, LabWorker) and (before.spec.wanted_state == "running" or _follows_machine(before, after)):
            continue
        pool = _pool_of(seen, after)
        known = seen.pool(pool.metadata.name, pool.metadata.namespace) if pool else None
        if known is not None:
            yield PoolStart(*known, after, _seat_number(after), commit.at)


def _follows_machine(before: LabWorker, after: LabWorker) -> bool:
    """Return whether a worker's own step wants its machine to run: somebody started it, or labs are left on it.

    What a pool wants is written before the worker steps.
    """
    return (before.status.phase, after.status.phase) == (WorkerPhase.STOPPED, WorkerPhase.STARTING)


def _remember_losses(seen: ObservedState, commit: Commit) -> None:
    """Remember the planned workers that load keeps open, and whose machine somebody stops, drains or breaks."""
    for turn in commit.turns:
        before, after = turn.before, turn.after
        if not isinstance(before, LabWorker) or not isinstance(after, LabWorker) or not _is_asked_for(before):
            continue
        by_hand = _is_by_hand(commit) and not _is_asked_for(after)
        fell = after.status.phase in _DOWN and before.status.phase not in _DOWN
        pool = _pool_of(seen, after)
        # A pool's own stop is written before the worker steps; with its deletion the worker steps at once.
        if pool is not None and (by_hand or (fell and after.metadata.deletion_timestamp is None)):
            number = _seat_number(before)
            if number in (pool.status.open_seats or ()):
                seen.machines_lost[pool.metadata.uid, number] = None


def _stops(seen: ObservedState, commit: Commit) -> Iterator[tuple[LabWorkerPool, LabWorker]]:
    """Yield the healthy workers that a pool stops with a commit; what somebody did to a machine is no stop of ours."""
    for turn in commit.turns:
        before, after = turn.before, turn.after
        if not isinstance(before, LabWorker) or not isinstance(after, LabWorker) or _is_by_hand(commit):
            continue
        stays = before.status.phase in _UP and after.status.phase in _UP | {WorkerPhase.DRAINING}
        if stays and _is_asked_for(before) and not _is_asked_for(after):
            pool = _pool_of(seen, after)
            if pool is not None:
                yield pool, after


def _check_size(seen: ObservedState, start: PoolStart, *, promised: bool) -> Iterator[Violation]:
    pool, most = start.pool, start.pool.spec.max_workers
    if start.number > most and not promised:
        text = f"{start.worker.metadata.name} is planned worker {start.number}, and {most} are allowed"
        yield violation(SIZE, text, pool, start.worker)
    if names := _names_above_maximum(pool, _wanted(seen, pool)):
        yield violation(SIZE, f"{names} are to run, and {most} are allowed", pool, start.worker)


def _names_above_maximum(pool: LabWorkerPool, wanted: Sequence[LabWorker]) -> str:
    """Return the workers that are to run if they are more than the pool may have; "" if they are not.

    What was promised before the maximum was lowered has its machine besides.
    """
    sound, most = [one for one in wanted if not one.status.failure], pool.spec.max_workers
    beyond = {number for number in map(_seat_number, sound) if number > most}
    return ", ".join(sorted(one.metadata.name for one in sound)) if len(sound) > most + len(beyond) else ""


def _check_hours(start: PoolStart, *, promised: bool) -> Iterator[Violation]:
    reasons = [closed_reason(start.pool, at) for at in (start.at, start.at - HONEST)]
    if all(reasons) and not promised:
        text = f"{start.worker.metadata.name} is started for nothing that is promised ({reasons[0]})"
        yield violation(HOURS, text, start.pool, start.worker)


def _check_budgets(seen: ObservedState, start: PoolStart, stage: Environment, *, promised: bool) -> Iterator[Violation]:
    """Check that a worker that is started for load alone is within the pool's budgets."""
    pool, hourly = start.pool, planned_hourly(start.template)
    if promised or start.number <= pool.spec.min_workers or hourly is None:
        return
    wanted, budget = len(_wanted(seen, pool)), pool.spec.budget
    if budget.hourly_usd is not None and wanted * hourly > budget.hourly_usd:
        text = f"{wanted} workers at {hourly} USD, and {budget.hourly_usd} an hour are allowed"
        yield violation(OVERSPENT, text, pool, start.worker)
    if budget.monthly_usd is not None:
        spent = pool_bill(stage, seen, pool, month_start(start.at), start.at)
        if spent + wanted * hourly * _LOAD_AHEAD_HOURS > budget.monthly_usd:
            text = f"{spent:.2f} USD are spent, {wanted} workers run, and {budget.monthly_usd} a month are allowed"
            yield violation(OVERSPENT, text, pool, start.worker)


def _check_flapping(seen: ObservedState, start: PoolStart, booked: Sequence[datetime]) -> Iterator[Violation]:
    """Check a start against the last stop for the same reason; what was booked after that is a new reason.

    Where things go wrong, bookings move from worker to worker: one is given up while another must be started.
    A machine that was lost, by no decision of the pool, is replaced once: the pool has not grown by that.
    """
    pool, uid = start.pool, start.pool.metadata.uid
    opened = start.number in (pool.status.open_seats or ()) or start.number <= pool.spec.min_workers
    cause = "bookings" if booked and not opened else "load"
    stopped, replaces = seen.pool_stops.get((uid, cause)), (uid, start.number) in seen.machines_lost
    seen.machines_lost.pop((uid, start.number), None)
    span = timedelta(minutes=pool.spec.thresholds.scale_up_cooldown_minutes)
    if stopped is None or start.at >= stopped + span or start.number <= pool.spec.min_workers:
        return
    if (cause == "load" and not replaces) or (seen.calm and any(one < stopped for one in booked)):
        text = f"{start.worker.metadata.name} is started {start.at - stopped} after a stop, both for {cause}"
        yield violation(FLAPPING, text, pool, start.worker)


def _stop_cause(seen: ObservedState, pool: LabWorkerPool, worker: LabWorker, at: datetime) -> str:
    if closed_reason(pool, at) or closed_reason(pool, at - HONEST):
        return "hours"
    given_up = seen.given_up.pop((pool.metadata.uid, _seat_number(worker)), None)
    return "load" if given_up is not None and at - given_up <= GRACE else "bookings"


def _booked_claims(one: LabletSession | Reservation) -> Iterator[tuple[str, Claim]]:
    if isinstance(one, Reservation):
        yield from ((held.seat.pool, held.claim) for held in one.status.held if held.seat is not None)
    elif one.metadata.owner is None and one.status.seat is not None and one.status.claim is not None:
        yield one.status.seat.pool, one.status.claim


def _is_due(claim: Claim, now: datetime) -> bool:
    return claim.start - DUE <= now < claim.end


def _wanted(seen: ObservedState, pool: LabWorkerPool) -> list[LabWorker]:
    """Return the workers of a pool that are to run, and not being drained."""
    filled = {one.worker_id for one in pool.status.seats}
    return [
        one
        for one in seen.workers.values()
        if _is_wanted(one) and (_owner_uid(one) == pool.metadata.uid or one.metadata.uid in filled)
    ]


def _is_wanted(worker: LabWorker) -> bool:
    return _is_asked_for(worker) and worker.status.phase not in {WorkerPhase.DRAINING, WorkerPhase.TERMINATED}


def _is_asked_for(worker: LabWorker) -> bool:
    return worker.metadata.deletion_timestamp is None and worker.spec.wanted_state == "running"


def _pool_of(seen: ObservedState, worker: LabWorker) -> LabWorkerPool | None:
    owner = worker.metadata.owner
    pool = seen.objects.get(f"worker-pools/{worker.metadata.namespace}/{owner.name}") if owner else None
    return pool if isinstance(pool, LabWorkerPool) and owner and owner.uid == pool.metadata.uid else None


def _owner_uid(worker: LabWorker) -> str:
    return worker.metadata.owner.uid if worker.metadata.owner else ""


def _seat_number(worker: LabWorker) -> int:
    """Return the planned worker that a worker was started for; 0 if it does not say."""
    said = worker.metadata.labels.get(SEAT_LABEL, "")
    return int(said) if said.isdecimal() else 0


def _is_by_hand(commit: Commit) -> bool:
    return commit.audit is not None and commit.audit.role is not Role.SERVICE


def _has_labs(stage: Environment, worker: LabWorker) -> bool:
    cml = stage.fleet.find_cml(worker.status.ec2.instance_id)
    return cml is not None and cml.has_labs


def _runs(stage: Environment, worker: LabWorker, now: datetime) -> bool:
    machine = stage.cloud.account.machines.get(worker.status.ec2.instance_id)
    return machine is not None and machine.state(now) in {InstanceState.PENDING, InstanceState.RUNNING}


def _is_open(hours: AllowedHours, at: datetime) -> bool:
    local = at.astimezone(ZoneInfo(hours.time_zone))
    start, end = hours.start_hour, hours.end_hour
    days: Mapping[int, bool] = {n: not hours.weekdays or _WEEK[n] in hours.weekdays for n in range(7)}
    if start < end:
        return start <= local.hour < end and days[local.weekday()]
    began_today, began_yesterday = days[local.weekday()], days[(local.weekday() - 1) % 7]
    return (local.hour >= start and began_today) or (local.hour < end and began_yesterday)
