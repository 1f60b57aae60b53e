"""The plane's contract: reading one object, and lists of them."""

import msgspec
import pytest

from harness import given
from harness.plane_world import World, either, everywhere, on_any_wire, template
from lcm.control.objects.records import creation_ops
from lcm.control.plane.protocol import LONGEST_PAGE, Listing, Plane, Ref, ref_of
from lcm.model.base.errors import Gone, Invalid, Relist
from lcm.model.base.selector import EVERYTHING, ObjectSelector, parse_selector
from lcm.model.kinds.definition import LabletDefinition, PortUse
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker


async def made(plane: Plane, *names: str, **fields: object) -> None:
    for name in names:
        await plane.create(template(name=name, **fields))


async def pages(plane: Plane, limit: int, where: ObjectSelector = EVERYTHING) -> list[Listing[WorkerTemplate]]:
    found = [await plane.list(WorkerTemplate, limit=limit, where=where)]
    while (cursor := found[-1].next) is not None:
        found.append(await plane.list(WorkerTemplate, limit=limit, where=where, cursor=cursor))
    return found


def named(listing: Listing[WorkerTemplate]) -> list[str]:
    return [item.metadata.name for item in listing.items]


@everywhere
async def test_an_object_is_read_as_it_was_made(world: World) -> None:
    created = await world.root.create(given.worker(name="w1", labels={"tier": "gold"}))
    assert await world.root.get(Ref(LabWorker, "w1")) == created
    assert created.metadata.resource_version == await world.revision()


@on_any_wire
async def test_every_kind_is_read_as_it_was_made(world: World) -> None:
    for resource in (template(), given.definition(state="active"), *given.every()):
        ref = ref_of(resource)
        if await world.root.get(ref) is None:
            created = await world.root.create(resource)
            assert await world.root.get(ref) == created
            assert (await world.root.list(type(resource))).items == [created]


@everywhere
async def test_what_is_not_there_is_none(world: World) -> None:
    assert await world.root.get(Ref(LabWorker, "w1")) is None
    await world.root.create(given.worker(name="w1"))
    assert await world.root.get(Ref(LabWorker, "w1", "elsewhere")) is None
    assert await world.root.get(Ref(WorkerTemplate, "w1")) is None


@on_any_wire
async def test_the_consoles_of_a_session_are_listed_for_who_may_see_it(world: World) -> None:
    uses = {"PC_serial": PortUse(kind="serial", node="PC"), "WORD": PortUse(kind="placeholder")}
    session = given.session(owner="ada", allocated_ports={"PC_serial": 6001, "WORD": 6002}, namespace="class")
    for one in (given.definition(port_template=uses, namespace="class"), session):
        await world.store.commit(*creation_ops(one))
    ref = Ref(LabletSession, "s1", "class")
    (console,) = await world.ada.consoles(ref)
    assert (console.name, console.kind, console.node, console.is_open) == ("PC_serial", "serial", "PC", False)
    assert console.path == "/api/lablet-sessions/s1/consoles/PC_serial?namespace=class"
    with pytest.raises(Gone):
        await world.bob.consoles(ref)


@on_any_wire
async def test_names_that_no_object_can_have_are_not_there(world: World) -> None:
    for name in ("", ".", "..", "a/b", "../settings/system", "W 1", "w1/telemetry", "ü", "?x", "#", "%2e", 200 * "x"):
        assert await world.root.get(Ref(LabWorker, name)) is None, name
        assert await world.root.get(Ref(LabWorker, "w1", name)) is None, name


@everywhere
async def test_an_object_is_found_by_its_uid(world: World) -> None:
    created = await world.root.create(given.worker(name="w1"))
    assert created.metadata.uid not in ("", "uid-w1")
    assert await world.root.get(Ref(LabWorker, created.metadata.uid)) == created
    assert await world.root.get(Ref(WorkerTemplate, created.metadata.uid)) is None
    assert await world.root.get(Ref(LabWorker, created.metadata.uid, "elsewhere")) is None
    with pytest.raises(Gone):
        await world.root.delete(Ref(LabWorker, created.metadata.uid, "elsewhere"))


@everywhere
async def test_a_list_is_in_the_order_of_namespace_and_name(world: World) -> None:
    await made(world.root, "b", "a", "a-b", "a.b")
    await made(world.root, "z", "c", namespace="early")
    listing = await world.root.list(WorkerTemplate)
    found = [(item.metadata.namespace, item.metadata.name) for item in listing.items]
    assert found == sorted(found)
    assert len(found) == 6
    assert (listing.revision, listing.next) == (await world.revision(), None)
    assert named(await world.root.list(WorkerTemplate, namespace="early")) == ["c", "z"]
    assert named(await world.root.list(WorkerTemplate, namespace="earl")) == []


@either
async def test_an_empty_list_is_an_answer(world: World) -> None:
    revision = await world.revision()
    assert await world.root.list(SystemSettings) == Listing([], revision)


@everywhere
async def test_a_list_can_be_selected_by_labels(world: World) -> None:
    await made(world.root, "a", labels={"tier": "gold", "zone": "x"})
    await made(world.root, "b", labels={"tier": "tin"})
    await made(world.root, "c")
    for selector, wanted in {
        "tier=gold": ["a"],
        "tier!=gold": ["b", "c"],
        "tier in (gold,tin)": ["a", "b"],
        "tier notin (gold)": ["b", "c"],
        "tier": ["a", "b"],
        "!tier": ["c"],
        "tier=gold,zone=x": ["a"],
        "tier=gold,zone=y": [],
    }.items():
        where = parse_selector(WorkerTemplate, labels=selector)
        assert named(await world.root.list(WorkerTemplate, where=where)) == wanted, selector


@either
async def test_a_list_can_be_selected_by_fields(world: World) -> None:
    for name, state in (("a", "active"), ("b", "draft"), ("c", "active")):
        await world.root.create(given.definition(name=f"{name}:1.0.0", state=state))
    for selector, wanted in {
        "spec.state=active": ["a:1.0.0", "c:1.0.0"],
        "spec.state!=active": ["b:1.0.0"],
        "metadata.name in (a:1.0.0,b:1.0.0),spec.state=draft": ["b:1.0.0"],
        "spec.node_count": [],
    }.items():
        where = parse_selector(LabletDefinition, fields=selector)
        listing = await world.root.list(LabletDefinition, where=where)
        assert [item.metadata.name for item in listing.items] == wanted, selector


@everywhere
async def test_pages_are_true_at_the_first_ones_revision(world: World) -> None:
    await made(world.root, *(f"t{n}" for n in range(7)))
    first = await world.root.list(WorkerTemplate, limit=3)
    await made(world.root, "t31")
    await world.root.delete(Ref(WorkerTemplate, "t5"))
    await world.root.patch(Ref(WorkerTemplate, "t6"), {"metadata": {"labels": {"new": "label"}}})
    second = await world.root.list(WorkerTemplate, limit=3, cursor=first.next)
    third = await world.root.list(WorkerTemplate, limit=3, cursor=second.next)
    assert [named(page) for page in (first, second, third)] == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"]]
    assert {page.revision for page in (first, second, third)} == {first.revision}
    assert third.items[0].metadata.labels == {}
    assert third.next is None


@either
async def test_a_selection_is_paged_without_gap_or_duplicate(world: World) -> None:
    for n in range(30):
        await made(world.root, f"t{n:02}", labels={"third": str(n % 3)})
    for selector in ("third=1", "third!=1", "third in (0,2)"):
        where = parse_selector(WorkerTemplate, labels=selector)
        found = [name for page in await pages(world.root, 4, where) for name in named(page)]
        [whole] = await pages(world.root, 500, where)
        assert found == named(whole), selector


@either
async def test_a_page_has_at_least_one_and_at_most_a_thousand_objects(world: World) -> None:
    await made(world.root, "a", "b")
    assert len((await world.root.list(WorkerTemplate, limit=LONGEST_PAGE)).items) == 2
    for limit in (0, -1, LONGEST_PAGE + 1):
        with pytest.raises(Invalid):
            await world.root.list(WorkerTemplate, limit=limit)


@on_any_wire
async def test_a_cursor_that_was_not_given_out_is_refused(world: World) -> None:
    await made(world.root, "a", "b", "c")
    for cursor in ("x", "ü", "AAAA", "1", "9" * 400, "eyJ9"):
        with pytest.raises(Invalid):
            await world.root.list(WorkerTemplate, cursor=cursor)


@either
async def test_a_cursor_serves_only_the_list_it_comes_from(world: World) -> None:
    await made(world.root, "a", "b", "c")
    await world.root.create(given.worker())
    cursor = (await world.root.list(WorkerTemplate, limit=1)).next
    assert cursor is not None
    with pytest.raises(Invalid):
        await world.root.list(LabWorker, cursor=cursor)


@everywhere
async def test_a_page_of_forgotten_history_says_relist(world: World) -> None:
    await made(world.root, "a", "b", "c")
    first = await world.root.list(WorkerTemplate, limit=1)
    await made(world.root, "d")
    await world.store.compact(await world.revision())
    with pytest.raises(Relist):
        await world.root.list(WorkerTemplate, limit=1, cursor=first.next)


@on_any_wire
async def test_large_objects_come_through_whole(world: World) -> None:
    labels = {f"label-{n}": 250 * "é" for n in range(60)}
    created = await world.root.create(template(name="big", labels=labels, annotations=labels))
    assert await world.root.get(Ref(WorkerTemplate, "big")) == created
    assert len(msgspec.json.encode(created)) > 50_000
