"""Machines of smaller types: which is chosen for what is claimed, what a seat takes then, and what that costs."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from harness import given
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.pool import SmallRun, WorkerTemplate
from lcm.model.kinds.worker import AwsSpec
from lcm.model.money.prices import SHIPPED_PRICES
from lcm.placement.limits import PromiseRules, forecast_cost
from lcm.placement.request import HeldClaim
from lcm.placement.seat_choice import choose_seat, explain_refusal
from lcm.placement.seats import RunLimit, Seats, Span, span_of
from lcm.placement.small_runs import (
    EXTENSION_ROOM,
    SmallerType,
    choose_small_run,
    find_smaller_types,
    holds_run,
    launched_aws,
    saved_hourly,
    smaller_room,
)
from lcm.placement.timeline import micros

PAUSE = timedelta(minutes=40)
LEAD = timedelta(minutes=25)
NESTED = AwsSpec(instance_type="m8i.12xlarge", nested_virtualization=True, ami_id="ami-1")
HALF, THIRD = (SmallerType(name, given.machine(cpu_millis=cpu), Decimal(cpu)) for name, cpu in (("h", 24), ("t", 16)))
TYPES = tuple(one._replace(room=given.machine(cpu_millis=1000 * int(one.usd_hourly))) for one in (THIRD, HALF))


def template(*smaller: str, aws: AwsSpec = NESTED) -> WorkerTemplate:
    made = given.template()
    return replace(made, spec=replace(made.spec, worker=replace(made.spec.worker, aws=aws), smaller_types=smaller))


def chosen(*claims: Claim) -> tuple[str, str] | None:
    run = choose_small_run(3, claims, TYPES, PAUSE)
    return (run.instance_type, f"{run.until:%H:%M}") if run else None


def test_the_cheapest_type_that_holds_the_run_is_chosen() -> None:
    two_hours = EXTENSION_ROOM // timedelta(hours=1)
    assert chosen(given.claim("09:00", "11:00", cpu_millis=16_000)) == ("t", f"{11 + two_hours}:00")
    assert chosen(given.claim(cpu_millis=10_000), given.claim("10:00", "12:00", cpu_millis=10_000)) == ("h", "14:00")
    assert chosen(given.claim(cpu_millis=20_000), given.claim("10:00", "12:00", cpu_millis=10_000)) is None
    assert chosen() is None


def test_what_follows_after_a_release_gets_another_machine() -> None:
    small, large = given.claim(cpu_millis=10_000), given.claim("12:30", "14:00", cpu_millis=40_000)
    assert chosen(small, large) == ("t", "11:50")
    assert chosen(small, replace(large, start=given.moment("11:39"))) is None  # it is too soon for another


def test_only_types_that_are_known_and_cost_less_are_used() -> None:
    names = ("m8i.16xlarge", "m8i.4xlarge", "m8i.2xlarge")
    found = find_smaller_types(template(*names), SHIPPED_PRICES)
    assert [one.name for one in found] == ["m8i.2xlarge", "m8i.4xlarge"]
    assert found[1].room.cpu_millis == 16_000
    assert found[1].room.memory_mb < 64 * 1024, "the system keeps some of it"
    assert smaller_room(template().spec.worker, "unheard.of") is None
    assert not find_smaller_types(template(*names, aws=replace(NESTED, instance_type="unheard.of")), SHIPPED_PRICES)


def test_if_the_cloud_has_none_larger_ones_are_tried() -> None:
    types = find_smaller_types(template("m8i.2xlarge", "m8i.4xlarge", "c8i.4xlarge"), SHIPPED_PRICES)
    run = SmallRun(number=1, instance_type="m8i.4xlarge", until=given.moment("12:00"))
    made = launched_aws(NESTED, run, types)
    assert (made.instance_type, made.instance_type_alternatives) == ("m8i.4xlarge", ("m8i.12xlarge",))
    first = launched_aws(NESTED, replace(run, instance_type="m8i.2xlarge"), types)
    assert first.instance_type_alternatives == ("c8i.4xlarge", "m8i.4xlarge", "m8i.12xlarge")


def small_seats(until: str = "12:00") -> Seats:
    limit = RunLimit(given.machine(cpu_millis=16_000), micros(given.moment(until)), PAUSE // timedelta.resolution)
    seats = Seats(given.machine(), 2, lead=LEAD, limits={1: limit})
    seats.hold(1, HeldClaim("first", given.claim("09:00", "11:00", cpu_millis=10_000)))
    return seats


@pytest.mark.parametrize(
    ("start", "end", "cpu", "fits"),
    [
        ("10:00", "12:00", 6_000, True),
        ("10:00", "12:00", 7_000, False),
        ("11:00", "12:00", 16_000, True),
        ("11:00", "12:01", 1_000, False),
        ("12:39", "14:00", 1_000, False),
        ("12:40", "14:00", 48_000, True),
    ],
)
def test_a_seat_takes_what_its_smaller_machine_holds_and_later_what_its_template_promises(
    start: str, end: str, cpu: int, *, fits: bool
) -> None:
    span = span_of(given.claim(start, end))
    assert small_seats().fits(1, span, given.amount(cpu_millis=cpu)) is fits


def test_the_limit_of_a_smaller_machine_adds_no_time_to_its_run() -> None:
    plain = Seats(given.machine(), 2, lead=LEAD)
    plain.hold(1, HeldClaim("first", given.claim("09:00", "11:00", cpu_millis=10_000)))
    seats, later = small_seats(), span_of(given.claim("13:30", "15:00"))
    assert (seats.runs(1), seats.time) == (plain.runs(1), plain.time)
    assert seats.added_runtime(1, later) == plain.added_runtime(1, later)
    seats.reshape(1, None, Amount())
    assert seats.fits(1, span_of(given.claim("10:00", "12:30")), given.amount(cpu_millis=38_000))


spans = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda one: (one[0] * 30, (one[0] + one[1]) * 30))


@for_all(st.lists(spans, max_size=8), spans, st.integers(0, 30))
def test_runs_are_the_same_with_and_without_a_limit(
    held: list[tuple[int, int]], more: tuple[int, int], at: int
) -> None:
    def claim_of(span: tuple[int, int]) -> Claim:
        start, end = (given.moment("00:00") + timedelta(minutes=one) for one in span)
        return Claim(start=start, end=end, need=given.amount())

    until = micros(given.moment("00:00") + timedelta(minutes=47 * at))
    limit = RunLimit(given.machine(cpu_millis=1), until, PAUSE // timedelta.resolution)
    plain, small = Seats(given.machine(), 1, lead=LEAD), Seats(given.machine(), 1, lead=LEAD, limits={1: limit})
    for seats in (plain, small):
        for place, span in enumerate(held):
            seats.hold(1, HeldClaim(str(place), claim_of(span)))
    assert small.runs(1) == plain.runs(1)
    assert small.time == plain.time
    assert small.added_runtime(1, span_of(claim_of(more))) == plain.added_runtime(1, span_of(claim_of(more)))


@for_all(st.lists(st.tuples(spans, st.integers(1, 16)), max_size=6), st.tuples(spans, st.integers(1, 48)))
def test_what_a_seat_takes_beside_a_chosen_run_never_breaks_it(
    booked: list[tuple[tuple[int, int], int]], more: tuple[tuple[int, int], int]
) -> None:
    def claim_of(one: tuple[tuple[int, int], int]) -> Claim:
        start, end = (given.moment("00:00") + timedelta(minutes=at) for at in one[0])
        return Claim(start=start, end=end, need=given.amount(cpu_millis=1000 * one[1]))

    claims = list(map(claim_of, booked))
    run = choose_small_run(1, claims, TYPES, PAUSE)
    if run is None:
        return
    room = next(one.room for one in TYPES if one.name == run.instance_type)
    assert holds_run(run, claims, room, PAUSE)
    limit = RunLimit(room, micros(run.until), PAUSE // timedelta.resolution)
    seats = Seats(given.machine(), 1, lead=LEAD, limits={1: limit})
    for place, claim in enumerate(claims):
        seats.hold(1, HeldClaim(str(place), claim))
    last = claim_of(more)
    if seats.fits(1, span_of(last), last.need):
        assert holds_run(run, [*claims, last], room, PAUSE)


def test_a_refusal_says_that_the_machine_is_smaller() -> None:
    rules = PromiseRules(now=given.moment("09:00"), usable={1: given.moment("09:00")}, unsuited=frozenset({2}))
    claim = given.claim("10:00", "11:00", cpu_millis=20_000)
    assert choose_seat(small_seats(), claim, rules) is None
    why, text = explain_refusal(small_seats(), claim, rules, [1])
    assert why == "full"
    assert "with a smaller machine until" in text
    later = replace(claim, start=given.moment("13:30"), end=given.moment("14:00"))
    assert choose_seat(small_seats(), later, rules) == 1


def test_the_forecast_knows_what_smaller_machines_cost() -> None:
    run = SmallRun(number=1, instance_type="m8i.4xlarge", until=given.moment("12:00"))
    saved = saved_hourly(template("m8i.4xlarge"), [run], SHIPPED_PRICES)
    assert saved == {1: (run.until, Decimal("2.54016") - Decimal("0.84672"))}
    rules = PromiseRules(now=given.moment("08:35"), price=Decimal("2.54016"), saved=saved)
    month = Span(micros(given.moment("00:00")), micros(given.moment("00:00", day=20)))
    hours = Decimal(145) / 60
    assert forecast_cost(small_seats(), month, rules) == pytest.approx(hours * Decimal("0.84672"))
