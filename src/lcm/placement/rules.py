"""The filters of placement: which places a request may not go to, why, and the remedy.

A filter is a pure function of a place and a request that returns the reason as a sentence, or None. `STATIC_FILTERS`
look at what places of one kind have in common and are asked once for all of them. Room over time is checked by
`lcm.placement.timeline`.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Final

from lcm.model.kinds.definition import AmiRequirements, is_version_allowed
from lcm.model.kinds.worker import LabType, satisfies_affinity
from lcm.placement.request import BOOTING, DRAINING, Place, PlacementRequest

Filter = Callable[[Place, PlacementRequest], str | None]

ON_CML: Final = frozenset({LabType.CML, LabType.HYBRID})
"""Types of labs that run on CML and so need its licence."""

_MOST_NAMED: Final = 5


def _reject_lab_type(place: Place, request: PlacementRequest) -> str | None:
    if request.lab_type in place.lab_types:
        return None
    return f"it hosts {' and '.join(sorted(place.lab_types)) or 'nothing'}, not {request.lab_type}"


def _reject_license_affinity(place: Place, request: PlacementRequest) -> str | None:
    if satisfies_affinity(place.licence, request.affinity):
        return None
    return f"its licence is {place.licence}, the lab asks for {request.affinity}"


def _reject_unlicensed(place: Place, request: PlacementRequest) -> str | None:
    if not request.require_licensed or request.lab_type not in ON_CML or place.licensed:
        return None
    if place.licensed is None:
        return None if place.seat else "it is not known whether it has a licence"
    return "it has no licence"


def _reject_cml_version(place: Place, request: PlacementRequest) -> str | None:
    low, high = request.cml_version_min, request.cml_version_max
    if not place.version and (place.seat or place.closed == BOOTING):
        return None  # the version is known once its machine is up
    if is_version_allowed(place.version, AmiRequirements(cml_version_min=low, cml_version_max=high)):
        return None
    bounds = " and ".join(f"{word} {bound}" for word, bound in (("at least", low), ("at most", high)) if bound)
    return f"its CML is {place.version or 'of an unknown version'}, the lab asks for {bounds}"


def _reject_node_definitions(place: Place, request: PlacementRequest) -> str | None:
    if place.node_definitions is None or request.node_definitions <= place.node_definitions:
        return None
    missing = sorted(request.node_definitions - place.node_definitions)
    more = len(missing) - _MOST_NAMED
    return f"it lacks the node definitions {', '.join(missing[:_MOST_NAMED])}" + (f" and {more} more" * (more > 0))


def _reject_track(place: Place, request: PlacementRequest) -> str | None:
    if not request.track or not place.track or request.track == place.track:
        return None
    return f"it is kept for the track {place.track}, the session is of {request.track}"


def _reject_region(place: Place, request: PlacementRequest) -> str | None:
    if request.region_required in {None, place.region}:
        return None
    return f"it is in {place.region}, the session must be in {request.region_required}"


def _reject_market(place: Place, request: PlacementRequest) -> str | None:
    if not place.spot or request.allow_spot:
        return None
    return "it is a spot machine, which the cloud may take away, and the session does not allow that"


def _reject_draining(place: Place, _request: PlacementRequest) -> str | None:
    return "it is being drained" if place.closed == DRAINING else None


def _reject_phase(place: Place, _request: PlacementRequest) -> str | None:
    return f"it takes no sessions: {place.closed}" if place.closed else None


STATIC_FILTERS: Final[Mapping[str, Filter]] = {
    "lab_type": _reject_lab_type,
    "license_affinity": _reject_license_affinity,
    "licensed": _reject_unlicensed,
    "cml_version": _reject_cml_version,
    "node_definitions": _reject_node_definitions,
    "track": _reject_track,
    "region": _reject_region,
    "market": _reject_market,
}

CLOSED_FILTERS: Final[Mapping[str, Filter]] = {"draining": _reject_draining, "phase": _reject_phase}
"""The filters of a place that accepts no sessions; they are asked first."""

ROOM_FILTERS: Final[Mapping[str, str]] = {
    "cpu_millis": "cpu",
    "memory_mb": "memory",
    "storage_mb": "storage",
    "nodes": "nodes",
    "ports": "ports",
    "labs": "labs",
}
"""The name of the filter of each dimension; these are asked last."""

FILTER_REMEDIES: Final[Mapping[str, str]] = {
    "draining": "cancel its drain, or wait for another worker",
    "phase": "see why with `lcm describe worker`, or add a worker",
    "lab_type": "add a worker or a pool that hosts this type of lab",
    "license_affinity": "add a worker with such a licence, or change the definition's license_affinity",
    "licensed": "register a licence for it, or set REQUIRE_LICENSED_FOR_CML=false for labs of at most 5 nodes",
    "cml_version": "add a worker whose AMI has such a CML, or widen the definition's ami_requirements",
    "node_definitions": "install them on the worker or in its AMI",
    "track": "book under that track, or add a pool with free workers for the session's own track",
    "region": "drop the required region, or add workers there",
    "market": "ask for it as soon as possible and allow spot machines, or add a pool whose machines are on demand",
    "booting": "wait until it has booted",
    "cpu": "choose another time, make the lab smaller, or add a worker",
    "memory": "choose another time, make the lab smaller, or add a worker",
    "storage": "choose another time, use larger volumes, or add a worker",
    "nodes": "choose another time, use fewer nodes, or license the worker for more",
    "ports": "choose another time, tag fewer ports, or end labs that hold ports",
    "labs": "choose another time, or add a worker: this one runs as many labs as it may",
}
"""The remedy for each filter."""

TOO_LARGE_REMEDY: Final = "make the lab smaller, or add larger workers"
"""The remedy where even an empty place is too small."""


def static_rejection(place: Place, request: PlacementRequest) -> tuple[str, str] | None:
    """Return the first static filter that rejects a request, and its reason; None if none does."""
    return _first_rejection(STATIC_FILTERS, place, request)


def is_static(name: str) -> bool:
    """Return whether a filter looks at what a place is, which does not change while time passes."""
    return name in STATIC_FILTERS


def closed_rejection(place: Place, request: PlacementRequest) -> tuple[str, str] | None:
    """Return the filter by which a closed place rejects every request, and its reason; None if it is not closed."""
    return _first_rejection(CLOSED_FILTERS, place, request)


def _first_rejection(filters: Mapping[str, Filter], place: Place, request: PlacementRequest) -> tuple[str, str] | None:
    answers = ((name, rejects(place, request)) for name, rejects in filters.items())
    return next(((name, reason) for name, reason in answers if reason is not None), None)


def place_facts(place: Place) -> object:
    """Return the facts of a place that the static filters look at."""
    return (
        place.region,
        place.track,
        place.lab_types,
        place.licence,
        place.licensed,
        place.version,
        place.node_definitions,
        place.spot,
        place.seat,
        place.closed == BOOTING,
    )


request_facts: Final[Callable[[PlacementRequest], tuple[object, ...]]] = attrgetter(
    "lab_type",
    "affinity",
    "track",
    "region_required",
    "cml_version_min",
    "cml_version_max",
    "node_definitions",
    "require_licensed",
    "allow_spot",
)
"""Returns the facts of a request that the static filters look at."""
