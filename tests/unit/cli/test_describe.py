"""What `lcm describe` says of objects in the middle of their lives."""

import asyncio
import json
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import ApiServer, shell
from lcm.cli.documents.describe import describe_lines, summary_lines
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.capacity import Amount
from lcm.model.base.resource import Condition, Owner, Truth
from lcm.model.kinds.pool import PoolCapacitySummary, PoolPacking, PoolPhase, ScalingDecision, SmallRun
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Recurrence, ReservationPhase
from lcm.model.kinds.session import Progress, SchedulingDecision, SessionPhase, Waiting
from lcm.model.kinds.worker import IdleVerdict, WorkerPhase, compute_usage
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock

NOW = given.moment("09:10")


def told(resource: Resource, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))

    async def matters() -> Iterable[tuple[str, str]]:
        plane = ControlPlane(MemoryStore(), clock=SystemClock()).plane_for(Caller(name="root", role=Role.ADMIN))
        return await summary_lines(plane, resource, NOW)

    lines = list(describe_lines(resource, asyncio.run(matters()), NOW))
    assert max(map(len, lines)) <= columns
    return lines


def test_a_worker_tells_its_machine_its_licence_and_why_it_will_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = IdleVerdict(
        idle=True, reason="no activity for 31 minutes", judged_at=NOW, pause_at=NOW + timedelta(minutes=4)
    )
    seat = Condition(
        type="Licensed",
        status=Truth.FALSE,
        last_transition_at=NOW - timedelta(minutes=7),
        reason="NoSeat",
        message="full " * 30,
    )
    worker = given.worker(
        phase=WorkerPhase.READY,
        history=given.history("PENDING", "READY"),
        ec2={"instance_id": "i-1", "state": "running", "public_ip": "54.1.2.3"},
        capacity=given.machine(),
        conditions=(seat,),
        created_at=given.moment("09:00"),
        deletion_timestamp=given.moment("09:05"),
        owner=Owner(kind="LabWorkerPool", name="ccna", uid="u"),
        annotations={"note": "x"},
        last_error="nothing new",
    )
    worker = given.changed(worker, {"status": {"idle": idle, "cml": {"version": "2.9.1", "licensed": True}}})
    lines = told(worker, monkeypatch)
    for line in (
        "Phase:        READY for 9m: reason 1",
        "Machine:      i-1, m5zn.metal, us-east-1, running, 54.1.2.3",
        "CML:          2.9.1, licensed",
        "Idle:         yes: no activity for 31 minutes; pauses 2026-11-02 09:14Z (in 4m)",
        "Deleted:      2026-11-02 09:05Z (5m ago), not complete yet",
        "Created by:   LabWorkerPool ccna",
        "Annotations:  note=x",
        "Last error:   nothing new",
        "  Licensed  False   7m   NoSeat",
        "  deletion requested 5m ago",
    ):
        assert line in lines
    assert " ".join(" ".join(lines).split()).count("full") == 30


@pytest.mark.parametrize("resource", given.every(), ids=lambda one: one.kind)
def test_no_description_ends_in_the_raw_document(resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(resource, monkeypatch)
    assert not {"Spec:", "Status:"} & set(lines)
    assert not any(line.strip().endswith(":") for line in lines if line.startswith(" "))


def test_a_template_tells_its_fields_by_their_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = told(given.template(), monkeypatch)
    assert "  worker.aws.instance_type: m5zn.metal" in lines


def test_a_worker_tells_what_is_claimed_of_it_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Amount(cpu_millis=48_000, memory_mb=196_608, storage_mb=256_000, nodes=200, ports=6_000, labs=20)
    labs = [Amount(cpu_millis=4_000, memory_mb=2_304, storage_mb=16_384, nodes=4, ports=3, labs=1)] * 12
    usage, created = compute_usage(room, labs), given.moment("09:00")
    worker = given.worker(phase=WorkerPhase.ACTIVE, capacity=room, usage=usage, created_at=created)
    text = " ".join(" ".join(told(worker, monkeypatch)).split())
    assert "Capacity: 48 CPU, 192 GB memory, 250 GB disk, 200 nodes, 6000 ports, 20 labs" in text
    assert (
        "Claimed: 48 CPU (100%), 27 GB memory (14%), 192 GB disk (77%), 48 nodes (24%), 36 ports (1%), 12 labs" in text
    )
    assert "Available: 0 CPU, 165 GB memory, 58 GB disk, 152 nodes, 5964 ports, 8 labs" in text


def test_a_pool_tells_its_newest_decisions_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = tuple(
        ScalingDecision(
            at=given.moment(f"09:0{n}"), action="none", reason=f"why {n}", workers_before=1, workers_after=1
        )
        for n in range(5)
    )
    summary = PoolCapacitySummary(workers=3, ready_workers=2)
    packing = PoolPacking(
        at=given.moment("08:00"),
        until=given.moment("08:00", day=7),
        claims=120,
        moved=9,
        machine_hours=1214.25,
        least_machine_hours=1097,
    )
    small = (SmallRun(number=3, instance_type="m8i.4xlarge", until=given.moment("12:00")),)
    pool = given.pool(phase=PoolPhase.READY, decisions=decisions, summary=summary, packing=packing, small_runs=small)
    lines = told(pool, monkeypatch)
    assert any("planned worker 3 is m8i.4xlarge until" in line for line in lines)
    assert "takes 1,214.2 machine-hours, besides the workers that always run" in " ".join(" ".join(lines).split())
    assert "Workers:      2 ready of 3, from 1 to 10" in lines
    assert [line.strip() for line in lines if "why" in line][:3] == [
        "Decisions:    none 6m ago: why 4",
        "none 7m ago: why 3",
        "none 8m ago: why 2",
    ]


def test_a_waiting_session_tells_its_place_its_estimate_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(queue_position=2, estimated_start=NOW + timedelta(minutes=25), basis="a worker boots")
    decision = SchedulingDecision(action="wait", reason="a booting worker will fit it")
    lines = told(given.asap(waiting=waiting, last_decision=decision), monkeypatch)
    assert "Waiting:      number 2, starts 2026-11-02 09:35Z (in 25m): a worker boots" in lines
    assert "Decision:     wait: a booting worker will fit it" in lines
    assert "Slot:         as soon as possible, for 120 minutes" in lines


def test_a_session_tells_which_ports_drifted(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {
        "allocated_ports": {"R1_serial": 2001, "PC_vnc": 2002},
        "observed_ports": {"R1_serial": 2005, "PC_vnc": 2002},
    }
    lines = told(given.session(phase=SessionPhase.RUNNING, port_drift_detected=True, **ports), monkeypatch)
    assert "Port drift:   R1_serial is 2005 instead of 2001" in lines
    gone = given.session(port_drift_detected=True, allocated_ports={"R1_serial": 2001}, observed_ports={})
    assert "Port drift:   some are missing" in told(gone, monkeypatch)


def test_a_running_session_tells_first_where_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    running: dict[str, Any] = {
        "phase": SessionPhase.RUNNING,
        "access_url": "https://54.1.2.3/lab/1",
        "allocated_ports": {"R1_serial": 2001, "PC_vnc": 2002},
        "worker_name": "w1",
        "worker_ref": "default/w1",
        "ends_at": given.moment("11:00"),
        "progress": Progress(step="start", percent=100, message="converged", at=NOW),
        "outcome": SessionPhase.COMPLETED,
        "outcome_reason": "its slot has ended",
        "student_email": "ada@example.org",
        "owner": "ada",
    }
    lines = told(given.session(**running), monkeypatch)
    assert lines[3:10] == [
        "Phase:        RUNNING",
        "Outcome:      COMPLETED: its slot has ended",
        "Connect:      https://54.1.2.3/lab/1",
        "Ports:        2002 PC_vnc",
        "              2001 R1_serial",
        "Worker:       default/w1",
        "Progress:     100% start: converged",
    ]
    assert "Ends:         2026-11-02 11:00Z (in 110m)" in lines
    assert "Owner:        ada, student ada@example.org" in lines


def test_a_reservation_and_a_definition_tell_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Recurrence(every="week", until=given.moment("09:00", day=30).date(), time_zone="Europe/Berlin")
    held = given.reservation(phase=ReservationPhase.ACTIVE, recurrence=again, sessions_made=1, owner="ada")
    lines = told(held, monkeypatch, columns=100)
    assert "Sessions:     2 of basics:1.0.0: 1 made, 0 ended" in lines
    assert "Again:        every week until 2026-12-02 (Europe/Berlin)" in lines
    review: dict[str, Any] = {"needs_review": True, "review_reason": "p95 of memory is 40 % above what is declared"}
    lines = told(given.definition(**review), monkeypatch)
    assert "Review:       p95 of memory is 40 % above what is declared" in lines
    assert "State:        draft, version 1.0.0" in lines


def test_the_whole_document_is_there_for_those_who_ask(api: ApiServer, tmp_path: Path) -> None:
    async def work(plane: Plane) -> None:
        await plane.create(given.template())

    api.do(work)
    desk = shell(api, tmp_path)
    assert desk.out("describe", "template", "metal", "-o", "yaml") == desk.out("get", "template", "metal", "-o", "yaml")
    assert json.loads(desk.out("describe", "template", "metal", "-o", "json"))["spec"]["worker"]["aws"]


def test_every_output_is_in_one_zone_which_is_chosen_once(api: ApiServer, tmp_path: Path) -> None:
    waiting = Waiting(queue_position=1, estimated_start=NOW, basis="a worker boots until 2026-11-02 09:10Z")
    booked = given.session(
        uid="uid-s1", waiting=waiting, history=given.history("PENDING", "SCHEDULED"), created_at=given.moment("08:00")
    )

    async def work(_: Plane) -> None:
        await api.store.commit(*creation_ops(booked))

    api.do(work)
    commands = (("describe", "session", "s1"), ("story", "session", "s1"), ("get", "session", "s1", "-o", "wide"))
    berlin = shell(api, tmp_path, LCM_TZ="Europe/Berlin")
    for command in (*commands, ("logs", "s1")):
        local, utc = berlin.out(*command), berlin.out(*command, "--utc")
        assert (bool(re.search(r"\dZ", local)), " CET" in local) == (False, True)
        assert (bool(re.search(r"\dZ", utc)), " CET" in utc) == (True, False)
        assert berlin.out("--utc", *command) == utc
    assert "10:10 CET" in berlin.out(*commands[0])
    refused = shell(api, tmp_path, LCM_TZ="Mars").lcm("get", "sessions", "-o", "wide")
    assert (refused.exit_code, "LCM_TZ" in refused.stderr) == (2, True)
