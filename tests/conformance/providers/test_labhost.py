"""What every LabHost does with labs: find, import, start, stop and remove them, whatever state they are in."""

import asyncio

import pytest

from harness.lab_hosts import (
    BOOTED_AFTER,
    LAB,
    NOWHERE,
    ROUTER,
    World,
    everywhere,
    in_process,
    node,
    started,
    state,
    stranger,
    topology_of,
    until_converged,
)
from lcm.model.base.errors import Gone, NoRoom
from lcm.providers.protocols.labhost import CmlLabCreationError, LabState
from lcm.sim.cml.rest.documents import PoolCreate


@everywhere
async def test_what_is_not_there_is_none(world: World) -> None:
    assert await world.host.find("no such lab") is None
    assert await world.host.look(NOWHERE) is None


@everywhere
async def test_every_verb_on_a_lab_that_is_not_there_says_gone(world: World) -> None:
    host = world.host
    for verb in (
        host.start,
        host.stop,
        host.converged,
        host.elements,
        host.nodes,
        host.simulation_stats,
        host.topology,
    ):
        with pytest.raises(Gone):
            await verb(NOWHERE)
    with pytest.raises(Gone):
        await host.set_tags(NOWHERE, NOWHERE, [])


@everywhere
async def test_a_lab_is_imported_once_under_its_title(world: World) -> None:
    lab = await world.host.ensure("once", LAB)
    assert (lab.title, lab.state, lab.node_count, lab.owner) == ("once", LabState.DEFINED, 3, "admin")
    assert lab.created_at is not None
    assert lab.created_at.tzinfo is not None
    assert await world.host.ensure("once", LAB) == lab
    assert await world.host.find("once") == lab
    assert await world.host.look(lab.lab_id) == lab
    assert [one.title for one in await world.host.labs() if one.title in {"once", "the file's own title"}] == ["once"]
    await world.host.remove(lab.lab_id)


@everywhere
async def test_a_lab_that_cml_refuses_leaves_nothing_behind(world: World) -> None:
    for topology in ("lab: [", "hello", "", LAB.replace("n2: n1", "n2: n9"), LAB.replace("0.3.0", "7.0.0")):
        with pytest.raises(CmlLabCreationError):
            await world.host.ensure("refused", topology)
    assert await world.host.find("refused") is None


@in_process
async def test_of_several_labs_of_one_title_the_oldest_is_found(world: World) -> None:
    admin = next(iter(world.cml.users.everybody.values()))
    made = []
    for _ in range(3):
        made.append(world.cml.import_lab(LAB, admin, "twin")[0].id)
        await world.pass_time(5)
    assert (await world.host.ensure("twin", LAB)).lab_id == made[0]
    for expected in made:
        found = await world.host.find("twin")
        assert found is not None
        assert found.lab_id == expected
        await world.host.remove(found.lab_id)
    assert await world.host.find("twin") is None


@everywhere
async def test_whoever_finds_and_removes_until_nothing_is_found_leaves_no_twin_behind(world: World) -> None:
    await asyncio.gather(*(world.host.ensure("raced", LAB) for _ in range(3)))
    for _ in range(4):
        found = await world.host.find("raced")
        if found is None:
            break
        await world.host.remove(found.lab_id)
    assert [one for one in await world.host.labs() if one.title == "raced"] == []


@in_process
async def test_strangers_labs_and_their_ports_are_seen(world: World) -> None:
    foreign = stranger(world, "foreign")
    lab = await world.host.ensure("ours", LAB.replace("5001", "6001"))
    assert {(one.lab_id, one.owner) for one in await world.host.labs()} == {
        (foreign, "somebody"),
        (lab.lab_id, "admin"),
    }
    nodes = await world.host.all_nodes()
    assert {lab_id: {tag for one in of_lab for tag in one.tags} for lab_id, of_lab in nodes.items()} == {
        foreign: {"serial:5001", "core", "vnc:5002"},
        lab.lab_id: {"serial:6001", "core", "vnc:5002"},
    }
    assert all(one.interfaces == () for of_lab in nodes.values() for one in of_lab)


@in_process
async def test_a_lab_starts_and_converges_when_its_nodes_have_booted(world: World) -> None:
    lab = await world.host.ensure("slow", LAB)
    assert await world.host.converged(lab.lab_id)
    await world.host.start(lab.lab_id)
    assert not await world.host.converged(lab.lab_id)
    assert await state(world.host, lab.lab_id) is LabState.STARTED
    await world.pass_time(BOOTED_AFTER)
    assert await world.host.converged(lab.lab_id)
    assert set((await world.host.elements(lab.lab_id)).nodes.values()) == {"BOOTED"}


@everywhere
async def test_starting_and_stopping_may_be_repeated(world: World) -> None:
    lab = await started(world, "again")
    await world.host.start(lab.lab_id)
    assert await world.host.converged(lab.lab_id)
    for _ in range(2):
        await world.host.stop(lab.lab_id)
    await until_converged(world, lab.lab_id)
    assert await state(world.host, lab.lab_id) is LabState.STOPPED
    await world.host.start(lab.lab_id)
    await until_converged(world, lab.lab_id)
    assert set((await world.host.elements(lab.lab_id)).nodes.values()) == {"BOOTED"}
    await world.host.remove(lab.lab_id)


@everywhere
async def test_more_nodes_than_the_licence_allows_do_not_start(world: World) -> None:
    await world.host.deregister()
    lab = await world.host.ensure("many", topology_of(6))
    with pytest.raises(NoRoom):
        await world.host.start(lab.lab_id)
    assert await state(world.host, lab.lab_id) is LabState.DEFINED
    await world.host.remove(lab.lab_id)


@in_process
async def test_a_pool_limits_and_tells_what_its_users_use(world: World) -> None:
    admin = next(iter(world.cml.users.everybody.values()))
    world.cml.pools.add(PoolCreate(label="class", licenses=4, cpus=4, users=[admin.id]))
    lab = await started(world, "pooled")
    (pool,) = await world.host.pools()
    assert (pool.label, pool.licenses, pool.licenses_limit) == ("class", 2, 4)
    assert (pool.ram_mb, pool.ram_limit_mb) == (ROUTER.ram_mb + 1024, None)
    assert (pool.cpus, pool.cpus_limit) == (3.0, 4.0)
    more = await world.host.ensure("more", LAB)
    with pytest.raises(NoRoom):
        await world.host.start(more.lab_id)
    await world.host.remove(lab.lab_id)
    await world.host.start(more.lab_id)


@everywhere
async def test_a_lab_is_removed_from_whatever_state_it_is_in(world: World) -> None:
    host = world.host
    defined = await host.ensure("defined", LAB)
    starting = await host.ensure("starting", topology_of(2))
    await host.start(starting.lab_id)
    stopping = await started(world, "stopping", topology_of(2))
    await host.stop(stopping.lab_id)
    for lab in (defined, starting, stopping):
        await host.remove(lab.lab_id)
        assert await host.look(lab.lab_id) is None
        await host.remove(lab.lab_id)
        assert await host.find(lab.title) is None
    await host.remove(NOWHERE)


@in_process
async def test_a_lab_in_which_one_node_hangs_is_removed(world: World) -> None:
    world.cml.labs.never_boot("PC1")
    lab = await world.host.ensure("hanging", LAB)
    await world.host.start(lab.lab_id)
    await world.pass_time(3600)
    assert not await world.host.converged(lab.lab_id)
    assert (await node(world.host, lab.lab_id, "PC1")).state == "STARTED"
    await world.host.remove(lab.lab_id)
    assert await world.host.labs() == []


@in_process
async def test_a_lab_that_is_half_stopped_and_half_wiped_is_removed(world: World) -> None:
    lab = await started(world, "half")
    inside = world.cml.labs.get(lab.lab_id)
    first, second, _ = inside.nodes.values()
    world.cml.labs.stop_node(inside, first)
    await world.pass_time(60)
    world.cml.labs.wipe_node(inside, first)
    world.cml.labs.stop_node(inside, second)
    await world.pass_time(60)
    await world.host.remove(lab.lab_id)
    assert await world.host.labs() == []
