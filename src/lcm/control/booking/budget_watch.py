"""The monthly budgets of pools and tracks: lists them, warns when most of one is spent or promised, and when all is.

By the same forecast as bookings are refused by. `compose` runs it in every process that serves the plane: several raise
the same alerts once. The alerts of pools are about the pool, those of tracks about the settings, which hold their
budgets.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import structlog

from lcm.control.booking.calendar import Calendar, PoolRef, Spending
from lcm.control.booking.guards import pool_guard_key, read_guards
from lcm.control.booking.promise import Promises, spending_of
from lcm.control.objects.deletion import PLANE_CALLER
from lcm.control.objects.writer import Writer
from lcm.control.plane.bodies import BudgetLine
from lcm.control.plane.protocol import Ref, ref_of
from lcm.control.telemetry.alerts import clear_alert, list_alerts, raise_alert
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Later
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.settings import SystemSettings
from lcm.model.money.billing import MICROS_PER_USD, to_usd
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.placement.limits import forecast_cost, forecast_track_cost, months_between
from lcm.placement.places import PoolSnapshot
from lcm.placement.timeline import micros
from lcm.store.base import Store
from lcm.system.tasks import TimeSlice

INTERVAL: Final = timedelta(minutes=5)
NEARLY: Final = Decimal("0.8")
"""The share of a budget at which people are warned."""
NEARLY_SPENT: Final = "BudgetNearlySpent"
SPENT: Final = "BudgetSpent"
_log: Final = structlog.get_logger()
Finding = tuple[Ref[Any], AlertFinding]


class BudgetUse(NamedTuple):
    """A budget, what is spent of it this month, and what the month will cost with everything that is promised."""

    about: Ref[Any]
    name: str
    limit_usd: Decimal
    spent_usd: Decimal
    month_usd: Decimal


def find_alerts(uses: Iterable[BudgetUse]) -> Iterator[Finding]:
    """Yield the alerts that budgets call for; those about one object are one alert that names them all."""
    found: dict[tuple[Ref[Any], bool], list[BudgetUse]] = {}
    for one in uses:
        if one.month_usd >= one.limit_usd * NEARLY:
            found.setdefault((one.about, one.month_usd >= one.limit_usd), []).append(one)
    for (about, over), several in found.items():
        used = "; ".join(map(_describe, several))
        then = "what would cost more is refused" if over else "bookings are refused once it is used up"
        message = shorten_text(f"{used}: {then}; raise the budget, or cancel bookings")
        severity = Severity.CRITICAL if over else Severity.WARNING
        alert, reason = (SPENT, "ForecastAboveBudget") if over else (NEARLY_SPENT, "ForecastNearBudget")
        yield about, AlertFinding(alert=alert, severity=severity, reason=reason, message=message)


def _describe(use: BudgetUse) -> str:
    parts = f"{use.spent_usd:.2f} USD spent and {max(Decimal(0), use.month_usd - use.spent_usd):.2f} promised"
    return f"{use.name} will cost {use.month_usd:.2f} of the {use.limit_usd:.2f} USD of this month's budget ({parts})"


class BudgetWatch:
    """Raises and clears the alerts of budgets."""

    def __init__(self, store: Store, promises: Promises, *, clock: Clock) -> None:
        self._store = store
        self._promises = promises
        self._clock = clock
        self._writer = Writer(store, clock, PLANE_CALLER)

    async def run(self) -> None:
        """Look now and then until cancelled."""
        while True:
            try:
                await self.look()
            except (Later, Conflict) as error:
                _log.warning("budgets not looked at", error=str(error))
            await asyncio.sleep(INTERVAL.total_seconds())

    async def look(self) -> None:
        """Raise what budgets call for now, and clear what they no longer do. May be repeated."""
        await self._promises.calendar.ready()
        uses = await read_uses(self._promises, self._clock.now())
        wanted = {(about, one.alert): one for about, one in find_alerts(uses)}
        for (about, _), finding in wanted.items():
            with suppress(Gone):
                await raise_alert(self._writer, about, finding)
        for one in await list_alerts(self._store):
            about = Ref(KINDS[one.kind].struct, one.name, one.namespace)
            if one.alert in {NEARLY_SPENT, SPENT} and (about, one.alert) not in wanted:
                with suppress(Gone):
                    await clear_alert(self._writer, about, one.alert)


async def list_budgets(store: Store, promises: Promises, now: datetime) -> Sequence[BudgetLine]:
    """Return all monthly budgets of pools and tracks, pools first."""
    calendar = promises.calendar
    await calendar.ready()
    guards = await read_guards(store, *(pool_guard_key(ref_of(row.pool)) for row in calendar.pools()))
    await calendar.wait_for_revision(guards.revision)
    lines = [_line_of(one) for one in await read_uses(promises, now)]
    return sorted(lines, key=lambda one: (one.kind, one.namespace, one.name))


def _line_of(use: BudgetUse) -> BudgetLine:
    kind, _, whole = use.name.partition(" ")
    namespace, _, name = whole.partition("/")
    return BudgetLine(
        kind="pool" if kind == "pool" else "track",
        namespace=namespace,
        name=name,
        limit_usd=use.limit_usd,
        spent_usd=use.spent_usd,
        month_usd=to_usd(round(use.month_usd * MICROS_PER_USD)),
        warn_usd=use.limit_usd * NEARLY,
    )


async def read_uses(promises: Promises, now: datetime) -> Sequence[BudgetUse]:
    """Return how much of each monthly budget is spent and promised; those of which no price is known are left out."""
    calendar = promises.calendar
    rows = [row for row in calendar.pools() if _has_budget(calendar, row)]
    if not rows:
        return ()
    bill = await promises.month_spending.read(now)
    settings, time_slice, uses = next(iter(calendar.all(SystemSettings)), None), TimeSlice(), list[BudgetUse]()
    about = ref_of(settings) if settings else None
    for row in rows:
        uses += budget_uses(calendar, row, spending_of(row.pool, bill, now), now, about)
        await time_slice.yield_if_over()
    return list({(one.about, one.name): one for one in uses}.values())


def _has_budget(calendar: Calendar, row: PoolSnapshot) -> bool:
    return row.pool.spec.budget.monthly_usd is not None or calendar.track_budget(row) is not None


def budget_uses(
    calendar: Calendar, row: PoolSnapshot, spent: Spending, now: datetime, settings: Ref[SystemSettings] | None
) -> Iterator[BudgetUse]:
    """Yield how much of a pool's monthly budget, and of its track's, is used."""
    seats, rules = calendar.seats(row), calendar.rules(row, now, spent=spent)
    if seats is None or rules.price is None:
        return
    (month,) = months_between(micros(now), micros(now) + 1)
    about: PoolRef = Ref(LabWorkerPool, row.pool.metadata.name, row.pool.metadata.namespace)
    if rules.budget.monthly_usd is not None:
        cost = forecast_cost(seats, month, rules)
        yield BudgetUse(about, f"pool {row.name}", rules.budget.monthly_usd, spent.pool, cost)
    if rules.track is not None and settings is not None:
        cost = forecast_track_cost(seats, month, rules, rules.track)
        name = f"track {row.pool.metadata.namespace}/{rules.track.name}"
        yield BudgetUse(settings, name, rules.track.monthly_usd, spent.track, cost)
