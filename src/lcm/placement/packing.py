"""BinPack: the best place of a size class for a request, found without going through all.

The best are those that run anyway in all of the claim's half hours, then the fuller, then those that become empty at
the same time, then the first id; the first whose timeline agrees is taken. Before its first half hour a claim meets
others that no row shows. Places too full at the half hour before come last: in a large fleet hundreds of them might be
asked that are too full just then, and a slightly emptier place is as good.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from lcm.placement.bitmap import (
    BUSY,
    FULLEST,
    FullnessLimits,
    FullnessRow,
    fullest_places,
    fullness_limits,
    group_by_count,
    is_above,
    scarce_masks,
    scarce_places,
)
from lcm.placement.candidate import IndexedPlace, PackedRequest
from lcm.placement.size_class import SizeClass
from lcm.placement.timeline import GUARD_BITS, TICK_MICROS

_TIES: Final = 64
"""Fullness and a common end decide between places with the same idle time, in such parts of a half hour."""

_LARGE_CLASS: Final = 2_000
"""From this many places on it is cheaper to remember which were too full than to ask them again."""

ScoredPlace = tuple[IndexedPlace, float]
_View = tuple[FullnessLimits, Sequence[FullnessRow], FullnessRow, int]
"""The limits of a request, the rows of its claim's half hours, the row after them, and who may be too full before."""


def pack_score(idle: int, looked: int, tie: int) -> float:
    """Score a place from 0 to 1: by how little idle time it fills, then by twice its fullness plus a common end."""
    return (looked - idle + tie / _TIES) / (looked + 1)


def choose_packed(shelves: Iterable[SizeClass], ask: PackedRequest, region: str | None) -> ScoredPlace | None:
    """Choose the best place of several size classes, in a region if one is given; return it and its score."""
    best = None
    for shelf in shelves:
        found = _best_of_class(shelf, ask, region)
        if best is None or (found is not None and (-found[1], found[0].place.id) < (-best[1], best[0].place.id)):
            best = found
    return best


def _best_of_class(shelf: SizeClass, ask: PackedRequest, region: str | None) -> ScoredPlace | None:
    """Return the best place of a size class and its score; None if none has room."""
    index, room = shelf.rows, ask.room(shelf.lanes)
    if room & GUARD_BITS != GUARD_BITS:
        return None
    highest = shelf.lanes.highest_levels(room)
    limit = fullness_limits(highest[0], highest[1])
    most, least, greater, doubt, *_ = limit
    mask, late, doubtful = shelf.open_to(ask.request, region), 0, 0
    rows = index.between(ask.first - 1, ask.stop + 1)
    before, after = rows.pop(0), rows.pop()
    if ask.start < ask.first * TICK_MICROS:
        late, doubtful = before[most] | before[least] & before[greater], before[doubt]
        if rows and ask.first - 1 == index.since:
            mask ^= mask & shelf.full_places.places_above(ask.start, limit)
    taken, busy = 0, mask
    for row in rows:
        taken |= row[most] | row[least] & row[greater]
        busy &= row[BUSY]
    if index.scarce_until[1] > ask.start:
        step, masks = scarce_masks(highest[2:])
        if index.scarce_until[step] > ask.start:
            taken |= scarce_places(rows, step, masks)
            late |= scarce_places((before,), step, masks) if ask.start < ask.first * TICK_MICROS else 0
    busy ^= busy & taken
    ready, ask.late = busy ^ (busy & late), late
    found = _best_of_group(shelf, ask, (limit, rows, after, doubtful), ready) if ready else None
    if found is not None:
        return found
    free = mask ^ (mask & taken)
    return _best_of_idle(shelf, ask, (limit, rows, after, doubtful), free ^ (free & late) ^ ready) or _best_of_idle(
        shelf, ask, (limit, rows, after, 0), free & ask.late
    )


def _best_of_idle(shelf: SizeClass, ask: PackedRequest, view: _View, mask: int) -> ScoredPlace | None:
    """Return the best of places by the number of half hours in which they run for the claim alone, the fewest first."""
    rows = view[1]
    for busy, group in group_by_count(mask, [row[BUSY] for row in rows]) if mask else ():
        found = _best_of_group(shelf, ask, view, group, len(rows) - busy)
        if found is not None:
            return found
    return None


def _best_of_group(shelf: SizeClass, ask: PackedRequest, view: _View, group: int, idle: int = 0) -> ScoredPlace | None:
    """Return the best place of a group by fullness at the claim's first half hour, and then by a common end."""
    limit, rows, after, doubtful = view
    at_first, most = (rows[0], limit.fullness) if rows else (after, FULLEST)
    while group:
        most, alike = fullest_places(at_first, group, most)
        group ^= alike
        longer = alike & after[BUSY]
        for some in (alike ^ longer, longer):
            line = _first_with_room(shelf, ask, limit, some, doubtful) if some else None
            if line is not None:
                return line, pack_score(idle, len(rows), 2 * most + (some is not longer))
    return None


def _first_with_room(
    shelf: SizeClass, ask: PackedRequest, limit: FullnessLimits, mask: int, doubtful: int
) -> IndexedPlace | None:
    """Ask places in the order of their ids, and return the first with room; who turns out to be late waits."""
    start, end, lines, lanes = ask.start, ask.end, shelf.lines, shelf.lanes
    room = ask.room(lanes)
    for slot in shelf.order.slots_in(mask):
        line = lines[slot]
        ask.asked += 1
        if line.usable > start:
            continue
        obstacle = line.timeline.first_obstacle(start, end, room if line.lanes is lanes else ask.room(line.lanes))
        if obstacle is not None:
            if len(lines) >= _LARGE_CLASS:
                shelf.remember_full(line, ask, obstacle, limit)
        elif doubtful >> slot & 1 and is_above(line.sampled_at(ask.first - 1), limit):
            ask.late |= 1 << slot
        else:
            return line
    return None
