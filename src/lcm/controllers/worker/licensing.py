"""READY_UNLICENSED, LICENSING and UNLICENSING: taking a licence and giving it back.

CML refuses to give a licence back while nodes run, and a machine that ends with its licence keeps a seat for ever. So
nodes are stopped first, and nothing is stopped or terminated before CML is seen without a licence.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec

from lcm.controllers.worker.facts import licence_facts
from lcm.controllers.worker.failing import failed
from lcm.controllers.worker.hosting import confirmed, hosting
from lcm.controllers.worker.view import (
    Decision,
    Deregister,
    Do,
    Failure,
    Outcome,
    Register,
    Report,
    StopLabs,
    Unknown,
    View,
    Wait,
    move,
    note,
    soon,
)
from lcm.model.licence import UNRETURNED
from lcm.model.worker import CmlSpec, LicenseFlavour, WorkerPhase
from lcm.model.worker_steps import LICENSE_LIMIT
from lcm.providers.labhost import INCLUDED_NODES, Licence

PRODUCTS: Final[Mapping[LicenseFlavour, str]] = {
    LicenseFlavour.PERSONAL: "CML_Personal",
    LicenseFlavour.ENTERPRISE: "CML_Enterprise",
    LicenseFlavour.EVALUATION: "CML_Enterprise",
}
_EXPANDABLE: Final = frozenset({"CML_Enterprise"})
_AGAIN: Final = timedelta(minutes=2)


def unlicensed(view: View) -> Decision:
    """Take a licence if one is configured; serve without one otherwise."""
    spec, status = view.worker.spec, view.status
    if (first := hosting(view)) is not None:
        return first
    if spec.host_kind == "container":
        return move(view, WorkerPhase.READY, "it needs no licence", retry_count=0)
    if isinstance(view.licence, Licence) and view.licence.in_compliance:
        return _licensed(view, view.licence, "CML is licensed already")
    if spec.cml.license_token is None:
        return note(view, retry_count=0) or Wait()
    if view.sessions:
        return Wait()
    if status.retry_at is not None and view.now < status.retry_at:
        return Wait(status.retry_at)
    if isinstance(view.licence, Unknown):
        return soon(view)
    # From here on CML may have one, whatever it said before.
    cml = msgspec.structs.replace(status.cml, licensed=None)
    reason = f"registering as {PRODUCTS[spec.cml.license_flavour]}"
    return move(view, WorkerPhase.LICENSING, reason, cml=cml, retry_at=None)


def without_a_seat(view: View, message: str) -> Report:
    """Say that the plane had no licence seat to give, and when it is asked again."""
    status = msgspec.structs.replace(
        view.status, failure="NoLicenceSeat", last_error=message, retry_at=view.now + _AGAIN
    )
    return Report(status)


def registering(view: View) -> Decision:
    """Register, until CML is in compliance."""
    if (ended := confirmed(view)) is not None:
        return ended
    if view.deleted:
        cml = msgspec.structs.replace(view.status.cml, licensed=None)
        return move(view, WorkerPhase.UNLICENSING, "deleted during registration", cml=cml)
    if isinstance(view.licence, Licence) and view.licence.in_compliance:
        return _licensed(view, view.licence, "the licence is in compliance")
    if isinstance(view.licence, Unknown):
        return soon(view)
    if view.now - view.entered_at >= LICENSE_LIMIT:
        return _not_yet(view, view.licence)
    return Do(_registration(view.worker.spec.cml))


def registered(view: View, outcome: Outcome) -> Decision:
    """Take note of what a registration was answered with."""
    if isinstance(outcome, Failure):
        cml = msgspec.structs.replace(view.status.cml, licensed=None, license_status=outcome.reason)
        return failed(view, outcome, cml=cml)
    if not isinstance(outcome, Licence):
        return soon(view)
    if outcome.in_compliance:
        return _licensed(view, outcome, "the licence is in compliance")
    return note(view, cml=licence_facts(view.status.cml, outcome)) or soon(view)


def unlicensing(view: View) -> Decision:
    """Stop what runs, give the licence back, and go on once CML is seen without one."""
    if (ended := confirmed(view)) is not None:
        return ended
    if isinstance(view.licence, Unknown) or isinstance(view.busy_labs, Unknown):
        return soon(view)
    if not view.licence.registered:
        return _without(view)
    if view.busy_labs:
        return Do(StopLabs(view.busy_labs))
    return Do(Deregister())


def deregistered(view: View, outcome: Outcome) -> Decision:
    """Take note of what a deregistration was answered with."""
    if isinstance(outcome, Failure):
        cml = msgspec.structs.replace(view.status.cml, license_status=outcome.reason)
        return note(view, cml=cml, last_error=outcome.message) or soon(view)
    return _without(view) if isinstance(outcome, Licence) and not outcome.registered else soon(view)


def _registration(wanted: CmlSpec) -> Register:
    assert wanted.license_token is not None, "only a worker with a token registers"
    product = PRODUCTS[wanted.license_flavour]
    more = wanted.max_nodes_licensed - INCLUDED_NODES[product] if product in _EXPANDABLE else 0
    return Register(product, wanted.license_token, expansion_nodes=max(0, more))


def _without(view: View) -> Decision:
    known = view.status.cml
    kept = known.license_status if known.license_status in UNRETURNED else "NOT_REGISTERED"
    cml = msgspec.structs.replace(known, licensed=False, license_status=kept)
    reason = (
        "the licence is seen deregistered"
        if kept not in UNRETURNED
        else "CML forgot its licence; the seat did not come back"
    )
    return move(view, WorkerPhase.STOPPING, reason, cml=cml)


def _licensed(view: View, licence: Licence, reason: str) -> Decision:
    capacity = view.status.capacity
    if capacity is not None:
        nodes = min(view.worker.spec.cml.max_nodes_licensed, licence.node_limit)
        capacity = msgspec.structs.replace(capacity, nodes=nodes)
    return move(
        view,
        WorkerPhase.READY,
        reason,
        cml=licence_facts(view.status.cml, licence),
        capacity=capacity,
        retry_count=0,
        retry_at=None,
        last_error="",
        failure="",
    )


def _not_yet(view: View, licence: Licence) -> Decision:
    text = f"CML says {licence.registration} and {licence.authorization}" + (
        f": {licence.failure}" if licence.failure else ""
    )
    cml = licence_facts(view.status.cml, licence)
    if licence.registration not in {"NOT_REGISTERED", "FAILED"}:
        cml = msgspec.structs.replace(cml, licensed=None)
    return move(
        view,
        WorkerPhase.READY_UNLICENSED,
        "the registration did not succeed yet",
        cml=cml,
        last_error=text,
        retry_at=view.now + _AGAIN,
    )
