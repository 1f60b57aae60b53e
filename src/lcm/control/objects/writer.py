"""Every write ends here: `Writer` commits what a caller does, `commit_ops` the records that are nobody's action.

`control.plane.local` makes a `Writer` for each caller and hands it to the parts of the plane that need the store. An
`Edit` is one object's change: its store operations, its events and its entry in the audit.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from lcm.control.access.audit import LOCAL_ORIGIN, AuditedAction, Origin, author_of, make_record
from lcm.control.delivery import events
from lcm.control.objects.archive import Dependents, find_archived, find_dependents, is_archived, is_dependent_key
from lcm.control.objects.records import (
    POOLS_CHANGED,
    Record,
    change_ops,
    creation_ops,
    deletion_ops,
    explain_conflict,
    find_record,
    hide_secret_parts,
    removal_ops,
    with_revision,
)
from lcm.control.plane.protocol import R, Ref
from lcm.control.telemetry.state_alerts import follow_state
from lcm.model.access.identity import PERMISSIONS, SERVICE, Caller, Role, Verb
from lcm.model.access.learner import can_manage, can_see
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Forbidden, Gone, IllegalStep, StoreFull, Taken
from lcm.model.base.event import Event, encode_event
from lcm.store.base import Fence, Op, Store, check_commit
from lcm.system.clock import new_id

T = TypeVar("T")
ATTEMPTS: Final = 32
"""How often a write without a precondition is tried; each failure means that another write succeeded."""


@dataclass(frozen=True, slots=True)
class Edit(Generic[R]):
    """One object before and after a change. With `removed`, `after` is its last state."""

    before: Record[R] | None
    after: R
    removed: bool = False
    origin: str = events.CREATED
    quiet: bool = False
    """The change causes no events."""
    verb: str = ""
    """The verb for the audit, where it is more specific than create, update or delete."""

    def ops(self) -> Sequence[Op]:
        """Return the store operations of the change."""
        if self.before is None:
            return creation_ops(self.after)
        if self.removed:
            return *removal_ops(self.before), *deletion_ops(self.after)
        return change_ops(self.before, self.after)

    def audited_action(self) -> AuditedAction:
        """Return what the audit records of the change."""
        usual = "create" if self.before is None else "delete" if self.removed else "update"
        metadata = self.after.metadata
        return AuditedAction(
            verb=self.verb or usual, kind=self.after.kind, name=metadata.name, namespace=metadata.namespace
        )

    def events(self, now: datetime) -> Sequence[Event]:
        """Return the events that the change causes."""
        before = self.before.resource if self.before else None
        if self.quiet:
            return ()
        return events.derive_events(before, self.after, now=now, removed=self.removed, origin=self.origin)


@dataclass(frozen=True, slots=True)
class Writer:
    """The store as one caller may use it, under at most one fence. Every write goes through `submit`."""

    store: Store
    clock: Clock
    caller: Caller
    fence: Fence | None = None
    origin: Origin = LOCAL_ORIGIN
    record_ids: Callable[[], str] = new_id
    record_commit: Callable[[StoreFull | None], object] = lambda _: None
    """Called with the outcome of each commit, as far as it tells whether the store takes writes."""
    author: str = field(init=False)
    """The name by which an object's history mentions the caller."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "author", author_of(self.caller))

    def require_permission(self, verb: Verb, kind: type[R]) -> None:
        """Raise Forbidden unless the caller's role may do this with objects of this kind."""
        if self.caller.role not in PERMISSIONS[kind.__name__][verb]:
            raise Forbidden(f"a caller of role {self.caller.role} may not {verb} {kind.__name__} objects")

    def require_service(self, what: str) -> None:
        """Raise Forbidden unless the caller is one of our own processes."""
        self.require_role(SERVICE, what)

    def require_role(self, roles: Collection[Role], what: str) -> None:
        """Raise Forbidden unless the caller's role is one of these."""
        if self.caller.role not in roles:
            raise Forbidden(f"a caller of role {self.caller.role} may not {what}")

    def require_managed(self, resource: R, verb: str) -> None:
        """Raise Forbidden if the caller sees an object as its learner only, and learners may not do this with it."""
        if not can_manage(self.caller, resource, verb):
            raise Forbidden(f"{resource.metadata.name} is another's to change: you may use it, not {verb} it")

    async def find(self, ref: Ref[R]) -> Record[R] | None:
        """Read a live object; None means that there is none for this caller."""
        record = await find_record(self.store, ref)
        return record if record is not None and can_see(self.caller, record.resource) else None

    async def require(self, ref: Ref[R], *, at: int | None = None) -> Record[R]:
        """Read an object that is to be changed. Raise Gone when it is missing, IllegalStep when it is archived.

        Raise Conflict when it is not at the revision `at`, if one is given.
        """
        record = await self.find_anywhere(ref)
        if record is None:
            raise missing_error(ref)
        if is_archived(record):
            told = f"{ref.kind.__name__} {ref.name} in namespace {ref.namespace} has ended and is in the archive"
            raise IllegalStep(f"{told}: it can be read and deleted, not changed")
        if at is not None and record.revision != at:
            raise Conflict(record.key, wanted=at, found=record.revision)
        return record

    async def find_anywhere(self, ref: Ref[R]) -> Record[R] | None:
        """Read an object, also from the archive; None means that there is none for this caller."""
        record = await find_record(self.store, ref) or await find_archived(self.store, ref)
        return record if record is not None and can_see(self.caller, record.resource) else None

    async def read(self, ref: Ref[R]) -> R:
        """Read an object, also from the archive. Raise Gone when there is none for this caller."""
        record = await self.find_anywhere(ref)
        if record is None:
            raise missing_error(ref)
        return record.resource

    async def write(self, edit: Edit[R], *ops: Op, told: Sequence[Event] = (), reported: bool = False) -> R:
        """Commit one object's change, and return the object with its new revision."""
        revision = await self.commit_edits(edit, ops=ops, told=told, reported=reported)
        return hide_secret_parts(with_revision(edit.after, revision))

    def rehearse(self, edit: Edit[R], *ops: Op) -> R:
        """Check one object's change against the limits of a commit, without committing. Raise TooLarge or Invalid."""
        self._require_managed([edit])
        events = [encode_event(event) for event in edit.events(self.clock.now())]
        check_commit(self._with_audit_record([*edit.ops(), *ops], [edit.audited_action()]), events, self.fence)
        return hide_secret_parts(edit.after)

    async def commit_edits(
        self, *edits: Edit[R], ops: Sequence[Op] = (), told: Sequence[Event] = (), reported: bool = False
    ) -> int:
        """Commit changes with the events they cause; return the revision. Reported changes are not audited."""
        self._require_managed(edits)
        now = self.clock.now()
        mine = ops_of(edits)
        means = [event for edit in edits for event in edit.events(now)]
        deeds = [] if reported else [edit.audited_action() for edit in edits]
        asked = {op.key for op in ops}

        async def attempt() -> int:
            following = [await self._follow(edit, now) for edit in edits]
            freed = [op for one in following for op in one.ops]
            every = [*told, *(event for one in following for event in one.events), *means]
            return await self.submit([*mine, *freed, *ops], [encode_event(event) for event in every], deeds=deeds)

        # A concurrent change of the dependents is retried here, unless the caller asked about them.
        return await retry_conflicts(
            attempt, unless=lambda error: error.key in asked or not is_dependent_key(error.key)
        )

    def _require_managed(self, edits: Sequence[Edit[R]]) -> None:
        for edit in edits:
            if edit.before is not None:
                self.require_managed(edit.before.resource, edit.audited_action().verb)

    async def _follow(self, edit: Edit[R], now: datetime) -> Dependents:
        """Return what changes with an object: all that hangs on one that is removed, else the alerts of its state."""
        if edit.removed:
            return await find_dependents(self.store, edit.after, now)
        return Dependents(
            *await follow_state(self.store, edit.before.resource if edit.before else None, edit.after, now)
        )

    async def submit(
        self, ops: Sequence[Op], events: Sequence[bytes] = (), *, deeds: Sequence[AuditedAction], detail: str = ""
    ) -> int:
        """Commit operations under the fence, with an audit record of what the caller did."""
        if self.fence is not None:
            self.require_service("write under a lease")
        every = self._with_audit_record(ops, deeds, detail)
        try:
            revision = await commit_ops(self.store, *every, events=events, fence=self.fence)
        except StoreFull as error:
            self.record_commit(error)
            raise
        self.record_commit(None)
        return revision

    def _with_audit_record(self, ops: Sequence[Op], deeds: Sequence[AuditedAction], detail: str = "") -> Sequence[Op]:
        if not deeds:
            return ops
        at, name, epoch = self.clock.now(), self.record_ids(), self.store.epoch
        return [*ops, make_record(self.caller, self.origin, deeds, at=at, name=name, epoch=epoch, detail=detail)]


def ops_of(edits: Iterable[Edit[R]]) -> Sequence[Op]:
    """Return the store operations of several changes.

    All pools and templates of a namespace share one change marker; it is written once.
    """
    made = list[Op]()
    for op in (one for edit in edits for one in edit.ops()):
        if not (op.key.startswith(POOLS_CHANGED) and op in made):
            made.append(op)
    return made


async def commit_ops(store: Store, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
    """Commit operations; return the revision. Raise Invalid for a unique key that another object took first.

    Called directly for records that are nobody's action, which no audit mentions.
    """
    try:
        return await store.commit(*ops, events=events, fence=fence)
    except Conflict as error:
        if refused := explain_conflict(error):
            raise refused from error
        raise


def name_taken_error(ref: Ref[R]) -> Taken:
    """Return the error for a name that is taken. It discloses nothing about the object of that name."""
    return Taken(f"{ref.kind.__name__} {ref.name} in namespace {ref.namespace}: the name is taken")


def missing_error(ref: Ref[R]) -> Gone:
    """Return the error for an object that is not there; the same for one that the caller may not see."""
    return Gone(f"there is no {ref.kind.__name__} {ref.name} in namespace {ref.namespace}")


async def retry_conflicts(
    attempt: Callable[[], Awaitable[T]],
    *,
    unless: Callable[[Conflict], bool],
    pause: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """Repeat an attempt while another write comes first, with a pause in between, if one is given.

    Raise the Conflict when `unless` says so, or after the last of ATTEMPTS.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except Conflict as error:
            if unless(error):
                raise
        if pause is not None:
            await pause()
    return await attempt()
