"""READY_UNLICENSED, LICENSING and UNLICENSING: taking a licence and returning it.

CML refuses to return a licence while nodes run, and a machine that ends with its licence keeps a licence seat for
ever. So nodes are stopped first, and nothing is stopped or terminated before CML is seen without a licence, or is
dead.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.controllers.runtime.lifecycle import Do, Failure, Report, Unknown, Wait, enter_phase, poll_again, update_status
from lcm.controllers.worker.conditions import licence_facts
from lcm.controllers.worker.failing import fail
from lcm.controllers.worker.serving import check_machine, decide_serving
from lcm.controllers.worker.view import Decision, Deregister, EffectOutcome, Register, StopLabs, WorkerView
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.worker import LabWorkerStatus, LicenseFlavour, Remedy, WorkerPhase
from lcm.model.kinds.worker_machine import LICENSE_LIMIT
from lcm.model.money.licences import SEAT_UNKNOWN, UNRETURNED
from lcm.providers.protocols.compute import StatusCheckResult
from lcm.providers.protocols.labhost import INCLUDED_NODES, Licence

PRODUCTS: Final[Mapping[LicenseFlavour, str]] = {
    LicenseFlavour.PERSONAL: "CML_Personal",
    LicenseFlavour.ENTERPRISE: "CML_Enterprise",
    LicenseFlavour.EVALUATION: "CML_Enterprise",
}
_EXPANDABLE_PRODUCTS: Final = frozenset({"CML_Enterprise"})
NO_SEAT: Final = "NoLicenceSeat"
NOT_OBTAINED: Final = "LicenceNotObtained"
_SHORTEST_RETRY: Final = timedelta(minutes=2)
_LONGEST_RETRY: Final = timedelta(minutes=30)
_RETRY_DIVISOR: Final = 4
"""The wait for the next attempt is the time spent so far, divided by this."""
_IMPAIRED_PATIENCE: Final = timedelta(minutes=30)
"""How long a machine that EC2 calls impaired must be silent before its licence is given up."""
REGISTERING_PHASES: Final = frozenset({WorkerPhase.READY_UNLICENSED, WorkerPhase.LICENSING})
_UNREGISTERED_STATES: Final = frozenset({"NOT_REGISTERED", "FAILED"})


def decide_unlicensed(view: WorkerView) -> Decision:
    """Take a licence if one is configured; serve without one otherwise."""
    spec, status = view.worker.spec, view.status
    if (first := decide_serving(view)) is not None:
        return first
    if spec.host_kind == "container":
        return enter_phase(view, WorkerPhase.READY, "it needs no licence", retry_count=0)
    if isinstance(view.licence, Licence) and view.licence.in_compliance:
        return _enter_ready(view, view.licence, "CML is licensed already")
    if spec.cml.license_token is None:
        return update_status(view, retry_count=0, retry_at=None) or Wait()
    if view.sessions:
        return Wait()
    if status.retry_at is not None and view.now < status.retry_at:
        return Wait(status.retry_at)
    if isinstance(view.licence, Unknown):
        return poll_again(view)
    # From here on CML may have a licence, whatever it said before.
    cml = msgspec.structs.replace(status.cml, licensed=None)
    reason = f"registering as {PRODUCTS[spec.cml.license_flavour]}"
    return enter_phase(view, WorkerPhase.LICENSING, reason, cml=cml, retry_at=None)


def report_no_seat(view: WorkerView, message: str) -> Report[LabWorkerStatus]:
    """Return a report that no licence seat was free, and when to ask again."""
    status = msgspec.structs.replace(view.status, failure=NO_SEAT, last_error=message, retry_at=_next_attempt_at(view))
    return Report(status)


def decide_licensing(view: WorkerView) -> Decision:
    """Register until CML is in compliance."""
    if (ended := check_machine(view)) is not None:
        return ended
    if view.is_deleted:
        return _abandon_registration(view, "deleted during registration")
    if isinstance(view.licence, Licence) and view.licence.in_compliance:
        return _enter_ready(view, view.licence, "the licence is in compliance")
    if isinstance(view.licence, Unknown):
        return poll_again(view)
    token = view.worker.spec.cml.license_token
    if token is None:
        return _end_without_token(view, view.licence)
    if view.now - view.entered_at >= LICENSE_LIMIT:
        return _end_late_registration(view, view.licence)
    wanted = view.worker.spec.cml
    product = PRODUCTS[wanted.license_flavour]
    more = wanted.max_nodes_licensed - INCLUDED_NODES[product] if product in _EXPANDABLE_PRODUCTS else 0
    return Do(Register(product, token, expansion_nodes=max(0, more)))


def after_register(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record the answer to a registration."""
    if isinstance(outcome, Failure):
        cml = msgspec.structs.replace(view.status.cml, licensed=None, license_status=outcome.reason)
        if view.sessions:  # its sessions go on without a licence, so the worker must not fail
            return _return_unlicensed(view, outcome.message, failure=outcome.reason, cml=cml)
        return fail(view, outcome, cml=cml)
    if not isinstance(outcome, Licence):
        return poll_again(view)
    if outcome.in_compliance:
        return _enter_ready(view, outcome, "the licence is in compliance")
    return update_status(view, cml=licence_facts(view.status.cml, outcome)) or poll_again(view)


def decide_unlicensing(view: WorkerView) -> Decision:
    """Stop what runs, return the licence, and go on once CML is seen without one."""
    if (ended := check_machine(view)) is not None:
        return ended
    if isinstance(view.licence, Unknown) and not view.licence.reason:
        return _wait_for_silent_cml(view, view.licence)
    if _silent_since(view) is not None:
        return update_status(view, retry_at=None) or poll_again(view)
    if isinstance(view.licence, Unknown) or isinstance(view.busy_labs, Unknown):
        return poll_again(view)
    if not view.licence.is_registered:
        return _enter_stopping(view)
    if view.has_unknown_labs:
        return poll_again(view)
    if view.busy_labs:
        return Do(StopLabs(view.busy_labs))
    return Do(Deregister())


def after_deregister(view: WorkerView, outcome: EffectOutcome) -> Decision:
    """Record the answer to a deregistration."""
    if isinstance(outcome, Failure):
        cml = msgspec.structs.replace(view.status.cml, license_status=outcome.reason)
        return update_status(view, cml=cml, last_error=outcome.message) or poll_again(view)
    return _enter_stopping(view) if isinstance(outcome, Licence) and not outcome.is_registered else poll_again(view)


def _abandon_registration(view: WorkerView, reason: str) -> Decision:
    """Return what was being registered. A worker that got a session meanwhile is drained first."""
    cml = msgspec.structs.replace(view.status.cml, licensed=None)
    if view.sessions:
        return _return_unlicensed(view, f"{reason}, with session {view.sessions[0].metadata.name} on it", cml=cml)
    return enter_phase(view, WorkerPhase.UNLICENSING, reason, cml=cml)


def _end_without_token(view: WorkerView, licence: Licence) -> Decision:
    why = "its licence token was removed during registration"
    if licence.registration not in _UNREGISTERED_STATES:
        return _abandon_registration(view, why)
    return enter_phase(
        view, WorkerPhase.READY_UNLICENSED, why, cml=licence_facts(view.status.cml, licence), last_error=why, failure=""
    )


def _wait_for_silent_cml(view: WorkerView, unknown: Unknown) -> Decision:
    """Wait for a machine that does not answer. One that is not wanted any more counts as dead after a while.

    The end of the wait stands in `retry_at`, so that every leader counts from the same moment.
    """
    status, since = view.status, _silent_since(view)
    if since is None:
        return update_status(view, retry_at=view.now + view.rules.patience, last_error=unknown.why) or poll_again(view)
    unwanted = view.is_deleted or (status.remedy is Remedy.REPLACE and status.remedied_at is None)
    impaired = str(StatusCheckResult.IMPAIRED) in {status.ec2.system_status, status.ec2.instance_status}
    if not unwanted or view.now < since + (_IMPAIRED_PATIENCE if impaired else view.rules.patience):
        return poll_again(view)
    cml = msgspec.structs.replace(status.cml, licensed=False, license_status=SEAT_UNKNOWN)
    minutes = (view.now - since) // timedelta(minutes=1)
    reason = f"CML has been silent for {minutes} minutes; its licence seat is left behind"
    return enter_phase(view, WorkerPhase.STOPPING, reason, cml=cml, retry_at=None)


def _silent_since(view: WorkerView) -> datetime | None:
    """Return since when CML has not answered. A `retry_at` from before this phase is shorter than the patience."""
    last = view.status.retry_at
    return last - view.rules.patience if last and last >= view.entered_at + view.rules.patience else None


def _next_attempt_at(view: WorkerView) -> datetime:
    """Return when to ask for a licence again: the longer it was in vain, the later."""
    since = view.entered_at
    for change in reversed(view.status.history):
        if change.phase not in REGISTERING_PHASES:
            break
        since = change.at
    return view.now + min(max((view.now - since) / _RETRY_DIVISOR, _SHORTEST_RETRY), _LONGEST_RETRY)


def _enter_stopping(view: WorkerView) -> Decision:
    known = view.status.cml
    kept = known.license_status if known.license_status in UNRETURNED else "NOT_REGISTERED"
    cml = msgspec.structs.replace(known, licensed=False, license_status=kept)
    reason = (
        "the licence is seen deregistered"
        if kept not in UNRETURNED
        else "CML lost its licence; the licence seat was not returned"
    )
    return enter_phase(view, WorkerPhase.STOPPING, reason, cml=cml, retry_at=None)


def _enter_ready(view: WorkerView, licence: Licence, reason: str) -> Decision:
    capacity = view.status.capacity
    if capacity is not None:
        nodes = min(view.worker.spec.cml.max_nodes_licensed, licence.node_limit)
        capacity = msgspec.structs.replace(capacity, nodes=nodes)
    return enter_phase(
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


def _end_late_registration(view: WorkerView, licence: Licence) -> Decision:
    text = f"CML says {licence.registration} and {licence.authorization}" + (
        f": {licence.failure}" if licence.failure else ""
    )
    cml = licence_facts(view.status.cml, licence)
    if licence.registration not in _UNREGISTERED_STATES:
        cml = msgspec.structs.replace(cml, licensed=None)
    return _return_unlicensed(view, text, failure=NOT_OBTAINED, cml=cml)


def _return_unlicensed(view: WorkerView, why: str, **fields: Any) -> Decision:  # noqa: ANN401 - fields of a status
    return enter_phase(
        view,
        WorkerPhase.READY_UNLICENSED,
        shorten_text(f"the registration did not succeed yet: {why}"),
        last_error=shorten_text(why),
        retry_at=_next_attempt_at(view),
        **fields,
    )
