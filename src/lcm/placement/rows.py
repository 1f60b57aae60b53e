"""How full all places of a shelf are at one hour: whole numbers in which every place has one bit.

The levels of CPU and memory and the fullness, which is the greater of both in sixteenths, are kept as binary numbers: a
mask per digit. The other dimensions seldom run out, so a mask per step tells only who has used up that much of them.
The shelf keeps a row per hour.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from lcm.placement.lanes import LEVELS, MOST_LEVEL, levels

Row = list[int]

_DIGITS: Final = MOST_LEVEL.bit_length()
_CPU: Final = 0
_MEMORY: Final = _CPU + _DIGITS
_FULLNESS: Final = _MEMORY + _DIGITS
_FULLNESS_DIGITS: Final = 5
FULLEST: Final = (1 << _FULLNESS_DIGITS) - 1
_STEPS: Final = 6
_SCARCE: Final = _FULLNESS + _FULLNESS_DIGITS
_OTHERS: Final = 4
BUSY: Final = _SCARCE + _OTHERS * _STEPS
_SCARCE_FROM: Final = 48
_SCARCITY: Final = bytes(
    0 if level < _SCARCE_FROM else min(1 + (level - _SCARCE_FROM) // 4, _STEPS - 1) for level in range(256)
)
UNUSED: Final = (0, bytes(3 + _OTHERS))
"""A sample of a place of which nothing is used."""


def _flips(base: int) -> list[tuple[int, ...]]:
    return [tuple(base + digit for digit in range(_DIGITS) if change >> digit & 1) for change in range(MOST_LEVEL + 1)]


def _above(base: int) -> list[tuple[tuple[int, bool], ...]]:
    """For each level the digits, lowest first, by which a greater one is told, and whether both must be set."""
    steps = ([(base + digit, bool(level >> digit & 1)) for digit in range(_DIGITS)] for level in range(MOST_LEVEL + 1))
    return [
        tuple(several[next((n for n, (_, both) in enumerate(several) if not both), _DIGITS) :]) for several in steps
    ]


_CPU_FLIPS, _MEMORY_FLIPS, _FULLNESS_FLIPS = _flips(_CPU), _flips(_MEMORY), _flips(_FULLNESS)
_CPU_ABOVE, _MEMORY_ABOVE = _above(_CPU), _above(_MEMORY)
_FULLNESS_FROM_TOP: Final = tuple(range(_FULLNESS + _FULLNESS_DIGITS - 1, _FULLNESS - 1, -1))


class Limits(NamedTuple):
    """What a row is asked: who is above these levels."""

    cpu: tuple[tuple[int, bool], ...]
    memory: tuple[tuple[int, bool], ...]
    others: tuple[int, ...]


def new_row() -> Row:
    """Make the row of an hour in which nothing is used."""
    return [0] * (BUSY + 1)


def told(packed: int) -> bytes:
    """Tell what is used the way rows do: CPU, memory, fullness, and the scarcity of the others."""
    found = levels(packed)
    cpu, memory = found[0], found[1]
    return bytes((cpu, memory, (max(memory, cpu)) >> 2)) + found[2:].translate(_SCARCITY)


def flip(row: Row, before: bytes, after: bytes, bit: int) -> None:
    """Change one place's bits from what was told before to what is told now."""
    for number in _CPU_FLIPS[before[0] ^ after[0]]:
        row[number] ^= bit
    for number in _MEMORY_FLIPS[before[1] ^ after[1]]:
        row[number] ^= bit
    for number in _FULLNESS_FLIPS[before[2] ^ after[2]]:
        row[number] ^= bit
    if before[3:] != after[3:]:
        _flip_steps(row, before[3:], after[3:], bit)


def limits(highest: bytes) -> Limits:
    """Say what to ask for, given the highest level of each dimension at which something could fit."""
    steps = enumerate(highest[2:].translate(_SCARCITY))
    others = tuple(_SCARCE + _STEPS * number + step + 1 for number, step in steps if step + 1 < _STEPS)
    return Limits(_CPU_ABOVE[highest[0]], _MEMORY_ABOVE[highest[1]], others)


def above(row: Row, limit: Limits) -> int:
    """Give the places that are above a limit in any dimension."""
    cpu = memory = others = 0
    for number, both in limit.cpu:
        cpu = cpu & row[number] if both else cpu | row[number]
    for number, both in limit.memory:
        memory = memory & row[number] if both else memory | row[number]
    for number in limit.others:
        others |= row[number]
    return cpu | memory | others


def by_fullness(row: Row | None, mask: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by how full they are, the fullest first."""
    while mask and row is not None:
        fullness, found = 0, mask
        for number in _FULLNESS_FROM_TOP:
            higher = found & row[number]
            fullness = fullness << 1 | bool(higher)
            found = higher or found
        yield fullness, found
        mask ^= found
    if mask:
        yield 0, mask


def by_count(mask: int, several: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by in how many of these masks they are, from one up: counters, a mask per binary digit."""
    digits = [0] * most.bit_length()
    for one in several:
        carry = one
        for place, digit in enumerate(digits):
            digits[place], carry = digit ^ carry, digit & carry
    for count in range(1, most + 1):
        found = _equal(mask, digits, count)
        if found:
            yield count, found


def _equal(mask: int, digits: Sequence[int], count: int) -> int:
    for place, digit in enumerate(digits):
        mask = mask & digit if count >> place & 1 else mask ^ (mask & digit)
    return mask


def _flip_steps(row: Row, before: bytes, after: bytes, bit: int) -> None:
    base = _SCARCE + 1
    for old, new in zip(before, after, strict=True):
        for number in range(base + min(old, new), base + max(old, new)):
            row[number] ^= bit
        base += _STEPS


assert LEVELS >> 2 <= FULLEST
