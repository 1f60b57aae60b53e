"""What every LabHost tells about the inside of a lab: nodes, interfaces, figures, tags, and its file."""

import pytest
import yaml

from harness.lab_hosts import LAB, NOWHERE, ROUTER, World, everywhere, in_process, node, started, until_converged
from lcm.model.base.errors import Gone
from lcm.providers.protocols.labhost import Elements
from lcm.sim.cml.rest.documents import ConfigurationFile


@everywhere
async def test_a_nodes_size_is_what_it_really_got(world: World) -> None:
    lab = await world.host.ensure("sizes", LAB)
    before = await node(world.host, lab.lab_id, "R1")
    assert (before.cpus, before.ram_mb, before.cpu_limit, before.disk_gb) == (None, None, 50, None)
    await world.host.start(lab.lab_id)
    await until_converged(world, lab.lab_id)
    router = await node(world.host, lab.lab_id, "R1")
    assert (router.node_definition, router.state, router.tags) == ("iosv", "BOOTED", ("serial:5001", "core"))
    assert (router.cpus, router.cpu_limit, router.ram_mb) == (ROUTER.cpus, 50, ROUTER.ram_mb)
    assert router.disk_gb == ROUTER.boot_disk_gb + ROUTER.data_volume_gb
    host = await node(world.host, lab.lab_id, "PC1")
    assert (host.cpus, host.cpu_limit, host.ram_mb, host.disk_gb) == (2, 100, 1024, 25)
    everywhere_else = await world.host.all_nodes()
    assert {(one.label, one.cpus, one.ram_mb) for one in everywhere_else[lab.lab_id]} >= {
        ("R1", ROUTER.cpus, ROUTER.ram_mb),
        ("PC1", 2, 1024),
    }
    await world.host.remove(lab.lab_id)


@everywhere
async def test_interfaces_show_their_state_and_addresses(world: World) -> None:
    lab = await started(world, "wired")
    router, host = await node(world.host, lab.lab_id, "R1"), await node(world.host, lab.lab_id, "PC1")
    assert [(one.label, one.slot, one.state) for one in router.interfaces] == [
        ("GigabitEthernet0/0", 0, "STARTED"),
        ("GigabitEthernet0/1", 1, "STARTED"),
    ]
    assert all(one.mac_address for one in router.interfaces)
    assert [one.mac_address for one in host.interfaces] == ["52:54:00:00:00:aa"]
    outside = router.interfaces[1].ip4
    assert len(outside) == 1
    assert outside[0].startswith("192.168.255.")
    await world.host.remove(lab.lab_id)


@everywhere
async def test_elements_cover_nodes_links_and_interfaces(world: World) -> None:
    lab = await world.host.ensure("elements", LAB)
    before = await world.host.elements(lab.lab_id)
    assert [len(part) for part in (before.nodes, before.links, before.interfaces)] == [3, 2, 4]
    assert states(before) == {"DEFINED_ON_CORE"}
    await world.host.start(lab.lab_id)
    await until_converged(world, lab.lab_id)
    after = await world.host.elements(lab.lab_id)
    assert after.nodes.keys() == before.nodes.keys() == {one.node_id for one in await world.host.nodes(lab.lab_id)}
    assert states(after) == {"BOOTED", "STARTED"}
    await world.host.remove(lab.lab_id)


def states(elements: Elements) -> set[str]:
    return {*elements.nodes.values(), *elements.links.values(), *elements.interfaces.values()}


@everywhere
async def test_running_nodes_and_links_have_figures(world: World) -> None:
    lab = await world.host.ensure("figures", LAB)
    before = await world.host.simulation_stats(lab.lab_id)
    assert all(one.cpu_usage is None for one in before.nodes.values())
    await world.host.start(lab.lab_id)
    await until_converged(world, lab.lab_id)
    await world.pass_time(60)
    stats = await world.host.simulation_stats(lab.lab_id)
    router = await node(world.host, lab.lab_id, "R1")
    use = stats.nodes[router.node_id]
    assert use.cpu_usage is not None
    assert 0 < use.cpu_usage <= 100
    assert use.ram_usage is not None
    assert (use.cpus, use.ram_mb) == (ROUTER.cpus, ROUTER.ram_mb)
    assert use.seconds_in_state.keys() >= {"QUEUED", "STARTED", "BOOTED"}
    assert len(stats.links) == 2
    assert all(link.read_bytes > 0 and link.written_bytes > 0 for link in stats.links.values())
    await world.host.remove(lab.lab_id)


@everywhere
async def test_tags_are_replaced_as_a_whole(world: World) -> None:
    lab = await world.host.ensure("tags", LAB)
    router = await node(world.host, lab.lab_id, "R1")
    for _ in range(2):
        await world.host.set_tags(lab.lab_id, router.node_id, ["serial:6001", "pat:tcp:6002:22"])
    assert (await node(world.host, lab.lab_id, "R1")).tags == ("serial:6001", "pat:tcp:6002:22")
    await world.host.set_tags(lab.lab_id, router.node_id, [])
    assert (await node(world.host, lab.lab_id, "R1")).tags == ()
    with pytest.raises(Gone):
        await world.host.set_tags(lab.lab_id, NOWHERE, [])
    await world.host.remove(lab.lab_id)


def likeness(topology: str) -> object:
    """What of a lab's file must survive a journey through CML."""
    document = yaml.safe_load(topology)
    keep = ("label", "node_definition", "x", "y", "cpus", "ram", "cpu_limit", "boot_disk_size", "data_volume", "tags")
    labels = {one["id"]: one["label"] for one in document["nodes"]}
    interfaces = {(one["id"], end["id"]): end["label"] for one in document["nodes"] for end in one["interfaces"]}
    nodes = [{key: one.get(key) or None for key in keep} for one in document["nodes"]]
    ends = [
        {(labels[link[n]], interfaces[link[n], link[i]]) for n, i in (("n1", "i1"), ("n2", "i2"))}
        for link in document["links"]
    ]
    return nodes, ends, document["lab"]["description"]


@everywhere
async def test_a_downloaded_lab_can_be_imported_again_and_is_the_same(world: World) -> None:
    lab = await started(world, "original")
    text = await world.host.topology(lab.lab_id)
    assert likeness(text) == likeness(LAB)
    assert "hostname R1" in text
    await world.host.remove(lab.lab_id)
    copy = await world.host.ensure("copy", text)
    assert likeness(await world.host.topology(copy.lab_id)) == likeness(LAB)
    await world.host.remove(copy.lab_id)


@in_process
async def test_a_download_holds_what_was_configured_inside_the_nodes(world: World) -> None:
    lab = await started(world, "worked-on")
    inside = next(one for one in world.cml.labs.nodes() if one.spec.label == "R1")
    inside.running = [ConfigurationFile("ios_config.txt", "hostname solved-by-a-learner")]
    assert "solved-by-a-learner" in await world.host.topology(lab.lab_id)
