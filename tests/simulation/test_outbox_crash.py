"""Deliverers that die, stand still or take over from each other at any await: every event arrives, in its order."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest
from structlog.testing import capture_logs

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.event_clients import World, happen, now_seconds, put, sink, writer
from lcm.control.delivery import sinks
from lcm.control.delivery.outbox import LEASE_SECONDS
from lcm.model.base.errors import LcmError, Refused, Unreachable
from lcm.sim.time.chance import Chance
from lcm.sim.time.host import Host
from lcm.sim.time.loop import run

DOWN_SECONDS = 5
PATHS = ("a", "b")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing: thousands of lines would take longer than all else."""
    with capture_logs():
        yield


async def events_for_two_sinks() -> World:
    """One sink is down at first; the other's answers are lost now and then."""
    world = World()
    for name in PATHS:
        await put(world.store, sink(name))
    world.expected = await happen(world.store, 7)
    world.receiver.trouble = lambda path, _: (
        Unreachable("down") if path == "a" and now_seconds() < DOWN_SECONDS else None
    )
    lost = {world.expected[3]}

    def lose_once(path: str, number: str) -> LcmError | None:
        if path == "b" and number in lost:
            lost.discard(number)
            return Unreachable("the answer was lost")
        return None

    world.receiver.lost_answer = lose_once
    return world


async def deliver(world: World) -> None:
    await world.deliver(lambda: world.arrived(*PATHS))


async def all_arrived_in_order(world: World) -> None:
    for path in PATHS:
        assert world.receiver.ids(path) == world.expected
    assert await sinks.list_dead_letters(world.store, "a") == []


def test_a_deliverer_may_die_anywhere(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("deliver", events_for_two_sinks, deliver, all_arrived_in_order, report=tell)
    assert awaits > 100


def test_a_deliverer_may_stand_still_anywhere_while_another_takes_over(tell: Callable[[str], None]) -> None:
    pause = timedelta(seconds=3 * LEASE_SECONDS)
    awaits = pause_everywhere(
        "deliver", events_for_two_sinks, deliver, all_arrived_in_order, pause_for=pause, report=tell
    )
    assert awaits > 100


async def one_event_that_is_refused() -> World:
    world = World()
    await put(world.store, sink())
    world.expected = await happen(world.store, 4)
    world.receiver.trouble = lambda _path, number: Refused("no") if number == world.expected[1] else None
    return world


async def deliver_or_bury(world: World) -> None:
    await world.deliver(lambda: world.receiver.ids() == [world.expected[0], *world.expected[2:]])


async def the_refused_one_is_a_dead_letter(world: World) -> None:
    (letter,) = await sinks.list_dead_letters(world.store, "a")
    assert letter.event_id == world.expected[1]


def test_no_dead_letter_is_lost_by_a_death(tell: Callable[[str], None]) -> None:
    crash_everywhere("bury", one_event_that_is_refused, deliver_or_bury, the_refused_one_is_a_dead_letter, report=tell)


async def a_replay_that_was_asked_for() -> World:
    world = await one_event_that_is_refused()
    await deliver_or_bury(world)
    world.receiver.trouble = lambda _path, _number: None
    await sinks.replay_dead_letters(writer(world.store), "a")
    return world


async def replay(world: World) -> None:
    await world.deliver(world.arrived)


async def go_on(world: World) -> None:
    """Let another process look for what is left to do."""
    outbox = world.outbox()
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(2 * LEASE_SECONDS)
    await outbox.close()
    await running


async def the_letter_is_gone_or_sent_again(world: World) -> None:
    await go_on(world)
    assert await sinks.list_dead_letters(world.store, "a") == []
    assert world.arrived()


def test_no_replay_is_lost_by_a_death(tell: Callable[[str], None]) -> None:
    crash_everywhere("replay", a_replay_that_was_asked_for, replay, the_letter_is_gone_or_sent_again, report=tell)


async def history_that_is_gone() -> World:
    world = World()
    await put(world.store, sink())
    await world.deliver(lambda: True)
    await happen(world.store, 2)
    await world.store.compact((await world.store.scan("x")).revision)
    return world


async def told(world: World) -> None:
    await world.deliver(lambda: any(one.type == "reset" for one in world.receiver.got["a"]))


async def told_of_one_reset(world: World) -> None:
    await go_on(world)
    assert [one.partition(".")[2].endswith(".reset") for one in world.receiver.ids()] == [True]


def test_a_reset_is_told_under_one_id_whatever_dies(tell: Callable[[str], None]) -> None:
    crash_everywhere("reset", history_that_is_gone, told, told_of_one_reset, report=tell)


@pytest.mark.parametrize("seed", range(12))
def test_several_deliverers_that_come_and_go_while_events_flow(seed: int) -> None:
    async def story() -> None:
        chance, world = Chance(seed), World(seed=seed)
        for name in PATHS:
            await put(world.store, sink(name))
        world.receiver.trouble = partial(trouble, chance.stream("network"))
        world.receiver.lost_answer = partial(trouble, chance.stream("answers"))
        hosts = [Host(f"first-{number}") for number in range(2)]
        for host in hosts:
            host.spawn(world.outbox(host.name).run())
        for number in range(30):
            world.expected += await happen(world.store, chance.randint(1, 5))
            await asyncio.sleep(chance.uniform(0, 10))
            if chance.random() < 0.3:
                place = chance.randrange(2)
                hosts[place].kill()
                hosts[place] = Host(f"host-{number}")
                hosts[place].spawn(world.outbox(hosts[place].name).run())
            elif chance.random() < 0.2:
                host = chance.choice(hosts)
                host.pause()
                asyncio.get_running_loop().call_later(chance.uniform(0, 40), host.resume)
        world.receiver.trouble = world.receiver.lost_answer = lambda _path, _number: None
        await asyncio.sleep(300)
        for path in PATHS:
            assert world.receiver.ids(path) == world.expected
        for host in hosts:
            host.kill()

    run(story)


def trouble(chance: Chance, _path: str, _number: str) -> LcmError | None:
    return Unreachable("bad luck") if chance.random() < 0.2 else None
