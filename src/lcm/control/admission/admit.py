"""Admission of new objects and of changes: from a document to an edit that may be committed.

`Admission` is the one way in for creates, changes and applies: it finds references and runs the checks. `admit` fills
in what the author left out and makes the fields that nobody may write; it is pure. Used by `control.plane.local`,
`control.objects.apply` and `control.objects.imports`.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic

import msgspec

from lcm.control.access.sealing import NO_SEALING, Sealing
from lcm.control.admission.amend import amend, is_repetition, keep_url, seal_url
from lcm.control.admission.continuation import Continuation, resolve_continuation
from lcm.control.admission.references import (
    Reference,
    Target,
    TargetLookup,
    check_unchanged,
    choose_target,
    is_abandoned_deletion,
    reference_of,
    refuse_marked,
)
from lcm.control.admission.topologies import complete_definition
from lcm.control.delivery.sinks import check_sink
from lcm.control.objects.archive import find_newest_archived
from lcm.control.objects.deletion import find_targets, with_deletion_mark
from lcm.control.objects.records import Record, kind_of, open_record, refuse_taken
from lcm.control.objects.steps import TEARDOWN
from lcm.control.objects.writer import Edit, Writer
from lcm.control.plane.protocol import R, ref_of
from lcm.control.telemetry.observations import LearningContext, read_review
from lcm.model.access.identity import SEES_ALL, SERVICE, Caller, Subject
from lcm.model.access.learner import can_see
from lcm.model.access.webhook import WebhookPolicy
from lcm.model.base.errors import Conflict, Fault, Forbidden, Invalid
from lcm.model.base.quantity import Quantity, parse_limits
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.definition import LabletDefinition, compute_amount
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, occurrences
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.validate import check_rules
from lcm.model.kinds.worker import LabType
from lcm.model.telemetry.learning import with_review
from lcm.store.base import Op

DEFAULT_WAIT: Final = timedelta(hours=4)
"""How long a session without a slot waits, unless its spec says otherwise."""

_UID_PATTERN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MINUTE: Final = timedelta(minutes=1)


def admit(
    resource: R,
    *,
    caller: Caller,
    author: str,
    now: datetime,
    uid: str,
    target: Target | None,
    continued: Continuation | None = None,
    reason: str = "created",
) -> R:
    """Return the object to store for a document that `check_document` accepted.

    `continued` is what a session starts with that continues another. Raise Invalid with every fault, or Forbidden.
    """
    kind: Any = type(resource)
    made: R = kind(metadata=_new_metadata(resource, caller, now, uid), spec=resource.spec)
    if isinstance(made, LabletSession | Reservation):
        assert isinstance(target, LabletDefinition), "a booking is admitted with its definition"
        lab = as_continued(target, continued.lab) if continued else target
        made = _complete_booking(made, lab, caller, now)
        made = _with_continuation(made, continued, now) if continued else made
    machine = kind_of(made).machine
    if machine is None:
        return made
    line = PhaseChange(phase=machine.initial, at=now, by=author, reason=reason)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, history=(line,)))


def check_document(resource: Resource, wanted: Reference | None, found: Sequence[Target]) -> Target | None:
    """Check a document against its kind's rules, and return the object it refers to. Raise Invalid with every fault."""
    faults: list[Fault] = []
    target: Target | None = None
    try:
        check_rules(resource)
    except Invalid as error:
        faults += error.faults
    try:
        target = choose_target(wanted, found) if wanted else None
    except Invalid as error:
        faults += error.faults
    except Conflict:
        if not faults:
            raise
    if faults:
        raise Invalid(*faults)
    return target


def looks_like_uid(name: str) -> bool:
    """Return whether a name could be mistaken for a uid; objects can be addressed by either."""
    return _UID_PATTERN.fullmatch(name) is not None


def _new_metadata(resource: R, caller: Caller, now: datetime, uid: str) -> Metadata:
    theirs = resource.metadata
    if looks_like_uid(theirs.name):
        raise Invalid(Fault("metadata.name", "looks like a uid", "use a name that does not look like a uid"))
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


def _complete_booking(booking: Any, definition: LabletDefinition, caller: Caller, now: datetime) -> Any:  # noqa: ANN401 - either kind of booking, and the same one back
    spec = booking.spec
    track = spec.lab_track or definition.spec.lab_track
    _check_permitted(spec.owner, spec.priority, track, caller)
    if isinstance(booking, LabletSession) and booking.spec.prebuilt and caller.role not in SERVICE:
        raise Forbidden("only the scheduler makes prebuilt sessions; set `prebuilt` of the definition")
    changes: dict[str, Any] = {
        "definition": definition.metadata.name,
        "owner": spec.owner or caller.name,
        "lab_track": track,
    }
    if isinstance(booking, LabletSession):
        changes["lab_instance_type"] = definition.spec.lab_type
        if spec.timeslot_start is None and spec.give_up_at is None:
            changes["give_up_at"] = now + DEFAULT_WAIT
    filled = msgspec.structs.replace(booking, spec=msgspec.structs.replace(spec, **changes))
    faults = [*_owner_faults(filled), *_time_faults(filled, definition, now), *_type_faults(booking, definition)]
    if caller.role not in SEES_ALL:
        faults += [*_track_faults(booking, definition), *_need_faults(booking, definition)]
    if faults:
        raise Invalid(*faults)
    if isinstance(filled, LabletSession):
        end = filled.spec.timeslot_end
        times = {"expires_at": end or filled.spec.give_up_at, "ends_at": end}
    else:
        slots = occurrences(filled.spec)
        times = {"starts_at": slots[0][0], "ends_at": slots[-1][1]}
    return msgspec.structs.replace(filled, status=msgspec.structs.replace(filled.status, **times))


def _with_continuation(session: Any, continued: Continuation, now: datetime) -> Any:  # noqa: ANN401 - a session, and the same one back
    status = msgspec.structs.replace(session.status, continues=continued.lab, conditions=(continued.condition(now),))
    return msgspec.structs.replace(session, status=status)


def _check_permitted(owner: str, priority: int, track: str, caller: Caller) -> None:
    if caller.role in SEES_ALL:
        return
    if owner not in ("", caller.name):
        raise Forbidden(f"{caller.name} may not book for {owner}")
    if priority > 0:
        raise Forbidden("only staff may set a priority above 0")
    require_track(caller, track)


def require_track(caller: Caller, track: str) -> None:
    """Raise Forbidden for a track on which this caller's token does not book."""
    if caller.role not in SEES_ALL and caller.reach.tracks and track not in caller.reach.tracks:
        where = f"the track {track}" if track else "labs without a track"
        raise Forbidden(f"{caller.name} may book on {', '.join(caller.reach.tracks)} only, not {where}")


def _owner_faults(booking: LabletSession | Reservation) -> Iterator[Fault]:
    try:
        msgspec.convert(booking.spec.owner, Subject)
    except msgspec.ValidationError:
        yield Fault("spec.owner", "not a valid name", "use letters, digits and . _ @ + -, at most 128")


def _time_faults(booking: LabletSession | Reservation, definition: LabletDefinition, now: datetime) -> Iterator[Fault]:
    spec, longest = booking.spec, definition.spec.max_duration_minutes
    if isinstance(spec.timeslot_end, datetime) and spec.timeslot_end <= now:
        yield Fault("spec.timeslot_end", "the slot is over", "use a later one")
    if isinstance(booking, LabletSession) and booking.spec.give_up_at is not None and booking.spec.give_up_at <= now:
        yield Fault("spec.give_up_at", "that moment has passed", "use a later one, or leave it out")
    if spec.timeslot_start is not None and spec.timeslot_end is not None:
        minutes, path = (spec.timeslot_end - spec.timeslot_start) / _MINUTE, "spec.timeslot_end"
    else:
        assert isinstance(booking, LabletSession), "only sessions come without a slot"
        minutes, path = booking.spec.duration_minutes or 0, "spec.duration_minutes"
        if booking.spec.prebuilt:
            return  # it lasts as long as its definition says that prebuilt labs do
    if minutes > longest:
        yield Fault(
            path, f"{minutes:g} minutes long", f"{definition.metadata.name} may be booked for at most {longest} minutes"
        )


def _type_faults(booking: LabletSession | Reservation, definition: LabletDefinition) -> Iterator[Fault]:
    # CML is the field's default, so it does not tell whether somebody wrote it.
    if isinstance(booking, LabletSession) and booking.spec.lab_instance_type not in (
        LabType.CML,
        definition.spec.lab_type,
    ):
        problem = f"{definition.metadata.name} is of type {definition.spec.lab_type}"
        yield Fault("spec.lab_instance_type", problem, "leave it out")


def _track_faults(booking: LabletSession | Reservation, definition: LabletDefinition) -> Iterator[Fault]:
    """Yield a fault if a track is not among those of the definition: its workers are kept for others."""
    name, own, wanted = definition.metadata.name, definition.spec.lab_track, booking.spec.lab_track
    allowed = [one for one in (own, *definition.spec.other_tracks) if one]
    if wanted and wanted not in allowed:
        where = f"on {' or '.join(allowed)}" if allowed else "without a track"
        problem = f"{name} is booked {where}; only staff may choose the track {wanted}"
        yield Fault("spec.lab_track", problem, "leave it out, or ask its author to add the track to other_tracks")


def _need_faults(booking: LabletSession | Reservation, definition: LabletDefinition) -> Iterator[Fault]:
    """Yield faults for a claim that is less than the lab is said to need, or more than its author allows.

    With less, a session would take from others what it was not given; with more, it would keep it from them.
    """
    limits = booking.spec.resource_limits if isinstance(booking, LabletSession) else None
    need, most = compute_amount(definition.spec), definition.spec.resource_limits
    if limits is None or need is None:
        return
    given, least, name = parse_limits(limits), Quantity(need.cpu_millis, need.memory_mb), definition.metadata.name
    above = parse_limits(most) if most else least
    high = Quantity(max(least.cpu_millis, above.cpu_millis), max(least.memory_mb, above.memory_mb))
    for unit, attribute in (("cpu", "cpu_millis"), ("memory", "memory_mb")):
        asked, low, top = (getattr(one, attribute) for one in (given, least, high))
        path = f"spec.resource_limits.{unit}"
        if asked < low:
            problem = f"{limits[unit]} is less than {name} needs, and only staff may lower it"
            yield Fault(path, problem, f"use {least.limits()[unit]} or more, or leave the limits out")
        if asked > top:
            problem = f"{limits[unit]} is more than {name} allows, and only staff may raise it"
            yield Fault(path, problem, f"use {high.limits()[unit]} or less, or leave the limits out")


Quota = Callable[[Caller, Sequence[Resource]], Awaitable[Sequence[Op]]]
"""Asked about objects that are to be created in one commit.

Raises Refused, or returns operations that join the commit, so that two commits which would pass only one at a time
touch a common key.
"""


async def allow_all(_: Caller, __: Sequence[Resource]) -> Sequence[Op]:
    """Refuse nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class Draft(Generic[R]):
    """An admitted change, and the object it refers to, which must stay unchanged until the commit."""

    edit: Edit[R]
    target: Target | None = None

    @property
    def checks(self) -> Sequence[Op]:
        """What the commit must find unchanged."""
        return () if self.target is None else (check_unchanged(self.target),)


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits what one caller writes."""

    writer: Writer
    ids: Callable[[], str]
    sealing: Sealing = NO_SEALING
    library: LearningContext = field(default_factory=LearningContext)
    reach: WebhookPolicy = field(default_factory=WebhookPolicy)

    async def admit_new(self, resource: R, *, found: TargetLookup | None = None) -> Draft[R]:
        """Admit a new object. `found` returns what its references may mean; without it, the store is read.

        A caller that passes `found` has also checked that the object's unique key is free.
        """
        copies = self.writer.caller.role in SERVICE
        resource = self.sealing.keep_sealed(None, keep_url(None, resource, self.sealing), copies=copies)
        wanted = reference_of(resource)
        target = check_document(resource, wanted, await self._find_targets(wanted, found))
        self._check_reach(resource)
        resource = await self._complete_definition(seal_url(resource, self.sealing))
        made = admit(
            resource,
            caller=self.writer.caller,
            author=self.writer.author,
            now=self.writer.clock.now(),
            uid=self.ids(),
            target=target,
            continued=await self._find_continuation(resource, target),
        )
        if found is None:
            await refuse_taken(self.writer.store, made)
        return Draft(Edit(None, made), target)

    async def read_ahead(self, resource: Resource) -> None:
        """Fetch the saved lab that a booking continues, so that no other booking has to wait for that.

        What is wrong with it is said when the booking is admitted.
        """
        wanted = reference_of(resource)
        if not isinstance(resource, LabletSession) or resource.spec.continue_from is None or wanted is None:
            return
        with suppress(Invalid, Conflict):
            target = choose_target(wanted, await self._find_targets(wanted, None))
            await self._find_continuation(resource, target)

    async def _find_continuation(self, resource: Resource, target: Target | None) -> Continuation | None:
        """Find what a session continues; None for every other object."""
        asked = resource.spec.continue_from if isinstance(resource, LabletSession) else None
        if asked is None or not isinstance(target, LabletDefinition):
            return None
        namespace = resource.metadata.namespace
        return await resolve_continuation(self.writer, self.library, asked, namespace, target)

    async def admit_change(self, record: Record[R], wanted: R, *, found: TargetLookup | None = None) -> Draft[R] | None:
        """Admit a change; None means that nothing differs."""
        self.writer.require_managed(record.resource, "update")
        record = open_record(record)
        wanted = self.sealing.keep_sealed(record.resource, keep_url(record.resource, wanted, self.sealing))
        after = amend(record.resource, wanted, caller=self.writer.caller)
        if is_abandoned_deletion(record.resource, self.writer.clock.now()):
            after = with_deletion_mark(after, None)
        else:
            refuse_marked(record.resource)
        if after is record.resource:
            return None
        self._check_reach(after)
        after = await self._review_definition(seal_url(after, self.sealing))
        refers = reference_of(after)
        anew = refers if refers != reference_of(record.resource) else None
        return Draft(Edit(record, after), check_document(after, anew, await self._find_targets(anew, found)))

    async def find_archived_match(self, resource: R) -> Record[R] | None:
        """Find what a document asks for in the archive: applying a file again must not repeat what has ended."""
        record, caller = await find_newest_archived(self.writer.store, ref_of(resource)), self.writer.caller
        if record is None or not can_see(caller, record.resource):
            return None
        return record if is_repetition(record.resource, resource, caller=caller) else None

    def _check_reach(self, resource: Resource) -> None:
        """Raise Invalid for a sink that could never work."""
        if isinstance(resource, Sink):
            check_sink(resource, self.reach)

    async def _complete_definition(self, resource: R) -> R:
        """Fill in what a definition leaves to its topology, where files can be read."""
        library = self.library
        if library.artifacts is None or not isinstance(resource, LabletDefinition):
            return resource
        made = await complete_definition(library.artifacts, self.writer.store, resource, library.node_sizes)
        assert isinstance(made, type(resource))
        return made

    async def _review_definition(self, resource: R) -> R:
        """Record on a definition that declares other needs whether those need a review."""
        if not isinstance(resource, LabletDefinition):
            return resource
        made = with_review(resource, await read_review(self.writer.store, self.library.review))
        assert isinstance(made, type(resource))
        return made

    async def _find_targets(self, wanted: Reference | None, found: TargetLookup | None) -> Sequence[Target]:
        if wanted is None:
            return ()
        return await (found(wanted) if found else find_targets(self.writer, wanted))
