"""Many documents at once: all or none admitted, few commits, nothing spent on what is unchanged."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crash.everywhere import crash_everywhere
from harness import given, suite
from harness.documents import document
from harness.plane_world import ADA, ANNA, BOB, NOW, OTTO, ROOT, Stage, active
from harness.stores import opened
from lcm.control.plane.protocol import LONGEST_APPLY, Ref
from lcm.model.base.errors import Conflict, Forbidden, Invalid, TooLarge
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.validate import parse_document
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.loop import VirtualClock
from lcm.store.base import Op

LAB = document("LabletDefinition", state="active")


def named(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    made = document(kind, **spec)
    return made | {"metadata": {"name": name}}


def workers(count: int, **spec: Any) -> list[dict[str, Any]]:
    return [named("LabWorker", f"w{number:04}", **spec) for number in range(count)]


async def outcomes(stage: Stage, documents: list[Any], **more: Any) -> list[str]:
    return [one.outcome for one in await stage[ROOT].apply(documents, **more)]


async def faults(stage: Stage, documents: list[Any]) -> list[str]:
    revision = await stage.revision()
    with pytest.raises(Invalid) as raised:
        await stage[ROOT].apply(documents)
    assert await stage.revision() == revision
    return [fault.path for fault in raised.value.faults]


async def test_documents_may_come_in_any_order() -> None:
    stage = Stage()
    folder = [
        document("LabletSession", definition="basics"),
        document("LabWorkerPool"),
        LAB,
        document("WorkerTemplate"),
    ]
    applied = await stage[ROOT].apply(folder)
    assert [(one.kind, one.name, one.outcome) for one in applied] == [
        ("LabletSession", "s1", "created"),
        ("LabWorkerPool", "ccna", "created"),
        ("LabletDefinition", "basics:1.0.0", "created"),
        ("WorkerTemplate", "metal", "created"),
    ]
    assert {one.resource_version for one in applied} == {await stage.revision()}
    session = await stage.read(given.session())
    assert session is not None
    assert (session.spec.definition, session.spec.owner) == ("basics:1.0.0", "root")


async def test_the_same_again_spends_no_revision() -> None:
    stage = Stage()
    folder = [document("LabletSession", definition="basics"), LAB, *workers(200)]
    first = await stage[ROOT].apply(folder)
    revision = await stage.revision()
    again = await stage[ROOT].apply(folder)
    assert {one.outcome for one in again} == {"unchanged"}
    assert [one.resource_version for one in again] == [one.resource_version for one in first]
    assert await stage.revision() == revision


async def test_only_what_differs_is_written() -> None:
    stage = Stage()
    await stage[ROOT].apply(workers(3))
    start = await stage.revision()
    changed = [*workers(2), named("LabWorker", "w0002", lab_track="ccna"), named("LabWorker", "new")]
    assert await outcomes(stage, changed) == ["unchanged", "unchanged", "configured", "created"]
    assert await stage.types(start) == ["worker.updated", "worker.created"]


async def test_one_broken_document_stops_them_all_and_every_fault_is_told() -> None:
    stage = Stage()
    broken = [
        *workers(2),
        named("LabWorker", "UPPER", lab_trak="x"),
        {"kind": "Nothing"},
        5,
        named("LabWorkerPool", "p", min_workers=5, max_workers=2),
    ]
    assert await faults(stage, broken) == [
        "documents[2].metadata.name",
        "documents[2].spec.lab_trak",
        "documents[3].kind",
        "documents[3].metadata",
        "documents[4]",
        "documents[5].spec.min_workers",
    ]


async def test_what_is_referred_to_must_be_in_the_store_or_among_them() -> None:
    stage = Stage()
    folder = [document("LabWorkerPool"), document("LabletSession"), named("LabletSession", "s2", definition="other")]
    assert await faults(stage, folder) == [
        "documents[0].spec.template",
        "documents[1].spec.definition",
        "documents[2].spec.definition",
    ]
    await stage.put(active())
    assert await faults(stage, folder[1:]) == ["documents[1].spec.definition"]


async def test_a_definition_among_them_counts_as_it_will_be() -> None:
    stage = Stage()
    await stage.put(active())
    retired = document("LabletDefinition", state="deprecated")
    newer = named("LabletDefinition", "basics:2.0.0", version="2.0.0", topology={"uri": "s3://a/b"}, state="active")
    assert await faults(stage, [retired, document("LabletSession")]) == ["documents[1].spec.definition"]
    await stage[ROOT].apply([retired, newer, document("LabletSession", definition="basics")])
    session = await stage.read(given.session())
    assert session is not None
    assert session.spec.definition == "basics:2.0.0"


async def test_the_same_object_twice_is_a_fault() -> None:
    assert await faults(Stage(), [*workers(1), *workers(1)]) == ["documents[1].metadata.name"]


async def test_a_dry_run_says_what_would_become_of_each() -> None:
    stage = Stage()
    await stage[ROOT].apply(workers(2))
    revision = await stage.revision()
    tried = [
        *workers(1),
        named("LabWorker", "w0001", lab_track="x"),
        document("WorkerTemplate"),
        document("LabWorkerPool"),
    ]
    assert await outcomes(stage, tried, dry_run=True) == ["unchanged", "configured", "created", "created"]
    assert await stage.revision() == revision


async def test_there_is_a_limit() -> None:
    with pytest.raises(TooLarge):
        await Stage()[ROOT].apply([{}] * (LONGEST_APPLY + 1))
    assert await Stage()[ROOT].apply([]) == []


async def test_documents_beyond_one_commit_are_written_in_several() -> None:
    stage = Stage()
    assert set(await outcomes(stage, workers(1000))) == {"created"}
    assert len((await stage[ROOT].list(LabWorker, limit=1000)).items) == 1000
    assert await stage.revision() < 1 + 1000 / 50
    assert len(await stage.types()) == 1000


async def test_large_documents_are_written_in_several_commits_too() -> None:
    stage = Stage()
    labels = {f"label-{number:02}": 256 * "ü" for number in range(64)}
    large = [made | {"metadata": made["metadata"] | {"annotations": labels, "labels": labels}} for made in workers(60)]
    assert set(await outcomes(stage, large)) == {"created"}
    assert await stage.revision() > 3


async def test_a_reference_may_lie_in_an_earlier_commit() -> None:
    stage = Stage()
    templates = [named("WorkerTemplate", f"t{number}") for number in range(100)]
    pools = [
        named("LabWorkerPool", f"p{number}", template=f"t{number}", lab_track=f"k{number}") for number in range(100)
    ]
    assert set(await outcomes(stage, [*pools, *templates])) == {"created"}
    assert await stage.revision() < 8
    both = [
        *(named("WorkerTemplate", f"t{number}", name_prefix="other") for number in range(100)),
        *(
            named("LabWorkerPool", f"p{number}", template=f"t{99 - number}", lab_track=f"k{number}")
            for number in range(100)
        ),
    ]
    assert set(await outcomes(stage, both)) == {"configured"}
    assert await stage.revision() < 14


async def test_a_revision_in_a_document_is_demanded() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.worker())
    await stage[ROOT].patch(Ref(LabWorker, "w1"), {"spec": {"lab_track": "x"}})
    stale = document("LabWorker")
    stale["metadata"]["resource_version"] = made.metadata.resource_version
    assert await faults(stage, [*workers(3), stale]) == ["documents[3].metadata.resource_version"]


async def test_who_was_slower_than_another_in_the_midst_of_it_is_told_of_a_conflict() -> None:
    async def other(_: Any, __: Any) -> list[Op]:
        await stage[OTTO].patch(Ref(LabWorker, "w1"), {"spec": {"lab_track": "theirs"}})
        return []

    stage = Stage(quota=other)
    made = await stage.put(given.worker())
    mine = document("LabWorker", lab_track="mine")
    mine["metadata"]["resource_version"] = made.metadata.resource_version
    with pytest.raises(Conflict) as raised:
        await stage[ROOT].apply([mine])
    assert raised.value.wanted == made.metadata.resource_version


async def test_everything_that_speaks_against_any_document_is_told_at_once() -> None:
    stage = Stage()
    await stage.put(active())
    await stage[BOB].create(given.session(name="bobs"))
    mine = await stage[ADA].create(given.session(name="mine"))
    stale = named("LabletSession", "mine")
    stale["metadata"]["resource_version"] = mine.metadata.resource_version + 7
    revision = await stage.revision()
    with pytest.raises(Invalid) as raised:
        await stage[ADA].apply(
            [
                named("LabletSession", "good"),
                named("LabletSession", "hasty", priority=9),
                named("LabletSession", "foreign", owner="bob"),
                named("LabletSession", "bobs"),
                stale,
                named("LabletSession", "typo", definitoin="x"),
                named("LabletSession", "lost", definition="nowhere"),
            ]
        )
    assert [(fault.path, fault.problem) for fault in raised.value.faults] == [
        ("documents[1]", "only staff may set a priority above 0"),
        ("documents[2]", "ada may not book for bob"),
        ("documents[3].metadata.name", "the name is taken"),
        ("documents[4].metadata.resource_version", f"{revision + 7} was asked for, but the object is at {revision}"),
        ("documents[5].spec.definitoin", "unknown field"),
        ("documents[6].spec.definition", "there is no LabletDefinition nowhere in namespace default"),
    ]
    assert await stage.revision() == revision


async def test_nobody_is_accused_of_missing_what_cannot_be_read() -> None:
    broken = document("LabletDefinition", state="active", sate="x")
    folder = [document("LabletSession", definition="basics"), document("LabletSession") | {"metadata": {"name": "s2"}}]
    assert await faults(Stage(), [*folder, broken]) == ["documents[2].spec.sate"]


def heavy(number: int) -> dict[str, Any]:
    """Return a definition within every limit of its kind that no commit can hold."""
    ends = 40 * [{"kind": "serial", "node": "n" * 256}]
    ports = {f"port-{place}": {"kind": "vnc", "also": ends} for place in range(100)}
    return named("LabletDefinition", f"heavy:{number}.0", version=f"{number}.0", port_template=ports)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_no_commit_can_hold_lets_nothing_be_written(*, dry_run: bool) -> None:
    stage = Stage()
    revision = await stage.revision()
    with pytest.raises(Invalid) as raised:
        await stage[ROOT].apply([*workers(300), heavy(1), *workers(301)[300:], heavy(2)], dry_run=dry_run)
    assert [fault.path for fault in raised.value.faults] == ["documents[300]", "documents[302]"]
    assert "bytes" in raised.value.faults[0].problem
    assert await stage.revision() == revision


async def test_a_dry_run_of_one_object_holds_it_against_the_limits_too() -> None:
    stage = Stage()
    large = parse_document(heavy(1))
    assert isinstance(large, LabletDefinition)
    for dry_run in (True, False):
        with pytest.raises(TooLarge):
            await stage[ROOT].create(large, dry_run=dry_run)
    small = parse_document(named("LabletDefinition", "heavy:1.0", version="1.0"))
    await stage[ROOT].create(small)
    labels = {f"label-{number:02}": 256 * "ü" for number in range(64)}
    larger = msgspec.structs.replace(small, metadata=Metadata(name="heavy:1.0", labels=labels, annotations=labels))
    assert (await stage[ROOT].replace(larger, dry_run=True)).metadata.labels == labels


async def test_roles_and_owners_hold_here_as_well() -> None:
    stage = Stage()
    await stage.put(active())
    with pytest.raises(Forbidden):
        await stage[ADA].apply([document("LabletSession"), document("WorkerTemplate")])
    assert [one.outcome for one in await stage[ADA].apply([document("LabletSession")])] == ["created"]
    with pytest.raises(Invalid, match=r"documents\[0\]\.metadata\.name: the name is taken"):
        await stage[BOB].apply([document("LabletSession")])
    with pytest.raises(Invalid, match=r"documents\[0\]: anna may not book for ada"):
        await stage[ANNA].apply([named("LabletSession", "s2", owner="ada")])


async def test_a_quota_is_asked_before_anything_is_written() -> None:
    asked: list[int] = []

    async def quota(_: Any, resources: Any) -> list[Op]:
        asked.append(len(resources))
        if len(resources) > 100:
            raise Forbidden("too many")
        await asyncio.sleep(0)
        return []

    stage = Stage(quota=quota)
    await stage[ROOT].apply(workers(60))
    assert asked[0] == 60
    with pytest.raises(Forbidden):
        await stage[ROOT].apply([named("LabWorker", f"x{number}") for number in range(101)])
    assert len((await stage[ROOT].list(LabWorker)).items) == 60


async def test_those_who_write_in_between_only_make_the_rest_be_planned_anew() -> None:
    stage = Stage()
    await stage[ROOT].apply(workers(150))

    async def disturb() -> None:
        for number in range(0, 150, 10):
            await stage[ROOT].patch(Ref(LabWorker, f"w{number:04}"), {"metadata": {"annotations": {"a": str(number)}}})

    changed = workers(150, lab_track="ccna")
    applied, _ = await asyncio.gather(stage[ROOT].apply(changed), disturb())
    assert {one.outcome for one in applied} <= {"configured"}
    assert {one.spec.lab_track for one in (await stage[ROOT].list(LabWorker)).items} == {"ccna"}


async def test_two_who_apply_the_same_folder_at_once_both_succeed() -> None:
    stage = Stage()
    folder = [*workers(100), document("WorkerTemplate"), document("LabWorkerPool"), LAB, document("LabletSession")]
    await asyncio.gather(*(stage[ROOT].apply(folder) for _ in range(3)))
    assert len([key for key in await stage.keys() if not key.startswith(("uids/", "unique/"))]) == 104
    assert len(await stage.types()) == 104


async def test_a_thousand_documents_take_far_less_than_two_seconds_on_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        stage = Stage(store)
        folder = [*workers(500), *(named("WorkerTemplate", f"t{number}") for number in range(500))]
        start = time.process_time()
        await stage[ROOT].apply(folder)
        assert time.process_time() - start < suite.here(2)
        revision = await stage.revision()
        assert {one.outcome for one in await stage[ROOT].apply(folder)} == {"unchanged"}
        assert await stage.revision() == revision


async def world() -> Stage:
    stage = Stage(clock=VirtualClock())
    await stage.put(given.template(name="old", uid="old"))
    return stage


async def apply_all(stage: Stage) -> None:
    pools = [
        named("LabWorkerPool", f"p{number}", template="metal" if number % 2 else "old", lab_track=f"k{number}")
        for number in range(70)
    ]
    await stage[ROOT].apply([*pools, document("WorkerTemplate")])


async def all_there(stage: Stage) -> None:
    assert len((await stage[ROOT].list(LabWorkerPool)).items) == 70
    assert len((await stage[ROOT].list(WorkerTemplate)).items) == 2
    assert sorted(await stage.types()) == [*["pool.created"] * 70, "template.created"]


def test_applying_survives_a_crash_anywhere(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere("apply", world, apply_all, all_there, report=tell)
    assert 5 < awaits < 15, "an apply that nobody disturbs is planned once"


async def test_nobody_elses_session_is_touched_by_its_name() -> None:
    stage = Stage()
    await stage.put(active())
    mine = await stage[ADA].create(given.session())
    with pytest.raises(Invalid):
        await stage[BOB].apply([document("LabletSession", student_email="bob@example.org")])
    assert await stage[ADA].get(Ref(LabletSession, "s1")) == mine
    assert mine.metadata.created_at == NOW
