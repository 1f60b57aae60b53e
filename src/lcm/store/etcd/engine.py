"""The cluster engine: etcd 3.4 or later. A commit is one transaction, and revisions are etcd's own.

Replicas on several machines may share it. `store.etcd.wire` connects, `store.etcd.keys` lays out keys and values,
`store.etcd.transactions` builds commits and restores, `store.etcd.watch` follows changes.
"""

from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final, Self

from lcm.model.base.errors import Fault, Gone, Invalid, Later, Relist, Stuck, TooLarge, WentBack
from lcm.store.base import (
    ABSENT,
    EVENTS_KEY,
    LEASES_PREFIX,
    MAX_OPERATIONS,
    Cursor,
    Entry,
    EventReader,
    Fence,
    Lease,
    Op,
    Page,
    Put,
    StoreUsage,
    check_commit,
    check_key,
    check_lease,
    check_scan,
    collect_puts,
    compacted_error,
    deposed_error,
    future_revision_error,
    has_labels,
    renew_each,
)
from lcm.store.etcd.keys import EPOCH_KEY, EtcdKeys, decode_lease, encode_lease
from lcm.store.etcd.reads import GroupedReads, PageEnds
from lcm.store.etcd.transactions import (
    EtcdRestore,
    add_failure_read,
    add_put,
    build_commit,
    build_read,
    build_state_reads,
    build_write_probe,
    find_failure,
    nest_transaction,
    require_revision,
    restoring_error,
)
from lcm.store.etcd.watch import RESTORED, EtcdWatch
from lcm.store.etcd.wire import (
    CALL_SECONDS,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    EtcdClient,
    EtcdTls,
    FutureRevision,
    Message,
    UnmetPrecondition,
    compact_history,
    rpc,
)
from lcm.store.hub import BACKLOG, CLOSED
from lcm.system.clock import new_epoch

_FIRST_PAGE_KEYS: Final = 32
_MAX_PAGE_KEYS: Final = 500
_PAGE_BYTES: Final = 4_000_000
"""A scan first requests few keys, and then as many as make about one answer of this size."""
_MAX_TRIES: Final = 5
DEFAULT_QUOTA_BYTES: Final = 2 * 1024**3
"""How large a member may grow unless it was started with another `--quota-backend-bytes`."""


class EtcdStore:
    """A store shared through an etcd cluster. Create it with `open`."""

    def __init__(self, wire: EtcdClient, root: str, *, backlog: int, quota_bytes: int) -> None:
        self._client = wire
        wire.on_went_back = self._fail_watches
        self._quota_bytes = quota_bytes
        self._keys = EtcdKeys(root)
        self._reads = GroupedReads(wire, self._keys)
        self._page_ends = PageEnds()
        self._backlog = backlog
        self._epoch = ""
        self._watches: set[EtcdWatch] = set()
        self._closed = False

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        *,
        root: str = "/lcm/",
        tls: EtcdTls | None = None,
        user: str = "",
        password: str = "",
        backlog: int = BACKLOG,
        call_seconds: float = CALL_SECONDS,
        interrupted_load: bool = False,
        quota_bytes: int = DEFAULT_QUOTA_BYTES,
    ) -> Self:
        """Connect. `quota_bytes` is how large etcd may grow, which it does not tell.

        After an interrupted restore raises Stuck, unless `interrupted_load` says that `load` follows.
        """
        if not endpoints:
            raise Invalid(Fault("endpoints", "there are none", "name at least one as HOST:PORT"))
        wire = EtcdClient(endpoints, tls=tls, user=user, password=password, call_seconds=call_seconds)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(wire.close)
            store = cls(wire, root, backlog=backlog, quota_bytes=quota_bytes)
            if user:
                await wire.sign_in()
            await store._init_epoch(interrupted_load=interrupted_load)
            undo.pop_all()
        return store

    @property
    def epoch(self) -> str:
        return self._epoch

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        check_commit(ops, events, fence)
        txn = build_commit(self._keys, ops, events, fence)
        if len(txn.compare) > MAX_OPERATIONS:  # with our own precondition, more than etcd accepts in one list
            return await self._commit_full(txn, ops, fence)
        answer = await self._client.call_once(TXN, txn)
        if not answer.succeeded:
            raise find_failure(ops, fence, answer.responses) or AssertionError("etcd refused what was met")
        revision: int = answer.header.revision
        return revision

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        return await self._reads.read(key)

    async def get_all(self, *keys: str) -> Sequence[Entry | None]:
        for key in keys:
            check_key(key)
        return await self._reads.read_all(keys)

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        check_scan(limit)
        low, high = self._keys.encode_range(prefix)
        revision, step = 0, min(limit + 1, _FIRST_PAGE_KEYS)
        if cursor is not None:
            low, revision = self._keys.encode_key(cursor.key) + b"\0", cursor.revision
        found: list[Entry] = []
        while True:
            end = self._page_ends.find(low, high)
            answer, present, step = await self._read_page(low, end, revision, step)
            revision = revision or present
            after = self._page_ends.note(low, answer.kvs[-1].key) if answer.more else end
            for kv in answer.kvs:
                entry = self._keys.decode_entry(kv)
                if not has_labels(entry.labels, labels):
                    continue
                if len(found) == limit:
                    return Page(found, revision, Cursor(revision, found[-1].key))
                found.append(entry)
            if not answer.more and end == high:
                return Page(found, revision, None)
            if len(answer.kvs) < step // 2:
                self._page_ends.forget(low)
            low = after
            if answer.kvs:
                step = min(limit + 1, _MAX_PAGE_KEYS, max(1, len(answer.kvs) * _PAGE_BYTES // answer.ByteSize()))

    def watch(self, *prefixes: str, after: int) -> EtcdWatch:
        watch = EtcdWatch(
            self._client,
            self._keys,
            prefixes,
            after=after,
            backlog=self._backlog,
            history=self._read_restore_revision,
            on_end=self._watches.discard,
        )
        self._watches.add(watch)
        if self._closed:
            watch.fail(Relist(CLOSED))
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, holder, ttl_seconds)
        # Candidates try often, and a read is cheaper for the cluster than a grant and its revocation.
        if await self.lease(name) is not None:
            return None
        grant = await self._client.call_with_retry(GRANT, rpc.LeaseGrantRequest(TTL=ttl_seconds))
        key = self._keys.encode_key(LEASES_PREFIX + name)
        txn = rpc.TxnRequest()
        require_revision(txn, key, ABSENT)
        require_revision(txn, self._keys.loading, ABSENT)
        add_failure_read(txn, self._keys.loading)
        add_put(txn, key, encode_lease(name, holder, ttl_seconds), lease=grant.ID)
        answer = await self._client.call_once(TXN, txn)
        if answer.succeeded:
            return Lease(name, holder, answer.header.revision, ttl_seconds)
        await self._revoke(grant.ID)
        if answer.responses[0].response_range.kvs:
            raise restoring_error()
        return None

    async def renew(self, *leases: Lease) -> None:
        await renew_each(self._renew, leases)

    async def _renew(self, lease: Lease) -> None:
        kv = await self._read_newest(LEASES_PREFIX + lease.name)
        if kv is None or kv.create_revision != lease.term:
            raise deposed_error(lease.fence())
        answer = await self._client.call_with_retry(KEEP_ALIVE, rpc.LeaseKeepAliveRequest(ID=kv.lease))
        if answer.TTL <= 0:
            raise deposed_error(lease.fence())

    async def release(self, lease: Lease) -> None:
        kv = await self._read_newest(LEASES_PREFIX + lease.name)
        if kv is not None and kv.create_revision == lease.term:
            await self._revoke(kv.lease)

    async def lease(self, name: str) -> Lease | None:
        kv = await self._read_newest(LEASES_PREFIX + name)
        return decode_lease(kv) if kv is not None else None

    async def compact(self, revision: int) -> None:
        try:
            await compact_history(self._client, revision)
        except FutureRevision:
            present = await self._client.call_with_retry(RANGE, rpc.RangeRequest(key=self._keys.encode_key(EPOCH_KEY)))
            await compact_history(self._client, present.header.revision)

    async def probe(self) -> None:
        await self._client.call_once(TXN, build_write_probe(self._keys))

    async def usage(self) -> StoreUsage | None:
        return await self._client.read_usage(self._quota_bytes)

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        fresh = await collect_puts(entries)
        loading = EtcdRestore(self._client, self._keys)
        await loading.begin()
        for watch in tuple(self._watches):
            await watch.end(Relist(RESTORED))
        await loading.replace(fresh)
        revision = await loading.finish(epoch)
        self._epoch = epoch
        return revision

    async def close(self) -> None:
        self._closed = True
        for watch in tuple(self._watches):
            await watch.end(Relist(CLOSED))
        await self._client.close()

    def _fail_watches(self, error: WentBack) -> None:
        """End every watch at once: whoever watches through us must learn it before this process ends."""
        for watch in tuple(self._watches):
            watch.fail(error)

    async def _init_epoch(self, *, interrupted_load: bool) -> None:
        key = self._keys.encode_key(EPOCH_KEY)
        txn = rpc.TxnRequest()
        require_revision(txn, key, ABSENT)
        add_put(txn, key, new_epoch().encode())
        await self._client.call_with_retry(TXN, txn)
        epoch, loading = await self._read_epoch()
        if loading and not interrupted_load:
            raise Stuck("restore-interrupted", "a restore of this store was interrupted: repeat it")
        self._epoch = epoch.value.decode()

    async def _read_restore_revision(self) -> int:
        epoch, loading = await self._read_epoch()
        if loading:
            raise restoring_error()
        self._epoch = epoch.value.decode()
        revision: int = epoch.mod_revision if epoch.version > 1 else 0
        return revision

    async def _read_epoch(self) -> tuple[Message, bool]:
        low, high = self._keys.encode_range(EPOCH_KEY)
        answer = await self._client.call_with_retry(RANGE, rpc.RangeRequest(key=low, range_end=high))
        if not answer.kvs:
            raise Stuck(
                "store-emptied", "somebody emptied the store while we used it: restore a backup, or start again"
            )
        return answer.kvs[0], len(answer.kvs) > 1

    async def _read_newest(self, key: str) -> Message | None:
        answer, _ = await self._read_range(rpc.RangeRequest(key=self._keys.encode_key(key)))
        return answer.kvs[0] if answer.kvs else None

    async def _read_page(self, low: bytes, high: bytes, revision: int, step: int) -> tuple[Message, int, int]:
        while True:
            request = rpc.RangeRequest(key=low, range_end=high, revision=revision, limit=step)
            try:
                return *await self._read_range(request), step
            except TooLarge:
                if step == 1:
                    raise
                step //= 2
            except Relist as error:
                raise compacted_error(revision) from error
            except FutureRevision as error:
                raise future_revision_error(revision) from error

    async def _read_range(self, request: Message) -> tuple[Message, int]:
        """Read a range; return the answer and the current revision."""
        answer = await self._client.call_with_retry(TXN, build_read(self._keys, request))
        if not answer.succeeded:
            raise restoring_error()
        return answer.responses[0].response_range, answer.header.revision

    async def _commit_full(self, txn: Message, ops: Sequence[Op], fence: Fence | None) -> int:
        for _ in range(_MAX_TRIES):
            try:
                revision: int = (await self._client.call_once(TXN, nest_transaction(self._keys, txn))).header.revision
            except UnmetPrecondition:
                states = [await self._client.call_with_retry(TXN, part) for part in build_state_reads(txn)]
                if why := find_failure(ops, fence, [one for state in states for one in state.responses]):
                    raise why from None
            else:
                return revision
        raise Later("others kept changing the same keys; try again")

    async def _revoke(self, lease_id: int) -> None:
        with suppress(Gone):
            await self._client.call_with_retry(REVOKE, rpc.LeaseRevokeRequest(ID=lease_id))
