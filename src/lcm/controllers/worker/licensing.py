"""READY_UNLICENSED, LICENSING and UNLICENSING: taking a licence and giving it back.

CML refuses to give a licence back while nodes run, and a machine that ends with its licence keeps a seat for ever. So
nodes are stopped first, and nothing is stopped or terminated before CML is seen without a licence, or is dead.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.controllers.worker.conditions import licence_facts
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
from lcm.model.kinds.worker import CmlSpec, LicenseFlavour, Remedy, WorkerPhase
from lcm.model.kinds.worker_machine import LICENSE_LIMIT
from lcm.model.money.licences import SEAT_UNKNOWN, UNRETURNED
from lcm.providers.protocols.compute import Check
from lcm.providers.protocols.labhost import INCLUDED_NODES, Licence

PRODUCTS: Final[Mapping[LicenseFlavour, str]] = {
    LicenseFlavour.PERSONAL: "CML_Personal",
    LicenseFlavour.ENTERPRISE: "CML_Enterprise",
    LicenseFlavour.EVALUATION: "CML_Enterprise",
}
_EXPANDABLE: Final = frozenset({"CML_Enterprise"})
NO_SEAT: Final = "NoLicenceSeat"
NOT_OBTAINED: Final = "LicenceNotObtained"
_AGAIN: Final = timedelta(minutes=2)
_SELDOM: Final = timedelta(minutes=30)
_SHARE: Final = 4
"""How much shorter the wait for the next attempt is than all attempts so far together."""
_IMPAIRED_FOR: Final = timedelta(minutes=30)
"""How long a machine must be silent that EC2 itself says is not well, before nobody waits for its licence any more."""
_LONGEST_TEXT: Final = 2000
_TRYING: Final = frozenset({WorkerPhase.READY_UNLICENSED, WorkerPhase.LICENSING})
_FREE: Final = frozenset({"NOT_REGISTERED", "FAILED"})


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
        return note(view, retry_count=0, retry_at=None) or Wait()
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
    status = msgspec.structs.replace(view.status, failure=NO_SEAT, last_error=message, retry_at=_next_attempt(view))
    return Report(status)


def registering(view: View) -> Decision:
    """Register, until CML is in compliance."""
    if (ended := confirmed(view)) is not None:
        return ended
    if view.deleted:
        return _abandoned(view, "deleted during registration")
    if isinstance(view.licence, Licence) and view.licence.in_compliance:
        return _licensed(view, view.licence, "the licence is in compliance")
    if isinstance(view.licence, Unknown):
        return soon(view)
    token = view.worker.spec.cml.license_token
    if token is None:
        return _untokened(view, view.licence)
    if view.now - view.entered_at >= LICENSE_LIMIT:
        return _not_yet(view, view.licence)
    return Do(_registration(view.worker.spec.cml, token))


def registered(view: View, outcome: Outcome) -> Decision:
    """Take note of what a registration was answered with."""
    if isinstance(outcome, Failure):
        cml = msgspec.structs.replace(view.status.cml, licensed=None, license_status=outcome.reason)
        if view.sessions:  # which go on without a licence, and may not be failed
            return _back(view, outcome.message, failure=outcome.reason, cml=cml)
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
    if isinstance(view.licence, Unknown) and not view.licence.reason:
        return _silent(view, view.licence)
    if _silent_since(view) is not None:
        return note(view, retry_at=None) or soon(view)
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


def _abandoned(view: View, reason: str) -> Decision:
    """Give back what was being registered; a worker on which a session has come meanwhile is drained first."""
    cml = msgspec.structs.replace(view.status.cml, licensed=None)
    if view.sessions:
        return _back(view, f"{reason}, with session {view.sessions[0].metadata.name} on it", cml=cml)
    return move(view, WorkerPhase.UNLICENSING, reason, cml=cml)


def _untokened(view: View, licence: Licence) -> Decision:
    why = "its licence token was removed during registration"
    if licence.registration not in _FREE:
        return _abandoned(view, why)
    return move(
        view, WorkerPhase.READY_UNLICENSED, why, cml=licence_facts(view.status.cml, licence), last_error=why, failure=""
    )


def _silent(view: View, unknown: Unknown) -> Decision:
    """Wait for a machine that does not answer; one that nobody wants any more is dead after a while.

    Its last moment stands in `retry_at`, so that every leader counts from the same.
    """
    status, since = view.status, _silent_since(view)
    if since is None:
        return note(view, retry_at=view.now + view.rules.patience, last_error=unknown.why) or soon(view)
    unwanted = view.deleted or (status.remedy is Remedy.REPLACE and status.remedied_at is None)
    impaired = str(Check.IMPAIRED) in {status.ec2.system_status, status.ec2.instance_status}
    if not unwanted or view.now < since + (_IMPAIRED_FOR if impaired else view.rules.patience):
        return soon(view)
    cml = msgspec.structs.replace(status.cml, licensed=False, license_status=SEAT_UNKNOWN)
    minutes = (view.now - since) // timedelta(minutes=1)
    reason = f"CML has been silent for {minutes} minutes; its licence seat is left behind"
    return move(view, WorkerPhase.STOPPING, reason, cml=cml, retry_at=None)


def _silent_since(view: View) -> datetime | None:
    """Say since when CML has not answered; what `retry_at` says from before this phase is shorter than the patience."""
    last = view.status.retry_at
    return last - view.rules.patience if last and last >= view.entered_at + view.rules.patience else None


def _next_attempt(view: View) -> datetime:
    """Say when a licence is asked for again: the longer it was in vain, the later."""
    since = view.entered_at
    for change in reversed(view.status.history):
        if change.phase not in _TRYING:
            break
        since = change.at
    return view.now + min(max((view.now - since) / _SHARE, _AGAIN), _SELDOM)


def _registration(wanted: CmlSpec, token: str) -> Register:
    product = PRODUCTS[wanted.license_flavour]
    more = wanted.max_nodes_licensed - INCLUDED_NODES[product] if product in _EXPANDABLE else 0
    return Register(product, token, expansion_nodes=max(0, more))


def _without(view: View) -> Decision:
    known = view.status.cml
    kept = known.license_status if known.license_status in UNRETURNED else "NOT_REGISTERED"
    cml = msgspec.structs.replace(known, licensed=False, license_status=kept)
    reason = (
        "the licence is seen deregistered"
        if kept not in UNRETURNED
        else "CML forgot its licence; the seat did not come back"
    )
    return move(view, WorkerPhase.STOPPING, reason, cml=cml, retry_at=None)


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
    if licence.registration not in _FREE:
        cml = msgspec.structs.replace(cml, licensed=None)
    return _back(view, text, failure=NOT_OBTAINED, cml=cml)


def _back(view: View, why: str, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    return move(
        view,
        WorkerPhase.READY_UNLICENSED,
        f"the registration did not succeed yet: {why}"[:_LONGEST_TEXT],
        last_error=why[:_LONGEST_TEXT],
        retry_at=_next_attempt(view),
        **fields,
    )
