"""Plans as processes: what they say is heard, what they cost is limited, and none outlives whoever started it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from apis import Desk, opened
from lcm.api.examples import BODIES
from lcm.api.plans import PlanJob, PlanState, PlanWish
from lcm.model.errors import Gone, IllegalStep, Invalid, Throttled
from lcm.plan_jobs import PlanJobs, PlanLimits
from lcm.system import new_id
from planes import hand_clock
from stores import HandClock

SOON = 60
WISH = msgspec.convert(BODIES["PlanWish"], PlanWish)
HEARD = 'import json, sys, time\nasked = json.load(sys.stdin)\nsay = lambda **it: print(json.dumps(it), flush=True)\n'
ENDLESS = HEARD + "say(progress=0.25, left_seconds=30)\ntime.sleep(600)"
"""A child of its own, too, which must not stay behind."""
PARENT = (
    HEARD
    + "import subprocess\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    + "say(progress=0.1, left_seconds=child.pid)\ntime.sleep(600)"
)


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
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def asked(plans: PlanJobs) -> AsyncIterator[Desk]:
    async with plans, opened(plans=plans) as desk:
        yield desk


async def test_a_plan_that_runs_tells_how_far_it_is_and_is_ended_with_all_that_it_started() -> None:
    async with jobs(PARENT) as plans:
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
    async with jobs(PARENT) as plans:
        child = int((await plans.begin(WISH, "root")).left_seconds or 0)
    await gone(child)


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
        (ENDLESS, {"time": timedelta(seconds=0.5), "reading": timedelta(seconds=SOON)}, "it took more than"),
        (HEARD + "say(progress=0.1, much='x' * 100_000)\ntime.sleep(600)", {"line_bytes": 1_000}, "too large"),
        (HEARD + "sys.exit('a bug')", {}, "ended early"),
        (HEARD + "print('nonsense', flush=True)\ntime.sleep(600)", {}, "not understood"),
        (HEARD + "say(problem={'detail': 'no fleet can'})", {}, "no fleet can"),
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
    async with jobs(HEARD + f"say(problem={{'detail': 'x', 'faults': [{fault}]}})", at_once=1) as plans:
        for _ in range(2):
            with pytest.raises(Invalid) as caught:
                await plans.begin(WISH, "root")
            assert str(caught.value) == "sessions[0].definition: no such lab; use basics"
