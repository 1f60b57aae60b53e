"""Better plans from a plan: claims change seats where machines then run for a shorter time.

Two moves, at places drawn by chance. A run is a time in which a machine has claims without a pause. `trim_run` takes
the claims off that make a run begin early or end late, or all of a short run, and puts them elsewhere; where one does
not fit it takes the place of smaller ones, which then need another. `reshuffle` takes neighbouring claims off some
machines and puts them on again in another order, which is kept if it costs no more: what is equal today may be better
tomorrow. Each look at a seat is a step, and steps are limited.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from lcm.placement.pack_board import NOWHERE, PackBoard
from lcm.placement.pack_build import Chance, StepBudget

_MINUTE: Final = 60_000_000
_REACH: Final = 240 * _MINUTE
"""How far from its moment a reshuffle takes claims off."""
_MOST_TRIMMED: Final = 6
_MOST_SETTLED: Final = 16
"""How many claims find another seat, one after another, for one trim."""
_MOST_WAITING: Final = 8
_SEATS_ASKED: Final = 12
_MOST_SHUFFLED: Final = 12
_OTHER_SEATS: Final = 12
_OVERLOOKED: Final = 0.02
"""How often a reshuffle overlooks a seat, so that it does not always do the same."""
_TRIMS: Final = 2
_RESHUFFLES: Final = 20
"""How many moves of each kind are tried in turn."""
_MISSING_TRIES: Final = 200
"""How often a seat is looked for that could take a claim which has none."""
_PATIENCE: Final = 50
"""After so many turns without a gain, and one more for each claim, the search ends."""
_DRAWS: Final = 8
"""How often a claim is drawn, until one is on a machine that does not always run."""
_MOVE_STEPS: Final = 16
"""Taking a claim off and putting it on again takes as long as so many looks."""
_MAX: Final = 1 << 80


class _Ejection(NamedTuple):
    """A seat that takes a claim if another leaves it, at best one that has had few turns and is small."""

    rank: tuple[int, float]
    seat: int
    claim: int


class PackSearch:
    """The search for a better plan, among claims that may move."""

    __slots__ = ("_board", "_budget", "_chance", "_fixed", "_pool", "_seats", "_turns")

    def __init__(
        self, board: PackBoard, movable: Sequence[int], fixed: frozenset[int], chance: Chance, budget: StepBudget
    ) -> None:
        self._board = board
        self._pool = movable
        self._fixed = fixed
        self._chance = chance
        self._budget = budget
        self._seats = board.seats_in_use()
        self._turns: dict[int, int] = {}

    def run(self, enough: int) -> None:
        """Search until a plan costs no more than enough, nothing is gained for long, or the steps are used up."""
        board, budget = self._board, self._budget
        idle, patience, least = 0, _PATIENCE + len(self._pool), board.cost
        while self._pool and self._seats and budget.left > 0 and board.cost > enough and idle < patience:
            budget.left -= (_TRIMS + _RESHUFFLES) * _MOVE_STEPS
            idle, least = (0, board.cost) if board.cost < least else (idle + 1, least)
            self._seats = board.seats_in_use()
            for _ in range(_TRIMS):
                self.trim_run()
            for _ in range(_RESHUFFLES):
                self.reshuffle()

    def seat_missing(self) -> None:
        """Try to find a seat for each claim that has none, by letting others change theirs, at whatever cost."""
        board = self._board
        for claim in [one for one in self._pool if board.at[one] == NOWHERE] if self._seats else ():
            for _ in range(_MISSING_TRIES):
                before = board.begin()
                if self._budget.left <= 0 or self._settle([claim], _MAX):
                    break
                board.undo(before)

    def _draw_claim(self) -> int:
        return self._pool[self._chance.below(len(self._pool))]

    def _draw_to_trim(self) -> int:
        """Draw a claim that is not on a standing seat, where nothing can be saved; NOWHERE if none is found soon."""
        at, standing = self._board.at, self._board.standing
        return next((one for one in (self._draw_claim() for _ in range(_DRAWS)) if at[one] not in standing), NOWHERE)

    def trim_run(self) -> bool:
        """Try to let a run begin later, end earlier or not be at all; return whether that saved time."""
        board = self._board
        claim = self._draw_to_trim()
        if claim == NOWHERE or board.at[claim] == NOWHERE:
            return False
        waiting = self._choose_trimmed(claim)
        if not waiting or not self._fixed.isdisjoint(waiting):
            return False
        before = board.begin()
        for one in waiting:
            board.take(one)
        if board.cost < before and self._settle(waiting, before) and board.cost < before:
            return True
        board.undo(before)
        return False

    def _choose_trimmed(self, claim: int) -> list[int]:
        """Return the claims at an end of a run that take the least for the time they keep the machine running."""
        board, volumes = self._board, self._board.volumes
        start, end = board.run_around(claim)
        there = board.claims_between(board.at[claim], start, end)
        backwards = sorted(there, key=board.ends.__getitem__, reverse=True)
        best, most = [], 0.0
        for row, moments, edge in ((there, board.starts, start), (backwards, board.ends, end)):
            volume = float(20 * _MINUTE)
            for count, one in enumerate(row[: _MOST_TRIMMED + 1]):
                saved = abs(moments[one] - edge) if count else 0
                worth = saved / volume * (0.5 + self._chance.fraction())
                if worth > most:
                    best, most = row[:count], worth
                volume += volumes[one]
        if len(there) <= _MOST_TRIMMED:
            volume = 20 * _MINUTE + sum(volumes[one] for one in there)
            if (end - start + board.lead) / volume * (0.5 + self._chance.fraction()) > most:
                return there
        return best

    def _settle(self, waiting: list[int], limit: int) -> bool:
        """Find seats for claims that wait, the largest first; return whether all have one at less than a limit."""
        board = self._board
        waiting.sort(key=board.volumes.__getitem__)
        for _ in range(_MOST_SETTLED):
            claim = waiting.pop()
            seat = self._choose_cheapest(claim, self._seats, (limit - board.cost) // 2)
            self._budget.left -= len(self._seats) + _MOVE_STEPS
            if seat != NOWHERE:
                board.put(claim, seat)
            else:
                found = self._find_ejection(claim)
                if found is None:
                    return False
                self._turns[claim] = self._turns.get(claim, 0) + 1
                board.take(found.claim)
                board.put(claim, found.seat)
                waiting.append(found.claim)
            if not waiting:
                return True
            if len(waiting) > _MOST_WAITING or board.cost >= limit:
                return False
        return False

    def _find_ejection(self, claim: int) -> _Ejection | None:
        """Return a seat that runs during a claim, and whose place it could take there; None if there is none."""
        board = self._board
        start, end = board.starts[claim], board.ends[claim]
        seats, turn = self._seats, self._chance.below(len(self._seats))
        asked, best = 0, None
        for seat in seats[turn:] + seats[:turn]:
            moments, levels = board.moments[seat], board.levels[seat]
            first = bisect_right(moments, start) - 1
            if not levels[first] or 0 in levels[first : bisect_left(moments, end, first)]:
                continue
            found = self._find_ejected(claim, seat)
            if found is not None and (best is None or found.rank < best.rank):
                best = found
            asked += 1
            if asked == _SEATS_ASKED:
                break
        self._budget.left -= 4 * asked
        return best

    def _find_ejected(self, claim: int, seat: int) -> _Ejection | None:
        board, turns, volumes = self._board, self._turns, self._board.volumes
        moments, levels, starts, ends = board.moments[seat], board.levels[seat], board.starts, board.ends
        room, guards, needs = board.top - board.needs[claim], board.guards, board.needs
        first = bisect_right(moments, starts[claim]) - 1
        last = bisect_left(moments, ends[claim], first)
        full = [place for place in range(first, last) if (room - levels[place]) & guards != guards]
        if not full:
            return None
        begin, stop = max(starts[claim], moments[full[0]]), min(ends[claim], moments[full[-1] + 1])
        best = None
        for one in board.claims_between(seat, begin, begin + 1):
            if ends[one] < stop or one in self._fixed:
                continue
            rank = turns.get(one, 0), volumes[one]
            if best is None or rank < best.rank:
                with_room = room + needs[one]
                for place in full:
                    if (with_room - levels[place]) & guards != guards:
                        break
                else:
                    best = _Ejection(rank, seat, one)
        return best

    def reshuffle(self) -> bool:
        """Put neighbouring claims of some machines on seats anew; return whether the plan changed."""
        board, chance = self._board, self._chance
        claim = self._draw_claim()
        start, end, own = board.starts[claim], board.ends[claim], board.at[claim]
        moment = start + chance.below(end - start)
        busy = board.busy_seats(self._seats, moment)
        if own in busy:
            busy.remove(own)
        turn = chance.below(len(busy) + 1)
        others = busy[turn:] + busy[:turn]
        several = 1 + chance.below(3)
        ruined = [seat for seat in (own, *others[:several]) if seat != NOWHERE]
        off = [one for seat in ruined for one in self._neighbours(seat, moment, len(ruined))]
        off += [claim] * (own == NOWHERE)
        step = max(1, len(others) // _OTHER_SEATS)
        fresh = self._seats[-1:]
        return self._put_anew(off, [*ruined, *others[several::step], *fresh])

    def _neighbours(self, seat: int, moment: int, machines: int) -> list[int]:
        """Return claims of a seat around a moment, the nearest ones."""
        board, chance = self._board, self._chance
        near = board.claims_between(seat, moment - _REACH, moment + _REACH)
        most = 1 + chance.below(3 * max(2, _MOST_SHUFFLED // machines) // 2)
        if len(near) > most:
            starts, ends, fraction = board.starts, board.ends, chance.fraction
            ranked = [
                (max(starts[one] - moment, moment - ends[one], 0) + 30 * _MINUTE * fraction(), one) for one in near
            ]
            near = [one for _, one in sorted(ranked)[:most]]
        return [one for one in near if one not in self._fixed]

    def _put_anew(self, off: list[int], seats: Sequence[int]) -> bool:
        board = self._board
        unplaced = sum(board.at[one] == NOWHERE for one in off)
        if len(off) <= 1 and not unplaced:
            return False
        before = board.begin()
        for one in off:
            if board.at[one] != NOWHERE:
                board.take(one)
        limit = before if not unplaced else _MAX
        self._budget.left -= len(off) * (len(seats) + _MOVE_STEPS)
        for one in self._in_some_order(off):
            seat = self._choose_cheapest(one, seats, limit - board.cost)
            if seat == NOWHERE:
                board.undo(before)
                return False
            board.put(one, seat)
        return True

    def _in_some_order(self, off: list[int]) -> list[int]:
        board, chance = self._board, self._chance
        starts, ends, volumes, drawn = board.starts, board.ends, board.volumes, chance.fraction()
        keys = (
            lambda one: starts[one] - ends[one],
            lambda one: -volumes[one] / (ends[one] - starts[one]),
            lambda one: -ends[one],
            lambda one: starts[one],
            lambda one: one * drawn % 1.0,
            lambda one: -volumes[one],
        )
        return sorted(off, key=keys[chance.below(len(keys))])

    def _choose_cheapest(self, claim: int, seats: Sequence[int], slack: int) -> int:
        """Return the seat on which a claim adds the least time, any of several; NOWHERE if none is within the slack."""
        board, chance = self._board, self._chance
        start, end, room, guards = board.starts[claim], board.ends[claim], board.top - board.needs[claim], board.guards
        home = board.home[claim] if board.price else NOWHERE
        turn, alone = chance.below(len(seats)), end - start - board.gap
        best, least = NOWHERE, slack + 1
        for seat in (*seats[turn:-1], *seats[:turn], seats[-1]):
            moments, levels = board.moments[seat], board.levels[seat]
            first = bisect_right(moments, start) - 1
            level = levels[first]
            if (room - level) & guards != guards or (not level and moments[first + 1] >= end and alone >= least):
                continue
            idle = False
            for level in levels[first : bisect_left(moments, end, first)]:
                if (room - level) & guards != guards:
                    break
                idle = idle or not level
            else:
                added = board.added_time(seat, start, end) if idle else 0
                if home not in {NOWHERE, seat}:
                    added += board.price
                if added < least and chance.fraction() >= _OVERLOOKED:
                    best, least = seat, added
                    if not added:
                        break
        return best
