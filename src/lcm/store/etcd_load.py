"""Restoring an etcd store: a marker, the old state cleared, the new one written in pieces, the new epoch, compaction.

Called by the etcd engine. From the first step to the last the marker says that the state is not whole, and keeps every
store from reading and writing it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from lcm.model.errors import Refused
from lcm.store.base import LEASES_PREFIX, MAX_BYTES, Put, held_leases
from lcm.store.etcd_keys import EPOCH_KEY, Keys, seal
from lcm.store.etcd_txn import delete, demand, demand_created, put
from lcm.store.etcd_wire import TXN, Message, Wire, compact, rpc

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
