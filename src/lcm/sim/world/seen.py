"""The store as the witness sees it: every object as it is now, and what stands where, kept up with each commit.

It is made of commits alone and shares nothing with the code that is under test but the form of documents.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from lcm.control.records import CODEC, located
from lcm.model.kinds import Resource
from lcm.model.pool import LabWorkerPool
from lcm.model.session import SESSION, LabletSession
from lcm.model.worker import LabWorker
from lcm.store.base import Change

R = TypeVar("R", bound=Resource)


@dataclass(frozen=True, slots=True)
class Turn(Generic[R]):
    """What one commit did to one object, when, and on which of our hosts; None is somebody from outside."""

    at: datetime
    host: str | None
    before: R | None
    after: R | None

    @property
    def now(self) -> R:
        """The object, as it is or as it last was."""
        found = self.after or self.before
        assert found is not None, "a commit changes what is there or will be"
        return found


@dataclass
class Seen:
    """Every object, and indexes of those that checks ask about."""

    objects: dict[str, Resource] = field(default_factory=dict)
    """By key."""
    sessions: dict[str, LabletSession] = field(default_factory=dict)
    """By uid; also those that have ended."""
    workers: dict[str, LabWorker] = field(default_factory=dict)
    """By uid, while there is a record."""
    on_worker: defaultdict[str, dict[str, LabletSession]] = field(default_factory=lambda: defaultdict(dict))
    """Live sessions by the uid of their worker, then by theirs."""
    in_pool: defaultdict[str, dict[str, LabletSession]] = field(default_factory=lambda: defaultdict(dict))
    """Live sessions that were promised a seat, by pool, then by uid."""

    def take(self, change: Change, at: datetime, host: str | None) -> Turn[Resource] | None:
        """Learn of a change; None if it is not of an object."""
        ref = located(change.key)
        if ref is None:
            return None
        before = self.objects.get(change.key)
        after = None if change.entry is None else CODEC.decode(change.entry.value, ref.kind)
        if before is None and after is None:
            return None
        self._keep(change.key, after)
        turn = Turn(at, host, before, after)
        if isinstance(turn.now, LabletSession):
            self._place(_session(before), _session(after))
        elif isinstance(turn.now, LabWorker):
            self._keep_worker(turn.now, after)
        return turn

    @property
    def pools(self) -> Mapping[str, LabWorkerPool]:
        """Pools by name."""
        every = (one for one in self.objects.values() if isinstance(one, LabWorkerPool))
        return {one.metadata.name: one for one in every}

    def live(self) -> Iterator[LabletSession]:
        """Give the sessions that have not ended."""
        return (one for one in self.sessions.values() if is_live(one))

    def _keep(self, key: str, after: Resource | None) -> None:
        if after is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = after

    def _keep_worker(self, worker: LabWorker, after: Resource | None) -> None:
        if after is None:
            self.workers.pop(worker.metadata.uid, None)
        else:
            self.workers[worker.metadata.uid] = worker

    def _place(self, before: LabletSession | None, after: LabletSession | None) -> None:
        if before is not None:
            uid = before.metadata.uid
            self.on_worker[before.status.worker_id or ""].pop(uid, None)
            self.in_pool[before.status.seat.pool if before.status.seat else ""].pop(uid, None)
        if after is not None:
            uid = after.metadata.uid
            self.sessions[uid] = after
            if is_live(after):
                self.on_worker[after.status.worker_id or ""][uid] = after
                self.in_pool[after.status.seat.pool if after.status.seat else ""][uid] = after


def _session(found: Resource | None) -> LabletSession | None:
    return found if isinstance(found, LabletSession) else None


def is_live(session: LabletSession) -> bool:
    """Tell whether a session has not ended."""
    return session.status.phase not in SESSION.final
