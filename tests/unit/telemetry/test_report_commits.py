"""Reports of many workers at about the same time: they share commits, and none depends on another."""

import asyncio

import pytest

from harness import given
from harness.plane_world import NOW, Stage, Standing, service
from harness.stores import FallibleStore
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref
from lcm.control.telemetry.report_commits import ReportCommits
from lcm.model.base.errors import Conflict, Unreachable
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import MAX_BYTES, MAX_OPERATIONS, Op, Put

BY = service(WORKER_CONTROLLER)


class Reports:
    """Reports that are committed to one store."""

    def __init__(self) -> None:
        self.store = FallibleStore()
        self.writer = Writer(self.store, Standing(NOW), BY)
        self.commits = ReportCommits()

    async def report(self, *ops: Op, event: bytes = b"{}") -> None:
        await self.commits.submit(self.writer, ops, [event])

    async def revisions(self) -> list[int]:
        return [entry.revision for entry in (await self.store.scan("t/", limit=1000)).entries]


async def test_what_comes_at_the_same_time_shares_a_commit() -> None:
    it = Reports()
    await asyncio.gather(*(it.report(Put(f"t/{number:02}", b"x")) for number in range(20)))
    assert len(set(await it.revisions())) == 1


async def test_one_that_conflicts_spoils_no_other() -> None:
    it = Reports()
    good = [it.report(Put(f"t/{number}", b"x")) for number in range(5)]
    found = await asyncio.gather(*good, it.report(Put("t/bad", b"x", at=7)), return_exceptions=True)
    assert [type(one) for one in found] == [type(None)] * 5 + [Conflict]
    assert len(set(await it.revisions())) == 5


async def test_two_about_the_same_worker_come_one_after_the_other() -> None:
    it = Reports()
    keys = ("t/0", "t/1", "t/1", "t/2")
    await asyncio.gather(*(it.report(Put(key, b"%d" % number)) for number, key in enumerate(keys)))
    first, *others = await it.revisions()
    assert others == [first + 1, first], "the second of a worker came after its first"
    assert (await it.store.scan("t/1")).entries[0].value == b"2"


@pytest.mark.parametrize(("count", "size"), [(MAX_OPERATIONS + 10, 1), (5, MAX_BYTES // 5)])
async def test_a_commit_takes_as_much_as_one_may_have(count: int, size: int) -> None:
    it = Reports()
    await asyncio.gather(*(it.report(Put(f"t/{number:03}", b"x" * size)) for number in range(count)))
    revisions = await it.revisions()
    assert len(revisions) == count
    assert 1 < len(set(revisions)) < count


async def test_an_outage_is_told_to_all_who_wait() -> None:
    it = Reports()
    it.store.down = Unreachable("no store")
    found = await asyncio.gather(*(it.report(Put(f"t/{number}", b"x")) for number in range(9)), return_exceptions=True)
    assert {type(one) for one in found} == {Unreachable}
    it.store.down = None
    await it.report(Put("t/0", b"x"))


async def test_whoever_stops_waiting_keeps_nobody_from_being_committed() -> None:
    it = Reports()
    tasks = [asyncio.ensure_future(it.report(Put(f"t/{number}", b"x"))) for number in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [tasks[number].exception() for number in (1, 3)] == [None, None]
    assert {"t/1", "t/3"} <= {entry.key for entry in (await it.store.scan("t/")).entries}
    await it.report(Put("t/9", b"x"))


async def test_the_measurements_of_many_workers_take_few_commits() -> None:
    stage = Stage(clock=Standing(NOW))
    for number in range(30):
        await stage.put(given.worker(name=f"w{number}", uid=f"uid-w{number}"))
    before, plane = await stage.revision(), stage[BY]
    refs = [Ref(LabWorker, f"w{number}") for number in range(30)]
    await asyncio.gather(*(plane.report(ref, given.telemetry(collected_at=NOW)) for ref in refs))
    assert await stage.revision() - before <= 3
    assert all([await plane.telemetry(ref) is not None for ref in refs])
    told = [one for one in await stage.told(before) if one.type == "worker.metrics.updated"]
    assert len(told) == 30
