"""How full all places of a size class are at one half hour: whole numbers in which every place has one bit.

A place is as full as the greater of its CPU and memory. A row has a mask for every step of a scale, with the places
that have reached it, and tells which of the two is the greater: a claim moves its place over a few steps, and few masks
tell the places above a limit. The other dimensions seldom run out and have masks from where they become scarce. No row
counts a place as fuller than it is: a place above a limit here surely does not fit, the others are asked.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS
from lcm.placement.candidate import IndexedClaim
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

_FINE_FROM: Final = 24
_SCALE: Final = (*range(2, _FINE_FROM, 2), *range(_FINE_FROM, LEVELS + 1))
"""The levels at which the steps begin: finer where it is decided whether a place has room."""

BUSY: Final = len(_SCALE)
_BY_CPU: Final = BUSY + 1
_BY_MEMORY: Final = _BY_CPU + 1
_SCARCE: Final = _BY_MEMORY + 1
_SCARCE_STEPS: Final = 5
_SCARCE_FROM: Final = 24
_NO_PLACE: Final = _SCARCE + (len(DIMENSIONS) - 2) * _SCARCE_STEPS
_SCARCITY_REACHED: Final = _NO_PLACE + 1
"""Not a mask, but the highest step of scarcity that any place has reached."""

EMPTY_ROW: Final[FullnessRow] = [0] * (_SCARCITY_REACHED + 1)
"""The row of a half hour in which nothing is used. It must not be changed."""

FULLEST: Final = 16
"""The fullness of a place that is full."""

_FULLNESS_STEPS: Final = (0, *(_SCALE.index(2 * sixteenths) for sixteenths in range(1, FULLEST + 1)))
"""The step at which each sixteenth begins; all places have reached the first."""

_CPU_BYTE: Final = LEVEL_SHIFT // 8
_MEMORY_BYTE: Final = _CPU_BYTE + LANE_BITS // 8
_OTHER_BYTES: Final = slice(_MEMORY_BYTE + LANE_BITS // 8, None, LANE_BITS // 8)
_OTHER_LANES: Final = range(2 * LANE_BITS, len(DIMENSIONS) * LANE_BITS, LANE_BITS)
_UNTIL_SCARCE: Final = sum((LEVELS - _SCARCE_FROM) << LEVEL_SHIFT + lane for lane in _OTHER_LANES)
_MAY_BE_SCARCE: Final = sum((1 << LANE_BITS) - (LEVELS << LEVEL_SHIFT) << lane for lane in _OTHER_LANES)
"""Where a packed amount plus the first has a bit of the second, a dimension other than CPU and memory is scarce."""

_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 2, _SCARCE_STEPS) for level in range(256)
)
_CAPPED: Final = bytes(min(level, LEVELS) for level in range(256))
"""The level of each byte: a place that is more than full counts as full."""


def _code_of(cpu: int, memory: int) -> int:
    """Return the code of a place that uses something: the steps it has reached, and what is the greater."""
    return 1 + 2 * bisect_right(_SCALE, max(cpu, memory)) + (cpu >= memory)


def _masks_of(code: int) -> frozenset[int]:
    """Return the masks that contain a place with a code; the code of one that uses nothing is 0."""
    steps, by_cpu = divmod(code - 1, 2)
    return frozenset((*range(steps), BUSY, _BY_CPU if by_cpu else _BY_MEMORY)) if code else frozenset()


def _mask_changes(codes: Iterable[int]) -> Sequence[Sequence[tuple[int, ...]]]:
    """Return, for every two codes, the masks in which they differ. Equal ones are one object, as memory is slow."""
    known: dict[frozenset[int], tuple[int, ...]] = {}
    masks = [_masks_of(code) for code in codes]
    return [[known.setdefault(one ^ other, tuple(sorted(one ^ other))) for other in masks] for one in masks]


_BY_MEMORY_LEVEL: Final = [bytes(_code_of(cpu, memory) for memory in _CAPPED) for cpu in range(LEVELS + 1)]
_CODES: Final = tuple(_BY_MEMORY_LEVEL[cpu] for cpu in _CAPPED)
_CHANGES: Final = _mask_changes(range(_code_of(LEVELS, LEVELS) + 1))


class FullnessLimits(NamedTuple):
    """How full a place may be, at most, to have room for a need.

    Above the limits are the places in the mask `most`, and those in the masks of both `least` and `greater`: they are
    above the lower of the two limits, which is for what they use most of. Of those in `doubt` some more may be.
    """

    most: int
    least: int
    greater: int
    doubt: int
    fullness: int
    cpu: int
    memory: int


@lru_cache(maxsize=4096)
def fullness_limits(cpu: int, memory: int) -> FullnessLimits:
    """Return the limits for a need, given the highest levels of CPU and memory at which it could fit."""
    cpu, memory = _CAPPED[cpu], _CAPPED[memory]
    lower, higher = sorted((cpu, memory))
    doubt = bisect_right(_SCALE, lower + 1) - 1
    return FullnessLimits(
        _mask_above(higher),
        _mask_above(lower),
        _BY_CPU if cpu <= memory else _BY_MEMORY,
        doubt if doubt >= 0 else BUSY,
        higher // 2,
        cpu,
        memory,
    )


def _mask_above(level: int) -> int:
    """Return the mask of the first step above a level."""
    step = bisect_right(_SCALE, level)
    return step if step < len(_SCALE) else _NO_PLACE


def masks_above(used: int, limit: FullnessLimits) -> tuple[int, ...]:
    """Return the masks above the lower limit that contain a place which uses so much, with that of its greater."""
    cpu, memory, *_ = levels(used)
    steps, by_cpu = divmod(_CODES[cpu][memory] - 1, 2)
    return (*range(limit.least, steps), _BY_CPU if by_cpu else _BY_MEMORY) if steps > limit.least else ()


def is_above(used: int, limit: FullnessLimits) -> bool:
    """Return whether a place that uses so much is above the limits."""
    cpu, memory, *_ = levels(used)
    return _CAPPED[cpu] > limit.cpu or _CAPPED[memory] > limit.memory


def fullness_of(used: int) -> int:
    """Return how full a place is: the greater of its CPU and memory in sixteenths, at most 16."""
    cpu, memory, *_ = levels(used)
    return _CAPPED[max(cpu, memory)] // 2


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
        return [self._row(tick) for tick in range(first, stop)]

    def items(self) -> Iterator[tuple[int, FullnessRow]]:
        """Iterate over the half hours in which something is used, and their rows."""
        every = (*enumerate(self._near, self.since), *self._far.items())
        return ((tick, row) for tick, row in every if row[BUSY])

    def add(self, tick: int) -> FullnessRow:
        """Make the row of a half hour that has none."""
        row, number = EMPTY_ROW.copy(), tick - self.since
        if number < _NEAR:
            self._near[number] = row
        else:
            self._far[tick] = row
        return row

    def advance(self, since: int) -> None:
        """Drop the rows before a half hour."""
        come_near = range(max(self.since + _NEAR, since), since + _NEAR)
        del self._near[: since - self.since]
        self._near += [self._far.pop(tick, EMPTY_ROW) for tick in come_near]
        self._far = {tick: row for tick, row in self._far.items() if tick >= since and row[BUSY]}
        self.since = since

    def note_scarcity(self, start: int, end: int, others: bytes) -> None:
        """Note that a place has these levels of the other dimensions at the half hours of [start, end)."""
        highest = max(others.translate(_SCARCITY))
        for row in self.between(start // TICK_MICROS, end // TICK_MICROS):
            row[_SCARCITY_REACHED] = max(row[_SCARCITY_REACHED], highest)
        for step in range(highest + 1):
            self.scarce_until[step] = max(self.scarce_until[step], end)

    def _row(self, tick: int) -> FullnessRow:
        number = tick - self.since
        return self._near[number] if 0 <= number < _NEAR else self._far.get(tick, EMPTY_ROW)


def shift_usage(rows: FullnessRows, timeline: Timeline, claim: IndexedClaim, need: int, bit: int) -> None:
    """Add a need, which may be negative, to what a place uses while a claim lasts: on its timeline and in the rows.

    What changes at one half hour changes at all in the same step of the timeline. This is most of what holding a claim
    costs, and so it is one function.
    """
    if claim.start >= claim.end or not need:
        return
    moments, used = timeline.moments, timeline.levels
    first, last = timeline.split(claim.start, claim.end)
    tick = max(-(-claim.start // TICK_MICROS), rows.since)
    at, upcoming = tick * TICK_MICROS, iter(rows.between(tick, -(-claim.end // TICK_MICROS)))
    for step in range(first, last):
        before = used[step]
        now = used[step] = before + need
        begin, until = at, moments[step + 1]
        if until <= at:
            continue
        old, new = before.to_bytes(PACKED_BYTES, "little"), now.to_bytes(PACKED_BYTES, "little")
        was = _CODES[old[_CPU_BYTE]][old[_MEMORY_BYTE]] if before else 0
        changes = _CHANGES[was][_CODES[new[_CPU_BYTE]][new[_MEMORY_BYTE]] if now else 0]
        scarce = (now if need > 0 else before) + _UNTIL_SCARCE & _MAY_BE_SCARCE
        if scarce:
            changes += _scarce_changes(old[_OTHER_BYTES], new[_OTHER_BYTES])
        while at < until:
            row = next(upcoming)
            if row is EMPTY_ROW:
                row = rows.add(at // TICK_MICROS)
            for number in changes:
                row[number] ^= bit
            at += TICK_MICROS
        if scarce:
            rows.note_scarcity(begin, at, new[_OTHER_BYTES])
    timeline.merge(first, last)


@lru_cache(maxsize=4096)
def _scarce_changes(before: bytes, after: bytes) -> tuple[int, ...]:
    """Return the masks of the other dimensions in which places of these levels differ."""
    bases = range(_SCARCE, _NO_PLACE, _SCARCE_STEPS)
    steps = zip(bases, before.translate(_SCARCITY), after.translate(_SCARCITY), strict=True)
    return tuple(number for base, old, new in steps for number in range(base + min(old, new), base + max(old, new)))


def places_above(row: FullnessRow, limit: FullnessLimits) -> int:
    """Return the mask of places that are surely above a limit."""
    return row[limit.most] | row[limit.least] & row[limit.greater]


def scarce_places(rows: Iterable[FullnessRow], step: int, masks: Iterable[int]) -> int:
    """Return the places in any of these masks of rows in which a step of scarcity is reached."""
    found = 0
    for row in rows:
        if row[_SCARCITY_REACHED] >= step:
            for number in masks:
                found |= row[number]
    return found


@lru_cache(maxsize=4096)
def scarce_masks(others: bytes) -> tuple[int, tuple[int, ...]]:
    """Return the least step of scarcity above these levels, and the mask of the first above each."""
    steps = others.translate(_SCARCITY)
    masks = (_SCARCE + _SCARCE_STEPS * number + step for number, step in enumerate(steps) if step < _SCARCE_STEPS)
    return min(steps) + 1, tuple(masks)


def fullest_places(row: FullnessRow, mask: int, most: int) -> tuple[int, int]:
    """Return the highest fullness among the places of a mask, at most a given one, and those that have it."""
    fullness = 0
    while fullness < most:
        half = fullness + most + 1 >> 1
        if mask & row[_FULLNESS_STEPS[half]]:
            fullness = half
        else:
            most = half - 1
    return fullness, mask & row[_FULLNESS_STEPS[fullness]] if fullness else mask


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
