"""Objects as one caller reads and writes them. Every write of the plane goes through `Ledger.submit`.

Made by `local` for each caller; the parts of the plane that need the store are handed one.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Generic, TypeVar

from lcm.control.access.audit import NOWHERE, Deed, Origin, Pen, author_of
from lcm.control.delivery import events
from lcm.control.objects.records import Record, at_revision, change, creation, find, removal, why_taken
from lcm.control.plane.protocol import R, Ref
from lcm.control.upkeep.archive import hanging, hangs, is_archived, recalled
from lcm.model.access.identity import PERMITTED, SERVICE, Caller, Role, Verb, sees
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Forbidden, Gone, IllegalStep, Taken
from lcm.model.base.event import Event, encode
from lcm.store.base import Fence, Op, Store, check_commit
from lcm.system.clock import new_id

T = TypeVar("T")
ATTEMPTS: Final = 32
"""How often a write without a precondition is tried while others are faster; each time one of them has succeeded."""


@dataclass(frozen=True, slots=True)
class Edit(Generic[R]):
    """One object before and after a change; `removed`: `after` is the last that is seen of it."""

    before: Record[R] | None
    after: R
    removed: bool = False
    origin: str = events.CREATED
    quiet: bool = False
    """It means nothing to the outside."""
    verb: str = ""
    """What the audit calls it, where that is more than making, changing or removing."""

    def ops(self) -> Sequence[Op]:
        """Say what the store must do."""
        if self.before is None:
            return creation(self.after)
        return removal(self.before) if self.removed else change(self.before, self.after)

    def deed(self) -> Deed:
        """Say what the audit is to know of it."""
        usual = "create" if self.before is None else "delete" if self.removed else "update"
        metadata = self.after.metadata
        return Deed(verb=self.verb or usual, kind=self.after.kind, name=metadata.name, namespace=metadata.namespace)

    def events(self, now: datetime) -> Sequence[Event]:
        """Say what it means to the outside."""
        before = self.before.resource if self.before else None
        if self.quiet:
            return ()
        return events.derive(before, self.after, now=now, removed=self.removed, origin=self.origin)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The store as one caller may use it, under at most one fence."""

    store: Store
    clock: Clock
    caller: Caller
    fence: Fence | None = None
    origin: Origin = NOWHERE
    record_ids: Callable[[], str] = new_id
    author: str = field(init=False)
    """Under which name the caller stands in an object's story."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "author", author_of(self.caller))

    def allow(self, verb: Verb, kind: type[R]) -> None:
        """Raise Forbidden unless the caller's role may do this with this kind."""
        if self.caller.role not in PERMITTED[kind.__name__][verb]:
            raise Forbidden(f"a caller of role {self.caller.role} may not {verb} {kind.__name__} objects")

    def served(self, what: str) -> None:
        """Raise Forbidden unless the caller is one of our own processes."""
        self.among(SERVICE, what)

    def among(self, roles: Collection[Role], what: str) -> None:
        """Raise Forbidden unless the caller's role is one of these."""
        if self.caller.role not in roles:
            raise Forbidden(f"a caller of role {self.caller.role} may not {what}")

    async def find(self, ref: Ref[R]) -> Record[R] | None:
        """Read an object; None means that there is none for this caller."""
        record = await find(self.store, ref)
        return record if record is not None and sees(self.caller, record.resource) else None

    async def need(self, ref: Ref[R]) -> Record[R]:
        """Read an object that must be there, for it is to be changed; what is archived is not."""
        record = await self.recall(ref)
        if record is None:
            raise missing(ref)
        if is_archived(record):
            told = f"{ref.kind.__name__} {ref.name} in namespace {ref.namespace} has ended and is in the archive"
            raise IllegalStep(f"{told}: it can be read and deleted, not changed")
        return record

    async def recall(self, ref: Ref[R]) -> Record[R] | None:
        """Read an object, also from the archive; None means that there is none for this caller."""
        record = await find(self.store, ref) or await recalled(self.store, ref)
        return record if record is not None and sees(self.caller, record.resource) else None

    async def read(self, ref: Ref[R]) -> R:
        """Read an object that must be there, or in the archive."""
        record = await self.recall(ref)
        if record is None:
            raise missing(ref)
        return record.resource

    async def write(self, edit: Edit[R], *ops: Op, told: Sequence[Event] = (), reported: bool = False) -> R:
        """Commit one object's change, and return it as it is then."""
        revision = await self.commit(edit, ops=ops, told=told, reported=reported)
        return at_revision(edit.after, revision)

    def rehearse(self, edit: Edit[R], *ops: Op) -> R:
        """Hold one object's change against the limits of a commit, which is not made; raises TooLarge or Invalid."""
        events = [encode(event) for event in edit.events(self.clock.now())]
        check_commit(self._noted([*edit.ops(), *ops], [edit.deed()]), events, self.fence)
        return edit.after

    async def commit(
        self, *edits: Edit[R], ops: Sequence[Op] = (), told: Sequence[Event] = (), reported: bool = False
    ) -> int:
        """Commit changes with the events they cause; return the revision. What is merely reported is nobody's deed."""
        now = self.clock.now()
        mine = [op for edit in edits for op in edit.ops()]
        means = [event for edit in edits for event in edit.events(now)]
        deeds = [] if reported else [edit.deed() for edit in edits]
        ending = [edit.after for edit in edits if edit.removed]

        async def attempt() -> int:
            gone = [await hanging(self.store, one, now) for one in ending]
            freed = [op for one in gone for op in one.ops]
            every = [*told, *(event for one in gone for event in one.told), *means]
            return await self.submit([*mine, *freed, *ops], [encode(event) for event in every], deeds=deeds)

        # What hangs on an object that goes is nobody's business but ours: whoever changed that meanwhile is not told.
        return await persistently(attempt, unless=lambda error: not ending or not hangs(error.key))

    async def submit(self, ops: Sequence[Op], events: Sequence[bytes] = (), *, deeds: Sequence[Deed]) -> int:
        """Write, under the fence, what the caller did to what, and who that was. Every write of the plane ends here."""
        if self.fence is not None:
            self.served("write under a lease")
        try:
            return await self.store.commit(*self._noted(ops, deeds), events=events, fence=self.fence)
        except Conflict as error:
            if refused := await why_taken(self.store, error):
                raise refused from error
            raise

    def _noted(self, ops: Sequence[Op], deeds: Sequence[Deed]) -> Sequence[Op]:
        if not deeds:
            return ops
        return [*ops, Pen(self.store, self.clock, self.record_ids).note(self.caller, self.origin, *deeds)]


def taken(ref: Ref[R]) -> Taken:
    """Say that a name is somebody else's, and nothing more about what it is the name of."""
    return Taken(f"{ref.kind.__name__} {ref.name} in namespace {ref.namespace}: the name is taken")


def missing(ref: Ref[R]) -> Gone:
    """Say that an object is not there; the same for what the caller may not see."""
    return Gone(f"there is no {ref.kind.__name__} {ref.name} in namespace {ref.namespace}")


async def persistently(
    attempt: Callable[[], Awaitable[T]],
    *,
    unless: Callable[[Conflict], bool],
    pause: Callable[[], Awaitable[object]] | None = None,
) -> T:
    """Try again when somebody else was faster, unless the caller asked to be told of that; after a pause, if any."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except Conflict as error:
            if unless(error):
                raise
        if pause is not None:
            await pause()
    return await attempt()
