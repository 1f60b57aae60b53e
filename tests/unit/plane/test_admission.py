"""What admission makes of new documents: defaults filled in, references pinned, roles held to."""

import asyncio
from datetime import date, timedelta
from typing import Any

import pytest

from harness import given
from harness.plane_world import ADA, ANNA, BOB, NOW, OTTO, ROOT, Stage, active, service
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import Caller
from lcm.model.base.errors import Forbidden, Invalid
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Owner
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, ResourceRequirements
from lcm.model.kinds.hours import Weekday
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Recurrence
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabType, LabWorker
from lcm.store.base import Op


async def paths(stage: Stage, caller: Caller, resource: Resource) -> set[str]:
    with pytest.raises(Invalid) as raised:
        await stage[caller].create(resource)
    return {fault.path for fault in raised.value.faults}


async def with_definitions(*versions: str, **overrides: object) -> Stage:
    stage = Stage()
    for version in versions:
        name = f"basics:{version}"
        await stage.put(active(name=name, uid=f"uid-{name}", version=version, **overrides))
    return stage


async def test_a_new_object_gets_its_bookkeeping_from_the_plane() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.worker(uid="mine", generation=7, finalizers=()))
    assert made.metadata.uid == "uid-1"
    assert (made.metadata.generation, made.metadata.created_at) == (1, NOW)
    assert made.metadata.finalizers == ("lcm/teardown",)
    assert [(line.phase, line.by, line.reason) for line in made.status.history] == [("PENDING", "root", "created")]
    assert made.metadata.resource_version == await stage.revision()


async def test_what_has_no_life_of_its_own_has_no_finalizer() -> None:
    made = await Stage()[ROOT].create(given.template())
    assert (made.metadata.finalizers, made.status.history) == ((), ())


async def test_an_owner_is_believed_of_a_service_only() -> None:
    stage = Stage()
    owner = Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
    assert (await stage[ROOT].create(given.worker(owner=owner))).metadata.owner is None
    made = await stage[service(POOL_CONTROLLER)].create(given.worker(name="w2", owner=owner))
    assert made.metadata.owner == owner
    assert made.status.history[0].by == POOL_CONTROLLER


async def test_a_name_that_looks_like_a_uid_is_refused() -> None:
    name = "0740f22a-d2e7-49f9-96b2-53671c8275fb"
    assert await paths(Stage(), ROOT, given.template(name=name)) == {"metadata.name"}


async def test_what_code_put_together_is_held_to_the_limits_of_its_fields() -> None:
    stage = Stage()
    assert await paths(stage, ROOT, given.template(name=64 * "x")) == {"metadata.name"}
    assert await paths(stage, ROOT, given.worker(labels={"a": 300 * "x"})) == {"metadata.labels.a"}
    assert await paths(stage, ROOT, given.worker(max_concurrent_labs=21)) == {"spec.max_concurrent_labs"}
    assert await stage.keys() == []


async def test_faults_of_rules_and_of_references_are_told_together() -> None:
    assert await paths(Stage(), ROOT, given.pool(min_workers=20)) == {"spec.min_workers", "spec.template"}


async def test_a_booking_without_a_version_gets_the_newest_active_one() -> None:
    stage = await with_definitions("1.9", "1.10", "1.2")
    await stage.put(active(name="basics:2.0", uid="draft", version="2.0", state=DefinitionState.DRAFT))
    await stage.put(active(name="basics-plus:9.0", uid="other", version="9.0"))
    made = await stage[ADA].create(given.session(definition="basics"))
    assert made.spec.definition == "basics:1.10"


async def test_a_booking_with_a_version_gets_that_one() -> None:
    stage = await with_definitions("1.9", "1.10")
    assert (await stage[ADA].create(given.session(definition="basics:1.9"))).spec.definition == "basics:1.9"


@pytest.mark.parametrize(
    "definition",
    [
        active(state=DefinitionState.DRAFT),
        active(state=DefinitionState.DEPRECATED),
        active(namespace="elsewhere"),
        active(name="basics:2.0.0", version="2.0.0"),
    ],
)
async def test_only_what_is_there_and_active_can_be_booked(definition: LabletDefinition) -> None:
    stage = Stage()
    await stage.put(definition)
    assert await paths(stage, ADA, given.session()) == {"spec.definition"}
    assert await paths(stage, ADA, given.reservation()) == {"spec.definition"}


async def test_a_name_of_which_no_version_is_active_cannot_be_booked() -> None:
    stage = await with_definitions("1.0", state=DefinitionState.DRAFT)
    with pytest.raises(Invalid, match=r"basics:1\.0 is draft"):
        await stage[ADA].create(given.session(definition="basics"))
    with pytest.raises(Invalid, match="there is no LabletDefinition nothing"):
        await stage[ADA].create(given.session(definition="nothing"))


async def test_a_booking_belongs_to_who_makes_it() -> None:
    stage = await with_definitions("1.0.0")
    assert (await stage[ADA].create(given.session())).spec.owner == "ada"
    assert (await stage[ADA].create(given.reservation())).spec.owner == "ada"
    assert (await stage[ADA].create(given.session(name="s2", owner="ada"))).spec.owner == "ada"


async def test_only_staff_and_services_book_for_others() -> None:
    stage = await with_definitions("1.0.0")
    for number, caller in enumerate((OTTO, ROOT, service(POOL_CONTROLLER))):
        made = await stage[caller].create(given.session(name=f"s{number}", owner="bob"))
        assert made.spec.owner == "bob"
    for caller in (ADA, ANNA):
        with pytest.raises(Forbidden):
            await stage[caller].create(given.session(owner="bob"))
        with pytest.raises(Forbidden):
            await stage[caller].create(given.reservation(owner="bob"))


async def test_an_owner_must_be_somebody_who_could_sign_in() -> None:
    stage = await with_definitions("1.0.0")
    assert await paths(stage, ROOT, given.session(owner="two words")) == {"spec.owner"}


async def test_only_staff_give_priority() -> None:
    stage = await with_definitions("1.0.0")
    with pytest.raises(Forbidden):
        await stage[ADA].create(given.session(priority=1))
    assert (await stage[ADA].create(given.session(priority=-5))).spec.priority == -5
    assert (await stage[OTTO].create(given.session(name="s2", priority=9))).spec.priority == 9


async def test_a_booking_takes_track_and_type_from_its_definition() -> None:
    stage = await with_definitions("1.0.0", lab_track="ccna", lab_type=LabType.CONTAINER)
    made = await stage[ADA].create(given.session())
    assert (made.spec.lab_track, made.spec.lab_instance_type) == ("ccna", LabType.CONTAINER)
    assert (await stage[ADA].create(given.reservation())).spec.lab_track == "ccna"


async def test_what_a_definition_allows_bounds_the_track_that_anybody_but_staff_chooses() -> None:
    stage = await with_definitions("1.0.0", lab_track="ccna", other_tracks=("evening",))
    for caller in (ADA, ANNA):
        assert await paths(stage, caller, given.session(lab_track="exam")) == {"spec.lab_track"}
        assert await paths(stage, caller, given.reservation(lab_track="exam")) == {"spec.lab_track"}
    for name, caller, track in (("s1", ADA, "ccna"), ("s2", ADA, "evening"), ("s3", OTTO, "exam")):
        assert (await stage[caller].create(given.session(name=name, lab_track=track))).spec.lab_track == track
    free = await with_definitions("1.0.0")
    assert await paths(free, ADA, given.session(lab_track="exam")) == {"spec.lab_track"}


async def test_what_a_definition_allows_bounds_the_size_that_anybody_but_staff_chooses() -> None:
    needs = ResourceRequirements(cpu_cores=4, memory_gb=8)
    stage = await with_definitions("1.0.0", resource_requirements=needs, node_count=4)
    metal = {"cpu": "48", "memory": "8Gi"}
    for caller in (ADA, ANNA):
        assert await paths(stage, caller, given.session(resource_limits=metal)) == {"spec.resource_limits.cpu"}
    assert (await stage[OTTO].create(given.session(resource_limits=metal))).spec.resource_limits == metal
    more = {"cpu": "6", "memory": "4Gi"}
    stage = await with_definitions("1.0.0", resource_requirements=needs, node_count=4, resource_limits=more)
    await stage[ADA].create(given.session(name="s1", resource_limits={"cpu": "6", "memory": "8Gi"}))
    both = given.session(resource_limits={"cpu": "6.001", "memory": "8193Mi"})
    assert await paths(stage, ADA, both) == {"spec.resource_limits.cpu", "spec.resource_limits.memory"}


async def test_nobody_but_staff_claims_less_than_a_lab_needs() -> None:
    stage = await with_definitions(
        "1.0.0", resource_requirements=ResourceRequirements(cpu_cores=4, memory_gb=8), node_count=4
    )
    for less, faults in (
        ({"cpu": "1m", "memory": "1Mi"}, {"spec.resource_limits.cpu", "spec.resource_limits.memory"}),
        ({"cpu": "3.999", "memory": "8Gi"}, {"spec.resource_limits.cpu"}),
    ):
        assert await paths(stage, ADA, given.session(resource_limits=less)) == faults
        assert await paths(stage, ANNA, given.session(resource_limits=less)) == faults
    for number, caller in enumerate((OTTO, ROOT, service(POOL_CONTROLLER))):
        lowered = given.session(name=f"s{number}", owner="bob", resource_limits={"cpu": "1m", "memory": "1Mi"})
        assert (await stage[caller].create(lowered)).spec.resource_limits == lowered.spec.resource_limits
    await stage[ADA].create(given.session(name="same", resource_limits={"cpu": "4", "memory": "8Gi"}))


async def test_a_type_that_is_not_the_definitions_is_refused() -> None:
    stage = await with_definitions("1.0.0")
    assert await paths(stage, ADA, given.session(lab_instance_type=LabType.VM)) == {"spec.lab_instance_type"}


@pytest.mark.parametrize(
    ("booking", "path"),
    [
        (given.session(timeslot_start=NOW - timedelta(hours=2), timeslot_end=NOW), "spec.timeslot_end"),
        (given.session(timeslot_end=given.moment("17:01")), "spec.timeslot_end"),
        (given.asap(duration_minutes=481), "spec.duration_minutes"),
        (given.asap(give_up_at=NOW), "spec.give_up_at"),
        (given.reservation(timeslot_end=given.moment("17:01")), "spec.timeslot_end"),
        (given.reservation(timeslot_start=NOW - timedelta(hours=2), timeslot_end=NOW), "spec.timeslot_end"),
    ],
)
async def test_a_time_that_cannot_be_is_refused(booking: Resource, path: str) -> None:
    stage = await with_definitions("1.0.0")
    assert await paths(stage, ADA, booking) == {path}


async def test_the_longest_time_and_a_slot_that_has_begun_may_be_booked() -> None:
    stage = await with_definitions("1.0.0")
    start = NOW - timedelta(minutes=1)
    await stage[ADA].create(given.session(timeslot_start=start, timeslot_end=start + timedelta(minutes=480)))


async def test_a_session_knows_by_when_it_must_run_and_when_it_is_over() -> None:
    stage = await with_definitions("1.0.0")
    timed = await stage[ADA].create(given.session())
    assert (timed.status.expires_at, timed.status.ends_at) == (given.moment("11:00"), given.moment("11:00"))
    asap = await stage[ADA].create(given.asap(name="s2"))
    patience = NOW + timedelta(hours=4)
    assert (asap.spec.give_up_at, asap.status.expires_at, asap.status.ends_at) == (patience, patience, None)
    said = await stage[ADA].create(given.asap(name="s3", give_up_at=given.moment("09:00")))
    assert said.status.expires_at == given.moment("09:00")


async def test_a_reservation_knows_its_first_start_and_its_last_end() -> None:
    stage = await with_definitions("1.0.0")
    single = await stage[ADA].create(given.reservation())
    assert (single.status.starts_at, single.status.ends_at) == (given.moment("09:00"), given.moment("11:00"))
    weekly = Recurrence(every="week", until=date(2026, 11, 30), time_zone="Europe/Berlin", weekdays=(Weekday.MON,))
    series = await stage[ADA].create(given.reservation(name="r2", recurrence=weekly))
    assert series.status.ends_at == given.moment("11:00", day=28)


async def test_the_end_of_a_series_keeps_to_the_wall_clock() -> None:
    stage = await with_definitions("1.0.0")
    until = date(2027, 3, 29)  # the clocks went forward the day before
    daily = Recurrence(every="day", until=until, time_zone="Europe/Berlin")
    series = await stage[ADA].create(given.reservation(recurrence=daily, count=1))
    assert series.status.ends_at == given.moment("10:00", day=147)


async def test_a_quota_may_refuse_and_may_join_the_commit() -> None:
    seen: list[str] = []

    async def quota(caller: Caller, resources: Any) -> list[Op]:
        seen.extend(f"{caller.name} {one.kind}" for one in resources)
        if caller == BOB:
            raise Forbidden("no more")
        await asyncio.sleep(0)
        return []

    stage = Stage(quota=quota)
    await stage.put(active())
    await stage[ADA].create(given.session())
    with pytest.raises(Forbidden):
        await stage[BOB].create(given.session(name="s2"))
    assert seen == ["ada LabletSession", "bob LabletSession"]
    assert await stage[ROOT].get(Ref(LabletSession, "s2")) is None


async def test_settings_are_put_beneath_a_document() -> None:
    stage = Stage()
    defaults = {"LabWorker": {"spec": {"aws": {"ami_id": "ami-1", "public_ip": False}, "lab_track": "ccna"}}}
    core = ControlPlane(stage.store, clock=stage.clock, defaults=defaults)
    document = {"metadata": {"name": "w1"}, "spec": {"aws": {"public_ip": True}}}
    worker = core.read(document, LabWorker)
    assert isinstance(worker, LabWorker)
    assert (worker.spec.aws.ami_id, worker.spec.aws.public_ip, worker.spec.lab_track) == ("ami-1", True, "ccna")


async def test_a_document_must_be_of_the_kind_that_is_written_here() -> None:
    stage = Stage()
    with pytest.raises(Invalid) as raised:
        stage.core.read({"kind": "LabletSession"}, LabWorker)
    assert [fault.path for fault in raised.value.faults] == ["kind"]
    with pytest.raises(Invalid):
        stage.core.read([], LabWorker)
