"""What a pool must not go beyond when it promises: its hours, its licences, its budgets. Checked at booking only.

Each limit looks at the time that seats' workers would have to run in addition and gives the reason in a sentence, or
None. Whoever books asks through `seating`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from lcm.model.kinds.pool import AllowedHours, Budget, ScalingPolicy
from lcm.placement.seats import END, Seats, Span, busiest, length
from lcm.placement.timeline import BEGINNING, Timeline, micros, moment_of

_QUARTER: Final = 15 * 60 * 1_000_000
_A_DAY: Final = 96
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def closed_at(hours: AllowedHours, span: Span) -> int | None:
    """Find the first moment of a span at which no machine may run."""
    if _always(hours):
        return None
    first, last = span.start // _QUARTER, -(-span.end // _QUARTER)
    for day in range(first // _A_DAY, -(-last // _A_DAY)):
        closed = ~_open(hours, day) & _cut(day, first, last)
        if closed:
            return max(span.start, (day * _A_DAY + _lowest(closed)) * _QUARTER)
    return None


@lru_cache(maxsize=64)
def open_time(hours: AllowedHours, span: Span) -> int:
    """Add up the microseconds of a span in which machines may run."""
    if _always(hours):
        return max(0, span.end - span.start)
    first, last = span.start // _QUARTER, -(-span.end // _QUARTER)
    days = range(first // _A_DAY, -(-last // _A_DAY))
    whole = sum((_open(hours, day) & _cut(day, first, last)).bit_count() for day in days) * _QUARTER
    # The first and the last quarter may be in the span only in part.
    begun = (span.start - first * _QUARTER) * _is_open(hours, first)
    return whole - begun - (last * _QUARTER - span.end) * _is_open(hours, last - 1)


def _cut(day: int, first: int, last: int) -> int:
    """Give the quarters of a day, as a mask, that are among those from a first one to before a last one."""
    begin = min(max(first - day * _A_DAY, 0), _A_DAY)
    end = min(max(last - day * _A_DAY, begin), _A_DAY)
    return (1 << end) - (1 << begin)


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _is_open(hours: AllowedHours, quarter: int) -> int:
    return _open(hours, quarter // _A_DAY) >> quarter % _A_DAY & 1


@lru_cache(maxsize=64)
def _always(hours: AllowedHours) -> bool:
    return all(_allowed(hours, hour) for hour in range(24))


@lru_cache(maxsize=4096)
def _open(hours: AllowedHours, day: int) -> int:
    """Give the open quarters of a day of UTC, counted from 1970, as a mask."""
    zone = ZoneInfo(hours.time_zone)
    begin = _EPOCH + timedelta(days=day)
    local = ((begin + timedelta(minutes=15 * number)).astimezone(zone).hour for number in range(_A_DAY))
    return sum(1 << number for number, hour in enumerate(local) if _allowed(hours, hour))


def _allowed(hours: AllowedHours, hour: int) -> bool:
    start, end = hours.start_hour, hours.end_hour
    if start < end:
        return start <= hour < end
    return hour >= start or hour < end


OPENING: Final = frozenset({ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID})
"""Policies that open seats for bookings; the others promise only what has a worker."""
_HOUR: Final = 3_600_000_000
_CENT: Final = Decimal("0.01")
_NO_BUDGET: Final = Budget()


@dataclass(frozen=True, slots=True)
class Rules:
    """How a pool promises at one moment.

    `usable` says of each seat that has a worker from when that can be used. `licences` are those that all of the
    pool's workers may have at once, None for no limit, and `sharing` counts the workers that other pools will have on
    them. `price` is what one worker costs an hour, None if it is not known; `spent` is what this month has cost so far.
    `unsuited` are the seats that are not for who asks.
    """

    now: datetime
    policy: ScalingPolicy = ScalingPolicy.SCHEDULED
    usable: Mapping[int, datetime] = field(default_factory=dict)
    licences: int | None = None
    sharing: tuple[Timeline, ...] = ()
    hours: AllowedHours | None = None
    budget: Budget = _NO_BUDGET
    price: Decimal | None = None
    spent: Decimal = Decimal(0)
    unsuited: frozenset[int] = frozenset()

    @property
    def limited(self) -> bool:
        """Whether there is any limit at all."""
        return bool(
            self.hours
            or self.licences is not None
            or self.budget.hourly_usd is not None
            or self.budget.monthly_usd is not None
        )


Limit = Callable[[Seats, Sequence[Span], Rules], str | None]


def barred(seats: Seats, pieces: Sequence[Span], rules: Rules) -> tuple[str, str] | None:
    """Give the first limit that forbids workers to run at these times in addition, and its reason."""
    if not rules.limited:
        return None
    ahead = _within(pieces, Span(micros(rules.now), END))
    answers = ((name, limit(seats, ahead, rules)) for name, limit in LIMITS.items())
    return next(((name, reason) for name, reason in answers if reason is not None), None)


def no_more(seats: Seats, span: Span, rules: Rules) -> list[Span]:
    """Give the times that meet a span in which no worker may run in addition, for however short a time."""
    if _full(seats, rules):
        return [Span(BEGINNING, END)]
    most_usd = rules.budget.monthly_usd
    if most_usd is None:
        return []
    return [month for month in _months(span.start, span.end) if forecast(seats, month, rules) >= most_usd]


def _full(seats: Seats, rules: Rules) -> bool:
    """Tell whether the workers that always run, or their price, leave nothing to any other at any time."""
    hourly, workers = rules.budget.hourly_usd, seats.standing + 1
    dear = hourly is not None and rules.price is not None and workers * rules.price > hourly
    unlicensed = rules.licences is not None and workers > rules.licences
    return dear or unlicensed or _price(seats, (), rules) is not None


def outside_hours(spans: Sequence[Span], rules: Rules) -> str | None:
    """Say when machines would have to run in hours in which none may."""
    hours = rules.hours
    if hours is None:
        return None
    closed = next((moment for span in spans if (moment := closed_at(hours, span)) is not None), None)
    if closed is None:
        return None
    told = f"{hours.start_hour}:00 to {hours.end_hour}:00 {hours.time_zone}"
    return f"its machine would have to run at {_clock(closed)}, and the pool's hours are {told}"


def _hours(_seats: Seats, pieces: Sequence[Span], rules: Rules) -> str | None:
    return outside_hours(pieces, rules)


def _licences(seats: Seats, pieces: Sequence[Span], rules: Rules) -> str | None:
    if rules.licences is None:
        return None
    counts = (seats.opening, *rules.sharing)
    for piece in pieces:
        most, moment = busiest(counts, piece)
        if seats.standing + most >= rules.licences:
            return f"all {rules.licences} licences are in use at {_clock(moment)}"
    return None


def _price(_seats: Seats, _pieces: Sequence[Span], rules: Rules) -> str | None:
    known = rules.price is not None or (rules.budget.hourly_usd is None and rules.budget.monthly_usd is None)
    return None if known else "the pool has a budget, and it is not known what its machines cost"


def _hourly(seats: Seats, pieces: Sequence[Span], rules: Rules) -> str | None:
    most_usd = rules.budget.hourly_usd
    if most_usd is None or rules.price is None:
        return None
    for piece in pieces:
        most, moment = busiest((seats.opening,), piece)
        workers = seats.standing + most + 1
        if workers * rules.price > most_usd:
            cost = f"{workers} workers at {rules.price} USD an hour"
            return f"it would take {cost} at {_clock(moment)}, more than the {most_usd} USD an hour of the budget"
    return None


def _monthly(seats: Seats, pieces: Sequence[Span], rules: Rules) -> str | None:
    most_usd = rules.budget.monthly_usd
    if most_usd is None or rules.price is None or not pieces:
        return None
    for month in _months(pieces[0].start, pieces[-1].end):
        more = length(_within(pieces, month))
        cost = forecast(seats, month, rules) + rules.price * more / _HOUR
        if more and cost > most_usd:
            told = f"{moment_of(month.start):%B %Y} would cost {cost.quantize(_CENT)} USD"
            return f"{told}, more than the {most_usd} USD of the budget"
    return None


LIMITS: Final[Mapping[str, Limit]] = {
    "hours": _hours,
    "licences": _licences,
    "price_unknown": _price,
    "hourly_budget": _hourly,
    "monthly_budget": _monthly,
}


def forecast(seats: Seats, month: Span, rules: Rules) -> Decimal:
    """Say what a month will cost: what it has cost, and what the workers will run for that are promised or stand."""
    now = micros(rules.now)
    rest = Span(max(month.start, now), month.end)
    if rest.start >= rest.end or rules.price is None:
        return rules.spent
    whole = rest.end - rest.start if rules.hours is None else open_time(rules.hours, rest)
    spent = rules.spent if month.start <= now else Decimal(0)
    return spent + rules.price * (seats.running(rest) + seats.standing * whole) / _HOUR


def _within(spans: Sequence[Span], limit: Span) -> list[Span]:
    cut = (Span(max(span.start, limit.start), min(span.end, limit.end)) for span in spans)
    return [span for span in cut if span.start < span.end]


def _months(start: int, end: int) -> list[Span]:
    first = moment_of(start)
    begins = [datetime(first.year, first.month, 1, tzinfo=UTC)]
    while micros(begins[-1]) < end:
        last = begins[-1]
        begins.append(datetime(last.year + last.month // 12, last.month % 12 + 1, 1, tzinfo=UTC))
    return [Span(micros(one), micros(next_)) for one, next_ in pairwise(begins)]


def _clock(moment: int) -> str:
    return f"{moment_of(moment):%Y-%m-%d %H:%M}Z"
