"""Commits, reads and restores as etcd transactions. Called by `store.etcd.engine`.

A commit has preconditions, writes, and reads that explain a failure. Each transaction requires that no restore is in
progress. A restore sets a marker, clears the old state, writes the new one in batches, begins the new epoch and
compacts. The marker says that the state is incomplete and keeps every store from reading and writing until the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lcm.model.base.errors import Conflict, Later, LcmError, Refused
from lcm.store.base import (
    ABSENT,
    EVENTS_KEY,
    LEASES_PREFIX,
    MAX_BYTES,
    MAX_OPERATIONS,
    Delete,
    Fence,
    Op,
    Put,
    deposed_error,
    held_leases_error,
    pack_events,
)
from lcm.store.etcd.keys import EPOCH_KEY, EtcdKeys, pack_value
from lcm.store.etcd.wire import TXN, EtcdClient, Message, compact_history, rpc

_HALF_OPERATIONS: Final = MAX_OPERATIONS // 2
_UNWRITTEN_KEY: Final = "!never/"
"""Prefix of keys that nobody ever writes."""
_MOD = rpc.Compare.MOD
_CREATE = rpc.Compare.CREATE


def build_commit(keys: EtcdKeys, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> Message:
    """Return a commit as one transaction. If a precondition fails, it reads the required states instead."""
    txn = rpc.TxnRequest()
    require_revision(txn, keys.loading, ABSENT)
    add_failure_read(txn, keys.loading)
    if fence is not None:
        lease = keys.encode_key(LEASES_PREFIX + fence.lease)
        require_created(txn, lease, fence.term)
        add_failure_read(txn, lease)
    for op in ops:
        key = keys.encode_key(op.key)
        if op.at is not None:
            require_revision(txn, key, op.at)
            add_failure_read(txn, key)
        if isinstance(op, Put):
            add_put(txn, key, pack_value(op))
        elif isinstance(op, Delete):
            add_delete(txn, key)
    if events:
        add_put(txn, keys.encode_key(EVENTS_KEY), pack_value(Put(EVENTS_KEY, pack_events(events))))
    return txn


def build_write_probe(keys: EtcdKeys) -> Message:
    """Return a write whose precondition never holds.

    etcd checks its quota and asks the majority for it as for any other, but nothing changes and no revision is used.
    """
    txn = rpc.TxnRequest()
    key = keys.encode_key(_UNWRITTEN_KEY)
    require_created(txn, key, 1)
    add_put(txn, key, b"")
    return txn


def build_read(keys: EtcdKeys, request: Message) -> Message:
    """Return a read as a transaction, so that nobody reads a half-restored state."""
    txn = rpc.TxnRequest()
    require_revision(txn, keys.loading, ABSENT)
    txn.success.add().request_range.CopyFrom(request)
    return txn


def build_reads(keys: EtcdKeys, wanted: Iterable[str]) -> Message:
    """Return the read of several keys, likewise."""
    txn = rpc.TxnRequest()
    require_revision(txn, keys.loading, ABSENT)
    for key in wanted:
        txn.success.add().request_range.key = keys.encode_key(key)
    return txn


def nest_transaction(keys: EtcdKeys, txn: Message) -> Message:
    """Spread a full transaction over nested ones.

    etcd evaluates all of them before it does anything. A nested one whose preconditions fail requests
    something impossible, which makes etcd refuse the whole: UnmetPrecondition.
    """
    whole = rpc.TxnRequest()
    for number, demands in enumerate((txn.compare[:_HALF_OPERATIONS], txn.compare[_HALF_OPERATIONS:])):
        part = whole.success.add().request_txn
        part.compare.extend(demands)
        never = part.failure.add().request_put
        never.key, never.ignore_value = keys.encode_key(f"{_UNWRITTEN_KEY}{number}"), True
    for steps in (txn.success[:_HALF_OPERATIONS], txn.success[_HALF_OPERATIONS:]):
        whole.success.add().request_txn.success.extend(steps)
    return whole


def build_state_reads(txn: Message) -> tuple[Message, Message]:
    """Return two transactions that read the states which a full one requires."""
    return rpc.TxnRequest(success=txn.failure[:_HALF_OPERATIONS]), rpc.TxnRequest(
        success=txn.failure[_HALF_OPERATIONS:]
    )


def restoring_error() -> Later:
    """Return the error for a store whose restore is in progress."""
    return Later("a restore is under way")


def find_failure(ops: Sequence[Op], fence: Fence | None, responses: Sequence[Message]) -> LcmError | None:
    """Return the error for the precondition that failed; None if all held.

    A restore comes first, then the fence.
    """
    states = [response.response_range.kvs for response in responses]
    if states.pop(0):
        return restoring_error()
    if fence is not None:
        held = states.pop(0)
        if not held or held[0].create_revision != fence.term:
            return deposed_error(fence)
    for op, state in zip([op for op in ops if op.at is not None], states, strict=True):
        found = state[0].mod_revision if state else ABSENT
        if op.at is not None and found != op.at:
            return Conflict(op.key, wanted=op.at, found=found)
    return None


def require_revision(txn: Message, key: bytes, revision: int) -> None:
    """Make a transaction depend on the revision of a key's last write; 0 means that the key is absent."""
    # Filling messages in place is three times as fast as building them and passing them in.
    compare = txn.compare.add()
    compare.key, compare.target, compare.mod_revision = key, _MOD, revision


def require_created(txn: Message, key: bytes, revision: int, *, end: bytes = b"") -> None:
    """Make a transaction depend on the revision of a key's first write; with `end`, of all keys up to it."""
    compare = txn.compare.add()
    compare.key, compare.range_end, compare.target, compare.create_revision = key, end, _CREATE, revision


def add_put(txn: Message, key: bytes, value: bytes, *, lease: int = 0) -> None:
    """Add a write to a transaction."""
    request = txn.success.add().request_put
    request.key, request.value = key, value
    if lease:
        request.lease = lease


def add_delete(txn: Message, key: bytes, end: bytes = b"") -> None:
    """Add the removal of a key, or of all keys up to `end`, to a transaction."""
    request = txn.success.add().request_delete_range
    request.key, request.range_end = key, end


def add_failure_read(txn: Message, key: bytes) -> None:
    """Add a read of a key's revisions that is made if the preconditions fail."""
    request = txn.failure.add().request_range
    request.key, request.keys_only = key, True


_BATCH_OPERATIONS: Final = 100
_BATCH_BYTES: Final = MAX_BYTES // 2


class EtcdRestore:
    """One restore. Another one that starts meanwhile takes over the marker and stops this one."""

    def __init__(self, wire: EtcdClient, keys: EtcdKeys) -> None:
        self._client = wire
        self._keys = keys
        self._marker_revision = 0

    async def begin(self) -> None:
        """Set the marker. Raises Refused if a lease is held."""
        low, high = self._keys.encode_range(LEASES_PREFIX)
        txn = rpc.TxnRequest()
        require_created(txn, low, 0, end=high)
        add_put(txn, self._keys.loading, b"")
        held = txn.failure.add().request_range
        held.key, held.range_end, held.keys_only = low, high, True
        answer = await self._client.call_once(TXN, txn)
        if not answer.succeeded:
            names = [self._keys.decode_key(kv.key) for kv in answer.responses[0].response_range.kvs]
            raise held_leases_error(name.removeprefix(LEASES_PREFIX) for name in names)
        self._marker_revision = answer.header.revision

    async def replace(self, puts: Iterable[Put]) -> None:
        """Clear the old state and write the new one."""
        txn = rpc.TxnRequest()
        add_delete(txn, *self._keys.encode_range(""))
        await self._commit_step(txn)
        for piece in _split_batches(puts):
            txn = rpc.TxnRequest()
            for entry in piece:
                add_put(txn, self._keys.encode_key(entry.key), pack_value(entry))
            await self._commit_step(txn)

    async def finish(self, epoch: str) -> int:
        """Begin the new epoch, compact the history before it, and then remove the marker."""
        txn = rpc.TxnRequest()
        add_put(txn, self._keys.encode_key(EPOCH_KEY), epoch.encode())
        await compact_history(self._client, await self._commit_step(txn))
        # This must be the last step: without the marker, watches would deliver the clearing like any other deletes.
        txn = rpc.TxnRequest()
        add_delete(txn, self._keys.loading)
        return await self._commit_step(txn)

    async def _commit_step(self, txn: Message) -> int:
        require_revision(txn, self._keys.loading, self._marker_revision)
        answer = await self._client.call_once(TXN, txn)
        if not answer.succeeded:
            raise Refused("another restore of this store has begun")
        revision: int = answer.header.revision
        return revision


def _split_batches(puts: Iterable[Put]) -> Iterator[list[Put]]:
    piece: list[Put] = []
    size = 0
    for entry in puts:
        if piece and (len(piece) == _BATCH_OPERATIONS or size + len(entry.value) > _BATCH_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += len(entry.value)
    if piece:
        yield piece
