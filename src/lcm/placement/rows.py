"""How full all places of a shelf are at one half hour: whole numbers in which every place has one bit.

For each level of CPU and of memory a mask tells who is above it, so that one look finds all who are too full. The other
dimensions seldom run out, so for them a mask per step tells who has used up that much. The shelf keeps a row per half
hour. No row ever counts a place as fuller than it is: who is above a limit here surely does not fit, the others are
asked.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import cache
from typing import Final

from lcm.model.capacity import DIMENSIONS
from lcm.placement.lanes import BYTES, LANE, LEVELS, STEP, levels

Row = list[int]
Limits = tuple[int, int, tuple[int, ...]]
"""Which masks of a row are asked: who is above a level of CPU, one of memory, and steps of the others."""

_MEMORY: Final = LEVELS
_SCARCE: Final = _MEMORY + LEVELS
_STEPS: Final = 6
_OTHERS: Final = len(DIMENSIONS) - 2
BUSY: Final = _SCARCE + _OTHERS * _STEPS
_NOBODY: Final = BUSY + 1
"""A mask that stays empty: nobody is above what is full, or is not told apart from it."""

_ANY_SCARCE: Final = _NOBODY + 1
_SCARCE_FROM: Final = 24
_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 2, _STEPS - 1) for level in range(256)
)
_HALF_USED: Final = sum(15 << LANE * number + STEP + 4 for number in range(2, len(DIMENSIONS)))
"""The bits of a packed amount of which some are set wherever a dimension but CPU and memory may be scarce."""

FULLEST: Final = 31
_CPU_BYTE: Final = STEP // 8
_MEMORY_BYTE: Final = _CPU_BYTE + LANE // 8


def _between(base: int) -> list[list[range]]:
    """For each two levels the masks that tell them apart; whoever is more than full is no fuller than full."""
    capped = [min(level, LEVELS) for level in range(256)]
    known = [[range(base + min(a, b), base + max(a, b)) for a in range(LEVELS + 1)] for b in range(LEVELS + 1)]
    return [[known[before][after] for after in capped] for before in capped]


_CPU_BETWEEN, _MEMORY_BETWEEN = _between(0), _between(_MEMORY)
_BY_FULLNESS: Final = tuple((level, 2 * level - 1, _MEMORY + 2 * level - 1) for level in range(LEVELS // 2, 0, -1))


def new_row() -> Row:
    """Make the row of a half hour in which nothing is used."""
    return [0] * (_ANY_SCARCE + 1)


EMPTY: Final = new_row()
"""Stands for the rows that are not kept, and is never changed."""


def fullness(used: int) -> int:
    """Tell how full a place is: the greater of its CPU and memory in sixteenths, at most 16."""
    told = levels(used)
    return min(max(told[0], told[1]), LEVELS) >> 1


def flip(row: Row, bit: int, before: int, after: int) -> None:
    """Change one place's levels from one packed amount to another."""
    old, new = before.to_bytes(BYTES, "little"), after.to_bytes(BYTES, "little")
    for number in _CPU_BETWEEN[old[_CPU_BYTE]][new[_CPU_BYTE]]:
        row[number] ^= bit
    for number in _MEMORY_BETWEEN[old[_MEMORY_BYTE]][new[_MEMORY_BYTE]]:
        row[number] ^= bit
    if (before | after) & _HALF_USED:
        _flip_scarce(row, bit, levels(before)[2:], levels(after)[2:])


def limits(highest: bytes) -> Limits:
    """Say what to ask for, given the highest level of each dimension at which something could fit."""
    cpu, memory = highest[0], highest[1]
    return (
        cpu if cpu < LEVELS else _NOBODY,
        _MEMORY + memory if memory < LEVELS else _NOBODY,
        _others_above(highest[2:].translate(_SCARCITY)),
    )


@cache
def _others_above(scarcity: bytes) -> tuple[int, ...]:
    steps = enumerate(scarcity)
    return tuple(_SCARCE + _STEPS * number + step + 1 for number, step in steps if step + 1 < _STEPS)


def above(rows: Iterable[Row], limit: Limits) -> int:
    """Give the places that are above a limit in any dimension, in any of these rows."""
    cpu, memory, others = limit
    found = 0
    for row in rows:
        found |= row[cpu] | row[memory]
        if row[_ANY_SCARCE]:
            for number in others:
                found |= row[number]
    return found


def by_fullness(row: Row, mask: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by how full they are, the fullest first."""
    using = mask & row[BUSY]
    rest = mask ^ using
    for level, on_cpu, on_memory in _BY_FULLNESS if using else ():
        fullest = using & (row[on_cpu] | row[on_memory])
        if fullest:
            yield level, fullest
            using ^= fullest
            if not using:
                break
    rest |= using
    if rest:
        yield 0, rest


def by_count(mask: int, several: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by in how many of these masks they are, the most first: counters, a mask per binary digit."""
    digits = [0] * most.bit_length()
    for one in several:
        carry = one & mask
        for place, digit in enumerate(digits):
            if not carry:
                break
            digits[place], carry = digit ^ carry, digit & carry
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


def _flip_scarce(row: Row, bit: int, before: bytes, after: bytes) -> None:
    base = _SCARCE + 1
    for old, new in zip(before.translate(_SCARCITY), after.translate(_SCARCITY), strict=True):
        for number in range(base + min(old, new), base + max(old, new)):
            row[number] ^= bit
        base += _STEPS
    row[_ANY_SCARCE] = any(row[_SCARCE:BUSY])
