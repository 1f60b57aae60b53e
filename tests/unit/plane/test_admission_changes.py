"""What admission makes of changes: what stays fixed, what is kept, and when nothing changes."""

from typing import Any

import pytest

from harness import given
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, active, service
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Conflict, Forbidden, Gone, Invalid
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Owner
from lcm.model.kinds.definition import DefinitionState, PortUse, Topology
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabType, LabWorker, WorkerPhase


async def faults(stage: Stage, resource: Resource) -> set[str]:
    with pytest.raises(Invalid) as raised:
        await stage[ROOT].replace(resource)
    return {fault.path for fault in raised.value.faults}


async def booked(**overrides: object) -> Stage:
    stage = Stage()
    await stage.put(active(lab_track="ccna", **overrides))
    await stage[ADA].create(given.session(definition="basics"))
    return stage


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", "bob"),
        ("definition", "basics:2.0.0"),
        ("lab_track", "other"),
        ("timeslot_end", given.moment("12:00")),
        ("reservation_id", "r1"),
        ("region_required", "us-east-1"),
        ("resource_limits", {"cpu": "1"}),
        ("lab_instance_type", LabType.VM),
    ],
)
async def test_what_was_booked_stays_as_it_was_booked(field: str, value: object) -> None:
    stage = await booked()
    assert await faults(stage, given.session(**{field: value})) == {f"spec.{field}"}


async def test_a_student_can_be_named_later() -> None:
    stage = await booked()
    changed = await stage[ADA].patch(Ref(LabletSession, "s1"), {"spec": {"student_email": "ada@example.org"}})
    assert (changed.spec.student_email, changed.metadata.generation) == ("ada@example.org", 2)


async def test_priority_is_raised_by_staff_only_and_lowered_by_anybody() -> None:
    stage, s1 = await booked(), Ref(LabletSession, "s1")
    raised = await stage[OTTO].patch(s1, {"spec": {"priority": 5}})
    assert raised.spec.priority == 5
    assert await stage[ADA].replace(given.session(definition="basics")) == raised
    with pytest.raises(Forbidden):
        await stage[ADA].patch(s1, {"spec": {"priority": 6}})
    assert (await stage[ADA].patch(s1, {"spec": {"priority": -2}})).spec.priority == -2
    with pytest.raises(Forbidden):
        await stage[ADA].patch(s1, {"spec": {"priority": -1}})
    assert (await stage[ADA].create(given.session(name="s2", priority=-2))).spec.priority == -2


async def test_what_admission_filled_in_is_kept_when_a_document_leaves_it_out() -> None:
    stage = Stage()
    await stage.put(active(lab_track="ccna", lab_type=LabType.CONTAINER))
    made = await stage[ADA].create(given.asap(definition="basics"))
    await stage.put(active(name="basics:2.0.0", uid="newer", version="2.0.0", lab_type=LabType.VM))
    revision = await stage.revision()
    assert await stage[ADA].replace(given.asap(definition="basics")) == made
    assert await stage[ADA].replace(given.asap()) == made
    assert await stage.revision() == revision


async def test_a_reservation_is_fixed_but_for_its_labels() -> None:
    stage = Stage()
    await stage.put(active())
    await stage[ADA].create(given.reservation())
    assert await faults(stage, given.reservation(count=3)) == {"spec.count"}
    assert (await stage[ADA].replace(given.reservation(labels={"a": "b"}))).metadata.labels == {"a": "b"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topology", Topology(uri="s3://labs/other.yaml")),
        ("port_template", {"PC_serial": PortUse(kind="serial", node="PC")}),
        ("lab_type", LabType.VM),
    ],
)
async def test_a_published_version_stays_what_it_is(field: str, value: object) -> None:
    stage = Stage()
    await stage[ANNA].create(given.definition())
    assert await faults(stage, given.definition(**{field: value})) == {f"spec.{field}"}
    changed = await stage[ANNA].replace(given.definition(state=DefinitionState.ACTIVE, max_duration_minutes=60))
    assert changed.metadata.generation == 2


async def test_where_a_worker_runs_is_fixed_once_it_is_launched() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY))
    moved = given.worker(aws={"region": "eu-west-1", "instance_type": "m8i.large", "tags": {"a": "b"}})
    assert await faults(stage, moved) == {"spec.aws.region", "spec.aws.instance_type"}
    tagged = await stage[ROOT].replace(given.worker(aws={"tags": {"a": "b"}}, lab_track="ccna"))
    assert (tagged.spec.aws.tags, tagged.spec.lab_track) == ({"a": "b"}, "ccna")


async def test_where_a_worker_runs_may_change_before_it_is_launched() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    moved = await stage[ROOT].replace(given.worker(aws={"region": "eu-west-1"}))
    assert moved.spec.aws.region == "eu-west-1"


async def test_a_pool_keeps_its_track_and_may_change_its_template() -> None:
    stage = Stage()
    await stage[ROOT].create(given.template())
    await stage[ROOT].create(given.pool())
    assert await faults(stage, given.pool(lab_track="ccnp")) == {"spec.lab_track"}
    assert await faults(stage, given.pool(template="other")) == {"spec.template"}
    await stage[ROOT].create(given.template(name="other"))
    assert (await stage[ROOT].replace(given.pool(template="other"))).spec.template == "other"


async def test_a_pool_whose_template_is_marked_can_still_be_changed_otherwise() -> None:
    stage = Stage()
    await stage.put(given.template(deletion_timestamp=NOW))
    await stage.put(given.pool())
    assert (await stage[ROOT].replace(given.pool(max_workers=3))).spec.max_workers == 3


async def test_a_change_must_hold_to_the_rules() -> None:
    stage = Stage()
    await stage.put(given.pool())
    assert await faults(stage, given.pool(min_workers=20)) == {"spec.min_workers"}


async def test_labels_alone_are_no_new_generation() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    changed = await stage[ROOT].replace(given.worker(labels={"a": "b"}, annotations={"c": "d"}))
    assert changed.metadata.generation == 1
    assert (await stage.store.scan("workers/", labels={"a": "b"})).entries


async def test_no_difference_spends_no_revision() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.worker(labels={"a": "b"}))
    revision = await stage.revision()
    assert await stage[ROOT].replace(given.worker(labels={"a": "b"}, phase=WorkerPhase.READY)) == made
    assert await stage[ROOT].patch(Ref(LabWorker, "w1"), {"metadata": {"labels": {"a": "b"}}, "status": {}}) == made
    assert await stage.revision() == revision


async def test_a_patch_removes_with_null_and_goes_deep() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker(labels={"a": "1", "b": "2"}, aws={"vpc_id": None, "tags": {"x": "y"}}))
    patch = {"metadata": {"labels": {"a": None, "c": "3"}}, "spec": {"aws": {"tags": {"z": "w"}}, "idle": None}}
    changed = await stage[ROOT].patch(Ref(LabWorker, "w1"), patch)
    assert changed.metadata.labels == {"b": "2", "c": "3"}
    assert changed.spec.aws.tags == {"x": "y", "z": "w"}
    assert changed.spec.aws.ami_name_pattern == "CML-2.9*"


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ({"specc": {}}, "specc"),
        ({"metadata": {"label": {}}}, "metadata.label"),
        ({"metadata": 5}, "metadata"),
        ({"spec": 5}, "spec"),
        ({"spec": {"lab_trak": "x"}}, "spec.lab_trak"),
        ({"spec": {"lab_types": "CML"}}, "spec.lab_types"),
    ],
)
async def test_a_patch_that_cannot_be_meant_is_refused(patch: dict[str, Any], path: str) -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    with pytest.raises(Invalid) as raised:
        await stage[ROOT].patch(Ref(LabWorker, "w1"), patch)
    assert [fault.path for fault in raised.value.faults] == [path]


async def test_a_patch_of_bottomless_depth_is_refused() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"a": deep}
    with pytest.raises(Invalid):
        await stage[ROOT].patch(Ref(LabWorker, "w1"), {"spec": deep})


async def test_a_revision_in_the_document_is_demanded() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.worker())
    await stage[ROOT].replace(given.worker(lab_track="ccna"))
    stale = given.changed(made, {"spec": {"lab_track": "ccnp"}})
    with pytest.raises(Conflict) as raised:
        await stage[ROOT].replace(stale)
    assert raised.value.wanted == made.metadata.resource_version
    newest = await stage.read(made)
    assert newest is not None
    changed = await stage[ROOT].replace(stale, at=newest.metadata.resource_version)
    assert changed.spec.lab_track == "ccnp"


async def test_what_is_not_there_cannot_be_changed() -> None:
    for caller in (ROOT, OTTO):
        with pytest.raises(Gone, match="there is no LabWorkerPool ccna in namespace default"):
            await Stage()[caller].replace(given.pool())
    with pytest.raises(Gone):
        await Stage()[ROOT].patch(Ref(LabWorkerPool, "no such name!"), {})


async def test_a_person_does_not_stop_a_pools_worker_by_its_document_and_the_pool_does() -> None:
    stage, w1 = Stage(), Ref(LabWorker, "w1")
    await stage.put(given.worker(owner=Owner(kind="LabWorkerPool", name="ccna", uid="u")))
    with pytest.raises(Invalid, match=r"spec.wanted_state: w1 belongs to pool ccna"):
        await stage[OTTO].patch(w1, {"spec": {"wanted_state": "stopped"}})
    paused = await stage[service(POOL_CONTROLLER)].patch(w1, {"spec": {"wanted_state": "stopped"}})
    assert paused.spec.wanted_state == "stopped"
