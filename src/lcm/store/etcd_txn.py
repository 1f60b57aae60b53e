"""Commits and reads as etcd transactions: what is demanded, what is done, what is read to say why not.

Called by the engine. Every one of them demands that no restore is under way.
"""

from collections.abc import Sequence
from typing import Final

from lcm.model.errors import Conflict, Later, LcmError
from lcm.store.base import (
    ABSENT,
    EVENTS_KEY,
    LEASES_PREFIX,
    MAX_OPERATIONS,
    Delete,
    Fence,
    Op,
    Put,
    deposed,
    pack_events,
)
from lcm.store.etcd_keys import Keys, seal
from lcm.store.etcd_wire import Message, rpc

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
