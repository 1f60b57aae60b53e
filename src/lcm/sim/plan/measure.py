"""What a trial is measured by: the sessions' own stories, and the cloud's own books of its machines."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.resource import condition
from lcm.model.kinds.definition import amount
from lcm.model.kinds.session import SESSION, LabletSession, LabletSessionStatus, SessionCondition, SessionPhase
from lcm.model.money.prices import declared_capacity
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.plan.bound import Bound, Machine, bound_of
from lcm.sim.plan.results import Late, Refusal, Run, Spent, Trial, Use, usd_of
from lcm.sim.plan.timetable import Timetable, Wanted, price_of
from lcm.sim.plan.variant import Variant
from lcm.sim.plan.world import PlannedWorld


class Turned(NamedTuple):
    """Why a session was not promised: in a word, and in words."""

    why: str
    message: str


def measured(
    timetable: Timetable, variant: Variant, world: PlannedWorld, turned: Mapping[str, Turned], *, since: datetime
) -> Trial:
    """Say what came of a timetable since a moment."""
    promised = [one for one in timetable.sessions if one.name not in turned and one.start is not None]
    soon = [one for one in timetable.sessions if one.name not in turned and one.start is None]
    sessions, now = world.onlooker.sessions, world.clock.now()
    waits = [(one, _ran(sessions.get(one.name))) for one in soon if one.cancelled_at is None]
    runs = tuple(_runs(timetable, world, since, now))
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
        refused=tuple(_refused(timetable.sessions, turned)),
        late=tuple(found for one in due if (found := _late(one, sessions.get(one.name)))),
        interrupted=sum(_starts(sessions.get(one.name)) > 1 for one in promised),
        waits_seconds=tuple((at - one.booked_at).total_seconds() for one, at in waits if at and one.booked_at),
        unserved=sum(at is None for _, at in waits),
        runs=runs,
        uses=tuple(_uses(timetable.sessions, sessions)),
        capacity=_capacities(timetable),
        spent=tuple(spent(runs, timetable.zone)),
        bound=lower_bound(timetable, stayed),
    )


def lower_bound(timetable: Timetable, sessions: Sequence[Wanted]) -> Bound:
    """Give what no schedule of these sessions can beat, on the machines of the timetable."""
    slots: dict[str, list[Claim]] = defaultdict(list)
    for one in sessions:
        definition = timetable.definition(one.definition)
        need = amount(definition.spec) if definition else None
        if one.start is not None and one.end is not None and need is not None:
            slots[one.track].append(Claim(start=one.start, end=one.end, need=need))
    return bound_of(slots, _machines(timetable))


def _machines(timetable: Timetable) -> Mapping[str, Sequence[Machine]]:
    found: dict[str, list[Machine]] = defaultdict(list)
    for pool in timetable.pools:
        template = timetable.template_of(pool)
        capacity = declared_capacity(template.spec.worker) if template else None
        if template is not None and capacity is not None:
            aws = template.spec.worker.aws
            others = [timetable.hourly(aws.region, one) for one in aws.instance_type_alternatives]
            prices = [price_of(timetable, template), *others]
            found[pool.spec.lab_track] += [Machine(capacity, price) for price in prices]
    return found


def _capacities(timetable: Timetable) -> Mapping[str, Amount]:
    templates = {pool.metadata.name: timetable.template_of(pool) for pool in timetable.pools}
    found = {name: declared_capacity(one.spec.worker) for name, one in templates.items() if one}
    return {name: one for name, one in found.items() if one is not None}


def _refused(sessions: Sequence[Wanted], turned: Mapping[str, Turned]) -> Iterator[Refusal]:
    """Count those of one lab, slot and reason together."""
    groups: dict[tuple[str, str, datetime | None, str], list[str]] = defaultdict(list)
    for one in sessions:
        if no := turned.get(one.name):
            groups[one.definition, one.track, one.start, no.why].append(no.message)
    for (definition, track, start, why), messages in groups.items():
        yield Refusal(
            definition=definition, track=track, start=start, count=len(messages), why=why, message=messages[0]
        )


def _late(wanted: Wanted, session: LabletSession | None) -> Late | None:
    assert wanted.start is not None, "who has no slot is not late"
    ran = _ran(session)
    if ran is not None and ran <= wanted.start:
        return None
    return Late(
        name=wanted.name,
        definition=wanted.definition,
        track=wanted.track,
        start=wanted.start,
        late_seconds=(ran - wanted.start).total_seconds() if ran else None,
        why=_reason(session) if session else "it is not there",
    )


def _reason(session: LabletSession) -> str:
    status = session.status
    risk = condition(status.conditions, SessionCondition.AT_RISK)
    if status.last_error:
        return status.last_error
    if risk is not None and risk.message:
        return risk.message
    if status.retry_count:
        return f"it was tried {status.retry_count + 1} times"
    return status.outcome_reason or status.history[-1].reason


def _ran(session: LabletSession | None) -> datetime | None:
    if session is None:
        return None
    return next((line.at for line in session.status.history if line.phase == SessionPhase.RUNNING), None)


def _ended(status: LabletSessionStatus) -> datetime:
    """Say when nothing of a session was on its seat any more."""
    last = status.history[-1]
    return last.at if status.phase in SESSION.final else datetime.max.replace(tzinfo=UTC)


def _starts(session: LabletSession | None) -> int:
    return sum(line.phase == SessionPhase.RUNNING for line in session.status.history) if session else 0


def _runs(timetable: Timetable, world: PlannedWorld, begins: datetime, until: datetime) -> Iterator[Run]:
    """Give what the cloud bills: every stretch in which a machine ran."""
    prices: dict[tuple[str, str], Decimal | None] = {
        (one.spec.worker.lab_track, one.spec.worker.aws.instance_type): price_of(timetable, one)
        for one in timetable.templates
    }
    for machine in world.stage.cloud.account.machines.values():
        host = world.onlooker.hosts.get(machine.instance_id)
        if host is None:
            continue  # somebody else's, who pays for it
        other = timetable.hourly(machine.region, machine.instance_type)
        price = prices.get((host.track, machine.instance_type), other)
        for span in machine.spans(until):
            since = max(span.since, begins)
            if span.state is InstanceState.RUNNING and since < span.until:
                yield Run(
                    track=host.track,
                    instance_type=machine.instance_type,
                    machine=machine.instance_id,
                    since=since,
                    until=span.until,
                    hourly_usd=price,
                )


def _uses(sessions: Sequence[Wanted], seen: Mapping[str, LabletSession]) -> Iterator[Use]:
    for one in sessions:
        session = seen.get(one.name)
        status = session.status if session else None
        if status is not None and status.seat is not None and status.claim is not None:
            yield Use(
                name=one.name,
                definition=one.definition,
                track=one.track,
                pool=status.seat.pool,
                seat=status.seat.number,
                since=status.claim.start,
                until=max(min(status.claim.end, _ended(status)), status.claim.start),
                need=status.claim.need,
            )


def spent(runs: Sequence[Run], zone: str) -> Iterator[Spent]:
    """Add up what machines cost by day of the timetable's zone and by track."""
    hours: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    usd: dict[tuple[str, str], Decimal | None] = defaultdict(Decimal)
    for run in runs:
        for part in _by_day(run, ZoneInfo(zone)):
            key = f"{part.since.astimezone(ZoneInfo(zone)):%Y-%m-%d}", part.track
            cost, before = usd_of(part), usd[key]
            hours[key] += part.hours
            usd[key] = None if cost is None or before is None else before + cost
    for day, track in sorted(hours):
        yield Spent(day=day, track=track, hours=hours[day, track], usd=usd[day, track])


def _by_day(run: Run, zone: ZoneInfo) -> Iterator[Run]:
    """Cut a run at midnights; into whole seconds of the clock, so that the parts add up to it."""
    since = run.since.replace(microsecond=0)
    until = since + timedelta(seconds=(run.until - run.since) // timedelta(seconds=1))
    while since < until:
        next_day = since.astimezone(zone).date() + timedelta(days=1)
        cut = min(until, datetime.combine(next_day, time(), zone).astimezone(UTC))
        yield Run(
            track=run.track,
            instance_type=run.instance_type,
            machine=run.machine,
            since=since,
            until=cut,
            hourly_usd=run.hourly_usd,
        )
        since = cut
