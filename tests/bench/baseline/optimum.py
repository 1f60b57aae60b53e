"""The fewest worker-hours for a timetable that is known as a whole, proven by CP-SAT. Only the bench imports this."""

import math
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import NamedTuple

from ortools.sat.python import cp_model

from lcm.model.base.capacity import DIMENSIONS, Amount
from lcm.placement.request import HeldClaim
from lcm.placement.seats import span_of

_MINUTE = 60_000_000
_PACKING_SECONDS = 10.0


class Optimum(NamedTuple):
    """Worker-hours of the best seating found, and what no seating can be below; `proven` if they are the same."""

    hours: float
    bound: float
    proven: bool


def optimum(
    book: Sequence[HeldClaim], capacity: Amount, seats: int, lead: timedelta, *, hint: Sequence[int], seconds: float
) -> Optimum:
    """Seat a whole timetable in a pool of so many seats; `hint` gives a seat from 0 for each booking."""
    model = _Model(book, capacity, seats)
    model.rule(lead // timedelta(minutes=1))
    model.hint(hint)
    return model.solve(seconds)


class _Model:
    """Which booking sits where, and which seat has a worker between any two moments at which anything changes."""

    def __init__(self, book: Sequence[HeldClaim], capacity: Amount, seats: int) -> None:
        self.cp = cp_model.CpModel()
        self.spans = [tuple(moment // _MINUTE for moment in span_of(held.claim)) for held in book]
        self.needs = [held.claim.need for held in book]
        self.capacity = capacity
        self.order = sorted(range(len(book)), key=lambda number: self.spans[number])
        self.cells = list(pairwise(sorted({moment for span in self.spans for moment in span})))
        self.sits = [[self.cp.new_bool_var("") for _ in range(seats)] for _ in book]
        self.runs = [[self.cp.new_bool_var("") for _ in self.cells] for _ in range(seats)]

    def rule(self, lead: int) -> None:
        for row in self.sits:
            self.cp.add_exactly_one(row)
        for cell in range(len(self.cells)):
            self._rooms(cell)
        self._break_symmetry()
        starts = [start for row in self.runs for start in self._starts(row)]
        lengths = [end - begin for begin, end in self.cells]
        running = [length * run for row in self.runs for length, run in zip(lengths, row, strict=True)]
        self.cp.minimize(sum(running) + lead * sum(starts))

    def hint(self, hint: Sequence[int]) -> None:
        renamed: dict[int, int] = {}
        for number in self.order:
            seat = renamed.setdefault(hint[number], len(renamed))
            for other, variable in enumerate(self.sits[number]):
                self.cp.add_hint(variable, seat == other)

    def solve(self, seconds: float) -> Optimum:
        solver = _solver(seconds)
        proven = solver.solve(self.cp) == cp_model.OPTIMAL
        return Optimum(solver.objective_value / 60, solver.best_objective_bound / 60, proven)

    def _rooms(self, cell: int) -> None:
        begin, end = self.cells[cell]
        there = [number for number, span in enumerate(self.spans) if span[0] <= begin and end <= span[1]]
        for seat, row in enumerate(self.runs):
            for number in there:
                self.cp.add_implication(self.sits[number][seat], row[cell])
            for weights, most in _weights([self.needs[number] for number in there], self.capacity):
                used = sum(weight * self.sits[number][seat] for weight, number in zip(weights, there, strict=True))
                self.cp.add(used <= most * row[cell])
        fewest = fewest_seats([self.needs[number] for number in there], self.capacity)
        self.cp.add(sum(row[cell] for row in self.runs) >= fewest)

    def _starts(self, row: Sequence[cp_model.IntVar]) -> list[cp_model.IntVar]:
        starts = [self.cp.new_bool_var("") for _ in row]
        self.cp.add_implication(row[0], starts[0])
        for (before, now), start in zip(pairwise(row), starts[1:], strict=True):
            self.cp.add_bool_or(now.negated(), before, start)
        return starts

    def _break_symmetry(self) -> None:
        """Let a booking sit on a seat only if an earlier one sits on the seat before."""
        for place, number in enumerate(self.order):
            for seat, variable in enumerate(self.sits[number]):
                if seat:
                    earlier = [self.sits[other][seat - 1] for other in self.order[:place]]
                    self.cp.add_bool_or(variable.negated(), *earlier)


def fewest_seats(needs: Sequence[Amount], capacity: Amount) -> int:
    """Return how many workers so many labs need at one moment, at least: exactly, if that is found in time."""
    if not needs:
        return 0
    seats = len(needs)
    cp = cp_model.CpModel()
    sits = [[cp.new_bool_var("") for _ in range(seats)] for _ in needs]
    used = [cp.new_bool_var("") for _ in range(seats)]
    for place, row in enumerate(sits):
        cp.add_exactly_one(row)
        for seat in range(place + 1, seats):
            cp.add(row[seat] == 0)
    for seat in range(seats):
        for number in range(len(needs)):
            cp.add_implication(sits[number][seat], used[seat])
        for weights, most in _weights(needs, capacity):
            cp.add(sum(w * row[seat] for w, row in zip(weights, sits, strict=True)) <= most * used[seat])
    for before, after in pairwise(used):
        cp.add_implication(after, before)
    cp.minimize(sum(used))
    solver = _solver(_PACKING_SECONDS)
    solver.solve(cp)
    return math.ceil(solver.best_objective_bound - 1e-6)


def _solver(seconds: float) -> cp_model.CpSolver:
    """Limit the work rather than the time, so that a busy machine proves as much as an idle one."""
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = 4 * seconds
    solver.parameters.random_seed = 1
    return solver


def _weights(needs: Sequence[Amount], capacity: Amount) -> list[tuple[list[int], int]]:
    """Return the dimensions in which these needs could be too much, in the smallest whole numbers."""
    found = []
    for name in DIMENSIONS:
        weights, most = [getattr(need, name) for need in needs], getattr(capacity, name)
        if sum(weights) > most:
            divisor = math.gcd(*weights, most)
            found.append(([weight // divisor for weight in weights], most // divisor))
    return found
