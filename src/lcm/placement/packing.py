"""BinPack: the best place of a size class for a request, found without going through all.

The best are those that run anyway in all of the claim's half hours, then the fuller, then those that become empty at
the same time, then the first id; the first whose timeline agrees is taken. Before its first half hour a claim meets
others that no row shows. Places too full at the half hour before, or now, come last: in a large fleet hundreds of them
might be asked that are too full just then, and a slightly emptier place is as good.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from lcm.placement.bitmap import (
    BUSY,
    CODED,
    FULLEST,
    FULLNESS_LIMITS,
    OTHERS,
    SCARCITY_LIMITS,
    STEPS_DOWN,
    FullnessRow,
    group_by_count,
    scarce_places,
)
from lcm.placement.candidate import IndexedPlace, PackedRequest
from lcm.placement.size_class import SizeBlocks, SizeClass
from lcm.placement.timeline import BEGINNING, GUARD_BITS, LANE_BITS, TICK_MICROS

_TIES: Final = 64
"""Fullness and a common end decide between places with the same idle time, in such parts of a half hour."""

ScoredPlace = tuple[IndexedPlace, float]
_View = tuple[Sequence[tuple[int, int, int]], Sequence[FullnessRow], FullnessRow, int]
"""The steps of fullness downwards, the rows of a claim's half hours, the row after them, and the excess.

The excess is every bit of every lane less what may be used: plus what is used, it has a guard bit where that is too
much.
"""

_ALL_BITS: Final = GUARD_BITS * 2 - (GUARD_BITS >> LANE_BITS - 1)


def pack_score(idle: int, looked: int, tie: int) -> float:
    """Score a place from 0 to 1: by how little idle time it fills, then by twice its fullness plus a common end."""
    return (looked - idle + tie / _TIES) / (looked + 1)


def choose_packed(shelves: Sequence[SizeClass], ask: PackedRequest, region: str | None) -> ScoredPlace | None:
    """Choose the best place of several size classes, in a region if one is given; return it and its score.

    Of a size class in blocks, the first block in turn that has room for the claim decides.
    """
    if len(shelves) == 1:
        shelf = shelves[0]
        return _best_of_class(shelf, ask, region, late=False) or _best_of_class(shelf, ask, region, late=True)
    return _best_of_all(shelves, ask, region, late=False) or _best_of_all(shelves, ask, region, late=True)


def _best_of_all(
    shelves: Sequence[SizeClass], ask: PackedRequest, region: str | None, *, late: bool
) -> ScoredPlace | None:
    if shelves and len(shelves) == len(shelves[0].group.blocks):
        return _best_of_blocks(shelves[0].group, ask, region, late=late)
    found = (_best_of_blocks(shelf.group, ask, region, late=late) for shelf in shelves if not shelf.number)
    return min(filter(None, found), key=lambda one: (-one[1], one[0].place.id), default=None)


def _best_of_blocks(group: SizeBlocks, ask: PackedRequest, region: str | None, *, late: bool) -> ScoredPlace | None:
    for block in group.in_turn(ask.first):
        found = _best_of_class(block, ask, region, late=late)
        if found is not None:
            if len(group.blocks) > 1:
                group.starts[ask.first] = block.number
            return found
    return None


def _best_of_class(  # noqa: C901  calls cost more than what they do
    shelf: SizeClass, ask: PackedRequest, region: str | None, *, late: bool
) -> ScoredPlace | None:
    """Return the best place of a size class and its score, of the late ones or of the others; None if none has room."""
    lanes = shelf.lanes
    room = ask.room(lanes)
    excess = _ALL_BITS - room
    if excess & GUARD_BITS:
        return None
    highest = room + lanes.slack
    cpu, memory, steps = FULLNESS_LIMITS[highest & CODED]
    limit = SCARCITY_LIMITS[highest & OTHERS]
    index, start, first = shelf.rows, ask.start, ask.first
    rows = index.between(first, ask.stop + 1)
    after = rows.pop()
    mask, taken = shelf.open_to(ask, region), 0
    scarce = index.scarce_until[limit[0]] > start
    if start < index.begin:
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
    ready, found = busy & free, None
    view = steps, rows, after, excess
    if ready:
        found = _best_of_group(shelf, ask, view, ready, 0)
    if found is None and free != ready:
        for covered, group in group_by_count(free ^ ready, [row[BUSY] for row in rows]):
            found = _best_of_group(shelf, ask, view, group, len(rows) - covered)
            if found is not None:
                break
    return found


def _best_of_group(  # noqa: C901, PLR0912  calls cost more than what they do
    shelf: SizeClass, ask: PackedRequest, view: _View, group: int, idle: int
) -> ScoredPlace | None:
    """Return the best place of a group by fullness at the claim's first half hour, and then by a common end.

    The first whose timeline has room is taken, in the order of ids. This is much of what a decision costs, and so it is
    one function.
    """
    steps, rows, after, excess = view
    start, end, lanes, order = ask.start, ask.end, shelf.lanes, shelf.order
    if start >= end:
        end = BEGINNING  # a claim of no length meets no step of a timeline
    if rows:
        at_first = rows[0]
    else:
        at_first, steps = after, STEPS_DOWN[FULLEST]
    for fullness, cpu, memory in steps:
        alike = group & (at_first[cpu] | at_first[memory])
        if not alike:
            continue
        longer = alike & after[BUSY]
        for some in (alike ^ longer, longer):
            while some:
                bit = some & -some if order.in_order else 1 << order.first_slot(some)
                line = shelf.lines[bit.bit_length() - 1]
                ask.asked += 1
                if line.lanes is not lanes:
                    lanes = line.lanes
                    excess = _ALL_BITS - ask.room(lanes)
                if line.usable <= start:
                    timeline = line.timeline
                    moments = timeline.moments
                    step = bisect_right(moments, start) - 1
                    for level in timeline.levels[step : bisect_left(moments, end, step)]:
                        if excess + level & GUARD_BITS:
                            break
                    else:
                        return line, pack_score(idle, len(rows), 2 * fullness + (not bit & longer))
                some ^= bit  # noqa: PLW2901  it is used up
        group ^= alike
        if not group:
            break
    return None
