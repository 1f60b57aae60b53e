"""The seats of a pool: what is promised, what is refused, and for how long workers must run."""

import copy
from datetime import timedelta

import pytest
from hypothesis import strategies as st

from harness import given
from harness.given import (
    EARLY,
    LONG_BEFORE,
    ROOM,
    at,
    books,
    claims,
    covered,
    filled,
    minutes,
    needs,
    on,
    plainly_fits,
    plainly_running,
    seat_claim,
    seats,
    sound,
    state,
)
from harness.suite import for_all
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.pool import ScalingPolicy
from lcm.placement.limits import PromiseRules
from lcm.placement.promise import PromisedSeats, PromiseRefusal, extend, promise, promise_all
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, Span
from lcm.placement.timeline import BEGINNING, END

LAB = Amount(cpu_millis=1, memory_mb=1, labs=1)
WHOLE = Amount(cpu_millis=4, memory_mb=1, labs=1)


def seat_of(answer: PromisedSeats | PromiseRefusal) -> int:
    assert isinstance(answer, PromisedSeats)
    return answer.seat


def refused(answer: PromisedSeats | PromiseRefusal) -> PromiseRefusal:
    assert isinstance(answer, PromiseRefusal)
    return answer


@for_all(st.lists(st.tuples(st.integers(1, 3), claims), max_size=12), claims)
def test_workers_run_for_claims_boots_and_short_gaps_and_for_nothing_else(
    held: list[tuple[int, Claim]], new: Claim
) -> None:
    pool = filled(seats(), held)
    running = {number: plainly_running(on(pool, number)) for number in (1, 2, 3)}
    for number, plain in running.items():
        assert minutes(pool.runs(number)) == plain
        added = plainly_running([*on(pool, number), new]) - plain
        assert minutes(pool.added_runtime(number, Span(*_span(new)))) == added
    assert pool.time == 60_000_000 * sum(map(len, running.values()))
    for minute in range(-30, 700, 10):
        assert pool.opening.used_at(_micros(minute)) == sum(minute in plain for plain in running.values())


@for_all(books)
def test_what_is_given_back_leaves_nothing_behind(book: list[Claim]) -> None:
    pool = seats()
    story = []
    for number, one in enumerate(book):
        story.append(copy.deepcopy(state(pool)))
        pool.hold(number % 3 + 1, HeldClaim(f"h{number}", one))
    for number in reversed(range(len(book))):
        assert pool.release(number % 3 + 1, f"h{number}")
        assert state(pool) == story.pop()
    assert pool.release(1, "h0") is None
    assert (pool.opening.moments, pool.opening.levels, pool.time) == ([BEGINNING], [0], 0)


@for_all(books)
def test_no_seat_is_promised_twice_and_no_refusal_is_untrue(book: list[Claim]) -> None:
    pool = seats()
    for place, one in enumerate(book):
        before = copy.deepcopy(state(pool))
        answer = promise(pool, one, rules=LONG_BEFORE, slots=0)
        assert state(pool) == before
        fitting = [number for number in (1, 2, 3) if plainly_fits(pool, number, one)]
        if isinstance(answer, PromiseRefusal):
            assert not fitting
            assert answer.reason == ("full" if one.need.within(ROOM) else "too_large")
            assert answer.remedy
        else:
            cheapest = min(fitting, key=lambda number: (_added(pool, number, one), number))
            assert answer.seat == cheapest
            pool.hold(answer.seat, HeldClaim(f"h{place}", one))
    assert sound(pool)


@for_all(books, st.integers(1, 5))
def test_a_group_is_promised_as_a_whole_or_not_at_all(book: list[Claim], people: int) -> None:
    pool = filled(seats(), [(number % 3 + 1, one) for number, one in enumerate(book[:2])])
    group = [one for one in book[2:4] for _ in range(people)]
    before = copy.deepcopy(state(pool))
    answer = promise_all(pool, group, rules=LONG_BEFORE, slots=1)
    assert state(pool) == before
    if isinstance(answer, PromisedSeats):
        was_sound = sound(pool)
        for place, (number, one) in enumerate(zip(answer.seats, group, strict=True)):
            pool.hold(number, HeldClaim(f"g{place}", one))
        assert sound(pool) or not was_sound
    else:
        assert group


def test_a_class_that_no_slot_takes_is_told_how_many_fit_then_and_how_many_ever() -> None:
    pool = filled(seats(2), [(1, seat_claim(60, 120, LAB))])
    answer = refused(promise_all(pool, [seat_claim(60, 120, LAB)] * 9, rules=LONG_BEFORE))
    assert (answer.reason, answer.nearest) == ("full", ())
    assert answer.details.startswith("5 of 9 fit then; this pool holds 6 at once: all 2 planned workers are taken")
    assert answer.remedy == (
        "book 5 then and the others at another time, at most 6 at once, or raise the pool's max_workers"
    )


def test_a_series_is_told_which_of_its_slots_has_too_little_room() -> None:
    pool = filled(seats(1), [(1, seat_claim(300, 360, LAB))])
    days = [seat_claim(start, start + 60, LAB) for start in (60, 300, 600) for _ in range(3)]
    answer = refused(promise_all(pool, days, rules=LONG_BEFORE))
    assert answer.details.startswith("2 of 3 fit at 2026-11-02 05:00Z; this pool holds 3 at once")
    assert answer.nearest, "the whole series fits a little later"
    assert answer.remedy.startswith("choose one of the nearest free slots")


def test_one_that_is_refused_for_lack_of_room_is_told_how_many_the_pool_holds() -> None:
    pool = filled(seats(1), [(1, seat_claim(60, 120, LAB))] * 3)
    answer = refused(promise(pool, seat_claim(60, 120, LAB), rules=LONG_BEFORE))
    assert answer.details.endswith("; this pool holds 3 at once")


def test_a_refused_class_gets_slots_for_the_whole_class() -> None:
    pool = filled(seats(1), [(1, seat_claim(60, 120, LAB))])
    answer = refused(promise_all(pool, [seat_claim(60, 120, LAB)] * 3, rules=LONG_BEFORE))
    assert answer.nearest == tuple(timedelta(minutes=shift) for shift in (-60, 60, -75))


def test_a_seat_in_use_that_ends_at_the_same_time_is_preferred() -> None:
    pool = filled(seats(3), [(1, seat_claim(0, 60, LAB)), (2, seat_claim(60, 240, LAB)), (3, seat_claim(60, 300, LAB))])
    assert seat_of(promise(pool, seat_claim(60, 240, LAB), rules=LONG_BEFORE)) == 2
    assert seat_of(promise(pool, seat_claim(60, 300, LAB), rules=LONG_BEFORE)) == 3
    assert seat_of(promise(pool, seat_claim(0, 60, LAB), rules=LONG_BEFORE)) == 1


def test_a_gap_is_bridged_rather_than_another_worker_booted() -> None:
    pool = filled(seats(2), [(2, seat_claim(60, 120, WHOLE))])
    assert seat_of(promise(pool, seat_claim(140, 200, WHOLE), rules=LONG_BEFORE)) == 2
    assert seat_of(promise(pool, seat_claim(60, 120, WHOLE), rules=LONG_BEFORE)) == 1


def test_a_standing_worker_costs_nothing_more() -> None:
    pool = filled(seats(2, standing=1), [(2, seat_claim(60, 120, LAB))])
    assert seat_of(promise(pool, seat_claim(60, 240, LAB), rules=LONG_BEFORE)) == 1
    assert pool.added_runtime(1, Span(0, END)) == []


def test_a_claim_of_nothing_keeps_its_worker_too() -> None:
    pool = filled(seats(1), [(1, seat_claim(60, 120, Amount()))])
    assert minutes(pool.runs(1)) == set(range(60 - 25, 120))


def test_a_seat_whose_worker_turned_out_smaller_takes_less() -> None:
    pool = Seats(ROOM, 2, lead=timedelta(0), smaller={1: Amount(cpu_millis=2, memory_mb=99, labs=3)})
    assert pool[1].capacity == Amount(cpu_millis=2, memory_mb=6, labs=3)
    assert seat_of(promise(pool, seat_claim(60, 120, LAB), rules=LONG_BEFORE)) == 1
    assert seat_of(promise(pool, seat_claim(60, 120, WHOLE), rules=LONG_BEFORE)) == 2
    assert minutes(pool.runs(1)) == set()


@pytest.mark.parametrize("policy", [ScalingPolicy.NONE, ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED])
def test_only_what_has_a_worker_is_promised_where_bookings_open_no_seat(policy: ScalingPolicy) -> None:
    pool = seats(3)
    rules = PromiseRules(EARLY, policy, usable={2: at(0)})
    assert seat_of(promise(pool, seat_claim(60, 120, WHOLE), rules=rules)) == 2
    pool.hold(2, HeldClaim("first", seat_claim(60, 120, WHOLE)))
    answer = refused(promise(pool, seat_claim(60, 120, LAB), rules=rules))
    assert (answer.reason, answer.nearest[0]) == ("full", timedelta(minutes=-60))
    assert answer.details.startswith(
        "the 1 worker of the pool is taken: planned worker 2 is short of cpu at 2026-11-02 01:00Z"
    )
    assert refused(promise(pool, seat_claim(60, 120, LAB), rules=PromiseRules(EARLY, policy))).reason == "no_worker"


@pytest.mark.parametrize("policy", [ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID])
def test_every_seat_is_promised_where_bookings_open_them(policy: ScalingPolicy) -> None:
    pool = seats(3)
    for place in range(9):
        pool.hold(
            seat_of(promise(pool, seat_claim(60, 120, LAB), rules=PromiseRules(EARLY, policy))),
            HeldClaim(f"h{place}", _nine()),
        )
    assert refused(promise(pool, _nine(), rules=PromiseRules(EARLY, policy))).details.startswith(
        "all 3 planned workers are taken: "
    )


def test_what_no_worker_could_boot_for_in_time_is_refused() -> None:
    answer = refused(promise(seats(), seat_claim(60, 120, LAB), rules=PromiseRules(at(40))))
    assert (answer.reason, answer.nearest) == ("too_soon", tuple(timedelta(minutes=n) for n in (15, 30, 45)))
    assert "from 2026-11-02 01:05Z on" in answer.details
    close = PromiseRules(at(35) + timedelta(seconds=20))
    assert refused(promise(seats(), seat_claim(60, 120, LAB), rules=close)).details == (
        "planned worker 1 has a machine from 2026-11-02 01:00:20Z on, and the claim begins 2026-11-02 01:00:00Z"
    )
    assert seat_of(promise(seats(), seat_claim(60, 120, LAB), rules=PromiseRules(at(35)))) == 1


def test_a_worker_that_is_there_can_be_used_at_once() -> None:
    rules = PromiseRules(at(50), usable={2: at(40)})
    assert seat_of(promise(seats(), seat_claim(60, 120, LAB), rules=rules)) == 2
    assert (
        refused(promise(seats(), seat_claim(60, 120, LAB), rules=PromiseRules(at(50), usable={2: at(61)}))).reason
        == "too_soon"
    )


def test_nobody_is_promised_the_past() -> None:
    assert (
        refused(promise(seats(), seat_claim(60, 120, LAB), rules=PromiseRules(at(61), usable={1: at(0)}))).reason
        == "too_soon"
    )


def test_extending_is_checked_again_and_only_for_what_is_new() -> None:
    pool = filled(seats(2), [(1, seat_claim(60, 120, WHOLE)), (1, seat_claim(150, 200, LAB))])
    mine = pool[1].held["h0"]
    now = PromiseRules(at(70), usable={1: at(60)})
    longer = HeldClaim(mine.holder, seat_claim(60, 150, WHOLE))
    assert extend(pool, 1, longer, rules=now) == PromisedSeats((1,))
    answer = refused(extend(pool, 1, HeldClaim(mine.holder, seat_claim(60, 160, WHOLE)), rules=now))
    assert (answer.reason, answer.nearest) == ("full", ())
    assert extend(pool, 1, HeldClaim(mine.holder, seat_claim(60, 100, WHOLE)), rules=now) == PromisedSeats((1,))


@for_all(claims, needs)
def test_holding_again_takes_the_place_of_what_was_held(one: Claim, need: Amount) -> None:
    pool = filled(seats(1), [(1, one)])
    other = Claim(start=one.end, end=one.end + timedelta(hours=1), need=need)
    pool.hold(1, HeldClaim("h0", other))
    assert state(pool) == state(filled(seats(1), [(1, other)]))


def test_lesson_20_five_hundred_sessions_for_nine_o_clock_are_promised_up_to_capacity_and_no_farther() -> None:
    pool = Seats(given.machine(), 10, lead=timedelta(minutes=25))
    rules = PromiseRules(given.moment("07:00"))
    nine = given.claim("08:45", "11:10", cpu_millis=4_000)
    answers = []
    for number in range(500):
        answers.append(promise(pool, nine, rules=rules))
        if isinstance(answers[-1], PromisedSeats):
            pool.hold(answers[-1].seat, HeldClaim(f"s{number}", nine))
    assert [isinstance(answer, PromisedSeats) for answer in answers] == [True] * 120 + [False] * 380
    last = answers[-1]
    assert isinstance(last, PromiseRefusal)
    assert last.reason == "full"
    assert last.nearest == tuple(timedelta(minutes=minutes) for minutes in (150, 165, 180))
    assert all(len(pool[number].held) == 12 for number in range(1, 11))


def _nine() -> Claim:
    return seat_claim(60, 120, LAB)


def _span(one: Claim) -> tuple[int, int]:
    return _micros(min(covered(one))), _micros(max(covered(one)) + 1)


def _micros(minute: int) -> int:
    return round((at(minute)).timestamp() * 1_000_000)


def _added(pool: Seats, number: int, one: Claim) -> int:
    return len(plainly_running([*on(pool, number), one])) - len(plainly_running(on(pool, number)))
