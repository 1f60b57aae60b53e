"""The picture of a session's lab: for whoever sees the session, and for nobody else."""

import pytest

from harness import given
from harness.plane_world import hand_clock
from lcm.control.admission.topologies import LabGraphs
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Gone, Refused
from lcm.model.kinds.definition import LabletDefinition, Topology
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabType
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.store.memory import MemoryStore

LAB = b"""
lab: {version: 0.3.0, title: two}
nodes:
  - {id: n0, label: R1, node_definition: iosv, x: -100, y: 20.5, interfaces: [{id: i0, slot: 0, label: Gi0/0}]}
  - {id: n1, label: R2, node_definition: iosv, x: 100, y: 0, interfaces: [{id: i0, slot: 0, label: Gi0/0}]}
links:
  - {id: l0, n1: n0, i1: i0, n2: n1, i2: i0}
"""
SESSION = Ref(LabletSession, "s1")


async def house(**definition: object) -> ControlPlane:
    clock, store = hand_clock(), MemoryStore()
    artifacts = SimulatedArtifacts(clock)
    stored = await artifacts.put(LAB)
    topology = Topology(uri=stored.uri, digest=stored.digest)
    for one in (given.definition(topology=topology, **definition), given.session(owner="ada")):
        await store.commit(*creation_ops(one))
    return ControlPlane(store, clock=clock, artifacts=artifacts)


def person(core: ControlPlane, name: str, role: Role = Role.USER) -> LocalPlane:
    return core.plane_for(Caller(name=name, role=role))


async def test_an_owner_sees_the_nodes_and_links_and_a_stranger_nothing() -> None:
    core = await house()
    graph = await person(core, "ada").session_graph(SESSION)
    assert [(node.label, node.definition, node.x, node.y) for node in graph.nodes] == [
        ("R1", "iosv", -100, 20.5),
        ("R2", "iosv", 100, 0),
    ]
    assert [(link.n1, link.n2) for link in graph.links] == [("n0", "n1")]
    assert await person(core, "otto", Role.OPERATOR).session_graph(SESSION) == graph
    with pytest.raises(Gone):
        await person(core, "bob").session_graph(SESSION)


async def test_a_lab_of_another_kind_has_no_picture() -> None:
    core = await house(lab_type=LabType.CONTAINER)
    with pytest.raises(Refused, match="no picture"):
        await person(core, "ada").session_graph(SESSION)


async def test_a_lab_that_was_drawn_is_neither_fetched_nor_parsed_again() -> None:
    core = await house()
    ada, author = person(core, "ada"), person(core, "otto", Role.OPERATOR)
    graph = await ada.session_graph(SESSION)
    assert (await author.topology(Ref(LabletDefinition, "basics:1.0.0"))).graph is graph
    assert core.library.artifacts is not None
    await core.library.artifacts.remove(f"artifact://{digest_of(LAB)}")
    assert await ada.session_graph(SESSION) is graph


async def test_pictures_are_kept_as_long_as_there_is_room_for_them() -> None:
    graphs = LabGraphs(most_items=8)
    used, forgotten = await graphs.draw(LAB), await graphs.draw(LAB + b"# another\n")
    assert await graphs.draw(LAB) is used
    await graphs.draw(LAB + b"# a third\n")
    assert await graphs.draw(LAB) is used
    assert await graphs.draw(LAB + b"# another\n") is not forgotten
