"""The plane's contract: who may do what, and whose objects exist for whom."""

import pytest

from harness import given
from harness.plane_world import CAST, World, either, everywhere, template
from lcm.control.plane.protocol import Drain, Extend, Ref, Terminate
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Conflict, Forbidden, Gone, Taken
from lcm.model.base.machine import SCHEDULER, WORKER_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker

S1 = Ref(LabletSession, "s1")
FLEET: tuple[type[Resource], ...] = (LabWorker, LabWorkerPool, WorkerTemplate)
LABEL = {"metadata": {"labels": {"mine": "1"}}}


async def booked(world: World) -> LabletSession:
    await world.root.create(given.definition(state="active"))
    return await world.ada.create(given.session())


@either
async def test_a_plane_knows_whose_it_is(world: World) -> None:
    for name, role in CAST.items():
        assert world.person(name).caller == Caller(name=name, role=role)
    assert world.service(SCHEDULER).caller == Caller(name="service", role=Role.SERVICE, actor=SCHEDULER)


@everywhere
async def test_another_ones_session_is_answered_like_a_missing_one(world: World) -> None:
    mine = await booked(world)
    assert await world.ada.get(S1) == mine
    for name in ("s1", mine.metadata.uid, "nobodys"):
        ref = Ref(LabletSession, name)
        assert await world.bob.get(ref) is None
        told = []
        for attempt in (
            world.bob.patch(ref, LABEL),
            world.bob.delete(ref),
            world.bob.act(ref, Terminate()),
            world.bob.act(ref, Extend(minutes=5)),
        ):
            with pytest.raises(Gone) as raised:
                await attempt
            told.append(str(raised.value).replace(name, "it"))
        assert len(set(told)) == 1
    with pytest.raises(Gone):
        await world.bob.replace(given.session())
    assert await world.ada.get(S1) == mine


@everywhere
async def test_a_list_holds_what_its_caller_may_see(world: World) -> None:
    await booked(world)
    await world.bob.create(given.session(name="s2"))
    await world.root.create(given.session(name="s3", owner="ada"))
    for plane, wanted in (
        (world.ada, ["s1", "s3"]),
        (world.bob, ["s2"]),
        (world.person("anna"), []),
        (world.person("otto"), ["s1", "s2", "s3"]),
        (world.service(SCHEDULER), ["s1", "s2", "s3"]),
    ):
        found = [item.metadata.name for item in (await plane.list(LabletSession)).items]
        assert found == wanted
        first = await plane.list(LabletSession, limit=1)
        assert [item.metadata.name for item in first.items] == wanted[:1]


@either
async def test_pages_of_what_is_ones_own_are_full_and_whole(world: World) -> None:
    await world.root.create(given.definition(state="active"))
    for n in range(12):
        await (world.ada if n % 4 == 3 else world.bob).create(given.session(name=f"s{n:02}"))
    found, cursor = [], None
    while True:
        page = await world.ada.list(LabletSession, limit=2, cursor=cursor)
        found += [item.metadata.name for item in page.items]
        cursor = page.next
        if cursor is None:
            break
        assert len(page.items) == 2
    assert found == ["s03", "s07", "s11"]


@either
async def test_a_name_that_another_took_is_taken(world: World) -> None:
    await booked(world)
    told = []
    for attempt in (world.bob.create(given.session()), world.bob.create(given.session(), dry_run=True)):
        with pytest.raises(Taken) as raised:
            await attempt
        told.append((str(raised.value), raised.value.key, raised.value.wanted, raised.value.found))
    await world.ada.patch(S1, LABEL)
    with pytest.raises(Taken) as raised:
        await world.bob.create(given.session())
    told.append((str(raised.value), raised.value.key, raised.value.wanted, raised.value.found))
    assert set(told) == {("LabletSession s1 in namespace default: the name is taken", "", 0, 0)}
    with pytest.raises(Conflict) as mine:
        await world.ada.create(given.session())
    assert mine.value.found


@either
async def test_sessions_are_booked_for_oneself(world: World) -> None:
    await booked(world)
    with pytest.raises(Forbidden):
        await world.bob.create(given.session(name="s2", owner="ada"))
    with pytest.raises(Forbidden):
        await world.bob.create(given.session(name="s2", priority=10))
    assert (await world.root.create(given.session(name="s2", owner="bob", priority=10))).spec.owner == "bob"
    assert await world.bob.get(Ref(LabletSession, "s2")) is not None


@either
async def test_users_see_nothing_of_the_fleet(world: World) -> None:
    await world.root.create(given.worker())
    for kind in (*FLEET, SystemSettings):
        with pytest.raises(Forbidden):
            await world.ada.get(Ref(kind, "w1"))
        with pytest.raises(Forbidden):
            await world.ada.list(kind)
    for kind in FLEET:
        assert (await world.person("anna").list(kind)).revision
    with pytest.raises(Forbidden):
        await world.ada.act(Ref(LabWorker, "w1"), Drain())


@either
async def test_only_staff_and_services_change_the_fleet(world: World) -> None:
    await world.person("otto").create(template())
    await world.service(WORKER_CONTROLLER).create(given.worker())
    for plane in (world.ada, world.person("anna")):
        with pytest.raises(Forbidden):
            await plane.create(given.worker(name="w2"))
        with pytest.raises(Forbidden):
            await plane.patch(Ref(LabWorker, "w1"), LABEL)
        with pytest.raises(Forbidden):
            await plane.replace(given.worker())
        with pytest.raises(Forbidden):
            await plane.delete(Ref(LabWorker, "w1"))
        with pytest.raises(Forbidden):
            await plane.delete(Ref(LabWorker, "nobody"))
    with pytest.raises(Forbidden):
        await world.service(WORKER_CONTROLLER).act(Ref(LabWorker, "w1"), Drain())
    with pytest.raises(Forbidden):
        await world.service(WORKER_CONTROLLER).create(given.settings())


@either
async def test_authors_publish_and_everybody_reads(world: World) -> None:
    made = await world.person("anna").create(given.definition(state="active"))
    assert await world.ada.get(Ref(LabletDefinition, "basics:1.0.0")) == made
    with pytest.raises(Forbidden):
        await world.ada.create(given.definition(name="other:1.0.0"))
    with pytest.raises(Forbidden):
        await world.ada.delete(Ref(LabletDefinition, "basics:1.0.0"))


@either
async def test_reservations_belong_to_somebody_too(world: World) -> None:
    await world.root.create(given.definition(state="active"))
    made = await world.ada.create(given.reservation())
    ref = Ref(Reservation, "r1")
    assert made.spec.owner == "ada"
    assert (await world.ada.get(ref), await world.bob.get(ref)) == (made, None)
    with pytest.raises(Gone):
        await world.bob.delete(ref)
