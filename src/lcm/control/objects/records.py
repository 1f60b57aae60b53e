"""Objects as the store keeps them: their keys, their encoding, and how they are read back.

A stored document carries no revision; whoever reads it puts the entry's revision in. Also here: keys that only one
object of a namespace may hold, namely a live session's reservation id. An object holds its key from the commit that
makes it to the one that ends it. Used by every part of `control` that reads or writes objects.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

import msgspec

from lcm.control.plane.protocol import R, Ref
from lcm.model.base.errors import Conflict, Fault, Invalid, Stuck, to_fault
from lcm.model.base.resource import DEFAULT_NAMESPACE
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.rules import SETTINGS_NAME
from lcm.model.kinds.session import SESSION_MACHINE, DeletedSession, LabletSession, use_of_ended, worker_of
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.sink import Sink, redact_sink, upgrade_sink
from lcm.model.kinds.validate import parse_document
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, scan_all
from lcm.store.codec import Codec

_UNIQUE: Final = "unique/"
TRACK_MARKS: Final = f"{_UNIQUE}tracks/"
"""Keys of earlier versions, in which a track had one pool. Housekeeping removes them."""
_RESERVATION_IDS: Final = f"{_UNIQUE}reservation-ids/"


def unique_key_of(resource: Resource | None) -> str | None:
    """Return the key that an object must hold alone; None for most objects."""
    live = isinstance(resource, LabletSession) and resource.status.phase not in SESSION_MACHINE.final
    if isinstance(resource, LabletSession) and live and resource.spec.reservation_id is not None:
        return _unique_key(_RESERVATION_IDS, resource, resource.spec.reservation_id)
    return None


async def refuse_taken(store: Store, resource: Resource) -> None:
    """Raise Invalid if another object holds the unique key that this one needs."""
    mark = unique_key_of(resource)
    entry = await store.get(mark) if mark is not None else None
    own = KINDS[resource.kind].key(resource.metadata.namespace, resource.metadata.name)
    # If the holder has this object's own name, the write itself reports that the name is taken.
    if entry is not None and entry.value.decode() != own:
        raise unique_key_error()


def explain_conflict(error: Conflict) -> Invalid | None:
    """Explain a failed commit by the object that took the unique key first; None when that was not the cause."""
    return unique_key_error() if error.key.startswith(_UNIQUE) else None


def unique_key_error() -> Invalid:
    """Return the error for a key that another object holds. The owner of a reservation id is not disclosed."""
    return Invalid(Fault("spec.reservation_id", "another session has this reservation id", "use another"))


def _unique_key(prefix: str, resource: Resource, text: str) -> str:
    """Return a unique key. It holds a digest of the text, which may contain characters that a key may not."""
    return f"{prefix}{resource.metadata.namespace}/{sha256(text.encode()).hexdigest()}"


S = TypeVar("S", bound=msgspec.Struct)
UIDS: Final = "uids/"
TELEMETRY: Final = "telemetry/"
HISTORY: Final = "history/"
ALERTS: Final = "alerts/"
OBSERVATIONS: Final = "observations/"
"""The samples of the latest sessions of each definition."""
PREBUILT: Final = "prebuilt/"
"""What became of those who wanted a lab of a definition at once."""
DELETED_SESSIONS: Final = "deleted-sessions/"
"""The uids of sessions that were deleted. A uid that is in no record at all is one that this store has lost."""
WORKER_INDEX: Final = "on-worker/"
"""The sessions on each worker, by the worker's uid, so that nobody has to read all sessions to find them."""
POOLS_CHANGED: Final = "guards/changed/"
"""Written, by namespace, with every change of a pool or a template; a calendar sees by it that it is behind."""
SINK_CURSORS: Final = "sink-cursors/"
"""How far each sink has got."""
DEAD_LETTERS: Final = "dead-letters/"
CODEC: Final = Codec()
SINK_CODEC: Final = Codec(2, reads=2, upgrades={1: {Sink.__name__: upgrade_sink}})
_BY_PREFIX: Final = {kind.prefix: kind for kind in KINDS.values()}

_MOST_CACHED: Final = 2_000
_MOST_CACHED_BYTES: Final = 8_192
_NOT_CACHED: Final = (Entry("", b"", {}, 0, 0), None)
_cached: Final[dict[str, tuple[Entry, Resource | None]]] = {}
"""Recently decoded objects by key: decoding costs more than the rest of a GET."""

SETTINGS_KEY: Final = KINDS[SystemSettings.__name__].key(DEFAULT_NAMESPACE, SETTINGS_NAME)
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.:-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Record(Generic[R]):
    """An object together with the store entry it was read from."""

    resource: R
    entry: Entry

    @property
    def key(self) -> str:
        """The store key of the object."""
        return self.entry.key

    @property
    def revision(self) -> int:
        """The revision of this state of the object."""
        return self.entry.revision


def kind_of(resource: Resource) -> Kind:
    """Return the registry entry of an object's kind."""
    return KINDS[resource.kind]


def key_of(resource: Resource) -> str:
    """Return the key under which the store keeps an object."""
    return kind_of(resource).key(resource.metadata.namespace, resource.metadata.name)


def telemetry_key(ref: Ref[R]) -> str:
    """Return the key of a worker's newest measurements."""
    return f"{TELEMETRY}{ref.namespace}/{ref.name}"


def history_prefix(ref: Ref[R]) -> str:
    """Return the key prefix of a worker's measurements of the last day, by the hour."""
    return f"{HISTORY}{ref.namespace}/{ref.name}/"


def prebuilt_key(definition: Ref[Any]) -> str:
    """Return the key of what became of those who wanted a lab of a definition at once."""
    return f"{PREBUILT}{definition.namespace}/{definition.name}"


def observations_prefix(resource: Resource) -> str:
    """Return the prefix of the keys with the samples of a definition's sessions."""
    return f"{observations_key(resource)}/"


def observations_key(resource: Resource) -> str:
    """Return the key of the samples that a definition learned from."""
    return f"{OBSERVATIONS}{resource.metadata.namespace}/{resource.metadata.name}"


def alerts_key(ref: Ref[R]) -> str:
    """Return the key of the alerts about an object."""
    return ALERTS + ref.key


def is_nameable(ref: Ref[R]) -> bool:
    """Return whether an object could have such a name. An object that could not does not exist."""
    return NAME.fullmatch(ref.name) is not None and NAME.fullmatch(ref.namespace) is not None


def ref_of_key(key: str) -> Ref[Resource] | None:
    """Return the reference of the object at a key; None for keys that hold something else."""
    kind = _BY_PREFIX.get(f"{key.partition('/')[0]}/")
    if kind is None:
        return None
    namespace, name = kind.split_key(key)
    return Ref(kind.struct, name, namespace)


def with_revision(resource: R, revision: int) -> R:
    """Return an object with this revision in its metadata."""
    metadata = msgspec.structs.replace(resource.metadata, resource_version=revision)
    return msgspec.structs.replace(resource, metadata=metadata)


def codec_of(kind: type[msgspec.Struct]) -> Codec:
    """Return the codec of a type of documents."""
    return SINK_CODEC if kind is Sink else CODEC


def read_entry(entry: Entry, kind: type[R]) -> R:
    """Read an entry as its kind, without what may not be shown of it.

    A small entry that was read recently is reused: objects are immutable.
    """
    kept, resource = _cached.get(entry.key, _NOT_CACHED)
    if is_same_state(kept, entry) and isinstance(resource, kind):
        return resource
    found = hide_secret_parts(with_revision(codec_of(kind).decode(entry.value, kind), entry.revision))
    if len(entry.value) <= _MOST_CACHED_BYTES:
        if len(_cached) >= _MOST_CACHED:
            _cached.clear()
        _cached[entry.key] = (entry, found)
    return found


def is_same_state(kept: Entry, entry: Entry) -> bool:
    """Return whether two entries of a key are the same state of it.

    Bytes are compared as well as the revision: another store, or this one after a restore, may reuse a revision.
    """
    return kept is entry or (kept.revision == entry.revision and kept.value == entry.value)


def forget_cached(key: str) -> None:
    """Drop the decoded object of a key that holds none any more."""
    _cached.pop(key, None)


async def find_record(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read an object by name, or else by uid; None means that there is none."""
    if not is_nameable(ref):
        return None
    entry = await store.get(ref.key)
    return Record(read_entry(entry, ref.kind), entry) if entry else await _find_by_uid(store, ref)


async def find_settings(store: Store) -> SystemSettings | None:
    """Read the one object of settings; None means that there is none."""
    return decode_settings(await store.get(SETTINGS_KEY))


def decode_settings(entry: Entry | None) -> SystemSettings | None:
    """Decode the one object of settings; None means that there is none."""
    return read_entry(entry, SystemSettings) if entry else None


async def _find_by_uid(store: Store, ref: Ref[R]) -> Record[R] | None:
    named = await store.get(UIDS + ref.name)
    key = named.value.decode() if named else ""
    entry = await store.get(key) if key.startswith(ref.kind_info.prefix_in(ref.namespace)) else None
    resource = read_entry(entry, ref.kind) if entry else None
    # The name may have passed to another object since the uid was looked up.
    if entry is None or resource is None or resource.metadata.uid != ref.name:
        return None
    return Record(resource, entry)


async def sessions_on(store: Store, worker_id: str) -> Sequence[LabletSession]:
    """Read the sessions that are on a worker or promised to it."""
    page = await scan_all(store, f"{WORKER_INDEX}{worker_id}/")
    found = [await store.get(entry.value.decode()) for entry in page.entries]
    sessions = (read_entry(entry, LabletSession) for entry in found if entry)
    return [one for one in sessions if worker_of(one) == worker_id]


def hide_secret_parts(resource: R) -> R:
    """Return an object as it may be shown: a sink without the part of its URL that may be a secret."""
    shown: Resource = redact_sink(resource) if isinstance(resource, Sink) else resource
    assert isinstance(shown, type(resource))
    return shown


def open_record(record: Record[R]) -> Record[R]:
    """Return an object as it is stored, with what is not shown of it."""
    if not isinstance(record.resource, Sink):
        return record
    stored = SINK_CODEC.decode(record.entry.value, type(record.resource))
    return Record(with_revision(stored, record.revision), record.entry)


def mentions(entry: Entry, name: str) -> bool:
    """Return whether a name occurs in an entry's bytes: a fast test that saves decoding most entries."""
    return f'"{name}"'.encode() in entry.value


def encode_checked(resource: S, onto: bytes | None = None) -> bytes:
    """Encode a document as the store keeps it. Raise Invalid if it could not be read again.

    A document that code has put together was never checked against the limits of its fields. One that fails only when
    it is next read would be lost.
    """
    codec = codec_of(type(resource))
    raw = codec.encode(resource, onto=onto)
    try:
        codec.decode(raw, type(resource))
    except Stuck as error:
        raise _invalid_error(raw, type(resource)) from error
    return raw


def _invalid_error(raw: bytes, kind: type[msgspec.Struct]) -> Invalid:
    document = msgspec.json.decode(raw.partition(b"\n")[2])
    try:
        parse_document(document) if kind.__name__ in KINDS else msgspec.convert(document, kind)
    except Invalid as error:
        return error
    except msgspec.ValidationError as error:
        return Invalid(to_fault(error, "document", f"see the documentation of {kind.__name__}"))
    raise AssertionError("what cannot be read again is not valid")


def creation_ops(resource: Resource) -> Sequence[Op]:
    """Return the operations that create an object and its entry in the uid index."""
    key = key_of(resource)
    bare = with_revision(resource, ABSENT)
    return (
        Put(key, encode_checked(bare), resource.metadata.labels, at=ABSENT),
        Put(UIDS + resource.metadata.uid, key.encode(), at=ABSENT),
        *_index_ops(None, resource),
    )


def change_ops(before: Record[R], after: R) -> Sequence[Op]:
    """Return the operations that replace one state of an object by another."""
    raw = encode_change(before, after)
    return Put(before.key, raw, after.metadata.labels, at=before.revision), *_index_ops(before.resource, after)


def encode_change(before: Record[R], after: R) -> bytes:
    """Encode the state that replaces another one, with the fields of that which this version does not know."""
    return encode_checked(with_revision(after, ABSENT), before.entry.value)


def with_reported_status(before: Record[R], reported: bytes) -> Record[R]:
    """Return a record as if the status that another process reported stood in it, with fields that are unknown here.

    Written onto it, a change keeps those fields: a newer version understands them.
    """
    head, _, body = before.entry.value.partition(b"\n")
    document = msgspec.json.decode(body, type=dict[str, Any])
    status = {**document.get("status", {}), **msgspec.json.decode(reported, type=dict[str, Any])}
    value = head + b"\n" + msgspec.json.encode({**document, "status": status})
    return Record(before.resource, msgspec.structs.replace(before.entry, value=value))


def removal_ops(before: Record[R]) -> Sequence[Op]:
    """Return the operations that remove an object and its entry in the uid index.

    `find_dependents` finds what else is removed with it.
    """
    gone = before.resource
    deleted = Delete(before.key, at=before.revision), Delete(UIDS + gone.metadata.uid)
    return *deleted, *_index_ops(gone, None)


def deletion_ops(gone: Resource) -> Sequence[Op]:
    """Return the operations that record a deletion: labs of a deleted session are known to be over."""
    if not isinstance(gone, LabletSession):
        return ()
    history, created = gone.status.history, gone.metadata.created_at
    ended = history[-1].at if history else created
    assert ended is not None, "what was admitted has a time"
    left = DeletedSession(ended_at=ended, used=use_of_ended(gone))
    return (Put(DELETED_SESSIONS + gone.metadata.uid, CODEC.encode(left)),)


def deletion_moment(entry: Entry) -> datetime:
    """Return when a deleted session had ended."""
    return CODEC.decode(entry.value, DeletedSession).ended_at


def _index_ops(before: Resource | None, after: Resource | None) -> Iterator[Op]:
    """Yield the operations on an object's unique key, on its worker's index, and on the mark of changed pools."""
    for at, key in ((ABSENT, unique_key_of), (None, _worker_index_key)):
        old, new = key(before), key(after)
        if old is not None and old != new:
            yield Delete(old)
        if after is not None and new is not None and old != new:
            yield Put(new, key_of(after).encode(), at=at)
    resource = after or before
    if isinstance(resource, LabWorkerPool | WorkerTemplate):
        yield Put(POOLS_CHANGED + resource.metadata.namespace, b"")


def _worker_index_key(resource: Resource | None) -> str | None:
    worker_id = worker_of(resource) if isinstance(resource, LabletSession) else None
    if resource is None or worker_id is None:
        return None
    return f"{WORKER_INDEX}{worker_id}/{resource.metadata.namespace}/{resource.metadata.name}"
