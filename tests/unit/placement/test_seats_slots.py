"""The nearest slots of a refusal, held against trying every minute."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from time import process_time

from hypothesis import strategies as st

from harness import suite
from harness.given import EARLY, KEEP, LEAD, LONG_BEFORE, MINUTE, ROOM, at, filled, plainly_running, seat_claim, seats
from harness.suite import for_all
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.pool import Budget
from lcm.placement.hours import OpenTimes
from lcm.placement.limits import PromiseRules
from lcm.placement.promise import PromisedSeats, choose_seats_for_all, nearest_shifts, promise, promise_all
from lcm.placement.seats import Seats
from lcm.placement.slot_search import SlotSearch, WorkBudget, shift_claim
from lcm.placement.timeline import BEGINNING, END, micros

REACH = 150
LAB = Amount(cpu_millis=3, memory_mb=2, labs=1)
tight = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.builds(
            lambda start, length: seat_claim(start, start + length, LAB), st.integers(-250, 350), st.integers(20, 240)
        ),
    ),
    max_size=10,
)
wanted = st.builds(
    lambda start, length: seat_claim(start, start + length, LAB), st.integers(60, 120), st.integers(5, 90)
)
presents = st.sampled_from([LONG_BEFORE.now, at(-100), at(30)])


def mine(answer: tuple[timedelta, ...]) -> tuple[list[int], list[int]]:
    shifts = [shift // MINUTE for shift in answer]
    return [one for one in shifts if one < 0], [one for one in shifts if one > 0]


@for_all(tight, wanted, st.integers(0, 4), presents)
def test_the_nearest_slots_work_and_none_nearer_does(
    held: list[tuple[int, Claim]], one: Claim, count: int, now: datetime
) -> None:
    pool = filled(seats(2), held)
    rules = PromiseRules(now)
    found = nearest_shifts(pool, [one], rules, count=count, step=MINUTE, within=REACH * MINUTE)
    earlier, later = mine(found)
    working = [
        by for by in range(-REACH, REACH + 1) if by and plainly_promised(held, shift_claim(one, by * MINUTE), now)
    ]
    before, after = [by for by in reversed(working) if by < 0], [by for by in working if by > 0]
    assert (earlier, later) == (before[: len(earlier)], after[: len(later)])
    assert len(found) == min(count, len(working))
    if count > 1:
        assert (bool(earlier), bool(later)) == (bool(before), bool(after))
    for by in found:
        assert isinstance(promise(pool, shift_claim(one, by), rules=rules), PromisedSeats)


def plainly_promised(held: list[tuple[int, Claim]], one: Claim, now: datetime) -> bool:
    return any(_plainly_takes([other for seat, other in held if seat == number], one, now) for number in (1, 2))


def _plainly_takes(before: list[Claim], one: Claim, now: datetime) -> bool:
    """Return whether a seat takes one more lab beside those it has: it has room for a single one."""
    if one.start < now or any(other.overlaps(one.start, one.end) for other in before):
        return False
    if one.start >= now + (LEAD + KEEP) * MINUTE:
        return True
    added = plainly_running([*before, one]) - plainly_running(before)
    return not added or at(min(added)) >= now


def test_slots_keep_to_the_hours_of_the_pool() -> None:
    pool = filled(seats(1), [(1, seat_claim(9 * 60, 17 * 60, LAB))])
    rules = PromiseRules(at(0), times=OpenTimes(AllowedHours(start_hour=8, end_hour=18)))
    found = nearest_shifts(pool, [seat_claim(9 * 60, 10 * 60, LAB)], rules)
    assert found == (timedelta(hours=8), timedelta(hours=23, minutes=30), timedelta(hours=23, minutes=45))
    assert nearest_shifts(pool, [seat_claim(9 * 60, 20 * 60, LAB)], rules) == ()


def test_nothing_is_near_for_what_fits_nowhere() -> None:
    assert nearest_shifts(seats(1), [seat_claim(60, 120, Amount(cpu_millis=99))], LONG_BEFORE) == ()


DAY = timedelta(days=1)
ALL_DAY = AllowedHours(start_hour=0, end_hour=24, time_zone="Europe/Berlin")
dollars = st.sampled_from([None, Decimal(3), Decimal(8), Decimal(30)])
limits = st.builds(
    PromiseRules,
    presents,
    licences=st.sampled_from([None, 1, 2]),
    times=st.builds(
        OpenTimes,
        st.sampled_from([None, ALL_DAY, AllowedHours(start_hour=23, end_hour=6), AllowedHours(end_hour=2)]),
        st.sampled_from([BEGINNING, micros(at(50)), END]),
    ),
    budget=st.builds(Budget, hourly_usd=dollars, monthly_usd=dollars),
    price=st.sampled_from([None, Decimal(4)]),
)
STEPS, FIVE = 30, 5 * MINUTE


@for_all(tight, wanted, limits, st.integers(0, 1))
def test_under_limits_the_same_slots_are_found_as_by_trying_all(
    held: list[tuple[int, Claim]], one: Claim, rules: PromiseRules, standing: int
) -> None:
    pool = filled(seats(3, standing=standing), held)
    earlier, later = searched(pool, [one], rules)
    works = [by for by in range(-STEPS, STEPS + 1) if by and promised(pool, [shift_claim(one, by * FIVE)], rules)]
    assert (earlier, later) == ([by for by in reversed(works) if by < 0], [by for by in works if by > 0])


@for_all(tight, wanted, st.integers(2, 5), presents, st.sampled_from([0, 1, 90]))
def test_a_group_gets_the_same_slots_as_by_trying_all(
    held: list[tuple[int, Claim]], one: Claim, count: int, now: datetime, apart: int
) -> None:
    pool, rules = filled(seats(4), held), PromiseRules(now)
    group = [*[one] * count, *[shift_claim(one, apart * MINUTE)] * (count if apart else 0)]
    earlier, later = searched(pool, group, rules)
    works = [by for by in range(-STEPS, STEPS + 1) if by and promised(pool, moved(group, by), rules)]
    assert set(earlier) | set(later) <= set(works)
    if not apart:
        assert (earlier, later) == ([by for by in reversed(works) if by < 0], [by for by in works if by > 0])


some = st.frozensets(st.integers(1, 4), max_size=2)


@for_all(tight, wanted, st.integers(1, 4), st.tuples(some, some, some), st.sampled_from([at(-100), at(90) - DAY]))
def test_on_seats_that_differ_the_same_slots_are_found_as_by_trying_all(
    held: list[tuple[int, Claim]],
    one: Claim,
    count: int,
    differing: tuple[frozenset[int], frozenset[int], frozenset[int]],
    now: datetime,
) -> None:
    always, strange, unsuited = differing
    strangers = {number: Amount(cpu_millis=number % 2 + 1) for number in strange}
    pool = Seats(ROOM, 4, lead=LEAD * MINUTE, keep=KEEP * MINUTE, besides=always, strangers=strangers)
    filled(pool, held)
    rules = PromiseRules(
        now,
        usable=dict.fromkeys(always | strange, now),
        unsuited=unsuited,
        budget=Budget(hourly_usd=Decimal(4 * len(always))) if always else Budget(),
        price=Decimal(4),
    )
    group = [one] * count
    earlier, later = searched(pool, group, rules)
    works = [by for by in range(-STEPS, STEPS + 1) if by and promised(pool, moved(group, by), rules)]
    assert (earlier, later) == ([by for by in reversed(works) if by < 0], [by for by in works if by > 0])


def all_seated(pool: Seats, several: Sequence[Claim], rules: PromiseRules) -> int | None:
    found = choose_seats_for_all(pool, several, rules)
    return found if isinstance(found, int) else None


def searched(pool: Seats, several: list[Claim], rules: PromiseRules) -> tuple[list[int], list[int]]:
    search = SlotSearch(pool, several, rules, FIVE, STEPS, together=all_seated)
    return list(search.earlier(STEPS, WorkBudget(10**9))), list(search.later(STEPS, WorkBudget(10**9)))


def promised(pool: Seats, several: list[Claim], rules: PromiseRules) -> bool:
    return isinstance(promise_all(pool, several, rules=rules, slots=0), PromisedSeats)


def moved(several: list[Claim], by: int) -> list[Claim]:
    return [shift_claim(one, by * FIVE) for one in several]


def test_a_slot_of_a_year_is_refused_at_once() -> None:
    pool = filled(seats(3), [(1, seat_claim(day * 1440, day * 1440 + 120, LAB)) for day in range(30)])
    rules = PromiseRules(EARLY, times=OpenTimes(ALL_DAY), price=Decimal(4), budget=Budget(monthly_usd=Decimal(2500)))
    began = process_time()
    assert nearest_shifts(pool, [seat_claim(1500, 1500 + 365 * 1440, LAB)], rules) == ()
    assert nearest_shifts(pool, [seat_claim(1500, 1500 + 30 * 1440, LAB)], rules) == ()
    assert process_time() - began < suite.here(1), "it took minutes, step by step"


def test_a_large_pool_whose_money_is_spent_refuses_at_once_and_offers_the_next_month() -> None:
    days = [(seat, seat_claim(day * 1440, day * 1440 + 180, LAB)) for seat in range(1, 101) for day in range(10)]
    rules = PromiseRules(EARLY, price=Decimal(4), budget=Budget(monthly_usd=Decimal(100)))
    pool, asked = filled(seats(100), days), seat_claim(1500, 1740, LAB)
    began = process_time()
    assert nearest_shifts(pool, [asked], rules) == ()
    late = shift_claim(asked, 25 * DAY)
    later = [nearest_shifts(pool, [late] * count, rules)[0] for count in (1, 3)]
    assert process_time() - began < suite.here(1), "it took seconds, seat by seat"
    december = at(0) + timedelta(days=29, minutes=LEAD)
    assert all(december <= late.start + by <= december + timedelta(minutes=15) for by in later)


def test_who_may_look_at_little_gets_what_was_found_by_then() -> None:
    pool = filled(seats(1), [(1, seat_claim(0, 600, LAB))])
    rules = PromiseRules(EARLY, price=Decimal(4), budget=Budget(hourly_usd=Decimal(5)))
    assert nearest_shifts(pool, [seat_claim(60, 120, LAB)], rules, work=0) == ()
    few, all_ = (nearest_shifts(pool, [seat_claim(60, 120, LAB)], rules, work=work) for work in (200, 10_000))
    assert 0 < len(few) <= len(all_) == 3
