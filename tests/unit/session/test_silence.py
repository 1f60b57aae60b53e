"""Sessions whose worker does not answer, or in words that make no sense: what is decided and said all the same."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
import structlog

from harness import given
from harness.session_world import HOUR, MINUTE, S1, prepared
from lcm.control.plane.protocol import ObserveResources
from lcm.controllers.runtime.lifecycle import Unknown
from lcm.controllers.session.lifecycle import LAB_NOT_REMOVED, LAB_SEEN, SESSION_STUCK
from lcm.controllers.session.look import LookMemory
from lcm.controllers.session.view import SessionRules
from lcm.model.base.errors import Unreachable
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.session import SessionPhase
from lcm.providers.protocols.labhost import CmlApiError
from lcm.sim.time.loop import VirtualClock, run

_P = SessionPhase
SILENT = Unknown("no answer")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def test_a_look_that_is_refused_keeps_no_end_from_coming_and_is_complained_of() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, slot=HOUR)
        (await world.host(worker)).fail_next("look", CmlApiError("400 Bad Request"), times=100_000)
        async with world.attended():
            await asyncio.sleep(600)
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.reason) == (SESSION_STUCK, "CmlRefused")
            session = await world.comes_to(_P.STOPPING)
            assert session.status.ends_at is not None
            assert session.status.history[-2].at == session.status.ends_at
            await asyncio.sleep(660)
            assert {one.alert for one in await world.otto.alerts()} == {SESSION_STUCK, LAB_NOT_REMOVED}

    run(life)


def test_a_session_says_that_its_lab_is_out_of_sight_and_whoever_asked_is_told() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, slot=2 * HOUR)
        (await world.host(worker)).fail_next("look", Unreachable("cut"), times=10)
        async with world.attended():
            await world.otto.act(S1, ObserveResources())
            await asyncio.sleep(60)
            session = await world.session()
            assert session.status.observation_request is None
            assert "ask again" in session.status.observation_error
            session = await world.until(
                lambda one: find_condition(one.status.conditions, LAB_SEEN) is not None, within=HOUR
            )
            said = find_condition(session.status.conditions, LAB_SEEN)
            assert said is not None
            assert (said.status, said.reason) == (Truth.FALSE, "Silent")
            assert "cut" in said.message
            await asyncio.sleep(600)
            said = find_condition((await world.session()).status.conditions, LAB_SEEN)
            assert said is not None
            assert said.status is Truth.TRUE

    run(life)


def test_a_request_to_observe_does_not_outlive_the_lab() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=2 * HOUR)
        await world.otto.act(S1, ObserveResources())
        world.machine(worker).labs.lose_lab(world.lab_of(worker, session))
        async with world.attended():
            session = await world.until(lambda one: one.status.phase is not _P.RUNNING, within=MINUTE)
            assert session.status.observation_request is None
            assert "not observed" in session.status.observation_error

    run(life)


def test_lesson_29_one_at_a_time_asks_a_silent_worker_less_and_less_often() -> None:
    async def life() -> None:
        memory, rules = LookMemory(VirtualClock()), SessionRules()
        assert memory.cached_silence("w1") is None
        for _ in range(64):
            memory.record_answer("w1", SILENT, rules)
        assert memory.cached_silence("w1") is SILENT, "those who asked at once met one silence"
        assert memory.cached_silence("w2") is None
        gaps = []
        for _ in range(7):
            gaps.append(await _quiet(memory))
            with memory.asking("w1"):
                assert memory.cached_silence("w1") is SILENT, "somebody asks already"
            memory.record_answer("w1", SILENT, rules)
        assert gaps == [1, 2, 4, 8, 16, 30, 30]
        await _quiet(memory)
        memory.record_answer("w1", Unknown("CML is not up", answered=True), rules)
        assert memory.cached_silence("w1") is None

    run(life)


async def _quiet(memory: LookMemory) -> int:
    seconds = 0
    while memory.cached_silence("w1") is not None:
        await asyncio.sleep(1)
        seconds += 1
    return seconds


def test_how_long_labs_take_is_found_once_a_minute() -> None:
    async def life() -> None:
        memory = LookMemory(VirtualClock())
        found: list[int] = []

        def find() -> timedelta:
            found.append(len(found))
            return timedelta(seconds=len(found))

        for _ in range(120):
            memory.usual_start("default", "basics:1.0.0", find)
            await asyncio.sleep(1)
        assert len(found) == 2
        assert memory.usual_start("default", "other:1.0.0", find) == timedelta(seconds=3)

    run(life, start=given.moment("10:00"))
