"""Commits as etcd transactions: what is demanded, what is done, what is read to say why not. Called by the engine."""

from collections.abc import Sequence

from lcm.model.errors import Conflict, LcmError
from lcm.store.base import ABSENT, EVENTS_KEY, LEASES_PREFIX, Delete, Fence, Op, Put, deposed, pack_events
from lcm.store.etcd_keys import Keys, seal
from lcm.store.etcd_wire import Message, rpc

_MOD = rpc.Compare.MOD
_CREATE = rpc.Compare.CREATE


def transaction(keys: Keys, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> Message:
    """Write a commit as one transaction; where a precondition fails, it reads the states that were demanded."""
    txn = rpc.TxnRequest()
    if fence is not None:
        lease = keys.raw(LEASES_PREFIX + fence.lease)
        demand_created(txn, lease, fence.term)
        _read(txn, lease)
    for op in ops:
        key = keys.raw(op.key)
        if op.at is not None:
            demand(txn, key, op.at)
            _read(txn, key)
        if isinstance(op, Put):
            put(txn, key, seal(op))
        elif isinstance(op, Delete):
            delete(txn, key)
    if events:
        put(txn, keys.raw(EVENTS_KEY), seal(Put(EVENTS_KEY, pack_events(events))))
    return txn


def refusal(ops: Sequence[Op], fence: Fence | None, responses: Sequence[Message]) -> LcmError:
    """Say which demand of a transaction was not met; the fence comes first."""
    states = [response.response_range.kvs for response in responses]
    if fence is not None:
        held = states.pop(0)
        if not held or held[0].create_revision != fence.term:
            return deposed(fence)
    for op, state in zip([op for op in ops if op.at is not None], states, strict=True):
        found = state[0].mod_revision if state else ABSENT
        if op.at is not None and found != op.at:
            return Conflict(op.key, wanted=op.at, found=found)
    raise AssertionError("etcd refused a transaction whose demands were met")


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


def _read(txn: Message, key: bytes) -> None:
    request = txn.failure.add().request_range
    request.key, request.keys_only = key, True
