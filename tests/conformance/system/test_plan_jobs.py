"""Plans as processes: what they say is heard, what they cost is limited, and none outlives whoever started it."""

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.api_world import ROOT, Desk, document, opened
from harness.plane_world import hand_clock
from harness.stores import HandClock
from lcm.api.openapi.description import BODIES
from lcm.api.routes.plan_shapes import (
    PlanJob,
    PlannedLab,
    PlannedPool,
    PlannedSessions,
    PlannedTimetable,
    PlanResult,
    PlanState,
    PlanWish,
)
from lcm.compose.plan_jobs import PlanJobs, PlanLimits
from lcm.model.base.errors import Gone, IllegalStep, Invalid, Throttled
from lcm.model.base.resource import Part
from lcm.sim.plan import __main__, reading_yaml
from lcm.sim.plan.summary import summary
from lcm.system.clock import new_id

SOON = 60
READ: dict[str, Any] = {"reading": timedelta(seconds=SOON)}
PLAN = "/api/plan"
BOOKING = "LabletSession"
WISH = msgspec.convert(BODIES["PlanWish"], PlanWish)
HEARD = "import json, sys, time\nasked = json.load(sys.stdin)\nsay = lambda **it: print(json.dumps(it), flush=True)\n"
ENDLESS = HEARD + "say(progress={'share': 0.25, 'seconds_left': 30})\ntime.sleep(600)"
PARENT = (
    HEARD
    + "import subprocess\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    + "say(progress={'share': 0.1, 'seconds_left': child.pid})\ntime.sleep(600)"
)
"""Has a child of its own, which must not stay behind."""

KILLED = """
import os, signal, subprocess, sys
command = [sys.executable, "-P", "-m", "lcm.sim.plan"]
plan = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
plan.stdout.readline()
print(plan.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Starts the planner on its own input, and does not see its end."""


def jobs(script: str, clock: HandClock | None = None, **limits: Any) -> PlanJobs:
    """Make plans by a script in place of the planner."""
    command = (sys.executable, "-c", script)
    return PlanJobs(clock=clock or hand_clock(), ids=new_id, limits=PlanLimits(**limits), command=command)


async def ended(plans: PlanJobs, name: str) -> PlanJob:
    async with asyncio.timeout(SOON):
        while plans.find(name).state is PlanState.RUNNING:
            await asyncio.sleep(0.01)
    return plans.find(name)


async def gone(pid: int) -> None:
    """Wait until a process is no more; one that nobody waited for is as good as that."""
    async with asyncio.timeout(SOON):
        while alive(pid):
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_plan_that_runs_tells_how_far_it_is_and_is_ended_with_all_that_it_started() -> None:
    async with jobs(PARENT, **READ) as plans:
        job = await plans.begin(WISH, "root")
        assert (job.state, job.progress, job.by, job.result) == (PlanState.RUNNING, 0.1, "root", None)
        child = int(job.left_seconds or 0)
        assert alive(child)
        with pytest.raises(IllegalStep, match="is running"):
            plans.report(job.id)
        await plans.cancel(job.id)
        await gone(child)
        with pytest.raises(Gone):
            plans.find(job.id)


async def test_leaving_ends_what_still_runs() -> None:
    async with jobs(PARENT, **READ) as plans:
        child = int((await plans.begin(WISH, "root")).left_seconds or 0)
    await gone(child)


async def test_a_plan_ends_with_a_process_that_is_killed() -> None:
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    often = {"definition": "basics", "at": "2031-11-03T09:00", "for": "2h", "count": 8, "every": "day"}
    timetable = BODIES["PlanWish"]["timetable"] | {"sessions": [{**often, "until": "2032-03-01"}]}
    told, _ = await asyncio.wait_for(killed.communicate(msgspec.json.encode({"timetable": timetable})), SOON)
    assert killed.returncode == -signal.SIGKILL
    await gone(int(told))


async def test_no_more_run_at_once_than_may_and_another_may_when_one_has_ended() -> None:
    async with jobs(ENDLESS, at_once=1) as plans:
        first = await plans.begin(WISH, "root")
        with pytest.raises(Throttled, match=f"wait for one, or cancel one: {first.id}"):
            await plans.begin(WISH, "root")
        await plans.cancel(first.id)
        assert (await plans.begin(WISH, "root")).state is PlanState.RUNNING


@pytest.mark.parametrize(
    ("script", "limits", "told"),
    [
        (ENDLESS, {"time": timedelta(seconds=0.5)}, "it took more than"),
        (HEARD + "say(progress={}, much='x' * 100_000)\ntime.sleep(600)", {"line_bytes": 1_000}, "too large"),
        (HEARD + "sys.exit('a bug')", {}, "ended early"),
        (HEARD + "print('nonsense', flush=True)\ntime.sleep(600)", {}, "not understood"),
    ],
)
async def test_a_plan_that_cannot_be_made_says_why(script: str, limits: dict[str, Any], told: str) -> None:
    async with jobs(script, **limits) as plans:
        job = await ended(plans, (await plans.begin(WISH, "root")).id)
        assert (job.state, job.result) == (PlanState.FAILED, None)
        assert job.problem is not None
        assert told in job.problem.detail


async def test_a_timetable_that_cannot_be_read_is_refused_with_its_faults_and_leaves_no_job() -> None:
    fault = "{'path': 'sessions[0].definition', 'problem': 'no such lab', 'remedy': 'use basics'}"
    async with jobs(HEARD + f"say(faults=[{fault}])", at_once=1, **READ) as plans:
        for _ in range(2):
            with pytest.raises(Invalid) as caught:
                await plans.begin(WISH, "root")
            assert str(caught.value) == "sessions[0].definition: no such lab; use basics"


async def test_what_ended_is_kept_for_a_while_and_the_oldest_is_forgotten_first() -> None:
    clock = hand_clock()
    async with jobs(HEARD + "sys.exit()", clock, most_kept=2) as plans:
        names = []
        for _ in range(3):
            names.append((await plans.begin(WISH, "root")).id)
            await ended(plans, names[-1])
            clock.step(minutes=1)
        with pytest.raises(Gone, match="kept for 60 minutes"):
            plans.find(names[0])
        assert plans.find(names[1]).kept_until == clock.now() + timedelta(minutes=58)
        clock.step(minutes=58)
        with pytest.raises(Gone):
            plans.find(names[1])
        assert plans.find(names[2]).state is PlanState.FAILED


async def test_a_timetable_is_played_over_http_in_a_process_of_its_own() -> None:
    plans = PlanJobs(clock=hand_clock(), ids=new_id)
    async with plans, opened(plans=plans) as desk:
        begun = await desk.ask("otto", "POST", PLAN, json=BODIES["PlanWish"], timeout=SOON)
        assert (begun.status_code, begun.json()["by"]) == (202, "otto"), begun.text
        where = f"{PLAN}/{begun.json()['id']}"
        done = await waited(desk, where)
        assert (done["state"], done["progress"], done["problem"]) == ("done", 1.0, None)
        assert [(one["name"], one["promised"]) for one in done["result"]["variants"]] == [("max=1", 3), ("max=2", 3)]
        page = await desk.ask("otto", "GET", f"{where}/report")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.text.startswith("<!doctype html>")
        assert (await desk.ask("ada", "GET", where)).status_code == 403
        await desk.done("otto", "DELETE", where)
        assert (await desk.ask("otto", "GET", where)).status_code == 404


async def test_over_http_a_plan_goes_on_from_what_the_system_has() -> None:
    plans = PlanJobs(clock=hand_clock(), ids=new_id, limits=PlanLimits(**READ))
    slot = {"timeslot_start": "2026-11-02T12:00:00Z", "timeslot_end": "2026-11-02T13:00:00Z"}
    standing = [*map(document, ("LabletDefinition", "WorkerTemplate", "LabWorkerPool")), document(BOOKING, **slot)]
    wanted = [{"definition": "basics", "at": "2026-11-02T12:00Z", "for": "1h"}]
    async with plans, opened(plans=plans) as desk:
        await desk.core.plane_for(ROOT).apply(standing)
        begun = await desk.ask(
            "otto", "POST", PLAN, json={"timetable": {"sessions": wanted}, "from_now": True}, timeout=SOON
        )
        assert begun.status_code == 202, begun.text
        done = await waited(desk, f"{PLAN}/{begun.json()['id']}")
        assert done["state"] == "done", done["problem"]
        (found,) = done["result"]["variants"]
        assert (found["wanted"], found["promised"], found["late"]) == (2, 2, 0), "what stands, and what is new"
        assert found["peak"] == 1


async def test_over_http_a_wrong_timetable_is_told_with_its_faults_and_too_many_plans_are_put_off() -> None:
    plans = PlanJobs(clock=hand_clock(), ids=new_id, limits=PlanLimits(**READ))
    wrong = {**BODIES["PlanWish"]["timetable"], "sessions": [{"definition": "advanced", "at": "soon", "for": "2h"}]}
    async with plans, opened(plans=plans) as desk:
        answer = await desk.ask("root", "POST", PLAN, json={"timetable": wrong}, timeout=SOON)
        assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
        assert [fault["path"] for fault in answer.json()["faults"]] == ["sessions[0].at"]
        file = {"name": "t.csv", "text": "definition,start,minutes\nbasics,soon,60\n"}
        answer = await desk.ask("root", "POST", PLAN, json={"file": file}, timeout=SOON)
        assert [fault["path"] for fault in answer.json()["faults"]] == ["line 2: start"]
        for wish in ({}, {"file": file, **BODIES["PlanWish"]}):
            answer = await desk.ask("root", "POST", PLAN, json=wish)
            assert (answer.status_code, answer.json()["faults"][0]["path"]) == (422, "timetable")
    async with jobs(ENDLESS, at_once=1) as plans, opened(plans=plans) as desk:
        await desk.done("root", "POST", PLAN, json=BODIES["PlanWish"])
        put_off = await desk.ask("root", "POST", PLAN, json=BODIES["PlanWish"])
        assert (put_off.status_code, put_off.json()["reason"]) == (429, "RateLimited")
        assert put_off.headers["retry-after"] == "10"


async def waited(desk: Desk, where: str) -> Any:
    async with asyncio.timeout(SOON):
        while (job := await desk.done("otto", "GET", where))["state"] == "running":
            await asyncio.sleep(0.05)
    return job


def test_the_api_says_of_a_result_all_that_the_planner_says() -> None:
    asked = {**BODIES["PlanWish"], "compare": [], "cores": 1}
    told = msgspec.json.encode(summary(__main__.run_request(msgspec.convert(asked, __main__.PlanRequest))))
    read = msgspec.json.encode(msgspec.json.decode(told, type=PlanResult))
    assert msgspec.json.decode(read) == msgspec.json.decode(told)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (PlannedTimetable, reading_yaml._TOP_KEYS),
        (PlannedLab, reading_yaml._LAB_KEYS),
        (PlannedPool, reading_yaml._POOL_KEYS),
        (PlannedSessions, reading_yaml._SESSION_KEYS),
    ],
)
def test_the_api_knows_every_word_of_a_timetable_and_no_other(shape: type[Part], words: tuple[str, ...]) -> None:
    assert set(shape.__struct_encode_fields__) == set(words)
