"""From a document to an edit that may be committed: references found, admission passed, quota asked.

One way in for creates, changes and applies. Used by `local` and `applying`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from lcm.control.admit import admitted, held
from lcm.control.amend import amended, repeats
from lcm.control.archive import latest
from lcm.control.deletion import marked, present
from lcm.control.learning import review_by
from lcm.control.ledger import Edit, Ledger
from lcm.control.library import Library
from lcm.control.plane import R, ref_of
from lcm.control.records import Record
from lcm.control.references import Found, Sought, Target, lingers, refuse_marked, sought
from lcm.control.sealing import UNSEALED, Sealing
from lcm.control.topologies import completed
from lcm.control.uniqueness import refuse_taken
from lcm.model.definition import LabletDefinition
from lcm.model.identity import Caller, sees
from lcm.model.kinds import Resource
from lcm.model.learning import reviewed
from lcm.store.base import Op

Quota = Callable[[Caller, Sequence[Resource]], Awaitable[Sequence[Op]]]
"""Asked about objects that are to be made in one commit: raises Refused, or gives operations that join the commit, so
that two commits which would pass it only together touch a common key."""


async def unlimited(_: Caller, __: Sequence[Resource]) -> Sequence[Op]:
    """Refuse nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class Draft(Generic[R]):
    """A change that was admitted, and what it refers to, which must stay as it was seen until the commit."""

    edit: Edit[R]
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Drafts:
    """Admits what one caller writes."""

    ledger: Ledger
    ids: Callable[[], str]
    sealing: Sealing = UNSEALED
    library: Library = field(default_factory=Library)

    async def new(self, resource: R, *, found: Found | None = None) -> Draft[R]:
        """Admit a new object; `found` gives what its names may mean, else the store does.

        Whoever gives that has seen to it as well that the object is the only one of its kind where it must be.
        """
        resource = self.sealing.kept(None, resource)
        wanted = sought(resource)
        target = held(resource, wanted, await self._among(wanted, found))
        resource = await self._completed(resource)
        made = admitted(
            resource,
            caller=self.ledger.caller,
            author=self.ledger.author,
            now=self.ledger.clock.now(),
            uid=self.ids(),
            target=target,
        )
        if found is None:
            await refuse_taken(self.ledger.store, made)
        return Draft(Edit(None, made), target)

    async def changed(self, record: Record[R], wanted: R, *, found: Found | None = None) -> Draft[R] | None:
        """Admit a change; None means that nothing differs."""
        wanted = self.sealing.kept(record.resource, wanted)
        after = amended(record.resource, wanted, caller=self.ledger.caller)
        if lingers(record.resource, self.ledger.clock.now()):
            after = marked(after, None)
        else:
            refuse_marked(record.resource)
        if after is record.resource:
            return None
        after = await self._reviewed(after)
        refers = sought(after)
        anew = refers if refers != sought(record.resource) else None
        return Draft(Edit(record, after), held(after, anew, await self._among(anew, found)))

    async def done(self, resource: R) -> Record[R] | None:
        """Find what a document asks for in the archive: who applies a file once more wants nothing done again."""
        record, caller = await latest(self.ledger.store, ref_of(resource)), self.ledger.caller
        if record is None or not sees(caller, record.resource):
            return None
        return record if repeats(record.resource, resource, caller=caller) else None

    async def _completed(self, resource: R) -> R:
        """Fill in what a definition leaves to its topology, where files can be read."""
        if self.library.artifacts is None or not isinstance(resource, LabletDefinition):
            return resource
        made = await completed(self.library.artifacts, resource)
        assert isinstance(made, type(resource))
        return made

    async def _reviewed(self, resource: R) -> R:
        """Say of a definition that declares other needs whether those are to be looked at."""
        if not isinstance(resource, LabletDefinition):
            return resource
        made = reviewed(resource, await review_by(self.ledger.store, self.library.review))
        assert isinstance(made, type(resource))
        return made

    async def _among(self, wanted: Sought | None, found: Found | None) -> Sequence[Target]:
        if wanted is None:
            return ()
        return await (found(wanted) if found else present(self.ledger, wanted))
