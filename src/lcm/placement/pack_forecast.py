"""What sessions that nobody announced are likely to take, learned from those that came. Pure; `pack_arrival` asks it.

It knows how much arrives in each hour of a week, how many last for how long, and what they need. From that follow what
will have arrived by an hour and still be there, what is there in such an hour as a rule, and which of them room would
still take. Room that machines have in an hour to come is worth the more, the more likely it will be wanted: by the
first of these against the room that there is, and by the second against the busiest hour. It is worth more on a machine
that runs on for long, because those that stay long find it only there.

The weights here and in `pack_arrival` lie about midway between the results of two searches (CMA-ES) for the least
machine time on generated months of 1,000, 5,000 and 20,000 sessions, with other seeds than those of the bench.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from math import exp, sqrt
from typing import Final, NamedTuple

from lcm.placement.pack_board import NeedLanes, PackBoard
from lcm.placement.pack_build import RoomValue

_HOUR: Final = 3_600_000_000
_DAY: Final = 24
_WEEK: Final = 7 * _DAY
_AHEAD: Final = 73
"""Hours that are looked at, the current one included; later room is worth as much as that of the last of them."""
_REVIEW: Final = 6 * _HOUR
"""How long one view of what sessions need is kept."""
_MOST_NEEDS: Final = 60
"""Of more different needs than this only those that take the most are asked whether they would fit."""
_MOST_TIMES: Final = 24
"""How often a small need is counted on one machine, at most."""
_MOST_KNOWN_NEEDS: Final = 2_000

_ROOM_POWER: Final = 1.13
_FITTING: Final = 0.25
"""How much the value of room is what would still fit there, rather than the mean of what is left."""
_UNWANTED: Final = 0.88
_WANTED: Final = 1.0
"""What room is worth that will hardly be wanted, and that will be wanted for sure."""
_ARRIVING: Final = 1.37
"""Sessions take more room than they need, by so much."""
_DOUBT: Final = 0.71
_FEWEST: Final = 0.47
_QUIET_POWER: Final = 0.24
"""How much less room is worth in a quiet hour."""
_STEADY_WEIGHT: Final = 0.85
_LASTING_WEIGHT: Final = 0.24


class LikelyRoom(RoomValue):
    """The value of room for sessions like those that came: in part what is left, in part how many would still fit."""

    __slots__ = ("_guards", "_multiples", "_top")

    def __init__(self, lanes: NeedLanes, times: Mapping[int, float]) -> None:
        """Learn from how long each need was there in total; there must be one."""
        wanted = [0.0] * len(lanes.sizes)
        for need, time in times.items():
            for place, part in enumerate(lanes.fractions(need)):
                wanted[place] += part * time
        super().__init__(lanes, wanted, _ROOM_POWER)
        self._top, self._guards = lanes.top, lanes.guards
        taken = {need: time * self.share_of(need) for need, time in times.items()}
        most = sorted(taken, key=taken.__getitem__, reverse=True)[:_MOST_NEEDS]
        total = sum(taken[need] for need in most) or 1.0
        rows = [(taken[need] / total, self._multiples_of(need)) for need in most]
        self._multiples = [(weight / len(several), several) for weight, several in rows if several]

    def _multiples_of(self, need: int) -> Sequence[int]:
        """Return a need once, twice and so on, as often as a machine holds it."""
        several = (need * times for times in range(1, _MOST_TIMES + 1))
        return list(takewhile(lambda one: (self._top - one) & self._guards == self._guards, several))

    def judge(self, level: int) -> float:
        """Return the value of what a level leaves."""
        room, guards, fitting = self._top - level, self._guards, 0.0
        for weight, several in self._multiples:
            for packed in several:
                if (room - packed) & guards != guards:
                    break
                fitting += weight
        return (1 - _FITTING) * super().judge(level) + _FITTING * fitting


class RoomPrice(NamedTuple):
    """What room is worth from a moment on.

    Both sums add up what an hour of it is, for each whole hour: `steady` on any machine, and `lasting` in addition on
    one that runs on for a day. `stays` is how much of a day sessions use a machine that runs for so many hours more.
    """

    since: int
    steady: Sequence[float]
    lasting: Sequence[float]
    stays: Sequence[float]

    def until(self, moment: int) -> tuple[float, float]:
        """Return both sums until a moment, in microseconds."""
        hours, part = divmod(max(0, moment - self.since), _HOUR)
        place = min(hours, len(self.steady) - 2)
        over = (hours - place) * _HOUR + part
        steady, lasting = self.steady, self.lasting
        return (
            steady[place] * _HOUR + (steady[place + 1] - steady[place]) * over,
            lasting[place] * _HOUR + (lasting[place + 1] - lasting[place]) * over,
        )

    def stay(self, time: float) -> float:
        """Return how much of a day sessions use a machine that runs for so long."""
        place = min(int(time / _HOUR), len(self.stays) - 2)
        return self.stays[place] + (self.stays[place + 1] - self.stays[place]) * min(1.0, time / _HOUR - place)


class _Outlook(NamedTuple):
    """For each hour ahead: how many machines what comes by then will fill, and how busy the hour is, at most 1."""

    arriving: Sequence[float]
    busy: Sequence[float]


class ArrivalForecast:
    """What is known of the sessions that came. The price of room is asked for moments that never go back."""

    def __init__(self) -> None:
        self._loads = [0.0] * _WEEK
        self._lasting = [0] * _AHEAD
        self._times: dict[int, float] = {}
        self._first_day = -1
        self._hour = -1
        self._review = -1
        self._outlook = _Outlook([0.0] * _AHEAD, [1.0] * _AHEAD)
        self._value: LikelyRoom | None = None

    def learn(self, board: PackBoard, claim: int) -> None:
        """Learn of a session that came."""
        start, end, need = board.starts[claim], board.ends[claim], board.needs[claim]
        if self._first_day < 0:
            self._first_day = start // (_DAY * _HOUR)
        self._loads[self._week_hour(start // _HOUR)] += self.room_value(board, [claim], start).share_of(need)
        self._times[need] = self._times.get(need, 0.0) + (end - start) / _HOUR
        if len(self._times) > _MOST_KNOWN_NEEDS:
            kept = sorted(self._times, key=self._times.__getitem__, reverse=True)[: _MOST_KNOWN_NEEDS // 2]
            self._times = {one: self._times[one] for one in kept}
        for hours in range(min(_AHEAD, max(1, (end - start + _HOUR // 2) // _HOUR))):
            self._lasting[hours] += 1

    def room_value(self, board: PackBoard, claims: Iterable[int], now: int) -> LikelyRoom:
        """Return what room is worth for sessions like those that came; before any came, like some claims."""
        if self._value is None or (self._times and now // _REVIEW != self._review):
            self._review = now // _REVIEW if self._times else -1
            self._value = LikelyRoom(board.lanes, self._times or {board.needs[one]: 1.0 for one in claims})
        return self._value

    def room_price(self, board: PackBoard, value: RoomValue, now: int) -> RoomPrice:
        """Return what room will be worth in the hours to come."""
        if now // _HOUR != self._hour and self._lasting[0]:
            self._hour = now // _HOUR
            self._outlook = self._look_ahead()
        wanted = list(map(_part_wanted, self._outlook.arriving, _free_room(board, value, now)))
        steady = (_STEADY_WEIGHT * one * busy for one, busy in zip(wanted, self._outlook.busy, strict=True))
        lasting = (_LASTING_WEIGHT * one for one in wanted)
        sums = list(accumulate(steady, initial=0.0)), list(accumulate(lasting, initial=0.0))
        return RoomPrice(now, *sums, self._stays())

    def _stays(self) -> Sequence[float]:
        parts = [one / self._lasting[0] if self._lasting[0] else 1.0 for one in self._lasting]
        return [one / sum(parts[:_DAY]) for one in accumulate(parts, initial=0.0)]

    def _week_hour(self, hour: int) -> int:
        return (hour - self._first_day * _DAY) % _WEEK

    def _look_ahead(self) -> _Outlook:
        rates, first = self._rates(), self._week_hour(self._hour)
        lasting = [one / self._lasting[0] for one in self._lasting]
        there = [sum(rates[hour - ago] * part for ago, part in enumerate(lasting)) for hour in range(_WEEK)]
        most = max(there) or 1.0
        arriving = [
            sum(rates[(first + ahead - ago) % _WEEK] * lasting[ago] for ago in range(ahead + 1))
            for ahead in range(_AHEAD)
        ]
        return _Outlook(arriving, [(there[(first + one) % _WEEK] / most) ** _QUIET_POWER for one in range(_AHEAD)])

    def _rates(self) -> list[float]:
        """Return what arrives in each hour of a week; each day counts as much as what all days had in that hour."""
        days = self._hour // _DAY - self._first_day
        means = [sum(self._loads[hour::_DAY]) / max(1, days) for hour in range(_DAY)]
        seen = [(days + 6 - day) // 7 for day in range(7)]
        return [(load + means[hour % _DAY]) / (seen[hour // _DAY] + 1) for hour, load in enumerate(self._loads)]


def _part_wanted(arriving: float, free: float) -> float:
    wanted = (_ARRIVING * arriving - free) / (_DOUBT * sqrt(arriving + _FEWEST))
    return _UNWANTED + (_WANTED - _UNWANTED) / (1 + exp(-wanted))


def _free_room(board: PackBoard, value: RoomValue, now: int) -> list[float]:
    """Return how much room machines that run now have in each hour ahead, until they have no claim."""
    free = [0.0] * _AHEAD
    for seat in board.busy_seats(board.open_seats, now):
        moments, levels = board.moments[seat], board.levels[seat]
        place = bisect_right(moments, now) - 1
        for ahead in range(_AHEAD):
            while moments[place + 1] <= now + ahead * _HOUR:
                place += 1
            if not levels[place]:
                break
            free[ahead] += 1 - value.share_of(levels[place])
    return free
