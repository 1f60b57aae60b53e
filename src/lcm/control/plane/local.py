"""The plane in process: it works on the store itself, and only it writes objects.

`compose` makes one `ControlPlane` in each process. `api` asks it for the plane of each caller, and controllers in the
same process for theirs. `LocalPlane` checks permissions and calls the modules that do each verb's work; the operations
of the table are in `control.plane.local_operations`.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from lcm.control.access.audit import LOCAL_ORIGIN, Origin
from lcm.control.access.sealing import Sealer, Sealing
from lcm.control.accounts.ledger import LedgerTurns
from lcm.control.admission.admit import Admission, Draft, Quota, allow_all
from lcm.control.admission.amend import patch_document
from lcm.control.admission.references import read_targets, reference_of
from lcm.control.admission.topologies import LabGraphs
from lcm.control.booking.calendar import Calendar
from lcm.control.booking.changes import is_change
from lcm.control.booking.guards import refuse_new_claims, refuse_overrun
from lcm.control.booking.prebuilt import book_at_once
from lcm.control.booking.promise import Promises
from lcm.control.booking.quota import OwnerLimits
from lcm.control.booking.step_records import NO_LIMITS, FleetSettings, records_for_step
from lcm.control.delivery.sinks import NO_SINKS, SinkSettings, refuse_surplus
from lcm.control.objects import deletion
from lcm.control.objects.actions import perform_action
from lcm.control.objects.apply import Applier
from lcm.control.objects.batch import AtomicBatch, run_each
from lcm.control.objects.cache import Cache, fixed_chance
from lcm.control.objects.reads import ListRequest, LocalWatch, list_page
from lcm.control.objects.records import Record, encode_change, key_of, with_reported_status
from lcm.control.objects.requests import IdempotentRequest
from lcm.control.objects.steps import is_removable, require_actor, take_step
from lcm.control.objects.uploads import DEFAULT_QUOTA_BYTES
from lcm.control.objects.views import ObjectViews
from lcm.control.objects.writer import Edit, Writer, name_taken_error, retry_conflicts
from lcm.control.plane.batch import LONGEST_BATCH, ActionItem, BatchAnswer, BatchItem, BatchRequest
from lcm.control.plane.leases import wait_until_vacant
from lcm.control.plane.local_operations import LocalOperations
from lcm.control.plane.operation import Operation
from lcm.control.plane.protocol import (
    PAGE_SIZE,
    Action,
    Applied,
    Document,
    Extend,
    Listing,
    Plane,
    R,
    Ref,
    ref_of,
)
from lcm.control.telemetry import observations, reports
from lcm.control.telemetry.idleness import DEFAULT_CRITERIA, IdleCriteria
from lcm.control.telemetry.observations import LearningContext
from lcm.control.telemetry.report_commits import ReportCommits
from lcm.control.upkeep.store_health import ALERT_PERCENT, StoreHealth
from lcm.model.access.identity import SEES_ALL, Caller, Verb
from lcm.model.access.learner import show_to
from lcm.model.base.clock import Clock
from lcm.model.base.defaults import apply_defaults, keep_stored_values
from lcm.model.base.errors import Conflict, Fault, Invalid, TooLarge
from lcm.model.base.resource import API_VERSION, Status
from lcm.model.base.selector import EVERYTHING, ObjectSelector
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.validate import parse_document
from lcm.model.telemetry.learning import ReviewPolicy
from lcm.model.telemetry.measurement import UsageThresholds
from lcm.model.topology.node_definitions import NodeSize
from lcm.placement.claims import Terms
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import ABSENT, CheckRevision, Fence, Lease, Op, Store
from lcm.store.codec import is_from_newer
from lcm.system.clock import new_id


class ControlPlane:
    """Everything that is the same for all callers."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        defaults: Mapping[str, Document] = {},
        quota: Quota = allow_all,
        sealer: Sealer | None = None,
        record_ids: Callable[[], str] = new_id,
        judgement: IdleCriteria = DEFAULT_CRITERIA,
        fleet: FleetSettings = NO_LIMITS,
        terms: Terms | None = None,
        limits: OwnerLimits | None = None,
        chance: Callable[[], float] = fixed_chance,
        artifacts: Artifacts | None = None,
        review: ReviewPolicy = observations.DEFAULT_REVIEW,
        node_sizes: Mapping[str, NodeSize] = {},
        thresholds: UsageThresholds = reports.DEFAULT_THRESHOLDS,
        sinks: SinkSettings = NO_SINKS,
        store_alert_percent: int = ALERT_PERCENT,
        quota_bytes: int = DEFAULT_QUOTA_BYTES,
    ) -> None:
        """Work on a store. `defaults` fill in the documents of each kind; `quota` is asked before creates.

        `sealer` has the keys for secrets that people write in clear; without it such documents are refused.
        `record_ids` names requests and audit records, separately from objects: object ids stay the same wherever one
        asks from. `judgement` decides when workers count as idle where the SystemSettings object says nothing. `fleet`
        says how many licence seats there are and what machines cost. With `terms`, slots are promised when they are
        booked; the calendar of `promises` must run. Without it, no promises. `limits` bound what one owner may book.
        `artifacts` keeps the lab files that complete new definitions, and the files that sessions leave; without it no
        file is read. `review` says when the use of labs is to be reviewed, where the SystemSettings object says
        nothing. `node_sizes` are the sizes of nodes that this installation declares. `thresholds` say what usage of
        workers is too high, likewise. `sinks` says what sinks may reach, and which are always there.
        `store_alert_percent` says from where on a full store is an alert; `quota_bytes` bounds an author's lab files.
        """
        self.store = store
        self.clock = clock
        self.ids = ids
        self._quota = quota
        self.sinks = sinks
        self.sealing = Sealing(sealer)
        self.record_ids = record_ids
        self.fleet = fleet
        self.judgement = judgement
        self.thresholds = thresholds
        self.library = LearningContext(artifacts, review, node_sizes, quota_bytes)
        self.graphs = LabGraphs()
        self._defaults = defaults
        self.views = ObjectViews()
        self.report_commits = ReportCommits()
        self.ledgers = LedgerTurns()
        self.health = StoreHealth(store, clock=clock, alert_percent=store_alert_percent)
        """What is known about the store itself; somebody must run it."""
        self.promises: Promises | None = None
        """Promises slots to bookings; None when this control plane makes no promises."""
        if terms is not None:
            plane, seats, prices = self.plane_for(deletion.PLANE_CALLER), fleet.seats, fleet.prices
            calendar = Calendar(plane, terms=terms, licences=seats, prices=prices, clock=clock)
            self.promises = Promises(store, calendar, clock=clock, chance=chance, limits=limits)

    @property
    def cache(self) -> Cache | None:
        """What is known of the store in this process, once the calendar runs; None without promises."""
        return self.promises.calendar.cache if self.promises else None

    @property
    def epoch(self) -> str:
        """The id of the history that revisions belong to."""
        return self.store.epoch

    def plane_for(self, caller: Caller, origin: Origin = LOCAL_ORIGIN) -> "LocalPlane":
        """Return the plane of one caller. The audit names `origin` as the source of its writes."""
        return LocalPlane(self, caller, origin=origin)

    def writer_for(self, caller: Caller, origin: Origin = LOCAL_ORIGIN, fence: Fence | None = None) -> Writer:
        """Return the writer of one caller, for what is no object."""
        return Writer(self.store, self.clock, caller, fence, origin, self.record_ids, self.health.record_commit)

    async def quota(self, caller: Caller, made: Sequence[Resource]) -> Sequence[Op]:
        """Ask whether these objects may be created. Raise Refused, or return operations that join the commit."""
        await refuse_surplus(self.store, [one.metadata.name for one in made if isinstance(one, Sink)])
        limited = self.promises.quota if self.promises else None
        counted = await limited.check_new(caller, made) if limited else ()
        return [*await self._quota(caller, made), *counted]

    def read(self, document: object, kind: type[Resource] | None = None, *, onto: Resource | None = None) -> Resource:
        """Read a document as its type, with the configured defaults for missing fields. Raise Invalid.

        The object it is put `onto` keeps the defaults of the time at which it was made.
        Clear-text secrets are sealed before anything else looks at the document.
        """
        if not isinstance(document, Mapping):
            return parse_document(document)
        known = KINDS.get(str(document.get("kind"))) if kind is None else KINDS[kind.__name__]
        said: dict[str, Any]
        said, faults = self.sealing.seal_raw(document, known.struct if known else None)
        if kind is not None and said.get("kind", kind.__name__) != kind.__name__:
            raise Invalid(Fault("kind", f"{said['kind']!r} does not fit here", f"use {kind.__name__}"))
        if kind is not None:
            said = {"api_version": API_VERSION, "kind": kind.__name__, **said}
        return read_with_faults(faults, self.with_defaults(said, onto))

    def amend(self, stored: Resource, patch: Document) -> Resource:
        """Return a stored object with a document merged into it. Raise Invalid."""
        sealed, faults = self.sealing.seal_raw(patch, type(stored))
        return read_with_faults(faults, self.with_defaults(patch_document(stored, sealed)))

    def with_defaults(self, document: Document, onto: Resource | None = None) -> Document:
        """Return a document with the configured defaults beneath it, or those in force when `onto` was made."""
        kind = str(document.get("kind"))
        defaults = self._defaults.get(kind, {})
        if onto is not None and kind == onto.kind:
            defaults = keep_stored_values(kind, msgspec.to_builtins(onto.spec), defaults)
        return apply_defaults(document, defaults) if defaults.get("spec") else document


class LocalPlane(Plane):
    """The plane of one caller, directly on the store."""

    def __init__(
        self, core: ControlPlane, caller: Caller, fence: Fence | None = None, *, origin: Origin = LOCAL_ORIGIN
    ) -> None:
        self._core = core
        self._writer = core.writer_for(caller, origin, fence)
        self._admission = Admission(self._writer, core.ids, core.sealing, core.library, core.sinks.reach)
        self._operations = LocalOperations(core, self._writer, self._admission)

    @property
    def caller(self) -> Caller:
        return self._writer.caller

    def under(self, fence: Fence) -> "LocalPlane":
        return LocalPlane(self._core, self.caller, fence, origin=self._writer.origin)

    async def perform(self, operation: Operation, /, *given: object, **named: object) -> object:
        self._writer.require_role(*operation.permission)
        return await getattr(self._operations, operation.name)(*given, **named)

    async def get(self, ref: Ref[R]) -> R | None:
        return await self._core.views.read(self._writer, ref, self._show)

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: ObjectSelector = EVERYTHING,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
        archived: bool = False,
    ) -> Listing[R]:
        self._writer.require_permission(Verb.READ, kind)
        page = await list_page(self._writer, ListRequest(kind, namespace, where, limit, archived), cursor)
        return dataclasses.replace(page, items=[self._show(one) for one in page.items])

    def watch(self, *kinds: type[Resource], after: int) -> LocalWatch:
        return LocalWatch(self._writer, kinds, after)

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        self._writer.require_permission(Verb.WRITE, type(resource))
        resource = self._core.sealing.seal_typed(resource)
        asked = self._idempotent_request(request, "create", resource)
        await self._admission.read_ahead(resource)

        async def attempt() -> R:
            if asked is not None and (earlier := await asked.find_earlier_answer(self._writer, ref_of(resource))):
                return earlier.resource
            draft = await self._admission.admit_new(resource)
            extra = await self._core.quota(self.caller, [draft.edit.after])
            draft, promised = await self._promise_seats(draft)
            if dry_run:
                made = self._writer.rehearse(draft.edit, *draft.checks)
                if (entry := await self._core.store.get(key_of(made))) is not None:
                    raise Conflict(entry.key, wanted=ABSENT, found=entry.revision)
                return made
            kept = [asked.record_answer(draft.edit.after, self._core.clock.now())] if asked else []
            edit, taken, told = await book_at_once(self._writer, self._core.promises, draft.edit, draft.target)
            ops = [*draft.checks, *extra, *promised, *taken, *kept]
            return await self._writer.write(edit, *ops, told=told)

        try:
            made = await self._retry_in_turn(resource, attempt, unless=lambda error: error.key == key_of(resource))
            return self._show(made)
        except Conflict as error:
            # A concurrent repetition of this same request may have come first.
            if asked is not None and (earlier := await asked.find_earlier_answer(self._writer, ref_of(resource))):
                return self._show(earlier.resource)
            if error.key == key_of(resource) and await self._writer.find(ref_of(resource)) is None:
                raise name_taken_error(ref_of(resource)) from error
            raise

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        at = at if at is not None else resource.metadata.resource_version or None
        sealed = self._core.sealing.seal_typed(resource)
        return await self._change(ref_of(resource), lambda _: sealed, at=at, dry_run=dry_run)

    async def put(self, ref: Ref[R], document: object, *, at: int | None = None, dry_run: bool = False) -> R:
        """Do what `replace` does, with a document as its author wrote it. Earlier defaults stay as they are."""
        kind: type[Any] = ref.kind
        at = at or _required_revision(document)
        return await self._change(
            ref, lambda stored: self._core.read(document, kind, onto=stored), at=at, dry_run=dry_run
        )

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        return await self._change(ref, lambda stored: self._core.amend(stored, document), at=at, dry_run=dry_run)

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        self._writer.require_permission(Verb.WRITE, ref.kind)
        return self._show(await deletion.delete(self._writer, ref, at=at, dry_run=dry_run))

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        application = Applier(self._writer, self._admission, self._core.quota, self._core.read, self._core.promises)
        return await application.run(documents, dry_run=dry_run)

    async def batch(self, asked: BatchRequest, *, dry_run: bool = False, request: str | None = None) -> BatchAnswer:
        if len(asked.items) > LONGEST_BATCH:
            raise TooLarge(f"{len(asked.items)} items at once; the limit is {LONGEST_BATCH}")
        if asked.mode == "each":
            return await run_each(self, self._core.read, asked, dry_run=dry_run, request=request)
        core, promises = self._core, self._core.promises
        asked = msgspec.structs.replace(asked, items=tuple(map(self._with_sealed_action, asked.items)))
        work = AtomicBatch(
            self._writer, self._admission, core.quota, core.read, core.amend, self._show, core.ids, promises
        )
        return await work.run(asked, dry_run=dry_run, once=self._idempotent_request(request, "batch", asked))

    async def act(
        self, ref: Ref[R], action: Action, *, at: int | None = None, dry_run: bool = False, request: str | None = None
    ) -> R:
        self._writer.require_permission(Verb.ACT, ref.kind)
        action, verb = self._sealed(action), str(type(action).__struct_config__.tag)
        asked = self._idempotent_request(request, ref.key, action)
        if is_change(ref.kind, action):
            return await self._operations.change_booking(ref, action, at=at, dry_run=dry_run, asked=asked)

        async def attempt() -> R:
            if asked is not None and (earlier := await asked.find_earlier_answer(self._writer, ref)):
                return earlier.resource
            record = await self._writer.require(ref, at=at)
            self._writer.require_managed(record.resource, verb)
            longest = await self._longest_duration(record, action)
            now, author = self._core.clock.now(), self._writer.author
            after = perform_action(record.resource, action, now=now, author=author, longest=longest, ids=self._core.ids)
            promised = await self._promise_extension(record.resource, after)
            return after if dry_run else await self._write_action(Edit(record, after, verb=verb), asked, *promised)

        return self._show(await retry_conflicts(attempt, unless=lambda error: at == error.wanted))

    def _sealed(self, action: Action) -> Action:
        """Return an action without secrets in clear."""
        return self._core.sealing.keep_sealed(None, self._core.sealing.seal_typed(action))

    def _with_sealed_action(self, item: BatchItem) -> BatchItem:
        sealed = self._sealed(item.action) if isinstance(item, ActionItem) else None
        return msgspec.structs.replace(item, action=sealed) if sealed is not None else item

    async def step(self, resource: R, status: Status, *, reason: str = "", reported: bytes = b"") -> R:
        """Do what the plane's `step` does. `reported` is the status as it was sent: its unknown fields are kept."""
        self._writer.require_permission(Verb.STEP, type(resource))
        require_actor(type(resource), self.caller.actor)
        key, wanted = key_of(resource), resource.metadata.resource_version

        async def attempt() -> R:
            record = await self._writer.require(ref_of(resource), at=wanted)
            return await self._step(record, status, reason, reported)

        return await retry_conflicts(attempt, unless=lambda error: error.key == key)

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        self._writer.require_service("take leases")
        return await self._core.store.acquire(name, holder, ttl_seconds=ttl_seconds)

    async def wait_until_vacant(self, name: str) -> None:
        self._writer.require_service("read leases")
        await wait_until_vacant(self._core.store, name)

    async def renew(self, *leases: Lease) -> None:
        self._writer.require_service("renew leases")
        await self._core.store.renew(*leases)

    async def release(self, lease: Lease) -> None:
        self._writer.require_service("release leases")
        await self._core.store.release(lease)

    async def lease(self, name: str) -> Lease | None:
        self._writer.require_service("read leases")
        return await self._core.store.lease(name)

    async def _step(self, record: Record[R], status: Status, reason: str, reported: bytes) -> R:
        now, by, before = self._core.clock.now(), self.caller.actor, record.resource
        after = take_step(before, status, by=by, author=self._writer.author, now=now, reason=reason)
        stored = record.entry.value
        if reported and is_from_newer(reported, type(status)):
            record = with_reported_status(record, reported)
        if after is before and (record.entry.value is stored or encode_change(record, after) == stored):
            return after
        if self._core.promises is not None:
            refuse_new_claims(before, after)
            refuse_overrun(before, after)
        after, granted = await self._grant_time(before, after)
        made = await records_for_step(self._core.store, self._core.fleet, before, after, now)
        edit = Edit(record, made.after, removed=is_removable(after))
        held = {op.key for op in granted}  # a guard that is written at a revision is not written a second time
        ops = [*granted, *(op for op in made.ops if op.key not in held)]
        return await self._writer.write(edit, *ops, told=made.events, reported=True)

    async def _grant_time(self, before: R, after: R) -> tuple[R, Sequence[Op]]:
        """Return a session that begins to run with its time from now on, and what promises it."""
        promises = self._core.promises
        if promises is None or not (isinstance(before, LabletSession) and isinstance(after, LabletSession)):
            return after, ()
        made, ops = await promises.grant_time(before, after)
        assert isinstance(made, type(after))
        return made, ops

    async def _change(self, ref: Ref[R], wanted: Callable[[R], Resource], *, at: int | None, dry_run: bool) -> R:
        self._writer.require_permission(Verb.WRITE, ref.kind)

        async def attempt() -> R:
            record = await self._writer.require(ref, at=at)
            document = wanted(record.resource)
            assert isinstance(document, type(record.resource)), "it was read as this kind"
            draft = await self._admission.admit_change(record, document)
            if draft is None:
                return record.resource
            if dry_run:
                return self._writer.rehearse(draft.edit, *draft.checks)
            return await self._writer.write(draft.edit, *draft.checks)

        own = ref.kind_info.prefix
        return self._show(
            await retry_conflicts(attempt, unless=lambda error: at is not None and error.key.startswith(own))
        )

    def _show(self, resource: R) -> R:
        """Return an object as the caller sees it."""
        return show_to(self.caller, resource)

    async def _promise_seats(self, draft: Draft[R]) -> tuple[Draft[R], Sequence[Op]]:
        """Return a new booking's draft with its seats, and the operations that promise them."""
        if self._core.promises is None:
            return draft, ()
        found = await self._core.promises.promise_bookings([draft.edit.after], [draft.target])
        (made,) = found.made
        assert isinstance(made, type(draft.edit.after))
        if self._core.promises.quota is not None and found.ops:
            self._core.promises.quota.check_prices(self.caller, found.made)
        return dataclasses.replace(draft, edit=dataclasses.replace(draft.edit, after=made)), found.ops

    async def _promise_extension(self, before: R, after: R) -> Sequence[Op]:
        if self._core.promises is None or not (isinstance(before, LabletSession) and isinstance(after, LabletSession)):
            return ()
        quota = self._core.promises.quota
        counted = await quota.check_extension(self.caller, before, after) if quota else ()
        return [*counted, *await self._core.promises.extend_session(before, after)]

    async def _retry_in_turn(
        self, resource: R, attempt: Callable[[], Awaitable[R]], *, unless: Callable[[Conflict], bool]
    ) -> R:
        """Retry as `retry_conflicts` does; a booking waits for its turn first."""
        promises = self._core.promises
        if promises is None or not isinstance(resource, LabletSession | Reservation):
            return await retry_conflicts(attempt, unless=unless)
        async with promises.lock_guards([resource], promises.quota_keys(self.caller, [resource])):
            return await retry_conflicts(attempt, unless=unless, pause=promises.back_off)

    async def _write_action(self, edit: Edit[R], asked: IdempotentRequest | None, *ops: Op) -> R:
        record, after = edit.before, edit.after
        assert record is not None, "an action needs an object"
        kept = [asked.record_answer(after, self._core.clock.now())] if asked else []
        if after is not record.resource:
            return await self._writer.write(edit, *kept, *ops)
        if kept:
            await self._writer.commit_edits(ops=[*kept, CheckRevision(record.key, record.revision)])
        return after

    async def _longest_duration(self, record: Record[R], action: Action) -> timedelta | None:
        """Return how long a session may last when a caller other than staff extends it; None means no limit."""
        wanted = reference_of(record.resource)
        if wanted is None or not isinstance(action, Extend) or self.caller.role in SEES_ALL:
            return None
        for target in await read_targets(self._core.store, wanted):
            if isinstance(target, LabletDefinition):
                return timedelta(minutes=target.spec.max_duration_minutes)
        return None

    def _idempotent_request(
        self, given: str | None, verb: str, asked: Resource | Action | BatchRequest
    ) -> IdempotentRequest | None:
        return None if given is None else IdempotentRequest.of(self.caller, given, verb, asked, self._core.sealing)


def read_with_faults(faults: Sequence[Fault], document: object) -> Resource:
    """Read a document as its type. Raise Invalid with the given faults and the document's own."""
    try:
        made = parse_document(document)
    except Invalid as error:
        raise Invalid(*faults, *error.faults) from error
    if faults:
        raise Invalid(*faults)
    return made


def _required_revision(document: object) -> int | None:
    """Return the revision that a document requires; a malformed one is reported when the document is read."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    revision = metadata.get("resource_version") if isinstance(metadata, Mapping) else None
    return revision or None if isinstance(revision, int) else None
