"""The archive of sessions as it is read, and the dependents that are removed with an object.

No watch, no cache and no list of live objects includes the archive. An archived session is still found by its name or
uid; it cannot be changed any more, and its name is free. `control.upkeep.archive` moves sessions there.

Dependents are measurements, their history, alerts and samples. Each is removed at the revision at which it was found,
so that nothing that comes meanwhile is left behind. Called by `control.objects.writer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lcm.control.objects.records import (
    ALERTS,
    OBSERVATIONS,
    PREBUILT,
    SINK_CURSORS,
    TELEMETRY,
    UIDS,
    Record,
    alerts_key,
    history_prefix,
    is_nameable,
    kind_of,
    observations_key,
    observations_prefix,
    prebuilt_key,
    read_entry,
    telemetry_key,
)
from lcm.control.plane.protocol import R, Ref, ref_of
from lcm.control.telemetry.alert_records import Alerts, read_alerts
from lcm.model.base.event import Event
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import CheckRevision, Delete, Op, Store, scan_all


@dataclass(frozen=True, slots=True)
class Dependents:
    """The operations that remove an object's dependents, and the events that this causes."""

    ops: Sequence[Op] = ()
    events: Sequence[Event] = ()


def is_dependent_key(key: str) -> bool:
    """Return whether a key holds a dependent of an object."""
    return key.startswith((TELEMETRY, ALERTS, OBSERVATIONS, PREBUILT))


async def find_dependents(store: Store, resource: Resource, now: datetime) -> Dependents:
    """Find what is removed together with an object."""
    raised = await read_alerts(store, alerts_key(ref_of(resource)))
    gone: list[Op] = [Delete(raised.key, at=raised.revision)] if raised.revision else [CheckRevision(raised.key, 0)]
    if isinstance(resource, LabWorker):
        # Every report writes the newest measurements: while those are unchanged, this is the complete history.
        newest = await store.get(key := telemetry_key(ref_of(resource)))
        gone.append(Delete(key, at=newest.revision) if newest else CheckRevision(key, 0))
        chunks = await scan_all(store, history_prefix(ref_of(resource)))
        gone += [Delete(entry.key) for entry in chunks.entries]
    if isinstance(resource, LabletDefinition):
        samples = await store.get(key := observations_key(resource))
        gone.append(Delete(key, at=samples.revision) if samples else CheckRevision(key, 0))
        # A new chunk comes with a change of the definition, which would conflict.
        learned = await scan_all(store, observations_prefix(resource))
        gone += [Delete(entry.key, at=entry.revision) for entry in learned.entries]
        used = await store.get(key := prebuilt_key(ref_of(resource)))
        gone.append(Delete(key, at=used.revision) if used else CheckRevision(key, 0))
    if isinstance(resource, Sink):
        gone.append(Delete(SINK_CURSORS + resource.metadata.name))
    return Dependents(gone, raised.change_events(Alerts(), now))


ARCHIVE_PREFIX: Final = "archive/"
"""Archived sessions by the time at which they ended, so that the oldest come first."""
NAMES_PREFIX: Final = "archive-names/"
"""Index of the archived sessions of one name, the newest last."""


def archived_prefix(kind: type[R]) -> str:
    """Return the key prefix of the archived objects of a kind."""
    return f"{ARCHIVE_PREFIX}{KINDS[kind.__name__].plural}/"


def is_archived(record: Record[R]) -> bool:
    """Return whether an object was found in the archive."""
    return record.key.startswith(ARCHIVE_PREFIX)


async def find_archived(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read an archived object by its uid, or else the newest of its name; None means that there is none."""
    if ref.kind is not LabletSession or not is_nameable(ref):
        return None
    named = await store.get(UIDS + ref.name)
    key = named.value.decode() if named else ""
    if not key.startswith(archived_prefix(ref.kind)):
        return await find_newest_archived(store, ref)
    record = await _read_record(store, key, ref)
    return record if record and record.resource.metadata.namespace == ref.namespace else None


async def find_newest_archived(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read the archived object of a name that ended last; None means that there is none."""
    if ref.kind is not LabletSession:
        return None
    prefix = f"{NAMES_PREFIX}{ref.kind_info.plural}/{ref.namespace}/{ref.name}/"
    page = await store.scan(prefix)
    while page.next is not None:
        page = await store.scan(prefix, cursor=page.next)
    return await _read_record(store, page.entries[-1].value.decode(), ref) if page.entries else None


async def _read_record(store: Store, key: str, ref: Ref[R]) -> Record[R] | None:
    entry = await store.get(key)
    return Record(read_entry(entry, ref.kind), entry) if entry else None


def archived_removal_ops(record: Record[R]) -> Sequence[Op]:
    """Return the operations that remove an archived object, which nobody can have changed, and its index entries."""
    resource, place = record.resource, record.key.removeprefix(archived_prefix(type(record.resource)))
    ways = Delete(UIDS + resource.metadata.uid), Delete(archived_name_key(resource, place))
    return Delete(record.key), *ways


def archived_name_key(resource: Resource, place: str) -> str:
    """Return the key by which an archived object is found by its name."""
    metadata = resource.metadata
    return f"{NAMES_PREFIX}{kind_of(resource).plural}/{metadata.namespace}/{metadata.name}/{place}"
