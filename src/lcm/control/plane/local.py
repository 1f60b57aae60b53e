"""The plane in process: the only writer, on the store itself.

`ControlPlane` is made once a process by `compose`; `api` asks it for the plane of each caller, controllers in the same
process for theirs. What each verb does stands in the files it calls.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from lcm.control.access.audit import NOWHERE, Origin, Pen
from lcm.control.access.sealing import Sealer, Sealing
from lcm.control.accounts.billing import read_costs
from lcm.control.accounts.licences import free, read_ledger
from lcm.control.accounts.step_records import NO_LIMITS, Fleet, beside
from lcm.control.admission.admit import Draft, Drafts, Quota, unlimited
from lcm.control.admission.amend import patched
from lcm.control.admission.references import hold, sought, stored
from lcm.control.booking.calendar import Calendar
from lcm.control.booking.guards import refuse_new_claims, refuse_overrun
from lcm.control.booking.promise import Desk, timed
from lcm.control.objects import deletion
from lcm.control.objects.actions import acted
from lcm.control.objects.apply import Application
from lcm.control.objects.imports import Import
from lcm.control.objects.reads import Asked, LocalWatch, listed
from lcm.control.objects.records import Record, key_of
from lcm.control.objects.requests import Request
from lcm.control.objects.steps import over, permit, stepped
from lcm.control.objects.writer import Edit, Ledger, persistently, taken
from lcm.control.plane.local_learning import Learning
from lcm.control.plane.local_placement import Placing
from lcm.control.plane.protocol import (
    PAGE,
    Action,
    Applied,
    BulkImport,
    Document,
    Extend,
    Imported,
    Listing,
    R,
    Ref,
    Sample,
    WorkerRef,
    ref_of,
)
from lcm.control.telemetry import alerts, observations, reports
from lcm.control.telemetry import reports as history
from lcm.control.telemetry.idleness import USUAL, Judgement, detect_idle
from lcm.control.telemetry.observations import Library
from lcm.model.access.identity import SEES_ALL, STAFF, Caller, Verb
from lcm.model.base.clock import Clock
from lcm.model.base.defaults import beneath, kept
from lcm.model.base.errors import Conflict, Fault, Invalid
from lcm.model.base.resource import API_VERSION, Status
from lcm.model.base.selector import EVERYTHING, Where
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.validate import read
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Alert, Complaint
from lcm.model.telemetry.learning import Review
from lcm.placement.claims import Terms
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import ABSENT, LEASES_PREFIX, Check, Fence, Lease, Op, Store, everything
from lcm.system.clock import new_id


async def until_vacated(store: Store, name: str) -> None:
    """Wait until whoever holds a lease does no longer; Relist when what happens to it can be followed no longer."""
    key = LEASES_PREFIX + name
    found = await everything(store, key)
    if all(entry.key != key for entry in found.entries):
        return
    async with store.watch(key, after=found.revision) as watch:
        async for changed in watch:
            if any(change.key == key and change.entry is None for change in changed.changes):
                return


def half() -> float:
    """Stand for chance where nothing is left to it."""
    return 0.5


class ControlPlane:
    """Everything that is the same for all callers."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        defaults: Mapping[str, Document] = {},
        quota: Quota = unlimited,
        sealer: Sealer | None = None,
        record_ids: Callable[[], str] = new_id,
        judgement: Judgement = USUAL,
        fleet: Fleet = NO_LIMITS,
        terms: Terms | None = None,
        chance: Callable[[], float] = half,
        artifacts: Artifacts | None = None,
        review: Review = observations.USUAL,
    ) -> None:
        """Work on a store; `defaults` are put beneath the documents of each kind, `quota` is asked before creates.

        `sealer` has the keys for secrets that people write in clear; without it such documents are refused.
        `record_ids` names requests and audit records, apart from objects: those are named alike wherever one asks from.
        `judgement` says by what workers are judged idle where the SystemSettings object says nothing.
        `fleet` says how many licence seats there are and what machines cost.
        With `terms` slots are promised when they are booked: the calendar of `desk` must run. Without them nothing is.
        `artifacts` keeps lab files, by which new definitions are completed, and what sessions leave; without it no file
        is read. `review` says when what labs use is to be looked at, where the SystemSettings object says nothing.
        """
        self.store = store
        self.clock = clock
        self.ids = ids
        self.quota = quota
        self.sealing = Sealing(sealer)
        self.record_ids = record_ids
        self.fleet = fleet
        self.judgement = judgement
        self.library = Library(artifacts, review)
        self.pen = Pen(store, clock, record_ids)
        """Writes down what callers do to what is no object."""
        self._defaults = defaults
        self.desk: Desk | None = None
        """Where slots are promised."""
        if terms is not None:
            calendar = Calendar(self.acting(deletion.PLANE), terms=terms, licences=fleet.seats, prices=fleet.prices)
            self.desk = Desk(store, calendar, clock=clock, chance=chance)

    @property
    def epoch(self) -> str:
        """Name the history that revisions belong to."""
        return self.store.epoch

    def acting(self, caller: Caller, origin: Origin = NOWHERE) -> "LocalPlane":
        """Give the plane of one caller; the audit says of its writes that they came from the origin."""
        return LocalPlane(self, caller, origin=origin)

    def read(self, document: object, kind: type[Resource] | None = None, *, onto: Resource | None = None) -> Resource:
        """Give a document its type, with what the settings say where it says nothing; raises Invalid.

        What it is put `onto` keeps what the settings said when that was made.
        What it has in clear is sealed before anything else looks at it.
        """
        if not isinstance(document, Mapping):
            return read(document)
        known = KINDS.get(str(document.get("kind"))) if kind is None else KINDS[kind.__name__]
        said: dict[str, Any]
        said, faults = self.sealing.raw(document, known.struct if known else None)
        if kind is not None and said.get("kind", kind.__name__) != kind.__name__:
            raise Invalid(Fault("kind", f"{said['kind']!r} is not what is written here", f"use {kind.__name__}"))
        if kind is not None:
            said = {"api_version": API_VERSION, "kind": kind.__name__, **said}
        return read_beside(faults, self.filled(said, onto))

    def filled(self, document: Document, onto: Resource | None = None) -> Document:
        """Put beneath a document what the settings say, or said when what it is put onto was made."""
        kind = str(document.get("kind"))
        defaults = self._defaults.get(kind, {})
        if onto is not None and kind == onto.kind:
            defaults = kept(kind, msgspec.to_builtins(onto.spec), defaults)
        return beneath(document, defaults) if defaults.get("spec") else document


class LocalPlane(Placing, Learning):
    """What one caller may see and do."""

    def __init__(
        self, core: ControlPlane, caller: Caller, fence: Fence | None = None, *, origin: Origin = NOWHERE
    ) -> None:
        super().__init__(Ledger(core.store, core.clock, caller, fence, origin, core.record_ids), core.desk, core.ids)
        self._core = core
        self._library = core.library
        self._drafts = Drafts(self._ledger, core.ids, core.sealing, core.library)

    @property
    def caller(self) -> Caller:
        return self._ledger.caller

    def under(self, fence: Fence) -> "LocalPlane":
        return LocalPlane(self._core, self.caller, fence, origin=self._ledger.origin)

    async def get(self, ref: Ref[R]) -> R | None:
        self._ledger.allow(Verb.READ, ref.kind)
        record = await self._ledger.recall(ref)
        return record.resource if record else None

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: Where = EVERYTHING,
        limit: int = PAGE,
        cursor: str | None = None,
        archived: bool = False,
    ) -> Listing[R]:
        self._ledger.allow(Verb.READ, kind)
        return await listed(self._ledger, Asked(kind, namespace, where, limit, archived), cursor)

    def watch(self, *kinds: type[Resource], after: int) -> LocalWatch:
        return LocalWatch(self._ledger, kinds, after)

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        self._ledger.allow(Verb.WRITE, type(resource))
        resource = self._core.sealing.typed(resource)
        asked = self._request(request, "create", resource)

        async def attempt() -> R:
            if asked is not None and (earlier := await asked.earlier(self._ledger, ref_of(resource))):
                return earlier.resource
            draft = await self._drafts.new(resource)
            extra = await self._core.quota(self.caller, [draft.edit.after])
            draft, promised = await self._promised(draft)
            if dry_run:
                return await self._free(draft)
            kept = [asked.answered(draft.edit.after, self._core.clock.now())] if asked else []
            return await self._ledger.write(draft.edit, *_held(draft), *extra, *promised, *kept)

        try:
            return await self._in_turn(resource, attempt, unless=lambda error: error.key == key_of(resource))
        except Conflict as error:
            # Somebody else may have sent this very request.
            if asked is not None and (earlier := await asked.earlier(self._ledger, ref_of(resource))):
                return earlier.resource
            if error.key == key_of(resource) and await self._ledger.find(ref_of(resource)) is None:
                raise taken(ref_of(resource)) from error
            raise

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        at = at if at is not None else resource.metadata.resource_version or None
        sealed = self._core.sealing.typed(resource)
        return await self._change(ref_of(resource), lambda _: sealed, at=at, dry_run=dry_run)

    async def put(self, ref: Ref[R], document: object, *, at: int | None = None, dry_run: bool = False) -> R:
        """Do what `replace` does with a document as somebody wrote it; what the settings fill in stays as it is."""
        kind: type[Any] = ref.kind

        def wanted(stored: R) -> R:
            made = self._core.read(document, kind, onto=stored)
            assert isinstance(made, type(stored))
            return made

        return await self._change(ref, wanted, at=at or _demanded(document), dry_run=dry_run)

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        sealed, faults = self._core.sealing.raw(document, ref.kind)

        def wanted(stored: R) -> R:
            made = read_beside(faults, self._core.filled(patched(stored, sealed)))
            assert isinstance(made, type(stored))
            return made

        return await self._change(ref, wanted, at=at, dry_run=dry_run)

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        self._ledger.allow(Verb.WRITE, ref.kind)
        return await deletion.delete(self._ledger, ref, at=at, dry_run=dry_run)

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        application = Application(self._ledger, self._drafts, self._core.quota, self._core.read, self._core.desk)
        return await application.run(documents, dry_run=dry_run)

    async def act(self, ref: Ref[R], action: Action, *, dry_run: bool = False, request: str | None = None) -> R:
        self._ledger.allow(Verb.ACT, ref.kind)
        action = self._core.sealing.kept(None, self._core.sealing.typed(action))
        asked = self._request(request, ref.key, action)

        async def attempt() -> R:
            if asked is not None and (earlier := await asked.earlier(self._ledger, ref)):
                return earlier.resource
            record = await self._ledger.need(ref)
            longest = await self._longest(record, action)
            now, author = self._core.clock.now(), self._ledger.author
            after = acted(record.resource, action, now=now, author=author, longest=longest, ids=self._core.ids)
            promised = await self._prolonged(record.resource, after)
            verb = str(type(action).__struct_config__.tag)
            return after if dry_run else await self._acted(Edit(record, after, verb=verb), asked, *promised)

        return await persistently(attempt, unless=lambda _: False)

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        self._ledger.allow(Verb.STEP, type(resource))
        permit(type(resource), self.caller.actor)
        key, wanted = key_of(resource), resource.metadata.resource_version

        async def attempt() -> R:
            record = await self._ledger.need(ref_of(resource))
            if record.revision != wanted:
                raise Conflict(record.key, wanted=wanted, found=record.revision)
            return await self._step(record, status, reason)

        return await persistently(attempt, unless=lambda error: error.key == key)

    async def report(self, ref: WorkerRef, telemetry: WorkerTelemetry) -> WorkerTelemetry:
        self._ledger.allow(Verb.STEP, LabWorker)
        return await reports.report(self._ledger, ref, telemetry)

    async def telemetry(self, ref: WorkerRef) -> WorkerTelemetry | None:
        self._ledger.allow(Verb.READ, LabWorker)
        return await reports.telemetry(self._ledger, ref)

    async def history(self, ref: WorkerRef, *, since: datetime) -> Sequence[Sample]:
        self._ledger.allow(Verb.READ, LabWorker)
        return await history.history(self._ledger, ref, since)

    async def detect_idle(self, ref: WorkerRef) -> IdleVerdict:
        self._ledger.allow(Verb.STEP, LabWorker)
        return await detect_idle(self._ledger, ref, self._core.judgement, self._core.desk)

    async def complain(self, ref: Ref[R], complaint: Complaint) -> None:
        self._ledger.allow(Verb.STEP, ref.kind)
        await alerts.complain(self._ledger, ref, complaint)

    async def settle(self, ref: Ref[R], alert: str) -> None:
        self._ledger.allow(Verb.STEP, ref.kind)
        await alerts.settle(self._ledger, ref, alert)

    async def alerts(self) -> Sequence[Alert]:
        self._ledger.among(SEES_ALL, "read alerts")
        return await alerts.every_alert(self._core.store)

    async def licences(self) -> LicenceLedger:
        self._ledger.among(SEES_ALL, "read the ledger of licences")
        return await read_ledger(self._core.store, self._core.fleet.seats)

    async def free_licence(self, worker_id: str) -> None:
        self._ledger.among(STAFF, "free licence seats")
        await persistently(lambda: free(self._ledger, worker_id), unless=lambda _: False)

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        self._ledger.among(SEES_ALL, "read what workers cost")
        if since >= until:
            raise Invalid(Fault("since", "not before until", "use an earlier moment"))
        return await read_costs(self._core.store, since=since, until=until, now=self._core.clock.now())

    async def import_workers(self, found: BulkImport) -> Imported:
        self._ledger.served("import workers")
        return await Import(self._ledger, self._drafts, found).run()

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        self._ledger.served("take leases")
        return await self._core.store.acquire(name, holder, ttl_seconds=ttl_seconds)

    async def vacated(self, name: str) -> None:
        self._ledger.served("read leases")
        await until_vacated(self._core.store, name)

    async def renew(self, lease: Lease) -> None:
        self._ledger.served("renew leases")
        await self._core.store.renew(lease)

    async def release(self, lease: Lease) -> None:
        self._ledger.served("release leases")
        await self._core.store.release(lease)

    async def lease(self, name: str) -> Lease | None:
        self._ledger.served("read leases")
        return await self._core.store.lease(name)

    async def _step(self, record: Record[R], status: Status, reason: str) -> R:
        now, by, before = self._core.clock.now(), self.caller.actor, record.resource
        after = stepped(before, status, by=by, author=self._ledger.author, now=now, reason=reason)
        if after is before:
            return after
        if self._core.desk is not None:
            refuse_new_claims(before, after)
            refuse_overrun(before, after)
        made = await beside(self._core.store, self._core.fleet, before, after, now)
        edit = Edit(record, made.after, removed=over(after))
        return await self._ledger.write(edit, *made.ops, told=made.told, reported=True)

    async def _change(self, ref: Ref[R], wanted: Callable[[R], R], *, at: int | None, dry_run: bool) -> R:
        self._ledger.allow(Verb.WRITE, ref.kind)

        async def attempt() -> R:
            record = await self._ledger.need(ref)
            if at is not None and record.revision != at:
                raise Conflict(record.key, wanted=at, found=record.revision)
            draft = await self._drafts.changed(record, wanted(record.resource))
            if draft is None:
                return record.resource
            if dry_run:
                return self._ledger.rehearse(draft.edit, *_held(draft))
            return await self._ledger.write(draft.edit, *_held(draft))

        own = f"{ref.known.plural}/"
        return await persistently(attempt, unless=lambda error: at is not None and error.key.startswith(own))

    async def _free(self, draft: Draft[R]) -> R:
        """Tell, without writing, whether the object could be made."""
        made = self._ledger.rehearse(draft.edit, *_held(draft))
        if (entry := await self._core.store.get(key_of(made))) is not None:
            raise Conflict(entry.key, wanted=ABSENT, found=entry.revision)
        return made

    async def _promised(self, draft: Draft[R]) -> tuple[Draft[R], Sequence[Op]]:
        """Give a new booking its seats."""
        if self._core.desk is None:
            return draft, ()
        found = await self._core.desk.promised([draft.edit.after], [draft.target])
        (made,) = found.made
        assert isinstance(made, type(draft.edit.after))
        return dataclasses.replace(draft, edit=dataclasses.replace(draft.edit, after=made)), found.ops

    async def _prolonged(self, before: R, after: R) -> Sequence[Op]:
        if self._core.desk is None or not (isinstance(before, LabletSession) and isinstance(after, LabletSession)):
            return ()
        return await self._core.desk.extended(before, after)

    async def _in_turn(
        self, resource: R, attempt: Callable[[], Awaitable[R]], *, unless: Callable[[Conflict], bool]
    ) -> R:
        """Try again and again, as `persistently`, in one's turn if seats are to be chosen."""
        desk = self._core.desk
        if desk is None or not timed(resource):
            return await persistently(attempt, unless=unless)
        async with desk.turn([resource]):
            return await persistently(attempt, unless=unless, pause=desk.breathe)

    async def _acted(self, edit: Edit[R], asked: Request | None, *ops: Op) -> R:
        record, after = edit.before, edit.after
        assert record is not None, "an action needs an object"
        kept = [asked.answered(after, self._core.clock.now())] if asked else []
        if after is not record.resource:
            return await self._ledger.write(edit, *kept, *ops)
        if kept:
            await self._ledger.commit(ops=[*kept, Check(record.key, record.revision)])
        return after

    async def _longest(self, record: Record[R], action: Action) -> timedelta | None:
        """Look up how long a session may last, when somebody other than staff wants more."""
        wanted = sought(record.resource)
        if wanted is None or not isinstance(action, Extend) or self.caller.role in SEES_ALL:
            return None
        for target in await stored(self._core.store, wanted):
            if isinstance(target, LabletDefinition):
                return timedelta(minutes=target.spec.max_duration_minutes)
        return None

    def _request(self, given: str | None, verb: str, asked: Resource | Action) -> Request | None:
        return None if given is None else Request.of(self.caller, given, verb, asked, self._core.sealing)


def read_beside(faults: Sequence[Fault], document: object) -> Resource:
    """Give a document its type, unless it has faults of its own besides those known already."""
    try:
        made = read(document)
    except Invalid as error:
        raise Invalid(*faults, *error.faults) from error
    if faults:
        raise Invalid(*faults)
    return made


def _demanded(document: object) -> int | None:
    """Give the revision that a document demands; what is none is found when it is read."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    revision = metadata.get("resource_version") if isinstance(metadata, Mapping) else None
    return revision or None if isinstance(revision, int) else None


def _held(draft: Draft[R]) -> Sequence[Op]:
    return () if draft.target is None else (hold(draft.target),)
