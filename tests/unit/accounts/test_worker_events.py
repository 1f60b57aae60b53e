"""What a client of the event stream is told of workers, from their making to their end, and what each event says."""

import asyncio
from collections import defaultdict
from typing import Any

from harness import given
from harness.api_world import Desk, document, opened
from harness.event_clients import Told, told
from harness.plane_world import hand_clock
from lcm.control.objects.records import change_ops, find_record
from lcm.control.plane.protocol import Ref
from lcm.model.kinds.worker import LabWorker, WorkerPhase

SOON = 60.0
INTERNAL = "/api/internal/workers"
ACTOR = {"Lcm-Actor": "worker-controller"}
FOUND = {"discovered_instances": [{"instance_id": "i-7", "state": "running"}], "aws_region": "us-east-1"}


async def following(desk: Desk, begun: asyncio.Event, until: str) -> list[Told]:
    """Read what a person who runs the system is told, until something is; say when that has begun."""
    found: list[Told] = []
    query = {"event_types": "worker.*"}
    async with asyncio.timeout(SOON), desk.streamed("otto", "/api/events/stream", params=query) as answer:
        async for one in told(answer.aiter_lines()):
            begun.set()
            found.append(one)
            if one.type == until:
                return found
    raise AssertionError("the stream ended by itself")


async def live(desk: Desk) -> None:
    """Lead one worker through all that can be told of it."""
    made = await desk.done("root", "POST", "/api/workers", json=document("LabWorker", name="w1"))
    await desk.done("service", "POST", f"{INTERNAL}/bulk-import", json=FOUND, headers=ACTOR)
    seen = made["status"] | {"phase": "PROVISIONING_EC2", "ec2": {"client_token": "t-1"}}
    body = {"resource_version": made["metadata"]["resource_version"], "status": seen, "reason": "wanted"}
    await desk.done("service", "POST", f"{INTERNAL}/w1/status", json=body, headers=ACTOR)
    await measure(desk, "08:00")
    await serve(desk)
    await measure(desk, "08:25")
    verdict = await desk.done("service", "POST", f"{INTERNAL}/w1/detect-idle", headers=ACTOR)
    assert {one["name"] for one in verdict["signals"]} >= {"sessions", "cml_activity", "foreign_labs", "booked_soon"}
    await end(desk)


async def measure(desk: Desk, clock: str) -> None:
    at = f"2026-11-02T{clock}:00Z"
    desk.core.clock.moment = given.moment(clock)  # type: ignore[attr-defined]  # a clock that tests set
    cml = {"memory_utilization": 30.0, "active_labs_count": 0, "activity_at": at}
    report = {"collected_at": at, "ec2": {"cpu_utilization": 12.5}, "cml": cml}
    await desk.done("service", "POST", f"{INTERNAL}/w1/metrics", json=report, headers=ACTOR)


async def serve(desk: Desk) -> None:
    """Let the worker serve, by the way behind the plane."""
    record = await find_record(desk.store, Ref(LabWorker, "w1"))
    assert record is not None
    ready = {"phase": WorkerPhase.READY, "ready_at": given.moment("08:00")}
    await desk.store.commit(*change_ops(record, given.changed(record.resource, {"status": ready})))


async def end(desk: Desk) -> None:
    """Delete a worker that never was."""
    await desk.done("root", "POST", "/api/workers", json=document("LabWorker", name="w2"))
    gone = await desk.done("root", "DELETE", "/api/workers/w2")
    body = {"resource_version": gone["metadata"]["resource_version"], "status": gone["status"]}
    body["status"]["phase"] = "TERMINATED"
    await desk.done("service", "POST", f"{INTERNAL}/w2/status", json=body, headers=ACTOR)


async def test_a_client_of_the_stream_sees_every_event_of_a_worker_with_what_it_says() -> None:
    async with opened(clock=hand_clock()) as desk:
        begun = asyncio.Event()
        reading = asyncio.create_task(following(desk, begun, "worker.terminated"))
        await begun.wait()
        await live(desk)
        seen: dict[str, list[Any]] = defaultdict(list)
        for one in await reading:
            seen[one.type].append(one.data)
        uid = (await desk.done("root", "GET", "/api/workers/w1"))["metadata"]["uid"]
    created, imported = seen["worker.created"][0], seen["worker.imported"][0]
    assert (created["worker_id"], created["phase"], created["status"]) == (uid, "PENDING", "PENDING")
    assert imported["instance_id"] == "i-7"
    step = seen["worker.status.updated"][0]
    assert (step["worker_id"], step["old_phase"], step["new_phase"]) == (uid, "PENDING", "PROVISIONING_EC2")
    assert (step["old_status"], step["new_status"], step["reason"]) == ("PENDING", "PROVISIONING", "wanted")
    measured = seen["worker.metrics.updated"][0]
    assert measured == {
        "worker_id": uid,
        "worker_name": "w1",
        "collected_at": "2026-11-02T08:00:00Z",
        "cpu_utilization": 12.5,
        "memory_utilization": 30.0,
        "storage_utilization": None,
        "active_labs_count": 0,
    }
    (labs,) = seen["worker.labs.updated"]
    assert (labs["worker_id"], labs["active_labs_count"], labs["hosted_lab_ids"]) == (uid, 0, [])
    (warning,) = seen["worker.idle.warning"]
    assert (warning["worker_id"], warning["pause_at"]) == (uid, "2026-11-02T08:30:00Z")
    assert seen["worker.terminated"][0]["worker_name"] == "w2"
