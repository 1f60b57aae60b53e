"""The plane in process: the only writer, on the store itself.

`ControlPlane` is made once a process by `compose`; `api` asks it for the plane of each caller, controllers in the same
process for theirs. What each verb does stands in the files it calls.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from lcm.control import deletion
from lcm.control.actions import acted
from lcm.control.applying import Application
from lcm.control.drafts import Draft, Drafts, Quota, unlimited
from lcm.control.events import measured
from lcm.control.importing import Import
from lcm.control.ledger import Edit, Ledger, persistently
from lcm.control.listing import listed
from lcm.control.patching import patched
from lcm.control.plane import (
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
    WorkerRef,
    ref_of,
)
from lcm.control.records import CODEC, Record, key_of, telemetry_key, written
from lcm.control.references import hold, sought, stored
from lcm.control.requests import Request
from lcm.control.stepping import over, stepped
from lcm.control.watching import LocalWatch
from lcm.model.clock import Clock
from lcm.model.defaults import beneath
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Conflict, Fault, Invalid
from lcm.model.identity import SEES_ALL, Caller, Verb
from lcm.model.kinds import Resource
from lcm.model.resource import API_VERSION, Status
from lcm.model.selector import EVERYTHING, Where
from lcm.model.validate import read
from lcm.model.worker import LabWorker, WorkerTelemetry
from lcm.store.base import ABSENT, Check, Fence, Lease, Op, Put, Store
from lcm.system import new_id


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
    ) -> None:
        """Work on a store; `defaults` are put beneath the documents of each kind, `quota` is asked before creates."""
        self.store = store
        self.clock = clock
        self.ids = ids
        self.quota = quota
        self._defaults = defaults

    @property
    def epoch(self) -> str:
        """Name the history that revisions belong to."""
        return self.store.epoch

    def acting(self, caller: Caller) -> "LocalPlane":
        """Give the plane of one caller."""
        return LocalPlane(self, caller)

    def read(self, document: object, kind: type[Resource] | None = None) -> Resource:
        """Give a document its type, with what the settings say where it says nothing; raises Invalid."""
        if not isinstance(document, Mapping):
            return read(document)
        if kind is not None and document.get("kind", kind.__name__) != kind.__name__:
            raise Invalid(Fault("kind", f"{document['kind']!r} is not what is written here", f"use {kind.__name__}"))
        if kind is not None:
            document = {"api_version": API_VERSION, "kind": kind.__name__, **document}
        defaults = self._defaults.get(str(document.get("kind")))
        return read(beneath(document, defaults) if defaults else document)


class LocalPlane:
    """What one caller may see and do."""

    def __init__(self, core: ControlPlane, caller: Caller, fence: Fence | None = None) -> None:
        self._core = core
        self._ledger = Ledger(core.store, core.clock, caller, fence)
        self._drafts = Drafts(self._ledger, core.ids)

    @property
    def caller(self) -> Caller:
        return self._ledger.caller

    def under(self, fence: Fence) -> "LocalPlane":
        return LocalPlane(self._core, self.caller, fence)

    async def get(self, ref: Ref[R]) -> R | None:
        self._ledger.allow(Verb.READ, ref.kind)
        record = await self._ledger.find(ref)
        return record.resource if record else None

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: Where = EVERYTHING,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> Listing[R]:
        self._ledger.allow(Verb.READ, kind)
        return await listed(self._ledger, kind, namespace=namespace, where=where, limit=limit, cursor=cursor)

    def watch(self, *kinds: type[Resource], after: int) -> LocalWatch:
        return LocalWatch(self._ledger, kinds, after)

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        self._ledger.allow(Verb.WRITE, type(resource))
        asked = self._request(request, "create", resource)

        async def attempt() -> R:
            if asked is not None and (earlier := await asked.earlier(self._ledger, ref_of(resource))):
                return earlier.resource
            draft = await self._drafts.new(resource)
            extra = await self._core.quota(self.caller, [draft.edit.after])
            if dry_run:
                return await self._free(draft)
            kept = [asked.answered(draft.edit.after, self._core.clock.now())] if asked else []
            return await self._ledger.write(draft.edit, *_held(draft), *extra, *kept)

        try:
            return await persistently(attempt, unless=lambda error: error.key == key_of(resource))
        except Conflict:
            # Somebody else may have sent this very request.
            if asked is not None and (earlier := await asked.earlier(self._ledger, ref_of(resource))):
                return earlier.resource
            raise

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        at = at if at is not None else resource.metadata.resource_version or None
        return await self._change(ref_of(resource), lambda _: resource, at=at, dry_run=dry_run)

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        def wanted(stored: R) -> R:
            made = read(patched(stored, document))
            assert isinstance(made, type(stored))
            return made

        return await self._change(ref, wanted, at=at, dry_run=dry_run)

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        self._ledger.allow(Verb.WRITE, ref.kind)
        return await deletion.delete(self._ledger, ref, at=at, dry_run=dry_run)

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        application = Application(self._ledger, self._drafts, self._core.quota, self._core.read)
        return await application.run(documents, dry_run=dry_run)

    async def act(self, ref: Ref[R], action: Action, *, dry_run: bool = False, request: str | None = None) -> R:
        self._ledger.allow(Verb.ACT, ref.kind)
        asked = self._request(request, ref.key, action)

        async def attempt() -> R:
            if asked is not None and (earlier := await asked.earlier(self._ledger, ref)):
                return earlier.resource
            record = await self._ledger.need(ref)
            longest = await self._longest(record, action)
            now, author = self._core.clock.now(), self._ledger.author
            after = acted(record.resource, action, now=now, author=author, longest=longest)
            return after if dry_run else await self._acted(record, after, asked)

        return await persistently(attempt, unless=lambda _: False)

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        self._ledger.allow(Verb.STEP, type(resource))
        record = await self._ledger.need(ref_of(resource))
        wanted = resource.metadata.resource_version
        if record.revision != wanted:
            raise Conflict(record.key, wanted=wanted, found=record.revision)
        now, by = self._core.clock.now(), self.caller.actor
        after = stepped(record.resource, status, by=by, author=self._ledger.author, now=now, reason=reason)
        if after is record.resource:
            return after
        return await self._ledger.write(Edit(record, after, removed=over(after)))

    async def report(self, ref: WorkerRef, telemetry: WorkerTelemetry) -> None:
        self._ledger.allow(Verb.STEP, LabWorker)

        async def attempt() -> None:
            record = await self._ledger.need(ref)
            key = telemetry_key(record.resource)
            entry = await self._core.store.get(key)
            if entry and CODEC.decode(entry.value, WorkerTelemetry).collected_at >= telemetry.collected_at:
                return
            put = Put(key, written(telemetry), at=entry.revision if entry else ABSENT)
            event = measured(record.resource, telemetry, now=self._core.clock.now())
            await self._ledger.commit(ops=[put, Check(record.key, record.revision)], told=[event])

        await persistently(attempt, unless=lambda _: False)

    async def telemetry(self, ref: WorkerRef) -> WorkerTelemetry | None:
        self._ledger.allow(Verb.READ, LabWorker)
        record = await self._ledger.find(ref)
        entry = await self._core.store.get(telemetry_key(record.resource)) if record else None
        return CODEC.decode(entry.value, WorkerTelemetry) if entry else None

    async def import_workers(self, found: BulkImport) -> Imported:
        self._ledger.served("import workers")
        return await Import(self._ledger, self._drafts, found).run()

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        self._ledger.served("take leases")
        return await self._core.store.acquire(name, holder, ttl_seconds=ttl_seconds)

    async def renew(self, lease: Lease) -> None:
        self._ledger.served("renew leases")
        await self._core.store.renew(lease)

    async def release(self, lease: Lease) -> None:
        self._ledger.served("release leases")
        await self._core.store.release(lease)

    async def lease(self, name: str) -> Lease | None:
        self._ledger.served("read leases")
        return await self._core.store.lease(name)

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
                draft.edit.ops()
                return draft.edit.after
            return await self._ledger.write(draft.edit, *_held(draft))

        own = f"{ref.known.plural}/"
        return await persistently(attempt, unless=lambda error: at is not None and error.key.startswith(own))

    async def _free(self, draft: Draft[R]) -> R:
        """Tell, without writing, whether the object could be made."""
        made = draft.edit.after
        draft.edit.ops()
        if (entry := await self._core.store.get(key_of(made))) is not None:
            raise Conflict(entry.key, wanted=ABSENT, found=entry.revision)
        return made

    async def _acted(self, record: Record[R], after: R, asked: Request | None) -> R:
        kept = [asked.answered(after, self._core.clock.now())] if asked else []
        if after is not record.resource:
            return await self._ledger.write(Edit(record, after), *kept)
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
        return None if given is None else Request.of(self.caller, given, verb, asked)


def _held(draft: Draft[R]) -> Sequence[Op]:
    return () if draft.target is None else (hold(draft.target),)
