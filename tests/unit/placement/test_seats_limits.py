"""What a pool may not promise though it has seats: other hours, more licences, more money."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import strategies as st

from harness import given
from harness.given import EARLY, at, books, filled, on, plainly_fits, plainly_running, seat_claim, seats
from harness.suite import for_all
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.hours import AllowedHours, Weekday
from lcm.model.kinds.pool import Budget
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.placement.hours import OpenTimes, first_closed_moment, open_time
from lcm.placement.limits import PromiseRules, count_load_room, forecast_cost
from lcm.placement.preference import planned_usd
from lcm.placement.promise import PromisedSeats, PromiseRefusal, promise
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, Span
from lcm.placement.timeline import END, micros

LAB = Amount(cpu_millis=1, memory_mb=1, labs=1)
WHOLE = Amount(cpu_millis=4, memory_mb=1, labs=1)
BERLIN = ZoneInfo("Europe/Berlin")
DAY = AllowedHours(start_hour=8, end_hour=18, time_zone="Europe/Berlin")
NIGHT = AllowedHours(start_hour=22, end_hour=6, time_zone="Europe/Berlin")
PRICE = Decimal(4)


def reason(pool: Seats, one: Claim, rules: PromiseRules) -> str:
    answer = promise(pool, one, rules=rules, slots=0)
    return answer.reason if isinstance(answer, PromiseRefusal) else ""


def slot(day: datetime, start: int, hours: int) -> Claim:
    """Return a claim by the wall clock of Berlin."""
    begin = datetime(day.year, day.month, day.day, start, tzinfo=BERLIN).astimezone(UTC)
    return Claim(start=begin, end=begin + timedelta(hours=hours), need=LAB)


@pytest.mark.parametrize("day", [datetime(2026, 10, 24), datetime(2026, 10, 25), datetime(2026, 3, 29)])  # noqa: DTZ001
def test_hours_follow_the_wall_clock_over_daylight_saving_changes(day: datetime) -> None:
    rules = PromiseRules(datetime(2026, 1, 1, tzinfo=UTC), times=OpenTimes(DAY))
    assert reason(seats(), slot(day, 9, 9), rules) == ""
    assert reason(seats(), slot(day, 9, 10), rules) == "hours"
    assert reason(seats(), slot(day, 7, 2), rules) == "hours"


def test_the_boot_must_lie_within_the_hours_as_well() -> None:
    rules = PromiseRules(datetime(2026, 1, 1, tzinfo=UTC), times=OpenTimes(DAY))
    eight = slot(datetime(2026, 6, 1), 8, 2)  # noqa: DTZ001 - `slot` adds the zone
    assert reason(seats(), eight, rules) == "hours"
    assert reason(seats(standing=1), eight, rules) == "hours"


def test_a_boot_that_is_over_is_not_held_against_the_hours() -> None:
    eight = slot(datetime(2026, 6, 1), 8, 2)  # noqa: DTZ001 - `slot` adds the zone
    assert reason(seats(), eight, PromiseRules(eight.start, times=OpenTimes(DAY), usable={1: eight.start})) == ""


def test_hours_may_pass_midnight() -> None:
    rules = PromiseRules(datetime(2026, 1, 1, tzinfo=UTC), times=OpenTimes(NIGHT))
    before = datetime(2026, 10, 24)  # noqa: DTZ001
    assert reason(seats(), slot(before, 23, 8), rules) == "", "the night of the change has an hour more"
    assert reason(seats(), slot(before, 23, 9), rules) == "hours"
    assert reason(seats(), slot(before, 12, 1), rules) == "hours"
    answer = promise(seats(), slot(before, 12, 1), rules=rules)
    assert isinstance(answer, PromiseRefusal)
    assert answer.details.endswith("the pool's hours are 22:00 to 6:00 Europe/Berlin")
    assert answer.remedy.startswith("choose a slot within the pool's allowed_hours")


FIVE = timedelta(minutes=5)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"])
opening = st.tuples(st.integers(0, 24), st.integers(0, 24)).filter(lambda both: both[1] - both[0] not in {0, -24})
moments = st.integers(0, 365 * 24 * 12).map(lambda number: datetime(2026, 1, 1, tzinfo=UTC) + number * FIVE)


weekdays = st.sampled_from([(), (Weekday.MON,), (Weekday.SUN, Weekday.THU), tuple(Weekday)[:5]])


def is_open_on_the_wall(hours: AllowedHours, now: datetime) -> bool:
    """Return whether a clock on the wall shows an hour that began, as hours, on one of the days."""
    late = now.hour >= hours.start_hour
    began = now if late or hours.start_hour < hours.end_hour else now - timedelta(days=1)
    within = (
        now.hour < hours.end_hour and late if hours.start_hour < hours.end_hour else late or now.hour < hours.end_hour
    )
    return within and (not hours.weekdays or f"{began:%a}".lower() in hours.weekdays)


@for_all(zones, opening, weekdays, moments, st.integers(1, 100))
def test_a_time_is_open_if_the_clock_on_the_wall_says_so_at_every_moment(
    zone: str, both: tuple[int, int], days: tuple[Weekday, ...], start: datetime, fives: int
) -> None:
    hours = AllowedHours(start_hour=both[0], end_hour=both[1], time_zone=zone, weekdays=days)
    span = Span(micros(start), micros(start + fives * FIVE))
    on_the_wall = [(start + number * FIVE).astimezone(ZoneInfo(zone)) for number in range(fives)]
    opened = [is_open_on_the_wall(hours, now) for now in on_the_wall]
    closed = None if all(opened) else span.start + opened.index(False) * (FIVE // timedelta(microseconds=1))
    assert first_closed_moment(hours, span) == closed
    assert open_time(hours, span) == sum(opened) * (FIVE // timedelta(microseconds=1))
    changes = OpenTimes(hours).next_change(start)
    turns = [
        now for now, before in zip(on_the_wall[1:], opened, strict=False) if opened[on_the_wall.index(now)] != before
    ]
    assert changes == turns[0] if turns else changes is None or changes >= on_the_wall[-1]


def test_a_paused_pool_is_closed_until_the_pause_ends_and_says_so() -> None:
    monday = datetime(2026, 11, 2, tzinfo=UTC)
    until, office = monday + timedelta(hours=7), AllowedHours(start_hour=8, end_hour=18, weekdays=(Weekday.MON,))
    times = OpenTimes(office, micros(until))
    assert [times.closed_reason(monday + timedelta(hours=hour)) for hour in (6, 7, 8, 18)] == [
        "paused",
        "hours",
        "",
        "hours",
    ]
    assert times.next_change(monday) == monday + timedelta(hours=8)
    assert OpenTimes(None, micros(until)).next_change(monday) == until
    assert OpenTimes(office, END).next_change(monday) is None
    assert times.open_time(Span(micros(monday), micros(monday + timedelta(days=7)))) == micros(
        monday + timedelta(hours=10)
    ) - micros(monday)
    rules = PromiseRules(at(0), times=OpenTimes(None, micros(at(120))))
    assert reason(seats(), seat_claim(60, 110, LAB), rules) == "paused"
    assert reason(seats(standing=1), seat_claim(60, 110, LAB), rules) == "paused"
    assert reason(seats(), seat_claim(120 + 60, 240, LAB), rules) == ""


def test_a_standing_worker_takes_what_begins_once_it_can_be_up_in_its_hours() -> None:
    rules = PromiseRules(at(0), times=OpenTimes(AllowedHours(start_hour=8, end_hour=18)), usable={1: at(0)})
    pool = seats(1, standing=1)
    assert reason(pool, seat_claim(8 * 60 + 10, 9 * 60, LAB), rules) == "hours"
    assert reason(pool, seat_claim(8 * 60 + 25, 9 * 60, LAB), rules) == ""
    assert reason(pool, seat_claim(17 * 60, 18 * 60, LAB), rules) == ""
    assert reason(pool, seat_claim(17 * 60, 18 * 60 + 1, LAB), rules) == "hours"


def test_load_gets_what_licences_and_budgets_leave_of_what_is_promised() -> None:
    pool = filled(seats(5, standing=1), [(2, seat_claim(30, 60, LAB)), (3, seat_claim(600, 660, LAB))])
    assert count_load_room(pool, PromiseRules(at(0))) == (5, "", "")
    assert count_load_room(pool, PromiseRules(at(0), licences=4))[:2] == (2, "licences")
    dear = PromiseRules(at(0), price=PRICE, budget=Budget(hourly_usd=3 * PRICE))
    assert count_load_room(pool, dear)[:2] == (1, "hourly_budget")
    month = PromiseRules(at(0), price=PRICE, spent=Decimal(90), budget=Budget(monthly_usd=Decimal(100)))
    assert count_load_room(filled(seats(5), []), month)[:2] == (1, "monthly_budget")
    assert count_load_room(pool, PromiseRules(at(0), budget=Budget(hourly_usd=PRICE)))[:2] == (0, "price_unknown")


@for_all(books, st.integers(1, 3), books)
def test_no_more_workers_run_at_any_moment_than_there_are_licences(
    book: list[Claim], licences: int, others: list[Claim]
) -> None:
    pool, other = seats(4), filled(seats(1), [(1, one) for one in others[:2]])
    rules = PromiseRules(EARLY, licences=licences, sharing=(other.opening,))
    elsewhere = plainly_running(on(other, 1))
    for place, one in enumerate(book):
        answer = promise(pool, one, rules=rules, slots=0)
        running = [plainly_running(on(pool, number)) for number in range(1, 5)]
        allowed = [number for number in range(1, 5) if _licensed(pool, number, one, [*running, elsewhere], licences)]
        assert isinstance(answer, PromisedSeats) == bool(allowed)
        if isinstance(answer, PromisedSeats):
            assert answer.seat in allowed
            pool.hold(answer.seat, HeldClaim(f"h{place}", one))


def _licensed(pool: Seats, number: int, one: Claim, running: list[set[int]], licences: int) -> bool:
    added = plainly_running([*on(pool, number), one]) - running[number - 1]
    few = all(sum(minute in run for run in running) < licences for minute in added)
    return few and plainly_fits(pool, number, one)


def test_a_pool_without_free_licences_says_so() -> None:
    pool = filled(seats(3), [(1, seat_claim(60, 120, WHOLE))])
    answer = promise(pool, seat_claim(60, 120, LAB), rules=PromiseRules(EARLY, licences=1))
    assert isinstance(answer, PromiseRefusal)
    assert (answer.reason, answer.details) == ("licences", "all 1 licences are in use at 2026-11-02 00:35Z")
    before, after, _ = answer.nearest
    assert (before, after) == (-timedelta(minutes=60), timedelta(minutes=60)), "the same worker takes it then"
    assert reason(seats(3, standing=1), seat_claim(60, 120, WHOLE), PromiseRules(EARLY, licences=1)) == ""


def test_the_hourly_budget_limits_how_many_workers_run_at_once() -> None:
    rules = PromiseRules(EARLY, price=PRICE, budget=Budget(hourly_usd=Decimal(8)))
    pool = filled(seats(4), [(1, seat_claim(60, 120, WHOLE)), (2, seat_claim(60, 120, WHOLE))])
    assert reason(pool, seat_claim(60, 90, LAB), rules) == "hourly_budget"
    assert reason(pool, seat_claim(200, 300, LAB), rules) == ""
    free = PromiseRules(EARLY, price=PRICE, budget=Budget(hourly_usd=Decimal(12)))
    assert reason(pool, seat_claim(60, 90, LAB), free) == ""


def test_the_monthly_budget_looks_at_what_is_spent_promised_and_asked_for() -> None:
    pool = filled(seats(4), [(1, seat_claim(60, 120, WHOLE))])
    hour = seat_claim(60, 120, WHOLE)
    enough = PromiseRules(at(0), price=PRICE, spent=Decimal(10), budget=Budget(monthly_usd=Decimal("21.34")))
    assert reason(pool, hour, enough) == ""
    short = PromiseRules(at(0), price=PRICE, spent=Decimal(10), budget=Budget(monthly_usd=Decimal("21.33")))
    answer = promise(pool, hour, rules=short)
    assert isinstance(answer, PromiseRefusal)
    assert answer.details == "November 2026 would cost 21.33 USD, more than the 21.33 USD of the budget"
    assert (answer.reason, answer.nearest[0]) == ("monthly_budget", timedelta(minutes=60)), (
        "without a boot it is enough"
    )


def test_each_month_has_its_own_budget() -> None:
    november = PromiseRules(at(0), price=PRICE, spent=Decimal(100), budget=Budget(monthly_usd=Decimal(100)))
    in_december = seat_claim(30 * 24 * 60, 30 * 24 * 60 + 60, LAB)
    assert reason(seats(), seat_claim(60, 120, LAB), november) == "monthly_budget"
    assert reason(seats(), in_december, november) == ""
    over_new_year = seat_claim(60 * 24 * 60 - 60, 60 * 24 * 60 + 600, LAB)
    assert reason(seats(), over_new_year, november) == ""


def test_standing_workers_are_part_of_the_forecast_in_their_hours() -> None:
    november = Span(micros(datetime(2026, 11, 1, tzinfo=UTC)), micros(datetime(2026, 12, 1, tzinfo=UTC)))
    pool = filled(seats(standing=2), [(3, seat_claim(60, 120, LAB))])
    whole = PromiseRules(at(0), price=PRICE)
    assert forecast_cost(pool, november, whole) == PRICE * (2 * 29 * 24) + PRICE * 85 / 60
    assert (
        forecast_cost(pool, november, PromiseRules(at(0), price=PRICE, times=OpenTimes(DAY)))
        == PRICE * (2 * 29 * 10) + PRICE * 85 / 60
    )
    assert forecast_cost(pool, november, PromiseRules(at(0), spent=Decimal(5))) == 5


def test_a_budget_without_a_price_promises_nothing() -> None:
    assert (
        reason(seats(), seat_claim(60, 120, LAB), PromiseRules(EARLY, budget=Budget(monthly_usd=Decimal(1))))
        == "price_unknown"
    )
    assert (
        reason(seats(), seat_claim(60, 120, LAB), PromiseRules(EARLY, budget=Budget(hourly_usd=Decimal(1))))
        == "price_unknown"
    )


def test_a_machine_without_a_price_of_its_own_is_planned_with_its_disk_as_it_is_billed() -> None:
    aws = given.template().spec.worker.aws
    machine, disk = (
        SHIPPED_PRICES.hourly(aws.region, aws.instance_type),
        SHIPPED_PRICES.disk_hourly(aws.root_volume, aws.region),
    )
    assert machine is not None
    assert disk is not None
    assert planned_usd(given.template(), SHIPPED_PRICES) == machine + disk
    assert planned_usd(given.template(price_per_hour_usd=Decimal(4)), SHIPPED_PRICES) == 4
    assert planned_usd(given.template(), PriceBook()) is None
