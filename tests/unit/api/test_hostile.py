"""One request of one user costs the others nothing: not its answer's size, not the time it takes."""

import asyncio
from collections.abc import AsyncIterator
from time import thread_time
from typing import Any

import httpx
import msgspec
import pytest

from harness import suite
from harness.api_world import Desk, document, opened
from harness.plane_world import LIMITS

LONGEST_STALL = 2.5
"""Generous: it takes about a tenth of this, on a machine of the usual pace."""
PATIENCE = 60
"""How long the answer may take by the clock on the wall, which says more about the machine than about the answer."""
LARGEST_ANSWER = 300_000


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened(limits=LIMITS) as desk:
        yield desk


async def post(desk: Desk, path: str, body: Any, who: str = "ada") -> tuple[httpx.Response, float]:
    """Send a body and measure for how long nobody else got a turn, in seconds of work: others may use the machine."""
    stalls = [0.0]

    async def tick() -> None:
        while True:
            before = thread_time()
            await asyncio.sleep(0.001)
            stalls.append(thread_time() - before)

    content = msgspec.json.encode(body)
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    headers = {"Content-Type": "application/json"}
    answer = await desk.ask(who, "POST", path, content=content, headers=headers, timeout=PATIENCE)
    await asyncio.sleep(0.002)
    ticking.cancel()
    await asyncio.wait([ticking])
    return answer, max(stalls)


def session(**more: Any) -> dict[str, Any]:
    made = document("LabletSession")
    return {**made, "metadata": made["metadata"] | more}


def deep(inner: object) -> object:
    for _ in range(300):
        inner = {"k" * 128: inner}
    return inner


BODIES: dict[str, list[Any]] = {
    "labels": [session(labels={str(number): number for number in range(250_000)})],
    "labels of many": [session(labels={str(number): number for number in range(45_000)}) for _ in range(5)],
    "unknown fields": [session(**{f"nmae{number}": number for number in range(49_000)}) for _ in range(4)],
    "values": [session(labels=[[]] * 1_000_000)],
    "deep": [deep([[]] * 49_000) for _ in range(20)],
    "secrets": [session(labels=["plain:x"] * 49_000) for _ in range(5)],
    "long names": [session(**{"x" * 3_000_000: {str(number): 1 for number in range(40_000)}})],
    "documents": [{"kind": "x" * 500} for _ in range(5_000)],
}


@pytest.mark.parametrize("name", BODIES)
async def test_an_apply_full_of_faults_is_answered_briefly_and_at_once(desk: Desk, name: str) -> None:
    answer, stall = await post(desk, "/api/apply", {"documents": BODIES[name]})
    assert answer.status_code in (413, 422), answer.text[:500]
    assert len(answer.content) < LARGEST_ANSWER
    assert len(answer.json()["detail"]) <= 2_000
    assert stall < suite.here(LONGEST_STALL)


@pytest.mark.parametrize("count", [40_000, 60_000])
async def test_a_document_full_of_unknown_fields_is_answered_briefly_and_at_once(desk: Desk, count: int) -> None:
    wrong = {**document("LabletSession"), **{f"metad{number}": 1 for number in range(count)}}
    answer, stall = await post(desk, "/api/lablet-sessions", wrong)
    assert answer.status_code == 422
    assert len(answer.content) < 60_000
    assert stall < suite.here(LONGEST_STALL)


async def test_those_who_do_not_run_the_system_apply_less_at_once(desk: Desk) -> None:
    body = {"documents": [document("LabletSession")], "padding": "x" * (4 * LIMITS.body_bytes)}
    assert (await post(desk, "/api/apply", body))[0].status_code == 413
    assert (await post(desk, "/api/apply", body, "anna"))[0].status_code == 413
    assert (await post(desk, "/api/apply", body, "root"))[0].status_code == 422
