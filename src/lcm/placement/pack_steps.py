"""From the present plan to a better one, in steps that each keep every promise.

Two plans are feasible, but not everything between them is: a claim may have to wait until another has left the seat it
goes to, and some can only go together, in a ring. A step is a set of claims that change their seats at once; after each
step no seat has more than it holds, so that the process may end after any of them. A claim whose ring would be too
large waits on a seat that has room, if there is one, and else stays where it is. Pure.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from lcm.placement.pack_board import PackBoard

MOST_MOVES: Final = 60
"""The most claims that change their seats in one step: each is a write, and a transaction holds at most 128."""


class BoardMove(NamedTuple):
    """A claim of a board, by number, that changes its seat."""

    claim: int
    before: int
    after: int


class SeatMove(NamedTuple):
    """A holder whose claim changes its seat; seats are numbered from 1."""

    holder: str
    before: int
    after: int


def order_moves(board: PackBoard, plan: Mapping[int, int], most: int = MOST_MOVES) -> list[list[BoardMove]]:
    """Return the steps that bring claims to the seats of a plan, as far as that can be done; the board is changed so.

    No step has more than `most` moves.
    """
    ordering = _MoveOrdering(board, plan, most)
    ordering.run()
    return ordering.steps


class _MoveOrdering:
    """Moves single claims while any fits where it should go, else a ring of them, else one out of the way."""

    def __init__(self, board: PackBoard, plan: Mapping[int, int], most: int) -> None:
        self.steps: list[list[BoardMove]] = []
        self._board = board
        self._most = most
        self._plan = {claim: seat for claim, seat in plan.items() if board.at[claim] != seat}
        self._coming: defaultdict[int, dict[int, None]] = defaultdict(dict)
        """The claims that are to come onto a seat, by seat."""
        self._parked: set[int] = set()
        for claim, seat in self._plan.items():
            self._coming[seat][claim] = None

    def run(self) -> None:
        self._move_singly(list(self._plan))
        while self._plan:
            claim = next(iter(self._plan))
            moved = self._move_ring(claim) or self._park(claim)
            if not moved:
                del self._plan[claim]
                continue
            self._record(moved)
            self._move_singly([one for move in moved for one in self._coming[move.before]])

    def _move_singly(self, claims: list[int]) -> None:
        """Move the claims that fit where they are to go, and then those that wanted the seats these left."""
        board = self._board
        while claims:
            claim = claims.pop()
            seat = self._plan.get(claim)
            if seat is None or not board.fits(claim, seat):
                continue
            move = BoardMove(claim, board.at[claim], seat)
            board.take(claim)
            board.put(claim, seat)
            self._record([move])
            claims += self._coming[move.before]
        board.begin()

    def _move_ring(self, claim: int) -> list[BoardMove]:
        """Move a claim together with those that must leave its seat before; return the moves, none if that fails."""
        board, plan = self._board, self._plan
        before = board.begin()
        ring = [BoardMove(claim, board.at[claim], plan[claim])]
        board.take(claim)
        for one in ring:  # it grows
            if not self._make_room(one, ring):
                board.undo(before)
                return []
            board.put(one.claim, one.after)
        board.begin()
        return ring

    def _make_room(self, move: BoardMove, ring: list[BoardMove]) -> bool:
        """Take claims that are to leave a seat off it, until one that comes fits. Return whether it does."""
        board, plan, seat = self._board, self._plan, move.after
        there = board.claims_between(seat, board.starts[move.claim], board.ends[move.claim])
        leaving = sorted((one for one in there if plan.get(one, seat) != seat), key=lambda one: board.volumes[one])
        while not board.fits(move.claim, seat):
            if not leaving or len(ring) == self._most:
                return False
            ring.append(BoardMove(leaving[-1], seat, plan[leaving[-1]]))
            board.take(leaving.pop())
        return True

    def _park(self, claim: int) -> list[BoardMove]:
        """Move a claim out of the way, to a seat that it leaves later; return the move, none if it was parked."""
        board = self._board
        free = next((seat for seat in reversed(board.open_seats) if board.fits(claim, seat)), None)
        if free is None or claim in self._parked:
            return []
        self._parked.add(claim)
        self._plan[claim] = self._plan.pop(claim)  # its turn is the last
        move = BoardMove(claim, board.at[claim], free)
        board.take(claim)
        board.put(claim, free)
        return [move]

    def _record(self, moves: list[BoardMove]) -> None:
        for one in moves:
            if self._plan[one.claim] == one.after:
                del self._coming[self._plan.pop(one.claim)][one.claim]
        claims = {one.claim for one in moves}
        last = self.steps[-1] if self.steps else None
        if last is None or len(last) + len(moves) > self._most or not claims.isdisjoint(one.claim for one in last):
            self.steps.append(last := [])
        last += moves
