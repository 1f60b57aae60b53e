"""What only one object of a namespace may have: a pool its lab track, a live session its reservation id.

Whoever has it holds a key for it from the commit that makes the object to the one that ends it. `records` writes the
keys; `drafts`, `applying` and the ledger refuse what is somebody else's.
"""

from hashlib import sha256
from typing import Final

from lcm.model.errors import Conflict, Fault, Invalid
from lcm.model.kinds import KINDS, Resource
from lcm.model.pool import LabWorkerPool
from lcm.model.session import SESSION, LabletSession
from lcm.store.base import Store

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
