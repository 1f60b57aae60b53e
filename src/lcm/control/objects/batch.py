"""Doing many things in one call: each by itself, or all in one commit or none. Called by `control.plane.local`.

`run_each` calls the verbs of a plane one after another. `AtomicBatch` plans every item without writing, as the verbs
do, and commits all of them at once; problems of items are answers, so that each item has its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, get_args

import msgspec

from lcm.control.admission.admit import Admission, Draft, Quota
from lcm.control.admission.references import check_unchanged
from lcm.control.booking.promise import Promises
from lcm.control.booking.request import has_slot
from lcm.control.objects.actions import perform_action
from lcm.control.objects.deletion import USER_KINDS, request_deletion
from lcm.control.objects.records import Record, key_of, with_revision
from lcm.control.objects.requests import IdempotentRequest
from lcm.control.objects.steps import is_removable
from lcm.control.objects.writer import Edit, Writer, name_taken_error, ops_of, retry_conflicts
from lcm.control.plane.batch import (
    ActionItem,
    BatchAnswer,
    BatchItem,
    BatchRequest,
    BatchResult,
    CreateItem,
    DeleteItem,
    LabelItem,
    NamedItem,
)
from lcm.control.plane.problems import problem_of
from lcm.control.plane.protocol import Action, Document, Plane, Ref, ReservationAction, ref_of
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Conflict, Fault, Gone, Invalid, Later, LcmError, NoRoom, Refused, TooLarge
from lcm.model.base.event import encode_event
from lcm.model.base.resource import DEFAULT_NAMESPACE, shorten_text
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink
from lcm.store.base import ABSENT, MAX_BYTES, MAX_OPERATIONS, Op, check_commit

ReadNew = Callable[[object], Resource]
_SMALLER: Final = "send fewer items, or use mode each"
_KEPT_CHARACTERS: Final = 40
_DELETED_IN_TWO: Final = frozenset(kind.__name__ for kind in (*USER_KINDS, Sink))
"""Kinds whose deletion is more than one commit."""
_PROMISED_ACTIONS: Final[tuple[type[Action], ...]] = get_args(ReservationAction)
"""Actions that are promised: each of them reads what the calendar knows, and commits at that."""
_ITEM_ERRORS: Final = (Refused, Conflict, Gone)
"""What concerns one item only; everything else ends the batch."""


def answer_of(results: Iterable[BatchResult]) -> BatchAnswer:
    """Return an answer, with its counts."""
    found = tuple(results)
    refused = sum(one.outcome == "refused" for one in found)
    return BatchAnswer(found, sum(one.outcome == "done" for one in found), refused)


def ref_of_item(item: NamedItem) -> Ref[Any]:
    """Return which object an item is about. Raise Invalid if there is no such kind."""
    known = KINDS.get(item.kind)
    if known is None:
        raise Invalid(Fault("kind", f"there is no kind {item.kind!r}", f"use {', '.join(KINDS)}"))
    kind: type[Any] = known.struct
    return Ref(kind, item.name, item.namespace)


async def run_each(
    plane: Plane, read: ReadNew, asked: BatchRequest, *, dry_run: bool, request: str | None
) -> BatchAnswer:
    """Do one item after the other, and answer for each; a refusal of one keeps no other from being done.

    Where a part of the system does not answer, the rest is skipped.
    """
    results, is_over = list[BatchResult](), False
    for place, item in enumerate(asked.items):
        if is_over:
            results.append(_result_of(item, "skipped", None))
            continue
        key = None if request is None else f"{sha256(request.encode()).hexdigest()[:_KEPT_CHARACTERS]}.{place}"
        try:
            made = await _do_item(plane, read, item, dry_run=dry_run, request=key)
            results.append(_result_of(item, "done", made))
        except (*_ITEM_ERRORS, Later) as error:
            results.append(_refused_result(item, error))
            is_over = isinstance(error, Later)  # what comes now, comes later as well
    return answer_of(results)


async def _do_item(plane: Plane, read: ReadNew, item: BatchItem, *, dry_run: bool, request: str | None) -> Resource:
    made: Resource
    if isinstance(item, CreateItem):
        made = await plane.create(read(item.document), dry_run=dry_run, request=request)
    elif isinstance(item, DeleteItem):
        made = await plane.delete(ref_of_item(item), at=item.resource_version, dry_run=dry_run)
    elif isinstance(item, ActionItem):
        made = await plane.act(ref_of_item(item), item.action, dry_run=dry_run, request=request)
    else:
        made = await plane.patch(ref_of_item(item), _label_patch(item), dry_run=dry_run)
    return made


def _label_patch(item: LabelItem) -> Document:
    return {"metadata": {"labels": dict(item.labels)}}


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """An item with what it would change: no draft if nothing, a problem if it may not."""

    item: BatchItem
    record: Record[Any] | None = None
    draft: Draft[Any] | None = None
    problem: LcmError | None = None

    @property
    def after(self) -> Resource | None:
        """The object as it will be; None if that is not known."""
        if self.draft is not None:
            return self.draft.edit.after  # type: ignore[no-any-return]
        return self.record.resource if self.record else None

    @property
    def is_booking(self) -> bool:
        """Whether a session or a reservation is to be made."""
        return self.draft is not None and self.record is None and isinstance(self.after, LabletSession | Reservation)


@dataclass(frozen=True, slots=True)
class AtomicBatch:
    """Does everything in one commit, for one caller."""

    writer: Writer
    admission: Admission
    quota: Quota
    read: ReadNew
    amend: Callable[[Resource, Document], Resource]
    """Returns a stored object with a patch merged into it."""
    show: Callable[[Any], Any]
    ids: Callable[[], str]
    promises: Promises | None = None

    async def run(self, asked: BatchRequest, *, dry_run: bool, once: IdempotentRequest | None) -> BatchAnswer:
        """Do all or none. Raise Invalid or TooLarge for what one commit cannot do or hold."""
        _refuse_unsuitable(asked.items)

        async def attempt() -> BatchAnswer:
            if once is not None and (known := await once.find_record(self.writer)):
                return msgspec.json.decode(known.answer, type=BatchAnswer)
            planned = _without_repetitions([await self._plan(one) for one in asked.items])
            planned, ops = await self._promise_items(planned)
            if any(one.problem for one in planned):
                return answer_of(_refusals(planned))
            return await self._commit(planned, ops, once, dry_run=dry_run)

        bookings = [one for one in map(self._booking_of, asked.items) if one is not None]
        if self.promises is None or not bookings:
            return await retry_conflicts(attempt, unless=lambda _: False)
        keys = self.promises.quota_keys(self.writer.caller, bookings)
        async with self.promises.lock_guards(bookings, keys):
            return await retry_conflicts(attempt, unless=lambda _: False, pause=self.promises.back_off)

    def _booking_of(self, item: BatchItem) -> Resource | None:
        """Return the booking that an item asks for; None if it asks for something else, or cannot be read."""
        if not isinstance(item, CreateItem):
            return None
        try:
            found = self.read(item.document)
        except Invalid:
            return None
        return found if isinstance(found, LabletSession | Reservation) else None

    async def _plan(self, item: BatchItem) -> PlannedItem:
        try:
            return await self._plan_item(item)
        except _ITEM_ERRORS as error:
            return PlannedItem(item, problem=error)

    async def _plan_item(self, item: BatchItem) -> PlannedItem:
        if isinstance(item, CreateItem):
            return await self._plan_new(item)
        ref = ref_of_item(item)
        self.writer.require_permission(Verb.ACT if isinstance(item, ActionItem) else Verb.WRITE, ref.kind)
        record = await self.writer.require(ref)
        now, author, known = self.writer.clock.now(), self.writer.author, record.resource
        self.writer.require_managed(known, _verb_of(item))
        if isinstance(item, LabelItem):
            draft = await self.admission.admit_change(record, self.amend(known, _label_patch(item)))
            return PlannedItem(item, record, draft)
        if isinstance(item, DeleteItem):
            if item.resource_version not in (None, record.revision):
                raise Conflict(record.key, wanted=item.resource_version or 0, found=record.revision)
            after = request_deletion(known, now=now, author=author)
            edit = Edit(record, after, removed=is_removable(after), verb=_verb_of(item))
        else:
            after = perform_action(known, item.action, now=now, author=author, ids=self.ids)
            edit = Edit(record, after, verb=_verb_of(item))
        return PlannedItem(item, record, Draft(edit) if after is not known else None)

    async def _plan_new(self, item: CreateItem) -> PlannedItem:
        resource = self.read(item.document)
        self.writer.require_permission(Verb.WRITE, type(resource))
        draft = await self.admission.admit_new(resource)
        entry = await self.writer.store.get(key_of(draft.edit.after))
        if entry is not None:
            if await self.writer.find(ref_of(resource)) is None:
                raise name_taken_error(ref_of(resource))
            raise Conflict(entry.key, wanted=ABSENT, found=entry.revision)
        return PlannedItem(item, None, draft)

    async def _promise_items(self, planned: Sequence[PlannedItem]) -> tuple[Sequence[PlannedItem], Sequence[Op]]:
        """Return the items with their seats, or with the problem of those that get none, and what promises them."""
        if any(one.problem for one in planned):
            return planned, ()
        made = [one.after for one in planned if one.record is None and one.after is not None]
        bookings = [one for one in planned if one.is_booking]
        try:
            ops = [*await self.quota(self.writer.caller, made)]
            if self.promises is None or not bookings:
                return planned, ops
            found = await self.promises.promise_bookings(
                [one.draft.edit.after for one in bookings if one.draft],
                [one.draft.target for one in bookings if one.draft],
                names=[f"items[{place}]" for place, one in enumerate(planned) if one.is_booking],
            )
            if self.promises.quota is not None:
                self.promises.quota.check_prices(self.writer.caller, found.made)
        except NoRoom as error:  # they are booked together or not at all
            return [replace(one, problem=error) if one.is_booking else one for one in planned], ()
        seated = iter(found.made)
        with_seats = [_with_object(one, next(seated)) if one.is_booking else one for one in planned]
        return with_seats, [*ops, *(found.ops if any(map(has_slot, found.made)) else ())]

    async def _commit(
        self, planned: Sequence[PlannedItem], ops: Sequence[Op], once: IdempotentRequest | None, *, dry_run: bool
    ) -> BatchAnswer:
        edits: list[Edit[Any]] = [one.draft.edit for one in planned if one.draft]
        own = {key_of(edit.after) for edit in edits}
        targets = {key_of(one.draft.target): one.draft.target for one in planned if one.draft and one.draft.target}
        checks = [check_unchanged(target) for key, target in targets.items() if key not in own]
        every = [*checks, *(op for op in ops if op.key not in own)]
        if once is not None:
            answer = msgspec.json.encode(answer_of(_results(planned, self.show))).decode()
            every.append(once.record_text(answer, self.writer.clock.now()))
        try:
            if dry_run:
                events = [encode_event(event) for edit in edits for event in edit.events(self.writer.clock.now())]
                check_commit([*ops_of(edits), *every], events, self.writer.fence)
                return answer_of(_results(planned, self.show))
            revision = await self.writer.commit_edits(*edits, ops=every) if edits or once else 0
        except TooLarge as error:
            limits = f"at most {MAX_OPERATIONS} operations and {MAX_BYTES} bytes"
            raise TooLarge(f"an all-or-none batch is one commit of {limits}: {error}; {_SMALLER}") from error
        return answer_of(_results(planned, self.show, revision))


def _verb_of(item: LabelItem | DeleteItem | ActionItem) -> str:
    """Return what the audit calls it."""
    if isinstance(item, ActionItem):
        return str(type(item.action).__struct_config__.tag)
    return "delete" if isinstance(item, DeleteItem) else "update"


def _refuse_unsuitable(items: Sequence[BatchItem]) -> None:
    """Raise Invalid for what cannot be part of one commit."""
    faults = list[Fault]()
    for place, item in enumerate(items):
        if isinstance(item, ActionItem) and isinstance(item.action, _PROMISED_ACTIONS):
            problem, remedy = "each extension or move is decided after the one before it", "use mode each"
            faults.append(Fault(f"items[{place}].action", problem, remedy))
        elif isinstance(item, DeleteItem) and item.kind in _DELETED_IN_TWO:
            problem, remedy = f"a {item.kind} is deleted in two commits", "use mode each"
            faults.append(Fault(f"items[{place}]", problem, remedy))
    if faults:
        raise Invalid(*faults)


def _without_repetitions(planned: Sequence[PlannedItem]) -> Sequence[PlannedItem]:
    """Return the items, with a problem for each that is about the same object as one before it."""
    seen, made = dict[str, int](), list[PlannedItem]()
    for place, one in enumerate(planned):
        after = one.after
        first = seen.setdefault(key_of(after), place) if after is not None else place
        same = Fault("name", f"the same object as items[{first}]", "keep one of them, or use mode each")
        made.append(one if first == place else replace(one, draft=None, problem=Invalid(same)))
    return made


def _with_object(planned: PlannedItem, made: Resource) -> PlannedItem:
    assert planned.draft is not None, "it is to be made"
    return replace(planned, draft=replace(planned.draft, edit=replace(planned.draft.edit, after=made)))


def _refusals(planned: Iterable[PlannedItem]) -> Iterable[BatchResult]:
    for one in planned:
        yield _refused_result(one.item, one.problem) if one.problem else _result_of(one.item, "skipped", None)


def _results(
    planned: Iterable[PlannedItem], show: Callable[[Any], Any], revision: int | None = None
) -> Iterable[BatchResult]:
    for one in planned:
        assert one.after is not None, "it was planned"
        changed = one.draft is not None and revision is not None
        after = with_revision(one.after, revision) if changed and revision else one.after
        yield _result_of(one.item, "done" if one.draft is not None else "unchanged", show(after))


def _result_of(item: BatchItem, outcome: Any, made: Resource | None) -> BatchResult:  # noqa: ANN401 - one of the literals
    op = str(type(item).__struct_config__.tag)
    if made is not None:
        metadata = made.metadata
        return BatchResult(
            op=op, kind=made.kind, namespace=metadata.namespace, name=metadata.name, outcome=outcome, object=made
        )
    kind, namespace, name = _names_in(item)
    return BatchResult(op=op, kind=kind, namespace=namespace, name=name, outcome=outcome)


def _refused_result(item: BatchItem, error: LcmError) -> BatchResult:
    return msgspec.structs.replace(_result_of(item, "refused", None), problem=problem_of(error))


def _names_in(item: BatchItem) -> tuple[str, str, str]:
    """Return which object an item is about, as far as it says so."""
    if isinstance(item, NamedItem):
        return item.kind, item.namespace, item.name
    document = item.document if isinstance(item.document, Mapping) else {}
    found = document.get("metadata")
    metadata = found if isinstance(found, Mapping) else {}
    kind, namespace, name = document.get("kind"), metadata.get("namespace"), metadata.get("name")
    return (
        shorten_text(str(kind), 64),
        shorten_text(str(namespace or DEFAULT_NAMESPACE), 64),
        shorten_text(str(name), 64),
    )
