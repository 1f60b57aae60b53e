"""The limits of what a pool may promise: its hours, its licences, its budgets. Checked at booking only.

Each limit looks at the times that workers would have to run in addition and returns the reason as a sentence, or None.
Bookings are checked through `lcm.placement.seat_choice`; `count_load_room` says what is left for load.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Final, NamedTuple

from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.placement.hours import ALWAYS_OPEN, OpenTimes, describe_hours
from lcm.placement.seats import Seats, Span, busiest_moment, total_length
from lcm.placement.timeline import BEGINNING, END, Timeline, micros, moment_of

OPENING_POLICIES: Final = frozenset({ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID})
"""Policies that open seats for bookings; under the others only seats with a worker are promised."""
_HOUR_MICROS: Final = 3_600_000_000
_CENT: Final = Decimal("0.01")
_NO_BUDGET: Final = Budget()


@dataclass(frozen=True, slots=True)
class TrackLimit:
    """The monthly budget of a track, what its workers have cost this month, and the other pools that share it."""

    name: str
    monthly_usd: Decimal
    spent: Decimal = Decimal(0)
    others: tuple[tuple[Seats, "PromiseRules"], ...] = ()


@dataclass(frozen=True, slots=True)
class PromiseRules:
    """The rules by which a pool promises seats at one moment.

    `usable` maps each seat that has a worker to when that can be used. `licences` is how many the pool's workers may
    have at once, None for no limit, and `sharing` counts the workers that other pools will have on them. `price` is
    what one worker costs an hour, None if it is not known; `saved` tells of seats until when their machine costs less,
    and by how much. `spent` is what this month has cost so far. `unsuited` are
    the seats that do not suit the request. `times` says when the pool is open; the workers that always run are
    stopped at other times, except for `foreign` ones, which others made. `load` workers run besides, for nothing that
    is claimed. `track` is the budget that the pool shares with others of its track.
    """

    now: datetime
    policy: ScalingPolicy = ScalingPolicy.SCHEDULED
    usable: Mapping[int, datetime] = field(default_factory=dict)
    licences: int | None = None
    sharing: tuple[Timeline, ...] = ()
    times: OpenTimes = ALWAYS_OPEN
    budget: Budget = _NO_BUDGET
    price: Decimal | None = None
    saved: Mapping[int, tuple[datetime, Decimal]] = field(default_factory=dict)
    spent: Decimal = Decimal(0)
    foreign: int = 0
    load: int = 0
    unsuited: frozenset[int] = frozenset()
    track: TrackLimit | None = None

    @property
    def has_limits(self) -> bool:
        """Whether there is any limit at all."""
        return bool(
            self.times != ALWAYS_OPEN
            or self.track is not None
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
    most_usd, track = rules.budget.monthly_usd, rules.track
    if most_usd is None and track is None:
        return []
    return [
        month
        for month in months_between(span.start, span.end)
        if (most_usd is not None and forecast_cost(seats, month, rules) >= most_usd)
        or (track is not None and forecast_track_cost(seats, month, rules, track) >= track.monthly_usd)
    ]


def _is_exhausted(seats: Seats, rules: PromiseRules) -> bool:
    """Return whether the workers that always run, or their price, leave room for no other at any time."""
    hourly, workers = rules.budget.hourly_usd, seats.standing + 1
    dear = hourly is not None and rules.price is not None and workers * rules.price > hourly
    unlicensed = rules.licences is not None and workers > rules.licences
    return dear or unlicensed or _check_price(seats, (), rules) is not None


def find_closed_time(spans: Sequence[Span], rules: PromiseRules) -> tuple[str, str] | None:
    """Return a word and a sentence if machines would have to run while the pool is closed; None if not."""
    moments = (rules.times.first_closed_moment(span) for span in spans)
    closed = next((moment for moment in moments if moment is not None), None)
    if closed is None:
        return None
    needed = f"its machine would have to run at {_format_micros(closed)}"
    if closed < rules.times.paused_until:
        return "paused", f"{needed}, and the pool is paused{_until_text(rules.times.paused_until)}"
    return "hours", f"{needed}, and the pool's hours are {describe_hours(rules.times.hours)}"


def _until_text(moment: int) -> str:
    return "" if moment == END else f" until {_format_micros(moment)}"


def _check_times(name: str) -> Limit:
    def check(_seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
        found = find_closed_time(pieces, rules)
        return found[1] if found is not None and found[0] == name else None

    return check


def _check_licences(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    if rules.licences is None:
        return None
    counts = (seats.opening, *rules.sharing)
    for piece in pieces:
        most, moment = busiest_moment(counts, piece)
        if seats.standing + most + rules.load >= rules.licences:
            return f"all {rules.licences} licences are in use at {_format_micros(moment)}"
    return None


def _check_price(_seats: Seats, _pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    free = rules.budget.hourly_usd is None and rules.budget.monthly_usd is None and rules.track is None
    known = rules.price is not None or free
    return None if known else "the pool or its track has a budget, and it is not known what its machines cost"


def _check_hourly_budget(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    most_usd = rules.budget.hourly_usd
    if most_usd is None or rules.price is None:
        return None
    for piece in pieces:
        most, moment = busiest_moment((seats.opening,), piece)
        workers = seats.standing + most + rules.load + 1
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
    for month in months_between(pieces[0].start, pieces[-1].end):
        more = total_length(_clip_spans(pieces, month)) * (rules.load + 1)
        cost = forecast_cost(seats, month, rules) + rules.price * more / _HOUR_MICROS
        if more and cost > most_usd:
            problem = f"{moment_of(month.start):%B %Y} would cost {cost.quantize(_CENT)} USD"
            return f"{problem}, more than the {most_usd} USD of the budget"
    return None


def _check_track_budget(seats: Seats, pieces: Sequence[Span], rules: PromiseRules) -> str | None:
    track = rules.track
    if track is None or rules.price is None or not pieces:
        return None
    for month in months_between(pieces[0].start, pieces[-1].end):
        more = total_length(_clip_spans(pieces, month)) * (rules.load + 1)
        cost = forecast_track_cost(seats, month, rules, track) + rules.price * more / _HOUR_MICROS
        if more and cost > track.monthly_usd:
            problem = f"track {track.name} would cost {cost.quantize(_CENT)} USD in {moment_of(month.start):%B %Y}"
            return f"{problem}, more than the {track.monthly_usd} USD of its budget"
    return None


LIMITS: Final[Mapping[str, Limit]] = {
    "paused": _check_times("paused"),
    "hours": _check_times("hours"),
    "licences": _check_licences,
    "price_unknown": _check_price,
    "hourly_budget": _check_hourly_budget,
    "monthly_budget": _check_monthly_budget,
    "track_budget": _check_track_budget,
}


LOAD_AHEAD: Final = timedelta(hours=1)
"""How long a worker that is started for load is expected to run at least, after it is up."""
LOAD_LIMITS: Final = ("licences", "price_unknown", "hourly_budget", "monthly_budget", "track_budget")
"""What may leave no room for workers that run for load alone."""


class LoadRoom(NamedTuple):
    """How many workers may run for load alone, besides those that are promised or always run, and what forbids more."""

    workers: int
    why: str = ""
    reason: str = ""


def count_load_room(seats: Seats, rules: PromiseRules) -> LoadRoom:
    """Return how many workers licences and budgets leave for load, from now on."""
    now = micros(rules.now)
    piece = [Span(now, now + seats.lead + LOAD_AHEAD // timedelta.resolution)]

    def find_violated(load: int) -> tuple[str, str] | None:
        asked = replace(rules, load=load)
        answers = ((name, LIMITS[name](seats, piece, asked)) for name in LOAD_LIMITS)
        return next(((name, reason) for name, reason in answers if reason is not None), None)

    allowed = bisect_left(range(seats.most), x=True, key=lambda load: find_violated(load) is not None)
    found = find_violated(allowed) if allowed < seats.most else None
    return LoadRoom(allowed, *found) if found is not None else LoadRoom(allowed)


def forecast_cost(seats: Seats, month: Span, rules: PromiseRules) -> Decimal:
    """Return what a month will cost: the costs so far, and those of promised and standing workers until its end."""
    now = micros(rules.now)
    rest = Span(max(month.start, now), month.end)
    if rest.start >= rest.end or rules.price is None:
        return rules.spent
    spent = rules.spent if month.start <= now else Decimal(0)
    kept = rules.foreign * (rest.end - rest.start)
    standing = (seats.standing - rules.foreign) * rules.times.open_time(rest)
    planned = rules.price * (seats.total_runtime(rest) + standing + kept)
    return spent + (planned - _saving_of_small_runs(seats, rest, rules)) / _HOUR_MICROS


def _saving_of_small_runs(seats: Seats, span: Span, rules: PromiseRules) -> Decimal:
    """Return what machines of smaller types cost less than planned for, in dollars an hour times microseconds."""
    saved = Decimal(0)
    for number, (until, usd) in rules.saved.items():
        if number <= len(seats) and number not in seats.always:
            saved += usd * total_length(_clip_spans(seats.runs(number), Span(span.start, min(span.end, micros(until)))))
    return saved


def forecast_track_cost(seats: Seats, month: Span, rules: PromiseRules, track: TrackLimit) -> Decimal:
    """Return what a month will cost a track: its workers so far, and those of all its pools until the end."""
    spent = track.spent if month.start <= micros(rules.now) else Decimal(0)
    return spent + sum(
        forecast_cost(own, month, replace(one, spent=Decimal(0))) for own, one in ((seats, rules), *track.others)
    )


def _clip_spans(spans: Sequence[Span], limit: Span) -> list[Span]:
    cut = (Span(max(span.start, limit.start), min(span.end, limit.end)) for span in spans)
    return [span for span in cut if span.start < span.end]


def months_between(start: int, end: int) -> list[Span]:
    """Return the months in UTC that a span touches."""
    first = moment_of(start)
    begins = [datetime(first.year, first.month, 1, tzinfo=UTC)]
    while micros(begins[-1]) < end:
        last = begins[-1]
        begins.append(datetime(last.year + last.month // 12, last.month % 12 + 1, 1, tzinfo=UTC))
    return [Span(micros(one), micros(next_)) for one, next_ in pairwise(begins)]


def _format_micros(moment: int) -> str:
    return f"{moment_of(moment):%Y-%m-%d %H:%M}Z"
