"""How full all places of a size class are at one half hour: whole numbers in which every place has one bit.

A row has a mask of the places that use anything, and for CPU and for memory one for every step of a scale, with the
places that have reached it: a claim moves its place over a few steps, and one mask of each tells the places above a
limit. The other dimensions seldom run out and have masks from where they become scarce. No row counts a place as fuller
than it is: a place above a limit here surely does not fit, the others are asked.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from lcm.model.base.capacity import DIMENSIONS
from lcm.placement.timeline import (
    BEGINNING,
    LANE_BITS,
    LEVEL_SHIFT,
    LEVELS,
    TICK_MICROS,
    Timeline,
    levels,
)

FullnessRow = list[int]

_SCALE: Final = (8, 16, 24, 26, *range(28, LEVELS + 1))
"""The levels at which the steps begin: finer where it is decided whether a place has room."""

FULLEST: Final = len(_SCALE)
"""The fullness of a place that is full: the steps it has reached."""

BUSY: Final = 0
CPU: Final = BUSY
MEMORY: Final = CPU + FULLEST
"""The masks of places that use anything, and before those of the steps of CPU and of memory, which count from one."""

_SCARCE: Final = MEMORY + FULLEST + 1
_SCARCE_STEPS: Final = 5
_SCARCE_FROM: Final = 24
_NO_PLACE: Final = _SCARCE + (len(DIMENSIONS) - 2) * _SCARCE_STEPS
_EVERY_PLACE: Final = _NO_PLACE + 1
_SCARCITY_REACHED: Final = _EVERY_PLACE + 1
"""Not a mask, but the highest step of scarcity that any place has reached."""

EMPTY_ROW: Final[FullnessRow] = [*[0] * _EVERY_PLACE, -1, 0]
"""The row of a half hour in which nothing is used. It must not be changed."""

_OTHER_LANES: Final = range(2 * LANE_BITS, len(DIMENSIONS) * LANE_BITS, LANE_BITS)
_UNTIL_SCARCE: Final = sum((LEVELS - _SCARCE_FROM) << LEVEL_SHIFT + lane for lane in _OTHER_LANES)
_MAY_BE_SCARCE: Final = sum((1 << LANE_BITS) - (LEVELS << LEVEL_SHIFT) << lane for lane in _OTHER_LANES)
"""Where a packed amount plus the first has a bit of the second, a dimension other than CPU and memory is scarce."""

_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 2, _SCARCE_STEPS) for level in range(256)
)
STEPS: Final = bytes(bisect_right(_SCALE, level) for level in range(256))
"""The steps that a place of each level has reached: one that is more than full counts as full."""

CODED: Final = sum(255 << LEVEL_SHIFT + lane for lane in (0, LANE_BITS))
OTHERS: Final = sum(255 << LEVEL_SHIFT + lane for lane in _OTHER_LANES)
"""The bits of a packed amount that are its levels of CPU and memory, and those of the other dimensions."""

_MOST_REMEMBERED: Final = 4096


class _Codes(dict[int, int]):
    """The code of a place that uses something, by these bits; made when first asked for. That of an idle one is 0."""

    def __missing__(self, coded: int) -> int:
        cpu, memory, *_ = levels(coded)
        self[coded] = code = 1 + (FULLEST + 1) * STEPS[cpu] + STEPS[memory]
        return code


_CODES: Final = _Codes()


def _masks_between(base: int) -> Sequence[Sequence[tuple[int, ...]]]:
    """Return, for two numbers of steps that a place has reached of a dimension, the masks in which they differ."""
    steps = range(FULLEST + 1)
    return [[tuple(range(base + min(a, b) + 1, base + max(a, b) + 1)) for b in steps] for a in steps]


def _mask_changes() -> Sequence[Sequence[tuple[int, ...]]]:
    """Return, for two codes, the masks in which places with them differ."""
    cpu, memory = _masks_between(CPU), _masks_between(MEMORY)
    steps = [divmod(number, FULLEST + 1) for number in range((FULLEST + 1) ** 2)]
    used = [[cpu[a][c] + memory[b][d] for c, d in steps] for a, b in steps]
    idle = [(BUSY, *masks) for masks in used[0]]
    return [[(), *idle], *([idle[number], *masks] for number, masks in enumerate(used))]


_CHANGES: Final = _mask_changes()


FullnessLimits = tuple[int, int, Sequence[tuple[int, int, int]]]
"""How full by CPU and memory a place may be, at most, to have room for a need.

Above the limits are the places in two masks of a row, for CPU and for memory. No other is fuller than the first of some
steps that go downwards: the places that reached a step by CPU or by memory are in its two masks.
"""

_CPU_ABOVE: Final = (*range(CPU + 1, CPU + FULLEST + 1), _NO_PLACE)
_MEMORY_ABOVE: Final = (*range(MEMORY + 1, MEMORY + FULLEST + 1), _NO_PLACE)

STEPS_DOWN: Final = tuple(
    (*((step, CPU + step, MEMORY + step) for step in range(fullness, 0, -1)), (0, _EVERY_PLACE, _EVERY_PLACE))
    for fullness in range(FULLEST + 1)
)
"""For each fullness, the steps from it downwards."""


class _LimitsOfLevels(dict[int, FullnessLimits]):
    """The limits by these bits of a packed amount with the highest levels at which a need could fit."""

    def __missing__(self, coded: int) -> FullnessLimits:
        cpu, memory = divmod(_CODES[coded] - 1, FULLEST + 1)
        self[coded] = limits = _CPU_ABOVE[cpu], _MEMORY_ABOVE[memory], STEPS_DOWN[max(cpu, memory)]
        return limits


FULLNESS_LIMITS: Final = _LimitsOfLevels()


ScarcityLimits = tuple[int, Sequence[int]]
"""The least step of scarcity above the limits of the other dimensions, and the masks of the places above them."""


class _ScarcityOfLevels(dict[int, ScarcityLimits]):
    """The limits of the other dimensions by these bits of a packed amount with the highest levels; made when asked."""

    def __missing__(self, others: int) -> ScarcityLimits:
        if len(self) >= _MOST_REMEMBERED:
            self.clear()
        steps = levels(others)[2:].translate(_SCARCITY)
        masks = (_SCARCE + _SCARCE_STEPS * number + step for number, step in enumerate(steps) if step < _SCARCE_STEPS)
        self[others] = limits = min(steps) + 1, tuple(masks)
        return limits


SCARCITY_LIMITS: Final = _ScarcityOfLevels()


def code_of(used: int) -> int:
    """Return the code of a place that uses so much."""
    return used and _CODES[used & CODED]


def show_usage(row: FullnessRow, before: int, used: int, bit: int) -> int:
    """Show in a row that a place, which it shows with a code, uses so much; return the new code."""
    code = used and _CODES[used & CODED]
    for number in _CHANGES[before][code]:
        row[number] ^= bit
    return code


def fullness_of(used: int) -> int:
    """Return how full a place is: the steps that the greater of its CPU and memory has reached."""
    cpu, memory, *_ = levels(used)
    return STEPS[max(cpu, memory)]


_LAST_MICRO: Final = TICK_MICROS - 1
_NEAR: Final = 1024
"""The half hours of three weeks."""


class FullnessRows:
    """The rows of a size class by half hour, from `since` on. Those of the next weeks are in a list, for speed."""

    __slots__ = ("_far", "begin", "made", "near", "scarce_until", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.begin = since * TICK_MICROS
        self.scarce_until = [BEGINNING] * (_SCARCE_STEPS + 2)
        """Until when some place may have reached each step of scarcity."""
        self.made = since
        """All near rows before this half hour are there to be changed."""
        self.near = [EMPTY_ROW] * _NEAR
        self._far: dict[int, FullnessRow] = {}

    def between(self, first: int, stop: int) -> list[FullnessRow]:
        """Return the rows of the half hours [first, stop)."""
        since = self.since
        if since <= first and stop <= since + _NEAR:
            return self.near[first - since : stop - since]
        return [self.row(tick) for tick in range(first, stop)]

    def items(self) -> Iterator[tuple[int, FullnessRow]]:
        """Iterate over the half hours in which something is used, and their rows."""
        every = (*enumerate(self.near, self.since), *self._far.items())
        return ((tick, row) for tick, row in every if row[BUSY])

    def make_between(self, first: int, stop: int) -> list[FullnessRow]:
        """Return the rows of the half hours [first, stop), and make those that there are not yet."""
        if first >= stop:
            return []
        if stop > self.made:
            self._make_until(first, stop)
        return self.between(first, stop)

    def _make_until(self, first: int, stop: int) -> None:
        near, near_stop = self.near, min(stop, self.since + _NEAR)
        for number in range(self.made - self.since, near_stop - self.since):
            if near[number] is EMPTY_ROW:
                near[number] = EMPTY_ROW.copy()
        self.made = near_stop
        for tick in range(max(first, near_stop), stop):
            self._far.setdefault(tick, EMPTY_ROW.copy())

    def advance(self, since: int) -> None:
        """Drop the rows before a half hour."""
        come_near = range(max(self.since + _NEAR, since), since + _NEAR)
        del self.near[: since - self.since]
        self.near += [self._far.pop(tick, EMPTY_ROW) for tick in come_near]
        self._far = {tick: row for tick, row in self._far.items() if tick >= since and row[BUSY]}
        self.since, self.begin, self.made = since, since * TICK_MICROS, max(self.made, since)

    def note_scarcity(self, rows: Iterable[FullnessRow], end: int, others: bytes) -> None:
        """Note that a place has these levels of the other dimensions in some rows, which end at a moment."""
        highest = max(others.translate(_SCARCITY))
        for row in rows:
            row[_SCARCITY_REACHED] = max(row[_SCARCITY_REACHED], highest)
        for step in range(highest + 1):
            self.scarce_until[step] = max(self.scarce_until[step], end)

    def row(self, tick: int) -> FullnessRow:
        """Return the row of a half hour."""
        number = tick - self.since
        return self.near[number] if 0 <= number < _NEAR else self._far.get(tick, EMPTY_ROW)


def shift_usage(  # noqa: C901, PLR0917  calls and keywords cost more than what they do
    rows: FullnessRows, timeline: Timeline, start: int, end: int, need: int, bit: int
) -> None:
    """Add a need, which may be negative, to what a place uses in [start, end): on its timeline and in the rows.

    What changes at one half hour changes at all in the same step of the timeline. This is most of what holding a claim
    costs, and so it is one function.
    """
    if start >= end or not need:
        return
    moments, used = timeline.moments, timeline.levels
    first = bisect_left(moments, start)
    begins_step = first < len(moments) and moments[first] == start
    if not begins_step:
        moments.insert(first, start)
        used.insert(first, used[first - 1])
    last = bisect_left(moments, end, first)
    ends_step = last < len(moments) and moments[last] == end
    if not ends_step:
        moments.insert(last, end)
        used.insert(last, used[last - 1])
    since, tick, stop_tick, reached = rows.since, -(-start // TICK_MICROS), -(-end // TICK_MICROS), 0
    tick = max(tick, since)
    upcoming = (
        rows.near[tick - since : stop_tick - since] if stop_tick <= rows.made else rows.make_between(tick, stop_tick)
    )
    origin = tick * TICK_MICROS - _LAST_MICRO
    until_scarce = _UNTIL_SCARCE if need > 0 else _UNTIL_SCARCE - need
    for step, until in enumerate(moments[first + 1 : last + 1], first):
        old = used[step]
        used[step] = new = old + need
        stop = (until - origin) // TICK_MICROS
        if stop > reached:
            changes = _CHANGES[old and _CODES[old & CODED]][new and _CODES[new & CODED]]
            if new + until_scarce & _MAY_BE_SCARCE:
                changes += _scarce_changes(levels(old)[2:], levels(new)[2:])
                rows.note_scarcity(upcoming[reached:stop], (tick + stop) * TICK_MICROS, levels(new)[2:])
            for row in upcoming[reached:stop]:
                for number in changes:
                    row[number] ^= bit
            reached = stop
    if ends_step and used[last] == used[last - 1]:
        del moments[last], used[last]
    if begins_step and first and used[first] == used[first - 1]:
        del moments[first], used[first]


@lru_cache(maxsize=4096)
def _scarce_changes(before: bytes, after: bytes) -> tuple[int, ...]:
    """Return the masks of the other dimensions in which places of these levels differ."""
    bases = range(_SCARCE, _NO_PLACE, _SCARCE_STEPS)
    steps = zip(bases, before.translate(_SCARCITY), after.translate(_SCARCITY), strict=True)
    return tuple(number for base, old, new in steps for number in range(base + min(old, new), base + max(old, new)))


def scarce_places(rows: Iterable[FullnessRow], limit: ScarcityLimits) -> int:
    """Return the places surely above a limit of the other dimensions in any of these rows."""
    found, (scarcity, masks) = 0, limit
    for row in rows:
        if row[_SCARCITY_REACHED] >= scarcity:
            for number in masks:
                found |= row[number]
    return found


def group_by_count(mask: int, several: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split the places of a mask by how many of these masks contain them, the most first."""
    digits = _count_masks(several)
    while mask:
        count, found = _highest_count(digits, mask)
        yield count, found
        mask ^= found


def _count_masks(several: Sequence[int]) -> list[int]:
    """Count for every place how many masks contain it: one mask per binary digit, the highest first."""
    odd = len(several) % 2
    ones, twos, fours = several[0] if odd else 0, 0, 0
    higher = [0] * (len(several) >> 3).bit_length()
    for one, other in zip(several[odd::2], several[odd + 1 :: 2], strict=True):
        either = one ^ other
        carry = one & other | ones & either
        ones ^= either
        fourth = twos & carry
        twos ^= carry
        carry = fours & fourth
        fours ^= fourth
        place = -1
        while carry:
            digit = higher[place]
            higher[place] = digit ^ carry
            carry &= digit
            place -= 1
    return [*higher, fours, twos, ones]


def _highest_count(digits: Sequence[int], mask: int) -> tuple[int, int]:
    level = 0
    for digit in digits:
        higher = mask & digit
        level <<= 1
        if higher:
            level += 1
            mask = higher
    return level, mask
