"""What the nodes of a session's lab do, as its owner sees it: by label, in the words of CML."""

import asyncio

from harness.session_world import HOUR, PORTS, prepared
from lcm.controllers.session.look import name_nodes
from lcm.model.kinds.session import MAX_NODES, LabletSession, SessionPhase
from lcm.sim.time.loop import run


def states(session: LabletSession) -> dict[str, str]:
    return {one.label: one.state for one in session.status.nodes}


def test_nodes_are_known_by_label_while_they_boot_and_run_and_no_more_when_it_is_over() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker, slot=HOUR, allocated_ports=PORTS)
        async with world.attended():
            session = await world.comes_to(SessionPhase.RUNNING)
            assert states(session) == {"PC": "BOOTED", "out": "BOOTED"}
            labs, lab = world.machine(worker).labs, world.lab_of(worker, session)
            labs.stop_node(lab, next(node for node in lab.nodes.values() if node.spec.label == "PC"))
            await asyncio.sleep(30)
            session = await world.session()
            assert states(session) == {"PC": "STOPPED", "out": "BOOTED"}
            known = session.metadata.resource_version
            await asyncio.sleep(120)
            assert (await world.session()).metadata.resource_version == known, "what is not new is not written"
            assert states(await world.comes_to(SessionPhase.COMPLETED)) == {}

    run(life)


def test_a_node_without_a_label_and_too_many_nodes_are_not_told() -> None:
    assert name_nodes({"n1": "BOOTED"}, {}) is None
    many = {f"n{number}": "BOOTED" for number in range(MAX_NODES + 1)}
    assert name_nodes(many, {}) == ()
