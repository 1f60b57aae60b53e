"""Costs by session, class, owner, track, definition, pool, worker or day: pieces of divided bills, added up.

Pure. `control.accounts.ledger` feeds it worker by worker, `control.booking.estimates` adds what is booked.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import Meta

from lcm.model.base.resource import Count, Moment, Part, ShortText
from lcm.model.money.billing import Usd, to_usd
from lcm.model.money.split import BillPiece, Stay

MAX_ROWS_PER_PAGE: Final = 5000


class CostGroup(StrEnum):
    """What costs are grouped by. A class is a reservation."""

    SESSION = "session"
    CLASS = "class"
    OWNER = "owner"
    TRACK = "track"
    DEFINITION = "definition"
    POOL = "pool"
    WORKER = "worker"
    DAY = "day"


FLEET_GROUPS: Final = frozenset({CostGroup.POOL, CostGroup.WORKER})
"""Groups that only those may see who see the fleet."""


class CostRow(Part):
    """What one group cost, and what is booked for it ahead of now.

    `unused_usd` is what nobody used of the machines of this group; sessions, classes, owners and definitions have none.
    `saved_usd` is what packing has saved a pool ever since that is counted, whatever the span.
    """

    name: ShortText
    usd: Usd
    unused_usd: Usd = Decimal(0)
    forecast_usd: Usd = Decimal(0)
    saved_usd: Usd = Decimal(0)


class CostLedger(Part):
    """Costs of a span by groups, a page of them in the order of their names.

    `total_usd` is the bill: the `usd` of the rows of all pages and `unused_usd` add up to it exactly. What is ahead of
    `as_of` is only a forecast. Before `stays_since` it is not known who used the machines, so that all is unused.
    `next` asks for the next page; it is empty on the last.
    """

    by: CostGroup
    since: Moment
    until: Moment
    as_of: Moment
    total_usd: Usd
    unused_usd: Usd
    forecast_usd: Usd
    forecast_unused_usd: Usd
    unpriced_seconds: Count
    stays_since: Moment | None
    rows: Annotated[tuple[CostRow, ...], Meta(max_length=MAX_ROWS_PER_PAGE)]
    next: Annotated[str, Meta(max_length=200)] = ""


class Machine(NamedTuple):
    """What costs may be grouped by of a machine at a moment."""

    pool: str
    worker: str
    track: str
    at: datetime


_Key = Callable[[Stay, Machine, ZoneInfo], str]
_KEYS: Final[Mapping[CostGroup, _Key]] = {
    CostGroup.SESSION: lambda stay, _, __: f"{stay.namespace}/{stay.session}",
    CostGroup.CLASS: lambda stay, _, __: f"{stay.namespace}/{stay.reservation}" if stay.reservation else "",
    CostGroup.OWNER: lambda stay, _, __: stay.owner,
    CostGroup.TRACK: lambda stay, _, __: stay.lab_track,
    CostGroup.DEFINITION: lambda stay, _, __: f"{stay.namespace}/{stay.definition}",
    CostGroup.POOL: lambda _, machine, __: machine.pool,
    CostGroup.WORKER: lambda _, machine, __: machine.worker,
    CostGroup.DAY: lambda _, machine, zone: f"{machine.at.astimezone(zone):%Y-%m-%d}",
}
_MACHINE_KEYS: Final[Mapping[CostGroup, Callable[[Machine, ZoneInfo], str]]] = {
    CostGroup.TRACK: lambda machine, _: machine.track,
    CostGroup.POOL: lambda machine, _: machine.pool,
    CostGroup.WORKER: lambda machine, _: machine.worker,
    CostGroup.DAY: lambda machine, zone: f"{machine.at.astimezone(zone):%Y-%m-%d}",
}


@dataclass(slots=True)
class _Sums:
    """Micro-dollars of one group."""

    used: int = 0
    unused: int = 0
    forecast: int = 0


@dataclass(slots=True)
class LedgerSums:
    """What the pieces of divided bills add up to by groups, and in all; of one owner only, if one is given."""

    by: CostGroup
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    owner: str | None = None
    groups: dict[str, _Sums] = field(default_factory=dict)
    order: Sequence[str] = ()
    """The names of the groups in their order, once all has been added."""
    used: int = 0
    forecast: int = 0
    unused: int = 0
    machines_ahead: int = 0
    unpriced_seconds: int = 0

    def add_piece(self, piece: BillPiece) -> None:
        """Add what sessions pay of a piece of a bill, and what nobody used."""
        paid, key = piece.paid, _KEYS[self.by]
        pool = f"{paid.namespace}/{paid.pool}" if paid.pool else ""
        machine = Machine(pool, f"{paid.namespace}/{paid.worker_name}", paid.lab_track, piece.since)
        for stay, micros in piece.parts:
            if self.owner in (None, stay.owner):
                self._group(key(stay, machine, self.zone)).used += micros
                self.used += micros
        own = _MACHINE_KEYS.get(self.by)
        if self.owner is None and piece.unused:
            self.unused += piece.unused
            if own is not None:
                self._group(own(machine, self.zone)).unused += piece.unused

    def add_booked(self, stay: Stay, machine: Machine, micros: int) -> None:
        """Add what a booked session will cost."""
        if self.owner in (None, stay.owner):
            self._group(_KEYS[self.by](stay, machine, self.zone)).forecast += micros
            self.forecast += micros

    def page(self, after: str | None, limit: int) -> tuple[Sequence[CostRow], str | None]:
        """Return the rows behind a name, and the name behind which the next ones are; None if there are none.

        The name of a group may be empty: that of sessions of no class.
        """
        first = 0 if after is None else bisect_right(self.order, after)
        shown = self.order[first : first + limit]
        rows = [_row(name, self.groups[name]) for name in shown]
        return rows, shown[-1] if len(self.order) > first + limit else None

    def _group(self, name: str) -> _Sums:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = _Sums()
        return found


def _row(name: str, sums: _Sums) -> CostRow:
    return CostRow(name=name, usd=to_usd(sums.used), unused_usd=to_usd(sums.unused), forecast_usd=to_usd(sums.forecast))


def day_cuts(days: Iterable[tuple[str, datetime, datetime]]) -> Sequence[datetime]:
    """Return the moments at which days begin, for bills that are divided by days."""
    return [start.astimezone(UTC) for _, start, _ in days]
