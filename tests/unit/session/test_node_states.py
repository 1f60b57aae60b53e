"""What the nodes of a session's lab do, as its owner sees it: by label, in the words of CML."""

import asyncio
from collections import Counter

from harness.session_world import HOUR, PORTS, Through, prepared
from lcm.controllers.session.look import name_nodes
from lcm.model.kinds.session import MAX_NODES, LabletSession, SessionPhase
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
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


class CountingHost(DirectHost):
    """Counts when it is asked whether a lab has converged."""

    def __init__(self, cml: Cml) -> None:
        super().__init__(cml)
        self.asked: Counter[float] = Counter()

    async def converged(self, lab_id: str) -> bool:
        self.asked[asyncio.get_running_loop().time()] += 1
        return await super().converged(lab_id)


def test_a_lab_is_not_looked_at_again_because_its_progress_was_written() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker, slot=HOUR, allocated_ports=PORTS)
        hosts = Through(world, CountingHost)
        async with world.attended(hosts=hosts):
            await world.comes_to(SessionPhase.RUNNING)
        [host] = hosts.made.values()
        assert isinstance(host, CountingHost)
        assert set(host.asked.values()) == {1}

    run(life)
