"""The plane's contract: many documents at once."""

from typing import Any

import msgspec
import pytest

from harness import given
from harness.documents import document
from harness.plane_world import World, either, everywhere, on_any_wire
from lcm.control.plane.protocol import Applied, Document, Plane, Ref
from lcm.model.base.errors import Forbidden, Invalid
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.worker import LabWorker


def outcomes(results: Any) -> list[str]:
    return [result.outcome for result in results]


def folder(count: int) -> list[Document]:
    return [named(document("WorkerTemplate"), f"t{n:03}") for n in range(count)]


def named(made: dict[str, Any], name: str) -> dict[str, Any]:
    return made | {"metadata": {"name": name}}


async def written(plane: Plane) -> list[str]:
    return [item.metadata.name for item in (await plane.list(WorkerTemplate)).items]


@everywhere
async def test_documents_are_created_configured_or_left_alone(world: World) -> None:
    first = await world.root.apply([document("WorkerTemplate"), document("LabWorker")])
    assert outcomes(first) == ["created", "created"]
    metal = await world.root.get(Ref(WorkerTemplate, "metal"))
    assert metal is not None
    assert first[0] == Applied(
        kind="WorkerTemplate",
        namespace="default",
        name="metal",
        outcome="created",
        resource_version=metal.metadata.resource_version,
    )
    revision = await world.revision()
    assert outcomes(await world.root.apply([document("LabWorker"), document("WorkerTemplate")])) == 2 * ["unchanged"]
    assert await world.revision() == revision
    second = await world.root.apply([document("WorkerTemplate", name_prefix="w"), document("LabWorker")])
    assert outcomes(second) == ["configured", "unchanged"]


@everywhere
async def test_each_document_finds_what_it_refers_to_in_whatever_order(world: World) -> None:
    active = document("LabletDefinition", state="active")
    results = await world.root.apply(
        [document("LabletSession"), document("LabWorkerPool"), active, document("WorkerTemplate")]
    )
    assert [result.kind for result in results] == [
        "LabletSession",
        "LabWorkerPool",
        "LabletDefinition",
        "WorkerTemplate",
    ]
    assert outcomes(results) == 4 * ["created"]
    assert await world.root.get(Ref(LabWorkerPool, "ccna")) is not None


@everywhere
async def test_one_broken_document_keeps_all_from_being_written(world: World) -> None:
    revision = await world.revision()
    broken = [
        document("WorkerTemplate"),
        document("LabWorker", lab_trak="ccna"),
        {"kind": "LabWorke", "metadata": {"name": "w2"}},
        document("LabWorkerPool", min_workers=11),
    ]
    with pytest.raises(Invalid) as raised:
        await world.root.apply(broken)
    paths = {fault.path for fault in raised.value.faults}
    assert {"documents[1].spec.lab_trak", "documents[2].kind", "documents[3].spec.min_workers"} <= paths
    assert not any(path.startswith("documents[0]") for path in paths)
    assert await world.revision() == revision


@either
async def test_one_object_twice_is_a_fault(world: World) -> None:
    with pytest.raises(Invalid) as raised:
        await world.root.apply([document("WorkerTemplate"), document("WorkerTemplate", name_prefix="w")])
    assert raised.value.faults[0].path.startswith("documents[1]")


@either
async def test_a_dry_run_tells_what_would_become_of_each(world: World) -> None:
    await world.root.create(given.worker())
    revision = await world.revision()
    results = await world.root.apply([document("WorkerTemplate"), document("LabWorker")], dry_run=True)
    assert outcomes(results) == ["created", "unchanged"]
    assert await world.revision() == revision


@on_any_wire
async def test_more_documents_than_one_commit_holds_are_written(world: World) -> None:
    assert set(outcomes(await world.root.apply(folder(300)))) == {"created"}
    assert await written(world.root) == [f"t{n:03}" for n in range(300)]
    revision = await world.revision()
    assert set(outcomes(await world.root.apply(folder(300)))) == {"unchanged"}
    assert await world.revision() == revision


@either
async def test_nothing_is_applied_for_who_may_not(world: World) -> None:
    with pytest.raises(Forbidden):
        await world.ada.apply([document("WorkerTemplate")])
    with pytest.raises(Forbidden):
        await world.person("anna").apply([document("LabletDefinition"), document("LabWorker")])
    assert outcomes(await world.person("anna").apply([document("LabletDefinition")])) == ["created"]
    assert await world.root.get(Ref(LabWorker, "w1")) is None


@either
async def test_an_object_that_was_read_can_be_applied_again(world: World) -> None:
    made = await world.root.create(given.worker())
    assert outcomes(await world.root.apply([msgspec.to_builtins(made)])) == ["unchanged"]


@either
async def test_nothing_at_all_is_applied_at_once(world: World) -> None:
    assert list(await world.root.apply([])) == []
