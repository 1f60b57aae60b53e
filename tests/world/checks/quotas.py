"""Checks that no owner books more than the limits allow, and that who has much does not go before who has nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from lcm.controllers.scheduler.queue_plan import FAIR_STEP
from lcm.model.access.identity import Role
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap
from lcm.model.kinds.settings import QuotaRule, QuotaSettings, SystemSettings
from lcm.model.money.prices import SHIPPED_PRICES, declared_capacity
from lcm.sim.world.world import Violation
from world.checks.places import place_wishes
from world.checks.violation import violation
from world.observed import Commit, ObservedChange, ObservedState

GREEDY: Final = "an owner above their limits, or before others whose turn it was"
TURN_MARGIN: Final = timedelta(minutes=10)
"""Waiting this much longer is no reason to be first: a plan takes a while, and so does a change of leaders."""
PASSED_AGAIN: Final = timedelta(minutes=5)
"""Of those whose turn comes at one moment, one may be refused and asked again: after this time it is passed over."""


def owner_is_within_limits(seen: ObservedState, commit: Commit) -> Sequence[Violation]:
    """Check a commit by which somebody books sessions: of all that there is, nothing is above a limit.

    Reservations and what has ended are left out, so somebody may have less than this allows. The decision was made
    between the moment at which the session was admitted and that of the commit; whoever is above a limit is so at both.
    """
    if commit.audit is None or commit.audit.role is Role.SERVICE:
        return ()
    role = commit.audit.role
    new = [turn.after for turn in commit.turns if turn.before is None and isinstance(turn.after, LabletSession)]
    return [
        violation(GREEDY, f"{one.spec.owner} has {excess}", one)
        for one in new
        if (excess := _excess(seen, one, role, commit.at))
        and _excess(seen, one, role, one.metadata.created_at or commit.at)
    ]


def turn_is_fair(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check, when a session gets a worker at once, that nobody waits for the same whose turn it was before.

    The same is the same lab for the same time: where one fits, so does the other.
    """
    before, after = turn.before, turn.after
    if before is None or after is None or before.status.worker_id or not after.status.worker_id or not is_asap(after):
        return ()
    own = _turn_of(seen, before)
    late = [one for one in seen.live_sessions() if _waits_for_the_same(one, after)]
    found = []
    for one in late:
        if _turn_of(seen, one) + TURN_MARGIN < own and turn.at - _created(one) > TURN_MARGIN:
            first = seen.passed_over.setdefault(one.metadata.uid, turn.at)
            if turn.at - first > PASSED_AGAIN:
                found.append(
                    violation(GREEDY, f"{one.metadata.name} waits, and {after.metadata.name} goes", one, after)
                )
    return found


def _excess(seen: ObservedState, new: LabletSession, role: Role, now: datetime) -> str:
    """Return in words what there is too much of with a new session; empty if nothing."""
    for limit, most, counted in _limits_of(seen, new, role):
        if found := _EXCESSES[limit](seen, counted, new, most, now):
            return f"{found}, of at most {most}"
    return ""


def _limits_of(
    seen: ObservedState, new: LabletSession, role: Role
) -> Iterator[tuple[str, int, Sequence[LabletSession]]]:
    """Yield every limit that bounds a new session, and the sessions that it counts.

    Of an owner's limits one rule holds, the most specific one; of those of everybody together each does.
    """
    settings = seen.objects.get("settings/default/system")
    quotas = settings.spec.quotas if isinstance(settings, SystemSettings) else QuotaSettings()
    live, owner = [one for one in seen.live_sessions() if not one.spec.prebuilt], new.spec.owner
    for limit in _EXCESSES:
        rules = [one for one in quotas.rules if getattr(one, limit) is not None]
        if role is Role.USER:
            won = _winner(rules, new, role)
            most = getattr(won, limit) if won is not None else _default(seen, quotas, limit)
            yield limit, most, [one for one in live if one.spec.owner == owner and _winner(rules, one, role) is won]
        for rule in rules:
            if rule.owner is rule.role is None and _is_about(rule, new):
                yield limit, getattr(rule, limit), [one for one in live if _is_about(rule, one)]


def _default(seen: ObservedState, quotas: QuotaSettings, limit: str) -> int:
    named = {"sessions": "live", "horizon_days": "horizon"}.get(limit, limit)
    own = quotas.horizon_days if limit == "horizon_days" else getattr(quotas, f"max_{named}")
    usual = getattr(seen.limits, named)
    return int(own if own is not None else usual.days if isinstance(usual, timedelta) else usual)


def _winner(rules: Sequence[QuotaRule], session: LabletSession, role: Role) -> QuotaRule | None:
    mine = [
        one
        for one in rules
        if (one.owner, one.role) != (None, None)
        and one.owner in (None, session.spec.owner)
        and one.role in (None, role)
        and _is_about(one, session)
    ]
    named = ("owner", "role", "track", "namespace")
    return max(mine, key=lambda rule: [getattr(rule, name) is not None for name in named], default=None)


def _is_about(rule: QuotaRule, session: LabletSession) -> bool:
    return rule.namespace in (None, session.metadata.namespace) and rule.track in (None, session.spec.lab_track)


_Sessions = Sequence[LabletSession]


def _too_far(_: ObservedState, __: _Sessions, new: LabletSession, most: int, now: datetime) -> str:
    start, _end = _span(new, now)
    return f"booked for {start}" if max(start, new.spec.give_up_at or start) > now + timedelta(days=most) else ""


def _too_many_waiting(_: ObservedState, own: _Sessions, new: LabletSession, most: int, _now: datetime) -> str:
    waiting = [one for one in own if is_asap(one) and one.status.phase is SessionPhase.PENDING]
    return f"{len(waiting)} waiting" if is_asap(new) and len(waiting) > most else ""


def _too_many_at_once(weigh: Callable[[LabletSession], int], noun: str) -> "_Excess":
    def find(_: ObservedState, own: _Sessions, new: LabletSession, most: int, now: datetime) -> str:
        start, end = _span(new, now)
        spans = [(*_span(one, now), weigh(one)) for one in own]
        moments = [start, *(first for first, _, _ in spans if start <= first < end)]
        found = max(sum(weight for first, last, weight in spans if first <= at < last) for at in moments)
        return f"{found} {noun} at once" if weigh(new) and found > most else ""

    return find


def _too_many_ahead(weigh: Callable[[datetime, datetime], float], noun: str) -> "_Excess":
    def find(_: ObservedState, own: _Sessions, new: LabletSession, most: int, now: datetime) -> str:
        ahead = sum(weigh(first, last) for first, last in (_span(one, now) for one in own) if first > now)
        return f"{ahead} {noun} ahead" if _span(new, now)[0] > now and ahead > most + _ROUNDING else ""

    return find


def _too_much_of_a_month(weigh: Callable[[ObservedState, LabletSession], float], noun: str) -> "_Excess":
    """Return the check of a month, by what sessions weigh an hour."""

    def find(seen: ObservedState, own: _Sessions, new: LabletSession, most: int, now: datetime) -> str:
        month = _span(new, now)[0].astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (month + timedelta(days=32)).replace(day=1)
        spans = [(*_span(one, now), weigh(seen, one)) for one in own]
        found = sum(weight * _hours(max(first, month), min(last, end)) for first, last, weight in spans if last > first)
        return f"{found:.2f} {noun} in a month" if found > most + _ROUNDING else ""

    return find


def _usd_hourly(seen: ObservedState, session: LabletSession) -> float:
    """Return what an hour of a slot costs, with its share of start and clean-up; 0 if it has no place yet."""
    claim, seat = session.status.claim, session.status.seat
    known = seen.pool(seat.pool, session.metadata.namespace) if seat is not None else None
    if claim is None or known is None:
        return 0.0
    worker = known[1].spec.worker
    machine, room = SHIPPED_PRICES.hourly(worker.aws.region, worker.aws.instance_type), declared_capacity(worker)
    if machine is None or room is None:
        return 0.0
    need = claim.need
    share = max(need.cpu_millis / room.cpu_millis, need.memory_mb / room.memory_mb, need.labs / room.labs)
    start, end = _span(session, claim.start)
    return float(machine) * min(1.0, share) * _hours(claim.start, claim.end) / (_hours(start, end) or 1)


def _hours(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start) / timedelta(hours=1))


_ROUNDING: Final = 0.01
_Excess = Callable[[ObservedState, _Sessions, LabletSession, int, datetime], str]
_EXCESSES: Final[Mapping[str, _Excess]] = {
    "horizon_days": _too_far,
    "pending": _too_many_waiting,
    "sessions": _too_many_at_once(lambda _: 1, "sessions"),
    "nodes": _too_many_at_once(lambda one: one.status.claim.need.nodes if one.status.claim else 0, "nodes"),
    "ahead": _too_many_ahead(lambda _start, _end: 1, "sessions"),
    "hours_ahead": _too_many_ahead(_hours, "hours"),
    "hours_per_month": _too_much_of_a_month(lambda _seen, _one: 1, "hours"),
    "usd_per_month": _too_much_of_a_month(_usd_hourly, "USD"),
}
"""What says by how much sessions are above a limit, by the limit's name; empty if they are not."""


def _span(session: LabletSession, now: datetime) -> tuple[datetime, datetime]:
    start, end = session.spec.timeslot_start or now, session.status.ends_at or session.spec.timeslot_end
    return start, end or now + timedelta(minutes=session.spec.duration_minutes or 0)


def _waits_for_the_same(one: LabletSession, placed: LabletSession) -> bool:
    return (
        is_asap(one)
        and one.status.phase is SessionPhase.PENDING
        and one.status.worker_id is None
        and not one.status.retry_count
        and one.spec.owner != placed.spec.owner
        and one.spec.definition == placed.spec.definition
        and one.spec.duration_minutes == placed.spec.duration_minutes
        and place_wishes(one) == place_wishes(placed)
        and one.spec.priority >= placed.spec.priority
    )


def _turn_of(seen: ObservedState, session: LabletSession) -> datetime:
    """Return the moment by which a session's turn is: the later, the more its owner has and waits for before it."""
    others = [one for one in seen.live_sessions() if one.spec.owner == session.spec.owner]
    served = sum(one.status.worker_id is not None and one.metadata.uid != session.metadata.uid for one in others)
    waiting = [one for one in others if is_asap(one) and one.status.phase is SessionPhase.PENDING]
    ahead = sum(_created(one) < _created(session) for one in waiting)
    return _created(session) + (served + ahead) * FAIR_STEP


def _created(session: LabletSession) -> datetime:
    assert session.metadata.created_at is not None, "it was admitted"
    return session.metadata.created_at
