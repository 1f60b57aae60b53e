"""The nearest slots of a refusal, held against trying every minute."""

from datetime import datetime, timedelta

from hypothesis import strategies as st

from lcm.model.capacity import Amount, Claim
from lcm.model.pool import AllowedHours
from lcm.placement.limits import Rules
from lcm.placement.promise import Promised, promise
from lcm.placement.slots import nearest, shifted
from properties import for_all
from seatings import KEEP, LEAD, LONG_BEFORE, MINUTE, at, claim, filled, plainly_running, seats

REACH = 150
LAB = Amount(cpu_millis=3, memory_mb=2, labs=1)
tight = st.lists(
    st.tuples(
        st.integers(1, 2),
        st.builds(
            lambda start, length: claim(start, start + length, LAB), st.integers(-250, 350), st.integers(20, 240)
        ),
    ),
    max_size=10,
)
wanted = st.builds(lambda start, length: claim(start, start + length, LAB), st.integers(60, 120), st.integers(5, 90))
presents = st.sampled_from([LONG_BEFORE.now, at(-100), at(30)])


def mine(answer: tuple[timedelta, ...]) -> tuple[list[int], list[int]]:
    shifts = [shift // MINUTE for shift in answer]
    return [one for one in shifts if one < 0], [one for one in shifts if one > 0]


@for_all(tight, wanted, st.integers(0, 4), presents)
def test_the_nearest_slots_work_and_none_nearer_does(
    held: list[tuple[int, Claim]], one: Claim, count: int, now: datetime
) -> None:
    pool = filled(seats(2), held)
    rules = Rules(now)
    found = nearest(pool, [one], rules, count=count, step=MINUTE, within=REACH * MINUTE)
    earlier, later = mine(found)
    working = [by for by in range(-REACH, REACH + 1) if by and plainly_promised(held, shifted(one, by * MINUTE), now)]
    before, after = [by for by in reversed(working) if by < 0], [by for by in working if by > 0]
    assert (earlier, later) == (before[: len(earlier)], after[: len(later)])
    assert len(found) == min(count, len(working))
    if count > 1:
        assert (bool(earlier), bool(later)) == (bool(before), bool(after))
    for by in found:
        assert isinstance(promise(pool, shifted(one, by), rules=rules), Promised)


def plainly_promised(held: list[tuple[int, Claim]], one: Claim, now: datetime) -> bool:
    return any(_plainly_takes([other for seat, other in held if seat == number], one, now) for number in (1, 2))


def _plainly_takes(before: list[Claim], one: Claim, now: datetime) -> bool:
    """Tell whether a seat takes one more lab beside those it has: it has room for a single one."""
    if one.start < now or any(other.meets(one.start, one.end) for other in before):
        return False
    if one.start >= now + (LEAD + KEEP) * MINUTE:
        return True
    added = plainly_running([*before, one]) - plainly_running(before)
    return not added or at(min(added)) >= now


def test_slots_keep_to_the_hours_of_the_pool() -> None:
    pool = filled(seats(1), [(1, claim(9 * 60, 17 * 60, LAB))])
    rules = Rules(at(0), hours=AllowedHours(start_hour=8, end_hour=18))
    found = nearest(pool, [claim(9 * 60, 10 * 60, LAB)], rules)
    assert found == (timedelta(hours=8), timedelta(hours=23, minutes=30), timedelta(hours=23, minutes=45))
    assert nearest(pool, [claim(9 * 60, 20 * 60, LAB)], rules) == ()


def test_nothing_is_near_for_what_fits_nowhere() -> None:
    assert nearest(seats(1), [claim(60, 120, Amount(cpu_millis=99))], LONG_BEFORE) == ()
