"""Which of many starts one pool would promise. Pure; called by `lcm.control.booking.slots`.

Each start is decided by `choose_seat`, as a booking is. What is found for one start spares work at the next: seats
that took the last ones are asked first, and a seat is not asked again before it can have room.
"""

from collections.abc import Sequence
from typing import Final

from lcm.model.base.capacity import Claim
from lcm.placement.limits import PromiseRules
from lcm.placement.seat_choice import candidate_seats, choose_seat, explain_refusal
from lcm.placement.seats import Seats, span_of
from lcm.placement.timeline import END

_REMEMBERED: Final = 4
"""How many seats that took a claim are asked first for the next one."""
_EXPLAINED: Final = 8
"""How many seats are asked for the reason of a refusal."""


class PoolSurvey:
    """Asks one pool about claims of one need and one length, whose starts ascend.

    What it remembers holds as long as nobody books: make a new one after other tasks have run.
    """

    def __init__(self, seats: Seats, rules: PromiseRules) -> None:
        self._seats = seats
        self._rules = rules
        self._numbers = list(candidate_seats(seats, rules))
        self._latest: list[int] = []
        self._room_from: dict[int, int] = {}

    def ask(self, claim: Claim) -> int | tuple[str, str]:
        """Return a seat that takes a claim, or why none does, in a word and in a sentence."""
        seat = choose_seat(self._seats, claim, self._rules, self._latest) if self._latest else None
        if seat is None:
            open_seats = self._with_room(claim) if claim.start >= self._rules.now else []
            seat = choose_seat(self._seats, claim, self._rules, open_seats)
            if seat is None:
                return explain_refusal(self._seats, claim, self._rules, self._telling(open_seats))
            self._latest = [seat, *self._latest][:_REMEMBERED]
        return seat

    def _with_room(self, claim: Claim) -> Sequence[int]:
        """Return the seats that may have room for a claim; of the others it is known when they can at the earliest."""
        start, end = span_of(claim)
        found = []
        for number in self._numbers:
            if self._room_from.get(number, start) <= start:
                seat = self._seats[number]
                earliest = seat.timeline.earliest(start, end - start, seat.pack_need(claim.need))
                if earliest == start:
                    found.append(number)
                else:
                    self._room_from[number] = END if earliest is None else earliest
        return found

    def _telling(self, open_seats: Sequence[int]) -> Sequence[int] | None:
        """Return the seats whose refusals say the most; None if all are to be asked, which are few then."""
        sized = [number for number in open_seats or self._numbers if number <= self._seats.most]
        return sized[:_EXPLAINED] or None
