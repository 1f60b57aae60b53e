"""What regions offer: templates that cannot be launched there, and workers that differ from their template."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import pytest

from harness import given
from harness.clouds import HERE, THERE
from harness.fleet_world import Fleet, Unreliable, virtually
from harness.scheduler_world import Room, serving
from harness.workers import beside, spec
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Ref
from lcm.controllers.worker.conditions import describe_difference
from lcm.controllers.worker.region_watch import SpotWatch, judge_template
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Metadata, find_condition
from lcm.model.kinds.pool import WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.worker import AwsSpec, Ec2Facts, LabWorker, LabWorkerSpec, LabWorkerStatus, WorkerPhase
from lcm.providers.protocols.compute import MachineType
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import run

METAL = MachineType(instance_type="m5zn.metal", vcpus=48, memory_mb=196_608, metal=True)
NESTS = MachineType(instance_type="m8i.4xlarge", vcpus=16, memory_mb=65_536, nested=True)
PLAIN = MachineType(instance_type="m5.xlarge", vcpus=4, memory_mb=16_384)
OFFERED = {one.instance_type: one for one in (METAL, NESTS, PLAIN)}


def machines(instance_type: str, *others: str, nested: bool = False, **fields: Any) -> LabWorkerSpec:
    aws = AwsSpec(instance_type=instance_type, instance_type_alternatives=others, nested_virtualization=nested)
    return LabWorkerSpec(aws=aws, **fields)


@pytest.mark.parametrize(
    ("wanted", "quota", "most", "found"),
    [
        (machines("m5zn.metal"), None, 10, ""),
        (machines("m5zn.metal"), 480, 10, ""),
        (
            machines("m5zn.metal"),
            479,
            10,
            "QuotaTooSmall: the quota of 479 vCPUs in us-east-1 is too small for 10",
        ),
        (machines("m5zn.metal"), 32, 1, "QuotaTooSmall: the quota of 32 vCPUs in us-east-1 is too small for a machine"),
        (machines("m5zn.metal", "z1d.metal"), None, 1, "TypeNotOffered: z1d.metal is not offered in us-east-1"),
        (machines("m8i.4xlarge", nested=True), None, 1, ""),
        (machines("m8i.4xlarge"), None, 1, "NoVirtualization: m8i.4xlarge is not metal and does not nest virtual"),
        (machines("m5.xlarge", nested=True), None, 1, "NoVirtualization: m5.xlarge"),
        (machines("m5.xlarge", host_kind="container"), None, 1, ""),
    ],
)
def test_what_is_wrong_with_a_template_is_said_with_the_remedy(
    wanted: LabWorkerSpec, quota: int | None, most: int, found: str
) -> None:
    answer = judge_template(wanted, OFFERED, quota, most)
    assert ": ".join(answer or ("", "")).startswith(found) if found else answer is None


async def launchable(fleet: Fleet) -> Condition | None:
    await asyncio.sleep(5)
    template = await fleet.otto.get(Ref(WorkerTemplate, "metal"))
    assert template is not None
    return find_condition(template.status.conditions, "Launchable")


@virtually
async def test_a_template_that_its_region_does_not_offer_says_so_until_it_is_changed() -> None:
    fleet = Fleet(quick=True)
    fleet.cloud.account.withdrawn_types.add((THERE, "m5zn.metal"))
    await fleet.otto.create(WorkerTemplate(metadata=Metadata(name="metal"), spec=WorkerTemplateSpec(worker=spec())))
    async with beside(fleet.controller().run()):
        assert await launchable(fleet) is None, "nothing is said of what is in order"
        await fleet.otto.patch(Ref(WorkerTemplate, "metal"), {"spec": {"worker": {"aws": {"region": THERE}}}})
        said = await launchable(fleet)
        assert said is not None
        assert (said.status, said.reason) == ("False", "TypeNotOffered")
        await fleet.otto.patch(Ref(WorkerTemplate, "metal"), {"spec": {"worker": {"aws": {"region": HERE}}}})
        said = await launchable(fleet)
        assert said is not None
        assert (said.status, said.reason) == ("True", "Offered")
        fleet.cloud.account.withdrawn_types.add((HERE, "c5.metal"))
        await fleet.otto.patch(Ref(WorkerTemplate, "metal"), {"spec": {"smaller_types": ["c5.metal"]}})
        said = await launchable(fleet)
        assert said is not None
        assert (said.status, said.reason) == ("False", "TypeNotOffered")


def test_a_worker_says_in_what_it_differs_from_its_template() -> None:
    own, like = machines("m5zn.metal"), Ec2Facts(instance_type="m5zn.metal")
    whole = LabWorkerStatus(phase=WorkerPhase.READY, ec2=like, capacity=given.machine(memory_mb=190_000))
    assert describe_difference(own, own, whole) is None, "the operating system keeps some of the memory"
    small = msgspec.structs.replace(whole, capacity=given.machine(cpu_millis=24_000))
    assert describe_difference(own, own, small) == (
        "Smaller",
        "its machine has less than its template says: 24000 of 48000 cpu_millis",
    )
    assert describe_difference(machines("m5.metal", "c5.metal"), own, whole) == (
        "OtherType",
        "its machine is a m5zn.metal, and its template says m5.metal or c5.metal",
    )
    spot = msgspec.structs.replace(own, aws=msgspec.structs.replace(own.aws, market="spot"))
    assert describe_difference(spot, own, whole) == (
        "OtherPlace",
        "it is on_demand in us-east-1, its template says spot in us-east-1",
    )


@pytest.mark.parametrize("phase", [WorkerPhase.READY, WorkerPhase.READY_UNLICENSED])
@virtually
async def test_a_spot_worker_without_sessions_drains_and_ends_at_the_notice(phase: WorkerPhase) -> None:
    fleet, own = Unreliable(), spec()
    token = own.cml.license_token if phase is WorkerPhase.READY else None
    cml, aws = msgspec.structs.replace(own.cml, license_token=token), msgspec.structs.replace(own.aws, market="spot")
    async with fleet.controlled():
        await fleet.create(cml=cml, aws=aws)
        worker = await fleet.reaches(phase)
        fleet.cloud.account.reclaim(HERE, worker.status.ec2.instance_id)
        ended = await fleet.reaches(WorkerPhase.TERMINATED)
        phases = [one.phase for one in ended.status.history]
        assert phases[phases.index(phase) + 1] == WorkerPhase.DRAINING
        assert not fleet.living()
        assert not fleet.licences.taken


class SlowHere(SimCloud):
    """A cloud whose region here takes an hour to answer."""

    async def list_reclaimed(self, region: str) -> Mapping[str, datetime]:
        if region == HERE:
            await asyncio.sleep(3600)
        return {"i-there": given.moment("09:02")} if region == THERE else {}


def test_lesson_29_a_region_that_does_not_answer_keeps_no_notice_of_another_from_being_heeded() -> None:
    async def life() -> None:
        room = Room()
        for name, region in (("here", HERE), ("there", THERE)):
            aws = AwsSpec(region=region, market="spot")
            facts = Ec2Facts(instance_id=f"i-{name}", state="running")
            await room.put(serving(name, phase=WorkerPhase.ACTIVE, aws=aws, ec2=facts))
        plane = room.by(WORKER_CONTROLLER)
        cache = Cache(plane, LabWorker)
        watch = SpotWatch(plane, cache, SlowHere(room.clock, Chance(7).stream("cloud")))
        async with beside(cache.run()), beside(watch.run()):
            await asyncio.sleep(30)
            found = await room.otto.get(Ref(LabWorker, "there"))
        assert found is not None
        assert found.status.ec2.reclaim_at == given.moment("09:02")

    run(life)
