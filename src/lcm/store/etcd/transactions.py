"""Commits and reads as etcd transactions: what is demanded, what is done, what is read to say why not.

Called by the engine. Every one of them demands that no restore is under way.
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
    deposed,
    held_leases,
    pack_events,
)
from lcm.store.etcd.keys import EPOCH_KEY, Keys, seal
from lcm.store.etcd.wire import TXN, Message, Wire, compact, rpc

_HALF: Final = MAX_OPERATIONS // 2
_NEVER_KEY: Final = "!never/"
"""Begins the names of keys that nobody ever writes."""
_MOD = rpc.Compare.MOD
_CREATE = rpc.Compare.CREATE


def transaction(keys: Keys, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> Message:
    """Write a commit as one transaction; where a precondition fails, it reads the states that were demanded."""
    txn = rpc.TxnRequest()
    demand(txn, keys.loading, ABSENT)
    read(txn, keys.loading)
    if fence is not None:
        lease = keys.raw(LEASES_PREFIX + fence.lease)
        demand_created(txn, lease, fence.term)
        read(txn, lease)
    for op in ops:
        key = keys.raw(op.key)
        if op.at is not None:
            demand(txn, key, op.at)
            read(txn, key)
        if isinstance(op, Put):
            put(txn, key, seal(op))
        elif isinstance(op, Delete):
            delete(txn, key)
    if events:
        put(txn, keys.raw(EVENTS_KEY), seal(Put(EVENTS_KEY, pack_events(events))))
    return txn


def reading(keys: Keys, request: Message) -> Message:
    """Write a read as a transaction, so that nobody takes a half restored state for the truth."""
    txn = rpc.TxnRequest()
    demand(txn, keys.loading, ABSENT)
    txn.success.add().request_range.CopyFrom(request)
    return txn


def is_full(txn: Message) -> bool:
    """Tell whether a commit, together with our own demand, holds more of them than etcd takes in one list."""
    return len(txn.compare) > MAX_OPERATIONS


def folded(keys: Keys, txn: Message) -> Message:
    """Spread a full transaction over nested ones.

    etcd decides on all of them before it does anything. One whose demands fail asks for what cannot be done, which
    makes etcd refuse the whole: Unmet.
    """
    whole = rpc.TxnRequest()
    for number, demands in enumerate((txn.compare[:_HALF], txn.compare[_HALF:])):
        part = whole.success.add().request_txn
        part.compare.extend(demands)
        never = part.failure.add().request_put
        never.key, never.ignore_value = keys.raw(f"{_NEVER_KEY}{number}"), True
    for steps in (txn.success[:_HALF], txn.success[_HALF:]):
        whole.success.add().request_txn.success.extend(steps)
    return whole


def explanations(txn: Message) -> tuple[Message, Message]:
    """Read, in two transactions, what a full one demanded."""
    return rpc.TxnRequest(success=txn.failure[:_HALF]), rpc.TxnRequest(success=txn.failure[_HALF:])


def restoring() -> Later:
    """Say that the state is not whole."""
    return Later("a restore is under way")


def refusal(ops: Sequence[Op], fence: Fence | None, responses: Sequence[Message]) -> LcmError | None:
    """Say which demand of a transaction was not met; a restore comes first, then the fence. None: all were."""
    states = [response.response_range.kvs for response in responses]
    if states.pop(0):
        return restoring()
    if fence is not None:
        held = states.pop(0)
        if not held or held[0].create_revision != fence.term:
            return deposed(fence)
    for op, state in zip([op for op in ops if op.at is not None], states, strict=True):
        found = state[0].mod_revision if state else ABSENT
        if op.at is not None and found != op.at:
            return Conflict(op.key, wanted=op.at, found=found)
    return None


def demand(txn: Message, key: bytes, revision: int) -> None:
    """Make a transaction depend on the revision of a key's last write; 0 means that it is not there."""
    # Filling in place is three times as fast as building messages and handing them over.
    compare = txn.compare.add()
    compare.key, compare.target, compare.mod_revision = key, _MOD, revision


def demand_created(txn: Message, key: bytes, revision: int, *, end: bytes = b"") -> None:
    """Make a transaction depend on the revision of a key's first write; with `end`, of every key's up to there."""
    compare = txn.compare.add()
    compare.key, compare.range_end, compare.target, compare.create_revision = key, end, _CREATE, revision


def put(txn: Message, key: bytes, value: bytes, *, lease: int = 0) -> None:
    """Add a write to a transaction."""
    request = txn.success.add().request_put
    request.key, request.value = key, value
    if lease:
        request.lease = lease


def delete(txn: Message, key: bytes, end: bytes = b"") -> None:
    """Add the removal of a key, or of all keys up to `end`, to a transaction."""
    request = txn.success.add().request_delete_range
    request.key, request.range_end = key, end


def read(txn: Message, key: bytes) -> None:
    """Add the reading of a key's revisions to what a transaction does if its demands are not met."""
    request = txn.failure.add().request_range
    request.key, request.keys_only = key, True


_PIECE_OPERATIONS: Final = 100
_PIECE_BYTES: Final = MAX_BYTES // 2


class Loading:
    """One restore. Another one that starts meanwhile takes the marker over and stops this one."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire = wire
        self._keys = keys
        self._mark = 0

    async def begin(self) -> None:
        """Put the marker there, unless a lease is held."""
        low, high = self._keys.span(LEASES_PREFIX)
        txn = rpc.TxnRequest()
        demand_created(txn, low, 0, end=high)
        put(txn, self._keys.loading, b"")
        held = txn.failure.add().request_range
        held.key, held.range_end, held.keys_only = low, high, True
        answer = await self._wire.send(TXN, txn)
        if not answer.succeeded:
            names = [self._keys.key(kv.key) for kv in answer.responses[0].response_range.kvs]
            raise held_leases(name.removeprefix(LEASES_PREFIX) for name in names)
        self._mark = answer.header.revision

    async def replace(self, puts: Iterable[Put]) -> None:
        """Clear the old state and write the new one."""
        txn = rpc.TxnRequest()
        delete(txn, *self._keys.span(""))
        await self._step(txn)
        for piece in _pieces(puts):
            await self._step(self._writes(piece))

    async def finish(self, epoch: str) -> int:
        """Begin the new epoch, forget how it came about, and then take the marker away."""
        txn = rpc.TxnRequest()
        put(txn, self._keys.raw(EPOCH_KEY), epoch.encode())
        await compact(self._wire, await self._step(txn))
        # The very last step: without the marker, watches would be told of the clearing like of any other deletes.
        txn = rpc.TxnRequest()
        delete(txn, self._keys.loading)
        return await self._step(txn)

    def _writes(self, piece: Iterable[Put]) -> Message:
        txn = rpc.TxnRequest()
        for entry in piece:
            put(txn, self._keys.raw(entry.key), seal(entry))
        return txn

    async def _step(self, txn: Message) -> int:
        demand(txn, self._keys.loading, self._mark)
        answer = await self._wire.send(TXN, txn)
        if not answer.succeeded:
            raise Refused("another restore of this store has begun")
        revision: int = answer.header.revision
        return revision


def _pieces(puts: Iterable[Put]) -> Iterator[list[Put]]:
    piece: list[Put] = []
    size = 0
    for entry in puts:
        if piece and (len(piece) == _PIECE_OPERATIONS or size + len(entry.value) > _PIECE_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += len(entry.value)
    if piece:
        yield piece
