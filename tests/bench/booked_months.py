"""Booked months to pack: sessions of a track's labs in the order of their booking. Fixed, so that figures last.

A catalogue has forty labs, some wanted far more than others. Each takes 1/24 to 1/2 of a machine's cores, memory and
nodes, drawn apart from each other, small ones more often than large ones. Most sessions begin in the working hours of
working days, some at any hour. Lengths have a heavy tail, from an hour to three days. Each is booked up to seven days
ahead.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random
from typing import NamedTuple

from harness import given
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.request import HeldClaim

LEAD = timedelta(minutes=25)
"""Boot and buffer of a worker."""
INSTANTIATION = timedelta(minutes=15)
CLEAN_UP = timedelta(minutes=10)
DAYS = 30
LABS = 40
LONGEST = timedelta(days=3)
_WEEK = (1.0, 1.0, 1.0, 1.0, 0.8, 0.25, 0.2)
_TAIL = 1.1
"""The exponent of the lengths: the smaller, the more very long ones."""
_SMALLEST, _LARGEST = 24, 2


class Booking(NamedTuple):
    """A claim, and when it is booked."""

    at: datetime
    claim: Claim


def booked_month(sessions: int, seed: int, *, each_its_own: bool = False) -> list[HeldClaim]:
    """Make the claims of a month, in the order in which they are booked.

    With `each_its_own` there is no catalogue, and each session takes amounts of its own.
    """
    bookings = month_of_bookings(sessions, seed, each_its_own=each_its_own)
    return [HeldClaim(f"s{number}", one.claim) for number, one in enumerate(bookings)]


def month_of_bookings(sessions: int, seed: int, *, each_its_own: bool = False) -> list[Booking]:
    """Make the bookings of a month, in the order in which they are made."""
    chance = Random(f"booked month {sessions} {seed}")
    labs = [_lab(chance) for _ in range(LABS)]
    wanted = [1 / (rank + 1) ** 0.7 for rank in range(LABS)]
    made: list[tuple[float, Claim]] = []
    for _ in range(sessions):
        start, length = _start(chance), _length(chance)
        need = _lab(chance) if each_its_own else chance.choices(labs, wanted)[0]
        begin = given.moment("00:00") + start
        claim = Claim(start=begin - INSTANTIATION, end=begin + length + CLEAN_UP, need=need)
        made.append((start / timedelta(days=1) - chance.uniform(0, 7), claim))
    made.sort(key=lambda one: one[0])
    return [Booking(given.moment("00:00") + timedelta(days=days), claim) for days, claim in made]


def _start(chance: Random) -> timedelta:
    day = chance.choices(range(DAYS), [_WEEK[day % 7] for day in range(DAYS)])[0]
    drawn = chance.random()
    hour = chance.gauss(10, 1.5) if drawn < 0.45 else chance.gauss(14.5, 2.5) if drawn < 0.9 else chance.uniform(0, 24)
    return timedelta(days=day, minutes=15 * round(4 * min(23.75, max(0.0, hour))))


def _length(chance: Random) -> timedelta:
    quarters = round(4 * (1 - chance.random()) ** (-1 / _TAIL))
    return min(LONGEST, timedelta(minutes=15 * max(4, quarters)))


def _lab(chance: Random) -> Amount:
    machine = given.machine()
    cores = _part(chance, machine.cpu_millis // 1000)
    memory = _part(chance, machine.memory_mb // 1024)
    nodes = _part(chance, machine.nodes)
    return Amount(
        cpu_millis=cores * 1000, memory_mb=memory * 1024, storage_mb=5 * 1024, nodes=nodes, ports=2 * nodes, labs=1
    )


def _part(chance: Random, whole: int) -> int:
    drawn = math.exp(chance.uniform(math.log(1 / _SMALLEST), math.log(1 / _LARGEST)))
    return min(whole // _LARGEST, max(-(-whole // _SMALLEST), round(drawn * whole)))


class PlantedSet(NamedTuple):
    """Claims of one moment that fit on so many machines, and on no fewer."""

    book: list[HeldClaim]
    machines: int
    capacity: Amount


_NAMES = ("cpu_millis", "memory_mb", "nodes", "storage_mb", "ports", "labs")
_WHOLE = 10_000


def planted_set(dimensions: int, items: int, seed: int) -> PlantedSet:
    """Cut machines into parts at random places, of each dimension most.

    Of the first dimension so little is left over that all machines together have less than a whole one to spare.
    """
    chance = Random(f"planted {dimensions} {items} {seed}")
    sizes = _part_counts(chance, items)
    spare = 9 * _WHOLE // (10 * len(sizes))
    needs: list[Amount] = []
    for parts in sizes:
        wholes = [_WHOLE - chance.randint(0, spare), *(chance.randint(7_000, _WHOLE) for _ in range(dimensions - 1))]
        cuts = [_cut(chance, whole, parts) for whole in wholes]
        needs += [Amount(**dict(zip(_NAMES, row, strict=False))) for row in zip(*cuts, strict=True)]
    chance.shuffle(needs)
    start = given.moment("09:00")
    claims = [Claim(start=start, end=start + timedelta(hours=2), need=need) for need in needs]
    book = [HeldClaim(f"s{number}", claim) for number, claim in enumerate(claims)]
    return PlantedSet(book, len(sizes), Amount(**dict.fromkeys(_NAMES[:dimensions], _WHOLE)))


def _part_counts(chance: Random, items: int) -> list[int]:
    counts: list[int] = []
    while sum(counts) < items:
        counts.append(min(items - sum(counts), chance.randint(3, 7)))
    return counts


def _cut(chance: Random, whole: int, parts: int) -> Sequence[int]:
    places = sorted(chance.sample(range(1, whole), parts - 1))
    return [end - begin for begin, end in pairwise((0, *places, whole))]
