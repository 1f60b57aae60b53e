"""What must never happen on machines that are smaller than promised, or whose ports somebody took by hand."""

import asyncio
from datetime import timedelta

from harness import given
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cml.rest.documents import NodeUpdate
from lcm.sim.time.loop import run
from lcm.sim.world.scenario import REGION, ScenarioLab, lab_topology
from world.checks.capacity import NO_CAPACITY
from world.checks.ports import SEEN_GRACE, SHARED_PORT
from world.checks.sizes import TOLD_GRACE, TOO_SMALL
from world.witnessed import Watched

MINUTE = timedelta(minutes=1)
SMALL = given.machine(cpu_millis=4_000)
HELD = {"phase": SessionPhase.RUNNING, "claim": given.claim("08:00", "18:00", cpu_millis=4_000), "worker_id": "uid-w1"}
FIRST = given.session(**HELD)
SECOND = given.session(name="s2", uid="uid-s2", **HELD)


def at_risk(session: LabletSession, reason: str) -> LabletSession:
    told = Condition(type="AtRisk", status=Truth.TRUE, last_transition_at=given.moment("08:00"), reason=reason)
    return given.with_fields(session, {"conditions": (told,)})


def looked_at(*known: LabWorker | LabletSession, for_: timedelta) -> list[str]:
    """Look every minute for a while, and give the rules that were broken, each once."""

    async def life() -> list[str]:
        watched = Watched()
        watched.known(*known)
        await minutes(watched, for_)
        return list(dict.fromkeys(one.rule for one in watched.witness.violations))

    return run(life, start=given.moment("08:00"))


async def minutes(watched: Watched, span: timedelta) -> None:
    for _ in range(span // MINUTE):
        await asyncio.sleep(60)
        watched.witness.check_minute()


def test_whoever_does_not_fit_on_a_small_machine_is_told_within_a_grace() -> None:
    small, large = (given.worker(phase=WorkerPhase.READY, capacity=one) for one in (SMALL, given.machine()))
    long = TOLD_GRACE + 5 * MINUTE
    assert looked_at(small, FIRST, SECOND, for_=long) == [NO_CAPACITY]
    assert looked_at(small, FIRST, SECOND, for_=TOLD_GRACE) == []
    assert looked_at(small, FIRST, at_risk(SECOND, TOO_SMALL), for_=long) == []
    assert looked_at(small, FIRST, for_=long) == []
    assert looked_at(large, FIRST, SECOND, for_=long) == []


def test_nobody_is_told_of_a_small_machine_where_there_is_none() -> None:
    large, long = given.worker(phase=WorkerPhase.READY, capacity=given.machine()), TOLD_GRACE + 5 * MINUTE
    assert looked_at(large, at_risk(FIRST, TOO_SMALL), for_=long) == [NO_CAPACITY]
    assert looked_at(large, at_risk(FIRST, TOO_SMALL), for_=TOLD_GRACE) == []
    assert looked_at(large, at_risk(FIRST, "NoWorkerInTime"), for_=long) == []


def test_a_port_that_somebody_takes_is_seen_within_a_grace() -> None:
    async def life(foreign: tuple[int, ...]) -> list[str]:
        watched = Watched()
        account = watched.stage.cloud.account
        machine = account.run(LaunchOrder(REGION, "m5zn.metal", account.images(REGION)[0].image_id))
        await asyncio.sleep(1_200)
        assert machine.state(watched.now) is InstanceState.RUNNING
        cml = watched.stage.cml(machine.instance_id)
        assert cml is not None
        answers = Condition(
            type=WorkerCondition.REACHABLE, status=Truth.TRUE, last_transition_at=watched.now, reason="Answered"
        )
        ec2 = {"instance_id": machine.instance_id}
        watched.known(
            given.worker(phase=WorkerPhase.READY, ec2=ec2, conditions=(answers,), foreign_ports=foreign),
            given.with_fields(FIRST, {"allocated_ports": {"a": 2000, "b": 2001}}),
        )
        lab, _ = cml.import_lab(
            lab_topology(ScenarioLab(name="basics", track="ccna", nodes=2)), cml.users.administrator
        )
        await minutes(watched, 2 * SEEN_GRACE)
        assert watched.witness.violations == []
        cml.labs.change_node(lab, next(iter(lab.nodes.values())), NodeUpdate(tags=["pat:udp:3000:53"]))
        await minutes(watched, SEEN_GRACE + 10 * MINUTE)
        return list(dict.fromkeys(one.rule for one in watched.witness.violations))

    start = given.moment("08:00")
    assert run(lambda: life(()), start=start) == [SHARED_PORT]
    assert run(lambda: life((3_000,)), start=start) == []
