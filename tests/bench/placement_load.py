"""A fleet of metal workers in the middle of its day, and the requests that come: what placement is measured with."""

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

from harness import given
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.fleet import PlaceIndex
from lcm.placement.place import place
from lcm.placement.request import HeldClaim, Place, PlacementRequest

NOW = given.moment("09:00")
AHEAD = timedelta(hours=24)
LEAD = timedelta(minutes=15)
CLEAN_UP = timedelta(minutes=10)
QUARTER = timedelta(minutes=15)
ASAP_SHARE = 0.5
PER_WORKER_AND_HOUR = 1.2
"""Requests: with 9 cores for about 3 hours each they keep 48 cores two thirds full."""

Release = Callable[[str, str], object]


def worker(number: int) -> Place:
    """Make a metal worker; a few are of another track, drain, or are no longer of the newest CML."""
    return Place(
        id=f"w{number:05}",
        name=f"worker-{number}",
        capacity=given.machine(storage_mb=1_900_000),
        region="us-east-1",
        track="security" if number % 20 == 3 else "",
        version="2.7.0" if number % 20 == 7 else "2.9.1",
        closed="draining" if number % 50 == 11 else "",
    )


class Day:
    """Requests one after another, with the time at which each comes; what is over is released in between."""

    def __init__(self, workers: int, seed: int) -> None:
        self._chance = Random(seed)
        self._count = 0
        self._workers = workers
        self.now = NOW

    def before(self) -> list[PlacementRequest]:
        """Return what came earlier: all that runs, and of bookings ever less the farther ahead."""
        hours = [self._chance.uniform(-4, 24) for _ in range(int(self._workers * PER_WORKER_AND_HOUR * 28))]
        came = [
            self._came(NOW + timedelta(hours=ahead))
            for ahead in hours
            if ahead < 0 or self._chance.random() > (0.5 + ahead / 48)
        ]
        return [request for request in came if request.claim.end > NOW]

    def next(self) -> PlacementRequest:
        self.now += timedelta(hours=1) / (self._workers * PER_WORKER_AND_HOUR)
        if self._chance.random() < ASAP_SHARE:
            return self._asap(self.now)
        return self._booked(self.now + LEAD + self._chance.random() * AHEAD)

    def _came(self, about: datetime) -> PlacementRequest:
        asap = about < NOW and self._chance.random() < ASAP_SHARE
        return self._asap(about) if asap else self._booked(about)

    def _asap(self, start: datetime) -> PlacementRequest:
        return self._request(start, start + self._length() + CLEAN_UP)

    def _booked(self, about: datetime) -> PlacementRequest:
        start = NOW + (about - NOW) // QUARTER * QUARTER
        return self._request(start - LEAD, start + self._length() + CLEAN_UP)

    def _length(self) -> timedelta:
        return self._chance.randint(4, 16) * QUARTER

    def _request(self, start: datetime, end: datetime) -> PlacementRequest:
        chance = self._chance
        self._count += 1
        need = Amount(
            cpu_millis=chance.randint(2, 16) * 1000,
            memory_mb=chance.randint(2, 48) * 1024,
            storage_mb=chance.randint(5, 60) * 1024,
            nodes=chance.randint(1, 30),
            ports=chance.randint(0, 40),
            labs=1,
        )
        low = "2.8" if chance.random() < 0.2 else None
        claim = Claim(start=start, end=end, need=need)
        return PlacementRequest(name=f"s{self._count}", claim=claim, track="routing", cml_version_min=low)


class Coming(NamedTuple):
    """A request, the time at which it comes, and the minutes in which that is and in which its claim ends."""

    now: datetime
    minute: int
    request: PlacementRequest
    end: int


def coming(day: Day, count: int) -> list[Coming]:
    """Yield so many requests one after another."""
    return [_coming(day, day.next()) for _ in range(count)]


def _coming(day: Day, request: PlacementRequest) -> Coming:
    return Coming(day.now, _minute(day.now), request, _minute(request.claim.end))


def _minute(moment: datetime) -> int:
    return int(moment.timestamp() // 60)


class Ends:
    """What ends in which minute, and is to be released then."""

    def __init__(self) -> None:
        self._ends: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        self.minute = _minute(NOW)

    def add(self, end: int, id_: str, holder: str) -> None:
        self._ends[end].append((id_, holder))

    def release(self, until: int, release: Release) -> None:
        for minute in range(self.minute, until):
            for id_, holder in self._ends.pop(minute, ()):
                release(id_, holder)
        self.minute = until


def filled(day: Day, workers: int) -> tuple[PlaceIndex, Ends]:
    """Build a fleet that holds what was booked before."""
    fleet, ends = PlaceIndex(worker(number) for number in range(workers)), Ends()
    for request in day.before():
        found = place(fleet, request)
        if found.decision.action == "assign" and found.decision.worker_id:
            fleet.hold(found.decision.worker_id, HeldClaim(request.name, request.claim))
            ends.add(_minute(request.claim.end), found.decision.worker_id, request.name)
    return fleet, ends
