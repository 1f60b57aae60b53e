"""What the settings filled in stays when they change: who applies the same file again changes nothing."""

from typing import Any, Final

from harness.plane_world import ROOT, Stage
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Pause, Ref
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.worker import LabWorker

BEFORE: Final[dict[str, Any]] = {
    "LabWorker": {"spec": {"aws": {"ami_id": "ami-1", "region": "eu-west-1"}, "idle": {"threshold_minutes": 60}}},
    "WorkerTemplate": {"spec": {"worker": {"aws": {"ami_id": "ami-1", "vpc_id": "vpc-1", "subnet_ids": ["subnet-1"]}}}},
    "LabWorkerPool": {"spec": {"min_workers": 1, "max_workers": 9, "thresholds": {"cpu_scale_up": 0.9}}},
}
AFTER: Final[dict[str, Any]] = {
    "LabWorker": {"spec": {"aws": {"region": "us-west-2"}, "cml": {"admin_username": "cisco"}}},
    "LabWorkerPool": {"spec": {"min_workers": 3, "max_workers": 4}},
}
FILES: Final[tuple[dict[str, Any], ...]] = (
    {"kind": "LabWorker", "metadata": {"name": "w1"}},
    {"kind": "WorkerTemplate", "metadata": {"name": "metal"}},
    {"kind": "LabWorkerPool", "metadata": {"name": "ccna"}, "spec": {"lab_track": "ccna", "template": "metal"}},
)


async def resettled() -> tuple[Stage, ControlPlane]:
    """Return what was applied under some settings, and a plane under others."""
    stage = Stage()
    await ControlPlane(stage.store, clock=stage.clock, defaults=BEFORE).plane_for(ROOT).apply(FILES)
    return stage, ControlPlane(stage.store, clock=stage.clock, defaults=AFTER)


async def test_the_same_file_changes_nothing_when_the_settings_are_others() -> None:
    stage, core = await resettled()
    revision, plane = await stage.revision(), core.plane_for(ROOT)
    assert {one.outcome for one in await plane.apply(FILES)} == {"unchanged"}
    for file in FILES:
        kind: type[Any] = KINDS[file["kind"]].struct
        await plane.put(Ref(kind, file["metadata"]["name"]), file)
        await plane.patch(Ref(kind, file["metadata"]["name"]), {"spec": file.get("spec", {})})
    assert await stage.revision() == revision


async def test_what_is_new_gets_what_the_settings_say_now_and_so_does_what_is_taken_back() -> None:
    _, core = await resettled()
    plane = core.plane_for(ROOT)
    spec = FILES[2]["spec"] | {"lab_track": "later"}
    await plane.apply([{**FILES[2], "metadata": {"name": "later"}, "spec": spec}])
    later = await plane.get(Ref(LabWorkerPool, "later"))
    assert later is not None
    assert (later.spec.min_workers, later.spec.max_workers) == (3, 4)
    back = await plane.patch(Ref(LabWorkerPool, "ccna"), {"spec": {"min_workers": None, "max_workers": None}})
    assert (back.spec.min_workers, back.spec.max_workers) == (3, 4)


async def test_a_change_of_one_field_leaves_what_the_settings_filled_in_beside_it() -> None:
    _, core = await resettled()
    plane = core.plane_for(ROOT)
    changed = {**FILES[2], "spec": {**FILES[2]["spec"], "max_workers": 5}}
    for write in (plane.put(Ref(LabWorkerPool, "ccna"), changed), plane.apply([changed])):
        await write
        pool = await plane.get(Ref(LabWorkerPool, "ccna"))
        assert pool is not None
        assert (pool.spec.min_workers, pool.spec.max_workers, pool.spec.thresholds.cpu_scale_up) == (1, 5, 0.9)


async def test_a_paused_worker_stays_so_when_its_file_is_applied_again() -> None:
    _, core = await resettled()
    plane, w1 = core.plane_for(ROOT), Ref(LabWorker, "w1")
    await plane.act(w1, Pause())
    assert [one.outcome for one in await plane.apply(FILES[:1])] == ["unchanged"]
    assert (await plane.put(w1, FILES[0])).spec.wanted_state == "stopped"
    running = {**FILES[0], "spec": {"wanted_state": "running"}}
    assert [one.outcome for one in await plane.apply([running])] == ["configured"]
    again = await plane.get(w1)
    assert again is not None
    assert again.spec.wanted_state == "running"
