"""Reads of single keys in etcd share calls, and no read is answered by a call that was sent before it was asked for."""

import asyncio
from collections.abc import Sequence

import pytest

from lcm.model.base.errors import LcmError, Stuck, TooLarge, Unreachable
from lcm.store.base import Entry, Put
from lcm.store.etcd.keys import EtcdKeys, pack_value
from lcm.store.etcd.reads import PATIENCE_SECONDS, GroupedReads
from lcm.store.etcd.wire import Message, Method, rpc

KEYS = EtcdKeys("/test/")
SOON = 10.0


class Cluster:
    """Answers calls when it is told to. A key's value is the number of the call that reads it; `odd` keys have none."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.is_open = asyncio.Event()
        self.most_keys = 1000
        self.failure: LcmError | None = None

    async def call_with_retry(self, _: Method, request: Message) -> Message:
        keys = [KEYS.decode_key(step.request_range.key) for step in request.success]
        self.calls.append(keys)
        number = len(self.calls)
        await self.is_open.wait()
        if self.failure is not None:
            raise self.failure
        if len(keys) > self.most_keys:
            raise TooLarge("more than a message holds")
        return self._answer(keys, number)

    def _answer(self, keys: Sequence[str], number: int) -> Message:
        answer = rpc.TxnResponse(succeeded=True)
        for key in keys:
            found = answer.responses.add().response_range
            if key == "absent":
                continue
            value = b"\7" if key == "odd" else pack_value(Put(key, str(number).encode()))
            found.kvs.add(key=KEYS.encode_key(key), value=value, mod_revision=number, create_revision=1)
        return answer


@pytest.fixture(name="cluster")
async def make_cluster() -> Cluster:
    return Cluster()


@pytest.fixture(name="reads")
async def make_reads(cluster: Cluster) -> GroupedReads:
    return GroupedReads(cluster, KEYS)  # type: ignore[arg-type]


def begin(reads: GroupedReads, *keys: str) -> list[asyncio.Task[Entry | None]]:
    return [asyncio.create_task(reads.read(key)) for key in keys]


async def called(cluster: Cluster, count: int) -> None:
    async with asyncio.timeout(SOON):
        while len(cluster.calls) < count:
            await asyncio.sleep(0)


async def test_what_is_asked_for_together_is_read_in_one_call(cluster: Cluster, reads: GroupedReads) -> None:
    asked = begin(reads, "a", "b", "a", "absent")
    cluster.is_open.set()
    found = await asyncio.gather(*asked)
    assert cluster.calls == [["a", "b", "absent"]]
    assert [entry.key if entry else None for entry in found] == ["a", "b", "a", None]


async def test_a_read_is_never_answered_by_a_call_that_was_sent_before_it(
    cluster: Cluster, reads: GroupedReads
) -> None:
    early = begin(reads, "a")
    await called(cluster, 1)
    late = begin(reads, "a", "b")
    await asyncio.sleep(0)
    cluster.is_open.set()
    values = [entry.value for entry in await asyncio.gather(*early, *late) if entry]
    assert (values, cluster.calls) == ([b"1", b"2", b"2"], [["a"], ["a", "b"]])


async def test_a_call_that_hangs_does_not_keep_later_reads_waiting(cluster: Cluster, reads: GroupedReads) -> None:
    begun = asyncio.get_running_loop().time()
    first = begin(reads, "a")
    await called(cluster, 1)
    second = begin(reads, "b")
    async with asyncio.timeout(SOON):
        while len(cluster.calls) < 2:
            await asyncio.sleep(PATIENCE_SECONDS / 10)
    assert asyncio.get_running_loop().time() - begun >= PATIENCE_SECONDS
    cluster.is_open.set()
    await asyncio.gather(*first, *second)
    assert cluster.calls == [["a"], ["b"]]


async def test_more_than_a_message_holds_is_read_in_parts(cluster: Cluster, reads: GroupedReads) -> None:
    cluster.most_keys = 2
    cluster.is_open.set()
    found = await asyncio.gather(*begin(reads, *"abcde"))
    assert [entry.key for entry in found if entry] == list("abcde")
    cluster.most_keys = 0
    with pytest.raises(TooLarge):
        await reads.read("a")


async def test_more_keys_than_a_transaction_takes_are_read_in_several(cluster: Cluster, reads: GroupedReads) -> None:
    cluster.is_open.set()
    await asyncio.gather(*begin(reads, *(f"k/{number}" for number in range(300))))
    assert [len(keys) for keys in cluster.calls] == [128, 128, 44]


async def test_a_value_that_cannot_be_read_fails_its_own_readers_only(cluster: Cluster, reads: GroupedReads) -> None:
    cluster.is_open.set()
    good, odd = await asyncio.gather(*begin(reads, "a", "odd"), return_exceptions=True)
    assert isinstance(good, Entry)
    assert isinstance(odd, Stuck)


async def test_a_call_that_fails_fails_its_readers_and_the_next_one_is_made(
    cluster: Cluster, reads: GroupedReads
) -> None:
    cluster.failure = Unreachable("gone")
    asked = begin(reads, "a", "b")
    await called(cluster, 1)
    late = begin(reads, "c")
    asked[0].cancel()
    await asyncio.sleep(0)
    cluster.is_open.set()
    outcomes = await asyncio.gather(*asked, *late, return_exceptions=True)
    assert [type(one) for one in outcomes] == [asyncio.CancelledError, Unreachable, Unreachable]
    cluster.failure = None
    assert await reads.read("a") is not None
