"""The plane's contract: objects are made, changed and removed, by one writer or several."""

import asyncio
from datetime import timedelta

import pytest

from harness import given
from harness.plane_world import NOW, World, either, everywhere, on_any_wire, template
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Conflict, Forbidden, Gone, Invalid, Refused
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase

METAL = Ref(WorkerTemplate, "metal")
W1 = Ref(LabWorker, "w1")
S1 = Ref(LabletSession, "s1")
GOLD = {"metadata": {"labels": {"tier": "gold"}}}


async def booked(world: World, plane: Plane) -> LabletSession:
    await world.root.create(given.definition(state="active"))
    return await plane.create(given.session())


@everywhere
async def test_a_new_object_gets_its_bookkeeping_from_the_plane(world: World) -> None:
    asked = given.worker(
        uid="mine",
        generation=7,
        resource_version=10**15,
        created_at=NOW - timedelta(days=1),
        deletion_timestamp=NOW,
        finalizers=("mine",),
        phase=WorkerPhase.READY,
        retry_count=3,
    )
    made = await world.root.create(asked)
    meta = made.metadata
    assert (meta.name, meta.generation, meta.created_at, meta.deletion_timestamp) == ("w1", 1, meta.created_at, None)
    assert meta.created_at is not None
    assert abs(meta.created_at - NOW) < timedelta(minutes=1)
    assert meta.uid not in ("", "mine")
    assert meta.resource_version not in (0, 10**15)
    assert "mine" not in meta.finalizers
    assert (made.status.phase, made.status.retry_count) == (WorkerPhase.PENDING, 0)
    assert made.spec == asked.spec


@everywhere
async def test_what_exists_cannot_be_made_again(world: World) -> None:
    made = await world.root.create(template())
    revision = await world.revision()
    with pytest.raises(Conflict) as raised:
        await world.root.create(template(labels={"tier": "gold"}))
    error = raised.value
    assert (error.key, error.wanted, error.found) == (METAL.key, 0, made.metadata.resource_version)
    assert await world.root.get(METAL) == made
    assert await world.revision() == revision


@on_any_wire
async def test_of_several_who_make_the_same_one_succeeds(world: World) -> None:
    attempts = [world.root.create(template(labels={"tier": str(n)})) for n in range(8)]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    lost = [one for one in results if isinstance(one, Conflict) and one.wanted == 0]
    assert len(lost) == 7


@everywhere
async def test_a_document_is_refused_with_every_fault(world: World) -> None:
    wrong = given.pool(min_workers=5, max_workers=2, thresholds={"cpu_scale_down": 0.9})
    with pytest.raises(Invalid) as raised:
        await world.root.create(wrong)
    paths = {fault.path for fault in raised.value.faults}
    assert {"spec.min_workers", "spec.thresholds.cpu_scale_down"} <= paths
    assert all(fault.problem for fault in raised.value.faults)
    assert await world.root.get(Ref(LabWorkerPool, "ccna")) is None


@either
async def test_a_name_that_no_store_could_keep_is_refused(world: World) -> None:
    for name in ("W1", "a b", "a/b", "", "ü"):
        with pytest.raises(Invalid):
            await world.root.create(template(name=name))
        with pytest.raises(Invalid):
            await world.root.create(template(namespace=name))


@everywhere
async def test_a_dry_run_answers_like_the_real_thing_and_leaves_nothing(world: World) -> None:
    revision = await world.revision()
    tried = await world.root.create(template(), dry_run=True)
    assert tried.spec == template().spec
    assert await world.root.get(METAL) is None
    assert await world.revision() == revision
    made = await world.root.create(template())
    assert (await world.root.patch(METAL, GOLD, dry_run=True)).metadata.labels == {"tier": "gold"}
    changed = template(labels={"tier": "tin"})
    assert (await world.root.replace(changed, dry_run=True)).metadata.labels == {"tier": "tin"}
    await world.root.delete(METAL, dry_run=True)
    assert await world.root.get(METAL) == made


@either
async def test_a_dry_run_is_refused_like_the_real_thing(world: World) -> None:
    await world.root.create(template())
    with pytest.raises(Conflict):
        await world.root.create(template(), dry_run=True)
    with pytest.raises(Conflict):
        await world.root.patch(METAL, GOLD, at=1, dry_run=True)
    with pytest.raises(Gone):
        await world.root.delete(Ref(WorkerTemplate, "nobody"), dry_run=True)
    with pytest.raises(Invalid):
        await world.root.patch(METAL, {"spec": {"name_prefix": "NO"}}, dry_run=True)
    with pytest.raises(Forbidden):
        await world.ada.create(template(name="other"), dry_run=True)


@everywhere
async def test_a_repeated_request_is_answered_as_the_first_time(world: World) -> None:
    first = await world.root.create(template(), request="r-1")
    revision = await world.revision()
    assert (await world.root.create(template(), request="r-1")).metadata.uid == first.metadata.uid
    assert await world.revision() == revision
    changed = await world.root.patch(METAL, GOLD)
    again = await world.root.create(template(), request="r-1")
    assert again.metadata.uid == changed.metadata.uid
    with pytest.raises(Conflict):
        await world.root.create(template(), request="r-2")
    with pytest.raises(Conflict):
        await world.root.create(template())


@either
async def test_a_request_belongs_to_what_was_asked_and_to_who_asked(world: World) -> None:
    await world.root.create(template(), request="r-1")
    with pytest.raises(Invalid):
        await world.root.create(template(name="other"), request="r-1")
    await world.person("otto").create(template(name="other"), request="r-1")


@on_any_wire
async def test_of_several_who_repeat_a_request_all_get_the_same(world: World) -> None:
    made = await asyncio.gather(*(world.root.create(template(), request="r-1") for _ in range(6)))
    assert len({one.metadata.uid for one in made}) == 1


@on_any_wire
async def test_a_request_that_cannot_be_told_is_refused(world: World) -> None:
    for request in ("", "a b", "ü", "a\nb", 201 * "x"):
        with pytest.raises(Invalid):
            await world.root.create(template(), request=request)


@everywhere
async def test_replacing_changes_what_users_own_and_nothing_else(world: World) -> None:
    made = await world.root.create(given.worker(labels={"old": "1"}, annotations={"note": "x"}))
    asked = given.worker(
        labels={"new": "2"}, lab_track="ccna", phase=WorkerPhase.READY, uid="other", generation=9, finalizers=()
    )
    changed = await world.root.replace(asked)
    assert (changed.metadata.labels, changed.metadata.annotations) == ({"new": "2"}, {})
    assert changed.spec.lab_track == "ccna"
    assert changed.status == made.status
    kept = (made.metadata.uid, made.metadata.created_at, made.metadata.finalizers)
    assert (changed.metadata.uid, changed.metadata.created_at, changed.metadata.finalizers) == kept
    assert changed.metadata.generation == made.metadata.generation + 1
    assert changed.metadata.resource_version > made.metadata.resource_version


@everywhere
async def test_no_difference_spends_no_revision(world: World) -> None:
    made = await world.root.create(template(labels={"a": "1"}))
    revision = await world.revision()
    assert await world.root.replace(made) == made
    assert await world.root.replace(template(labels={"a": "1"})) == made
    assert await world.root.patch(METAL, {"metadata": {"labels": {"a": "1"}}}) == made
    assert await world.root.patch(METAL, {}) == made
    assert await world.revision() == revision


@everywhere
async def test_a_writer_that_was_overtaken_is_told_by_what(world: World) -> None:
    old = await world.root.create(template())
    new = await world.root.patch(METAL, GOLD)
    wanted, found = old.metadata.resource_version, new.metadata.resource_version
    overtaken = given.changed(old, {"metadata": {"labels": {"mine": "1"}}})
    for attempt in (
        world.root.replace(overtaken),
        world.root.replace(template(labels={"mine": "1"}), at=wanted),
        world.root.patch(METAL, {"metadata": {"labels": {"mine": "1"}}}, at=wanted),
        world.root.delete(METAL, at=wanted),
    ):
        with pytest.raises(Conflict) as raised:
            await attempt
        assert (raised.value.key, raised.value.wanted, raised.value.found) == (METAL.key, wanted, found)
    assert await world.root.get(METAL) == new
    assert (await world.root.replace(overtaken, at=found)).metadata.labels == {"mine": "1"}


@everywhere
async def test_of_two_writers_at_one_revision_one_wins(world: World) -> None:
    await world.root.create(template())
    for round_ in range(5):
        seen = await world.root.get(METAL)
        assert seen is not None
        documents = [given.changed(seen, {"metadata": {"labels": {"by": f"{n}-{round_}"}}}) for n in range(2)]
        results = await asyncio.gather(*map(world.root.replace, documents), return_exceptions=True)
        [lost] = [one for one in results if isinstance(one, BaseException)]
        [won] = [one for one in results if isinstance(one, WorkerTemplate)]
        assert isinstance(lost, Conflict)
        assert (lost.wanted, lost.found) == (seen.metadata.resource_version, won.metadata.resource_version)


@on_any_wire
async def test_patches_without_a_revision_do_not_hinder_each_other(world: World) -> None:
    await world.root.create(template())
    await asyncio.gather(
        *(world.root.patch(METAL, {"metadata": {"labels": {f"l{n}": "1"}}}) for n in range(5)),
    )
    found = await world.root.get(METAL)
    assert found is not None
    assert set(found.metadata.labels) == {f"l{n}" for n in range(5)}


@everywhere
async def test_a_patch_is_merged(world: World) -> None:
    made = await world.root.create(given.worker(labels={"a": "1", "b": "2"}, lab_track="ccna"))
    patch = {
        "metadata": {"labels": {"a": None, "c": "3"}, "uid": "mine", "generation": 5},
        "spec": {"idle": {"threshold_minutes": 45}, "lab_track": None},
        "status": {"phase": "READY"},
    }
    changed = await world.root.patch(W1, patch)
    assert changed.metadata.labels == {"b": "2", "c": "3"}
    assert (changed.spec.idle.threshold_minutes, changed.spec.idle.warn_minutes) == (45, 5)
    assert changed.spec.lab_track == ""
    assert (changed.status, changed.metadata.uid) == (made.status, made.metadata.uid)


@either
async def test_a_patch_that_makes_no_sense_names_the_place(world: World) -> None:
    await world.root.create(given.worker())
    for patch, path in (
        ({"spec": {"idle": {"threshold_minutes": "long"}}}, "spec.idle.threshold_minutes"),
        ({"spec": {"lab_trak": "ccna"}}, "spec.lab_trak"),
        ({"spec": {"aws": {"ami_name_pattern": None}}}, "spec.aws"),
    ):
        with pytest.raises(Invalid) as raised:
            await world.root.patch(W1, patch)
        assert [fault.path for fault in raised.value.faults] == [path]


@everywhere
async def test_what_is_not_there_cannot_be_changed(world: World) -> None:
    for attempt in (
        world.root.replace(template()),
        world.root.patch(METAL, GOLD),
        world.root.delete(METAL),
        world.root.delete(Ref(WorkerTemplate, "../workers")),
        world.root.patch(Ref(WorkerTemplate, "a/b"), GOLD),
    ):
        with pytest.raises(Gone):
            await attempt
    assert await world.root.get(METAL) is None


@everywhere
async def test_what_has_no_life_of_its_own_goes_at_once(world: World) -> None:
    made = await world.root.create(template())
    gone = await world.root.delete(METAL)
    assert gone.metadata.uid == made.metadata.uid
    assert await world.root.get(METAL) is None
    assert await world.root.get(Ref(WorkerTemplate, made.metadata.uid)) is None
    with pytest.raises(Gone):
        await world.root.delete(METAL)
    again = await world.root.create(template())
    assert again.metadata.uid != made.metadata.uid


@everywhere
async def test_what_has_a_life_of_its_own_is_marked_and_stays(world: World) -> None:
    made = await world.root.create(given.worker())
    marked = await world.root.delete(W1)
    assert marked.metadata.deletion_timestamp is not None
    assert marked.metadata.uid == made.metadata.uid
    assert marked.metadata.finalizers
    assert await world.root.get(W1) == marked
    revision = await world.revision()
    assert await world.root.delete(W1) == marked
    assert await world.revision() == revision


@either
async def test_an_object_is_deleted_by_its_uid_too(world: World) -> None:
    made = await world.root.create(template())
    await world.root.delete(Ref(WorkerTemplate, made.metadata.uid))
    assert await world.root.get(METAL) is None


@either
async def test_what_others_refer_to_stays(world: World) -> None:
    await world.root.create(template())
    await world.root.create(given.pool())
    with pytest.raises(Refused, match="ccna"):
        await world.root.delete(METAL)
    found = await world.root.get(METAL)
    assert found is not None
    assert found.metadata.deletion_timestamp is None


@either
async def test_what_is_referred_to_must_be_there(world: World) -> None:
    with pytest.raises(Invalid) as raised:
        await world.root.create(given.pool())
    assert [fault.path for fault in raised.value.faults] == ["spec.template"]
    with pytest.raises(Invalid) as raised:
        await world.root.create(given.session())
    assert [fault.path for fault in raised.value.faults] == ["spec.definition"]


@either
async def test_a_waiting_session_is_gone_with_its_deletion(world: World) -> None:
    made = await booked(world, world.ada)
    assert (made.spec.owner, made.status.phase) == ("ada", SessionPhase.PENDING)
    await world.ada.delete(S1)
    assert await world.ada.get(S1) is None
