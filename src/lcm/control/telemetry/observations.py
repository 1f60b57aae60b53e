"""Keeping what was observed of a running lab: on its session and in what its definition learned, in one commit.

Called by `local`. An answer to a request counts once, whoever else answers it; so does an observation that is reported
again because nobody knew whether it had arrived.
"""

from asyncio import Lock
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.delivery import events
from lcm.control.objects.records import CODEC, Record, find, observations_key, written
from lcm.control.objects.writer import Edit, Ledger, persistently
from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.errors import Fault, Forbidden, IllegalStep, Invalid
from lcm.model.base.event import Event
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.session import LabletSession, LabletSessionStatus, SessionPhase, given_up
from lcm.model.kinds.settings import SystemSettings
from lcm.model.telemetry.learning import (
    ObservationReport,
    Review,
    Samples,
    is_steady,
    learned,
    report_on,
    sample_of,
    with_sample,
)
from lcm.model.telemetry.observation import ResourceObservation, bounded, drifted
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import ABSENT, Op, Put, Store

USUAL: Final = Review()


async def read_samples(store: Store, definition: LabletDefinition) -> tuple[Samples, int]:
    """Read a definition's samples, and the revision at which they are so."""
    entry = await store.get(observations_key(definition))
    return (CODEC.decode(entry.value, Samples), entry.revision) if entry else (Samples(), ABSENT)


async def review_by(store: Store, usual: Review) -> Review:
    """Say by what definitions are reviewed: what the process was told, unless the SystemSettings object says more."""
    found = await find(store, Ref(SystemSettings, SETTINGS_NAME))
    return usual.under(found.resource if found else None)


async def report(ledger: Ledger, ref: Ref[LabletDefinition]) -> ObservationReport:
    """Tell what the sessions of a definition taught."""
    found = await ledger.need(ref)
    samples, _ = await read_samples(ledger.store, found.resource)
    return report_on(found.resource, samples, named=ledger.caller.role in SEES_ALL)


_OBSERVABLE: Final = frozenset({SessionPhase.RUNNING, SessionPhase.COLLECTING})
_AHEAD: Final = timedelta(minutes=5)
"""So far another machine's clock may be ahead."""


@dataclass(frozen=True, slots=True)
class Taught:
    """What an observation changes besides its session."""

    edits: Sequence[Edit[Any]] = ()
    ops: Sequence[Op] = ()


def permit(actor: str) -> None:
    """Raise Forbidden for whoever does not look at labs."""
    if actor != LABLET_CONTROLLER:
        raise Forbidden(f"only {LABLET_CONTROLLER} may report what was observed of labs")


async def record(
    ledger: Ledger, ref: SessionRef, seen: ResourceObservation, request_id: str | None, usual: Review
) -> LabletSession:
    """Keep an observation, and return the session as it is then; what is known already changes nothing."""
    steady, seen = is_steady(seen), bounded(seen)

    async def attempt() -> LabletSession:
        found, now = await ledger.need(ref), ledger.clock.now()
        _refuse_the_future(seen, now)
        if _is_known(found.resource.status, seen, request_id):
            return await _cleared(ledger, found, now)
        _refuse_elsewhere(found.resource)
        definition = await _definition(ledger, found.resource)
        after, told = _observed(found.resource, definition, seen, request_id, now)
        taught = await _taught(ledger, after, definition if steady else None, seen, usual)
        edits: list[Edit[Any]] = [Edit(found, after), *taught.edits]
        revision = await ledger.commit(*edits, ops=taught.ops, told=told, reported=True)
        metadata = msgspec.structs.replace(after.metadata, resource_version=revision)
        return msgspec.structs.replace(after, metadata=metadata)

    return await persistently(attempt, unless=lambda _: False)


def _is_known(status: LabletSessionStatus, seen: ResourceObservation, request_id: str | None) -> bool:
    """Tell whether an observation was recorded, or its request answered or given up, before."""
    if request_id is not None:
        return status.observation_request is None or status.observation_request.id != request_id
    return status.observed_at is not None and seen.observed_at <= status.observed_at


async def _cleared(ledger: Ledger, found: Record[LabletSession], now: datetime) -> LabletSession:
    """Give up a request that nobody answered, since one looks at it."""
    status = given_up(found.resource.status, now)
    if status is found.resource.status:
        return found.resource
    after = msgspec.structs.replace(found.resource, status=status)
    return await ledger.write(Edit(found, after), reported=True)


def _observed(
    session: LabletSession,
    definition: Record[LabletDefinition] | None,
    seen: ResourceObservation,
    request_id: str | None,
    now: datetime,
) -> tuple[LabletSession, Sequence[Event]]:
    """Put an observation onto its session, and say what that means to the outside."""
    before = session.status
    template = (definition.resource.spec.port_template if definition else None) or {}
    differs = drifted(before.allocated_ports or {}, template, seen)
    answered = before.observation_request is not None and before.observation_request.id == request_id
    status = msgspec.structs.replace(
        before if answered else given_up(before, now),
        observed_resources=seen,
        observed_ports=seen.observed_ports,
        port_drift_detected=bool(differs),
        observation_count=before.observation_count + 1,
        observed_at=seen.observed_at,
        observed_last=before.phase is SessionPhase.COLLECTING,
    )
    if answered:
        status = msgspec.structs.replace(status, observation_request=None, observation_error="")
    after = msgspec.structs.replace(session, status=status)
    told = [events.observed(after, seen, now=now)]
    if differs and before.observed_ports != seen.observed_ports:
        told.append(events.drifted(after, differs, now=now))
    return after, told


async def _taught(
    ledger: Ledger,
    session: LabletSession,
    definition: Record[LabletDefinition] | None,
    seen: ResourceObservation,
    usual: Review,
) -> Taught:
    """Say what the definition learns, if there is one that learns from this."""
    if definition is None:
        return Taught()
    lab = definition.resource
    samples, revision = await read_samples(ledger.store, lab)
    samples = with_sample(samples, sample_of(session, seen, lab.spec.port_template))
    after = learned(lab, samples, await review_by(ledger.store, usual))
    edits = () if after == lab else (Edit(definition, after),)
    return Taught(edits, [Put(observations_key(lab), written(samples), at=revision)])


async def _definition(ledger: Ledger, session: LabletSession) -> Record[LabletDefinition] | None:
    return await find(ledger.store, Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))


def _refuse_elsewhere(session: LabletSession) -> None:
    status, name = session.status, session.metadata.name
    if status.phase not in _OBSERVABLE:
        raise IllegalStep(f"LabletSession {name} is {status.phase}: there is no lab of it to observe")


def _refuse_the_future(seen: ResourceObservation, now: datetime) -> None:
    """Raise Invalid for what would keep out all that follows."""
    if seen.observed_at > now + _AHEAD:
        problem = f"later than it is here, {now:%Y-%m-%dT%H:%M:%SZ}"
        raise Invalid(Fault("observation.observed_at", problem, "set the clock of the machine that observes"))


@dataclass(slots=True)
class Library:
    """Where files are, by what definitions are reviewed, and whose turn it is to teach one."""

    artifacts: Artifacts | None = None
    review: Review = USUAL
    turn: Lock = field(default_factory=Lock)
    """One at a time in a process: many sessions of a lab end together, and each would only disturb the others."""
