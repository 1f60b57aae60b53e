"""`lcm observe`: a running lab looked at, and what a definition learned, applied by a person only."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, shell
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition, PortUse, ResourceRequirements, Spread
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.telemetry.observation import NodeObservation
from lcm.system.clock import SystemClock

PORTS = {"PC_serial": PortUse(kind="serial", node="PC"), "PC_vnc": PortUse(kind="vnc", node="PC")}
DECLARED = ResourceRequirements(cpu_cores=4, memory_gb=8, storage_gb=10)


def spread(p95: float, **more: float) -> Spread:
    return given.changed(Spread(avg=p95, p50=p95, p95=p95, max=p95, latest=p95, count=4), more)


LEARNED: dict[str, Any] = {
    "observed_sessions": 4,
    "cpu_cores": spread(6, avg=5.12345, max=8),
    "memory_mb": spread(12_288),
    "boot_seconds": spread(95.4),
    "needs_review": True,
    "review_reason": "cpu_cores: 95 % of 4 sessions had at most 6, declared are 4 (+50%)",
}


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path)


def lab(**more: Any) -> LabletDefinition:
    return given.definition(resource_requirements=DECLARED, port_template=PORTS, node_count=1, **more)


def running(**more: Any) -> LabletSession:
    fields = {"phase": SessionPhase.RUNNING, "owner": "ada", "ends_at": SystemClock().now()} | more
    return given.session(allocated_ports={"PC_serial": 2001, "PC_vnc": 2002}, **fields)


def answering(api: ApiServer, **ports: int) -> Callable[[], None]:
    """Be the lablet controller, once."""
    node = NodeObservation(node_id="1", label="PC", node_definition="iosv", state="BOOTED", cpus=6, ram_mb=4096)

    async def work(plane: Plane) -> None:
        found = await plane.get(Ref(LabletSession, "s1"))
        assert found is not None
        assert found.status.observation_request is not None
        seen = given.observation(
            observed_at=SystemClock().now(),
            total_cpu_cores=6.0,
            total_memory_mb=4_096,
            nodes=(node,),
            actual_node_count=1,
            observed_ports=ports,
        )
        await plane.record_observation(Ref(LabletSession, "s1"), seen, request_id=found.status.observation_request.id)

    return lambda: api.acting(LABLET_CONTROLLER, work)


def requirements(api: ApiServer) -> ResourceRequirements | None:
    async def work(plane: Plane) -> LabletDefinition | None:
        return await plane.get(Ref(LabletDefinition, "basics:1.0.0"))

    found = api.do(work)
    assert found is not None
    return found.spec.resource_requirements


def test_a_running_lab_is_looked_at_and_held_against_its_definition(api: ApiServer, tmp_path: Path) -> None:
    api.put(lab(), running())
    then = api.once_watched(answering(api, PC_serial=2001, PC_vnc=2099))
    result = shell(api, tmp_path, "ada").lcm("observe", "session", "s1")
    then.join()
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["MEASURE", "DECLARED", "OBSERVED", "DIFFERENCE", "USED"],
        ["CPU", "4", "6", "+50%", "-"],
        ["memory", "8", "GB", "4", "GB", "-50%", "-"],
        ["disk", "10", "GB", "-", "-", "-"],
        ["nodes", "1", "1", "+0", "-"],
        [],
        ["PORT", "ALLOCATED", "OBSERVED"],
        ["PC_vnc", "2002", "2099"],
    ]
    assert result.stderr.startswith("1 ports differ from those allocated")


def test_ports_that_are_as_they_were_given_are_told_in_a_line(api: ApiServer, desk: Shell) -> None:
    api.put(lab(), running())
    then = api.once_watched(answering(api, PC_serial=2001, PC_vnc=2002))
    result = desk.lcm("observe", "s/s1", "-o", "table")
    then.join()
    assert "2 ports, all as allocated" in result.stderr
    then = api.once_watched(answering(api, PC_serial=2001, PC_vnc=2002))
    seen = json.loads(desk.out("observe", "session", "s1", "-o", "json"))
    then.join()
    assert (seen["total_cpu_cores"], seen["observed_ports"]["PC_vnc"]) == (6.0, 2002)


def test_without_an_answer_time_is_up(api: ApiServer, desk: Shell) -> None:
    api.put(lab(), running())
    result = desk.lcm("observe", "session", "s1", "--timeout", "1s")
    assert result.exit_code == 7
    assert "session/s1 was not observed within 1s" in result.stderr


def test_what_does_not_run_is_not_observed(api: ApiServer, desk: Shell) -> None:
    api.put(lab(), given.session(owner="ada"))
    result = desk.lcm("observe", "session", "s1")
    assert (result.exit_code, "session/s1 is PENDING: only a running session can be observed" in result.stderr) == (
        5,
        True,
    )
    assert desk.lcm("observe", "session", "nope").exit_code == 3
    assert desk.lcm("observe", "definition", "nope:1").exit_code == 3
    for words in (["worker", "w1"], ["session", "s1", "--apply", "p95"], ["session", "s1", "-o", "name"], ["s1"]):
        assert desk.lcm("observe", *words).exit_code == 2


def test_a_definition_tells_what_was_observed_and_how_to_apply_it(api: ApiServer, desk: Shell) -> None:
    api.put(lab(**LEARNED))
    lines = desk.out("describe", "definition", "basics:1.0.0").splitlines()
    assert "Observed:     CPU p95 6, max 8, avg 5.123 of 4 sessions, declared 4 (+50%)" in lines
    assert "              memory p95 12 GB, max 12 GB, avg 12 GB of 4 sessions, declared 8 GB (+50%)" in lines
    assert "Boot:         95 s or less for 95 % of 4 sessions, 95 s at most" in lines
    assert "Review:       cpu_cores: 95 % of 4 sessions had at most 6, declared are 4 (+50%)" in lines
    assert any("`lcm observe definition basics:1.0.0 --apply p95`" in line for line in lines)


def test_what_a_definition_learned_is_a_table(api: ApiServer, desk: Shell) -> None:
    api.put(lab(**LEARNED))
    result = desk.lcm("observe", "definition", "basics:1.0.0")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["MEASURE", "DECLARED", "P95", "DIFFERENCE", "AVG", "P50", "MAX", "USED-P95", "BOOT-P95"]
    assert rows[1] == ["CPU", "4", "6", "+50%", "5.123", "6", "8", "-", "-"]
    assert "4 sessions of definition/basics:1.0.0 were observed; needs review: cpu_cores" in result.stderr
    assert json.loads(desk.out("observe", "definition", "basics:1.0.0", "-o", "json"))["needs_review"] is True
    desk.environment["COLUMNS"] = "66"
    narrow = desk.out("observe", "definition", "basics:1.0.0")
    assert "…" not in narrow
    assert narrow.splitlines()[0].split() == ["MEASURE", "DECLARED", "P95", "DIFFERENCE", "MAX", "USED-P95", "BOOT-P95"]


@pytest.mark.parametrize(("by", "cores"), [("p95", 6.0), ("max", 8.0), ("avg", 5.124)])
def test_a_person_applies_it_after_seeing_before_and_after(api: ApiServer, desk: Shell, by: str, cores: float) -> None:
    api.put(lab(**LEARNED))
    command = ("observe", "definition", "basics:1.0.0", "--apply", by)
    told = desk.lcm(*command, stdin="n\n")
    assert told.exit_code == 1
    assert told.stdout.splitlines()[:2] == [
        "before: 4 CPU, 8 GB memory, 10 GB disk",
        f"after:  {cores:g} CPU, 12 GB memory, 10 GB disk",
    ]
    assert desk.lcm(*command).exit_code == 1
    assert "nothing was changed" in desk.lcm(*command, "--dry-run").stderr
    assert requirements(api) == DECLARED
    assert "new bookings use that" in desk.out(*command, stdin="y\n")
    wanted = ResourceRequirements(cpu_cores=cores, memory_gb=12, storage_gb=10)
    assert requirements(api) == wanted
    assert "declares that already" in desk.out(*command, "--yes")


def test_nothing_observed_is_nothing_to_apply(api: ApiServer, desk: Shell) -> None:
    api.put(lab())
    result = desk.lcm("observe", "definition", "basics:1.0.0", "--apply", "p95", "--yes")
    assert (result.exit_code, "nothing was observed of definition/basics:1.0.0 yet" in result.stderr) == (5, True)
    assert "0 sessions" in desk.lcm("observe", "definition", "basics:1.0.0").stderr


def test_only_who_may_publish_applies(api: ApiServer, tmp_path: Path) -> None:
    api.put(lab(**LEARNED))
    ada = shell(api, tmp_path, "ada")
    assert ada.lcm("observe", "definition", "basics:1.0.0", "--apply", "p95", "--yes").exit_code == 5
    assert requirements(api) == DECLARED
