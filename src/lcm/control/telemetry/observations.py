"""Observations of running labs: stored on the session and in what its definition learned, in one commit.

Called by `control.plane.local`. An answer to a request counts once, whoever else answers it; so does an observation
that is reported again because the first report may have been lost. Samples have keys of their own, which are removed
with the definition: they must not make lists of definitions longer. Each key holds a few samples, because every session
writes one of them anew.
"""

from asyncio import Lock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.control.delivery import events
from lcm.control.objects.lab_files import SavedLabs
from lcm.control.objects.records import (
    CODEC,
    Record,
    encode_checked,
    find_record,
    find_settings,
    observations_key,
    observations_prefix,
    with_revision,
)
from lcm.control.objects.uploads import DEFAULT_QUOTA_BYTES
from lcm.control.objects.writer import Edit, Writer, retry_conflicts
from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.errors import Fault, Forbidden, IllegalStep, Invalid
from lcm.model.base.event import Event
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.session import LabletSession, LabletSessionStatus, SessionPhase
from lcm.model.kinds.session_fields import clear_timed_out_requests
from lcm.model.telemetry.learning import (
    SAMPLES_KEPT,
    ObservationReport,
    ObservedSample,
    ObservedSamples,
    ReviewPolicy,
    build_report,
    build_sample,
    is_steady,
    with_learned_status,
    with_sample,
)
from lcm.model.telemetry.observation import ResourceObservation, find_drift, trim_observation
from lcm.model.topology.node_definitions import NodeSize
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import ABSENT, Delete, Op, Put, Store, scan_all

DEFAULT_REVIEW: Final = ReviewPolicy()


SAMPLES_PER_KEY: Final = 8


@dataclass(frozen=True, slots=True)
class SampleChunk:
    """Some samples of a definition, as they are stored under one key."""

    key: str
    revision: int
    items: tuple[ObservedSample, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredSamples:
    """A definition's samples in the chunks in which they are stored, oldest chunk first."""

    prefix: str
    chunks: Sequence[SampleChunk]

    def samples(self, total: int) -> ObservedSamples:
        """Return the samples of all chunks; `total` is how many sessions there were in all."""
        items = sorted((one for chunk in self.chunks for one in chunk.items), key=lambda one: one.observed_at)
        return ObservedSamples(total=total, items=tuple(items[-SAMPLES_KEPT:]))

    def put_ops(self, new: ObservedSample) -> Sequence[Op]:
        """Return the operations that add a session's sample, or replace its earlier one, and drop the oldest chunk."""
        chunk = next((one for one in self.chunks if new.session_id in {item.session_id for item in one.items}), None)
        if chunk is None:
            chunk = self._open_chunk()
        others = [item for item in chunk.items if item.session_id != new.session_id]
        whole = ObservedSamples(total=len(others) + 1, items=(*others, new))
        left, first = sum(len(one.items) for one in self.chunks), self.chunks[0] if self.chunks else chunk
        over = first is not chunk and left - len(first.items) >= SAMPLES_KEPT
        dropped = [Delete(first.key, at=first.revision)] if over else []
        return Put(chunk.key, encode_checked(whole), at=chunk.revision), *dropped

    def _open_chunk(self) -> SampleChunk:
        """Return the newest chunk if it has room, else a new one."""
        newest = self.chunks[-1] if self.chunks else None
        if newest is not None and newest.key.startswith(self.prefix):
            if len(newest.items) < SAMPLES_PER_KEY:
                return newest
            number = int(newest.key.removeprefix(self.prefix)) + 1
        else:
            number = 0
        return SampleChunk(f"{self.prefix}{number:010}", ABSENT)


async def read_samples(store: Store, definition: LabletDefinition) -> StoredSamples:
    """Read a definition's samples. Earlier versions kept them all under one key, which is dropped as the oldest."""
    prefix = observations_prefix(definition)
    page, former = await scan_all(store, prefix), await store.get(observations_key(definition))
    entries = [*([former] if former else []), *page.entries]
    chunks = [SampleChunk(one.key, one.revision, CODEC.decode(one.value, ObservedSamples).items) for one in entries]
    return StoredSamples(prefix, chunks)


async def read_review(store: Store, usual: ReviewPolicy) -> ReviewPolicy:
    """Return the review criteria: those of the process, with the SystemSettings object's over them."""
    return usual.with_settings(await find_settings(store))


async def observation_report(writer: Writer, ref: Ref[LabletDefinition]) -> ObservationReport:
    """Report what the sessions of a definition have taught."""
    found = await writer.require(ref)
    stored = await read_samples(writer.store, found.resource)
    samples = stored.samples(found.resource.status.observed_sessions)
    return build_report(found.resource, samples, named=writer.caller.role in SEES_ALL)


_OBSERVABLE_PHASES: Final = frozenset({SessionPhase.RUNNING, SessionPhase.COLLECTING})
_MAX_OBSERVATION_SKEW: Final = timedelta(minutes=5)
"""How far the clock of another machine may be ahead."""


def check_observer(actor: str) -> None:
    """Raise Forbidden for every actor but the lablet controller."""
    if actor != LABLET_CONTROLLER:
        raise Forbidden(f"only {LABLET_CONTROLLER} may report what was observed of labs")


async def record_observation(
    writer: Writer, ref: SessionRef, seen: ResourceObservation, request_id: str | None, usual: ReviewPolicy
) -> LabletSession:
    """Store an observation and return the session as it is then; one that is known already changes nothing."""
    steady, seen = is_steady(seen), trim_observation(seen)

    async def attempt() -> LabletSession:
        found, now = await writer.require(ref), writer.clock.now()
        _reject_future_observation(seen, now)
        if _is_known(found.resource.status, seen, request_id):
            return await _expire_request(writer, found, now)
        session, phase = found.resource, found.resource.status.phase
        if phase not in _OBSERVABLE_PHASES:
            raise IllegalStep(f"LabletSession {session.metadata.name} is {phase}: there is no lab of it to observe")
        ref_of_lab = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
        definition = await find_record(writer.store, ref_of_lab)
        after, new_events = _apply_observation(session, definition, seen, request_id, now)
        teaches = steady and not _has_other_lab(session)
        lessons, ops = await _learn(writer, after, definition if teaches else None, seen, usual)
        edits: list[Edit[Any]] = [Edit(found, after), *lessons]
        revision = await writer.commit_edits(*edits, ops=ops, told=new_events, reported=True)
        return with_revision(after, revision)

    return await retry_conflicts(attempt, unless=lambda _: False)


def _is_known(status: LabletSessionStatus, seen: ResourceObservation, request_id: str | None) -> bool:
    """Return whether the observation was already recorded, or its request already answered or given up."""
    if request_id is not None:
        return status.observation_request is None or status.observation_request.id != request_id
    return status.observed_at is not None and seen.observed_at <= status.observed_at


async def _expire_request(writer: Writer, found: Record[LabletSession], now: datetime) -> LabletSession:
    """Clear an observation request that was not answered in time, as the session was read anyway."""
    status = clear_timed_out_requests(found.resource.status, now)
    if status is found.resource.status:
        return found.resource
    after = msgspec.structs.replace(found.resource, status=status)
    return await writer.write(Edit(found, after), reported=True)


def _apply_observation(
    session: LabletSession,
    definition: Record[LabletDefinition] | None,
    seen: ResourceObservation,
    request_id: str | None,
    now: datetime,
) -> tuple[LabletSession, Sequence[Event]]:
    """Return the session with the observation on it, and the events that follow from that."""
    before = session.status
    lab = as_continued(definition.resource, before.continues) if definition else None
    template = (lab.spec.port_template if lab else None) or {}
    differs = find_drift(before.allocated_ports or {}, template, seen)
    answered = before.observation_request is not None and before.observation_request.id == request_id
    status = msgspec.structs.replace(
        before if answered else clear_timed_out_requests(before, now),
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
    new_events = [events.observation_event(after, seen, now=now)]
    if differs and before.observed_ports != seen.observed_ports:
        new_events.append(events.port_drift_event(after, differs, now=now))
    return after, new_events


def _has_other_lab(session: LabletSession) -> bool:
    """Return whether a session continues a lab with other nodes than its definition has: that teaches nothing of it."""
    return session.status.continues is not None and session.status.continues.needs is not None


async def _learn(
    writer: Writer,
    session: LabletSession,
    definition: Record[LabletDefinition] | None,
    seen: ResourceObservation,
    usual: ReviewPolicy,
) -> tuple[Sequence[Edit[LabletDefinition]], Sequence[Op]]:
    """Return what the definition learns from an observation, if there is a definition that learns from it."""
    if definition is None:
        return (), ()
    lab = definition.resource
    stored, new = await read_samples(writer.store, lab), build_sample(session, seen, lab.spec.port_template)
    samples = with_sample(stored.samples(lab.status.observed_sessions), new)
    after = with_learned_status(lab, samples, await read_review(writer.store, usual))
    edits = () if after == lab else (Edit(definition, after),)
    return edits, stored.put_ops(new)


def _reject_future_observation(seen: ResourceObservation, now: datetime) -> None:
    """Raise Invalid for a time in the future: such an observation would make every later one look old."""
    if seen.observed_at > now + _MAX_OBSERVATION_SKEW:
        problem = f"in the future: it is {now:%Y-%m-%dT%H:%M:%SZ}"
        raise Invalid(Fault("observation.observed_at", problem, "set the clock of the machine that observes"))


@dataclass(slots=True)
class LearningContext:
    """What all callers share: the artifact store and its quota, review criteria, node sizes, saved labs, a lock."""

    artifacts: Artifacts | None = None
    review: ReviewPolicy = DEFAULT_REVIEW
    node_sizes: Mapping[str, NodeSize] = field(default_factory=dict)
    quota_bytes: int = DEFAULT_QUOTA_BYTES
    """How many bytes of lab files one author may store."""
    saved_labs: SavedLabs = field(default_factory=SavedLabs)
    lock: Lock = field(default_factory=Lock)
    """One learner at a time in a process.

    Many sessions of a lab end together, and each would only cause conflicts for the others.
    """
