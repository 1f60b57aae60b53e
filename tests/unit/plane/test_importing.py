"""Machines that discovery found become workers, once each; measurements of workers."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from crash.everywhere import crash_everywhere
from harness import given
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, service
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Forbidden, Gone, Invalid
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.telemetry.measurement import with_sources
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG
from lcm.sim.time.loop import VirtualClock

BY = service(WORKER_CONTROLLER)
W1 = Ref(LabWorker, "w1")


def instance(number: int, **more: Any) -> DiscoveredInstance:
    facts = {"instance_id": f"i-{number:04}", "ami_id": "ami-1", "instance_type": "m8i.large", "state": "running"}
    return DiscoveredInstance(**{**facts, **more})


def scan(*instances: DiscoveredInstance, region: str = "us-east-1") -> BulkImport:
    return BulkImport(discovered_instances=instances, aws_region=region)


async def worker(stage: Stage, name: str) -> LabWorker:
    found = await stage[ROOT].get(Ref(LabWorker, name))
    assert found is not None
    return found


async def test_a_stranger_becomes_a_worker_with_what_is_known_of_it() -> None:
    stage = Stage()
    found = instance(
        1,
        name="CML Lab #1",
        availability_zone="us-east-1a",
        private_ip="10.0.0.1",
        public_ip="198.51.100.1",
        launched_at=given.moment("07:00"),
        tags={"Name": "other", "aws:autoscaling": "x", "team": "ccna"},
    )
    imported = await stage[BY].import_workers(scan(found))
    assert (imported.imported, imported.known) == (("cml-lab-1",), ())
    made = await worker(stage, "cml-lab-1")
    assert made.metadata.labels == {"lcm/source": "worker-controller-discovery"}
    assert (made.spec.aws.region, made.spec.aws.ami_id, made.spec.aws.instance_type) == (
        "us-east-1",
        "ami-1",
        "m8i.large",
    )
    assert made.spec.aws.tags == {"Name": "other", "team": "ccna"}
    assert (made.status.phase, made.status.cml.licensed) == (WorkerPhase.PENDING, None)
    facts = made.status.ec2
    assert (facts.instance_id, facts.instance_type, facts.state) == ("i-0001", "m8i.large", "running")
    assert (facts.private_ip, facts.public_ip) == ("10.0.0.1", "198.51.100.1")
    assert facts.launched_at == given.moment("07:00")
    assert await stage.types() == ["worker.imported"]


async def test_a_stranger_is_not_paused_or_rebooted_before_somebody_says_so() -> None:
    stage = Stage()
    ours = instance(2, name="ours", tags={OWNER_TAG: "lcm", WORKER_TAG: "uid-lost"})
    await stage[BY].import_workers(scan(instance(1, name="theirs"), ours))
    theirs, orphan = await worker(stage, "theirs"), await worker(stage, "ours")
    assert (theirs.spec.idle.enabled, theirs.spec.auto_remediate) == (False, False)
    assert (orphan.spec.idle.enabled, orphan.spec.auto_remediate) == (True, True)
    assert (theirs.spec.accepts_sessions, orphan.spec.accepts_sessions) == (False, False), "whatever its track is"


async def test_an_import_may_be_repeated() -> None:
    stage = Stage()
    await stage[BY].import_workers(scan(instance(1), instance(2)))
    revision = await stage.revision()
    again = await stage[BY].import_workers(scan(instance(1), instance(2)))
    assert (again.imported, again.known) == ((), ("i-0001", "i-0002"))
    assert await stage.revision() == revision
    more = await stage[BY].import_workers(scan(instance(2), instance(3)))
    assert (more.imported, more.known) == (("imported-i-0003",), ("i-0002",))


async def test_an_instance_of_our_own_is_known() -> None:
    stage = Stage()
    await stage.put(given.worker(phase=WorkerPhase.READY, ec2={"instance_id": "i-0001"}))
    assert (await stage[BY].import_workers(scan(instance(1)))).known == ("i-0001",)
    elsewhere = await stage[BY].import_workers(scan(instance(1), region="eu-west-1"))
    assert elsewhere.imported == ("imported-i-0001",)


async def test_what_a_machine_does_is_what_is_wanted_of_it() -> None:
    stage = Stage()
    states = ["pending", "running", "stopping", "stopped", "shutting-down", "terminated"]
    found = [instance(number, state=state) for number, state in enumerate(states)]
    imported = await stage[BY].import_workers(scan(*found))
    wanted = [(await worker(stage, name)).spec.wanted_state for name in imported.imported]
    assert wanted == ["running", "running", "stopped", "stopped"]


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"name": "w1"}, "imported-i-0001"),
        ({"name": "  --  "}, "imported-i-0001"),
        ({"name": "0740f22a-d2e7-49f9-96b2-53671c8275fb"}, "imported-i-0001"),
        ({"tags": {"Name": "Über Lab"}}, "ber-lab"),
        ({"name": 100 * "ab"}, 25 * "ab"),
        ({"instance_id": "I-ABC_"}, "imported-i-abc"),
    ],
)
async def test_a_name_is_cleaned_and_never_taken_twice(facts: dict[str, Any], name: str) -> None:
    stage = Stage()
    await stage.put(given.worker())
    assert (await stage[BY].import_workers(scan(instance(1, **facts)))).imported == (name,)


async def test_two_machines_of_one_name_become_two_workers() -> None:
    imported = await Stage()[BY].import_workers(scan(instance(1, name="lab"), instance(2, name="LAB")))
    assert imported.imported == ("lab", "imported-i-0002")


async def test_a_machine_of_no_known_image_is_imported_all_the_same() -> None:
    stage = Stage()
    await stage[BY].import_workers(scan(instance(1, ami_id=""), instance(2, ami_id="", ami_name="CML-2.9")))
    assert (await worker(stage, "imported-i-0001")).spec.aws.ami_id == "unknown"
    assert (await worker(stage, "imported-i-0002")).spec.aws.ami_name_pattern == "CML-2.9"


async def test_a_scan_that_cannot_be_is_refused_whole() -> None:
    stage = Stage()
    for found in (scan(instance(1), instance(1)), scan(instance(1), instance(2, instance_id="?"))):
        with pytest.raises(Invalid) as raised:
            await stage[BY].import_workers(found)
        assert [fault.path for fault in raised.value.faults] == ["discovered_instances[1].instance_id"]
    assert await stage.keys() == []


async def test_hundreds_are_imported_in_a_few_commits() -> None:
    stage = Stage()
    found = scan(*(instance(number) for number in range(300)))
    assert len((await stage[BY].import_workers(found)).imported) == 300
    assert await stage.revision() < 10


async def test_scans_at_the_same_time_make_one_record_each() -> None:
    stage = Stage()
    scans = [scan(*(instance(number, name=f"scan-{one}-{number}") for number in range(100))) for one in range(4)]
    answers = await asyncio.gather(*(stage[BY].import_workers(found) for found in scans))
    workers = (await stage[ROOT].list(LabWorker)).items
    assert len({one.status.ec2.instance_id for one in workers}) == len(workers) == 100
    assert sorted(name for one in answers for name in one.imported) == sorted(one.metadata.name for one in workers)


async def empty() -> Stage:
    return Stage(clock=VirtualClock())


async def import_many(stage: Stage) -> None:
    await stage[BY].import_workers(scan(*(instance(number) for number in range(80))))


async def one_each(stage: Stage) -> None:
    assert len((await stage[ROOT].list(LabWorker)).items) == 80
    assert await stage.types() == ["worker.imported"] * 80


def test_importing_survives_a_crash_anywhere(tell: Callable[[str], None]) -> None:
    assert crash_everywhere("import", empty, import_many, one_each, report=tell) > 5


async def test_the_newest_measurement_is_kept() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    assert await stage[OTTO].telemetry(W1) is None
    newest = with_sources(given.telemetry(cpu_utilization=50.0, cloudwatch_at=NOW))
    assert await stage[BY].report(W1, newest) == newest
    revision = await stage.revision()
    for old in (newest, given.telemetry(cpu_utilization=1.0), given.telemetry(collected_at=given.moment("07:00"))):
        assert await stage[BY].report(W1, old) == newest
    assert await stage.revision() == revision
    assert await stage[OTTO].telemetry(W1) == newest
    later = given.moment("08:01")
    newer = with_sources(given.telemetry(collected_at=later, cpu_utilization=51.0, cloudwatch_at=later))
    assert await stage[BY].report(W1, newer) == newer
    assert await stage[ANNA].telemetry(W1) == newer
    assert await stage.types() == ["worker.created", "worker.metrics.updated", "worker.metrics.updated"]


async def test_a_fast_clock_does_not_keep_out_what_follows() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    with pytest.raises(Invalid, match="collected_at: in the future: it is"):
        await stage[BY].report(W1, given.telemetry(collected_at=NOW + timedelta(minutes=6)))
    assert await stage[ROOT].telemetry(W1) is None
    hasty = given.telemetry(collected_at=NOW + timedelta(minutes=4))
    assert await stage[BY].report(W1, hasty) == hasty


async def test_a_measurement_does_not_touch_the_worker() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.worker())
    await stage[BY].report(W1, given.telemetry())
    assert await stage[ROOT].get(W1) == made


async def test_measurements_and_changes_at_the_same_time_all_get_through() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    moments = [given.moment(f"07:{minute:02}") for minute in range(8)]
    changes = (stage[ROOT].patch(W1, {"metadata": {"labels": {f"l{number}": "x"}}}) for number in range(8))
    reports = (stage[BY].report(W1, given.telemetry(collected_at=at)) for at in moments)
    await asyncio.gather(*changes, *reports)
    assert len((await worker(stage, "w1")).metadata.labels) == 8
    assert await stage[ROOT].telemetry(W1) == given.telemetry(collected_at=moments[-1])


async def test_who_may_report_and_read_measurements() -> None:
    stage = Stage()
    await stage[ROOT].create(given.worker())
    for caller in (ADA, ANNA, OTTO, ROOT):
        with pytest.raises(Forbidden):
            await stage[caller].report(W1, given.telemetry())
    with pytest.raises(Forbidden):
        await stage[ADA].telemetry(W1)
    with pytest.raises(Gone):
        await stage[BY].report(Ref(LabWorker, "w2"), given.telemetry())
    with pytest.raises(Invalid):
        await stage[BY].report(W1, given.telemetry(cpu_utilization=500.0))
    assert await stage[ROOT].telemetry(Ref(LabWorker, "w2")) is None
