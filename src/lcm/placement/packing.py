"""BinPack: the best place of a size class for a request, found without going through all.

The best are those that run anyway in all of the claim's half hours, then the fuller, then those that become empty at
the same time, then the first id; the first whose timeline agrees is taken. Before its first half hour a claim meets
others that no row shows. Places too full at the half hour before, or now, come last: in a large fleet hundreds of them
might be asked that are too full just then, and a slightly emptier place is as good.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from lcm.placement.bitmap import (
    BUSY,
    CPU,
    FULLEST,
    MEMORY,
    FullnessLimits,
    FullnessRow,
    group_by_count,
    scarce_places,
)
from lcm.placement.candidate import IndexedPlace, PackedRequest
from lcm.placement.size_class import SizeBlocks, SizeClass
from lcm.placement.timeline import GUARD_BITS, TICK_MICROS

_TIES: Final = 64
"""Fullness and a common end decide between places with the same idle time, in such parts of a half hour."""

ScoredPlace = tuple[IndexedPlace, float]
_View = tuple[FullnessLimits, Sequence[FullnessRow], FullnessRow]
"""The limits of a request, the rows of its claim's half hours, and the row after them."""


def pack_score(idle: int, looked: int, tie: int) -> float:
    """Score a place from 0 to 1: by how little idle time it fills, then by twice its fullness plus a common end."""
    return (looked - idle + tie / _TIES) / (looked + 1)


def choose_packed(shelves: Iterable[SizeClass], ask: PackedRequest, region: str | None) -> ScoredPlace | None:
    """Choose the best place of several size classes, in a region if one is given; return it and its score.

    Of a size class in blocks, the first block in turn that has room for the claim decides.
    """
    for late in (False, True):
        best = None
        for shelf in shelves:
            if shelf.number:
                continue
            found = _best_of_blocks(shelf.group, ask, region, late=late)
            if best is None or (found is not None and (-found[1], found[0].place.id) < (-best[1], best[0].place.id)):
                best = found
        if best is not None:
            return best
    return None


def _best_of_blocks(group: SizeBlocks, ask: PackedRequest, region: str | None, *, late: bool) -> ScoredPlace | None:
    for block in group.in_turn(ask.first):
        found = _best_of_class(block, ask, region, late=late)
        if found is not None:
            if len(group.blocks) > 1:
                group.starts[ask.first] = block.number
            return found
    return None


def _best_of_class(shelf: SizeClass, ask: PackedRequest, region: str | None, *, late: bool) -> ScoredPlace | None:
    """Return the best place of a size class and its score, of the late ones or of the others; None if none has room."""
    limit = ask.limits(shelf.lanes)
    if limit is None:
        return None
    cpu, memory = limit.cpu, limit.memory
    index, start, first = shelf.rows, ask.start, ask.first
    rows = index.between(first, ask.stop + 1)
    after = rows.pop()
    mask, taken = shelf.open_to(ask, region), 0
    scarce = index.scarce_until[limit.scarcity] > start
    if start < index.since * TICK_MICROS:
        taken = shelf.current[cpu] | shelf.current[memory]
    elif start < first * TICK_MICROS:
        before = index.row(first - 1)
        taken = before[cpu] | before[memory] | (scarce_places((before,), limit) if scarce else 0)
    if late:
        mask &= taken
        taken = 0
    busy = mask
    for row in rows:
        taken |= row[cpu] | row[memory]
        busy &= row[BUSY]
    if scarce:
        taken |= scarce_places(rows, limit)
    free = mask ^ (mask & taken)
    ready = busy & free
    found = _best_of_group(shelf, ask, (limit, rows, after), ready, 0) if ready else None
    if found is None and free != ready:
        for covered, group in group_by_count(free ^ ready, [row[BUSY] for row in rows]):
            found = _best_of_group(shelf, ask, (limit, rows, after), group, len(rows) - covered)
            if found is not None:
                break
    return found


def _best_of_group(shelf: SizeClass, ask: PackedRequest, view: _View, group: int, idle: int) -> ScoredPlace | None:
    """Return the best place of a group by fullness at the claim's first half hour, and then by a common end.

    The first whose timeline has room is taken, in the order of ids. This is much of what a decision costs, and so it is
    one function.
    """
    lanes, order, lines, start, end = shelf.lanes, shelf.order, shelf.lines, ask.start, ask.end
    limit, rows, after = view
    room, asked = ask.room(lanes), 0
    at_first, fullness = (rows[0], limit.fullness) if rows else (after, FULLEST)
    while group:
        alike = 0
        while fullness and not alike:
            alike = group & (at_first[CPU + fullness] | at_first[MEMORY + fullness])
            fullness -= not alike
        alike = alike or group
        group ^= alike
        longer = alike & after[BUSY]
        some, ends = alike ^ longer, 1
        if not some:
            some, ends = longer, 0
        while some:
            slot = (some & -some).bit_length() - 1 if order.in_order else order.first_slot(some)
            some ^= 1 << slot
            line = lines[slot]
            asked += 1
            if line.usable <= start:
                timeline = line.timeline
                moments = timeline.moments
                left = room if line.lanes is lanes else ask.room(line.lanes)
                step = bisect_right(moments, start) - 1
                for level in timeline.levels[step : bisect_left(moments, end, step + 1) if start < end else step]:
                    if left - level & GUARD_BITS != GUARD_BITS:
                        break
                else:
                    ask.asked += asked
                    return line, pack_score(idle, len(rows), 2 * fullness + ends)
            if not some and ends:
                some, ends = longer, 0
    ask.asked += asked
    return None
