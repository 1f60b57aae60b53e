"""Requests that are sent again, by patient clients and by processes that died between commit and answer."""

import asyncio
from collections.abc import Callable

import pytest

from crash.everywhere import crash_everywhere, pause_everywhere
from harness import given
from harness.plane_world import ADA, BOB, NOW, OTTO, ROOT, Stage, active
from lcm.control.plane.protocol import Extend, Pause, Ref, Snooze, Terminate
from lcm.model.base.errors import Conflict, Gone, Invalid
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.sim.time.loop import VirtualClock

S1 = Ref(LabletSession, "s1")
W1 = Ref(LabWorker, "w1")


async def with_definition() -> Stage:
    stage = Stage()
    await stage.put(active())
    return stage


async def running() -> Stage:
    stage = await with_definition()
    await stage.put(given.session(owner="ada", phase=SessionPhase.RUNNING, ends_at=given.moment("11:00")))
    return stage


async def test_a_create_that_is_sent_again_gives_the_object_of_the_first_time() -> None:
    stage = await with_definition()
    first = await stage[ADA].create(given.session(definition="basics"), request="r-1")
    revision = await stage.revision()
    assert await stage[ADA].create(given.session(definition="basics"), request="r-1") == first
    assert await stage.revision() == revision
    changed = await stage[ADA].act(S1, Terminate())
    assert await stage[ADA].create(given.session(definition="basics"), request="r-1") == changed


async def test_a_create_whose_object_is_gone_does_not_make_another() -> None:
    stage = await with_definition()
    await stage[ADA].create(given.session(), request="r-1")
    await stage[ADA].delete(S1)
    with pytest.raises(Gone):
        await stage[ADA].create(given.session(), request="r-1")
    await stage[ADA].create(given.session())
    with pytest.raises(Gone):
        await stage[ADA].create(given.session(), request="r-1")


async def test_a_key_stands_for_one_request_of_one_person() -> None:
    stage = await with_definition()
    await stage[ADA].create(given.session(), request="r-1")
    with pytest.raises(Invalid) as raised:
        await stage[ADA].create(given.session(name="s2"), request="r-1")
    assert [fault.path for fault in raised.value.faults] == ["Idempotency-Key"]
    with pytest.raises(Invalid):
        await stage[ADA].act(S1, Terminate(), request="r-1")
    made = await stage[BOB].create(given.session(name="s2"), request="r-1")
    assert made.spec.owner == "bob"


async def test_a_key_does_not_hide_that_the_name_is_taken() -> None:
    stage = await with_definition()
    await stage[ADA].create(given.session(), request="r-1")
    with pytest.raises(Conflict):
        await stage[ADA].create(given.session(), request="r-2")


@pytest.mark.parametrize("request_key", ["", "two words", 201 * "x", "a\nb", "ü"])
async def test_a_key_must_be_one_word(request_key: str) -> None:
    stage = await with_definition()
    with pytest.raises(Invalid):
        await stage[ADA].create(given.session(), request=request_key)


async def test_a_dry_run_uses_no_key_up() -> None:
    stage = await with_definition()
    await stage[ADA].create(given.session(), dry_run=True, request="r-1")
    assert not [key for key in await stage.keys() if key.startswith("requests/")]


async def test_of_several_same_requests_at_once_one_makes_the_object() -> None:
    stage = await with_definition()
    made = await asyncio.gather(*(stage[ADA].create(given.session(), request="r-1") for _ in range(8)))
    assert len({one.metadata.uid for one in made}) == 1
    assert await stage.types() == ["lablet.session.created"]


async def test_an_extension_that_is_sent_again_extends_once() -> None:
    stage = await running()
    for _ in range(3):
        extended = await stage[ADA].act(S1, Extend(minutes=30), request="r-1")
        assert extended.status.ends_at == given.moment("11:30")
    outcomes = await asyncio.gather(*(stage[ADA].act(S1, Extend(minutes=30), request="r-2") for _ in range(5)))
    assert {one.status.ends_at for one in outcomes} == {given.moment("12:00")}


async def test_an_action_that_changed_nothing_is_not_done_later_either() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.STOPPED, wanted_state="stopped"))
    await stage[OTTO].act(W1, Pause(), request="r-1")
    await stage[ROOT].patch(W1, {"spec": {"wanted_state": "running"}})
    assert (await stage[OTTO].act(W1, Pause(), request="r-1")).spec.wanted_state == "running"


async def world() -> Stage:
    stage = Stage(clock=VirtualClock())
    await stage.put(active())
    later = given.moment("11:00", day=-30)
    await stage.put(given.session(name="runs", uid="runs", owner="ada", phase=SessionPhase.RUNNING, ends_at=later))
    await stage.put(given.worker(phase=WorkerPhase.READY))
    return stage


async def book(stage: Stage) -> None:
    await stage[ADA].create(given.session(definition="basics"), request="book")


async def extend(stage: Stage) -> None:
    await stage[OTTO].act(Ref(LabletSession, "runs"), Extend(minutes=30), request="extend")


async def snooze(stage: Stage) -> None:
    await stage[OTTO].act(W1, Snooze(minutes=30), request="snooze")


async def all_three(stage: Stage) -> None:
    await book(stage)
    await extend(stage)
    await snooze(stage)


async def each_once(stage: Stage) -> None:
    sessions = await stage[ADA].list(LabletSession)
    assert [one.metadata.name for one in sessions.items] == ["runs", "s1"]
    assert sessions.items[0].status.ends_at == given.moment("11:30", day=-30)
    assert sorted(await stage.types()) == ["lablet.session.created", "lablet.session.updated", "worker.updated"]
    assert len([key for key in await stage.keys() if key.startswith("requests/")]) == 3


def test_a_process_that_dies_between_commit_and_answer_does_nothing_twice(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("requests", world, all_three, each_once, twice=True, report=tell)
    assert awaits > 10


def test_a_process_that_sleeps_while_another_answers_does_nothing_twice(tell: Callable[[str], None]) -> None:
    pause_for = given.moment("09:00") - NOW
    assert pause_everywhere("requests", world, all_three, each_once, pause_for=pause_for, report=tell) > 10
