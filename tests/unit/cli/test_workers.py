"""What operators do to workers from the command line, what it says comes of it, and what they see of them."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, shell
from lcm.cli.output.options import complete_workers as completed
from lcm.control.accounts.licences import seat_key
from lcm.control.objects.records import encode_checked
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.base.resource import Truth
from lcm.model.kinds.pool import FilledSeat
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import IdleSignal, IdleVerdict, LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.money.licences import SeatState
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.store.base import Put
from lcm.system.clock import SystemClock

P = WorkerPhase
LICENSED = {"version": "2.9.0", "licensed": True, "healthy": True}


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, columns=80)


def there(api: ApiServer, phase: WorkerPhase, name: str = "w1", **fields: object) -> LabWorker:
    cml = fields.pop("cml", {})
    worker = given.worker(name=name, uid=f"uid-{name}", phase=phase, created_at=SystemClock().now(), **fields)
    worker = given.changed(worker, {"status": {"cml": cml}})
    api.put(worker)
    return worker


def busy(api: ApiServer, worker: LabWorker, *names: str, **status: object) -> None:
    for name in names:
        session = given.session(name=name, uid=f"uid-{name}", phase=SessionPhase.RUNNING, owner="ada")
        placed = {"worker_ref": f"default/{worker.metadata.name}", "worker_id": worker.metadata.uid}
        api.put(given.changed(session, {"status": placed | status}))


def phase_of(api: ApiServer, name: str = "w1") -> tuple[str, str]:
    async def ask(plane: Plane) -> LabWorker | None:
        return await plane.get(Ref(LabWorker, name))

    worker = api.do(ask)
    assert worker is not None
    return worker.status.phase, worker.spec.wanted_state


def said(text: str) -> str:
    """Undo the breaking of lines, which must fit."""
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_a_drain_says_whom_it_waits_for_until_when_and_how_to_cancel(api: ApiServer, desk: Shell) -> None:
    busy(api, there(api, P.ACTIVE, cml=LICENSED, history=given.history("READY", "ACTIVE")), "s1", "s2", "s3", "s4")
    text = said(desk.out("drain", "w1", "--deadline", "30m"))
    assert "waits for 4 sessions (s1, s2, s3 and 1 more) until 20" in text
    assert "(in 29m)" in text or "(in 30m)" in text
    assert "then its licence is returned and its machine is stopped" in text
    assert "`lcm undrain w1` cancels" in text
    assert phase_of(api) == (P.DRAINING, "stopped")
    assert "worker/w1 is ACTIVE and takes sessions" in desk.out("undrain", "w1")
    assert phase_of(api) == (P.ACTIVE, "running")


@pytest.mark.parametrize(("most", "warned"), [(1, True), (2, False)])
def test_a_drain_says_before_that_its_pool_may_run_more_machines_than_its_maximum(
    api: ApiServer, desk: Shell, *, most: int, warned: bool
) -> None:
    worker = there(api, P.ACTIVE, cml=LICENSED, history=given.history("READY", "ACTIVE"))
    seat = FilledSeat(number=1, worker_id=worker.metadata.uid, worker_name="w1")
    api.put(given.pool(name="ccna", uid="uid-ccna", min_workers=0, max_workers=most, seats=(seat,)))
    told = "pool/ccna runs 1 of at most 1 machines: if its planned worker 1 is needed before w1 has been drained"
    assert (told in " ".join(desk.lcm("drain", "w1", "--dry-run").stderr.split())) is warned


def test_a_dry_run_says_what_would_come_of_it_and_does_nothing(api: ApiServer, desk: Shell) -> None:
    there(api, P.READY, cml={"licensed": False})
    result = desk.lcm("drain", "w1", "--dry-run")
    assert "it has no sessions, so its machine is stopped now" in said(result.stdout)
    assert "nothing was done" in result.stderr
    assert phase_of(api) == (P.READY, "running")


@pytest.mark.parametrize(
    ("phase", "verb", "advice"),
    [
        (P.STOPPED, "drain", "it is stopped and has no sessions; `lcm delete worker w1` removes it"),
        (P.STARTING, "drain", "it takes no sessions yet"),
        (P.FAILED, "drain", "`lcm describe worker w1` shows why"),
        (P.STOPPING, "undrain", "its drain is over; `lcm resume w1` starts it again"),
        (P.TERMINATED, "pause", "`lcm story worker w1` shows what happened to it"),
    ],
)
def test_what_is_not_possible_now_is_refused_with_what_to_do(
    api: ApiServer, desk: Shell, phase: WorkerPhase, verb: str, advice: str
) -> None:
    there(api, phase)
    result = desk.lcm(verb, "w1")
    assert result.exit_code == 5
    assert f"worker/w1 is {phase}: {verb} is not possible; {advice}" in said(result.stderr)


def test_of_several_workers_a_missing_one_is_named_and_the_others_are_done(api: ApiServer, desk: Shell) -> None:
    there(api, P.READY)
    there(api, P.READY, "w2")
    result = desk.lcm("pause", "w1", "nope", "w2")
    assert result.exit_code == 3
    assert "there is no worker/nope in namespace default" in result.stderr
    assert (phase_of(api)[1], phase_of(api, "w2")[1]) == ("stopped", "stopped")


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (P.READY, "its machine stops now"),
        (P.STOPPED, "is stopped; `lcm resume w1` starts it"),
        (P.STARTING, "is STARTING and will be stopped"),
        (P.FAILED, "has failed and will not be started"),
    ],
)
def test_a_pause_says_what_happens_next(api: ApiServer, desk: Shell, phase: WorkerPhase, words: str) -> None:
    there(api, phase)
    assert words in said(desk.out("pause", "w1"))


def test_a_pause_waits_for_sessions_and_says_so(api: ApiServer, desk: Shell) -> None:
    busy(api, there(api, P.ACTIVE), "s1")
    assert "will be stopped after 1 session (s1)" in said(desk.out("pause", "w1"))


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (P.READY, "runs (READY) and stays running until it is idle"),
        (P.STOPPED, "its machine boots now, and CML takes some minutes `lcm wait worker w1 --for"),
        (P.STOPPING, "is STOPPING and will be started"),
    ],
)
def test_a_resume_says_what_happens_next(api: ApiServer, desk: Shell, phase: WorkerPhase, words: str) -> None:
    there(api, phase, wanted_state="stopped", drain_deadline_at=SystemClock().now())
    assert words in said(desk.out("resume", "w1"))


def test_what_is_drained_is_not_resumed_but_undrained(api: ApiServer, desk: Shell) -> None:
    there(api, P.DRAINING, wanted_state="stopped", drain_deadline_at=SystemClock().now())
    refused = desk.lcm("resume", "w1")
    assert (refused.exit_code, "`lcm undrain w1` cancels the drain" in said(refused.stderr)) == (5, True)


def test_a_snooze_says_until_when_and_how_to_end_it(api: ApiServer, desk: Shell) -> None:
    there(api, P.READY)
    text = said(desk.out("snooze", "w1", "--for", "90s"))
    assert "is not paused for being idle before 20" in text
    assert "`lcm snooze w1 --for 1m` ends that sooner" in text
    assert "snoozed" in desk.out("get", "workers")
    there(api, P.READY, "w2", idle={"enabled": False})
    assert "never paused for being idle" in said(desk.out("snooze", "w2"))


@pytest.mark.parametrize("arguments", [("drain", "w1", "--deadline", "soon"), ("snooze", "w1", "--for", "0m")])
def test_a_senseless_length_of_time_is_wrong_usage(desk: Shell, arguments: tuple[str, ...]) -> None:
    assert desk.lcm(*arguments).exit_code == 2


def test_a_licence_is_asked_for_anew_by_reference(api: ApiServer, desk: Shell) -> None:
    there(api, P.READY_UNLICENSED)
    refused = desk.lcm("license", "w1")
    assert (refused.exit_code, "has no licence token" in refused.stderr) == (5, True)
    text = said(desk.out("license", "w1", "--token", "env:CML_T", "--flavour", "personal"))
    assert "will register as personal" in text
    there(api, P.READY, "w2", cml=LICENSED)
    assert "is licensed; the token is used" in said(desk.out("license", "w2", "--token", "env:CML_T"))


def measured(api: ApiServer, worker: LabWorker, **figures: object) -> None:
    now = SystemClock().now()
    told = WorkerTelemetry(collected_at=now, cml_at=now, cloudwatch_at=now, **figures)  # type: ignore[arg-type]

    async def report(plane: Plane) -> None:
        await plane.report(ref_of(worker), told)

    api.acting(WORKER_CONTROLLER, report)


def test_a_list_of_workers_tells_figures_and_their_age_in_eighty_columns(api: ApiServer, desk: Shell) -> None:
    worker = there(api, P.READY, lab_track="ccna", cml=LICENSED)
    there(api, P.STOPPED, "a-worker-with-a-long-name")
    measured(api, worker, cpu_utilization=12.4, memory_utilization=40.0)
    lines = desk.out("get", "workers").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:6] == ["NAME", "PHASE", "IDLE", "CPU", "MEM", "DATA"]
    assert lines[2].split()[:5] == ["w1", "READY", "-", "12%", "40%"]
    assert "RUNNING" in desk.out("get", "workers", "-o", "wide")


def test_describe_tells_figures_by_their_source_and_why_a_worker_is_idle(api: ApiServer, desk: Shell) -> None:
    now = SystemClock().now()
    signals = (
        IdleSignal(name="sessions", active=Truth.FALSE, detail="none is on it"),
        IdleSignal(name="people", active=Truth.UNKNOWN, detail="CML did not say"),
    )
    verdict = IdleVerdict(
        idle=True, reason="nothing happened", judged_at=now, signals=signals, pause_at=now + timedelta(minutes=5)
    )
    worker = given.worker(phase=P.READY, created_at=now, failure="CmlNotUp", retry_count=2, unhealthy_since=now)
    worker = given.changed(worker, {"status": {"idle": verdict, "pause_count": 1, "cml": LICENSED}})
    api.put(worker)
    measured(api, worker, cpu_utilization=12.4, active_labs_count=1, running_nodes=2, network_in_bytes=2_500_000)
    drifted = {"port_drift_detected": True, "allocated_ports": {"R1": 2001}, "observed_ports": {"R1": 2005}}
    busy(api, worker, "s1", **drifted)

    async def complain(plane: Plane) -> None:
        complaint = AlertFinding(alert="HighCpu", severity=Severity.WARNING, reason="Cpu", message="CPU is at 95 %")
        await plane.raise_alert(ref_of(worker), complaint)

    api.acting(WORKER_CONTROLLER, complain)
    text = desk.out("describe", "worker", "w1")
    assert max(map(len, text.splitlines())) <= 80
    for line in (
        "Measured:     CPU 12%, 1 lab, 2 running nodes, by CML 0s ago",
        "              2.5 MB in, by CloudWatch 0s ago",
        "              sessions: quiet; none is on it",
        "              people: unknown, so active; CML did not say",
        "Failure:      CmlNotUp, 2 retries so far",
        "Paused:       1 times, resumed 0 times",
        "Sessions:     1 on it, 0 to come",
        "              s1 RUNNING of ada",
        "Port drift:   s1: R1 is 2005 instead of 2001",
        "Alerts:       warning HighCpu for 0s: CPU is at 95 %",
    ):
        assert line in text.splitlines()
    assert "pauses 20" in text
    alerts = desk.out("alerts")
    assert "HighCpu" in alerts
    assert json.loads(desk.out("alerts", "-o", "json"))["items"][0]["alert"] == "HighCpu"


def test_an_alert_is_told_in_full_because_it_says_what_to_do(api: ApiServer, desk: Shell) -> None:
    worker = there(api, P.FAILED)
    message = "no machine could be launched in us-east-1a: " + "the quota is used up; " * 5 + "raise the quota"

    async def complain(plane: Plane) -> None:
        await plane.raise_alert(
            ref_of(worker), AlertFinding(alert="WorkerFailed", severity=Severity.CRITICAL, reason="x", message=message)
        )

    api.acting(WORKER_CONTROLLER, complain)
    text = desk.out("alerts")
    assert text.splitlines()[1].split()[:3] == ["critical", "WorkerFailed", "worker/w1"]
    assert message in said(text)


def test_a_drain_under_way_tells_its_deadline(api: ApiServer, desk: Shell) -> None:
    there(api, P.DRAINING, drain_deadline_at=SystemClock().now() + timedelta(hours=3))
    assert "Drain until:" in desk.out("describe", "worker", "w1")


def test_seats_are_listed_and_an_orphaned_one_is_freed_by_a_person(api: ApiServer, desk: Shell) -> None:
    seat = given.seat(state=SeatState.ORPHANED, worker_id="b06238de-ce22-4819-a26b-59b2ea526ddb")
    api.commit(Put(seat_key(seat.worker_id), encode_checked(seat)))
    listed = desk.lcm("licenses")
    assert max(map(len, listed.stdout.splitlines())) <= 80
    assert "orphaned" in listed.stdout
    assert "lcm licenses free WORKER_ID" in said(listed.stderr)
    assert json.loads(desk.out("licenses", "list", "-o", "json"))["seats"][0]["state"] == "orphaned"
    assert desk.out("licenses", "free", seat.worker_id) == f"the seat of {seat.worker_id} is free\n"
    assert desk.lcm("licenses").stderr == "no licence seat is taken\n"


def test_narrow_terminals_show_whose_a_seat_is_rather_than_its_id(api: ApiServer, tmp_path: Path) -> None:
    seat = given.seat(worker_id="b06238de-ce22-4819-a26b-59b2ea526ddb")
    api.commit(Put(seat_key(seat.worker_id), encode_checked(seat)))
    lines = shell(api, tmp_path, columns=60).lcm("licenses").stdout.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[-1].split()[:2] == [seat.worker_name, seat.state]


def test_nothing_to_tell_is_told(desk: Shell) -> None:
    assert desk.lcm("alerts").stderr == "no open alerts\n"
    assert desk.lcm("licenses").stderr == "no licence seat is taken\n"
    missing = desk.lcm("licenses", "free", "uid-none")
    assert missing.exit_code == 3
    assert "there is no orphaned seat of uid-none" in missing.stderr


def test_names_of_workers_are_completed(api: ApiServer, desk: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    there(api, P.READY)
    there(api, P.READY, "x2")
    for name, value in desk.environment.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)

    class Asked:
        params = {"namespace": "default"}

    assert completed(Asked(), "w") == ["w1"]  # type: ignore[arg-type]
    monkeypatch.setenv("LCM_URL", "http://127.0.0.1:1")
    assert completed(Asked(), "w") == []  # type: ignore[arg-type]


def test_every_worker_that_is_missing_is_named(desk: Shell) -> None:
    result = desk.lcm("pause", "nope", "nothing")
    assert result.exit_code == 3
    assert "there is no worker/nope in" in result.stderr
    assert "there is no worker/nothing in" in result.stderr


def test_a_held_lab_is_removed_by_a_persons_word(api: ApiServer, desk: Shell) -> None:
    there(api, P.READY, annotations={"lcm/held-lab.l1": "2026-11-17T01:00:00Z"})
    assert "lab l1 on worker/w1 is collected and removed" in said(desk.out("remove-lab", "w1", "l1"))
    refused = desk.lcm("remove-lab", "w1", "l2")
    assert refused.exit_code != 0
    assert "held are l1" in said(refused.stderr)
