"""Bare gRPC stubs doing what a commit costs at least: the same compares, operations, reads on failure and bytes."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc
from aetcd import rpc as _rpc

rpc: Any = _rpc
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))


async def commits_per_second(
    endpoint: str, keys: Sequence[bytes], events_key: bytes, *, value: bytes, events: bytes, rounds: int
) -> float:
    """Let every key be written by a writer of its own, each write on the revision it wrote before."""
    async with grpc.aio.insecure_channel(endpoint, options=_OPTIONS) as channel:
        kv = rpc.KVStub(channel)

        async def write(key: bytes) -> None:
            revision = 0
            for _ in range(rounds):
                answer = await kv.Txn(_transaction(key, revision, value, events_key, events), timeout=5)
                assert answer.succeeded
                revision = answer.header.revision

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(write(key))
        return rounds * len(keys) / (time.perf_counter() - started)


def _transaction(key: bytes, revision: int, value: bytes, events_key: bytes, events: bytes) -> Any:
    txn = rpc.TxnRequest()
    txn.compare.add(key=key, target=rpc.Compare.MOD, mod_revision=revision)
    read = txn.failure.add().request_range
    read.key, read.keys_only = key, True
    put = txn.success.add().request_put
    put.key, put.value = key, value
    put = txn.success.add().request_put
    put.key, put.value = events_key, events
    return txn
