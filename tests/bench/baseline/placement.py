"""Placement as one would write it first: go through all workers, filter, add up claims, score, sort, take the best.

It knows the same rules and the same BinPack score as the product, and is written to be quick at it: whole numbers, one
pass over a worker's claims, the cheap questions first.
"""

from dataclasses import dataclass, field

from lcm.model.definition import AmiRequirements, version_allowed
from lcm.model.worker import satisfies
from lcm.placement.request import Held, Place, Request

HALF_HOUR = 60 * int(__import__("os").environ.get("TICKM","60"))
STEPS = 16
DIMENSIONS = ("cpu_millis", "memory_mb", "storage_mb", "nodes", "ports", "labs")

Need = tuple[int, int, int, int, int, int]
Taken = tuple[float, float, Need]
"""From when to when, and how much."""


@dataclass(slots=True)
class Worker:
    place: Place
    size: Need
    claims: dict[str, Taken] = field(default_factory=dict)


class Workers:
    """All workers in the order of their ids."""

    def __init__(self, places: list[Place], held: dict[str, tuple[Held, ...]]) -> None:
        ordered = sorted(places, key=lambda place: place.id)
        self.by_id = {place.id: Worker(place, _need(place.capacity)) for place in ordered}
        self.workers = list(self.by_id.values())
        for id_, several in held.items():
            for one in several:
                self.by_id[id_].claims[one.holder] = taken(one.claim)

    def place(self, request: Request) -> tuple[str, float] | None:
        """Choose a worker, take the claim there, and say which and its score."""
        start, end, need = asked = taken(request.claim)
        allowed = AmiRequirements(cml_version_min=request.cml_version_min, cml_version_max=request.cml_version_max)
        scored = []
        for worker in self.workers:
            if not _eligible(worker.place, request, allowed):
                continue
            met = [claim for claim in worker.claims.values() if claim[0] < end and start < claim[1]]
            if _fits(met, start, need, worker.size):
                scored.append((-_score(worker, met, start, end), worker.place.id))
        if not scored:
            return None
        scored.sort()
        score, id_ = scored[0]
        self.by_id[id_].claims[request.name] = asked
        return id_, -score

    def release(self, id_: str, holder: str) -> None:
        del self.by_id[id_].claims[holder]


def taken(claim) -> Taken:
    return claim.start.timestamp(), claim.end.timestamp(), _need(claim.need)


def _need(amount) -> Need:
    return tuple(getattr(amount, name) for name in DIMENSIONS)


def _eligible(place: Place, request: Request, allowed: AmiRequirements) -> bool:
    return (
        not place.closed
        and not place.seat
        and request.lab_type in place.lab_types
        and satisfies(place.licence, request.affinity)
        and (place.licensed or not request.require_licensed)
        and (not request.track or not place.track or request.track == place.track)
        and (request.region_required is None or request.region_required == place.region)
        and (place.usable_at is None or place.usable_at <= request.claim.start)
        and (place.node_definitions is None or request.node_definitions <= place.node_definitions)
        and version_allowed(place.version, allowed)
    )


def _fits(met: list[Taken], start: float, need: Need, size: Need) -> bool:
    if _together(met, need, size):
        return True
    moments = [start, *(claim[0] for claim in met if claim[0] > start)]
    return all(
        _together([claim for claim in met if claim[0] <= moment < claim[1]], need, size) for moment in moments
    )


def _together(claims: list[Taken], need: Need, size: Need) -> bool:
    cpu, memory, storage, nodes, ports, labs = need
    for _, _, (c, m, s, n, p, number) in claims:
        cpu += c
        memory += m
        storage += s
        nodes += n
        ports += p
        labs += number
    return (
        cpu <= size[0]
        and memory <= size[1]
        and storage <= size[2]
        and nodes <= size[3]
        and ports <= size[4]
        and labs <= size[5]
    )


def _score(worker: Worker, met: list[Taken], start: float, end: float) -> float:
    """Count the half hours of the slot in which the worker would be idle, then its fullness, then a common end."""
    first, last = int(-(-start // HALF_HOUR)), int(-(-end // HALF_HOUR))
    covered = 0
    for since, until, _ in met:
        low, high = max(first, int(-(-since // HALF_HOUR))), min(last, int(-(-until // HALF_HOUR)))
        if low < high:
            covered |= (1 << high - first) - (1 << low - first)
    moment, after = first * HALF_HOUR, last * HALF_HOUR
    used = [need for since, until, need in worker.claims.values() if since <= moment < until]
    full = max((sum(part) * STEPS // size for part, size in list(zip(zip(*used), worker.size))[:2]), default=0)
    together = not any(since <= after < until for since, until, _ in worker.claims.values())
    looked = last - first
    return (covered.bit_count() + (2 * full + together) / 64) / (looked + 1)
