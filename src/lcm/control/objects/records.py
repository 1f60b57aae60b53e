"""Objects as the store keeps them: where, in what form, and how they are read back.

A stored document carries no revision; whoever reads it puts the entry's in. Used by every part of `control` that reads
or writes objects.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

import msgspec

from lcm.control.plane.protocol import R, Ref
from lcm.model.base.errors import Conflict, Fault, Invalid, Stuck
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.session import SESSION, LabletSession, worker_of
from lcm.model.kinds.validate import read
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store
from lcm.store.codec import Codec

_UNIQUE: Final = "unique/"
_TRACKS: Final = f"{_UNIQUE}tracks/"
_RESERVATION_IDS: Final = f"{_UNIQUE}reservation-ids/"


def mark_of(resource: Resource | None) -> str | None:
    """Say which key an object must have for itself; None for most."""
    if isinstance(resource, LabWorkerPool):
        return _mark(_TRACKS, resource, resource.spec.lab_track)
    live = isinstance(resource, LabletSession) and resource.status.phase not in SESSION.final
    if isinstance(resource, LabletSession) and live and resource.spec.reservation_id is not None:
        return _mark(_RESERVATION_IDS, resource, resource.spec.reservation_id)
    return None


async def refuse_taken(store: Store, resource: Resource) -> None:
    """Raise Invalid if another object has what this one must have for itself."""
    mark = mark_of(resource)
    entry = await store.get(mark) if mark is not None else None
    own = KINDS[resource.kind].key(resource.metadata.namespace, resource.metadata.name)
    # An object of the very same name is there already: that is what its maker is told, once it is written.
    if entry is not None and entry.value.decode() != own:
        raise refusal(entry.key, entry.value.decode())


async def why_taken(store: Store, error: Conflict) -> Invalid | None:
    """Say of a commit that failed which other object was faster to take what is unique; None: that was not it."""
    if not error.key.startswith(_UNIQUE):
        return None
    entry = await store.get(error.key)
    return refusal(error.key, entry.value.decode() if entry else "")


def refusal(mark: str, holder: str) -> Invalid:
    """Say that a key is another object's. Whose reservation id it is, is nobody's business."""
    if mark.startswith(_TRACKS):
        problem = f"pool {holder.rpartition('/')[2]} serves the track already"
        return Invalid(Fault("spec.lab_track", problem, "change that pool, or use another track"))
    return Invalid(Fault("spec.reservation_id", "another session has this reservation id", "use another"))


def _mark(prefix: str, resource: Resource, text: str) -> str:
    """Name a key; a digest stands for the text, which may hold what a key may not."""
    return f"{prefix}{resource.metadata.namespace}/{sha256(text.encode()).hexdigest()}"


S = TypeVar("S", bound=msgspec.Struct)
UIDS: Final = "uids/"
TELEMETRY: Final = "telemetry/"
HISTORY: Final = "history/"
ALERTS: Final = "alerts/"
OBSERVATIONS: Final = "observations/"
"""What the latest sessions of each definition had."""
ON_WORKERS: Final = "on-worker/"
"""Which sessions are on each worker, by its uid: nobody has to read all of them to know."""
POOLS_CHANGED: Final = "guards/changed/"
"""Put, by namespace, with every change of a pool or a template: by it a calendar knows that it is behind."""
CODEC: Final = Codec()
BY_PLURAL: Final = {kind.plural: kind for kind in KINDS.values()}

_RECENT: Final = 2_000
_SMALL_BYTES: Final = 8_192
_NOTHING: Final = (Entry("", b"", {}, 0, 0), None)
_recent: Final[dict[str, tuple[Entry, Resource | None]]] = {}
"""What was read lately: reading costs more than all the rest of a GET."""

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.:-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Record(Generic[R]):
    """An object together with the entry it was read from."""

    resource: R
    entry: Entry

    @property
    def key(self) -> str:
        """Where it is."""
        return self.entry.key

    @property
    def revision(self) -> int:
        """Which state of it this is."""
        return self.entry.revision


def kind_of(resource: Resource) -> Kind:
    """Give what is known about an object's kind."""
    return KINDS[resource.kind]


def key_of(resource: Resource) -> str:
    """Say where the store keeps an object."""
    return kind_of(resource).key(resource.metadata.namespace, resource.metadata.name)


def telemetry_key(resource: Resource) -> str:
    """Say where a worker's newest measurements are."""
    return f"{TELEMETRY}{resource.metadata.namespace}/{resource.metadata.name}"


def history_prefix(resource: Resource) -> str:
    """Say where a worker's measurements of the last day are, by the hour."""
    return f"{HISTORY}{resource.metadata.namespace}/{resource.metadata.name}/"


def observations_key(resource: Resource) -> str:
    """Say where the samples are that a definition learned from."""
    return f"{OBSERVATIONS}{resource.metadata.namespace}/{resource.metadata.name}"


def alerts_key(resource: Resource) -> str:
    """Say where the alerts about an object are."""
    return ALERTS + key_of(resource)


def nameable(ref: Ref[R]) -> bool:
    """Tell whether an object could have such a name; what could not is not there."""
    return NAME.fullmatch(ref.name) is not None and NAME.fullmatch(ref.namespace) is not None


def located(key: str) -> Ref[Resource] | None:
    """Name the object that a key holds; None for keys that hold something else."""
    plural, _, rest = key.partition("/")
    kind = BY_PLURAL.get(plural)
    namespace, _, name = rest.partition("/")
    return Ref(kind.struct, name, namespace) if kind else None


def at_revision(resource: R, revision: int) -> R:
    """Give an object with a revision in it."""
    metadata = msgspec.structs.replace(resource.metadata, resource_version=revision)
    return msgspec.structs.replace(resource, metadata=metadata)


def opened(entry: Entry, kind: type[R]) -> R:
    """Read an entry as its kind. A small one that was read lately is given again: nobody can have changed it."""
    kept, resource = _recent.get(entry.key, _NOTHING)
    # By its bytes as well as its revision, which another store, or this one after a restore, may use for another state.
    if kept.revision == entry.revision and kept.value == entry.value and isinstance(resource, kind):
        return resource
    found = at_revision(CODEC.decode(entry.value, kind), entry.revision)
    if len(entry.value) <= _SMALL_BYTES:
        if len(_recent) >= _RECENT:
            _recent.clear()
        _recent[entry.key] = (entry, found)
    return found


async def find(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read an object by name, or else by uid; None means that there is none."""
    if not nameable(ref):
        return None
    entry = await store.get(ref.key)
    return Record(opened(entry, ref.kind), entry) if entry else await _by_uid(store, ref)


async def _by_uid(store: Store, ref: Ref[R]) -> Record[R] | None:
    named = await store.get(UIDS + ref.name)
    key = named.value.decode() if named else ""
    entry = await store.get(key) if key.startswith(f"{ref.known.plural}/{ref.namespace}/") else None
    resource = opened(entry, ref.kind) if entry else None
    # The name may have passed to another object since the uid was looked up.
    if entry is None or resource is None or resource.metadata.uid != ref.name:
        return None
    return Record(resource, entry)


def mentions(entry: Entry, name: str) -> bool:
    """Tell whether a name stands in an entry at all, which is found out far sooner than what it stands for."""
    return f'"{name}"'.encode() in entry.value


def written(resource: S, onto: bytes | None = None) -> bytes:
    """Write a document as the store keeps it, or raise Invalid if it could not be read again.

    What code has put together was never held against the limits of its fields; a document that only fails when it is
    next read would be lost.
    """
    raw = CODEC.encode(resource, onto=onto)
    try:
        CODEC.decode(raw, type(resource))
    except Stuck as error:
        raise _invalid(raw, type(resource)) from error
    return raw


def _invalid(raw: bytes, kind: type[msgspec.Struct]) -> Invalid:
    document = msgspec.json.decode(raw.partition(b"\n")[2])
    try:
        read(document) if kind.__name__ in KINDS else msgspec.convert(document, kind)
    except Invalid as error:
        return error
    except msgspec.ValidationError as error:
        return Invalid(Fault("document", str(error), f"see the documentation of {kind.__name__}"))
    raise AssertionError("what cannot be read again is not valid")


def creation(resource: Resource) -> Sequence[Op]:
    """Say how the store makes an object and the way to it by uid."""
    key = key_of(resource)
    bare = at_revision(resource, ABSENT)
    return (
        Put(key, written(bare), resource.metadata.labels, at=ABSENT),
        Put(UIDS + resource.metadata.uid, key.encode(), at=ABSENT),
        *_marked(None, resource),
        *_placed(None, resource),
        *_announced(resource),
    )


def change(before: Record[R], after: R) -> Sequence[Op]:
    """Say how the store puts one state in place of another."""
    raw = written(at_revision(after, ABSENT), _unknown(before))
    put = Put(before.key, raw, after.metadata.labels, at=before.revision)
    marks = _marked(before.resource, after)
    return put, *marks, *_placed(before.resource, after), *_announced(after)


def _unknown(before: Record[R]) -> bytes | None:
    """Give the stored state if it holds what this version does not know, which must not be lost.

    What writes back to the very bytes it was read from holds nothing else; that is soon found out.
    """
    same = CODEC.encode(at_revision(before.resource, ABSENT)) == before.entry.value
    return None if same else before.entry.value


def removal(before: Record[R]) -> Sequence[Op]:
    """Say how the store forgets an object and the way to it by uid; `hanging` says what else goes with it."""
    gone = before.resource
    deleted = Delete(before.key, at=before.revision), Delete(UIDS + gone.metadata.uid)
    return *deleted, *_marked(gone, None), *_placed(gone, None), *_announced(gone)


def _announced(resource: Resource) -> Sequence[Op]:
    pooled = isinstance(resource, LabWorkerPool | WorkerTemplate)
    return (Put(POOLS_CHANGED + resource.metadata.namespace, b""),) if pooled else ()


def _marked(before: Resource | None, after: Resource | None) -> Sequence[Op]:
    """Say how an object takes what no other may have, or leaves it."""
    old, new = mark_of(before), mark_of(after)
    if old == new:
        return ()
    left: Sequence[Op] = () if old is None else (Delete(old),)
    return left if new is None or after is None else (*left, Put(new, key_of(after).encode(), at=ABSENT))


def _placed(before: Resource | None, after: Resource | None) -> Sequence[Op]:
    """Say how a session moves from one worker's list to another's."""
    old, new = _place(before), _place(after)
    if old == new:
        return ()
    left: Sequence[Op] = () if old is None else (Delete(old),)
    return left if new is None or after is None else (*left, Put(new, key_of(after).encode()))


def _place(resource: Resource | None) -> str | None:
    worker_id = worker_of(resource) if isinstance(resource, LabletSession) else None
    if resource is None or worker_id is None:
        return None
    return f"{ON_WORKERS}{worker_id}/{resource.metadata.namespace}/{resource.metadata.name}"
