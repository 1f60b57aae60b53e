"""Admission of new objects: what their author left out is filled in, what nobody may write is made here.

Pure: what an object refers to is handed in. Called by `drafts`.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic

import msgspec

from lcm.control.access.sealing import UNSEALED, Sealing
from lcm.control.admission.amend import amended, repeats
from lcm.control.admission.references import Found, Sought, Target, choose, lingers, refuse_marked, sought
from lcm.control.admission.topologies import completed
from lcm.control.objects.deletion import marked, present
from lcm.control.objects.records import Record, kind_of, refuse_taken
from lcm.control.objects.steps import TEARDOWN
from lcm.control.objects.writer import Edit, Ledger
from lcm.control.plane.protocol import R, ref_of
from lcm.control.telemetry.observations import Library, review_by
from lcm.control.upkeep.archive import latest
from lcm.model.access.identity import SEES_ALL, SERVICE, Caller, Subject, sees
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid
from lcm.model.base.quantity import Quantity, parse_limits
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.definition import LabletDefinition, amount
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, occurrences
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.validate import check
from lcm.model.kinds.worker import LabType
from lcm.model.telemetry.learning import reviewed
from lcm.store.base import Op

PATIENCE: Final = timedelta(hours=4)
"""How long a session without a slot waits, unless it says so itself."""

_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MINUTE: Final = timedelta(minutes=1)


def admitted(
    resource: R, *, caller: Caller, author: str, now: datetime, uid: str, target: Target | None, reason: str = "created"
) -> R:
    """Make the object that is stored of a document that was `held`; raises Invalid with every fault, or Forbidden."""
    kind: Any = type(resource)
    made: R = kind(metadata=_metadata(resource, caller, now, uid), spec=resource.spec)
    if isinstance(made, LabletSession | Reservation):
        assert isinstance(target, LabletDefinition), "a booking is admitted with its definition"
        made = _booked(made, target, caller, now)
    return _begun(made, author, now, reason)


def held(resource: Resource, wanted: Sought | None, found: Sequence[Target]) -> Target | None:
    """Hold a document against its kind's rules, and find what it refers to; raises Invalid with every fault."""
    faults: list[Fault] = []
    target: Target | None = None
    try:
        check(resource)
    except Invalid as error:
        faults += error.faults
    try:
        target = choose(wanted, found) if wanted else None
    except Invalid as error:
        faults += error.faults
    except Conflict:
        if not faults:
            raise
    if faults:
        raise Invalid(*faults)
    return target


def looks_like_a_uid(name: str) -> bool:
    """Tell whether a name could be taken for a uid, by which objects can be asked for too."""
    return _UID.fullmatch(name) is not None


def _metadata(resource: R, caller: Caller, now: datetime, uid: str) -> Metadata:
    theirs = resource.metadata
    if looks_like_a_uid(theirs.name):
        raise Invalid(Fault("metadata.name", "looks like a uid", "use a name that nothing else can be meant by"))
    return Metadata(
        name=theirs.name,
        namespace=theirs.namespace,
        labels=theirs.labels,
        annotations=theirs.annotations,
        uid=uid,
        generation=1,
        created_at=now,
        finalizers=(TEARDOWN,) if kind_of(resource).machine else (),
        owner=theirs.owner if caller.role in SERVICE else None,
    )


def _begun(resource: R, author: str, now: datetime, reason: str) -> R:
    machine = kind_of(resource).machine
    if machine is None:
        return resource
    line = PhaseChange(phase=machine.initial, at=now, by=author, reason=reason)
    status = msgspec.structs.replace(resource.status, history=(line,))
    return msgspec.structs.replace(resource, status=status)


def _booked(booking: Any, definition: LabletDefinition, caller: Caller, now: datetime) -> Any:  # noqa: ANN401 - either kind of booking, and the same one back
    spec = booking.spec
    _permit(spec.owner, spec.priority, caller)
    changes: dict[str, Any] = {
        "definition": definition.metadata.name,
        "owner": spec.owner or caller.name,
        "lab_track": spec.lab_track or definition.spec.lab_track,
    }
    if isinstance(booking, LabletSession):
        changes |= _session_terms(booking, definition, now)
    filled = msgspec.structs.replace(booking, spec=msgspec.structs.replace(spec, **changes))
    faults = [*_owner_faults(filled), *_time_faults(filled, definition, now), *_type_faults(booking, definition)]
    if faults := [*faults, *_need_faults(booking, definition, caller)]:
        raise Invalid(*faults)
    return msgspec.structs.replace(filled, status=msgspec.structs.replace(filled.status, **_terms(filled)))


def _permit(owner: str, priority: int, caller: Caller) -> None:
    if caller.role in SEES_ALL:
        return
    if owner not in ("", caller.name):
        raise Forbidden(f"{caller.name} may not book for {owner}")
    if priority > 0:
        raise Forbidden("only staff may give a priority above 0")


def _session_terms(session: LabletSession, definition: LabletDefinition, now: datetime) -> dict[str, Any]:
    patience = session.spec.give_up_at
    if session.spec.timeslot_start is None and patience is None:
        patience = now + PATIENCE
    return {"lab_instance_type": definition.spec.lab_type, "give_up_at": patience}


def _owner_faults(booking: LabletSession | Reservation) -> Iterator[Fault]:
    try:
        msgspec.convert(booking.spec.owner, Subject)
    except msgspec.ValidationError:
        yield Fault("spec.owner", "no name of a person or program", "use letters, digits and . _ @ + -, at most 128")


def _time_faults(booking: LabletSession | Reservation, definition: LabletDefinition, now: datetime) -> Iterator[Fault]:
    spec, longest = booking.spec, definition.spec.max_duration_minutes
    if isinstance(spec.timeslot_end, datetime) and spec.timeslot_end <= now:
        yield Fault("spec.timeslot_end", "the slot is over", "use a later one")
    if isinstance(booking, LabletSession) and booking.spec.give_up_at is not None and booking.spec.give_up_at <= now:
        yield Fault("spec.give_up_at", "that moment has passed", "use a later one, or leave it out")
    minutes, path = _length(booking)
    if minutes > longest:
        yield Fault(
            path, f"{minutes:g} minutes long", f"{definition.metadata.name} may be booked for {longest} at most"
        )


def _length(booking: LabletSession | Reservation) -> tuple[float, str]:
    spec = booking.spec
    if spec.timeslot_start is not None and spec.timeslot_end is not None:
        return (spec.timeslot_end - spec.timeslot_start) / _MINUTE, "spec.timeslot_end"
    assert isinstance(booking, LabletSession), "only sessions come without a slot"
    return booking.spec.duration_minutes or 0, "spec.duration_minutes"


def _type_faults(booking: LabletSession | Reservation, definition: LabletDefinition) -> Iterator[Fault]:
    # CML is what the field holds when nobody wrote it.
    if isinstance(booking, LabletSession) and booking.spec.lab_instance_type not in (
        LabType.CML,
        definition.spec.lab_type,
    ):
        problem = f"{definition.metadata.name} is of type {definition.spec.lab_type}"
        yield Fault("spec.lab_instance_type", problem, "leave it out")


def _need_faults(booking: LabletSession | Reservation, definition: LabletDefinition, caller: Caller) -> Iterator[Fault]:
    """Let nobody but staff claim less than a lab is said to need: it would take from others what it was not given."""
    limits = booking.spec.resource_limits if isinstance(booking, LabletSession) else None
    need = amount(definition.spec)
    if limits is None or need is None or caller.role in SEES_ALL:
        return
    said, least = parse_limits(limits), Quantity(need.cpu_millis, need.memory_mb).limits()
    for name, less in (("cpu", said.cpu_millis < need.cpu_millis), ("memory", said.memory_mb < need.memory_mb)):
        if less:
            problem = f"{limits[name]} is less than {definition.metadata.name} needs, and only staff may lower it"
            yield Fault(f"spec.resource_limits.{name}", problem, f"use {least[name]} or more, or leave the limits out")


def _terms(booking: LabletSession | Reservation) -> dict[str, Any]:
    """Say by when a booking must have run and when its time is over, as far as that is known."""
    if isinstance(booking, LabletSession):
        end = booking.spec.timeslot_end
        return {"expires_at": end or booking.spec.give_up_at, "ends_at": end}
    slots = occurrences(booking.spec)
    return {"starts_at": slots[0][0], "ends_at": slots[-1][1]}


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
