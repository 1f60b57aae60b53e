"""How full all places of a size class are at one half hour: whole numbers in which every place has one bit.

A level of CPU or memory is kept as two digits, with a mask for every value of a digit: few masks change with a claim,
and few are read to find all places above a level. The other dimensions seldom run out and have a mask per step. A
size class keeps a row per half hour. No row counts a place as fuller than it is: a place above a limit here surely
does not fit, the others are asked.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS
from lcm.placement.timeline import END, LANE_BITS, LEVEL_SHIFT, LEVELS, PACKED_BYTES, TICK_MICROS, Timeline, levels

FullnessRow = list[int]
_FullnessGroups = tuple[tuple[int, int, int], ...]


class FullnessLimits(NamedTuple):
    """How full a place may be, at most, to have room for a need.

    `masks` are the indices of the masks in a row that tell which places are above: by CPU those in the first, or in
    both the second and third; likewise by memory; then those of the other dimensions, and the step of scarcity from
    which on they matter. `fullness` is where `group_by_fullness` has to begin; `levels` is the highest level of each
    dimension.
    """

    masks: tuple[int, int, int, int, int, int, tuple[int, ...], int]
    fullness: _FullnessGroups
    levels: bytes


_RADIX: Final = 4
_HIGH: Final = LEVELS // _RADIX
_LOW: Final = _RADIX - 1
_MEMORY: Final = _HIGH + _LOW
_SCARCE: Final = 2 * _MEMORY
_STEPS: Final = 6
_OTHERS: Final = len(DIMENSIONS) - 2
BUSY: Final = _SCARCE + _OTHERS * _STEPS
_NO_PLACE: Final = BUSY + 1
_EVERY_PLACE: Final = _NO_PLACE + 1
_SCARCITY_REACHED: Final = _EVERY_PLACE + 1
_SCARCE_FROM: Final = 24
_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 2, _STEPS - 1) for level in range(256)
)
_OTHER_LANES: Final = range(2 * LANE_BITS, len(DIMENSIONS) * LANE_BITS, LANE_BITS)
_UNTIL_SCARCE: Final = sum((LEVELS - _SCARCE_FROM) << LEVEL_SHIFT + lane for lane in _OTHER_LANES)
_MAY_BE_SCARCE: Final = sum((1 << LANE_BITS) - (LEVELS << LEVEL_SHIFT) << lane for lane in _OTHER_LANES)
"""Where a packed amount plus the first has a bit of the second, a dimension other than CPU and memory is scarce."""

FULLEST: Final = 31
_CPU_BYTE: Final = LEVEL_SHIFT // 8
_MEMORY_BYTE: Final = _CPU_BYTE + LANE_BITS // 8
_OTHER_BYTES: Final = slice(_MEMORY_BYTE + LANE_BITS // 8, None, LANE_BITS // 8)
CAPPED_LEVELS: Final = bytes(min(level, LEVELS) for level in range(256))
"""The level of each byte: a place that is more than full counts as full."""


def _masks_of_level(base: int, level: int) -> set[int]:
    """Return the masks that contain a place of this level."""
    high, low = divmod(level, _RADIX)
    return {*range(base, base + high), *range(base + _HIGH, base + _HIGH + low)}


def _mask_changes(base: int) -> list[list[tuple[int, ...]]]:
    """Return, for every two levels as bytes, the masks in which they differ."""
    all_ = [_masks_of_level(base, level) for level in range(LEVELS + 1)]
    changes = [[tuple(sorted(before ^ all_[after])) for after in CAPPED_LEVELS] for before in all_]
    return [changes[before] for before in CAPPED_LEVELS]


def _masks_above(base: int) -> list[tuple[int, int, int]]:
    """Return three masks for each level: above it are the places in the first, or in both the others."""
    masks = []
    for level in range(LEVELS):
        high, low = divmod(level, _RADIX)
        higher = base + high if high < _HIGH else _NO_PLACE
        as_high = base + high - 1 if high else _EVERY_PLACE
        masks.append((higher, as_high, base + _HIGH + low if low < _LOW else _NO_PLACE))
    return [*masks, (_NO_PLACE, _NO_PLACE, _NO_PLACE)]


_CPU_CHANGES, _MEMORY_CHANGES = _mask_changes(0), _mask_changes(_MEMORY)
_CPU_ABOVE, _MEMORY_ABOVE = _masks_above(0), _masks_above(_MEMORY)
FULLEST_FIRST: Final[_FullnessGroups] = (
    *((2 * value, value - 1, _MEMORY + value - 1) for value in range(_HIGH, 0, -1)),
    (0, _EVERY_PLACE, _EVERY_PLACE),
)
"""The values of the high digit in sixteenths, highest first, with the masks of places that have at least that."""
_FULLEST_UP_TO: Final = tuple(FULLEST_FIRST[_HIGH - level // _RADIX :] for level in range(LEVELS + 1))
_CPU_UPPER: Final = _HIGH + _RADIX // 2 - 1
_MEMORY_UPPER: Final = _MEMORY + _CPU_UPPER
"""Places with one sixteenth more than the high digit says, of its two: the upper half of the low digit."""


def new_row() -> FullnessRow:
    """Return the row of a half hour in which nothing is used."""
    row = [0] * (_SCARCITY_REACHED + 1)
    row[_EVERY_PLACE] = -1
    return row


_EMPTY: Final = new_row()


class FullnessRows(dict[int, FullnessRow]):
    """Rows by half hour. A missing one reads as an empty row, which must not be changed."""

    def __missing__(self, tick: int) -> FullnessRow:
        return _EMPTY


def fullness_of(used: int) -> int:
    """Return how full a place is: the greater of its CPU and memory in sixteenths, at most 16."""
    used_levels = levels(used)
    return min(max(used_levels[0], used_levels[1]), LEVELS) >> 1


def masks_of_usage(used: int) -> tuple[int, ...]:
    """Return the masks of CPU and memory that contain a place which uses so much."""
    found = used.to_bytes(PACKED_BYTES, "little")
    return _CPU_CHANGES[0][found[_CPU_BYTE]] + _MEMORY_CHANGES[0][found[_MEMORY_BYTE]]


def shift_usage(rows: FullnessRows, timeline: Timeline, span: range, bit: int, need: int) -> None:
    """Record in the rows of these half hours that a place uses so much more, or less; its timeline shows it already.

    The change of one half hour holds for all in the same step; it is computed again where the next step begins.
    """
    moments, used = timeline.moments, timeline.levels
    at = next_step = span.start * TICK_MICROS
    step, now = 0, 0
    changes: tuple[int, ...] = ()
    scarce: tuple[int, ...] = ()
    for tick in span:
        if at >= next_step:
            step = bisect_right(moments, at, step)
            next_step = moments[step] if step < len(moments) else END
            now = used[step - 1]
            before = now - need
            old, new = before.to_bytes(PACKED_BYTES, "little"), now.to_bytes(PACKED_BYTES, "little")
            changes = (
                _CPU_CHANGES[old[_CPU_BYTE]][new[_CPU_BYTE]] + _MEMORY_CHANGES[old[_MEMORY_BYTE]][new[_MEMORY_BYTE]]
            )
            if not before or not now:
                changes += (BUSY,)
            scarce = ()
            if (now if need > 0 else before) + _UNTIL_SCARCE & _MAY_BE_SCARCE:
                scarce = _scarce_changes(old[_OTHER_BYTES], new[_OTHER_BYTES])
                changes += scarce
        at += TICK_MICROS
        row = rows.get(tick)
        if row is None:
            row = rows[tick] = new_row()
        for number in changes:
            row[number] ^= bit
        if scarce:
            reached = (place % _STEPS for place, mask in enumerate(row[_SCARCE:BUSY]) if mask)
            row[_SCARCITY_REACHED] = max(reached, default=0)
        if not now and not row[BUSY]:
            del rows[tick]


@lru_cache(maxsize=4096)
def _scarce_changes(before: bytes, after: bytes) -> tuple[int, ...]:
    before, after = before.translate(_SCARCITY), after.translate(_SCARCITY)
    steps = zip(range(_SCARCE + 1, BUSY, _STEPS), before, after, strict=True)
    return tuple(number for base, old, new in steps for number in range(base + min(old, new), base + max(old, new)))


def fullness_limits(highest: bytes) -> FullnessLimits:
    """Return the limits for a need, given the highest level of each dimension at which it could fit."""
    cpu, memory = CAPPED_LEVELS[highest[0]], CAPPED_LEVELS[highest[1]]
    fullness = _FULLEST_UP_TO[max(cpu, memory)]
    return FullnessLimits(_CPU_ABOVE[cpu] + _MEMORY_ABOVE[memory] + _scarcity_limits(highest[2:]), fullness, highest)


@lru_cache(maxsize=4096)
def _scarcity_limits(highest: bytes) -> tuple[tuple[int, ...], int]:
    steps = [step + 1 for step in highest.translate(_SCARCITY)]
    return tuple(_SCARCE + _STEPS * number + step for number, step in enumerate(steps) if step < _STEPS), min(steps)


def places_above(row: FullnessRow, limit: FullnessLimits) -> int:
    """Return the mask of places that are above a limit in any dimension."""
    cpu_high, cpu_as_high, cpu_low, memory_high, memory_as_high, memory_low, others, scarcity = limit.masks
    found = row[cpu_high] | row[memory_high] | row[cpu_as_high] & row[cpu_low] | row[memory_as_high] & row[memory_low]
    if row[_SCARCITY_REACHED] >= scarcity:
        for number in others:
            found |= row[number]
    return found


def sift_places(rows: Iterable[FullnessRow], limit: FullnessLimits, mask: int) -> tuple[int, int]:
    """Return the places of a mask that are above a limit in none of these rows, and those of them busy in all."""
    cpu_high, cpu_as_high, cpu_low, memory_high, memory_as_high, memory_low, others, scarcity = limit.masks
    taken, busy = 0, mask
    for row in rows:
        # The same as `places_above`, inlined because there are many rows.
        taken |= (
            row[cpu_high] | row[memory_high] | row[cpu_as_high] & row[cpu_low] | row[memory_as_high] & row[memory_low]
        )
        if row[_SCARCITY_REACHED] >= scarcity:
            for number in others:
                taken |= row[number]
        busy &= row[BUSY]
    return mask ^ (mask & taken), busy ^ (busy & taken)


def group_by_fullness(row: FullnessRow, mask: int, fullest: _FullnessGroups) -> Iterator[tuple[int, int]]:
    """Split the places of a mask by how full they are, the fullest first."""
    for sixteenths, cpu, memory in fullest:
        by_cpu, by_memory = mask & row[cpu], mask & row[memory]
        found = by_cpu | by_memory
        if found:
            fuller = by_cpu & row[_CPU_UPPER] | by_memory & row[_MEMORY_UPPER]
            if fuller:
                yield sixteenths + 1, fuller
            if found != fuller:
                yield sixteenths, found ^ fuller
            mask ^= found
            if not mask:
                return


def group_by_count(mask: int, several: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Split the places of a mask by how many of these masks contain them, the most first.

    The counters are binary: one mask per digit.
    """
    digits = [0] * most.bit_length()
    for one in several:
        carry = one & mask
        place = 0
        while carry:
            digit = digits[place]
            digits[place] = digit ^ carry
            carry &= digit
            place += 1
    digits.reverse()
    while mask:
        count, found = _highest_count(digits, mask)
        yield count, found
        mask ^= found


def _highest_count(digits: Sequence[int], mask: int) -> tuple[int, int]:
    level = 0
    for digit in digits:
        higher = mask & digit
        level <<= 1
        if higher:
            level += 1
            mask = higher
    return level, mask
