"""The keys that two commits have in common if together they could promise more than there is.

Whoever adds a claim puts the guard in the same commit, at the revision at which it was read before deciding. Used by
`desk` and `scheduling`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lcm.control.occupancy import guard_key
from lcm.control.plane import Ref
from lcm.control.records import POOLS_CHANGED
from lcm.model.errors import IllegalStep
from lcm.model.kinds import Resource
from lcm.model.pool import LabWorkerPool
from lcm.model.session import CLEAN_UP, LabletSession, SessionPhase
from lcm.store.base import ABSENT, Op, Put, Store

_POOLS: Final = "guards/pools/"
_TOKENS: Final = "guards/licences/"
_CLAIMED: Final = ("claim", "seat", "worker_id", "allocated_ports")


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards as they were read: key and revision, ABSENT for those never put."""

    seen: Sequence[tuple[str, int]]

    @property
    def revision(self) -> int:
        """Up to where whoever decides must know what was claimed."""
        return max((revision for _, revision in self.seen), default=ABSENT)

    def ops(self, by: str) -> Sequence[Op]:
        """Say how the commit of a claim tells the others."""
        return [Put(key, by.encode(), at=revision) for key, revision in self.seen]


def pool_guard(pool: Ref[LabWorkerPool]) -> str:
    """Say which key all touch who claim something of a pool."""
    return f"{_POOLS}{pool.namespace}/{pool.name}"


def token_guard(token: str) -> str:
    """Say which key all touch who may need another licence of a token."""
    return f"{_TOKENS}{token}"


worker_guard = guard_key


def is_guard(key: str) -> bool:
    """Tell whether a key is a guard: whoever finds it changed decides anew."""
    return key.startswith(("guards/", "occupied/"))


async def known_pools(store: Store, namespace: str) -> int:
    """Say up to which revision somebody must know what was claimed who is to know a namespace's pools as they are."""
    entry = await store.get(POOLS_CHANGED + namespace)
    return entry.revision if entry else ABSENT


async def read_guards(store: Store, *keys: str) -> Guards:
    """Read guards, before anything that is decided by them."""
    found = [(key, await store.get(key)) for key in keys]
    return Guards([(key, entry.revision if entry else ABSENT) for key, entry in found])


def refuse_new_claims(before: Resource, after: Resource) -> None:
    """Raise IllegalStep if a step would claim anything: steps let go, and only who puts guards takes."""
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return
    for name in _CLAIMED:
        new = getattr(after.status, name)
        if new is not None and new != getattr(before.status, name):
            raise IllegalStep(f"{before.metadata.name}: no step gives a session its {name}; the scheduler schedules it")


def refuse_overrun(before: Resource, after: Resource) -> None:
    """Raise IllegalStep if a step would let a session run longer than it has its worker for."""
    if not isinstance(before, LabletSession) or not isinstance(after, LabletSession):
        return
    end, claim = after.status.ends_at, after.status.claim
    begins = after.status.phase is SessionPhase.RUNNING is not before.status.phase
    if end is None or claim is None or not (begins or end != before.status.ends_at):
        return  # what runs too long already must be able to end
    latest = claim.end - CLEAN_UP
    if end > latest:
        told = f"it would end at {end:%Y-%m-%d %H:%M:%SZ}, and its worker is claimed for it"
        raise IllegalStep(f"{before.metadata.name}: {told} until {latest:%Y-%m-%d %H:%M:%SZ} at the latest")
