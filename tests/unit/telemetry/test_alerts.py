"""Alerts that controllers raise and clear: once each, about anything, gone with what they are about."""

import asyncio
from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, Standing, service
from lcm.control.delivery.formats import SinkSecrets, build_request, summarize
from lcm.control.plane.protocol import Ref, ref_of
from lcm.control.telemetry.alerts import sweep_alerts
from lcm.model.access.identity import Caller
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, Gone, Invalid
from lcm.model.base.machine import LABLET_CONTROLLER, WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import ReservationPhase
from lcm.model.kinds.session import RiskReason, SessionCondition, SessionPhase
from lcm.model.kinds.sink import Format, SinkSpec
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.store.base import Delete

BY = service(WORKER_CONTROLLER)
W1 = Ref(LabWorker, "w1")
ILL = AlertFinding(
    alert="CmlIll", severity=Severity.CRITICAL, reason="NoAnswer", message="CML has not answered for 10 min"
)


async def with_worker() -> Stage:
    stage = Stage()
    await stage.put(given.worker())
    return stage


@pytest.mark.parametrize("resource", given.every(), ids=lambda one: str(one.kind))
async def test_anything_may_be_complained_of(resource: Resource) -> None:
    stage = Stage()
    await stage.put(resource)
    await stage[BY].raise_alert(ref_of(resource), ILL)
    (alert,) = await stage[OTTO].alerts()
    assert (alert.kind, alert.name, alert.uid, alert.since) == (
        resource.kind,
        resource.metadata.name,
        resource.metadata.uid,
        NOW,
    )
    await stage[BY].clear_alert(ref_of(resource), "CmlIll")
    assert await stage[OTTO].alerts() == []


async def test_an_alert_is_raised_once_and_cleared_once_however_often_it_is_asked_for() -> None:
    stage = await with_worker()
    for _ in range(3):
        await stage[BY].raise_alert(W1, ILL)
    await asyncio.gather(*(stage[BY].clear_alert(W1, "CmlIll") for _ in range(3)))
    await stage[BY].clear_alert(W1, "Other")
    assert await stage.types() == ["alert.raised", "alert.cleared"]


async def test_another_wording_is_not_told_but_what_becomes_critical_is() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    await stage.put(given.worker())
    for minute, change in enumerate(
        ({}, {"message": "for 11 min"}, {"reason": "Refused"}, {"severity": "critical"}, {})
    ):
        clock.moment = given.moment(f"08:0{minute}")
        severity = Severity(change.pop("severity", "critical" if minute > 3 else "warning"))
        await stage[BY].raise_alert(W1, msgspec.structs.replace(ILL, severity=severity, **change))
    (alert,) = await stage[ROOT].alerts()
    assert (alert.severity, alert.since) == (Severity.CRITICAL, given.moment("08:00"))
    assert [msgspec.json.decode(one.data)["severity"] for one in await stage.told()] == ["warning", "critical"]


async def test_of_many_who_complain_at_once_one_is_told_of() -> None:
    stage = await with_worker()
    other = msgspec.structs.replace(ILL, alert="Other")
    await asyncio.gather(*(stage[BY].raise_alert(W1, one) for one in (ILL, other) for _ in range(4)))
    assert await stage.types() == ["alert.raised", "alert.raised"]
    assert {one.alert for one in await stage[ROOT].alerts()} == {"CmlIll", "Other"}


async def test_what_has_lasted_longest_comes_first() -> None:
    clock = Standing()
    stage = Stage(clock=clock)
    for number, name in enumerate(("w3", "w1", "w2")):
        clock.moment = given.moment(f"08:0{number}")
        await stage.put(given.worker(name=name, uid=name))
        await stage[BY].raise_alert(Ref(LabWorker, name), ILL)
    assert [one.name for one in await stage[ROOT].alerts()] == ["w3", "w1", "w2"]


async def test_an_alert_goes_with_what_it_is_about_and_that_is_told() -> None:
    stage = Stage()
    worker = await stage.put(given.worker(phase=WorkerPhase.TERMINATING_EC2, deletion_timestamp=NOW, finalizers=("x",)))
    await stage[BY].raise_alert(W1, ILL)
    facts = {"instance_id": "i-1", "gone_at": NOW}
    await stage[BY].step(worker, given.changed(worker.status, {"phase": WorkerPhase.TERMINATED, "ec2": facts}))
    assert await stage[ROOT].alerts() == []
    told = await stage.types()
    assert (told.count("alert.cleared"), "worker.deleted" in told) == (1, True)


async def test_what_is_not_there_cannot_be_complained_of() -> None:
    stage = Stage()
    with pytest.raises(Gone):
        await stage[BY].raise_alert(W1, ILL)
    with pytest.raises(Gone):
        await stage[BY].clear_alert(W1, "CmlIll")


@pytest.mark.parametrize("wrong", [{"alert": "not one word"}, {"alert": ""}, {"reason": 129 * "x"}])
async def test_a_complaint_has_a_form(wrong: dict[str, Any]) -> None:
    stage = await with_worker()
    with pytest.raises(Invalid):
        await stage[BY].raise_alert(W1, msgspec.structs.replace(ILL, **wrong))
    assert await stage[ROOT].alerts() == []


@pytest.mark.parametrize("caller", [ADA, ANNA, OTTO, ROOT])
async def test_only_our_own_processes_complain_and_only_staff_reads_it(caller: Caller) -> None:
    stage = await with_worker()
    for call in (stage[caller].raise_alert(W1, ILL), stage[caller].clear_alert(W1, "CmlIll")):
        with pytest.raises(Forbidden):
            await call
    if caller in (OTTO, ROOT):
        assert await stage[caller].alerts() == []
    else:
        with pytest.raises(Forbidden):
            await stage[caller].alerts()


async def test_an_alert_about_a_session_is_not_told_to_its_owner() -> None:
    stage = Stage()
    await stage.put(given.session(owner="ada"))
    await stage[service(LABLET_CONTROLLER)].raise_alert(ref_of(given.session()), ILL)
    (event,) = await stage.told()
    assert (event.owner, event.public, event.worker_id, event.kind) == (None, False, None, "LabletSession")


async def test_pagerduty_opens_and_closes_one_incident_and_slack_says_what_it_is() -> None:
    stage = await with_worker()
    await stage[BY].raise_alert(W1, ILL)
    await stage[BY].clear_alert(W1, "CmlIll")
    pager = SinkSpec(url="https://pager.example.org", format=Format.PAGERDUTY, credential="env:SECRET_PAGER")
    keys = SinkSecrets(credential=Secret("routing"))
    told = await stage.told()
    bodies = [build_request(pager, "e.1.0", one, keys, source="lcm", now=NOW).body for one in told]
    opened, closed = [msgspec.json.decode(body) for body in bodies]
    assert (opened["event_action"], closed["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] == "workers/default/w1/CmlIll"
    assert opened["payload"]["severity"] == "critical"
    line = "alert.raised · workers/default/w1 · NoAnswer · CML has not answered for 10 min"
    assert opened["payload"]["summary"] == summarize(told[0]) == line


DANGER = Condition(
    type=SessionCondition.AT_RISK, status=Truth.TRUE, last_transition_at=NOW, reason=RiskReason.NO_WORKER, message="why"
)
WELL: list[tuple[Resource, str]] = [
    (given.session(phase=SessionPhase.SCHEDULED), "SessionAtRisk"),
    (given.session(phase=SessionPhase.EXPIRED, conditions=(DANGER,)), "SessionAtRisk"),
    (given.session(phase=SessionPhase.PENDING), "LabStopped"),
    (given.session(phase=SessionPhase.FAILED, worker_id="w"), "SessionStuck"),
    (given.worker(phase=WorkerPhase.TERMINATED), "HighCpu"),
    (given.reservation(phase=ReservationPhase.CANCELLED), "CancellationOverdue"),
]
ILL_STILL: list[tuple[Resource, str]] = [
    (given.session(phase=SessionPhase.SCHEDULED, conditions=(DANGER,)), "SessionAtRisk"),
    (given.session(phase=SessionPhase.RUNNING, worker_id="w"), "LabStopped"),
    (given.worker(phase=WorkerPhase.ACTIVE), "HighCpu"),
    (given.worker(phase=WorkerPhase.TERMINATED), "StrayInstance"),
    (given.pool(), "PoolStuck"),
]


@pytest.mark.parametrize(("resource", "name"), [*WELL, *ILL_STILL], ids=lambda one: getattr(one, "kind", one))
async def test_a_sweep_settles_the_alerts_of_what_is_well_and_no_others(resource: Resource, name: str) -> None:
    stage = Stage()
    await stage.put(resource)
    await stage[BY].raise_alert(ref_of(resource), msgspec.structs.replace(ILL, alert=name))
    well = (resource, name) in WELL
    assert await sweep_alerts(stage.store, NOW) == well
    assert [one.alert for one in await stage[OTTO].alerts()] == [name] * (not well)
    assert await stage.types() == ["alert.raised", *["alert.cleared"] * well]


async def test_a_sweep_settles_the_alerts_of_what_is_gone_or_has_a_namesake() -> None:
    stage = await with_worker()
    await stage[BY].raise_alert(W1, ILL)
    await stage.store.commit(Delete(W1.key))
    await stage.put(given.worker(uid="another"))
    assert await sweep_alerts(stage.store, NOW) == 1
    await stage[BY].raise_alert(W1, ILL)
    await stage.store.commit(Delete(W1.key))
    assert await sweep_alerts(stage.store, NOW) == 1
    assert await stage[OTTO].alerts() == []
