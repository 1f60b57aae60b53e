"""The lower bound: what it is by hand, and that no schedule is below it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

from harness.suite import for_all
from lcm.model.base.capacity import Amount, Claim, Profile, can_accommodate
from lcm.sim.plan.results import PricedMachine, bound_of

NINE = datetime(2027, 3, 1, 9, tzinfo=UTC)
MACHINE = Amount(cpu_millis=48_000, memory_mb=192_000, storage_mb=250_000, nodes=200, ports=6000, labs=20)


def claim(start_hour: int, hours: int, cpu: int, memory: int = 0) -> Claim:
    start = NINE + timedelta(hours=start_hour)
    need = Amount(cpu_millis=cpu * 1000, memory_mb=memory * 1000, labs=1)
    return Claim(start=start, end=start + timedelta(hours=hours), need=need)


def test_the_bound_of_a_weekend_is_what_it_is_by_hand() -> None:
    # 20 labs of 8 CPU for 8 h are 160 CPU on machines of 48: 4 machines, 32 h. 10 of them for 4 h: 80 CPU, 2, 8 h.
    saturday, sunday = [claim(0, 8, 8)] * 20, [claim(24, 4, 8)] * 10
    found = bound_of({"a": saturday + sunday}, {"a": [PricedMachine(MACHINE, Decimal("4.00"))]})
    assert (found.hours, found.usd, found.peak) == (Decimal(40), Decimal(160), 4)


def test_the_fullest_dimension_counts() -> None:
    # 10 labs of 40 GB are 400 GB on machines of 192: 3 machines, though 40 CPU would fit into one.
    assert bound_of({"a": [claim(0, 1, 4, 40)] * 10}, {"a": [PricedMachine(MACHINE, None)]}).peak == 3
    assert bound_of({"a": [claim(0, 1, 0)] * 21}, {"a": [PricedMachine(MACHINE, None)]}).peak == 2


def test_a_machine_holds_one_lab_of_more_than_half_of_it() -> None:
    assert bound_of({"a": [claim(0, 1, 25)] * 3}, {"a": [PricedMachine(MACHINE, None)]}).peak == 3


def test_an_unknown_price_leaves_the_cost_open() -> None:
    found = bound_of({"a": [claim(0, 1, 4)]}, {"a": [PricedMachine(MACHINE, None)]})
    assert (found.hours, found.usd) == (Decimal(1), None)


CLAIMS = st.lists(
    st.builds(claim, st.integers(0, 12), st.integers(1, 6), st.integers(1, 48), st.integers(0, 192)), max_size=25
)


@for_all(CLAIMS)
def test_no_schedule_needs_less_than_the_bound(claims: list[Claim]) -> None:
    found = bound_of({"a": claims}, {"a": [PricedMachine(MACHINE, Decimal(1))]})
    hours, peak = first_fit(claims)
    assert found.hours <= hours
    assert found.peak <= peak


def first_fit(claims: Sequence[Claim]) -> tuple[Decimal, int]:
    """Put each on the first machine that has room, which runs only while something is on it."""
    machines: list[list[Claim]] = []
    for one in sorted(claims, key=lambda one: one.start):
        for held in machines:
            if can_accommodate(MACHINE, Profile.of(held).peak(one.start, one.end), one.need):
                held.append(one)
                break
        else:
            machines.append([one])
    seconds = sum(_busy(held) for held in machines)
    return Decimal(seconds) / 3600, len(machines)


def _busy(held: Sequence[Claim]) -> int:
    profile = Profile.of(held)
    return sum(
        int((profile.moments[place + 1] - profile.moments[place]).total_seconds())
        for place, level in enumerate(profile.levels)
        if level.labs
    )
