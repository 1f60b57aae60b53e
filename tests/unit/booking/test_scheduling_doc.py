"""The worked example of docs/scheduling.md is true."""

from datetime import timedelta

from harness import given
from lcm.model.base.capacity import Amount
from lcm.placement.claims import Terms, slot_claim
from lcm.placement.limits import PromiseRules
from lcm.placement.promise import PromisedSeats, promise
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, span_of, total_length

CORES = Amount(cpu_millis=48_000, memory_mb=192 * 1024, storage_mb=250 * 1024, nodes=200, ports=6000, labs=20)
LAB = Amount(cpu_millis=20_000, labs=1)


def test_the_worked_example_takes_the_seats_it_says() -> None:
    terms, rules = Terms(), PromiseRules(now=given.moment("06:00"))
    seats = Seats(CORES, 2, lead=terms.boot + terms.buffer)
    taken, added = [], []
    for name, start, end in (
        ("A", "09:00", "11:00"),
        ("B", "09:00", "12:00"),
        ("C", "10:00", "11:00"),
        ("D", "13:00", "14:00"),
    ):
        claim = slot_claim(given.moment(start), given.moment(end), LAB, terms)
        answer = promise(seats, claim, rules=rules)
        assert isinstance(answer, PromisedSeats)
        taken.append(answer.seat)
        added.append(timedelta(microseconds=total_length(seats.added_runtime(answer.seat, span_of(claim)))))
        seats.hold(answer.seat, HeldClaim(name, claim))
    assert taken == [1, 1, 2, 2]
    minutes = [span // timedelta(minutes=1) for span in added]
    assert minutes == [170, 60, 110, 110]
