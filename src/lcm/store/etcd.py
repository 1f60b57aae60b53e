"""The cluster engine: etcd 3.4 or later. A commit is one transaction, and revisions are etcd's own.

Replicas on several machines may share it. Its parts: `etcd_wire` (the way there), `etcd_keys` (how things lie),
`etcd_txn` (commits), `etcd_watch` and `etcd_load`.
"""

from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final, Self

from lcm.model.errors import Fault, Gone, Invalid, Later, Relist, Stuck, TooLarge
from lcm.store.base import (
    ABSENT,
    EVENTS_KEY,
    LEASES_PREFIX,
    Cursor,
    Entry,
    EventReader,
    Fence,
    Lease,
    Op,
    Page,
    Put,
    check_commit,
    check_key,
    check_lease,
    compacted,
    deposed,
    matches,
)
from lcm.store.etcd_keys import EPOCH_KEY, LOADING_KEY, Keys, lease_of, lease_value
from lcm.store.etcd_load import Loading, collect
from lcm.store.etcd_txn import demand, put, refusal, transaction
from lcm.store.etcd_watch import RESTORED, EtcdWatch
from lcm.store.etcd_wire import (
    CALL_SECONDS,
    COMPACT,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    EtcdTls,
    FutureRevision,
    Message,
    Wire,
    rpc,
)
from lcm.store.hub import BACKLOG, CLOSED
from lcm.system import new_epoch

_STEP: Final = 500
"""Keys asked for at once; fewer when they are too large together."""


class EtcdStore:
    """A store shared through an etcd cluster. Make it with `open`."""

    def __init__(self, wire: Wire, root: str, *, backlog: int) -> None:
        self._wire = wire
        self._keys = Keys(root)
        self._backlog = backlog
        self._epoch = ""
        self._watches: set[EtcdWatch] = set()

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
    ) -> Self:
        """Connect. After an interrupted restore it is Stuck, unless `interrupted_load` says that `load` follows."""
        if not endpoints:
            raise Invalid(Fault("endpoints", "there are none", "name at least one as HOST:PORT"))
        wire = Wire(endpoints, tls=tls, user=user, password=password, call_seconds=call_seconds)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(wire.close)
            store = cls(wire, root, backlog=backlog)
            if user:
                await wire.sign_in()
            await store._begin(interrupted_load=interrupted_load)
            undo.pop_all()
        return store

    @property
    def epoch(self) -> str:
        return self._epoch

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        check_commit(ops, events, fence)
        answer = await self._wire.send(TXN, transaction(self._keys, ops, events, fence))
        if not answer.succeeded:
            raise refusal(ops, fence, answer.responses)
        revision: int = answer.header.revision
        return revision

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        kv = await self._newest(key)
        return self._keys.entry(kv) if kv is not None else None

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        low, high = self._keys.span(prefix)
        revision, step = 0, min(limit + 1, _STEP)
        if cursor is not None:
            low, revision = self._keys.raw(cursor.key) + b"\0", cursor.revision
        found: list[Entry] = []
        while True:
            answer, step = await self._range(low, high, revision, step)
            revision = revision or answer.header.revision
            for kv in answer.kvs:
                entry = self._keys.entry(kv)
                if not matches(entry.labels, labels):
                    continue
                if len(found) == limit:
                    return Page(found, revision, Cursor(revision, found[-1].key))
                found.append(entry)
            if not answer.more:
                return Page(found, revision, None)
            low = answer.kvs[-1].key + b"\0"

    def watch(self, prefix: str, *, after: int) -> EtcdWatch:
        watch = EtcdWatch(
            self._wire,
            self._keys,
            prefix,
            after=after,
            backlog=self._backlog,
            history=self._history,
            on_end=self._watches.discard,
        )
        self._watches.add(watch)
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, ttl_seconds)
        # Whoever campaigns asks often; a read is cheaper for the cluster than a grant and its revocation.
        if await self.lease(name) is not None:
            return None
        grant = await self._wire.ask(GRANT, rpc.LeaseGrantRequest(TTL=ttl_seconds))
        key = self._keys.raw(LEASES_PREFIX + name)
        txn = rpc.TxnRequest()
        demand(txn, key, ABSENT)
        demand(txn, self._keys.raw(LOADING_KEY), ABSENT)
        put(txn, key, lease_value(name, holder, ttl_seconds), lease=grant.ID)
        answer = await self._wire.send(TXN, txn)
        if answer.succeeded:
            return Lease(name, holder, answer.header.revision, ttl_seconds)
        await self._revoke(grant.ID)
        return None

    async def renew(self, lease: Lease) -> None:
        kv = await self._newest(LEASES_PREFIX + lease.name)
        if kv is None or kv.create_revision != lease.term:
            raise deposed(lease.fence())
        answer = await self._wire.ask(KEEP_ALIVE, rpc.LeaseKeepAliveRequest(ID=kv.lease))
        if answer.TTL <= 0:
            raise deposed(lease.fence())

    async def release(self, lease: Lease) -> None:
        kv = await self._newest(LEASES_PREFIX + lease.name)
        if kv is not None and kv.create_revision == lease.term:
            await self._revoke(kv.lease)

    async def lease(self, name: str) -> Lease | None:
        kv = await self._newest(LEASES_PREFIX + name)
        return lease_of(kv) if kv is not None else None

    async def compact(self, revision: int) -> None:
        try:
            await self._compact(revision)
        except FutureRevision:
            present, _ = await self._range(*self._keys.span(EPOCH_KEY), 0, 1)
            await self._compact(present.header.revision)

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        fresh = await collect(entries)
        loading = Loading(self._wire, self._keys)
        await loading.begin()
        for watch in tuple(self._watches):
            await watch.end(Relist(RESTORED))
        await loading.replace(fresh)
        revision = await loading.finish(epoch)
        self._epoch = epoch
        await self._compact(revision)
        return revision

    async def close(self) -> None:
        for watch in tuple(self._watches):
            await watch.end(Relist(CLOSED))
        await self._wire.close()

    async def _begin(self, *, interrupted_load: bool) -> None:
        key = self._keys.raw(EPOCH_KEY)
        txn = rpc.TxnRequest()
        demand(txn, key, ABSENT)
        put(txn, key, new_epoch().encode())
        await self._wire.ask(TXN, txn)
        epoch, loading = await self._read_epoch()
        if loading and not interrupted_load:
            raise Stuck("restore-interrupted", "a restore of this store was interrupted: repeat it")
        self._epoch = epoch.value.decode()

    async def _history(self) -> int:
        epoch, loading = await self._read_epoch()
        if loading:
            raise Later("a restore is under way")
        self._epoch = epoch.value.decode()
        revision: int = epoch.mod_revision
        return revision

    async def _read_epoch(self) -> tuple[Message, bool]:
        answer, _ = await self._range(*self._keys.span(EPOCH_KEY), 0, 2)
        if not answer.kvs:
            raise Stuck("store-emptied", "somebody emptied the store behind our back: restore it, or start anew")
        return answer.kvs[0], len(answer.kvs) > 1

    async def _newest(self, key: str) -> Message | None:
        answer = await self._wire.ask(RANGE, rpc.RangeRequest(key=self._keys.raw(key)))
        return answer.kvs[0] if answer.kvs else None

    async def _range(self, low: bytes, high: bytes, revision: int, step: int) -> tuple[Message, int]:
        while True:
            request = rpc.RangeRequest(key=low, range_end=high, revision=revision, limit=step)
            try:
                return await self._wire.ask(RANGE, request), step
            except TooLarge:
                if step == 1:
                    raise
                step //= 2
            except (Relist, FutureRevision) as error:
                raise compacted(revision) from error

    async def _revoke(self, lease_id: int) -> None:
        with suppress(Gone):
            await self._wire.ask(REVOKE, rpc.LeaseRevokeRequest(ID=lease_id))

    async def _compact(self, revision: int) -> None:
        # Relist: it was compacted already.
        with suppress(Relist):
            await self._wire.ask(COMPACT, rpc.CompactionRequest(revision=revision))
