"""How full all places of a shelf are at one half hour: whole numbers in which every place has one bit.

A level of CPU or memory is kept as two digits, and for every value of a digit a mask tells who has at least that: few
masks change with a claim, and few are looked at to find all who are above a level. The other dimensions seldom run out,
so for them a mask per step tells who has used up that much. The shelf keeps a row per half hour. No row ever counts a
place as fuller than it is: who is above a limit here surely does not fit, the others are asked.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache, reduce
from heapq import heappop, heappush
from operator import or_
from typing import Final

from lcm.model.capacity import DIMENSIONS
from lcm.placement.lanes import BYTES, LANE, LEVELS, STEP, levels

Row = list[int]
_Digit = tuple[tuple[int, int, int], ...]
Limits = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bytes]
"""Which masks of a row tell who is above a level of CPU, one of memory, and steps of the others; and these levels."""

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
_ANY_SCARCE: Final = _EVERYBODY + 1
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
_CAPPED: Final = bytes(min(level, LEVELS) for level in range(256))
"""Whoever is more than full is no fuller than full."""


def _masks(base: int, level: int) -> set[int]:
    """Give the masks in which a place of this level is."""
    high, low = divmod(level, _RADIX)
    return {*range(base, base + high), *range(base + _HIGH, base + _HIGH + low)}


def _changes(base: int) -> list[list[tuple[int, ...]]]:
    """For each two levels, as a byte tells them, the masks that tell them apart."""
    all_ = [_masks(base, level) for level in range(LEVELS + 1)]
    told = [[tuple(sorted(before ^ all_[after])) for after in _CAPPED] for before in all_]
    return [told[before] for before in _CAPPED]


def _above(base: int) -> list[tuple[int, int, int]]:
    """For each level three masks: above it is who is in the first, or in both the others."""
    told = []
    for level in range(LEVELS):
        high, low = divmod(level, _RADIX)
        higher = base + high if high < _HIGH else _NOBODY
        as_high = base + high - 1 if high else _EVERYBODY
        told.append((higher, as_high, base + _HIGH + low if low < _LOW else _NOBODY))
    return [*told, (_NOBODY, _NOBODY, _NOBODY)]


def _from_top(highest: int, base: int, *, step: int, sixteenths: int) -> _Digit:
    """For the values of a digit, the highest first, their sixteenths and who has at least that of CPU and of memory."""
    values = range(highest, 0, -step)
    return tuple((value // step * sixteenths, base + value - 1, _MEMORY + base + value - 1) for value in values)


_CPU_CHANGES, _MEMORY_CHANGES = _changes(0), _changes(_MEMORY)
_CPU_ABOVE, _MEMORY_ABOVE = _above(0), _above(_MEMORY)
_HIGH_FROM_TOP = (*_from_top(_HIGH, 0, step=1, sixteenths=_RADIX // 2), (0, _EVERYBODY, _EVERYBODY))
_LOW_FROM_TOP = _from_top(_LOW - 1, _HIGH, step=2, sixteenths=1)


def new_row() -> Row:
    """Make the row of a half hour in which nothing is used."""
    row = [0] * (_ANY_SCARCE + 1)
    row[_EVERYBODY] = -1
    return row


EMPTY: Final = new_row()
"""Stands for the rows that are not kept, and is never changed."""


def fullness(used: int) -> int:
    """Tell how full a place is: the greater of its CPU and memory in sixteenths, at most 16."""
    told = levels(used)
    return min(max(told[0], told[1]), LEVELS) >> 1


def shift(rows: dict[int, Row], samples: dict[int, int], span: range, bit: int, need: int) -> None:
    """Note that a place uses so much more, or less, at these half hours: in its samples, and in the rows its levels.

    What holds for one half hour mostly holds for the next as well, so what changes is worked out anew only if not.
    """
    if not need:
        return
    known, now, scarce = -1, 0, False
    changes: tuple[int, ...] = ()
    for tick in span:
        used = samples.get(tick, 0)
        if used != known:
            known, now = used, used + need
            changes, scarce = _told_apart(used, now)
        row = rows.get(tick)
        if row is None:
            row = rows[tick] = new_row()
        for number in changes:
            row[number] ^= bit
        if scarce:
            row[_ANY_SCARCE] = any(row[_SCARCE:BUSY])
        if now:
            samples[tick] = now
        else:
            del samples[tick]
            if not row[BUSY]:
                del rows[tick]


def _told_apart(used: int, now: int) -> tuple[tuple[int, ...], bool]:
    """Give the masks that tell two uses apart, and whether any of them is of a scarce dimension."""
    old, new = used.to_bytes(BYTES, "little"), now.to_bytes(BYTES, "little")
    changes = _CPU_CHANGES[old[_CPU_BYTE]][new[_CPU_BYTE]] + _MEMORY_CHANGES[old[_MEMORY_BYTE]][new[_MEMORY_BYTE]]
    if not used or not now:
        changes += (BUSY,)
    if (used | now) & _HALF_USED:
        scarce = _scarce_changes(old[_OTHER_BYTES].translate(_SCARCITY), new[_OTHER_BYTES].translate(_SCARCITY))
        return changes + scarce, bool(scarce)
    return changes, False


@lru_cache(maxsize=4096)
def _scarce_changes(before: bytes, after: bytes) -> tuple[int, ...]:
    steps = zip(range(_SCARCE + 1, BUSY, _STEPS), before, after, strict=True)
    return tuple(number for base, old, new in steps for number in range(base + min(old, new), base + max(old, new)))


def limits(highest: bytes) -> Limits:
    """Say what to ask for, given the highest level of each dimension at which something could fit."""
    others = _others_above(highest[2:].translate(_SCARCITY))
    return _CPU_ABOVE[_CAPPED[highest[0]]], _MEMORY_ABOVE[_CAPPED[highest[1]]], others, highest


@cache
def _others_above(scarcity: bytes) -> tuple[int, ...]:
    steps = enumerate(scarcity)
    return tuple(_SCARCE + _STEPS * number + step + 1 for number, step in steps if step + 1 < _STEPS)


def above(row: Row, limit: Limits) -> int:
    """Give the places that are above a limit in any dimension."""
    (cpu_high, cpu_as_high, cpu_low), (memory_high, memory_as_high, memory_low), others, _ = limit
    found = row[cpu_high] | row[memory_high] | row[cpu_as_high] & row[cpu_low] | row[memory_as_high] & row[memory_low]
    if row[_ANY_SCARCE]:
        for number in others:
            found |= row[number]
    return found


def sifted(rows: Iterable[Row], limit: Limits, mask: int) -> tuple[int, int]:
    """Give those of some places that are above a limit in none of these rows, and of these those busy in all."""
    (cpu_high, cpu_as_high, cpu_low), (memory_high, memory_as_high, memory_low), others, _ = limit
    taken, busy = 0, mask
    for row in rows:
        # As `above` does, without a call for each of so many rows.
        taken |= (
            row[cpu_high] | row[memory_high] | row[cpu_as_high] & row[cpu_low] | row[memory_as_high] & row[memory_low]
        )
        if row[_ANY_SCARCE]:
            for number in others:
                taken |= row[number]
        busy &= row[BUSY]
    return mask ^ (mask & taken), busy ^ (busy & taken)


def by_fullness(row: Row, mask: int) -> Iterator[tuple[int, int]]:
    """Tell places apart by how full they are, the fullest first."""
    for high, cpu, memory in _HIGH_FROM_TOP:
        by_cpu, by_memory = mask & row[cpu], mask & row[memory]
        if not by_cpu and not by_memory:
            continue
        for low, low_cpu, low_memory in _LOW_FROM_TOP:
            alike = by_cpu & row[low_cpu] | by_memory & row[low_memory]
            if alike:
                yield high + low, alike
                mask ^= alike
                by_cpu &= mask
                by_memory &= mask
        alike = by_cpu | by_memory
        if alike:
            yield high, alike
            mask ^= alike
        if not mask:
            return


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


class Crowd:
    """Places found too full between two half hours: a mask for each level of CPU and memory that was found, until when.

    What a place uses may have become more since then, so that this too never counts it as fuller than it is.
    """

    __slots__ = ("_ends", "_known", "_masks")

    def __init__(self) -> None:
        self._masks = [[0] * (LEVELS + 1), [0] * (LEVELS + 1)]
        self._known: dict[int, tuple[list[int], int, int]] = {}
        self._ends: list[tuple[int, int]] = []

    def note(self, slot: int, used: int, until: int, limit: Limits) -> None:
        """Remember that the place of a slot uses so much, if it is above a limit of CPU or memory by that."""
        told, highest = levels(used).translate(_CAPPED), limit[-1]
        for masks, level, fits in zip(self._masks, told, highest, strict=False):
            if level > fits:
                self.forget(slot)
                masks[level] ^= 1 << slot
                self._known[slot] = masks, level, until
                heappush(self._ends, (until, slot))
                return

    def forget(self, slot: int) -> None:
        """Know nothing of a place any more, as it may use less now."""
        if slot in self._known:
            masks, level, _ = self._known.pop(slot)
            masks[level] ^= 1 << slot

    def above(self, moment: int, limit: Limits) -> int:
        """Give the places that are above a limit at some time from a moment on; what has ended by then is forgotten."""
        ends = self._ends
        while ends and ends[0][0] <= moment:
            until, slot = heappop(ends)
            if slot in self._known and self._known[slot][-1] == until:
                self.forget(slot)
        if not self._known:
            return 0
        cpu, memory = self._masks
        *_, (most_cpu, most_memory, *_) = limit
        return reduce(or_, memory[most_memory + 1 :], reduce(or_, cpu[most_cpu + 1 :], 0))
