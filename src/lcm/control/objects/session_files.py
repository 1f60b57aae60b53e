"""What a session leaves to its owner: collected files, and its story as lines of text. Called by `local`."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from lcm.control.objects.writer import Ledger
from lcm.control.plane.protocol import SessionRef
from lcm.model.base.errors import Gone
from lcm.model.base.resource import one_line, story
from lcm.model.kinds.session import Artifact, LabletSession, LabletSessionStatus
from lcm.providers.protocols.artifacts import Artifacts, named

COLLECTED: Final = "collected/"


def kept_name(session: LabletSession, name: str) -> str:
    """Say under which name a file that was collected from a session is stored."""
    return f"{COLLECTED}{session.metadata.namespace}/{session.metadata.uid}/{name}"


async def listed(ledger: Ledger, ref: SessionRef) -> Sequence[Artifact]:
    """List a session's files that have not expired."""
    found = await ledger.read(ref)
    return tuple(one for one in found.status.artifacts if _lasts(one, ledger.clock.now()))


async def read(ledger: Ledger, artifacts: Artifacts, ref: SessionRef, name: str) -> bytes:
    """Read one of a session's files, proven by its digest. Gone when there is none of that name, or none any more."""
    session = await ledger.read(ref)
    found = next((one for one in session.status.artifacts if one.name == name), None)
    if found is None:
        raise Gone(f"there is no file {name!r} of session {session.metadata.name}; list its artifacts")
    if not _lasts(found, ledger.clock.now()):
        raise Gone(_expired(session, found))
    try:
        return await artifacts.get(named(kept_name(session, name)).uri, digest=found.digest)
    except Gone as error:
        told = f"{name} of session {session.metadata.name} is not where files are kept any more"
        raise Gone(f"{told}: somebody removed it, or a backup was restored without it") from error


async def told(ledger: Ledger, ref: SessionRef) -> str:
    """Tell a session's story, how far it is, why it is where it is and what went wrong, line by line."""
    session = await ledger.read(ref)
    return "".join(f"{line}\n" for line in lines(session))


def lines(session: LabletSession) -> Iterator[str]:
    """Write what is known of a session's life: first what happened, then how it is."""
    yield from story(session.status.history).splitlines()
    yield from map(one_line, _state(session.status))


def _state(status: LabletSessionStatus) -> Iterator[str]:
    if (decision := status.last_decision) is not None:
        yield f"decision: {decision.action}" + (f": {decision.reason}" if decision.reason else "")
    if (waiting := status.waiting) is not None:
        estimate = f", about {_at(waiting.estimated_start)}" if waiting.estimated_start else ""
        yield f"waiting: position {waiting.queue_position}{estimate}: {waiting.basis}"
    if (progress := status.progress) is not None:
        yield f"{_at(progress.at)} progress: {progress.step}, {progress.percent} %: {progress.message}"
    if status.observed_at is not None:
        drifted = ", its ports have drifted" if status.port_drift_detected else ""
        left_out = status.observed_resources.left_out if status.observed_resources else ()
        lacking = f"; left out, for there is too much: {', '.join(left_out)}" if left_out else ""
        yield f"{_at(status.observed_at)} observed: {status.observation_count} times so far{drifted}{lacking}"
    yield from map(_collected, status.artifacts)
    yield from (f"error: {text}" for text in (status.observation_error, status.last_error) if text)


def _collected(artifact: Artifact) -> str:
    until = f", kept until {_at(artifact.expires_at)}" if artifact.expires_at else ""
    return f"{_at(artifact.collected_at)} collected: {artifact.name}, {artifact.size_bytes} bytes{until}"


def _expired(session: LabletSession, artifact: Artifact) -> str:
    assert artifact.expires_at is not None
    told = f"{artifact.name} of session {session.metadata.name} expired at {_at(artifact.expires_at)}"
    return f"{told}: download what you need before, or have an operator raise artifacts.retention_days in the settings"


def _lasts(artifact: Artifact, now: datetime) -> bool:
    return artifact.expires_at is None or artifact.expires_at > now


def _at(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
