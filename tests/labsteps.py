"""A lab for tests of hosts, and the steps that many of them take with it."""

import yaml

from labworlds import World
from lcm.model.topology.node_definitions import SHIPPED_NODES
from lcm.providers.protocols.labhost import LabHost, LabState, LabSummary, NodeFacts
from lcm.sim.cml.rest.documents import UserCreate

ROUTER = SHIPPED_NODES["iosv"]
NOWHERE = "00000000-0000-4000-8000-000000000000"
BOOTED_AFTER = 300
LAB = """\
lab:
  version: 0.3.0
  title: the file's own title
  description: a router, a host and a way out
nodes:
  - id: n0
    label: R1
    node_definition: iosv
    x: 0
    y: 0
    cpu_limit: 50
    tags: [serial:5001, core]
    configuration: hostname R1
    interfaces:
      - {id: i0, label: GigabitEthernet0/0, type: physical, slot: 0}
      - {id: i1, label: GigabitEthernet0/1, type: physical, slot: 1}
  - id: n1
    label: PC1
    node_definition: alpine
    x: 100
    y: 0
    cpus: 2
    ram: 1024
    boot_disk_size: 20
    data_volume: 5
    tags: [vnc:5002]
    interfaces:
      - {id: i0, label: eth0, type: physical, slot: 0, mac_address: "52:54:00:00:00:aa"}
  - id: n2
    label: out
    node_definition: external_connector
    x: 200
    y: 0
    configuration: NAT
    interfaces:
      - {id: i0, label: port, type: physical, slot: 0}
links:
  - {id: l0, n1: n0, i1: i0, n2: n1, i2: i0}
  - {id: l1, n1: n0, i1: i1, n2: n2, i2: i0}
"""


def topology_of(count: int) -> str:
    nodes = [
        {"id": f"n{n}", "label": f"H{n}", "node_definition": "server", "x": n, "y": 0, "interfaces": []}
        for n in range(count)
    ]
    return yaml.safe_dump({"lab": {"version": "0.3.0", "title": "many"}, "nodes": nodes, "links": []})


async def started(world: World, title: str, topology: str = LAB) -> LabSummary:
    lab = await world.host.ensure(title, topology)
    await world.host.start(lab.lab_id)
    await until_converged(world, lab.lab_id)
    return lab


async def until_converged(world: World, lab_id: str) -> None:
    for _ in range(BOOTED_AFTER):
        if await world.host.converged(lab_id):
            return
        await world.pass_time(5)
    raise AssertionError("the lab never converged")


async def node(host: LabHost, lab_id: str, label: str) -> NodeFacts:
    return next(one for one in await host.nodes(lab_id) if one.label == label)


async def state(host: LabHost, lab_id: str) -> LabState | None:
    lab = await host.look(lab_id)
    return lab.state if lab else None


def stranger(world: World, title: str, topology: str = LAB) -> str:
    """Let somebody else import a lab."""
    users = world.cml.users
    somebody = next((one for one in users.everybody.values() if not one.admin), None) or users.add(
        UserCreate(username="somebody", password="something")
    )
    return world.cml.import_lab(topology, somebody, title)[0].id
