"""Measures a trial: by the sessions' history, and by the cloud's own records of its machines."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.resource import find_condition
from lcm.model.kinds.definition import compute_amount
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, LabletSessionStatus, SessionCondition, SessionPhase
from lcm.model.money.prices import declared_capacity
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.plan.results import (
    Bound,
    DayCost,
    LateStart,
    MachineRun,
    PricedMachine,
    RefusedSessions,
    SessionSeatUse,
    Trial,
    bound_of,
    cost_of,
)
from lcm.sim.plan.timetable import SessionRequest, Timetable, pool_labels, price_of
from lcm.sim.plan.variant import Variant
from lcm.sim.plan.world import PlanWorld


class RefusalReason(NamedTuple):
    """Why a session was not promised: a code, and a message."""

    why: str
    message: str


def measure_trial(
    timetable: Timetable, variant: Variant, world: PlanWorld, turned: Mapping[str, RefusalReason], *, since: datetime
) -> Trial:
    """Return the result of a timetable since a moment."""
    promised = [one for one in timetable.sessions if one.name not in turned and one.start is not None]
    soon = [one for one in timetable.sessions if one.name not in turned and one.start is None]
    sessions, now = world.witness.sessions, world.clock.now()
    waits = [(one, _first_run_at(sessions.get(one.name))) for one in soon if one.cancelled_at is None]
    runs = tuple(_machine_runs(timetable, world, since, now))
    stayed = [one for one in promised if one.cancelled_at is None]
    due = [one for one in promised if one.start and (one.cancelled_at is None or one.cancelled_at > one.start)]
    minutes = sum(one.minutes for one in promised)
    return Trial(
        variant=variant,
        begins=since,
        ends=now,
        zone=timetable.zone,
        wanted=len(timetable.sessions),
        promised=len(promised),
        session_hours=Decimal(minutes) / 60,
        refused=tuple(_group_refusals(timetable.sessions, turned)),
        late=tuple(found for one in due if (found := _late_start(one, sessions.get(one.name)))),
        interrupted=sum(_count_starts(sessions.get(one.name)) > 1 for one in promised),
        waits_seconds=tuple((at - one.booked_at).total_seconds() for one, at in waits if at and one.booked_at),
        unserved=sum(at is None for _, at in waits),
        runs=runs,
        uses=tuple(_seat_uses(timetable, sessions)),
        capacity=_capacity_by_pool(timetable),
        spent=tuple(cost_by_day(runs, timetable.zone)),
        bound=lower_bound(timetable, stayed),
    )


def lower_bound(timetable: Timetable, sessions: Sequence[SessionRequest]) -> Bound:
    """Return what no schedule of these sessions can beat, on the machines of the timetable."""
    slots: dict[str, list[Claim]] = defaultdict(list)
    for one in sessions:
        definition = timetable.definition(one.definition)
        need = compute_amount(definition.spec) if definition else None
        if one.start is not None and one.end is not None and need is not None:
            slots[one.track].append(Claim(start=one.start, end=one.end, need=need))
    return bound_of(slots, _machines_by_track(timetable))


def _machines_by_track(timetable: Timetable) -> Mapping[str, Sequence[PricedMachine]]:
    found: dict[str, list[PricedMachine]] = defaultdict(list)
    for pool in timetable.pools:
        template = timetable.template_of(pool)
        capacity = declared_capacity(template.spec.worker) if template else None
        if template is not None and capacity is not None:
            aws = template.spec.worker.aws
            others = [timetable.hourly(aws.region, one) for one in aws.instance_type_alternatives]
            prices = [price_of(timetable, template), *others]
            found[pool.spec.lab_track] += [PricedMachine(capacity, price) for price in prices]
    return found


def _capacity_by_pool(timetable: Timetable) -> Mapping[str, Amount]:
    templates = {pool.metadata.name: timetable.template_of(pool) for pool in timetable.pools}
    found = {name: declared_capacity(one.spec.worker) for name, one in templates.items() if one}
    return {name: one for name, one in found.items() if one is not None}


def _group_refusals(
    sessions: Sequence[SessionRequest], turned: Mapping[str, RefusalReason]
) -> Iterator[RefusedSessions]:
    """Yield the refused sessions, grouped by lab, slot and reason."""
    groups: dict[tuple[str, str, datetime | None, str], list[str]] = defaultdict(list)
    for one in sessions:
        if no := turned.get(one.name):
            groups[one.definition, one.track, one.start, no.why].append(no.message)
    for (definition, track, start, why), messages in groups.items():
        yield RefusedSessions(
            definition=definition, track=track, start=start, count=len(messages), why=why, message=messages[0]
        )


def _late_start(wanted: SessionRequest, session: LabletSession | None) -> LateStart | None:
    assert wanted.start is not None, "who has no slot is not late"
    ran = _first_run_at(session)
    if ran is not None and ran <= wanted.start:
        return None
    return LateStart(
        name=wanted.name,
        definition=wanted.definition,
        track=wanted.track,
        start=wanted.start,
        late_seconds=(ran - wanted.start).total_seconds() if ran else None,
        why=_late_reason(session) if session else "the session does not exist",
    )


def _late_reason(session: LabletSession) -> str:
    status = session.status
    risk = find_condition(status.conditions, SessionCondition.AT_RISK)
    if status.last_error:
        return status.last_error
    if risk is not None and risk.message:
        return risk.message
    if status.retry_count:
        return f"it was tried {status.retry_count + 1} times"
    return status.outcome_reason or status.history[-1].reason


def _first_run_at(session: LabletSession | None) -> datetime | None:
    if session is None:
        return None
    return next((line.at for line in session.status.history if line.phase == SessionPhase.RUNNING), None)


def _ended_at(status: LabletSessionStatus) -> datetime:
    """Return when nothing of a session was on its seat any more."""
    last = status.history[-1]
    return last.at if status.phase in SESSION_MACHINE.final else datetime.max.replace(tzinfo=UTC)


def _count_starts(session: LabletSession | None) -> int:
    return sum(line.phase == SessionPhase.RUNNING for line in session.status.history) if session else 0


def _machine_runs(timetable: Timetable, world: PlanWorld, begins: datetime, until: datetime) -> Iterator[MachineRun]:
    """Yield what the cloud bills: every span in which a machine ran."""
    labels, templates = pool_labels(timetable.pools), [(one, timetable.template_of(one)) for one in timetable.pools]
    prices: dict[tuple[str, str], Decimal | None] = {
        (pool.metadata.name, one.spec.worker.aws.instance_type): price_of(timetable, one)
        for pool, one in templates
        if one is not None
    }
    for machine in world.stage.cloud.account.machines.values():
        host = world.witness.hosts.get(machine.instance_id)
        if host is None:
            continue  # not of our fleet, so not on our bill
        other = timetable.hourly(machine.region, machine.instance_type)
        price = prices.get((host.pool, machine.instance_type), other)
        for span in machine.spans(until):
            since = max(span.since, begins)
            if span.state is InstanceState.RUNNING and since < span.until:
                yield MachineRun(
                    track=labels.get(host.pool, host.pool),
                    instance_type=machine.instance_type,
                    machine=machine.instance_id,
                    since=since,
                    until=span.until,
                    hourly_usd=price,
                )


def _seat_uses(timetable: Timetable, seen: Mapping[str, LabletSession]) -> Iterator[SessionSeatUse]:
    labels = pool_labels(timetable.pools)
    for one in timetable.sessions:
        session = seen.get(one.name)
        status = session.status if session else None
        if status is not None and status.seat is not None and status.claim is not None:
            yield SessionSeatUse(
                name=one.name,
                definition=one.definition,
                track=labels.get(status.seat.pool, one.track),
                pool=status.seat.pool,
                seat=status.seat.number,
                since=status.claim.start,
                until=max(min(status.claim.end, _ended_at(status)), status.claim.start),
                need=status.claim.need,
            )


def cost_by_day(runs: Sequence[MachineRun], zone: str) -> Iterator[DayCost]:
    """Yield what machines cost, by track and by day of the timetable's zone."""
    hours: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    usd: dict[tuple[str, str], Decimal | None] = defaultdict(Decimal)
    for run in runs:
        for part in _split_by_day(run, ZoneInfo(zone)):
            key = f"{part.since.astimezone(ZoneInfo(zone)):%Y-%m-%d}", part.track
            cost, before = cost_of(part), usd[key]
            hours[key] += part.hours
            usd[key] = None if cost is None or before is None else before + cost
    for day, track in sorted(hours):
        yield DayCost(day=day, track=track, hours=hours[day, track], usd=usd[day, track])


def _split_by_day(run: MachineRun, zone: ZoneInfo) -> Iterator[MachineRun]:
    """Cut a run at midnights. The parts are whole seconds, so that they add up to the run."""
    since = run.since.replace(microsecond=0)
    until = since + timedelta(seconds=(run.until - run.since) // timedelta(seconds=1))
    while since < until:
        next_day = since.astimezone(zone).date() + timedelta(days=1)
        cut = min(until, datetime.combine(next_day, time(), zone).astimezone(UTC))
        yield MachineRun(
            track=run.track,
            instance_type=run.instance_type,
            machine=run.machine,
            since=since,
            until=cut,
            hourly_usd=run.hourly_usd,
        )
        since = cut
