"""Placement as one would write it first: go through all workers, filter, add up claims, score, sort, take the best.

It knows the same rules and the same BinPack score as the product and is written to be quick at it: whole numbers, plain
loops, the cheap questions first, and the sum of all claims that the slot meets before the sums at every moment.
"""

from dataclasses import dataclass, field

from lcm.model.capacity import Amount, Claim
from lcm.model.definition import AmiRequirements, version_allowed
from lcm.model.worker import satisfies
from lcm.placement.request import Held, Place, Request

HALF_HOUR = 30 * 60
SIXTEENTHS = 16

Taken = tuple[float, float, int, int, int, int, int, int]
"""From when to when, and how much of each dimension."""


@dataclass(slots=True)
class Worker:
    place: Place
    claims: dict[str, Taken] = field(default_factory=dict)


class Workers:
    """All workers in the order of their ids."""

    def __init__(self, places: list[Place], held: dict[str, tuple[Held, ...]]) -> None:
        self.by_id = {place.id: Worker(place) for place in sorted(places, key=lambda place: place.id)}
        self.workers = list(self.by_id.values())
        for id_, several in held.items():
            for one in several:
                self.by_id[id_].claims[one.holder] = taken(one.claim)

    def place(self, request: Request) -> tuple[str, float] | None:
        """Choose a worker, take the claim there, and say which and its score."""
        asked = taken(request.claim)
        start, end = asked[0], asked[1]
        scored = []
        for worker in self.workers:
            place = worker.place
            if place.closed or place.seat or not _eligible(place, request):
                continue
            met = [claim for claim in worker.claims.values() if claim[0] < end and start < claim[1]]
            if _fits(met, asked, place.capacity):
                scored.append((-_score(worker, met, start, end), place.id))
        if not scored:
            return None
        scored.sort()
        score, id_ = scored[0]
        self.by_id[id_].claims[request.name] = asked
        return id_, -score

    def release(self, id_: str, holder: str) -> None:
        del self.by_id[id_].claims[holder]


def taken(claim: Claim) -> Taken:
    need = claim.need
    amounts = (need.cpu_millis, need.memory_mb, need.storage_mb, need.nodes, need.ports, need.labs)
    return claim.start.timestamp(), claim.end.timestamp(), *amounts


def _eligible(place: Place, request: Request) -> bool:
    if (
        request.lab_type not in place.lab_types
        or (request.require_licensed and not place.licensed)
        or (request.track and place.track and request.track != place.track)
        or (request.region_required is not None and request.region_required != place.region)
        or (place.usable_at is not None and request.claim.start < place.usable_at)
        or (request.affinity is not None and not satisfies(place.licence, request.affinity))
        or (place.node_definitions is not None and not request.node_definitions <= place.node_definitions)
    ):
        return False
    low, high = request.cml_version_min, request.cml_version_max
    if low is None and high is None:
        return True
    return version_allowed(place.version, AmiRequirements(cml_version_min=low, cml_version_max=high))


def _fits(met: list[Taken], asked: Taken, size: Amount) -> bool:
    if _within(met, asked, size):
        return True
    start = asked[0]
    if not _within([claim for claim in met if claim[0] <= start], asked, size):
        return False
    moments = [claim[0] for claim in met if claim[0] > start]
    return all(_within([claim for claim in met if claim[0] <= at < claim[1]], asked, size) for at in moments)


def _within(claims: list[Taken], asked: Taken, size: Amount) -> bool:
    _, _, cpu, memory, storage, nodes, ports, labs = asked
    for claim in claims:
        cpu += claim[2]
        memory += claim[3]
        storage += claim[4]
        nodes += claim[5]
        ports += claim[6]
        labs += claim[7]
    return (
        cpu <= size.cpu_millis
        and memory <= size.memory_mb
        and storage <= size.storage_mb
        and nodes <= size.nodes
        and ports <= size.ports
        and labs <= size.labs
    )


def _score(worker: Worker, met: list[Taken], start: float, end: float) -> float:
    """Count the half hours of the slot in which the worker would run anyway, then its fullness, then a common end."""
    first, last = int(-(-start // HALF_HOUR)), int(-(-end // HALF_HOUR))
    moment, after = first * HALF_HOUR, last * HALF_HOUR
    covered = cpu = memory = 0
    for claim in met if moment < end else worker.claims.values():
        since, until = claim[0], claim[1]
        low = int(-(-since // HALF_HOUR)) - first if since > moment else 0
        high = int(-(-until // HALF_HOUR)) - first if until < end else last - first
        if low < high:
            covered |= (1 << high) - (1 << low)
        if since <= moment < until:
            cpu += claim[2]
            memory += claim[3]
    size = worker.place.capacity
    full = max(cpu * SIXTEENTHS // size.cpu_millis, memory * SIXTEENTHS // size.memory_mb)
    together = 1
    for claim in worker.claims.values():
        if claim[0] <= after < claim[1]:
            together = 0
            break
    return (covered.bit_count() + (2 * full + together) / 64) / (last - first + 1)
