"""Placement as one would write it first: go through all workers, filter, add up claims, score, sort, take the best.

It knows the same rules and the same BinPack score as the product and is written to be quick at it: whole numbers, plain
loops, the cheap questions first, and the sum of all claims that the slot meets before the sums at every moment. What
depends on the request alone is worked out once for all workers.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from lcm.model.base.capacity import Claim
from lcm.model.kinds.definition import AmiRequirements, is_version_allowed
from lcm.model.kinds.worker import satisfies_affinity
from lcm.placement.request import HeldClaim, Place, PlacementRequest

HALF_HOUR = 30 * 60
FULL = 32
STEPS = bytes(bisect_right((8, 16, 24, 26, 28, 29, 30, 31, 32), level) for level in range(FULL + 1))
"""The steps of fullness that a worker has reached, by its level in 32nds."""

Size = tuple[int, int, int, int, int, int]
Taken = tuple[float, float, int, int, int, int, int, int, int, int]
"""From when to when, how much of each dimension, and the first half hour in it and after it."""


@dataclass(slots=True)
class Worker:
    place: Place
    size: Size
    claims: dict[str, Taken] = field(default_factory=dict)


class Workers:
    """All workers in the order of their ids."""

    def __init__(self, places: list[Place], held: dict[str, tuple[HeldClaim, ...]]) -> None:
        self.by_id = {place.id: Worker(place, _size(place)) for place in sorted(places, key=lambda place: place.id)}
        self.workers = list(self.by_id.values())
        for id_, several in held.items():
            for one in several:
                self.by_id[id_].claims[one.holder] = taken(one.claim)

    def place(self, request: PlacementRequest) -> tuple[str, float] | None:
        """Choose a worker, take the claim there, and say which and its score."""
        asked = taken(request.claim)
        start, end = asked[0], asked[1]
        lab_type, track, licensed = request.lab_type, request.track, request.require_licensed
        region, affinity, definitions = request.region_required, request.affinity, request.node_definitions
        begins = request.claim.start
        wanted = AmiRequirements(cml_version_min=request.cml_version_min, cml_version_max=request.cml_version_max)
        bounded = wanted != AmiRequirements()
        allowed: dict[str, bool] = {}
        scored = []
        for worker in self.workers:
            place = worker.place
            if (
                place.closed
                or place.seat
                or (track and place.track and track != place.track)
                or (licensed and not place.licensed)
                or lab_type not in place.lab_types
                or (region is not None and region != place.region)
                or (place.usable_at is not None and begins < place.usable_at)
                or (affinity is not None and not satisfies_affinity(place.licence, affinity))
                or (place.node_definitions is not None and not definitions <= place.node_definitions)
            ):
                continue
            if bounded:
                version = place.version
                if version not in allowed:
                    allowed[version] = is_version_allowed(version, wanted)
                if not allowed[version]:
                    continue
            met = [claim for claim in worker.claims.values() if claim[0] < end and start < claim[1]]
            if _within(met, asked, worker.size) or _fits(met, asked, worker.size):
                scored.append((-_score(worker, met, asked), place.id))
        if not scored:
            return None
        scored.sort()
        score, id_ = scored[0]
        self.by_id[id_].claims[request.name] = asked
        return id_, -score

    def release(self, id_: str, holder: str) -> None:
        del self.by_id[id_].claims[holder]


def taken(claim: Claim) -> Taken:
    need, start, end = claim.need, claim.start.timestamp(), claim.end.timestamp()
    amounts = (need.cpu_millis, need.memory_mb, need.storage_mb, need.nodes, need.ports, need.labs)
    return start, end, *amounts, int(-(-start // HALF_HOUR)), int(-(-end // HALF_HOUR))


def _size(place: Place) -> Size:
    size = place.capacity
    return size.cpu_millis, size.memory_mb, size.storage_mb, size.nodes, size.ports, size.labs


def _fits(met: list[Taken], asked: Taken, size: Size) -> bool:
    """Add up at every moment, as all together are too much."""
    start = asked[0]
    if not _within([claim for claim in met if claim[0] <= start], asked, size):
        return False
    moments = [claim[0] for claim in met if claim[0] > start]
    return all(_within([claim for claim in met if claim[0] <= at < claim[1]], asked, size) for at in moments)


def _within(claims: list[Taken], asked: Taken, size: Size) -> bool:
    """Add up one dimension after another: most of those that are too full are so by CPU or memory."""
    cpu, memory = asked[2], asked[3]
    for claim in claims:
        cpu += claim[2]
        memory += claim[3]
    if cpu > size[0] or memory > size[1]:
        return False
    storage, nodes, ports, labs = asked[4], asked[5], asked[6], asked[7]
    for claim in claims:
        storage += claim[4]
        nodes += claim[5]
        ports += claim[6]
        labs += claim[7]
    return storage <= size[2] and nodes <= size[3] and ports <= size[4] and labs <= size[5]


def _score(worker: Worker, met: list[Taken], asked: Taken) -> float:
    """Count the half hours of the slot in which the worker would run anyway, then its fullness, then a common end."""
    first, last = asked[8], asked[9]
    covered = cpu = memory = 0
    for claim in met if first < last else worker.claims.values():
        since, until = claim[8], claim[9]
        if since <= first < until:
            cpu += claim[2]
            memory += claim[3]
        low = since - first if since > first else 0
        high = until - first if until < last else last - first
        if low < high:
            covered |= (1 << high) - (1 << low)
    full = STEPS[max(cpu * FULL // worker.size[0], memory * FULL // worker.size[1])]
    together = 1
    for claim in worker.claims.values():
        if claim[8] <= last < claim[9]:
            together = 0
            break
    return (covered.bit_count() + (2 * full + together) / 64) / (last - first + 1)
