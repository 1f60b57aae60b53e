"""How full all places of a shelf are at one half hour: whole numbers in which every place has one bit.

The levels of CPU and memory are kept as binary numbers, a mask per digit. The other dimensions seldom run out, so for
them a mask per step tells who has used up that much. The shelf keeps a row per half hour. No row ever counts a place as
fuller than it is: who is above a limit here surely does not fit, the others are asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from lcm.model.capacity import DIMENSIONS
from lcm.placement.lanes import LANE, STEP, levels

Row = list[int]
_Above = tuple[tuple[int, bool], ...]
Limits = tuple[_Above, _Above, tuple[int, ...]]
"""What rows are asked: who is above these levels of CPU and memory, and these steps of the others."""

_DIGITS: Final = 6
_MOST: Final = (1 << _DIGITS) - 1
_CPU: Final = 0
_MEMORY: Final = _CPU + _DIGITS
_SCARCE: Final = _MEMORY + _DIGITS
_STEPS: Final = 6
_OTHERS: Final = len(DIMENSIONS) - 2
BUSY: Final = _SCARCE + _OTHERS * _STEPS
_ANY_SCARCE: Final = BUSY + 1
_SCARCE_FROM: Final = 24
_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 2, _STEPS - 1) for level in range(256)
)
_HALF_USED: Final = sum(15 << LANE * number + STEP + 4 for number in range(2, len(DIMENSIONS)))
"""The bits of a packed amount of which some are set wherever a dimension but CPU and memory may be scarce."""

FULLEST: Final = 31
_CPU_LEVEL: Final = STEP
_MEMORY_LEVEL: Final = STEP + LANE


def _flips(base: int) -> list[tuple[int, ...]]:
    return [tuple(base + digit for digit in range(_DIGITS) if change >> digit & 1) for change in range(1 << _DIGITS)]


def _steps_above(base: int) -> list[_Above]:
    """For each level the digits, lowest first, by which a greater one is told, and whether both must be set."""
    whole = [[(base + digit, bool(level >> digit & 1)) for digit in range(_DIGITS)] for level in range(1 << _DIGITS)]
    starts = [next((n for n, (_, both) in enumerate(one) if not both), _DIGITS) for one in whole]
    return [tuple(one[start:]) for one, start in zip(whole, starts, strict=True)]


_CPU_FLIPS, _MEMORY_FLIPS = _flips(_CPU), _flips(_MEMORY)
_CPU_ABOVE, _MEMORY_ABOVE = _steps_above(_CPU), _steps_above(_MEMORY)
_CPU_FROM_TOP: Final = tuple(range(_CPU + _DIGITS - 1, _CPU, -1))
_MEMORY_FROM_TOP: Final = tuple(range(_MEMORY + _DIGITS - 1, _MEMORY, -1))


def new_row() -> Row:
    """Make the row of a half hour in which nothing is used."""
    return [0] * (_ANY_SCARCE + 1)


EMPTY: Final = new_row()
"""Stands for the rows that are not kept, and is never changed."""


def fullness(used: int) -> int:
    """Tell how full a place is: the greater of its CPU and memory in sixteenths, at most 31."""
    told = levels(used)
    return max(told[0] & _MOST, told[1] & _MOST) >> 1


def flip(row: Row, bit: int, before: int, after: int) -> None:
    """Change one place's levels from one packed amount to another."""
    changed = before ^ after
    for number in _CPU_FLIPS[changed >> _CPU_LEVEL & _MOST]:
        row[number] ^= bit
    for number in _MEMORY_FLIPS[changed >> _MEMORY_LEVEL & _MOST]:
        row[number] ^= bit
    if (before | after) & _HALF_USED:
        _flip_scarce(row, bit, levels(before)[2:], levels(after)[2:])


def limits(highest: bytes) -> Limits:
    """Say what to ask for, given the highest level of each dimension at which something could fit."""
    others = _others_above(highest[2:].translate(_SCARCITY))
    return _CPU_ABOVE[min(highest[0], _MOST)], _MEMORY_ABOVE[min(highest[1], _MOST)], others


@cache
def _others_above(scarcity: bytes) -> tuple[int, ...]:
    steps = enumerate(scarcity)
    return tuple(_SCARCE + _STEPS * number + step + 1 for number, step in steps if step + 1 < _STEPS)


def above(rows: Iterable[Row], limit: Limits) -> int:
    """Give the places that are above a limit in any dimension, in any of these rows."""
    on_cpu, on_memory, on_others = limit
    found = 0
    for row in rows:
        cpu = memory = 0
        for number, both in on_cpu:
            cpu = cpu & row[number] if both else cpu | row[number]
        for number, both in on_memory:
            memory = memory & row[number] if both else memory | row[number]
        found |= cpu | memory
        if row[_ANY_SCARCE]:
            for number in on_others:
                found |= row[number]
    return found


def by_fullness(row: Row, mask: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by how full they are, the fullest first."""
    while mask:
        level, fullest = _highest(row, mask, _CPU_FROM_TOP)
        on_memory, most = _highest(row, mask, _MEMORY_FROM_TOP)
        if on_memory == level:
            fullest |= most
        elif on_memory > level:
            level, fullest = on_memory, most
        yield level, fullest
        mask ^= fullest


def by_count(mask: int, several: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by in how many of these masks they are, the fewest first: counters, a mask per binary digit."""
    digits = [0] * most.bit_length()
    for one in several:
        carry = one
        for place, digit in enumerate(digits):
            digits[place], carry = digit ^ carry, digit & carry
            if not carry:
                break
    while mask:
        count, fewest = _lowest(digits, mask)
        yield count, fewest
        mask ^= fewest


def _highest(row: Row, mask: int, from_top: Sequence[int]) -> tuple[int, int]:
    level = 0
    for number in from_top:
        higher = mask & row[number]
        level <<= 1
        if higher:
            level += 1
            mask = higher
    return level, mask


def _lowest(digits: Sequence[int], mask: int) -> tuple[int, int]:
    level = 0
    for digit in reversed(digits):
        lower = mask ^ (mask & digit)
        level <<= 1
        if lower:
            mask = lower
        else:
            level += 1
    return level, mask


def _flip_scarce(row: Row, bit: int, before: bytes, after: bytes) -> None:
    base = _SCARCE + 1
    for old, new in zip(before.translate(_SCARCITY), after.translate(_SCARCITY), strict=True):
        for number in range(base + min(old, new), base + max(old, new)):
            row[number] ^= bit
        base += _STEPS
    row[_ANY_SCARCE] = any(row[_SCARCE:BUSY])
