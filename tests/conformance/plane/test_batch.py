"""The plane's contract: many things in one call, each by itself or all in one commit, in process and over HTTP."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from harness.documents import document
from harness.plane_world import World, everywhere
from lcm.control.plane.batch import (
    LONGEST_BATCH,
    ActionItem,
    BatchAnswer,
    BatchItem,
    BatchMode,
    BatchRequest,
    CreateItem,
    DeleteItem,
    LabelItem,
)
from lcm.control.plane.protocol import Drain, Extend, Plane, Ref, Terminate
from lcm.model.base.errors import Invalid, TooLarge
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker

SESSION, WORKER = "LabletSession", "LabWorker"


async def ask(plane: Plane, items: Sequence[BatchItem], mode: BatchMode = "each", **more: Any) -> BatchAnswer:
    return await plane.batch(BatchRequest(items=tuple(items), mode=mode), **more)


def booking(name: str, **spec: Any) -> CreateItem:
    made = document(SESSION, **spec)
    made["spec"].pop("reservation_id", None)
    return CreateItem(document=made | {"metadata": {"name": name}})


def outcomes(answer: BatchAnswer) -> list[str]:
    return [one.outcome for one in answer.results]


def reasons(answer: BatchAnswer) -> list[str]:
    return [one.problem.reason if one.problem else "" for one in answer.results]


async def prepare(world: World) -> None:
    await world.root.apply([document("LabletDefinition", state="active"), document("WorkerTemplate")])


async def names(plane: Plane, kind: type[Any] = LabletSession) -> list[str]:
    return [one.metadata.name for one in (await plane.list(kind)).items]


@everywhere
async def test_each_is_done_by_itself_and_answered_in_order(world: World) -> None:
    await prepare(world)
    await ask(world.bob, [booking("bobs")])
    items: list[BatchItem] = [
        booking("one"),
        booking("one"),
        CreateItem(document={"kind": SESSION, "metadata": {"name": "bad"}, "spec": {"nonsense": 1}}),
        CreateItem(document=["no", "object"]),
        ActionItem(kind=SESSION, name="bobs", action=Terminate()),
        DeleteItem(kind=SESSION, name="bobs"),
        LabelItem(kind=SESSION, name="one", labels={"class": "a", "x": "y"}),
        LabelItem(kind=SESSION, name="one", labels={"x": None}),
        ActionItem(kind=WORKER, name="w1", action=Drain()),
        DeleteItem(kind="Nothing", name="x"),
        booking("two"),
        ActionItem(kind=SESSION, name="two", action=Terminate(reason="no more")),
    ]
    answer = await ask(world.ada, items)
    wanted = ["", "AlreadyExists", "Invalid", "Invalid", "NotFound", "NotFound", "", "", "Forbidden", "Invalid", "", ""]
    assert reasons(answer) == wanted
    assert (answer.done, answer.refused) == (5, 7)
    one = await world.ada.get(Ref(LabletSession, "one"))
    assert one is not None
    assert dict(one.metadata.labels) == {"class": "a"}
    assert (
        answer.results[7].object["metadata"]["labels"] == {"class": "a"}
        if isinstance(answer.results[7].object, dict)
        else one
    )
    assert await names(world.bob) == ["bobs"]


@everywhere
async def test_all_are_done_in_one_commit(world: World) -> None:
    await prepare(world)
    await ask(world.ada, [booking("old"), booking("older")])
    before = await world.revision()
    items: list[BatchItem] = [
        *(booking(f"s{number}") for number in range(10)),
        DeleteItem(kind=SESSION, name="old"),
        LabelItem(kind=SESSION, name="older", labels={"a": "b"}),
    ]
    answer = await ask(world.ada, items, "all")
    assert outcomes(answer) == 12 * ["done"]
    assert await world.revision() == before + 1
    assert len(await names(world.ada)) >= 11
    again = await ask(world.ada, [LabelItem(kind=SESSION, name="older", labels={"a": "b"})], "all")
    assert outcomes(again) == ["unchanged"]


@everywhere
async def test_if_one_may_not_be_done_none_is(world: World) -> None:
    await prepare(world)
    await ask(world.bob, [booking("bobs")])
    before = await world.revision()
    items: list[BatchItem] = [
        booking("s1"),
        DeleteItem(kind=SESSION, name="bobs"),
        booking("s1"),
        LabelItem(kind=WORKER, name="w1", labels={"a": "b"}),
        booking("bobs"),
    ]
    answer = await ask(world.ada, items, "all")
    assert outcomes(answer) == ["skipped", "refused", "refused", "refused", "refused"]
    assert reasons(answer) == ["", "NotFound", "Invalid", "Forbidden", "AlreadyExists"]
    same, taken = answer.results[2].problem, answer.results[4].problem
    assert same
    assert "the same object as items[0]" in same.detail
    assert taken
    assert taken.found is msgspec.UNSET, "nothing is told of what is another's"
    assert await world.revision() == before


@everywhere
async def test_what_one_commit_cannot_hold_or_do_is_refused_before_anything_is_done(world: World) -> None:
    await prepare(world)
    await ask(world.ada, [booking("s1")])
    before = await world.revision()
    with pytest.raises(TooLarge, match="an all-or-none batch is one commit of at most 128 operations"):
        await ask(world.ada, [booking(f"t{number}") for number in range(100)], "all")
    with pytest.raises(TooLarge, match="send fewer items, or use mode each"):
        await ask(world.ada, [booking(f"t{number}") for number in range(100)], "all", dry_run=True)
    unsuitable: list[BatchItem] = [
        ActionItem(kind=SESSION, name="s1", action=Extend(minutes=5)),
        DeleteItem(kind="LabletDefinition", name="ccna-basics:1.2.0"),
    ]
    with pytest.raises(Invalid) as raised:
        await ask(world.root, unsuitable, "all")
    assert [fault.path for fault in raised.value.faults] == ["items[0].action", "items[1]"]
    assert await world.revision() == before
    assert len(await names(world.root, LabletDefinition)) == 1


@everywhere
async def test_a_repeated_batch_does_nothing_twice(world: World) -> None:
    await prepare(world)
    items = [booking("s1"), booking("s2")]
    first = await ask(world.ada, items, "all", request="same")
    revision = await world.revision()
    again = await ask(world.ada, items, "all", request="same")
    assert outcomes(again) == outcomes(first) == 2 * ["done"]
    assert await world.revision() == revision
    with pytest.raises(Invalid, match="was used for another request"):
        await ask(world.ada, items[:1], "all", request="same")
    each = [booking("s3"), booking("s4")]
    assert outcomes(await ask(world.ada, each, request="other")) == 2 * ["done"]
    assert outcomes(await ask(world.ada, each, request="other")) == 2 * ["done"]
    assert await names(world.ada) == ["s1", "s2", "s3", "s4"]


@everywhere
async def test_a_dry_run_answers_and_writes_nothing(world: World) -> None:
    await prepare(world)
    before = await world.revision()
    for mode in ("each", "all"):
        answer = await ask(world.ada, [booking("s1"), DeleteItem(kind=SESSION, name="x")], mode, dry_run=True)
        assert reasons(answer)[1] == "NotFound"
        assert outcomes(await ask(world.ada, [booking("s1")], mode, dry_run=True)) == ["done"]
    assert await world.revision() == before


@everywhere
async def test_the_worst_inputs_are_refused_as_a_whole_or_one_by_one(world: World) -> None:
    await prepare(world)
    await ask(world.ada, [booking("s1")])
    with pytest.raises((TooLarge, Invalid)):
        await ask(world.ada, [DeleteItem(kind=SESSION, name=f"x{n}") for n in range(10_000)])
    answer = await ask(world.ada, [DeleteItem(kind=SESSION, name="../../x")] * LONGEST_BATCH)
    assert set(reasons(answer)) == {"NotFound"}
    many = {f"label-{number}": "v" * 250 for number in range(60)}
    held = await ask(world.ada, [LabelItem(kind=SESSION, name="s1", labels=many)])
    assert outcomes(held) == ["done"]
    more = {f"more-{number}": "v" for number in range(60)}
    assert reasons(await ask(world.ada, [LabelItem(kind=SESSION, name="s1", labels=more)])) == ["Invalid"]
    assert reasons(await ask(world.ada, [LabelItem(kind=SESSION, name="s1", labels=more)], "all")) == ["Invalid"]
    assert outcomes(await ask(world.ada, [])) == []
    assert outcomes(await ask(world.ada, [], "all")) == []


@everywhere
async def test_workers_are_labelled_and_drained_together(world: World) -> None:
    made = document(WORKER)
    workers = [CreateItem(document=made | {"metadata": {"name": f"w{number}"}}) for number in range(3)]
    assert outcomes(await ask(world.root, workers, "all")) == 3 * ["done"]
    found = (await world.root.list(LabWorker)).items
    drains = [ActionItem(kind=WORKER, name=one.metadata.name, action=Drain()) for one in found]
    assert set(reasons(await ask(world.root, drains, "all"))) == {"IllegalStep"}, "they do not serve yet"
    labels = [LabelItem(kind=WORKER, name=one.metadata.uid, labels={"rack": "7"}) for one in found]
    assert outcomes(await ask(world.root, labels, "all")) == 3 * ["done"]
    assert {one.metadata.labels["rack"] for one in (await world.root.list(LabWorker)).items} == {"7"}
