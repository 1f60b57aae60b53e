"""Both faces of one simulated machine agree, and our client gets through whatever the REST face does to it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest

from harness.lab_hosts import (
    BOOTED_AFTER,
    LAB,
    World,
    client,
    direct,
    in_process,
    over_rest,
    started,
    stranger,
    topology_of,
)
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, Unreachable
from lcm.providers.cml.connection import CmlLimits
from lcm.providers.protocols.labhost import CmlAnswerError
from lcm.sim.cml.faults import HttpFault
from lcm.sim.cml.rest.documents import NoticeCreate, PoolCreate
from lcm.sim.time.loop import START as MIDNIGHT

T = TypeVar("T")


@in_process
async def test_both_faces_of_one_machine_say_the_same(world: World) -> None:
    admin = next(iter(world.cml.users.everybody.values()))
    world.cml.pools.add(PoolCreate(label="class", licenses=40, users=[admin.id]))
    world.cml.notices.add(NoticeCreate("ERROR", "Beware", "of the dog", enabled=True))
    world.cml.ailments = ["fabric"]
    stranger(world, "foreign")
    lab = await world.host.ensure("compared", LAB)
    await compare(world, lab.lab_id)
    await world.host.start(lab.lab_id)
    await world.pass_time(10)
    await compare(world, lab.lab_id)
    await world.pass_time(BOOTED_AFTER)
    await world.host.register(product="CML_Enterprise", token=Secret("good-token"), expansion_nodes=10)
    await compare(world, lab.lab_id)
    await world.host.stop(lab.lab_id)
    await world.pass_time(60)
    await compare(world, lab.lab_id)


async def compare(world: World, lab_id: str) -> None:
    one, other = direct(world.cml), client(world.cml)
    for verb in ("system", "health", "stats", "maintenance", "licence", "labs", "all_nodes", "pools"):
        assert await getattr(one, verb)() == await getattr(other, verb)(), verb
    for verb in ("look", "converged", "elements", "nodes", "simulation_stats", "topology"):
        assert await getattr(one, verb)(lab_id) == await getattr(other, verb)(lab_id), verb
    assert await one.find("compared") == await other.find("compared")
    assert await one.node_definitions() == await other.node_definitions()
    categories = [[event.category for event in await host.activity(since=MIDNIGHT)] for host in (one, other)]
    assert sorted(categories[0]) == sorted(categories[1])


@over_rest
async def test_a_call_without_an_answer_ends(world: World) -> None:
    host = client(world.cml, limits=CmlLimits(question_seconds=5))
    await host.sign_in()
    world.cml.faults.add(HttpFault(match="GET /api/v0/labs", hang=True))
    before = world.cml.pace.now()
    with pytest.raises(Unreachable):
        await host.labs()
    assert world.cml.pace.now() - before == timedelta(seconds=5)
    assert await host.labs() == []


BAD_ANSWERS: list[dict[str, Any]] = [
    {"hang": True},
    {"cut": True},
    {"status": 500},
    {"status": 502},
    {"body": "<html>"},
    {"body": "[]"},
]


@over_rest
async def test_whatever_happens_to_an_import_there_is_one_lab_in_the_end(world: World) -> None:
    for number, fault in enumerate(BAD_ANSWERS):
        for match in ("POST /api/v0/import", "GET /api/v0/labs*"):
            world.cml.faults.add(HttpFault(match=match, times=2, **fault))
            title = f"lab-{number}-{match[0]}"
            assert await insist(partial(world.host.ensure, title, LAB)) is not None
            assert [one.title for one in await insist(world.host.labs)].count(title) == 1


@over_rest
async def test_whatever_happens_to_a_removal_no_lab_is_left(world: World) -> None:
    for fault in BAD_ANSWERS:
        lab = await insist(partial(started, world, "doomed", topology_of(2)))
        for match in ("*/state", "*/stop", "*/wipe", "DELETE *"):
            world.cml.faults.add(HttpFault(match=match, **fault))
        await insist(partial(world.host.remove, lab.lab_id))
        world.cml.faults.clear()
        assert await world.host.labs() == []


async def insist(verb: Callable[[], Awaitable[T]]) -> T:
    """Repeat a verb as controllers do, until it gets through."""
    for _ in range(10):
        try:
            return await verb()
        except (Later, CmlAnswerError):
            await asyncio.sleep(5)
    raise AssertionError("it never got through")
