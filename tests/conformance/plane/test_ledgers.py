"""The plane's contract: licence seats, billing intervals, and what stands in a step's way."""

from datetime import timedelta
from decimal import Decimal

import pytest

from harness import given
from harness.plane_world import NOW, World, either, everywhere
from harness.workers import TOKEN, P, worker
from lcm.control.objects.records import creation_ops
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Forbidden, Gone, IllegalStep, Invalid, Refused
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import SeatState, token_id

W1 = Ref(LabWorker, "w1")
HOUR = timedelta(hours=1)


async def begun(world: World, resource: LabWorker | LabletSession) -> None:
    await world.store.commit(*creation_ops(resource))


async def move(plane: Plane, phase: WorkerPhase, **fields: object) -> LabWorker:
    at = await plane.get(W1)
    assert at is not None
    return await plane.step(at, given.changed(at.status, {"phase": phase, **fields}), reason="seen")


@everywhere
async def test_a_seat_is_seen_and_what_is_left_of_it_is_freed_by_a_person(world: World) -> None:
    await begun(world, worker())
    controller, otto = world.service(WORKER_CONTROLLER), world.person("otto")
    await move(controller, P.LICENSING)
    await move(controller, P.READY, cml={"licensed": True})
    book = await otto.licences()
    assert [(seat.worker_id, seat.state) for seat in book.seats] == [("uid-w1", SeatState.REGISTERED)]
    assert [(one.token, one.seats, one.used, one.free) for one in book.tokens] == [(token_id(TOKEN), None, 1, None)]
    assert await controller.licences() == book
    with pytest.raises(Refused, match="is registered"):
        await otto.free_licence("uid-w1")
    await move(controller, P.TERMINATED, ec2={"gone_at": NOW, "state": "terminated"})
    assert [alert.alert for alert in await otto.alerts()] == ["LicenceOrphaned"]
    await otto.free_licence("uid-w1")
    assert (await otto.licences()).seats == ()
    assert not await otto.alerts()
    for missing in ("uid-w1", "", "../workers", "a b", "uid/w1"):
        with pytest.raises(Gone):
            await otto.free_licence(missing)


@everywhere
async def test_what_a_worker_cost_is_told_to_the_second(world: World) -> None:
    await begun(world, worker(phase=P.EC2_READY))
    controller = world.service(WORKER_CONTROLLER)
    await move(controller, P.STARTING)
    await world.pass_time(600)
    await move(controller, P.STOPPED, ec2={"state": "stopped"})
    await world.pass_time(60)
    ran, rests = await world.root.costs(since=NOW, until=NOW + HOUR)
    assert (ran.state, ran.since, rests.state, rests.until) == ("running", NOW, "stopped", None)
    assert ran.seconds(NOW) == pytest.approx(600, abs=1)
    assert isinstance(ran.usd(NOW), Decimal)
    (part,) = await controller.costs(since=NOW + timedelta(seconds=60), until=NOW + timedelta(seconds=120))
    assert (part.began_at, part.seconds(NOW)) == (NOW, Decimal(60))
    assert await world.root.costs(since=NOW - HOUR, until=NOW) == []
    with pytest.raises(Invalid):
        await world.root.costs(since=NOW, until=NOW)


@either
async def test_ledgers_are_for_staff_and_services(world: World) -> None:
    for name in ("anna", "ada"):
        with pytest.raises(Forbidden):
            await world.person(name).licences()
        with pytest.raises(Forbidden):
            await world.person(name).costs(since=NOW, until=NOW + HOUR)
        with pytest.raises(Forbidden):
            await world.person(name).free_licence("uid-w1")
    with pytest.raises(Forbidden):
        await world.service(WORKER_CONTROLLER).free_licence("uid-w1")


@either
async def test_a_worker_is_not_taken_away_from_under_a_session(world: World) -> None:
    await begun(world, worker(phase=P.READY))
    await begun(world, given.session(phase=SessionPhase.RUNNING, worker_id="uid-w1"))
    with pytest.raises(IllegalStep, match=r"default/s1 \(RUNNING\) must end first"):
        await move(world.service(WORKER_CONTROLLER), P.STOPPING)


@either
async def test_a_worker_that_somebody_stopped_is_wanted_stopped(world: World) -> None:
    await begun(world, worker(phase=P.READY))
    after = await move(world.service(WORKER_CONTROLLER), P.STOPPED)
    assert (after.spec.wanted_state, after.metadata.generation) == ("stopped", 2)
    assert await world.root.get(W1) == after
