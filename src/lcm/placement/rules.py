"""The filters of placement: which places a request may not go to, why, and what helps.

A filter is a pure function of a place and a request that gives the reason in a sentence, or None. `STATIC` looks at
what places of one kind have in common, so that it is asked once for all of them. The room over time is the timeline's.
"""

from collections.abc import Callable, Mapping
from typing import Final

from lcm.model.kinds.definition import AmiRequirements, version_allowed
from lcm.model.kinds.worker import LabType, satisfies
from lcm.placement.request import BOOTING, DRAINING, Place, Request

Filter = Callable[[Place, Request], str | None]

ON_CML: Final = frozenset({LabType.CML, LabType.HYBRID})
"""Labs that run on CML and so need its licence."""

_MOST_NAMED: Final = 5


def _lab_type(place: Place, request: Request) -> str | None:
    if request.lab_type in place.lab_types:
        return None
    return f"it hosts {' and '.join(sorted(place.lab_types)) or 'nothing'}, not {request.lab_type}"


def _license_affinity(place: Place, request: Request) -> str | None:
    if satisfies(place.licence, request.affinity):
        return None
    return f"its licence is {place.licence}, the lab asks for {request.affinity}"


def _licensed(place: Place, request: Request) -> str | None:
    if not request.require_licensed or request.lab_type not in ON_CML or place.licensed:
        return None
    if place.licensed is None:
        return None if place.seat else "it is not known whether it has a licence"
    return "it has no licence"


def _cml_version(place: Place, request: Request) -> str | None:
    low, high = request.cml_version_min, request.cml_version_max
    if not place.version and (place.seat or place.closed == BOOTING):
        return None  # its machine will tell
    if version_allowed(place.version, AmiRequirements(cml_version_min=low, cml_version_max=high)):
        return None
    bounds = " and ".join(f"{word} {bound}" for word, bound in (("at least", low), ("at most", high)) if bound)
    return f"its CML is {place.version or 'of an unknown version'}, the lab asks for {bounds}"


def _node_definitions(place: Place, request: Request) -> str | None:
    if place.node_definitions is None or request.node_definitions <= place.node_definitions:
        return None
    missing = sorted(request.node_definitions - place.node_definitions)
    more = len(missing) - _MOST_NAMED
    return f"it lacks the node definitions {', '.join(missing[:_MOST_NAMED])}" + (f" and {more} more" * (more > 0))


def _track(place: Place, request: Request) -> str | None:
    if not request.track or not place.track or request.track == place.track:
        return None
    return f"it is kept for the track {place.track}, the session is of {request.track}"


def _region(place: Place, request: Request) -> str | None:
    if request.region_required in {None, place.region}:
        return None
    return f"it is in {place.region}, the session must be in {request.region_required}"


def _draining(place: Place, _request: Request) -> str | None:
    return "it is being drained" if place.closed == DRAINING else None


def _phase(place: Place, _request: Request) -> str | None:
    return f"it takes no sessions: {place.closed}" if place.closed else None


STATIC: Final[Mapping[str, Filter]] = {
    "lab_type": _lab_type,
    "license_affinity": _license_affinity,
    "licensed": _licensed,
    "cml_version": _cml_version,
    "node_definitions": _node_definitions,
    "track": _track,
    "region": _region,
}

OPEN: Final[Mapping[str, Filter]] = {"draining": _draining, "phase": _phase}
"""What is asked first, of a place that does not accept anything."""

ROOM: Final[Mapping[str, str]] = {
    "cpu_millis": "cpu",
    "memory_mb": "memory",
    "storage_mb": "storage",
    "nodes": "nodes",
    "ports": "ports",
    "labs": "labs",
}
"""The filter of each dimension, asked last."""

REMEDIES: Final[Mapping[str, str]] = {
    "draining": "cancel its drain, or wait for another worker",
    "phase": "see why it is so with `lcm describe worker`, or add a worker",
    "lab_type": "add a worker or a pool that hosts this type of lab",
    "license_affinity": "add a worker with such a licence, or change the definition's license_affinity",
    "licensed": "register a licence for it, or set REQUIRE_LICENSED_FOR_CML=false for labs of at most 5 nodes",
    "cml_version": "add a worker whose AMI has such a CML, or widen the definition's ami_requirements",
    "node_definitions": "install them on the worker or in its AMI",
    "track": "book under that track, or give the session's own track a pool with free seats",
    "region": "drop the required region, or add workers there",
    "booting": "wait until it has booted",
    "cpu": "choose another time, make the lab smaller, or add a worker",
    "memory": "choose another time, make the lab smaller, or add a worker",
    "storage": "choose another time, use larger volumes, or add a worker",
    "nodes": "choose another time, use fewer nodes, or license the worker for more",
    "ports": "choose another time, tag fewer ports, or end labs that hold ports",
    "labs": "choose another time, or add a worker: this one runs as many labs as it may",
}
"""What helps, by filter."""

LARGER: Final = "make the lab smaller, or add larger workers"
"""What helps where even an empty place is too small."""


def static_rejection(place: Place, request: Request) -> tuple[str, str] | None:
    """Give the first static filter that turns a request away, and its reason."""
    return _first(STATIC, place, request)


def closed_rejection(place: Place, request: Request) -> tuple[str, str] | None:
    """Give the filter that turns every request away from a closed place, and its reason."""
    return _first(OPEN, place, request)


def _first(filters: Mapping[str, Filter], place: Place, request: Request) -> tuple[str, str] | None:
    answers = ((name, rejects(place, request)) for name, rejects in filters.items())
    return next(((name, reason) for name, reason in answers if reason is not None), None)


def kind_of(place: Place) -> object:
    """Give what the static filters look at in a place."""
    return (
        place.region,
        place.track,
        place.lab_types,
        place.licence,
        place.licensed,
        place.version,
        place.node_definitions,
        place.seat,
        place.closed == BOOTING,
    )


def asked_of(request: Request) -> object:
    """Give what the static filters look at in a request."""
    return (
        request.lab_type,
        request.affinity,
        request.track,
        request.region_required,
        request.cml_version_min,
        request.cml_version_max,
        request.node_definitions,
        request.require_licensed,
    )
