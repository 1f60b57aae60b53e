"""What is left for load in a pool, what was measured of its workers, and why it did or did not scale.

Prices, licences and measurements are known to the control plane, decisions to the pool controller, which keeps them in
the pool's status. Called by `control.plane.local_operations`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

from lcm.control.booking.promise import Promises
from lcm.control.booking.seat_moves import require_seats
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref, ref_of
from lcm.control.telemetry.reports import newest_telemetry
from lcm.model.access.learner import show_to
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.placement import PoolExplanation, PoolHeadroom
from lcm.model.kinds.pool import LabWorkerPool, PoolPhase, ScalingDecision, WorkerTemplate
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerTelemetry
from lcm.model.money.prices import declared_capacity
from lcm.placement.limits import LoadRoom, count_load_room
from lcm.placement.places import COMING_PHASES, PoolSnapshot, is_wanted
from lcm.system.tasks import TimeSlice

MEASURED_LATELY: Final = timedelta(minutes=5)
"""An older measurement says nothing about the load."""


REMEDIES: Final[Mapping[str, str]] = {
    "waiting": "nothing to do: `lcm get workers` shows the machine come up",
    "threshold": "nothing to do: the thresholds are in the pool's spec",
    "idle": "raise min_workers to keep it",
    "thresholds": "lower the pool's thresholds to make it grow sooner, or raise them to make it shrink sooner",
    "remaining": "lower the pool's upper thresholds, or wait",
    "cooldown": "wait, or shorten the cooldowns in the pool's thresholds",
    "maximum": "raise max_workers: `lcm scale pool NAME --max N`",
    "hours": "widen allowed_hours, or book: what is promised is started",
    "paused": "`lcm resume pool NAME` ends the pause",
    "hourly_budget": "raise the pool's hourly budget",
    "monthly_budget": "raise the pool's monthly budget, or wait for the next month",
    "track_budget": "raise the budget of the track in the settings, or wait for the next month",
    "price_unknown": "set price_per_hour_usd in the template, or add its instance type to the price book",
    "licences": "add licence seats (CML_LICENSE_SEATS), or free some: `lcm licenses`",
    "booting": "wait: `lcm get workers` shows when it is READY",
    "unsuited": "`lcm explain session` says what is in the way of each",
    "launch_failed": "correct the template or the account; `lcm alerts` and `lcm describe pool NAME` show more",
    "no_template": "create the WorkerTemplate, or name another one in the pool's spec",
    "unknown_size": "use a known instance type in the template, or wait until one of its workers has reported",
    "minimum": "raise min_workers to have more: `lcm scale pool NAME --min N`",
    "booked": "nothing to do: bookings are served",
    "policy": "use the policy CAPACITY_BASED, LAB_COUNT_BASED or HYBRID to start workers for load",
    "promised": "wait until the sessions there have ended, or cancel the bookings",
    "sessions": "end the sessions or labs there, or wait",
    "no_controller": "start the pool controller: `lcm serve pool-controller`; `lcm doctor` shows what runs",
}
"""What helps if a pool's answer is not what somebody wants."""


async def explain_pool(writer: Writer, ref: Ref[LabWorkerPool]) -> PoolExplanation:
    """Explain why a pool has the size that it has; raise Gone if there is none."""
    pool = (await writer.require(ref)).resource
    spec, status = pool.spec, pool.status
    action, why, reason, last = await _find_answer(writer, pool)
    return PoolExplanation(
        pool=pool.metadata.name,
        namespace=pool.metadata.namespace,
        phase=status.phase,
        policy=spec.policy,
        action=action,
        why=why,
        reason=reason,
        remedy=REMEDIES.get(why, "").replace("NAME", pool.metadata.name),
        at=last.at if last else None,
        considered=last.considered if last else (),
        workers=status.summary.ready_workers + status.summary.booting_workers,
        min_workers=spec.min_workers,
        max_workers=spec.max_workers,
        pause=show_to(writer.caller, pool).status.pause,
        decisions=status.decisions[::-1],
    )


async def _find_answer(
    writer: Writer, pool: LabWorkerPool
) -> tuple[Literal["scale_up", "scale_down", "none"], str, str, ScalingDecision | None]:
    """Return what was decided last and why, unless the controller cannot have seen what is known here."""
    last = pool.status.decisions[-1] if pool.status.decisions else None
    template = Ref(WorkerTemplate, pool.spec.template, pool.metadata.namespace)
    if await writer.find(template) is None:
        return "none", "no_template", f"there is no WorkerTemplate {pool.spec.template}", last
    if pool.status.phase is PoolPhase.FAILED:
        return "none", "launch_failed", pool.status.last_error, last
    if last is None or pool.status.observed_generation != pool.metadata.generation:
        since = "since it was changed" if last else "yet"
        return "none", "no_controller", f"the pool controller has not looked at the pool {since}", last
    return last.action, last.why, last.reason, last


async def read_headroom(writer: Writer, promises: Promises, ref: Ref[LabWorkerPool]) -> PoolHeadroom:
    """Return what licences and budgets leave for load in a pool, and how much of its workers is used."""
    pool, now = (await writer.require(ref)).resource, writer.clock.now()
    await promises.calendar.ready()
    row = promises.calendar.pool(ref_of(pool))
    room = await _find_room(promises, row, now)
    workers = [one for one in row.workers.values() if is_wanted(one)] if row else []
    cpu, memory = await _measure_use(writer, workers, now)
    return PoolHeadroom(
        workers=room.workers,
        why=room.why,
        reason=room.reason,
        cpu_utilization=cpu,
        memory_utilization=memory,
        usd_hourly=row.usd_hourly if row else None,
    )


async def _find_room(promises: Promises, row: PoolSnapshot | None, now: datetime) -> LoadRoom:
    if row is None:
        return LoadRoom(0, "no_template", "the pool's template does not exist")
    rules = await promises.read_rules(row, now)
    try:
        return count_load_room(require_seats(promises, row)[1], rules)
    except NoRoom as error:  # it is not known what a worker holds
        return LoadRoom(0, error.why, str(error))


async def _measure_use(
    writer: Writer, workers: Sequence[LabWorker], now: datetime
) -> tuple[float | None, float | None]:
    """Return how much of the CPU and memory of workers that serve or come up is used, by the newest measurements."""
    time_slice = TimeSlice()
    used, whole, measured = [0.0, 0.0], [0.0, 0.0], False
    for worker in workers:
        size = worker.status.capacity or declared_capacity(worker.spec)
        serving = worker.status.phase in HOSTING_PHASES
        if size is None or not (serving or worker.status.phase in COMING_PHASES):
            continue
        found = await newest_telemetry(writer, worker) if serving else None
        shares = _fresh_shares(found, now)
        measured = measured or shares is not None
        for place, amount in enumerate((size.cpu_millis, size.memory_mb)):
            whole[place] += amount
            used[place] += amount * (shares[place] if shares else 0.0)
        await time_slice.yield_if_over()
    if not measured or not all(whole):
        return None, None
    return round(min(1.0, used[0] / whole[0]), 2), round(min(1.0, used[1] / whole[1]), 2)


def _fresh_shares(found: WorkerTelemetry | None, now: datetime) -> tuple[float, float] | None:
    if found is None or now - found.collected_at > MEASURED_LATELY:
        return None
    return (found.cpu_utilization or 0.0) / 100, (found.memory_utilization or 0.0) / 100
