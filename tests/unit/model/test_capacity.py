"""Capacity at a moment and over time, held against the plain definition at every half hour of a day."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest
from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.model.base.capacity import (
    DIMENSIONS,
    ZERO_AMOUNT,
    Amount,
    Claim,
    Profile,
    can_accommodate,
    find_exceeded,
    utilization,
)

LAST = 12
START = given.moment("08:00")
HALF = timedelta(minutes=30)
HOUR = timedelta(hours=1)
SAMPLES = [START + halves * HALF for halves in range(-3, 2 * LAST + 20)]


def claim(start: int, end: int, need: Amount) -> Claim:
    return Claim(start=START + start * HOUR, end=START + end * HOUR, need=need)


amounts = st.builds(Amount, cpu_millis=st.integers(0, 3), memory_mb=st.integers(0, 3), labs=st.integers(0, 1))
rooms = st.builds(Amount, cpu_millis=st.integers(0, 6), memory_mb=st.integers(0, 6), labs=st.integers(0, 3))
claims = st.lists(st.builds(claim, st.integers(0, LAST), st.integers(0, LAST), amounts), max_size=8)
moments = st.integers(-2, 2 * LAST + 2).map(lambda halves: START + halves * HALF)
lengths = st.integers(1, 6).map(lambda halves: halves * HALF)


def plainly_at(several: Iterable[Claim], moment: datetime) -> Amount:
    return sum((one.need for one in several if one.start <= moment < one.end), start=ZERO_AMOUNT)


def plainly_fits(several: Iterable[Claim], new: Claim, room: Amount) -> bool:
    covered = [moment for moment in SAMPLES if new.start <= moment < new.end]
    return all((plainly_at(several, moment) + new.need).within(room) for moment in covered)


@for_all(claims)
def test_a_profile_is_the_sum_of_its_claims_at_every_moment(several: list[Claim]) -> None:
    profile = Profile.of(several)
    for moment in SAMPLES:
        assert profile.at(moment) == plainly_at(several, moment)


@for_all(claims, moments, moments)
def test_the_peak_is_the_greatest_claim_in_each_dimension(several: list[Claim], start: datetime, end: datetime) -> None:
    peak = Profile.of(several).peak(start, end)
    seen = [plainly_at(several, moment) for moment in SAMPLES if start <= moment < end]
    for name in DIMENSIONS:
        assert getattr(peak, name) == max((getattr(one, name) for one in seen), default=0)


@for_all(claims, moments, lengths, amounts, rooms)
def test_a_claim_fits_when_it_fits_at_every_moment(
    several: list[Claim], start: datetime, length: timedelta, need: Amount, room: Amount
) -> None:
    new = Claim(start=start, end=start + length, need=need)
    assert Profile.of(several).fits(new, room) is plainly_fits(several, new, room)


@for_all(claims, moments, lengths, amounts, rooms)
def test_the_earliest_start_fits_and_none_before_it_does(
    several: list[Claim], not_before: datetime, length: timedelta, need: Amount, room: Amount
) -> None:
    starts = [moment for moment in SAMPLES if moment >= not_before]
    fitting = (s for s in starts if plainly_fits(several, Claim(start=s, end=s + length, need=need), room))
    want = next(fitting, None)
    assert Profile.of(several).earliest(need, room, length=length, not_before=not_before) == want


@for_all(claims, rooms)
def test_the_overcommitted_spans_cover_exactly_the_moments_with_too_much(several: list[Claim], room: Amount) -> None:
    spans = Profile.of(several).find_overcommitted(room)
    for moment in SAMPLES:
        covered = any(start <= moment < end for start, end in spans)
        assert covered is not plainly_at(several, moment).within(room)


@for_all(claims)
def test_the_order_of_claims_does_not_matter(several: list[Claim]) -> None:
    assert Profile.of(several) == Profile.of(reversed(several))


@for_all(amounts, amounts)
def test_what_is_added_can_be_taken_away(left: Amount, right: Amount) -> None:
    assert left + right - right == left


def test_one_claim_may_begin_when_another_ends() -> None:
    first, second = given.claim("09:00", "10:00"), given.claim("10:00", "11:00")
    profile = Profile.of([first])
    assert profile.fits(second, first.need)
    assert not profile.fits(given.claim("09:59", "11:00"), first.need)
    assert not first.overlaps(second.start, second.end)
    assert not second.overlaps(first.start, first.end)
    assert first.overlaps(given.moment("09:59"), second.end)
    assert profile.at(given.moment("10:00")) == ZERO_AMOUNT
    assert profile.at(given.moment("09:00")) == first.need


def test_a_claim_that_ends_before_it_begins_covers_nothing() -> None:
    assert Profile.of([given.claim("10:00", "09:00"), given.claim("10:00", "10:00")]) == Profile()


def test_the_same_moment_in_two_offsets_is_one_moment() -> None:
    there = given.moment("10:00").astimezone(datetime.fromisoformat("2026-01-01T00:00:00+02:00").tzinfo)
    first, second = given.claim("09:00", "10:00"), Claim(start=there, end=there + HOUR, need=given.amount())
    assert Profile.of([first]).fits(second, first.need)


def test_64_gib_are_refused_where_42_are_free() -> None:
    declared, claimed = given.machine(memory_mb=96 * 1024), given.amount(memory_mb=54 * 1024)
    assert not can_accommodate(declared, claimed, given.amount(memory_mb=64 * 1024))
    assert can_accommodate(declared, claimed, given.amount(memory_mb=42 * 1024))
    profile = Profile.of([given.claim("09:00", "11:00", memory_mb=54 * 1024)])
    assert not profile.fits(given.claim("10:00", "12:00", memory_mb=64 * 1024), declared)
    assert profile.fits(given.claim("11:00", "12:00", memory_mb=64 * 1024), declared)


@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_dimension_can_refuse(name: str) -> None:
    room = given.machine()
    need = given.amount(**{name: getattr(room, name) + 1})
    assert find_exceeded(need, room) == [name]
    assert not need.within(room)
    assert not can_accommodate(room, ZERO_AMOUNT, need)
    assert Profile().earliest(need, room, length=HOUR, not_before=START) is None


def test_a_full_worker_offers_the_first_end_that_leaves_room_for_long_enough() -> None:
    room = given.amount()
    profile = Profile.of([given.claim("09:00", "10:00"), given.claim("11:00", "12:00")])
    at_nine = given.moment("09:00")
    assert profile.earliest(room, room, length=HOUR, not_before=at_nine) == given.moment("10:00")
    assert profile.earliest(room, room, length=2 * HOUR, not_before=at_nine) == given.moment("12:00")


def test_500_sessions_for_nine_o_clock_are_not_all_accepted() -> None:
    room, accepted = given.machine(), list[Claim]()
    for _ in range(500):
        if Profile.of(accepted).fits(given.claim(), room):
            accepted.append(given.claim())
    assert len(accepted) == 12
    assert not Profile.of(accepted).find_overcommitted(room)


def test_utilization_is_the_used_fraction_of_each_dimension() -> None:
    used = utilization(given.amount(cpu_millis=12_000, labs=5, ports=0), given.machine())
    assert (used["cpu_millis"], used["labs"], used["ports"]) == (0.25, 0.25, 0.0)
    assert set(used) == set(DIMENSIONS)


def test_a_dimension_of_size_nothing_is_full_once_anything_uses_it() -> None:
    assert utilization(Amount(labs=1), ZERO_AMOUNT)["labs"] == 1.0
    assert utilization(ZERO_AMOUNT, ZERO_AMOUNT)["labs"] == 0.0


def test_an_overcommitted_worker_shows_how_far_below_zero_it_is() -> None:
    assert (given.amount(labs=2) - given.amount(labs=5)).labs == -3
