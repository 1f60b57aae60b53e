"""How keys, labels and leases lie in etcd: everything under one root, labels in an envelope around the value."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import msgspec

from lcm.model.base.errors import Stuck
from lcm.store.base import LEASES_PREFIX, Entry, Lease, Put, key_range
from lcm.store.etcd.wire import RANGE, EtcdTls, Message, Method, Wire, rpc

EPOCH_KEY: Final = "!epoch"
LOADING_KEY: Final = "!epoch/loading"
"""There while a restore is under way. It shares the epoch's prefix, so that one read or watch covers both."""

_PLAIN: Final = b"\0"
_LABELLED: Final = b"\1"
_LENGTH_BYTES: Final = 4


class Keys:
    """The keys under one root."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._skip = len(root)
        self.loading = self.raw(LOADING_KEY)

    def raw(self, key: str) -> bytes:
        return (self._root + key).encode()

    def span(self, prefix: str) -> tuple[bytes, bytes]:
        low, high = key_range(prefix)
        return self.raw(low), self.raw(high)

    def key(self, raw: bytes) -> str:
        return raw.decode()[self._skip :]

    def entry(self, kv: Message) -> Entry:
        key = self.key(kv.key)
        try:
            labels, value = unseal(kv.value)
        except msgspec.DecodeError as error:
            raise Stuck("foreign-value", f"{self._root}{key} was written by something else: remove it") from error
        if key.startswith(LEASES_PREFIX):
            value = msgspec.json.encode(lease_of(kv))
        return Entry(key, value, labels, kv.mod_revision, kv.create_revision)


def seal(put: Put) -> bytes:
    """Put a value and its labels into one."""
    if not put.labels:
        return _PLAIN + put.value
    labels = msgspec.msgpack.encode(put.labels)
    return b"".join((_LABELLED, len(labels).to_bytes(_LENGTH_BYTES), labels, put.value))


def unseal(sealed: bytes) -> tuple[Mapping[str, str], bytes]:
    """Undo `seal`."""
    if sealed.startswith(_PLAIN):
        return {}, sealed[1:]
    if not sealed.startswith(_LABELLED):
        raise msgspec.DecodeError("no envelope")
    start = 1 + _LENGTH_BYTES
    body = start + int.from_bytes(sealed[1:start])
    return msgspec.msgpack.decode(sealed[start:body], type=dict[str, str]), sealed[body:]


def lease_value(name: str, holder: str, ttl_seconds: int) -> bytes:
    """Write down a lease whose term is yet to be known."""
    return _PLAIN + msgspec.json.encode(Lease(name, holder, 0, ttl_seconds))


def lease_of(kv: Message) -> Lease:
    """Read a lease; its term is the revision that created its key."""
    held = msgspec.json.decode(unseal(kv.value)[1], type=Lease)
    return Lease(held.name, held.holder, kv.create_revision, held.ttl_seconds)


_STATUS: Final[Method] = attrgetter("status")


class Member(msgspec.Struct, frozen=True):
    """What a member said. `begun`: there is a store of ours under the root."""

    version: str
    revision: int
    begun: bool


async def look(
    endpoint: str, *, root: str, tls: EtcdTls | None = None, user: str = "", password: str = "", seconds: float
) -> Member:
    """Ask one member how it is. Raises Unreachable when it does not answer, or has no leader."""
    wire = Wire([endpoint], tls=tls, user=user, password=password, call_seconds=seconds)
    try:
        if user:
            await wire.sign_in()
        status = await wire.ask(_STATUS, rpc.StatusRequest())
        found = await wire.ask(RANGE, rpc.RangeRequest(key=Keys(root).raw(EPOCH_KEY), count_only=True))
    finally:
        await wire.close()
    return Member(status.version, found.header.revision, bool(found.count))
