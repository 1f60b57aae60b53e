"""The store as the witness sees it: every object as it is now, and indexes, kept up with each commit.

It is made from commits alone and shares nothing with the code under test but the form of documents.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

import msgspec

from lcm.control.access.audit import AUDIT_PREFIX as AUDIT
from lcm.control.access.audit import AuditRecord
from lcm.control.accounts.licences import SEATS_PREFIX
from lcm.control.booking.quota import OwnerLimits
from lcm.control.objects.records import ALERTS, CODEC, ref_of_key
from lcm.control.telemetry.alert_records import Alerts
from lcm.model.base.event import Event
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.licences import LicenceSeat
from lcm.model.money.prices import declared_capacity
from lcm.model.telemetry.alert import Alert
from lcm.sim.cloud.effects import Effect
from lcm.store.base import EVENTS_KEY, LEASES_PREFIX, Change, Entry, Lease, unpack_events

R = TypeVar("R", bound=Resource)
ARCHIVE: Final = "archive/"
NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ObservedChange(Generic[R]):
    """What one commit did to one object, when, and on which of our hosts; None is somebody from outside."""

    at: datetime
    host: str | None
    before: R | None
    after: R | None

    @property
    def latest(self) -> R:
        """The object as it is, or as it last was."""
        found = self.after or self.before
        assert found is not None, "a commit changes what is there or will be"
        return found


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """An event with its position: the revision of its commit, and its number there."""

    revision: int
    number: int
    event: Event


@dataclass(slots=True)
class Commit:
    """One commit: who made it where, what it did to objects, and which events it published."""

    at: datetime
    host: str | None
    revision: int
    turns: list[ObservedChange[Resource]] = field(default_factory=list)
    told: list[PublishedEvent] = field(default_factory=list)
    audit: AuditRecord | None = None
    archived: bool = False
    """Whether something was moved into the archive."""


@dataclass(frozen=True, slots=True)
class ObservedEffect:
    """An effect on the outside, when, and by which of our hosts; None is somebody from outside."""

    at: datetime
    host: str | None
    effect: Effect


@dataclass
class ObservedState:
    """Every object, and indexes of those that checks ask about."""

    calm: bool = False
    """Whether nothing goes wrong in this world, so that there is no excuse for a late start."""
    undisturbed: bool = False
    """Whether nothing happens in this world but to our processes, so that no lab has to be started again."""
    objects: dict[str, Resource] = field(default_factory=dict)
    """By key."""
    limits: OwnerLimits = field(default_factory=OwnerLimits)
    """How much one owner may book."""
    passed_over: dict[str, datetime] = field(default_factory=dict)
    """By uid: when another session first got a place for which a session waits whose turn it was."""
    restored_at: datetime = NEVER
    """When the store was last put back to an earlier state."""
    forgotten: dict[str, LabletSession] = field(default_factory=dict)
    """By uid: sessions that lived when the store was put back to a state that does not know them."""
    restored_alerts: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    """The alerts that came back with a restore, by kind, name and alert: they were told before."""
    newer_facts: dict[str, tuple[int, frozenset[bytes], int]] = field(default_factory=dict)
    """By key: when an object was created, what a newer version wrote there, and the schema."""
    revisions: dict[str, int] = field(default_factory=dict)
    """By key: the revision of the last commit that changed it."""
    removed: dict[str, datetime] = field(default_factory=dict)
    """By uid: when an object was removed, by request or into the archive."""
    sessions: dict[str, LabletSession] = field(default_factory=dict)
    """By uid, as they are or last were; includes those that have ended."""
    workers: dict[str, LabWorker] = field(default_factory=dict)
    """By uid, while there is a record."""
    small: dict[str, None] = field(default_factory=dict)
    """The uids of workers that hold less than their spec says."""
    since: dict[tuple[str, ...], datetime] = field(default_factory=dict)
    """Since when something holds that may hold for a while only, as `duration_of` tracks it."""
    unseen_ports: dict[str, dict[int, datetime]] = field(default_factory=dict)
    """By the uid of a worker: ports in use there that no commit mentions, and since when."""
    reservations: dict[str, Reservation] = field(default_factory=dict)
    """By uid, while there is a record."""
    on_worker: defaultdict[str, dict[str, LabletSession]] = field(default_factory=lambda: defaultdict(dict))
    """Live sessions by the uid of their worker, then by theirs."""
    live: dict[str, LabletSession] = field(default_factory=dict)
    """The sessions that have not ended, by uid."""
    in_pool: defaultdict[str, dict[str, LabletSession]] = field(default_factory=lambda: defaultdict(dict))
    """Live sessions that were promised a seat, by pool, then by uid."""
    had_machine: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """The uids of all workers that ever had a machine, by its id, in order."""
    holders: dict[str, str] = field(default_factory=dict)
    """The present holder of each lease."""
    robbed: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """By lease and holder: when the store lost the lease; its holder can only learn of it afterwards."""
    seats: dict[str, LicenceSeat] = field(default_factory=dict)
    """The ledger of licences, by the worker's uid."""
    alerts: dict[str, Sequence[Alert]] = field(default_factory=dict)
    """Alerts that are raised now, by the key of their record."""
    warned: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """When each alert was last raised, by the uid of what it is about and its name."""
    changes: Counter[tuple[str, datetime]] = field(default_factory=Counter)
    """How often each object changed, by its uid and the hour."""
    events: list[PublishedEvent] = field(default_factory=list)
    """All published events, in order."""
    pool_uids: dict[str, str] = field(default_factory=dict)
    """By the uid of a worker, also of one that is gone: the uid of the pool that made it."""
    pool_stops: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """By the uid of a pool and a reason in a word: when it last stopped a worker for that reason."""
    given_up: dict[tuple[str, int], datetime] = field(default_factory=dict)
    """By the uid of a pool and the number of a planned worker: when the load last gave it up."""
    machines_lost: dict[tuple[str, int], None] = field(default_factory=dict)
    """Likewise: the planned workers that load keeps open, and whose machine was lost by no decision of the pool."""

    def apply_commit(self, revision: int, changes: Sequence[Change], at: datetime, host: str | None) -> Commit:
        """Apply a commit to all indexes, and return what it did."""
        commit = Commit(at, host, revision)
        for change in changes:
            if (turn := self._apply_object(change, at, host)) is not None:
                self.revisions[change.key] = revision
                commit.turns.append(turn)
            elif change.key.startswith(AUDIT):
                commit.audit = CODEC.decode(change.entry.value, AuditRecord) if change.entry else None
            elif change.key.startswith(ARCHIVE):
                commit.archived = True
            else:
                self._apply_other(change, commit)
        for turn in commit.turns:
            self.changes[turn.latest.metadata.uid, at.replace(minute=0, second=0, microsecond=0)] += 1
            if turn.after is None:
                self.removed[turn.latest.metadata.uid] = at
        return commit

    def restore(self, entries: Sequence[Entry], taken_at: datetime, at: datetime) -> None:
        """Begin anew with the entries of an earlier state; what is known of the outside stays known."""
        lived = {uid: one for uid, one in self.sessions.items() if not self.is_over(one)}
        fresh = ObservedState(self.calm, self.undisturbed, limits=self.limits, restored_at=at)
        fresh.had_machine, fresh.warned, fresh.changes = self.had_machine, self.warned, self.changes
        fresh.pool_uids = self.pool_uids
        fresh.removed = {uid: gone_at for uid, gone_at in self.removed.items() if gone_at <= taken_at}
        fresh.sessions = {uid: one for uid, one in self.sessions.items() if uid in fresh.removed}
        fresh.apply_commit(0, [Change(one.key, one) for one in entries], at, None)
        fresh.revisions = {one.key: one.revision for one in entries if one.key in fresh.objects}
        fresh.forgotten = {uid: one for uid, one in (self.forgotten | lived).items() if uid not in fresh.sessions}
        standing = [alert for board in fresh.alerts.values() for alert in board]
        fresh.restored_alerts = {(one.kind, one.name, one.alert): True for one in standing}
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))

    @property
    def pools(self) -> Mapping[str, LabWorkerPool]:
        """Pools by name."""
        every = (one for one in self.objects.values() if isinstance(one, LabWorkerPool))
        return {one.metadata.name: one for one in every}

    def pool(self, name: str, namespace: str) -> tuple[LabWorkerPool, WorkerTemplate] | None:
        """Return a pool with its template; None unless both exist."""
        pool = self.objects.get(f"worker-pools/{namespace}/{name}")
        if not isinstance(pool, LabWorkerPool):
            return None
        template = self.objects.get(f"worker-templates/{namespace}/{pool.spec.template}")
        return (pool, template) if isinstance(template, WorkerTemplate) else None

    def live_sessions(self) -> Iterator[LabletSession]:
        """Yield the sessions that have not ended."""
        return iter(self.live.values())

    def is_over(self, session: LabletSession) -> bool:
        """Return whether a session has ended, or was removed."""
        return not is_live(session) or session.metadata.uid in self.removed

    def was_put_back(self, session: LabletSession) -> bool:
        """Return whether a session is older than the last restore, so that it may have gone on before it."""
        return session.metadata.created_at is not None and session.metadata.created_at <= self.restored_at

    def duration_of(self, what: tuple[str, ...], now: datetime, *, is_so: bool) -> timedelta:
        """Return for how long something has been so, as far as somebody has looked; zero if it is not so."""
        if not is_so:
            self.since.pop(what, None)
        return now - self.since.setdefault(what, now) if is_so else timedelta(0)

    def worker_with(self, instance_id: str) -> LabWorker | None:
        """Return the worker that has a machine now; None if there is none."""
        found = (self.workers.get(uid) for uid in self.had_machine.get(instance_id, ()))
        return next((one for one in found if one and one.status.ec2.instance_id == instance_id), None)

    def _apply_object(self, change: Change, at: datetime, host: str | None) -> ObservedChange[Resource] | None:
        ref = ref_of_key(change.key)
        if ref is None:
            return None
        before = self.objects.get(change.key)
        after = None if change.entry is None else CODEC.decode(change.entry.value, ref.kind)
        if before is None and after is None:
            return None
        self._store_object(change.key, after)
        turn = ObservedChange(at, host, before, after)
        match turn.latest:
            case LabletSession():
                self._index_session(_as_session(before), _as_session(after))
            case LabWorker() as worker:
                self._store_worker(worker, after)
                self._check_size(worker, after)
            case Reservation() as reservation if after is not None:
                self.reservations[reservation.metadata.uid] = reservation
            case Reservation() as reservation:
                self.reservations.pop(reservation.metadata.uid, None)
        return turn

    def _apply_other(self, change: Change, commit: Commit) -> None:
        key, value = change.key, change.entry.value if change.entry else None
        if key == EVENTS_KEY:
            self._apply_events(value or b"", commit)
        elif key.startswith(LEASES_PREFIX):
            self._apply_lease(key.removeprefix(LEASES_PREFIX), value)
        elif key.startswith(ALERTS):
            standing = CODEC.decode(value, Alerts).standing if value else ()
            self.alerts[key] = [one.alert for one in standing]
        elif key.startswith(SEATS_PREFIX):
            self.seats.pop(key.removeprefix(SEATS_PREFIX), None)
            if value:
                self.seats[key.removeprefix(SEATS_PREFIX)] = CODEC.decode(value, LicenceSeat)

    def _apply_events(self, value: bytes, commit: Commit) -> None:
        for number, raw in enumerate(unpack_events(value)):
            event = msgspec.json.decode(raw, type=Event)
            commit.told.append(PublishedEvent(commit.revision, number, event))
            if event.type == "alert.raised":
                alert = msgspec.json.decode(event.data, type=_RaisedAlert)
                self.warned[alert.uid, alert.alert] = commit.at
        self.events += commit.told

    def _apply_lease(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.holders.pop(name, None)
        else:
            self.holders[name] = msgspec.json.decode(value, type=Lease).holder

    def _store_object(self, key: str, after: Resource | None) -> None:
        if after is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = after

    def _store_worker(self, worker: LabWorker, after: Resource | None) -> None:
        uid = worker.metadata.uid
        if after is None:
            self.workers.pop(uid, None)
        else:
            self.workers[uid] = worker
            if worker.metadata.owner is not None:
                self.pool_uids[uid] = worker.metadata.owner.uid
            if worker.status.ec2.instance_id:
                self.had_machine[worker.status.ec2.instance_id][uid] = None

    def _check_size(self, worker: LabWorker, after: Resource | None) -> None:
        has, said = worker.status.capacity, declared_capacity(worker.spec)
        if after is None or has is None or said is None or said.within(has):
            self.small.pop(worker.metadata.uid, None)
        else:
            self.small[worker.metadata.uid] = None

    def _index_session(self, before: LabletSession | None, after: LabletSession | None) -> None:
        if before is not None:
            uid = before.metadata.uid
            self.on_worker[before.status.worker_id or ""].pop(uid, None)
            self.in_pool[before.status.seat.pool if before.status.seat else ""].pop(uid, None)
        if before is not None and (after is None or not is_live(after) or after.metadata.uid != before.metadata.uid):
            self.live.pop(before.metadata.uid, None)
        if after is not None:
            uid = after.metadata.uid
            self.sessions[uid] = after
            if is_live(after):
                self.live[uid] = after
                self.on_worker[after.status.worker_id or ""][uid] = after
                self.in_pool[after.status.seat.pool if after.status.seat else ""][uid] = after


class _RaisedAlert(msgspec.Struct):
    uid: str
    alert: str


def _as_session(found: Resource | None) -> LabletSession | None:
    return found if isinstance(found, LabletSession) else None


def is_live(session: LabletSession) -> bool:
    """Return whether a session has not ended."""
    return session.status.phase not in SESSION_MACHINE.final
