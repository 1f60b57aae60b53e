"""What every LabHost does with its licence: register, expand, give back, and refuse while nodes run."""

import pytest

from harness.lab_hosts import World, everywhere, in_process, started, topology_of
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later
from lcm.providers.protocols.labhost import UNLICENSED_NODES, CmlLicensingError, LabHost, Licence, node_limit

TOKEN = Secret("a-good-token")
BAD_TOKEN = Secret("bad-token")


async def enterprise(host: LabHost, expansion_nodes: int = 0) -> Licence:
    return await host.register(product="CML_Enterprise", token=TOKEN, expansion_nodes=expansion_nodes)


@everywhere
async def test_a_licence_is_registered_until_in_compliance_and_given_back(world: World) -> None:
    before = await world.host.deregister()
    assert (before.is_registered, before.in_compliance, before.node_limit) == (False, False, UNLICENSED_NODES)
    licence = await enterprise(world.host)
    assert (licence.is_registered, licence.in_compliance, licence.product) == (True, True, "CML_Enterprise")
    assert licence.node_limit == node_limit("CML_Enterprise", in_compliance=True, expansion_nodes=0)
    assert await world.host.licence() == licence
    after = await world.host.deregister()
    assert (after.is_registered, after.node_limit) == (False, UNLICENSED_NODES)


@everywhere
async def test_registering_and_deregistering_may_be_repeated(world: World) -> None:
    assert await enterprise(world.host, 50) == await enterprise(world.host, 50)
    assert await world.host.deregister() == await world.host.deregister()


@everywhere
async def test_expansion_nodes_raise_the_limit(world: World) -> None:
    plain = await enterprise(world.host)
    expanded = await enterprise(world.host, 50)
    assert (expanded.expansion_nodes, expanded.node_limit) == (50, plain.node_limit + 50)
    lab = await started(world, "large", topology_of(30))
    assert (await world.host.stats()).running_nodes >= 30
    await world.host.remove(lab.lab_id)
    assert (await enterprise(world.host)).node_limit == plain.node_limit
    await world.host.deregister()


@in_process
async def test_more_expansion_than_there_is_needs_a_person(world: World) -> None:
    with pytest.raises(CmlLicensingError):
        await enterprise(world.host, world.cml.licence_server.expansion_nodes + 1)


@in_process
async def test_another_product_replaces_the_one_that_is_registered(world: World) -> None:
    await enterprise(world.host)
    licence = await world.host.register(product="CML_Personal", token=TOKEN)
    assert (licence.product, licence.in_compliance) == ("CML_Personal", True)
    assert licence.node_limit == node_limit("CML_Personal", in_compliance=True, expansion_nodes=0)
    assert list(world.cml.licence_server.taken.values()) == ["CML_Personal"]


@in_process
async def test_an_unknown_product_needs_a_person(world: World) -> None:
    with pytest.raises(CmlLicensingError):
        await world.host.register(product="CML_Unheard", token=TOKEN)


@everywhere
async def test_a_token_that_is_not_valid_needs_a_person_and_is_never_shown(world: World) -> None:
    await world.host.deregister()
    for _ in range(2):
        with pytest.raises(CmlLicensingError) as raised:
            await world.host.register(product="CML_Enterprise", token=BAD_TOKEN)
        assert BAD_TOKEN.reveal() not in str(raised.value)
    licence = await world.host.licence()
    assert (licence.is_registered, licence.node_limit) == (False, UNLICENSED_NODES)
    assert licence.failure
    assert BAD_TOKEN.reveal() not in repr(licence)
    assert (await enterprise(world.host)).failure == ""
    await world.host.deregister()


@in_process
async def test_a_licence_server_out_of_reach_is_tried_later(world: World) -> None:
    world.cml.licence_server.reachable = False
    for _ in range(2):
        with pytest.raises(Later):
            await enterprise(world.host)
    world.cml.licence_server.reachable = True
    assert (await enterprise(world.host)).in_compliance


@in_process
async def test_without_a_free_seat_a_person_is_needed(world: World) -> None:
    world.cml.licence_server.seats = 0
    with pytest.raises(CmlLicensingError):
        await enterprise(world.host)
    assert not (await world.host.licence()).in_compliance


@everywhere
async def test_a_licence_is_not_given_back_while_nodes_run(world: World) -> None:
    await enterprise(world.host)
    lab = await started(world, "running", topology_of(2))
    with pytest.raises(Later):
        await world.host.deregister()
    assert (await world.host.licence()).in_compliance
    await world.host.remove(lab.lab_id)
    assert not (await world.host.deregister()).is_registered


@in_process
async def test_a_seat_is_taken_and_given_back_at_the_server(world: World) -> None:
    await enterprise(world.host)
    assert len(world.cml.licence_server.taken) == 1
    await world.host.deregister()
    assert world.cml.licence_server.taken == {}


@in_process
async def test_a_seat_that_could_not_be_given_back_is_told_once(world: World) -> None:
    await enterprise(world.host)
    world.cml.licence_server.reachable = False
    with pytest.raises(CmlLicensingError):
        await world.host.deregister()
    assert not (await world.host.deregister()).is_registered
    assert len(world.cml.licence_server.taken) == 1
