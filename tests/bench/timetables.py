"""Timetables to pack: generated from a kind and a seed, in the order in which people book. Fixed, so that figures last.

A certification week has exams at fixed hours, a course books whole classes for the same hours of each day, a
hackathon has long slots that begin at all hours, and a mixed month's days have everything next to each other.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from random import Random

from harness import given
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.request import HeldClaim

SEEDS = range(20)
LEAD = timedelta(minutes=25)
"""Boot and buffer of a worker."""
INSTANTIATION = timedelta(minutes=15)
CLEAN_UP = timedelta(minutes=10)
SMALL: Mapping[str, int] = {"certification week": 48, "course": 48, "hackathon": 20, "mixed": 28}
"""Sessions of each kind for which an optimum can be proven in seconds: the more they differ, the fewer."""
LARGE = 400
_A_WEEK = 50

_LABS = ((2, 6, 4), (4, 12, 8), (6, 20, 12), (8, 32, 16), (12, 40, 24), (16, 64, 30))
"""Cores, GB of memory and nodes of a lab."""


class Book:
    """The bookings of one timetable so far."""

    def __init__(self, sessions: int, chance: Random) -> None:
        self.sessions = sessions
        self.chance = chance
        self.made: list[HeldClaim] = []

    def full(self) -> bool:
        return len(self.made) >= self.sessions

    def add(self, day: int, hour: float, hours: float, need: Amount) -> None:
        if not self.full():
            start = given.moment("00:00", day=day) + timedelta(hours=hour)
            end = start + timedelta(hours=hours) + CLEAN_UP
            self.made.append(HeldClaim(f"s{len(self.made)}", Claim(start=start - INSTANTIATION, end=end, need=need)))

    def lab(self, smallest: int = 0, largest: int = len(_LABS) - 1) -> Amount:
        cores, memory, nodes = _LABS[self.chance.randint(smallest, largest)]
        return Amount(
            cpu_millis=cores * 1000,
            memory_mb=memory * 1024,
            storage_mb=5 * 1024,
            nodes=nodes,
            ports=2 * nodes,
            labs=1,
        )


def certification_week(book: Book) -> None:
    """Candidates choose a day and one of the exams, each of which has its lab and its hours."""
    days = max(1, min(5, book.sessions // 16))
    exams = [(book.lab(2, 4), hour, hours) for hour, hours in ((9.0, 8.0), (9.0, 3.0), (13.0, 4.0))]
    while not book.full():
        need, hour, hours = book.chance.choice(exams)
        book.add(book.chance.randrange(days), hour, hours, need)


def course(book: Book) -> None:
    """Classes of people with the same lab, for the same hours of several days; one books after another."""
    days = 5 if book.sessions > _A_WEEK else 2
    while not book.full():
        need, people = book.lab(0, 3), book.chance.randint(5, 14)
        hour, hours = book.chance.choice(((8.5, 3.5), (9.0, 7.0), (13.0, 4.0), (18.0, 3.0)))
        for day in range(days):
            for _ in range(people):
                book.add(day, hour, hours, need)


def hackathon(book: Book) -> None:
    """Teams work long, and begin at any hour of two days."""
    while not book.full():
        start = min(36.0, max(0.0, book.chance.gauss(18, 8)))
        book.add(0, round(start * 2) / 2, book.chance.choice((4, 6, 8, 8, 10, 12)), book.lab(1, 5))


def mixed(book: Book) -> None:
    """People practise for some hours of the day, alone or in small groups, next to a class and an exam."""
    days = max(1, book.sessions // 40)
    while not book.full():
        day, need, kind = book.chance.randrange(days), book.lab(), book.chance.random()
        people = 1 if kind < 0.8 else book.chance.randint(3, 8)
        hour = round(book.chance.triangular(7, 20, 10) * 4) / 4
        hours = book.chance.choice((1, 1.5, 2, 2, 3, 4, 8))
        for _ in range(people):
            book.add(day, hour, hours, need)


KINDS: Mapping[str, Callable[[Book], None]] = {
    "certification week": certification_week,
    "course": course,
    "hackathon": hackathon,
    "mixed": mixed,
}


def timetable(seed: int, sizes: Mapping[str, int] | int) -> tuple[str, list[HeldClaim]]:
    """Make the timetable of a seed: its kind, and its bookings in the order in which they come."""
    kind = list(KINDS)[seed % len(KINDS)]
    sessions = sizes if isinstance(sizes, int) else sizes[kind]
    book = Book(sessions, Random(f"{kind} {seed} {sessions}"))
    KINDS[kind](book)
    return kind, book.made
