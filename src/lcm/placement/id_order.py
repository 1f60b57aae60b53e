"""The slots of a size class: the bit of every place, and the places of a mask in the order of their ids.

A place keeps its slot for as long as it is there, so that adding one moves no other. As long as places come in the
order of their ids, the order of slots is that of ids and the first place of a mask is its lowest bit. After that the
ids are in buckets, each with the mask of its slots: the first bucket that meets a mask has its first place.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Final

_BUCKET: Final = 512
"""A bucket with this many ids is split: few enough to sort a part of, and some dozens of buckets for large fleets."""


class _Bucket:
    """Some ids next to each other, in order, and the mask of their slots."""

    __slots__ = ("ids", "mask")

    def __init__(self, ids: list[str], mask: int) -> None:
        self.ids = ids
        self.mask = mask


class IdOrder:
    """The slots of places by id."""

    __slots__ = ("_buckets", "_firsts", "_free", "_ids", "_slots", "in_order")

    def __init__(self) -> None:
        self.in_order = True
        """Whether a lower slot means an id that sorts earlier."""
        self._slots: dict[str, int] = {}
        self._ids: list[str] = []
        self._free: set[int] = set()
        self._buckets: list[_Bucket] = []
        self._firsts: list[str] = []

    def insert(self, id_: str) -> int:
        """Return the slot of a new id."""
        number = max(bisect_right(self._firsts, id_) - 1, 0)
        if not self._buckets:
            self._buckets.append(_Bucket([], 0))
            self._firsts.append(id_)
        bucket = self._buckets[number]
        slot = self._choose_slot(number, bisect_left(bucket.ids, id_))
        insort(bucket.ids, id_)
        bucket.mask |= 1 << slot
        self._firsts[number] = bucket.ids[0]
        self._slots[id_] = slot
        self._ids[slot] = id_
        if len(bucket.ids) >= _BUCKET:
            self._split(number)
        return slot

    def remove(self, id_: str) -> None:
        """Take the slot back from an id."""
        slot = self._slots.pop(id_)
        self._free.add(slot)
        number = bisect_right(self._firsts, id_) - 1
        bucket = self._buckets[number]
        bucket.mask ^= 1 << slot
        del bucket.ids[bisect_left(bucket.ids, id_)]
        if bucket.ids:
            self._firsts[number] = bucket.ids[0]
        else:
            del self._buckets[number], self._firsts[number]

    def mask_of(self, ids: Iterable[str]) -> int:
        """Return the mask of those of these ids that are here."""
        return _mask_of(self._slots[one] for one in ids if one in self._slots)

    def slots_in(self, mask: int) -> Iterator[int]:
        """Iterate over the slots of a mask in the order of their ids."""
        return _bits(mask) if self.in_order else self._sorted_slots(mask)

    def first_slot(self, mask: int) -> int:
        """Return the slot of the first id in a mask that is not empty."""
        return next(self.slots_in(mask))

    def _sorted_slots(self, mask: int) -> Iterator[int]:
        for bucket in self._buckets:
            found = mask & bucket.mask
            if found:
                yield from sorted(_bits(found), key=self._ids.__getitem__)
                mask ^= found
                if not mask:
                    return

    def _choose_slot(self, number: int, place: int) -> int:
        """Choose the slot of an id that will be at a place of a bucket: one between its neighbours' if there is one."""
        before, after = self._neighbours(number, place)
        slot = before + 1
        if slot in self._free and (after is None or slot < after):
            self._free.remove(slot)
        elif after is None and slot == len(self._ids):
            self._ids.append("")
        else:
            self.in_order = False
            slot = self._any_slot()
        return slot

    def _neighbours(self, number: int, place: int) -> tuple[int, int | None]:
        """Return the slots of the ids before and after a place of a bucket: -1 and None where there are none."""
        ids = self._buckets[number].ids
        before, after = -1, None
        if place:
            before = self._slots[ids[place - 1]]
        if place < len(ids):
            after = self._slots[ids[place]]
        elif number + 1 < len(self._buckets):
            after = self._slots[self._firsts[number + 1]]
        return before, after

    def _any_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._ids.append("")
        return len(self._ids) - 1

    def _split(self, number: int) -> None:
        bucket = self._buckets[number]
        upper = bucket.ids[_BUCKET // 2 :]
        del bucket.ids[_BUCKET // 2 :]
        mask = _mask_of(self._slots[one] for one in upper)
        bucket.mask ^= mask
        self._buckets.insert(number + 1, _Bucket(upper, mask))
        self._firsts.insert(number + 1, upper[0])


def _mask_of(slots: Iterable[int]) -> int:
    return reduce(or_, (1 << slot for slot in slots), 0)


def _bits(mask: int) -> Iterator[int]:
    """Iterate over the bits of a mask, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
