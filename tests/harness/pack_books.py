"""Small books of claims to pack, and what a plan of one is judged by: the pool's own seats count as the packer must."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from hypothesis import strategies as st

from harness import given
from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.placement.pack import Packer, Packing
from lcm.placement.pack_board import PackTerms
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, span_of

MACHINE = Amount(cpu_millis=8, memory_mb=8, nodes=8, labs=4)
LEAD = timedelta(minutes=25)
SEATS = 30


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    """Draw a claim that fits on a machine, within a day."""
    start = given.moment("00:00") + timedelta(minutes=draw(st.integers(0, 40)) * 30)
    sizes = [draw(st.integers(0, 5)) for _ in range(3)]
    need = Amount(cpu_millis=sizes[0], memory_mb=sizes[1], nodes=sizes[2], labs=1)
    return Claim(start=start, end=start + timedelta(minutes=draw(st.integers(1, 16)) * 30), need=need)


def books(most: int = 24) -> st.SearchStrategy[list[HeldClaim]]:
    """Return what draws up to so many claims, each with its holder."""
    return st.lists(claims(), min_size=1, max_size=most).map(
        lambda found: [HeldClaim(f"s{number}", claim) for number, claim in enumerate(found)]
    )


def pool(seats: int = SEATS, price: int = 0) -> PackTerms:
    """Return the terms of a pool; the price of a move is in minutes."""
    return PackTerms(MACHINE, seats, LEAD, move_price=timedelta(minutes=price))


def run_time(
    book: Sequence[HeldClaim], plan: Mapping[str, int], seats: int = SEATS, standing: frozenset[int] = frozenset()
) -> int:
    """Count the machine time of a plan as the pool's own seats do."""
    made = Seats(MACHINE, seats, lead=LEAD, besides=standing)
    for held in book:
        made.hold(plan[held.holder], held)
    return made.time


def is_within_capacity(book: Sequence[HeldClaim], plan: Mapping[str, int], machine: Amount = MACHINE) -> bool:
    """Return whether no seat of a plan ever has more than a machine holds."""
    rows: dict[int, list[Claim]] = {}
    for held in book:
        rows.setdefault(plan[held.holder], []).append(held.claim)
    return not any(Profile.of(row).find_overcommitted(machine) for row in rows.values())


def first_fit(book: Sequence[HeldClaim]) -> dict[str, int]:
    """Return the plan in which each claim in turn has the lowest seat with room."""
    made, plan = Seats(MACHINE, SEATS, lead=LEAD), {}
    for held in book:
        seat = next(n for n in range(1, SEATS + 1) if made.fits(n, span_of(held.claim), held.claim.need))
        made.hold(seat, held)
        plan[held.holder] = seat
    return plan


def pack_with_more(
    packer: Packer, book: Sequence[HeldClaim], extra: Sequence[HeldClaim]
) -> tuple[list[HeldClaim], Packing]:
    """Pack a book, then seat more claims one by one; return all claims, and their plan."""
    for held in book:
        packer.hold(held)
    packer.pack(5_000)
    packer.accept()
    more = [HeldClaim(f"extra {held.holder}", held.claim) for held in extra]
    for held in more:
        packer.hold(held)
        packer.repair(held.holder, 3_000)
    return [*book, *more], packer.packing()
