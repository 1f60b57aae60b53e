"""The limits of what a pool may promise: its hours, its licences, its budgets. Checked at booking only.

Each limit looks at the times that workers would have to run in addition and returns the reason as a sentence, or None.
Bookings are checked through `lcm.placement.seat_choice`. Hours follow the wall clock of the pool's time zone, so no
daylight-saving change moves them. Zones differ from UTC, and change, by whole quarters of an hour, so that a quarter
is open or closed as a whole.
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
from lcm.placement.seats import Seats, Span, busiest_moment, total_length
from lcm.placement.timeline import BEGINNING, END, Timeline, micros, moment_of

_QUARTER_MICROS: Final = 15 * 60 * 1_000_000
_QUARTERS_PER_DAY: Final = 96
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def first_closed_moment(hours: AllowedHours, span: Span) -> int | None:
    """Return the first moment of a span at which no machine may run; None if there is none."""
    if _is_always_open(hours):
        return None
    first, last = span.start // _QUARTER_MICROS, -(-span.end // _QUARTER_MICROS)
    for day in range(first // _QUARTERS_PER_DAY, -(-last // _QUARTERS_PER_DAY)):
        closed = ~_open_quarters(hours, day) & _quarters_between(day, first, last)
        if closed:
            lowest = (closed & -closed).bit_length() - 1
            return max(span.start, (day * _QUARTERS_PER_DAY + lowest) * _QUARTER_MICROS)
    return None


@lru_cache(maxsize=64)
def open_time(hours: AllowedHours, span: Span) -> int:
    """Return the microseconds of a span in which machines may run."""
    if _is_always_open(hours):
        return max(0, span.end - span.start)
    first, last = span.start // _QUARTER_MICROS, -(-span.end // _QUARTER_MICROS)
    days = range(first // _QUARTERS_PER_DAY, -(-last // _QUARTERS_PER_DAY))
    whole = (
        sum((_open_quarters(hours, day) & _quarters_between(day, first, last)).bit_count() for day in days)
        * _QUARTER_MICROS
    )
    # The span may cover the first and the last quarter only in part.
    begun = (span.start - first * _QUARTER_MICROS) * _is_quarter_open(hours, first)
    return whole - begun - (last * _QUARTER_MICROS - span.end) * _is_quarter_open(hours, last - 1)


def _quarters_between(day: int, first: int, last: int) -> int:
    """Return, as a mask, the quarters of a day between a first one and a last one, which is excluded."""
    begin = min(max(first - day * _QUARTERS_PER_DAY, 0), _QUARTERS_PER_DAY)
    end = min(max(last - day * _QUARTERS_PER_DAY, begin), _QUARTERS_PER_DAY)
    return (1 << end) - (1 << begin)


def _is_quarter_open(hours: AllowedHours, quarter: int) -> int:
    return _open_quarters(hours, quarter // _QUARTERS_PER_DAY) >> quarter % _QUARTERS_PER_DAY & 1


@lru_cache(maxsize=64)
def _is_always_open(hours: AllowedHours) -> bool:
    return all(_is_hour_allowed(hours, hour) for hour in range(24))


@lru_cache(maxsize=4096)
def _open_quarters(hours: AllowedHours, day: int) -> int:
    """Return the open quarters of a UTC day, counted from 1970, as a mask."""
    zone = ZoneInfo(hours.time_zone)
    begin = _EPOCH + timedelta(days=day)
    local = ((begin + timedelta(minutes=15 * number)).astimezone(zone).hour for number in range(_QUARTERS_PER_DAY))
    return sum(1 << number for number, hour in enumerate(local) if _is_hour_allowed(hours, hour))


def _is_hour_allowed(hours: AllowedHours, hour: int) -> bool:
    start, end = hours.start_hour, hours.end_hour
    if start < end:
        return start <= hour < end
    return hour >= start or hour < end


OPENING_POLICIES: Final = frozenset({ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID})
"""Policies that open seats for bookings; under the others only seats with a worker are promised."""
_HOUR_MICROS: Final = 3_600_000_000
_CENT: Final = Decimal("0.01")
_NO_BUDGET: Final = Budget()


@dataclass(frozen=True, slots=True)
class PromiseRules:
    """The rules by which a pool promises seats at one moment.

    `usable` maps each seat that has a worker to when that can be used. `licences` is how many the pool's workers may
    have at once, None for no limit, and `sharing` counts the workers that other pools will have on them. `price` is
    what one worker costs an hour, None if it is not known; `spent` is what this month has cost so far. `unsuited` are
    the seats that do not suit the request.
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
    def has_limits(self) -> bool:
        """Whether there is any limit at all."""
        return bool(
            self.hours
            or self.licences is not None
            or self.budget.hourly_usd is not None
            or self.budget.monthly_usd is not None
        )


Limit = Callable[[Seats, Sequence[Span], PromiseRules], str | None]


def find_violated_limit(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> tuple[str, str] | None:
    """Return the first limit that forbids additional workers at these times, and its reason; None if none does."""
    if not rules.has_limits:
        return None
    ahead = _clip_spans(pieces, Span(micros(rules.now), END))
    answers = ((name, limit(seats, ahead, rules)) for name, limit in LIMITS.items())
    return next(((name, reason) for name, reason in answers if reason is not None), None)


def exhausted_times(seats: Seats, span: Span, rules: PromiseRules) -> list[Span]:
    """Return the times that overlap a span in which no additional worker may run, for however short a time."""
    if _is_exhausted(seats, rules):
        return [Span(BEGINNING, END)]
    most_usd = rules.budget.monthly_usd
    if most_usd is None:
        return []
    return [month for month in _months(span.start, span.end) if forecast_cost(seats, month, rules) >= most_usd]


def _is_exhausted(seats: Seats, rules: PromiseRules) -> bool:
    """Return whether the workers that always run, or their price, leave room for no other at any time."""
    hourly, workers = rules.budget.hourly_usd, seats.standing + 1
    dear = hourly is not None and rules.price is not None and workers * rules.price > hourly
    unlicensed = rules.licences is not None and workers > rules.licences
    return dear or unlicensed or _check_price(seats, (), rules) is not None


def outside_hours(spans: Sequence[Span], rules: PromiseRules) -> str | None:
    """Return a sentence if machines would have to run outside of the pool's hours; None if not."""
    hours = rules.hours
    if hours is None:
        return None
    closed = next((moment for span in spans if (moment := first_closed_moment(hours, span)) is not None), None)
    if closed is None:
        return None
    opening = f"{hours.start_hour}:00 to {hours.end_hour}:00 {hours.time_zone}"
    return f"its machine would have to run at {_format_micros(closed)}, and the pool's hours are {opening}"


def _check_licences(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    if rules.licences is None:
        return None
    counts = (seats.opening, *rules.sharing)
    for piece in pieces:
        most, moment = busiest_moment(counts, piece)
        if seats.standing + most >= rules.licences:
            return f"all {rules.licences} licences are in use at {_format_micros(moment)}"
    return None


def _check_price(_seats: Seats, _pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    known = rules.price is not None or (rules.budget.hourly_usd is None and rules.budget.monthly_usd is None)
    return None if known else "the pool has a budget, and it is not known what its machines cost"


def _check_hourly_budget(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    most_usd = rules.budget.hourly_usd
    if most_usd is None or rules.price is None:
        return None
    for piece in pieces:
        most, moment = busiest_moment((seats.opening,), piece)
        workers = seats.standing + most + 1
        if workers * rules.price > most_usd:
            cost = f"{workers} workers at {rules.price} USD an hour"
            return (
                f"it would take {cost} at {_format_micros(moment)}, more than the {most_usd} USD an hour of the budget"
            )
    return None


def _check_monthly_budget(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    most_usd = rules.budget.monthly_usd
    if most_usd is None or rules.price is None or not pieces:
        return None
    for month in _months(pieces[0].start, pieces[-1].end):
        more = total_length(_clip_spans(pieces, month))
        cost = forecast_cost(seats, month, rules) + rules.price * more / _HOUR_MICROS
        if more and cost > most_usd:
            problem = f"{moment_of(month.start):%B %Y} would cost {cost.quantize(_CENT)} USD"
            return f"{problem}, more than the {most_usd} USD of the budget"
    return None


LIMITS: Final[Mapping[str, Limit]] = {
    "hours": lambda _seats, pieces, rules: outside_hours(pieces, rules),
    "licences": _check_licences,
    "price_unknown": _check_price,
    "hourly_budget": _check_hourly_budget,
    "monthly_budget": _check_monthly_budget,
}


def forecast_cost(seats: Seats, month: Span, rules: PromiseRules) -> Decimal:
    """Return what a month will cost: the costs so far, and those of promised and standing workers until its end."""
    now = micros(rules.now)
    rest = Span(max(month.start, now), month.end)
    if rest.start >= rest.end or rules.price is None:
        return rules.spent
    whole = rest.end - rest.start if rules.hours is None else open_time(rules.hours, rest)
    spent = rules.spent if month.start <= now else Decimal(0)
    return spent + rules.price * (seats.total_runtime(rest) + seats.standing * whole) / _HOUR_MICROS


def _clip_spans(spans: Sequence[Span], limit: Span) -> list[Span]:
    cut = (Span(max(span.start, limit.start), min(span.end, limit.end)) for span in spans)
    return [span for span in cut if span.start < span.end]


def _months(start: int, end: int) -> list[Span]:
    first = moment_of(start)
    begins = [datetime(first.year, first.month, 1, tzinfo=UTC)]
    while micros(begins[-1]) < end:
        last = begins[-1]
        begins.append(datetime(last.year + last.month // 12, last.month % 12 + 1, 1, tzinfo=UTC))
    return [Span(micros(one), micros(next_)) for one, next_ in pairwise(begins)]


def _format_micros(moment: int) -> str:
    return f"{moment_of(moment):%Y-%m-%d %H:%M}Z"
