"""Bare gRPC stubs doing what a commit costs at least: the same compares, operations, reads on failure and bytes."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
from aetcd import rpc as _rpc

rpc: Any = _rpc
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


class Load(NamedTuple):
    """What every commit is about."""

    absent_key: bytes
    value: bytes
    events_key: bytes
    events: bytes


async def commits_per_second(endpoint: str, keys: Sequence[bytes], load: Load, *, rounds: int) -> float:
    """Let every key be written by a writer of its own, each write on the revision it wrote before."""
    async with grpc.aio.insecure_channel(endpoint, options=_OPTIONS) as channel:
        kv = rpc.KVStub(channel)

        async def write(key: bytes) -> None:
            revision = 0
            for _ in range(rounds):
                answer = await kv.Txn(_transaction(key, revision, load), timeout=5)
                assert answer.succeeded
                revision = answer.header.revision

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(write(key))
        return rounds * len(keys) / (time.perf_counter() - started)


def _transaction(key: bytes, revision: int, load: Load) -> Any:
    txn = rpc.TxnRequest()
    for name, at in ((load.absent_key, 0), (key, revision)):
        txn.compare.add(key=name, target=rpc.Compare.MOD, mod_revision=at)
        read = txn.failure.add().request_range
        read.key, read.keys_only = name, True
    put = txn.success.add().request_put
    put.key, put.value = key, load.value
    put = txn.success.add().request_put
    put.key, put.value = load.events_key, load.events
    return txn
