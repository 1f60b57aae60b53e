"""The layout of keys, labels and leases in etcd, and the health check of one member for `lcm doctor`.

Everything is under one root; labels are in an envelope around the value. The health check writes nothing, even where no
store exists yet.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import msgspec

from lcm.model.base.errors import Stuck
from lcm.store.base import LEASES_PREFIX, Entry, Lease, Put, key_range
from lcm.store.etcd.wire import RANGE, EtcdClient, EtcdTls, Message, Method, rpc

EPOCH_KEY: Final = "!epoch"
LOADING_KEY: Final = "!epoch/loading"
"""Present while a restore is in progress. It has the epoch's prefix, so that one read or watch covers both."""

_PLAIN: Final = b"\0"
_LABELLED: Final = b"\1"
_LENGTH_BYTES: Final = 4


class EtcdKeys:
    """Encodes and decodes the keys under one root."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._skip = len(root)
        self.loading = self.encode_key(LOADING_KEY)

    def encode_key(self, key: str) -> bytes:
        return (self._root + key).encode()

    def encode_range(self, prefix: str) -> tuple[bytes, bytes]:
        low, high = key_range(prefix)
        return self.encode_key(low), self.encode_key(high)

    def decode_key(self, raw: bytes) -> str:
        return raw.decode()[self._skip :]

    def decode_entry(self, kv: Message) -> Entry:
        key = self.decode_key(kv.key)
        try:
            labels, value = unpack_value(kv.value)
        except msgspec.DecodeError as error:
            raise Stuck("foreign-value", f"{self._root}{key} was written by something else: remove it") from error
        if key.startswith(LEASES_PREFIX):
            value = msgspec.json.encode(decode_lease(kv))
        return Entry(key, value, labels, kv.mod_revision, kv.create_revision)


def pack_value(put: Put) -> bytes:
    """Return a value and its labels as one value."""
    if not put.labels:
        return _PLAIN + put.value
    labels = msgspec.msgpack.encode(put.labels)
    return b"".join((_LABELLED, len(labels).to_bytes(_LENGTH_BYTES), labels, put.value))


def unpack_value(sealed: bytes) -> tuple[Mapping[str, str], bytes]:
    """Return the labels and the value that `pack_value` packed."""
    if sealed.startswith(_PLAIN):
        return {}, sealed[1:]
    if not sealed.startswith(_LABELLED):
        raise msgspec.DecodeError("no envelope")
    start = 1 + _LENGTH_BYTES
    body = start + int.from_bytes(sealed[1:start])
    return msgspec.msgpack.decode(sealed[start:body], type=dict[str, str]), sealed[body:]


def encode_lease(name: str, holder: str, ttl_seconds: int) -> bytes:
    """Encode a lease whose term is not known yet."""
    return _PLAIN + msgspec.json.encode(Lease(name, holder, 0, ttl_seconds))


def decode_lease(kv: Message) -> Lease:
    """Decode a lease; its term is the revision that created its key."""
    held = msgspec.json.decode(unpack_value(kv.value)[1], type=Lease)
    return Lease(held.name, held.holder, kv.create_revision, held.ttl_seconds)


_STATUS: Final[Method] = attrgetter("status")


class EtcdMember(msgspec.Struct, frozen=True):
    """What a member of the cluster reported. `begun` means that a store of ours exists under the root."""

    version: str
    revision: int
    begun: bool


async def probe_member(
    endpoint: str, *, root: str, tls: EtcdTls | None = None, user: str = "", password: str = "", seconds: float
) -> EtcdMember:
    """Return the state of one member. Raises Unreachable when it does not answer, or has no leader."""
    wire = EtcdClient([endpoint], tls=tls, user=user, password=password, call_seconds=seconds)
    try:
        if user:
            await wire.sign_in()
        status = await wire.call_with_retry(_STATUS, rpc.StatusRequest())
        found = await wire.call_with_retry(
            RANGE, rpc.RangeRequest(key=EtcdKeys(root).encode_key(EPOCH_KEY), count_only=True)
        )
    finally:
        await wire.close()
    return EtcdMember(status.version, found.header.revision, bool(found.count))
