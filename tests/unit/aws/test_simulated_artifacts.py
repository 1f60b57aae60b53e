"""Artifacts in memory: in virtual time, failing on command, and with callers that die at any moment."""

from datetime import timedelta

import pytest

from crash.everywhere import crash_everywhere
from harness.stores import SimulatedSource
from lcm.model.base.errors import Gone, Stuck, Unreachable
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.time.loop import VirtualClock, run

LAB = b"lab:\n"
OUTAGE = Unreachable("no answer")


def simulated() -> SimulatedArtifacts:
    return SimulatedArtifacts(VirtualClock(), sources=[SimulatedSource({"s3://labs/a.yaml": LAB})])


def test_it_runs_in_virtual_time_and_stamps_by_it() -> None:
    async def main() -> None:
        store = simulated()
        assert await store.get("s3://labs/a.yaml", digest=digest_of(LAB)) == LAB
        stored = await store.put(LAB)
        assert stored.stored_at == VirtualClock().now()
        assert await store.list_stored(before=stored.stored_at + timedelta(days=1)) != []
        await store.close()

    run(main)


def test_a_failure_comes_as_often_as_asked_on_the_side_asked() -> None:
    async def main() -> None:
        store = simulated()
        store.fail_next("put_temporary", OUTAGE, times=2)
        store.fail_next("put_temporary", OUTAGE, after_effect=True)
        for there in (None, None, digest_of(LAB)):
            with pytest.raises(Unreachable):
                await store.put_temporary("s1", LAB)
            found = await store.find("artifact://tmp/s1")
            assert (found.digest if found else None) == there
        stored = await store.put_temporary("s1", LAB)
        for verb, call in (("get", store.get), ("find", store.find), ("remove", store.remove)):
            store.fail_next(verb, OUTAGE)
            with pytest.raises(Unreachable):
                await call(stored.uri)
        store.fail_next("get", OUTAGE)
        with pytest.raises(Unreachable):
            await store.get("s3://labs/a.yaml")
        store.damage(stored.uri)
        with pytest.raises(Stuck):
            await store.get(stored.uri)

    run(main)


def test_a_verb_that_does_not_exist_cannot_fail() -> None:
    with pytest.raises(AssertionError):
        simulated().fail_next("fetch", OUTAGE)


async def keep_then_clean(store: SimulatedArtifacts) -> None:
    """Do what a session does: fetch, keep the rewritten lab, and clean up."""
    data = await store.get("s3://labs/a.yaml")
    await store.put_temporary("s1", data + b"rewritten")
    await store.put(data)
    await store.remove("artifact://tmp/s1")


async def nothing_is_left(store: SimulatedArtifacts) -> None:
    assert await store.list_temporary() == []
    assert await store.get(f"artifact://{digest_of(LAB)}") == LAB
    with pytest.raises(Gone):
        await store.get("artifact://tmp/s1")


def test_a_caller_that_dies_anywhere_and_begins_again_leaves_nothing() -> None:
    awaits = crash_everywhere("artifacts", simulated, keep_then_clean, nothing_is_left, report=lambda _: None)
    assert awaits >= 2 * 4, "each verb can be stopped on both sides of its effect"
