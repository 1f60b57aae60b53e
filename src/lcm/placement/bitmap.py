"""How full all places of a size class are at one half hour: whole numbers in which every place has one bit.

A row has a mask of the places that use anything, and for CPU and for memory one for every step of a scale, with the
places that have reached it: a claim moves its place over a few steps, and one mask of each tells the places above a
limit. The other dimensions seldom run out and have masks from where they become scarce. No row counts a place as fuller
than it is: a place above a limit here surely does not fit, the others are asked.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from lcm.model.base.capacity import DIMENSIONS
from lcm.placement.timeline import (
    BEGINNING,
    LANE_BITS,
    LEVEL_SHIFT,
    LEVELS,
    PACKED_BYTES,
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
_SCARCITY_REACHED: Final = _NO_PLACE + 1
"""Not a mask, but the highest step of scarcity that any place has reached."""

EMPTY_ROW: Final[FullnessRow] = [0] * (_SCARCITY_REACHED + 1)
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

_CODES: Final = tuple(bytes(1 + (FULLEST + 1) * cpu + memory for memory in STEPS) for cpu in STEPS)
"""The code of a place that uses something, by its levels of CPU and memory; that of one that uses nothing is 0."""

_CPU_BYTE: Final = LEVEL_SHIFT // 8
_MEMORY_BYTE: Final = _CPU_BYTE + LANE_BITS // 8


class _MaskChanges(dict[int, tuple[int, ...]]):
    """For two codes in one number, the masks in which they differ; made when first asked for."""

    def __missing__(self, codes: int) -> tuple[int, ...]:
        before, after = (_masks_of(code) for code in divmod(codes, 256))
        self[codes] = changes = tuple(sorted(before ^ after))
        return changes


def _masks_of(code: int) -> set[int]:
    """Return the masks that contain a place with a code."""
    cpu, memory = divmod(code - 1, FULLEST + 1)
    return {BUSY, *range(CPU + 1, CPU + cpu + 1), *range(MEMORY + 1, MEMORY + memory + 1)} if code else set()


_CHANGES: Final = _MaskChanges()


class FullnessLimits:
    """How full a place may be, at most, to have room for a need.

    Above the limits are the places in the masks `cpu` and `memory` of a row; no other has more than `fullness`. Above
    those of the other dimensions are the places in the masks `scarce`, of which `scarcity` is the first step.
    """

    __slots__ = ("cpu", "fullness", "memory", "scarce", "scarcity")

    def __init__(self, highest: bytes) -> None:
        """Make the limits for a need, given the highest level of each dimension at which it could fit."""
        cpu, memory = STEPS[highest[0]], STEPS[highest[1]]
        self.cpu, self.memory = _CPU_ABOVE[cpu], _MEMORY_ABOVE[memory]
        self.fullness = max(cpu, memory)
        self.scarcity, self.scarce = _scarce_masks(highest[2:])


_CPU_ABOVE: Final = (*range(CPU + 1, CPU + FULLEST + 1), _NO_PLACE)
_MEMORY_ABOVE: Final = (*range(MEMORY + 1, MEMORY + FULLEST + 1), _NO_PLACE)


@lru_cache(maxsize=4096)
def _scarce_masks(others: bytes) -> tuple[int, tuple[int, ...]]:
    """Return the least step of scarcity above these levels, and the mask of the first above each."""
    steps = others.translate(_SCARCITY)
    masks = (_SCARCE + _SCARCE_STEPS * number + step for number, step in enumerate(steps) if step < _SCARCE_STEPS)
    return min(steps) + 1, tuple(masks)


def code_of(used: int) -> int:
    """Return the code of a place that uses so much."""
    cpu, memory, *_ = levels(used)
    return _CODES[cpu][memory] if used else 0


def flip_masks(row: FullnessRow, before: int, after: int, bit: int) -> None:
    """Move a place from one code to another in a row."""
    for number in _CHANGES[before << 8 | after]:
        row[number] ^= bit


def fullness_of(used: int) -> int:
    """Return how full a place is: the steps that the greater of its CPU and memory has reached."""
    cpu, memory, *_ = levels(used)
    return STEPS[max(cpu, memory)]


_NEAR: Final = 1024
"""The half hours of three weeks."""


class FullnessRows:
    """The rows of a size class by half hour, from `since` on. Those of the next weeks are in a list, for speed."""

    __slots__ = ("_far", "_near", "scarce_until", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.scarce_until = [BEGINNING] * (_SCARCE_STEPS + 2)
        """Until when some place may have reached each step of scarcity."""
        self._near = [EMPTY_ROW] * _NEAR
        self._far: dict[int, FullnessRow] = {}

    def between(self, first: int, stop: int) -> list[FullnessRow]:
        """Return the rows of the half hours [first, stop)."""
        begin, end = first - self.since, stop - self.since
        if begin >= 0 and end <= _NEAR:
            return self._near[begin:end]
        return [self.row(tick) for tick in range(first, stop)]

    def items(self) -> Iterator[tuple[int, FullnessRow]]:
        """Iterate over the half hours in which something is used, and their rows."""
        every = (*enumerate(self._near, self.since), *self._far.items())
        return ((tick, row) for tick, row in every if row[BUSY])

    def make_between(self, first: int, stop: int) -> list[FullnessRow]:
        """Return the rows of the half hours [first, stop), and make those that there are not yet."""
        found = self.between(first, stop)
        if EMPTY_ROW in found:
            for tick in range(first, stop):
                if self.row(tick) is EMPTY_ROW:
                    self._add(tick)
            found = self.between(first, stop)
        return found

    def _add(self, tick: int) -> None:
        number = tick - self.since
        if number < _NEAR:
            self._near[number] = EMPTY_ROW.copy()
        else:
            self._far[tick] = EMPTY_ROW.copy()

    def advance(self, since: int) -> None:
        """Drop the rows before a half hour."""
        come_near = range(max(self.since + _NEAR, since), since + _NEAR)
        del self._near[: since - self.since]
        self._near += [self._far.pop(tick, EMPTY_ROW) for tick in come_near]
        self._far = {tick: row for tick, row in self._far.items() if tick >= since and row[BUSY]}
        self.since = since

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
        return self._near[number] if 0 <= number < _NEAR else self._far.get(tick, EMPTY_ROW)


def shift_usage(rows: FullnessRows, timeline: Timeline, span: tuple[int, int], need: int, bit: int) -> None:
    """Add a need, which may be negative, to what a place uses in a span of time: on its timeline and in the rows.

    What changes at one half hour changes at all in the same step of the timeline. This is most of what holding a claim
    costs, and so it is one function.
    """
    start, end = span
    if start >= end or not need:
        return
    moments, used = timeline.moments, timeline.levels
    first, last = timeline.split(start, end)
    before = used[first:last]
    used[first:last] = after = [level + need for level in before]
    tick = max(-(-start // TICK_MICROS), rows.since)
    if tick * TICK_MICROS < end:
        upcoming, begin = rows.make_between(tick, -(-end // TICK_MICROS)), 0
        for old, new, until in zip(before, after, moments[first + 1 : last + 1], strict=True):
            stop = -(-until // TICK_MICROS) - tick
            if stop <= begin:
                continue
            one, other = old.to_bytes(PACKED_BYTES, "little"), new.to_bytes(PACKED_BYTES, "little")
            changes = _CHANGES[
                (_CODES[one[_CPU_BYTE]][one[_MEMORY_BYTE]] << 8 if old else 0)
                | (_CODES[other[_CPU_BYTE]][other[_MEMORY_BYTE]] if new else 0)
            ]
            if (new if need > 0 else old) + _UNTIL_SCARCE & _MAY_BE_SCARCE:
                changes += _scarce_changes(levels(old)[2:], levels(new)[2:])
                rows.note_scarcity(upcoming[begin:stop], (tick + stop) * TICK_MICROS, levels(new)[2:])
            for row in upcoming[begin:stop]:
                for number in changes:
                    row[number] ^= bit
            begin = stop
    timeline.merge(first, last)


@lru_cache(maxsize=4096)
def _scarce_changes(before: bytes, after: bytes) -> tuple[int, ...]:
    """Return the masks of the other dimensions in which places of these levels differ."""
    bases = range(_SCARCE, _NO_PLACE, _SCARCE_STEPS)
    steps = zip(bases, before.translate(_SCARCITY), after.translate(_SCARCITY), strict=True)
    return tuple(number for base, old, new in steps for number in range(base + min(old, new), base + max(old, new)))


def scarce_places(rows: Iterable[FullnessRow], limit: FullnessLimits) -> int:
    """Return the places surely above a limit of the other dimensions in any of these rows."""
    found = 0
    for row in rows:
        if row[_SCARCITY_REACHED] >= limit.scarcity:
            for number in limit.scarce:
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
    digits = [0] * len(several).bit_length()
    odd = len(several) % 2
    lowest = several[0] if odd else 0
    for number in range(odd, len(several), 2):
        one, other = several[number], several[number + 1]
        either = lowest ^ one
        carry = lowest & one ^ either & other
        lowest = either ^ other
        place = -2
        while carry:
            digit = digits[place]
            digits[place] = digit ^ carry
            carry &= digit
            place -= 1
    digits[-1:] = [lowest] if several else []
    return digits


def _highest_count(digits: Sequence[int], mask: int) -> tuple[int, int]:
    level = 0
    for digit in digits:
        higher = mask & digit
        level <<= 1
        if higher:
            level += 1
            mask = higher
    return level, mask
