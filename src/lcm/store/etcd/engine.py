"""The cluster engine: etcd 3.4 or later. A commit is one transaction, and revisions are etcd's own.

Replicas on several machines may share it. Its parts: `etcd_wire` (the way there), `etcd_keys` (how things lie),
`etcd_txn` (commits), `etcd_watch` and `etcd_load`.
"""

from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Final, Self

from lcm.model.base.errors import Fault, Gone, Invalid, Later, Relist, Stuck, TooLarge
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
    check_scan,
    collected,
    compacted,
    deposed,
    matches,
    not_yet,
)
from lcm.store.etcd.keys import EPOCH_KEY, Keys, lease_of, lease_value
from lcm.store.etcd.transactions import (
    Loading,
    demand,
    explanations,
    folded,
    is_full,
    put,
    read,
    reading,
    refusal,
    restoring,
    transaction,
)
from lcm.store.etcd.watch import RESTORED, EtcdWatch
from lcm.store.etcd.wire import (
    CALL_SECONDS,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    EtcdTls,
    FutureRevision,
    Message,
    Unmet,
    Wire,
    compact,
    rpc,
)
from lcm.store.hub import BACKLOG, CLOSED
from lcm.system.clock import new_epoch

_FIRST_STEP: Final = 32
_LONGEST_STEP: Final = 500
_ANSWER_BYTES: Final = 4_000_000
"""A scan asks for few keys first, and then for as many as make about one answer of this size."""
_TRIES: Final = 5


class EtcdStore:
    """A store shared through an etcd cluster. Make it with `open`."""

    def __init__(self, wire: Wire, root: str, *, backlog: int) -> None:
        self._wire = wire
        self._keys = Keys(root)
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
        txn = transaction(self._keys, ops, events, fence)
        if is_full(txn):
            return await self._commit_full(txn, ops, fence)
        answer = await self._wire.send(TXN, txn)
        if not answer.succeeded:
            raise refusal(ops, fence, answer.responses) or AssertionError("etcd refused what was met")
        revision: int = answer.header.revision
        return revision

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        kv = await self._newest(key)
        return self._keys.entry(kv) if kv is not None else None

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        check_scan(limit)
        low, high = self._keys.span(prefix)
        revision, step = 0, min(limit + 1, _FIRST_STEP)
        if cursor is not None:
            low, revision = self._keys.raw(cursor.key) + b"\0", cursor.revision
        found: list[Entry] = []
        while True:
            answer, present, step = await self._page(low, high, revision, step)
            revision = revision or present
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
            step = min(limit + 1, _LONGEST_STEP, max(1, len(answer.kvs) * _ANSWER_BYTES // answer.ByteSize()))

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
        if self._closed:
            watch.fail(Relist(CLOSED))
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, holder, ttl_seconds)
        # Whoever campaigns asks often; a read is cheaper for the cluster than a grant and its revocation.
        if await self.lease(name) is not None:
            return None
        grant = await self._wire.ask(GRANT, rpc.LeaseGrantRequest(TTL=ttl_seconds))
        key = self._keys.raw(LEASES_PREFIX + name)
        txn = rpc.TxnRequest()
        demand(txn, key, ABSENT)
        demand(txn, self._keys.loading, ABSENT)
        read(txn, self._keys.loading)
        put(txn, key, lease_value(name, holder, ttl_seconds), lease=grant.ID)
        answer = await self._wire.send(TXN, txn)
        if answer.succeeded:
            return Lease(name, holder, answer.header.revision, ttl_seconds)
        await self._revoke(grant.ID)
        if answer.responses[0].response_range.kvs:
            raise restoring()
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
            await compact(self._wire, revision)
        except FutureRevision:
            present = await self._wire.ask(RANGE, rpc.RangeRequest(key=self._keys.raw(EPOCH_KEY)))
            await compact(self._wire, present.header.revision)

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        fresh = await collected(entries)
        loading = Loading(self._wire, self._keys)
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
            raise restoring()
        self._epoch = epoch.value.decode()
        revision: int = epoch.mod_revision if epoch.version > 1 else 0
        return revision

    async def _read_epoch(self) -> tuple[Message, bool]:
        low, high = self._keys.span(EPOCH_KEY)
        answer = await self._wire.ask(RANGE, rpc.RangeRequest(key=low, range_end=high))
        if not answer.kvs:
            raise Stuck("store-emptied", "somebody emptied the store behind our back: restore it, or start anew")
        return answer.kvs[0], len(answer.kvs) > 1

    async def _newest(self, key: str) -> Message | None:
        answer, _ = await self._read(rpc.RangeRequest(key=self._keys.raw(key)))
        return answer.kvs[0] if answer.kvs else None

    async def _page(self, low: bytes, high: bytes, revision: int, step: int) -> tuple[Message, int, int]:
        while True:
            request = rpc.RangeRequest(key=low, range_end=high, revision=revision, limit=step)
            try:
                return *await self._read(request), step
            except TooLarge:
                if step == 1:
                    raise
                step //= 2
            except Relist as error:
                raise compacted(revision) from error
            except FutureRevision as error:
                raise not_yet(revision) from error

    async def _read(self, request: Message) -> tuple[Message, int]:
        """Read a range; return the answer and the present revision."""
        answer = await self._wire.ask(TXN, reading(self._keys, request))
        if not answer.succeeded:
            raise restoring()
        return answer.responses[0].response_range, answer.header.revision

    async def _commit_full(self, txn: Message, ops: Sequence[Op], fence: Fence | None) -> int:
        for _ in range(_TRIES):
            try:
                revision: int = (await self._wire.send(TXN, folded(self._keys, txn))).header.revision
            except Unmet:
                states = [await self._wire.ask(TXN, part) for part in explanations(txn)]
                if why := refusal(ops, fence, [one for state in states for one in state.responses]):
                    raise why from None
            else:
                return revision
        raise Later("others changed what was demanded, to and fro, while we looked")

    async def _revoke(self, lease_id: int) -> None:
        with suppress(Gone):
            await self._wire.ask(REVOKE, rpc.LeaseRevokeRequest(ID=lease_id))
