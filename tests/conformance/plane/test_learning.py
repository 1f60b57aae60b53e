"""The plane's contract: what was observed of labs, asked for, kept and learned, in process and over HTTP alike."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import HOUR, counter_lab, pool, running, wanted, warm
from harness.plane_world import NOW, World, everywhere, on, on_any_wire
from lcm.control.objects.records import creation_ops
from lcm.control.plane.protocol import ObserveResources, Plane, Ref
from lcm.model.base.errors import Deposed, Forbidden, Gone, IllegalStep, Invalid
from lcm.model.base.event import Event, decode_event
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.kinds.definition import LabletDefinition, PortUse, ResourceRequirements, Spread
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.settings import LearningSettings
from lcm.model.telemetry.learning import build_observation
from lcm.model.telemetry.observation import NodeObservation, ResourceObservation
from lcm.placement.claims import Terms
from lcm.store.base import Fence

promised = on("memory", "memory-http", terms=Terms())
S1 = Ref(LabletSession, "s1")
BASICS = Ref(LabletDefinition, "basics:1.0.0")
TEMPLATE = {
    "PC_serial": PortUse(kind="serial", node="PC"),
    "PC_pat_tcp_22": PortUse(kind="pat", node="PC", protocol="tcp", inside=22),
    "WORD": PortUse(kind="placeholder"),
}
PORTS = {"PC_serial": 5041, "PC_pat_tcp_22": 5042, "WORD": 5043}
OBSERVED = "lablet.session.resources.observed"
END = b"end"
DRIFTED = "lablet.session.port_drift.detected"


def runs(name: str = "s1", **more: Any) -> LabletSession:
    """Return Ada's session that runs."""
    plain = {"uid": f"uid-{name}", "owner": "ada", "phase": SessionPhase.RUNNING, "ends_at": NOW + HOUR}
    return given.asap(name=name, **plain | {"allocated_ports": PORTS, "worker_id": "uid-w1"} | more)


def observed(*tags: str, after_seconds: float = 0, cpus: float = 4, **more: object) -> ResourceObservation:
    """Return what is seen of a lab of one node, with these tags or with those it was given."""
    node = NodeObservation(
        node_id="n0",
        label="PC",
        node_definition="iosv",
        state="BOOTED",
        cpus=cpus,
        cpu_limit=100,
        ram_mb=8_192,
        tags=tags or ("serial:5041", "pat:tcp:5042:22"),
    )
    at = NOW + timedelta(seconds=after_seconds)
    found = build_observation([given.changed(node, more)], TEMPLATE, at=at, observer="lablet-controller")
    assert isinstance(found, ResourceObservation)
    return found


async def there(world: World, *resources: Resource) -> None:
    for one in (given_lab(), *resources):
        await world.store.commit(*creation_ops(one))


def given_lab() -> LabletDefinition:
    return counter_lab(port_template=TEMPLATE)


async def told(world: World, after: int = 0) -> Sequence[Event]:
    """Read every event of a session so far."""
    end, found = await world.revision(), list[Event]()
    async with world.store.events(after=after) as reader:
        await world.store.commit(events=[END])
        async for happened in reader:
            if happened.revision > end:
                break
            found += [decode_event(raw) for raw in happened.events if raw != END]
    return [event for event in found if event.session_id]


def data(event: Event) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(event.data)
    return made


async def read(plane: Plane, ref: Ref[LabletSession] = S1) -> LabletSession:
    found = await plane.get(ref)
    assert found is not None
    return found


async def learned(plane: Plane) -> LabletDefinition:
    found = await plane.get(BASICS)
    assert found is not None
    return found


@everywhere
async def test_an_observation_is_kept_and_teaches_its_definition_in_one_commit(world: World) -> None:
    await there(world, runs())
    before, seen = await world.revision(), observed()
    made = await world.service(LABLET_CONTROLLER).record_observation(S1, seen)
    assert await world.revision() == before + 1 == made.metadata.resource_version
    assert made == await read(world.ada)
    status = made.status
    assert (status.observed_resources, status.observed_at, status.observation_count) == (seen, NOW, 1)
    assert (status.observed_ports, status.port_drift_detected) == ({"PC_serial": 5041, "PC_pat_tcp_22": 5042}, False)
    taught = (await learned(world.root)).status
    assert (taught.observed_sessions, taught.needs_review) == (1, False)
    assert taught.cpu_cores == Spread(avg=4, p50=4, p95=4, max=4, latest=4, count=1)
    (event,) = await told(world, before)
    assert (event.type, event.owner, event.worker_id, event.definition_id) == (
        OBSERVED,
        "ada",
        "uid-w1",
        "basics:1.0.0",
    )
    assert {name: data(event)[name] for name in ("session_id", "instance_id", "total_cpu_cores", "observer")} == {
        "session_id": "uid-s1",
        "instance_id": "uid-s1",
        "total_cpu_cores": 4.0,
        "observer": "lablet-controller",
    }


@on_any_wire
async def test_what_is_reported_again_changes_nothing(world: World) -> None:
    await there(world, runs())
    controller = world.service(LABLET_CONTROLLER)
    made = await controller.record_observation(S1, observed(after_seconds=2))
    revision = await world.revision()
    assert await controller.record_observation(S1, observed(after_seconds=2)) == made
    assert await controller.record_observation(S1, observed(after_seconds=1, cpus=9)) == made
    assert await world.revision() == revision
    again = await controller.record_observation(S1, observed(after_seconds=3, cpus=6))
    assert again.status.observation_count == 2
    taught = (await learned(world.root)).status
    assert (taught.observed_sessions, taught.cpu_cores) == (
        1,
        Spread(avg=6, p50=6, p95=6, max=6, latest=6, count=1),
    ), "a session counts once"


@on_any_wire
async def test_a_request_is_answered_once_even_if_two_leaders_answer(world: World) -> None:
    await there(world, runs())
    asked = await world.ada.act(S1, ObserveResources())
    request = asked.status.observation_request
    assert request is not None
    assert (request.requested_by, request.requested_at) == ("ada", NOW)
    assert await world.ada.act(S1, ObserveResources()) == asked, "who asks again asks once"
    before, controller = await world.revision(), world.service(LABLET_CONTROLLER)
    answers = await asyncio.gather(
        *(controller.record_observation(S1, observed(after_seconds=n), request_id=request.id) for n in (1, 2))
    )
    assert [one.status.observation_count for one in answers] == [1, 1]
    assert answers[0].status.observation_request is None
    assert [event.type for event in await told(world, before)] == [OBSERVED]
    again = await world.ada.act(S1, ObserveResources())
    assert again.status.observation_request not in (None, request)
    late = await controller.record_observation(S1, observed(after_seconds=3), request_id=request.id)
    assert late == again, "an answer to another request is none to this one"


@on_any_wire
async def test_a_request_that_nobody_answers_is_given_up_and_says_so(world: World) -> None:
    await there(world, runs())
    await world.ada.act(S1, ObserveResources())
    await world.pass_time(31)
    made = await world.service(LABLET_CONTROLLER).record_observation(S1, observed(after_seconds=31))
    assert made.status.observation_request is None
    assert made.status.observation_error.startswith("not observed: ada asked at")
    assert made.status.observation_count == 1
    await world.ada.act(S1, ObserveResources())
    await world.pass_time(31)
    renewed = await world.ada.act(S1, ObserveResources())
    assert renewed.status.observation_error == ""
    assert renewed.status.observation_request is not None


@on_any_wire
async def test_a_port_that_drifted_is_told_once_and_by_name(world: World) -> None:
    await there(world, runs())
    controller, before = world.service(LABLET_CONTROLLER), await world.revision()
    edited = ("serial:6000", "pat:tcp:5042:22")
    made = await controller.record_observation(S1, observed(*edited, after_seconds=1))
    assert made.status.port_drift_detected
    await controller.record_observation(S1, observed(*edited, after_seconds=2))
    events = [event for event in await told(world, before) if event.type == DRIFTED]
    assert [data(event)["drift"] for event in events] == [{"PC_serial": {"allocated": 5041, "observed": 6000}}]
    (alert,) = await world.root.alerts()
    assert (alert.alert, alert.name) == ("PortDrift", "s1")
    assert "PC_serial is 6000 instead of 5041" in alert.message
    mended = await controller.record_observation(S1, observed(after_seconds=3))
    assert not mended.status.port_drift_detected
    assert not await world.root.alerts()
    renamed = await controller.record_observation(S1, observed(after_seconds=4, label="LAPTOP"))
    assert renamed.status.port_drift_detected
    last = (await told(world, before))[-1]
    assert (last.type, data(last)["drift"]["LAPTOP_serial"]) == (DRIFTED, {"allocated": None, "observed": 5041})
    review = (await learned(world.root)).status
    assert review.needs_review
    assert "LAPTOP_serial" in review.review_reason


@promised
async def test_the_next_session_on_a_worker_avoids_a_port_that_drifted_there(world: World) -> None:
    worker = warm()
    preferred = {"PC_serial": 5041, "PC_pat_tcp_22": 5042, "WORD": 5043}
    live = given.changed(running("s1", worker), {"spec": {"owner": "ada"}, "status": {"allocated_ports": preferred}})
    await there(world, worker, live, wanted())
    scheduler, controller = world.service(SCHEDULER), world.service(LABLET_CONTROLLER)
    first = await scheduler.schedule(await read(scheduler, Ref(LabletSession, "wanted")), onto())
    would = (first.status.allocated_ports or {})["PC_serial"]
    await there_not(world, first)
    await controller.record_observation(S1, observed(f"serial:{would}", "pat:tcp:5042:22"))
    await world.store.commit(*creation_ops(wanted()))
    second = await scheduler.schedule(await read(scheduler, Ref(LabletSession, "wanted")), onto())
    assert would not in (second.status.allocated_ports or {}).values()


def onto() -> Assignment:
    return Assignment(start=NOW, end=NOW + 3 * HOUR, worker_id="uid-w1", reason="it fits")


async def there_not(world: World, session: LabletSession) -> None:
    """Let a session end and be forgotten."""
    ref = Ref(LabletSession, session.metadata.name)
    await world.root.delete(ref)
    assert await world.root.get(ref) is None


@on_any_wire
async def test_a_lab_that_still_boots_teaches_nothing(world: World) -> None:
    await there(world, runs())
    made = await world.service(LABLET_CONTROLLER).record_observation(S1, observed(state="STARTED"))
    assert made.status.observation_count == 1
    assert (await learned(world.root)).status.observed_sessions == 0
    assert (await world.root.observations(BASICS)).samples == ()


@on_any_wire
async def test_aggregates_are_those_counted_by_hand_and_a_person_is_asked(world: World) -> None:
    cores = [4, 9, 5, 6]
    await there(world, *(runs(f"s{number}") for number in range(len(cores))))
    controller = world.service(LABLET_CONTROLLER)
    for number, cpus in enumerate(cores):
        ref = Ref(LabletSession, f"s{number}")
        await controller.record_observation(ref, observed(after_seconds=number, cpus=cpus))
    report = await world.root.observations(BASICS)
    assert (report.observed_sessions, report.needs_review) == (4, True)
    assert report.measures[0].observed == Spread(avg=6, p50=5, p95=9, max=9, latest=6, count=4)
    assert (report.measures[0].declared, report.measures[0].difference) == (4, 1.25)
    assert report.review_reason == "cpu_cores: 95 % of 4 sessions had at most 9, declared are 4 (+125%)"
    assert (report.declared, report.proposed) == (
        ResourceRequirements(cpu_cores=4, memory_gb=8),
        ResourceRequirements(cpu_cores=9, memory_gb=8),
    )
    assert [(one.session_name, one.cpu_cores) for one in report.samples] == [("s0", 4), ("s1", 9), ("s2", 5), ("s3", 6)]
    settled = await world.root.patch(BASICS, {"spec": {"resource_requirements": {"cpu_cores": 9}}})
    assert (settled.status.needs_review, settled.status.cpu_cores) == (False, report.measures[0].observed)


@on_any_wire
async def test_when_a_person_is_asked_is_a_setting(world: World) -> None:
    await there(world, runs(), given.settings(learning=LearningSettings(review_difference=0.1, review_sessions=1)))
    await world.service(LABLET_CONTROLLER).record_observation(S1, observed(cpus=5))
    assert (await learned(world.root)).status.needs_review


@promised
async def test_what_a_person_applies_changes_the_claim_of_the_next_booking_only(world: World) -> None:
    await there(world, given.template(), pool(max_workers=4))
    nine, eleven = given.moment("09:00"), given.moment("11:00")
    slot = {"uid": "", "timeslot_start": nine, "timeslot_end": eleven}
    first = await world.ada.create(given.session(name="first", **slot))
    assert first.status.claim is not None
    assert first.status.claim.need.cpu_millis == 4_000
    wish = {"spec": {"resource_requirements": {"cpu_cores": 6, "memory_gb": 10}}}
    await world.root.patch(BASICS, wish)
    second = await world.ada.create(given.session(name="second", **slot))
    assert second.status.claim is not None
    assert (second.status.claim.need.cpu_millis, second.status.claim.need.memory_mb) == (6_000, 10_240)
    assert (await read(world.ada, Ref(LabletSession, "first"))).status.claim == first.status.claim


@on_any_wire
async def test_sessions_that_end_together_all_teach(world: World) -> None:
    names = [f"s{number}" for number in range(40)]
    await there(world, *map(runs, names))
    controller = world.service(LABLET_CONTROLLER)
    await asyncio.gather(*(controller.record_observation(Ref(LabletSession, name), observed()) for name in names))
    report = await world.root.observations(BASICS)
    assert report.observed_sessions == 40
    assert {one.session_name for one in report.samples} == set(names)


@on_any_wire
async def test_only_the_lablet_controller_says_what_was_observed(world: World) -> None:
    await there(world, runs())
    for plane in (world.ada, world.root, world.service(SCHEDULER)):
        with pytest.raises(Forbidden):
            await plane.record_observation(S1, observed())
    controller = world.service(LABLET_CONTROLLER)
    with pytest.raises(Deposed):
        await controller.under(Fence("lablet-controller", 7)).record_observation(S1, observed())
    with pytest.raises(Gone):
        await controller.record_observation(Ref(LabletSession, "nobody"), observed())
    with pytest.raises(Invalid) as caught:
        await controller.record_observation(S1, observed(after_seconds=600))
    assert [fault.path for fault in caught.value.faults] == ["observation.observed_at"]
    assert (await read(world.ada)).status.observation_count == 0


@on_any_wire
async def test_people_have_their_own_sessions_observed_while_they_run(world: World) -> None:
    await there(world, runs(), runs("waits", phase=SessionPhase.PENDING))
    with pytest.raises(Gone):
        await world.bob.act(S1, ObserveResources())
    with pytest.raises(IllegalStep):
        await world.ada.act(Ref(LabletSession, "waits"), ObserveResources())
    with pytest.raises(IllegalStep):
        await world.service(LABLET_CONTROLLER).record_observation(Ref(LabletSession, "waits"), observed())
    assert (await world.person("otto").act(S1, ObserveResources())).status.observation_request is not None


@on_any_wire
async def test_everybody_reads_what_was_learned_but_not_from_whom(world: World) -> None:
    await there(world, runs())
    await world.service(LABLET_CONTROLLER).record_observation(S1, observed())
    for name in ("ada", "bob", "anna"):
        (one,) = (await world.person(name).observations(BASICS)).samples
        assert (one.session_id, one.session_name, one.cpu_cores) == ("", "", 4)
    (one,) = (await world.person("otto").observations(BASICS)).samples
    assert (one.session_id, one.session_name) == ("uid-s1", "s1")
    with pytest.raises(Gone):
        await world.ada.observations(Ref(LabletDefinition, "nothing:1"))


@everywhere
async def test_what_was_learned_goes_with_the_definition(world: World) -> None:
    await there(world, runs())
    await world.service(LABLET_CONTROLLER).record_observation(S1, observed())
    session = await read(world.root)
    ended = msgspec.structs.replace(session.status, phase=SessionPhase.COLLECTING, outcome=SessionPhase.TERMINATED)
    controller = world.service(LABLET_CONTROLLER)
    for phase in (SessionPhase.COLLECTING, SessionPhase.STOPPING, SessionPhase.TERMINATED):
        session = await controller.step(session, msgspec.structs.replace(ended, phase=phase))
    await world.root.delete(S1)
    await world.root.delete(BASICS)
    keys = [entry.key for entry in (await world.store.scan("observations/", limit=10)).entries]
    assert keys == []
