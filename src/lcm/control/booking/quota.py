"""Quotas: what an owner may have, and what a namespace or a track may have in all, checked in a booking's commit.

`model.money.quotas` says which rules bound a booking, `control.booking.usage` what is used. Every bound has a guard,
which the booking's commit writes: of two that would pass only one at a time, the second is decided again. Called by
`control.plane.local`, `control.objects.apply`, `control.booking.explain` and `control.booking.slots`.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from lcm.control.admission.admit import require_track
from lcm.control.booking.calendar import Calendar
from lcm.control.booking.guards import owner_guard_key, quota_guard_key, read_guards
from lcm.control.booking.usage import (
    MICROS_PER_USD,
    EstimatePrice,
    Scope,
    UsageBooks,
    UseBook,
    UsedPiece,
    find_busiest,
    month_of,
    month_start,
    scope_of,
)
from lcm.control.objects.records import key_of
from lcm.control.plane.protocol import ref_of
from lcm.model.access.identity import SEES_ALL, Caller, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.session import LabletSession, is_asap
from lcm.model.kinds.settings import QuotaRule, QuotaSettings, SystemSettings, set_limits
from lcm.model.money.quotas import (
    LIMITS,
    Limit,
    RuleBook,
    describe_selection,
    find_rule,
    selects_scope,
)
from lcm.placement.candidate import format_moment
from lcm.placement.timeline import micros, moment_of
from lcm.store.base import ABSENT, CheckRevision, Op, Store

_HOUR: Final = 3600 * 1_000_000
_DEFAULT: Final = "default"
_SETTINGS_KEY: Final = KINDS[SystemSettings.__name__].key(DEFAULT_NAMESPACE, SETTINGS_NAME)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
UNITS: Final = {"hours_ahead": _HOUR, "hours_per_month": _HOUR, "usd_per_month": MICROS_PER_USD}
"""How many of what the books count make one of what a limit counts; one where nothing is said."""


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """How much one owner may have, unless a rule says otherwise; `live` is at the same time."""

    pending: int = 10
    live: int = 10
    ahead: int = 50
    horizon: timedelta = timedelta(days=90)
    nodes: int = 200
    hours_ahead: int = 200
    hours_per_month: int = 400
    usd_per_month: int = 500

    def with_settings(self, own: QuotaSettings) -> Mapping[str, int]:
        """Return the defaults of all limits, overridden by what the settings object sets."""
        usual = {
            "pending": self.pending,
            "sessions": self.live,
            "ahead": self.ahead,
            "horizon_days": self.horizon // timedelta(days=1),
            "nodes": self.nodes,
            "hours_ahead": self.hours_ahead,
            "hours_per_month": self.hours_per_month,
            "usd_per_month": self.usd_per_month,
        }
        said = {name: getattr(own, limit.default) for name, limit in LIMITS.items()}
        return usual | {name: most for name, most in said.items() if most is not None}


class Bound(NamedTuple):
    """One limit of one owner, or of everybody in a scope: how much, by which rule, and the books that count."""

    limit: str
    most: int
    subject: str
    source: str
    guard: str
    grant: str
    """The arguments of the command that grants more."""
    books: Sequence[UseBook]


@dataclass(slots=True)
class Wish:
    """What is asked for under one bound: its pieces, their sum, and the last moment at which one may begin."""

    pieces: list[UsedPiece] = field(default_factory=list)
    book: UseBook = field(default_factory=UseBook)
    latest: datetime = _EARLIEST

    @classmethod
    def of(cls, bookings: Iterable["BookingWish"]) -> "Wish":
        """Return what several bookings would take together."""
        made = cls()
        for one in bookings:
            made.add(one)
        return made

    def add(self, booking: "BookingWish") -> None:
        """Add a booking, or the time by which one becomes longer."""
        self.latest = max(self.latest, booking.latest)
        self.pieces += booking.pieces
        for piece in booking.pieces:
            if booking.is_ahead is None:
                self.book.add(piece)
            else:
                self.book.add_extension(piece, is_ahead=booking.is_ahead)


class BookingWish(NamedTuple):
    """What one booking would take. `is_ahead` is given for an extension: whether its slot has not begun."""

    owner: str
    scope: Scope
    pieces: Sequence[UsedPiece]
    latest: datetime
    is_ahead: bool | None = None


class Use(NamedTuple):
    """What is used of a limit, and what is asked for; both as the books count. `when` is a text for people."""

    used: int
    asked: int
    when: str = ""
    at: int | None = None


def _measure_pending(books: Sequence[UseBook], wish: Wish, _: int) -> Iterator[Use]:
    yield Use(sum(one.pending for one in books), wish.book.pending)


def _measure_busiest(lane: int) -> "Measure":
    def measure(books: Sequence[UseBook], wish: Wish, now: int) -> Iterator[Use]:
        total, at = find_busiest([*books, wish.book], (piece.span(now) for piece in wish.pieces), lane, now)
        used = sum(book.level_at(at, now)[lane] for book in books)
        yield Use(used, total - used, f"at {format_moment(moment_of(at))}", at)

    return measure


def _measure_ahead(books: Sequence[UseBook], wish: Wish, now: int) -> Iterator[Use]:
    yield Use(sum(one.count_ahead(now) for one in books), wish.book.count_ahead(now))


def _measure_hours_ahead(books: Sequence[UseBook], wish: Wish, now: int) -> Iterator[Use]:
    for one in (*books, wish.book):
        one.count_ahead(now)
    yield Use(sum(one.ahead_time for one in books), wish.book.ahead_time)


def _measure_month(part: int) -> "Measure":
    def measure(books: Sequence[UseBook], wish: Wish, now: int) -> Iterator[Use]:
        for month in sorted(wish.book.months(now) or {month_of(now)}):
            used = sum(one.month_sum(month, now)[part] for one in books)
            yield Use(used, wish.book.month_sum(month, now)[part], f"in {month_start(month):%B %Y}")

    return measure


_ORDER: Final = {limit: place for place, limit in enumerate(LIMITS)}
Measure = Callable[[Sequence[UseBook], Wish, int], Iterator[Use]]
MEASURES: Final[Mapping[str, Measure]] = {
    "pending": _measure_pending,
    "sessions": _measure_busiest(0),
    "nodes": _measure_busiest(1),
    "ahead": _measure_ahead,
    "hours_ahead": _measure_hours_ahead,
    "hours_per_month": _measure_month(0),
    "usd_per_month": _measure_month(1),
}


def refuse_excess(bound: Bound, wish: Wish, now: datetime) -> None:
    """Raise NoRoom if what is wished takes its subject above a limit; it says what is left and who can grant more."""
    if bound.limit == "horizon_days":
        _refuse_far_ahead(bound, wish, now)
        return
    unit = UNITS.get(bound.limit, 1)
    for use in MEASURES[bound.limit](bound.books, wish, micros(now)):
        if use.asked > 0 and use.used + use.asked > bound.most * unit:
            have, left, asked = (
                _format_amount(bound.limit, one) for one in (use.used, max(0, bound.most * unit - use.used), use.asked)
            )
            limit, state = LIMITS[bound.limit], f" {use.when}" if use.when else ""
            told = f"{bound.subject} has {have} of at most {bound.most} {limit.noun}{state}"
            raise _refusal(bound, limit, f"{told}: {left} left, {asked} asked for")


def _refuse_far_ahead(bound: Bound, wish: Wish, now: datetime) -> None:
    until = now + timedelta(days=bound.most)
    if wish.latest > until:
        problem = f"{bound.subject} may book {bound.most} days ahead, until {format_moment(until)}"
        raise _refusal(bound, LIMITS[bound.limit], f"{problem}, and this is for {format_moment(wish.latest)}")


def _refusal(bound: Bound, limit: Limit, problem: str) -> NoRoom:
    remedy = f"{limit.advice}; an operator may grant more: lcm quota set {bound.grant} {limit.option} N"
    return NoRoom(f"{problem}; {remedy}", why=limit.why, remedy=remedy)


def _format_amount(limit: str, amount: int) -> str:
    unit = UNITS.get(limit, 1)
    return str(amount) if unit == 1 else f"{amount / unit:.{2 if unit == MICROS_PER_USD else 1}f}"


class QuotaBounds:
    """The bounds of one caller by the rules and books of one moment, by owner and scope."""

    def __init__(self, caller: Caller, defaults: Mapping[str, int], rules: RuleBook, usage: UsageBooks) -> None:
        self._rules = rules
        self._usage = usage
        self._caller = caller
        self._defaults = defaults if caller.role not in SEES_ALL else {}
        self._personal = rules.personal_rules(caller.name, caller.role) if caller.role is not Role.SERVICE else ()
        self._known: dict[tuple[str, Scope], Sequence[Bound]] = {}

    def bounds_of(self, owner: str, scope: Scope) -> Sequence[Bound]:
        """Return every bound of a booking."""
        key = owner, scope
        if key not in self._known:
            personal = list(self.personal_bounds(scope)) if owner == self._caller.name else []
            self._known[key] = [*personal, *self._shared_bounds(scope)]
        return self._known[key]

    def personal_bounds(self, scope: Scope) -> Iterator[Bound]:
        """Yield the bounds of what the caller books in a scope. Each counts what the same rule bounds."""
        books, owner = self._usage.books_of(self._caller.name), self._caller.name
        for limit in LIMITS:
            rule = find_rule(self._personal, limit, scope)
            most = self._defaults.get(limit) if rule is None else getattr(rule, limit)
            if most is not None:
                same = [book for at, book in books.items() if find_rule(self._personal, limit, at) is rule]
                yield Bound(limit, most, *_name_owner(owner, rule), owner_guard_key(owner), shlex.quote(owner), same)

    def _shared_bounds(self, scope: Scope) -> Iterator[Bound]:
        if self._caller.role is not Role.SERVICE:
            for rule in self._rules.shared:
                if selects_scope(rule, scope):
                    yield from shared_bounds(rule, self._usage)


def shared_bounds(rule: QuotaRule, usage: UsageBooks) -> Iterator[Bound]:
    """Yield the bounds of a shared rule."""
    books = [usage.shared_book(one) for one in usage.scopes if selects_scope(rule, one)]
    told, guard = describe_selection(rule), quota_guard_key(rule.namespace, rule.track)
    grant = " ".join(
        f"--{name} {shlex.quote(value)}"
        for name, value in (("namespace", rule.namespace), ("track", rule.track))
        if value is not None
    )
    for limit, most in set_limits(rule).items():
        yield Bound(limit, most, told, f"rule: {told}", guard, grant, books)


def _name_owner(owner: str, rule: QuotaRule | None) -> tuple[str, str]:
    """Return how an owner is named in a refusal, and where the limit comes from."""
    if rule is None:
        return owner, _DEFAULT
    scope = [f"{name} {one}" for name, one in (("namespace", rule.namespace), ("track", rule.track)) if one is not None]
    return f"{owner}, {', '.join(scope)}," if scope else owner, f"rule: {describe_selection(rule)}"


class BookingQuota:
    """Checks bookings against quotas."""

    def __init__(
        self, store: Store, calendar: Calendar, limits: OwnerLimits, *, clock: Clock, price: EstimatePrice
    ) -> None:
        self.usage = UsageBooks(store, calendar, clock=clock, price=price)
        self._store = store
        self._calendar = calendar
        self._limits = limits
        self._clock = clock
        self._settings: SystemSettings | None = None
        self._rules = RuleBook()
        self._defaults = limits.with_settings(QuotaSettings())

    async def check_new(self, caller: Caller, made: Sequence[Resource]) -> Sequence[Op]:
        """Return operations that must join the commit of new bookings; raise NoRoom if they are above a limit."""
        bookings = [one for one in made if isinstance(one, LabletSession | Reservation)]
        if not bookings or caller.role is Role.SERVICE:
            return ()
        return await self._check(caller, lambda now: [self.wish_of(one, now) for one in bookings])

    async def check_extension(self, caller: Caller, before: LabletSession, after: LabletSession) -> Sequence[Op]:
        """Return operations that must join the commit of an extension; raise NoRoom if it takes too much.

        Raise Forbidden for a track on which the caller's token does not book.
        """
        old, new = before.status.ends_at, after.status.ends_at
        if old is None or new is None or new <= old or caller.role is Role.SERVICE:
            return ()
        require_track(caller, before.spec.lab_track)

        def wishes(now: datetime) -> Sequence[BookingWish]:
            is_ahead = (before.spec.timeslot_start or now) > now
            piece = self.usage.meter.measure_extension(before, after)
            return [BookingWish(before.spec.owner, scope_of(before), [piece], now, is_ahead=is_ahead)]

        return await self._check(caller, wishes)

    async def read_guards(self, caller: Caller, bookings: Sequence[LabletSession | Reservation]) -> Sequence[Op]:
        """Return operations that must join the commit of changed bookings, which `check_change` checks."""
        if caller.role is Role.SERVICE:
            return ()
        await self.usage.ready()
        guards = await read_guards(self._store, *self.guard_keys(caller, bookings))
        await self._calendar.wait_for_revision(guards.revision)
        return [*guards.ops(caller.name), self._check_settings()]

    def check_change(
        self,
        caller: Caller,
        before: Iterable[LabletSession | Reservation],
        after: Sequence[LabletSession | Reservation],
    ) -> None:
        """Raise NoRoom if changed bookings are above a limit, counted without what they were before."""
        if caller.role is not Role.SERVICE:
            now = self._clock.now()
            with self.usage.without(map(ref_of, before)):
                _refuse_all(self.bounds_for(caller), [self.wish_of(one, now) for one in after], now)

    def check_prices(self, caller: Caller, made: Iterable[Resource]) -> None:
        """Raise NoRoom if bookings that have their planned workers now cost too much. The guards must be read."""
        bookings = [one for one in made if isinstance(one, LabletSession | Reservation)]
        now, bounds = self._clock.now(), self.bounds_for(caller)
        _refuse_all(bounds, [self.wish_of(one, now) for one in bookings], now, only="usd_per_month")

    async def open_bounds(self, caller: Caller) -> QuotaBounds:
        """Return the bounds of a caller by what is booked now."""
        await self.usage.ready()
        guards = await read_guards(self._store, owner_guard_key(caller.name))
        await self._calendar.wait_for_revision(guards.revision)
        return self.bounds_for(caller)

    def refuse_booking(self, bounds: QuotaBounds, booking: LabletSession) -> None:
        """Raise NoRoom if a new booking would be above one of these bounds."""
        now = self._clock.now()
        _refuse_all(bounds, [self.wish_of(booking, now)], now)

    def bounds_for(self, caller: Caller) -> QuotaBounds:
        """Return the bounds of a caller by what the calendar knows."""
        self._read_settings()
        return QuotaBounds(caller, self._defaults, self._rules, self.usage)

    def guard_keys(self, caller: Caller, made: Iterable[Resource]) -> Sequence[str]:
        """Return the guards of the bounds of a caller's bookings, as far as that is known before they are admitted."""
        bookings = [one for one in made if isinstance(one, LabletSession | Reservation)]
        if not bookings or not self._calendar.cache.is_ready:
            return ()
        bounds = self.bounds_for(caller)
        owners = {(one.spec.owner or caller.name, scope_of(one)) for one in bookings}
        return sorted({one.guard for owner, scope in owners for one in bounds.bounds_of(owner, scope)})

    def wish_of(self, booking: LabletSession | Reservation, now: datetime) -> BookingWish:
        """Return what a new booking would take."""
        pieces = list(self.usage.meter.measure(booking, now).values())
        latest = max((moment_of(one.start) for one in pieces if not one.floats), default=now)
        if isinstance(booking, LabletSession) and is_asap(booking):
            latest = booking.spec.give_up_at or now
        return BookingWish(booking.spec.owner, scope_of(booking), pieces, latest)

    async def _check(self, caller: Caller, wishes: Callable[[datetime], Sequence[BookingWish]]) -> Sequence[Op]:
        await self.usage.ready()
        bounds, now = self.bounds_for(caller), self._clock.now()
        wanted = wishes(now)
        keys = {one.guard for wish in wanted for one in bounds.bounds_of(wish.owner, wish.scope)}
        guards = await read_guards(self._store, *sorted(keys))
        await self._calendar.wait_for_revision(guards.revision)
        bounds, now = self.bounds_for(caller), self._clock.now()
        _refuse_all(bounds, wishes(now), now)
        return [*guards.ops(caller.name), self._check_settings()]

    def _check_settings(self) -> Op:
        """Return the check that no rule has come since: it may have another guard."""
        known = self._settings
        if known is None:
            return CheckRevision(_SETTINGS_KEY, ABSENT)
        return CheckRevision(key_of(known), known.metadata.resource_version)

    @property
    def rules(self) -> RuleBook:
        """The rules that the calendar knows."""
        self._read_settings()
        return self._rules

    def _read_settings(self) -> None:
        found = next(iter(self._calendar.cache.all(SystemSettings)), None)
        if found is not self._settings:
            own = found.spec.quotas if found else QuotaSettings()
            self._settings, self._rules = found, RuleBook(own.rules)
            self._defaults = self._limits.with_settings(own)


def _refuse_all(bounds: QuotaBounds, wishes: Sequence[BookingWish], now: datetime, *, only: str = "") -> None:
    """Raise NoRoom for the first bound that wishes exceed together, in the order of the limits."""
    asked: dict[tuple[str, str, str], tuple[Bound, list[int]]] = {}
    for place, wish in enumerate(wishes):
        for bound in bounds.bounds_of(wish.owner, wish.scope):
            if only in ("", bound.limit):
                asked.setdefault((bound.limit, bound.subject, bound.source), (bound, []))[1].append(place)
    sums: dict[tuple[int, ...], Wish] = {}
    for bound, places in sorted(asked.values(), key=lambda one: _ORDER[one[0].limit]):
        key = tuple(places)
        if key not in sums:
            sums[key] = Wish.of(wishes[place] for place in places)
        refuse_excess(bound, sums[key], now)
