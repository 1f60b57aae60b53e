"""The files collected from a session, and its history as lines of text. Called by `control.plane.local`."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import SessionRef
from lcm.model.base.errors import Gone
from lcm.model.base.resource import format_history, to_one_line
from lcm.model.kinds.session import Artifact, LabletSession, LabletSessionStatus
from lcm.providers.protocols.artifacts import Artifacts, temporary_address

COLLECTED_PREFIX: Final = "collected/"


def stored_name(session: LabletSession, name: str) -> str:
    """Return the name under which a file collected from a session is stored."""
    return f"{COLLECTED_PREFIX}{session.metadata.namespace}/{session.metadata.uid}/{name}"


async def list_files(writer: Writer, ref: SessionRef) -> Sequence[Artifact]:
    """List a session's files that have not expired."""
    found = await writer.read(ref)
    return tuple(one for one in found.status.artifacts if is_available(one, writer.clock.now()))


async def read_file(writer: Writer, artifacts: Artifacts, ref: SessionRef, name: str) -> bytes:
    """Read one of a session's files, verified by its digest. Raise Gone when it is missing or has expired."""
    session = await writer.read(ref)
    found = next((one for one in session.status.artifacts if one.name == name), None)
    if found is None:
        raise Gone(f"there is no file {name!r} of session {session.metadata.name}; list its artifacts")
    if found.expires_at is not None and not is_available(found, writer.clock.now()):
        problem = f"{name} of session {session.metadata.name} expired at {_format_time(found.expires_at)}"
        remedy = "download files in time, or ask an operator to raise artifacts.retention_days in the settings"
        raise Gone(f"{problem}: {remedy}")
    try:
        return await artifacts.get(temporary_address(stored_name(session, name)).uri, digest=found.digest)
    except Gone as error:
        problem = f"{name} of session {session.metadata.name} is missing from the file store"
        raise Gone(f"{problem}: somebody removed it, or a backup was restored without it") from error


async def read_story(writer: Writer, ref: SessionRef) -> str:
    """Return a session's history, progress, last decision and errors as lines of text."""
    session = await writer.read(ref)
    return "".join(f"{line}\n" for line in story_lines(session))


def story_lines(session: LabletSession) -> Iterator[str]:
    """Yield what is known of a session's life: first its history, then its present state."""
    yield from format_history(session.status.history).splitlines()
    yield from map(to_one_line, _state_lines(session.status))


def _state_lines(status: LabletSessionStatus) -> Iterator[str]:
    if (decision := status.last_decision) is not None:
        yield f"decision: {decision.action}" + (f": {decision.reason}" if decision.reason else "")
    if (waiting := status.waiting) is not None:
        estimate = f", about {_format_time(waiting.estimated_start)}" if waiting.estimated_start else ""
        yield f"waiting: position {waiting.queue_position}{estimate}: {waiting.basis}"
    if (progress := status.progress) is not None:
        yield f"{_format_time(progress.at)} progress: {progress.step}, {progress.percent} %: {progress.message}"
    if status.observed_at is not None:
        drifted = ", its ports have drifted" if status.port_drift_detected else ""
        left_out = status.observed_resources.left_out if status.observed_resources else ()
        lacking = f"; left out because it is too much: {', '.join(left_out)}" if left_out else ""
        yield f"{_format_time(status.observed_at)} observed: {status.observation_count} times so far{drifted}{lacking}"
    yield from map(_artifact_line, status.artifacts)
    yield from (f"error: {text}" for text in (status.observation_error, status.save_error, status.last_error) if text)


def _artifact_line(artifact: Artifact) -> str:
    until = f", kept until {_format_time(artifact.expires_at)}" if artifact.expires_at else ""
    return f"{_format_time(artifact.collected_at)} collected: {artifact.name}, {artifact.size_bytes} bytes{until}"


def is_available(artifact: Artifact, now: datetime) -> bool:
    """Return whether a file has not expired."""
    return artifact.expires_at is None or artifact.expires_at > now


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
