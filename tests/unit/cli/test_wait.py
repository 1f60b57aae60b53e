"""`lcm wait`, `lcm story` and `lcm describe` against a served API."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, shell
from lcm.cli.documents.wait import parse_duration, parse_goal, reachable_phases
from lcm.cli.output.nouns import NOUNS, find_noun
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import SCHEDULER, WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.registry import STATE_MACHINES, Resource
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase, WorkerTelemetry
from lcm.system.clock import SystemClock


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, columns=80)


def make(api: ApiServer, *resources: Resource) -> None:
    async def work(plane: Plane) -> None:
        for one in resources:
            await plane.create(one)

    api.do(work)


def step(api: ApiServer, actor: str, ref: Ref[Any], reason: str = "", **status: object) -> None:
    async def work(plane: Plane) -> None:
        found = await plane.get(ref)
        assert found is not None
        await plane.step(found, given.changed(found.status, status), reason=reason)

    api.acting(actor, work)


W1 = Ref(LabWorker, "w1")


def launch(api: ApiServer) -> None:
    step(api, WORKER_CONTROLLER, W1, "asked", phase=WorkerPhase.PROVISIONING_EC2, ec2={"client_token": "t"})


@pytest.mark.parametrize(
    ("text", "want"),
    [("30s", 30), ("30", 30), ("10m", 600), ("2h", 7_200), ("1h30m", 5_400), ("1d", 86_400), ("0s", 0)],
)
def test_a_length_of_time_is_read(text: str, want: int) -> None:
    assert parse_duration(text) == timedelta(seconds=want)


def test_waiting_ends_when_the_phase_is_there(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    then = api.once_watched(lambda: launch(api))
    result = desk.lcm("wait", "worker", "w1", "--for", "phase=provisioning_ec2", "--timeout", "60s")
    then.join()
    assert (result.exit_code, result.stdout) == (0, "worker/w1 is PROVISIONING_EC2\n")
    assert result.stderr.splitlines() == ["PENDING: created", "PROVISIONING_EC2: asked"]


def test_a_phase_that_is_there_already_is_not_waited_for(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    assert desk.out("wait", "w/w1", "--for", "phase=PENDING") == "worker/w1 is PENDING\n"


def test_time_runs_out_with_seven(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    result = desk.lcm("wait", "w", "w1", "--for", "phase=READY", "--timeout", "1s")
    assert result.exit_code == 7
    assert "worker/w1 is not READY after 1s; it is PENDING; `lcm story worker/w1`" in result.stderr


def test_what_can_no_longer_happen_is_not_waited_for(api: ApiServer, desk: Shell) -> None:
    make(api, given.definition(state="active"), given.asap())
    ref = Ref(LabletSession, "s1")
    failed = {"phase": SessionPhase.FAILED, "last_error": "no worker has 900 cores"}
    then = api.once_watched(lambda: step(api, SCHEDULER, ref, "never", **failed))
    result = desk.lcm("wait", "s", "s1", "--for", "phase=RUNNING", "--timeout", "60s")
    then.join()
    assert result.exit_code == 8
    assert "session/s1 will not be RUNNING: it is FAILED" in result.stderr
    assert "no worker has 900 cores" in result.stderr
    assert desk.lcm("wait", "s", "s1", "--for", "condition=AtRisk").exit_code == 8


def test_a_condition_is_waited_for_with_its_status(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    licensed = Condition(type="Licensed", status=Truth.FALSE, last_transition_at=SystemClock().now(), reason="NoSeat")
    then = api.once_watched(lambda: step(api, WORKER_CONTROLLER, W1, conditions=(licensed,)))
    assert desk.out("wait", "w", "w1", "--for", "condition=Licensed=False", "--timeout", "60s") == (
        "worker/w1 is Licensed=False\n"
    )
    then.join()
    assert desk.lcm("wait", "w", "w1", "--for", "condition=Licensed", "--timeout", "0s").exit_code == 7


def test_coming_and_going_are_waited_for(api: ApiServer, desk: Shell) -> None:
    assert desk.out("wait", "t", "metal", "--for", "delete") == "template/metal is gone\n"
    then = api.once_watched(lambda: make(api, given.template()))
    assert desk.out("wait", "t", "metal", "--for", "exists", "--timeout", "60s") == "template/metal is there\n"
    then.join()

    async def remove(plane: Plane) -> None:
        await plane.delete(Ref(type(given.template()), "metal"))

    then = api.once_watched(lambda: api.do(remove))
    assert desk.out("wait", "t", "metal", "--for", "delete", "--timeout", "60s") == "template/metal is gone\n"
    then.join()


def test_what_goes_meanwhile_never_becomes_anything(api: ApiServer, desk: Shell) -> None:
    make(api, given.definition(state="active"), given.asap())

    async def remove(plane: Plane) -> None:
        await plane.delete(Ref(LabletSession, "s1"))

    then = api.once_watched(lambda: api.do(remove))
    result = desk.lcm("wait", "s", "s1", "--for", "phase=RUNNING", "--timeout", "60s")
    then.join()
    assert result.exit_code == 8
    assert "session/s1" in result.stderr


def test_no_time_at_all_is_one_look(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    assert desk.lcm("wait", "w", "w1", "--for", "phase=PENDING", "--timeout", "0").exit_code == 0
    assert desk.lcm("wait", "w", "w1", "--for", "phase=READY", "--timeout", "0").exit_code == 7


def test_what_is_not_there_is_not_waited_for(desk: Shell) -> None:
    assert desk.lcm("wait", "w", "w1", "--for", "phase=READY").exit_code == 3


@pytest.mark.parametrize(
    "goal", ["phase", "phase=", "phase=FLYING", "condition=", "condition=A=maybe", "ready", "delete=1"]
)
def test_a_goal_that_is_none_is_wrong_usage(desk: Shell, goal: str) -> None:
    assert desk.lcm("wait", "w", "w1", "--for", goal).exit_code == 2


def test_every_phase_of_every_kind_can_be_waited_for() -> None:
    kinds = [one for one in NOUNS if one.kind.machine]
    assert len(kinds) == len(STATE_MACHINES)
    for one in kinds:
        assert one.kind.machine is not None
        for phase in one.kind.machine.phases:
            assert parse_goal(one, f"phase={phase}").text == phase


def test_from_an_end_nothing_can_be_reached() -> None:
    for machine in STATE_MACHINES:
        for end in machine.final:
            assert reachable_phases(machine, end) == set()
    assert "RUNNING" in reachable_phases(SESSION_MACHINE, "STOPPING")
    assert find_noun("s").kind.machine is SESSION_MACHINE


def test_a_story_tells_phases_spans_reasons_and_the_limit(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    launch(api)
    lines = desk.out("story", "w", "w1").splitlines()
    assert lines[0].split()[2] == "PENDING"
    assert lines[0].endswith("created (by root)")
    assert lines[1].split()[2:] == ["PROVISIONING_EC2", "0s…", "asked", "(by", "worker-controller)"]
    assert " ".join(lines[2:]).startswith("may last until ")
    assert "then FAILED" in " ".join(lines[2:])


def test_a_story_in_a_narrow_terminal_puts_reasons_on_lines_of_their_own(api: ApiServer, tmp_path: Path) -> None:
    make(api, given.worker())
    step(api, WORKER_CONTROLLER, W1, "a reason " * 30, phase=WorkerPhase.PROVISIONING_EC2, ec2={"client_token": "t"})
    told = shell(api, tmp_path, columns=60).out("story", "w", "w1")
    assert max(map(len, told.splitlines())) <= 60
    assert " ".join(told.split()).count("a reason") == 30


def test_what_has_no_phases_has_a_short_story(api: ApiServer, desk: Shell) -> None:
    make(api, given.template())
    assert desk.out("story", "t", "metal") == "template/metal has no phases; created 0s ago\n"
    assert desk.lcm("story", "t", "nope").exit_code == 3


def test_a_worker_is_described_with_what_only_a_second_look_tells(api: ApiServer, desk: Shell) -> None:
    make(api, given.definition(state="active"), given.worker(labels={"site": "virginia"}), given.asap())
    launch(api)
    mine = {"worker_id": "u", "worker_name": "w1", "worker_ref": "default/w1", "claim": given.claim()}
    step(api, SCHEDULER, Ref(LabletSession, "s1"), "room", phase=SessionPhase.SCHEDULED, **mine)

    async def measure(plane: Plane) -> None:
        now = SystemClock().now()
        found = WorkerTelemetry(collected_at=now, cml_at=now, cpu_utilization=41.6, active_labs_count=1)
        await plane.report(W1, found)

    api.acting(WORKER_CONTROLLER, measure)
    told = desk.out("describe", "worker", "w1")
    lines = told.splitlines()
    assert lines[:2] == ["Name:         w1", "Namespace:    default"]
    assert any(re.fullmatch(r"Measured: +CPU 42%, 1 lab, by CML \d+s ago", line) for line in lines)
    assert "Sessions:     0 on it, 1 to come" in lines
    assert f"{'':14}s1 SCHEDULED of root" in lines
    assert "Labels:       site=virginia" in lines
    assert lines.index("Labels:       site=virginia") < lines.index("Story:")
    assert max(map(len, lines)) <= 80
    assert "[]" not in told
    assert "null" not in told


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_everything_can_be_described_in_any_terminal(api: ApiServer, tmp_path: Path, columns: int) -> None:
    after = given.moment("09:00", day=365 * 20)
    slot: dict[str, object] = {"timeslot_start": after, "timeslot_end": after + timedelta(hours=2)}
    make(api, given.template(), given.pool(), given.definition(state="active"), given.worker(), given.settings())
    make(api, given.session(**slot), given.reservation(**slot))
    desk = shell(api, tmp_path, columns=columns)
    for name in desk.out("get", "all", "-o", "name").split():
        told = desk.out("describe", name)
        assert max(map(len, told.splitlines())) <= max(columns, 80)
        assert f"Name:         {name.partition('/')[2]}" in told
    assert desk.out("describe", "w/w1", "t/metal").count("Name:  ") == 2


def test_a_reason_cannot_write_to_somebody_elses_terminal(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(labels={"evil": "\u202egone"}, lab_track="\u202e"))
    step(api, WORKER_CONTROLLER, W1, "\x1b]0;title\x07", phase=WorkerPhase.PROVISIONING_EC2, ec2={"client_token": "t"})
    for command in (["describe"], ["story"], ["get", "-o", "json"], ["get", "-o", "yaml"], ["get", "-o", "wide"]):
        told = desk.out(*command, "w", "w1")
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(told)
    assert "\x1b" not in desk.lcm("wait", "w", "w1", "--for", "phase=PROVISIONING_EC2").output
