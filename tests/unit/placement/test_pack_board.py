"""The board, the bound, and the seat of an arrival."""

from datetime import timedelta

from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.pack_board import NOWHERE, NeedLanes, PackBoard, PackTerms
from lcm.placement.pack_bound import DemandSums, MachineCount, lower_bound, total_time
from lcm.placement.pack_build import Chance, StepBudget, fill_holes, fill_seat_by_seat
from lcm.placement.pack_moves import PackSearch
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, span_of

MACHINE = Amount(cpu_millis=8, memory_mb=8, nodes=8, labs=4)
LEAD = timedelta(minutes=25)
MINUTE = 60_000_000


def made_board(seats: int = 3) -> PackBoard:
    return PackBoard(PackTerms(MACHINE, seats, LEAD))


def add(board: PackBoard, start: int, end: int, **need: int) -> int:
    return board.add(start * MINUTE, end * MINUTE, Amount(**need))


def claim_of(start: str, end: str, **need: int) -> Claim:
    return Claim(start=given.moment(start), end=given.moment(end), need=Amount(**need))


@for_all(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300)), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_machine_time_is_counted_as_the_seats_of_a_pool_do(spans: list[tuple[int, int]]) -> None:
    board, seats = made_board(), Seats(MACHINE, 3, lead=LEAD)
    for number, (start, length) in enumerate(spans):
        begin = given.moment("00:00") + timedelta(minutes=start)
        claim = Claim(start=begin, end=begin + timedelta(minutes=length), need=Amount(labs=1))
        board.put(board.add(*span_of(claim), claim.need), number % 3)
        seats.hold(1 + number % 3, HeldClaim(f"s{number}", claim))
        assert board.cost == seats.time
    for number in range(len(spans)):
        board.take(number)
        seats.release(1 + number % 3, f"s{number}")
        assert board.cost == seats.time


def test_changes_are_undone_as_a_whole() -> None:
    board = made_board()
    one, two = add(board, 0, 60, cpu_millis=5), add(board, 30, 90, cpu_millis=5)
    board.put(one, 0)
    cost = board.begin()
    board.take(one)
    board.put(two, 0)
    board.put(one, 1)
    board.undo(cost)
    assert (board.at, board.cost) == ([0, NOWHERE], cost)
    assert board.claims_between(0, 0, 60 * MINUTE) == [one]


def test_a_need_that_is_too_large_fits_nowhere_and_does_not_spill() -> None:
    lanes = NeedLanes(MACHINE)
    assert lanes.fractions(lanes.pack(Amount(cpu_millis=10**12, memory_mb=4)))[:3] == [9 / 8, 0.5, 0.0]
    board = made_board()
    assert not board.fits(add(board, 0, 60, cpu_millis=10**12), 0)
    assert not board.fits(add(board, 0, 60, storage_mb=1), 0)


def test_a_run_is_a_time_without_a_pause() -> None:
    board = made_board()
    first, second, apart = add(board, 0, 60, labs=1), add(board, 60, 90, labs=1), add(board, 95, 120, labs=1)
    for one in (first, second, apart):
        board.put(one, 0)
    assert board.run_around(second) == (0, 90 * MINUTE)
    assert board.seats_in_use() == [0, 1]
    assert board.busy_seats([0, 1], 92 * MINUTE) == []
    assert made_board(1).seats_in_use() == [0]


def test_large_claims_need_more_machines_than_their_sum() -> None:
    for size, machines in ((5, 3), (3, 2)):
        sums = DemandSums(MACHINE)
        for _ in range(3):
            sums.add(claim_of("09:00", "10:00", cpu_millis=size))
        assert sums.count_machines()[0].machines == machines


def test_a_claim_of_nothing_needs_a_machine_and_one_of_no_time_none() -> None:
    assert lower_bound([claim_of("09:00", "10:00")], MACHINE, LEAD) == 85 * MINUTE
    assert lower_bound([claim_of("09:00", "09:00", cpu_millis=1)], MACHINE, LEAD) == 0


def test_a_machine_is_kept_or_started_again_whichever_is_less() -> None:
    counts = [MachineCount(0, 1), MachineCount(10, 0), MachineCount(13, 1), MachineCount(20, 0), MachineCount(90, 1)]
    assert total_time([*counts, MachineCount(100, 0)], 5) == 5 + 10 + 3 + 7 + 5 + 10


def test_a_seat_is_filled_before_the_next_is_opened() -> None:
    board = made_board()
    sizes = ((6, 2), (2, 6), (4, 4), (4, 4))
    claims = [add(board, 0, 60, cpu_millis=cores, memory_mb=memory) for cores, memory in sizes]
    fill_seat_by_seat(board, claims, StepBudget(1_000))
    assert board.at[0] == board.at[1]
    assert board.at[2] == board.at[3]


def test_holes_are_filled_only_where_no_machine_runs_longer() -> None:
    board = made_board()
    spans = ((0, 120, 5), (30, 60, 3), (90, 150, 1), (0, 120, 4))
    there, inside, late, large = (add(board, start, end, cpu_millis=need) for start, end, need in spans)
    board.put(there, 0)
    before = board.cost
    fill_holes(board, [late, inside, large])
    assert (board.at, board.cost) == ([0, 0, NOWHERE, NOWHERE], before)


def test_a_fixed_claim_is_neither_shuffled_nor_trimmed() -> None:
    board = made_board()
    claims = [add(board, 10 * number, 60 + 10 * number, cpu_millis=3) for number in range(6)]
    for number, one in enumerate(claims):
        board.put(one, number % 3)
    before = board.at.copy()
    search = PackSearch(board, claims, frozenset(claims), Chance(1), StepBudget(1_000))
    search.run(0)
    assert board.at == before


def test_a_search_ends_with_its_steps() -> None:
    board = made_board(12)
    claims = [add(board, 7 * number % 300, 60 + 11 * number % 400, cpu_millis=1 + number % 4) for number in range(40)]
    claims = [one for one in claims if board.starts[one] < board.ends[one]]
    for number, one in enumerate(claims):
        board.put(one, number % 12)
    before, budget = board.cost, StepBudget(5_000)
    PackSearch(board, claims, frozenset(), Chance(1), budget).run(0)
    assert -20_000 < budget.left <= 0
    assert board.cost < before


def test_chance_is_the_same_for_the_same_seed_and_fills_its_range() -> None:
    drawn = [Chance(7).below(10), *(Chance(seed).below(10) for seed in range(200))]
    assert drawn[0] == drawn[8]
    one = Chance(3)
    assert {one.below(10) for _ in range(300)} == set(range(10))
