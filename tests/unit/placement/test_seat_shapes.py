"""Seats that are adjusted when their workers change are the same as seats that are made anew."""

from datetime import timedelta
from random import Random

from harness import given
from lcm.model.base.capacity import ZERO_AMOUNT, Claim
from lcm.placement.places import SeatShapes, adjust_seats, make_seats
from lcm.placement.request import HeldClaim
from lcm.placement.seats import RunLimit, Seats
from lcm.placement.timeline import micros

NOW, HOUR = given.moment("09:00"), timedelta(hours=1)
MOST, LEAD = 5, timedelta(minutes=20)


def shapes(chance: Random) -> SeatShapes:
    numbers = [number for number in range(1, MOST + 3) if chance.random() < 0.5]
    own = {number: given.machine(cpu_millis=chance.choice((16_000, 48_000, 96_000))) for number in numbers}
    taken = {number: given.amount(cpu_millis=2_000) if chance.random() < 0.3 else ZERO_AMOUNT for number in numbers}
    always = frozenset(number for number in range(1, MOST + 1) if chance.random() < 0.3)
    until = (micros(NOW + chance.randrange(20) * HOUR) for _ in range(MOST + 3))
    small = {number: RunLimit(given.machine(cpu_millis=16_000), next(until), 10**9) for number in range(1, MOST + 3)}
    limits = {number: one for number, one in small.items() if number not in own and chance.random() < 0.4}
    return SeatShapes(given.machine(), LEAD, MOST, always, own, taken, limits)


def claims(chance: Random) -> dict[str, tuple[int, HeldClaim]]:
    made = dict[str, tuple[int, HeldClaim]]()
    for number in range(chance.randrange(20)):
        start = NOW + chance.randrange(30) * HOUR / 2
        span = Claim(start=start, end=start + chance.randint(1, 6) * HOUR / 2, need=given.amount())
        made[f"s{number}"] = chance.randint(1, MOST + 2), HeldClaim(f"s{number}", span)
    return made


def described(seats: Seats) -> object:
    numbers = range(1, len(seats) + 1)
    return (
        [(seats[one].capacity, seats[one].strangers, seats[one].timeline.moments, seats[one].held) for one in numbers],
        [list(seats[one].timeline.levels) for one in numbers],
        [seats.runs(one) for one in numbers],
        [(moment, seats.opening.used_at(moment)) for moment in sorted({*seats.opening.moments})],
        (seats.time, seats.always, seats.standing, seats.most),
    )


def fill(seats: Seats, held: dict[str, tuple[int, HeldClaim]]) -> Seats:
    for number, one in held.values():
        seats.hold(number, one)
    return seats


def test_adjusted_seats_are_those_that_would_be_made_anew() -> None:
    for seed in range(200):
        chance = Random(seed)
        held, before = claims(chance), shapes(chance)
        seats = fill(make_seats(before, MOST + 2), held)
        for _ in range(4):
            after = shapes(chance)
            assert adjust_seats(seats, before, after)
            anew = fill(make_seats(after, MOST + 2), held)
            assert described(seats) == described(anew), seed
            before = after


def test_seats_of_another_size_or_lead_are_made_anew() -> None:
    chance = Random(1)
    before = shapes(chance)
    seats = make_seats(before, MOST)
    assert not adjust_seats(seats, before, before._replace(lead=2 * LEAD))
    assert not adjust_seats(seats, before, before._replace(most=MOST + 1))
    assert not adjust_seats(seats, before, before._replace(room=given.machine(cpu_millis=1_000)))
