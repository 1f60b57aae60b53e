"""How many workers a pool should have: one pure function per policy, from what is known to a size with its reason.

`controllers.pool.load` gathers the facts (`PoolLoad`) and opens or closes planned workers accordingly, which the pool's
status keeps. Cooldowns go by moments that are stored, so that they survive whoever measured them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount
from lcm.model.kinds.pool import (
    CapacityThresholds,
    PoolCapacitySummary,
    ScalingPolicy,
    Threshold,
    exceeded_thresholds,
    undercut_thresholds,
)
from lcm.placement.candidate import format_moment
from lcm.placement.limits import LoadRoom

ROOMY: Final = LoadRoom(10_000)
"""Neither budgets nor licences are in the way."""
_DEFAULT_THRESHOLDS: Final = CapacityThresholds()


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """What is known about a pool's load at one moment.

    `serving` and `coming` workers together have `capacity`, of which `claimed` is taken, and `booked` of that by
    sessions with a slot; `measured_cpu` and `measured_memory` are the shares that were measured, None if nothing was.
    `machine` is what one worker of the template holds. `waiting` sessions wait whom no worker holds soon; `machines`
    more would hold them. `held` ones wait for a worker that comes up. `unsuited` ones suit no worker of the pool.

    `current` is how many workers there are or will be by what was decided before. Of these, `promised` are for the
    minimum, for claims that are due, or made by others; `busy` ones besides have sessions. `leaving` ones run besides,
    and stop as soon as nobody is on them.

    `closed` says in a word why nothing may be started, and `opens_at` until when. `room` is what budgets and licences
    leave besides what is promised. `failing` tells of workers that do not come up.
    """

    policy: ScalingPolicy
    now: datetime
    thresholds: CapacityThresholds = _DEFAULT_THRESHOLDS
    least: int = 0
    most: int = 10
    serving: int = 0
    coming: int = 0
    capacity: Amount = ZERO_AMOUNT
    claimed: Amount = ZERO_AMOUNT
    booked: Amount = ZERO_AMOUNT
    machine: Amount = ZERO_AMOUNT
    measured_cpu: float | None = None
    measured_memory: float | None = None
    labs: int = 0
    waiting: int = 0
    machines: int = 0
    held: int = 0
    unsuited: int = 0
    current: int = 0
    promised: int = 0
    busy: int = 0
    leaving: int = 0
    closed: Literal["", "hours", "paused"] = ""
    opens_at: datetime | None = None
    room: LoadRoom = ROOMY
    up_at: datetime | None = None
    down_at: datetime | None = None
    failing: str = ""

    @property
    def affordable(self) -> int:
        """How many workers budgets and licences allow: sessions have theirs already."""
        return self.promised + self.busy + self.room.workers


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """The size that a pool should have, why in a word and in a sentence, and what was considered.

    `size` includes what is promised; it is the current one where nothing is to change. `due` is when the answer may
    change although nothing else does.
    """

    size: int
    action: Literal["scale_up", "scale_down", "none"]
    why: str
    reason: str
    considered: tuple[str, ...] = ()
    due: datetime | None = None


def decide_size(load: PoolLoad) -> SizeDecision:
    """Decide by the pool's policy how many workers it should have."""
    return replace(POLICIES[load.policy](load), considered=tuple(describe_load(load)))


def summarize_load(load: PoolLoad) -> PoolCapacitySummary:
    """Return the figures by which thresholds are judged: the greater share of what is claimed and measured.

    Under HYBRID what is booked has its machines already: the share is that of what bookings leave.
    """
    booked = load.booked if load.policy is ScalingPolicy.HYBRID else ZERO_AMOUNT
    return PoolCapacitySummary(
        workers=load.serving + load.coming,
        ready_workers=load.serving,
        booting_workers=load.coming,
        labs=load.labs,
        declared=load.capacity,
        claimed=load.claimed,
        cpu_utilization=_share("cpu_millis", load.measured_cpu, load, booked),
        memory_utilization=_share("memory_mb", load.measured_memory, load, booked),
    )


def _share(name: str, measured: float | None, load: PoolLoad, booked: Amount) -> float | None:
    whole: int = getattr(load.capacity, name)
    claimed: int = getattr(load.claimed, name)
    apart: int = getattr(booked, name)
    if not whole:
        return None
    share, rest = max(claimed / whole, measured or 0.0), whole - apart
    if not apart:
        return min(1.0, share)
    used = share * whole - apart
    return min(1.0, max(0.0, used / rest)) if rest > 0 else float(used > 0)


class MachineCount:
    """Counts the machines that hold needs together besides those that come up anyway, whose room is taken first.

    Needs are to be added the largest first. `unheld` of them have no room on machines that come; `machines` more hold
    those, as far as that many are allowed.
    """

    def __init__(self, machine: Amount, most: int, rooms: Iterable[Amount] = ()) -> None:
        self._machine = machine
        self._most = most
        self._coming = list(rooms)
        self._new: list[Amount] = []
        self.unheld = 0

    @property
    def machines(self) -> int:
        """How many more machines are needed."""
        return len(self._new)

    def add(self, need: Amount, count: int) -> None:
        """Add a need so many times. One that is larger than a machine is not held by any."""
        left = _fill_rooms(self._coming, need, count)
        self.unheld += left
        if not need.within(self._machine) or len(self._new) >= self._most:
            return
        left, each = _fill_rooms(self._new, need, left), _fits_times(need, self._machine)
        while left > 0 and len(self._new) < self._most:
            self._new.append(_without(self._machine, need, min(left, each)))
            left -= each


def largest_first(needs: Iterable[Amount]) -> Sequence[Amount]:
    """Return needs in the order in which machines are filled with them."""
    return sorted(needs, key=lambda one: (-one.cpu_millis, -one.memory_mb, msgspec.structs.astuple(one)))


def _fill_rooms(rooms: list[Amount], need: Amount, count: int) -> int:
    """Put a need into rooms so many times, as far as there is room; return how many are left."""
    for place, room in enumerate(rooms):
        if not count:
            break
        taken = min(count, _fits_times(need, room))
        if taken > 0:
            rooms[place], count = _without(room, need, taken), count - taken
    return count


def _fits_times(need: Amount, room: Amount) -> int:
    wanted = [name for name in DIMENSIONS if getattr(need, name)]
    return min((getattr(room, name) // getattr(need, name) for name in wanted), default=1)


def _without(room: Amount, need: Amount, times: int) -> Amount:
    return Amount(**{name: getattr(room, name) - times * getattr(need, name) for name in DIMENSIONS})


def _by_promises(load: PoolLoad) -> SizeDecision:
    """Want the minimum and what is promised, and nothing for load."""
    closed = _closed_decision(load)
    if closed is not None:
        return closed
    if load.current > load.promised:
        reason = f"the policy {load.policy} wants what is promised and the minimum, which is {load.promised}"
        return SizeDecision(load.promised, "scale_down", "policy", reason)
    return SizeDecision(load.current, "none", *_promises_reason(load))


def _promises_reason(load: PoolLoad) -> tuple[str, str]:
    if load.failing:
        return "launch_failed", load.failing
    if load.waiting and load.current >= load.most:
        return _maximum_reason(load)
    if load.waiting and load.policy is ScalingPolicy.NONE:
        return "policy", f"sessions wait, and with the policy {load.policy} no worker is started for load"
    if not load.promised:
        return "minimum", "no planned worker needs a machine"
    return "booked" if load.promised > load.least else "minimum", "every planned worker that needs a machine has one"


def _by_capacity(load: PoolLoad) -> SizeDecision:
    return _by_thresholds(load, frozenset({Threshold.CPU, Threshold.MEMORY}))


def _by_labs(load: PoolLoad) -> SizeDecision:
    return _by_thresholds(load, frozenset({Threshold.LABS}))


POLICIES: Final[Mapping[ScalingPolicy, Callable[[PoolLoad], SizeDecision]]] = {
    ScalingPolicy.NONE: _by_promises,
    ScalingPolicy.SCHEDULED: _by_promises,
    ScalingPolicy.CAPACITY_BASED: _by_capacity,
    ScalingPolicy.LAB_COUNT_BASED: _by_labs,
    ScalingPolicy.HYBRID: _by_capacity,
}
"""What each policy wants. No policy gives up what is promised, so HYBRID is the greater of both."""
LOAD_POLICIES: Final = frozenset({ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED, ScalingPolicy.HYBRID})
"""The policies that start workers for load."""
LOAD_REASONS: Final = frozenset({"threshold", "waiting", "idle"})
"""The words of steps for which the load is the reason."""


def _by_thresholds(load: PoolLoad, judged: frozenset[Threshold]) -> SizeDecision:
    early = _closed_decision(load) or _yielding_decision(load)
    if early is not None:
        return early
    summary = summarize_load(load)
    exceeded = sorted(exceeded_thresholds(summary, load.thresholds) & judged)
    if load.machines or exceeded:
        return _grow(load, exceeded)
    if load.current > load.least and judged <= undercut_thresholds(summary, load.thresholds):
        return _shrink(load, judged)
    return _steady(load)


def _closed_decision(load: PoolLoad) -> SizeDecision | None:
    """Return the decision for a pool that is closed; None if it is open."""
    if not load.closed:
        return None
    until = f" until {format_moment(load.opens_at)}" if load.opens_at else ""
    what = "the pool is paused" if load.closed == "paused" else "it is outside of the pool's hours"
    reason = f"{what}: only what was promised has a machine{until}"
    action: Literal["scale_down", "none"] = "scale_down" if load.current > load.promised else "none"
    return SizeDecision(load.promised, action, load.closed, reason, due=load.opens_at)


def _yielding_decision(load: PoolLoad) -> SizeDecision | None:
    """Return the decision to give up what budgets or licences no longer allow; None if they allow it."""
    if load.current <= load.affordable:
        return None
    return SizeDecision(
        load.affordable, "scale_down", load.room.why, f"load yields to what is promised: {load.room.reason}"
    )


def _grow(load: PoolLoad, exceeded: list[Threshold]) -> SizeDecision:
    current = load.current
    wanted = max(load.machines, 1)
    if load.failing:
        return SizeDecision(current, "none", "launch_failed", load.failing)
    room = load.most - current - load.leaving
    if room <= 0:
        return SizeDecision(current, "none", *_maximum_reason(load))
    left = load.affordable - current
    if left <= 0:
        return SizeDecision(current, "none", load.room.why, f"no worker is started for load: {load.room.reason}")
    due = _cooldown_end(load, load.thresholds.scale_up_cooldown_minutes)
    if due is not None:
        reason = f"the pool changed for the load, and grows again at {format_moment(due)} at the earliest"
        return SizeDecision(current, "none", "cooldown", reason, due=due)
    more = min(wanted, room, left)
    if load.machines:
        reason = f"sessions wait whom no worker will hold soon; {load.machines} more would hold them"
        return SizeDecision(current + more, "scale_up", "waiting", reason)
    names = " and ".join(exceeded)
    return SizeDecision(current + more, "scale_up", "threshold", f"the upper threshold of {names} is passed")


def _maximum_reason(load: PoolLoad) -> tuple[str, str]:
    return "maximum", f"the pool has its max_workers, {load.most}, or will have them"


def _shrink(load: PoolLoad, judged: frozenset[Threshold]) -> SizeDecision:
    current = load.current
    if current <= load.promised:
        return SizeDecision(current, "none", "promised", "sessions or promises need every worker of the pool")
    if load.waiting or load.held:
        return _steady(load)
    if passed := _passed_without_one(load, judged):
        reason = f"on one worker less the upper threshold of {passed} would be passed"
        return SizeDecision(current, "none", "remaining", reason)
    due = _cooldown_end(load, load.thresholds.scale_down_cooldown_minutes)
    if due is not None:
        reason = f"the pool changed for the load, and shrinks at {format_moment(due)} at the earliest"
        return SizeDecision(current, "none", "cooldown", reason, due=due)
    return SizeDecision(current - 1, "scale_down", "idle", "the load is below the lower thresholds, and nobody waits")


def _passed_without_one(load: PoolLoad, judged: frozenset[Threshold]) -> str:
    """Return the upper thresholds that would be passed by the same load on one worker less; "" if none."""
    whole = {name: getattr(load.capacity, name) for name in DIMENSIONS}
    rest = {name: max(0, amount - getattr(load.machine, name)) for name, amount in whole.items()}

    def rescale(measured: float | None, name: str) -> float | None:
        return None if measured is None or not rest[name] else measured * whole[name] / rest[name]

    smaller = replace(
        load,
        capacity=Amount(**rest),
        measured_cpu=rescale(load.measured_cpu, "cpu_millis"),
        measured_memory=rescale(load.measured_memory, "memory_mb"),
        serving=max(0, load.serving - 1),
    )
    return " and ".join(sorted(exceeded_thresholds(summarize_load(smaller), load.thresholds) & judged))


def _steady(load: PoolLoad) -> SizeDecision:
    current = load.current
    if load.failing:
        return SizeDecision(current, "none", "launch_failed", load.failing)
    if load.held:
        return SizeDecision(current, "none", "booting", "a worker that comes up will hold those who wait")
    if load.waiting or load.unsuited:
        return SizeDecision(current, "none", "unsuited", "those who wait suit no worker of the pool's template")
    if current <= load.least:
        return SizeDecision(current, "none", "minimum", "nobody waits, and the pool has its minimum")
    return SizeDecision(current, "none", "thresholds", "nobody waits, and no threshold is passed")


def _cooldown_end(load: PoolLoad, minutes: int) -> datetime | None:
    """Return when the pool may change again after its last step; None if it may now."""
    last = max((one for one in (load.up_at, load.down_at) if one is not None), default=None)
    due = last + timedelta(minutes=minutes) if last is not None else load.now
    return due if due > load.now else None


def describe_load(load: PoolLoad) -> Iterable[str]:
    """Yield what was considered, in words. Figures that always change a little are rounded."""
    limits, whole, used = load.thresholds, load.capacity, load.claimed
    if load.policy in {ScalingPolicy.CAPACITY_BASED, ScalingPolicy.HYBRID}:
        figures = (
            ("CPU", used.cpu_millis, whole.cpu_millis, load.measured_cpu, limits.cpu_scale_up, limits.cpu_scale_down),
            (
                "memory",
                used.memory_mb,
                whole.memory_mb,
                load.measured_memory,
                limits.memory_scale_up,
                limits.memory_scale_down,
            ),
        )
        for name, taken, all_, measured, high, low in figures:
            share = f"{taken / all_:.0%} claimed" if all_ else "no worker"
            more = f", {_round_share(measured):.0%} measured" if measured is not None else ""
            yield f"{name}: {share}{more}; grows above {high:.0%}, shrinks below {low:.0%}"
    if load.policy is ScalingPolicy.LAB_COUNT_BASED:
        high, low = limits.max_labs_per_worker, limits.min_labs_per_worker
        workers = load.serving + load.coming
        yield f"labs: {load.labs} on {workers} workers; grows above {high} a worker, shrinks below {low}"
    unheld = f"{load.waiting} whom no worker holds soon ({load.machines} machines)"
    yield f"waiting: {unheld}, {load.held} for a worker that comes up"
    allowed = f"{load.promised} promised, {load.least} to {load.most} allowed"
    yield f"workers: {load.serving} serve, {load.coming} come up; {allowed}"


def _round_share(share: float) -> float:
    return round(share * 20) / 20
