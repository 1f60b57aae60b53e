"""How full all places of a shelf are at one half hour: whole numbers in which every place has one bit.

A level of CPU or memory is kept as two digits, and for every value of a digit a mask tells who has at least that: few
masks change with a claim, and few are looked at to find all who are above a level. The other dimensions seldom run out,
so for them a mask per step tells who has used up that much. The shelf keeps a row per half hour. No row ever counts a
place as fuller than it is: who is above a limit here surely does not fit, the others are asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS
from lcm.placement.timeline import BYTES, LANE, LEVELS, STEP, levels

Row = list[int]
_Fullness = tuple[tuple[int, int, int], ...]


class Limits(NamedTuple):
    """How full a place may be at most to have room for something.

    `masks` are those of a row that tell who is above: who is in the first, or in both the second and third, by CPU, and
    likewise by memory; then those of the other dimensions, and the step of scarcity from which on they matter.
    `fullness` is where `by_fullness` has to begin, and `levels` are the highest of each dimension.
    """

    masks: tuple[int, int, int, int, int, int, tuple[int, ...], int]
    fullness: _Fullness
    levels: bytes


_RADIX: Final = 4
_HIGH: Final = LEVELS // _RADIX
_LOW: Final = _RADIX - 1
_MEMORY: Final = _HIGH + _LOW
_SCARCE: Final = 2 * _MEMORY
_STEPS: Final = 6
_OTHERS: Final = len(DIMENSIONS) - 2
BUSY: Final = _SCARCE + _OTHERS * _STEPS
_NOBODY: Final = BUSY + 1
_EVERYBODY: Final = _NOBODY + 1
_SCARCITY_REACHED: Final = _EVERYBODY + 1
_SCARCE_FROM: Final = 24
_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 2, _STEPS - 1) for level in range(256)
)
_HALF_USED: Final = sum((1 << LANE) - (1 << STEP + 4) << LANE * number for number in range(2, len(DIMENSIONS)))
"""The bits of a packed amount of which some are set wherever a dimension but CPU and memory may be scarce."""

FULLEST: Final = 31
_CPU_BYTE: Final = STEP // 8
_MEMORY_BYTE: Final = _CPU_BYTE + LANE // 8
_OTHER_BYTES: Final = slice(_MEMORY_BYTE + LANE // 8, None, LANE // 8)
CAPPED: Final = bytes(min(level, LEVELS) for level in range(256))
"""Whoever is more than full is no fuller than full."""


def _masks(base: int, level: int) -> set[int]:
    """Give the masks in which a place of this level is."""
    high, low = divmod(level, _RADIX)
    return {*range(base, base + high), *range(base + _HIGH, base + _HIGH + low)}


def _changes(base: int) -> list[list[tuple[int, ...]]]:
    """For each two levels, as a byte tells them, the masks that tell them apart."""
    all_ = [_masks(base, level) for level in range(LEVELS + 1)]
    told = [[tuple(sorted(before ^ all_[after])) for after in CAPPED] for before in all_]
    return [told[before] for before in CAPPED]


def _above(base: int) -> list[tuple[int, int, int]]:
    """For each level three masks: above it is who is in the first, or in both the others."""
    told = []
    for level in range(LEVELS):
        high, low = divmod(level, _RADIX)
        higher = base + high if high < _HIGH else _NOBODY
        as_high = base + high - 1 if high else _EVERYBODY
        told.append((higher, as_high, base + _HIGH + low if low < _LOW else _NOBODY))
    return [*told, (_NOBODY, _NOBODY, _NOBODY)]


_CPU_CHANGES, _MEMORY_CHANGES = _changes(0), _changes(_MEMORY)
_CPU_ABOVE, _MEMORY_ABOVE = _above(0), _above(_MEMORY)
FROM_FULL: Final[_Fullness] = (
    *((2 * value, value - 1, _MEMORY + value - 1) for value in range(_HIGH, 0, -1)),
    (0, _EVERYBODY, _EVERYBODY),
)
"""The values of the high digit, the highest first, in sixteenths, and who has at least that of CPU and of memory."""
_CPU_UPPER: Final = _HIGH + _RADIX // 2 - 1
_MEMORY_UPPER: Final = _MEMORY + _CPU_UPPER
"""Who has one sixteenth more than the high digit says, in its two sixteenths: the upper half of the low digit."""


def new_row() -> Row:
    """Make the row of a half hour in which nothing is used."""
    row = [0] * (_SCARCITY_REACHED + 1)
    row[_EVERYBODY] = -1
    return row


_EMPTY: Final = new_row()


class Rows(dict[int, Row]):
    """Rows by half hour. One that is not kept is empty, and not to be changed."""

    def __missing__(self, tick: int) -> Row:
        return _EMPTY


def fullness(used: int) -> int:
    """Tell how full a place is: the greater of its CPU and memory in sixteenths, at most 16."""
    told = levels(used)
    return min(max(told[0], told[1]), LEVELS) >> 1


def shift(rows: Rows, samples: dict[int, int], span: range, bit: int, need: int) -> None:
    """Note that a place uses so much more, or less, at these half hours: in its samples, and in the rows its levels.

    What holds for one half hour mostly holds for the next as well, so what changes is worked out anew only if not.
    """
    known, now = -1, 0
    changes: tuple[int, ...] = ()
    scarce: tuple[int, ...] = ()
    for tick in span:
        used = samples.get(tick, 0)
        if used != known:
            known, now = used, used + need
            old, new = used.to_bytes(BYTES, "little"), now.to_bytes(BYTES, "little")
            changes = (
                _CPU_CHANGES[old[_CPU_BYTE]][new[_CPU_BYTE]] + _MEMORY_CHANGES[old[_MEMORY_BYTE]][new[_MEMORY_BYTE]]
            )
            if not used or not now:
                changes += (BUSY,)
            scarce = ()
            if (now if need > 0 else used) & _HALF_USED:
                scarce = _scarce_changes(old[_OTHER_BYTES], new[_OTHER_BYTES])
                changes += scarce
        row = rows.get(tick)
        if row is None:
            row = rows[tick] = new_row()
        for number in changes:
            row[number] ^= bit
        if scarce:
            row[_SCARCITY_REACHED] = _scarcity_reached(row)
        if now:
            samples[tick] = now
        else:
            del samples[tick]
            if not row[BUSY]:
                del rows[tick]


def _scarcity_reached(row: Row) -> int:
    """Give the highest step that anybody has reached in a dimension that is seldom scarce."""
    return max((place % _STEPS for place, mask in enumerate(row[_SCARCE:BUSY]) if mask), default=0)


@lru_cache(maxsize=4096)
def _scarce_changes(before: bytes, after: bytes) -> tuple[int, ...]:
    before, after = before.translate(_SCARCITY), after.translate(_SCARCITY)
    steps = zip(range(_SCARCE + 1, BUSY, _STEPS), before, after, strict=True)
    return tuple(number for base, old, new in steps for number in range(base + min(old, new), base + max(old, new)))


@lru_cache(maxsize=4096)
def limits(highest: bytes) -> Limits:
    """Say what to ask for, given the highest level of each dimension at which something could fit."""
    steps = [step + 1 for step in highest[2:].translate(_SCARCITY)]
    others = tuple(_SCARCE + _STEPS * number + step for number, step in enumerate(steps) if step < _STEPS)
    cpu, memory = CAPPED[highest[0]], CAPPED[highest[1]]
    fullness = FROM_FULL[_HIGH - max(cpu, memory) // _RADIX :]
    return Limits((*_CPU_ABOVE[cpu], *_MEMORY_ABOVE[memory], others, min(steps)), fullness, highest)


def above(row: Row, limit: Limits) -> int:
    """Give the places that are above a limit in any dimension."""
    cpu_high, cpu_as_high, cpu_low, memory_high, memory_as_high, memory_low, others, scarcity = limit.masks
    found = row[cpu_high] | row[memory_high] | row[cpu_as_high] & row[cpu_low] | row[memory_as_high] & row[memory_low]
    if row[_SCARCITY_REACHED] >= scarcity:
        for number in others:
            found |= row[number]
    return found


def sifted(rows: Iterable[Row], limit: Limits, mask: int) -> tuple[int, int]:
    """Give those of some places that are above a limit in none of these rows, and of these those busy in all."""
    cpu_high, cpu_as_high, cpu_low, memory_high, memory_as_high, memory_low, others, scarcity = limit.masks
    taken, busy = 0, mask
    for row in rows:
        # As `above` does, without a call for each of so many rows.
        taken |= (
            row[cpu_high] | row[memory_high] | row[cpu_as_high] & row[cpu_low] | row[memory_as_high] & row[memory_low]
        )
        if row[_SCARCITY_REACHED] >= scarcity:
            for number in others:
                taken |= row[number]
        busy &= row[BUSY]
    return mask ^ (mask & taken), busy ^ (busy & taken)


def by_fullness(row: Row, mask: int, fullest: _Fullness) -> Iterator[tuple[int, int]]:
    """Tell places apart by how full they are, the fullest first."""
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


def by_count(mask: int, several: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by in how many of these masks they are, the most first: counters, a mask per binary digit."""
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
        count, found = _highest(digits, mask)
        yield count, found
        mask ^= found


def _highest(digits: Sequence[int], mask: int) -> tuple[int, int]:
    level = 0
    for digit in digits:
        higher = mask & digit
        level <<= 1
        if higher:
            level += 1
            mask = higher
    return level, mask
