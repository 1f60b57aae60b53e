"""A lab that is wanted now, with prebuilt ones ready, while a hundred others run: in real time, over HTTP.

The server is that of the sessions bench. What counts is the time from the POST until its answer says RUNNING.
"""

import asyncio
import statistics
import tempfile
import time
from typing import Any

from bench.bench_sessions import PATIENCE_SECONDS, SESSIONS, Client, served
from bench.figures import Figure

OTHERS, MEASURED, READY = 100, 60, 10
EVERY_SECONDS = 0.5
DEFINITION = "/api/lablet-definitions/small:1.0.0"


async def until_ready(client: Client, number: int) -> None:
    """Wait until so many prebuilt labs are ready."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await client.http.get(f"{DEFINITION}/prebuilt")).json()["ready"] < number:
            await asyncio.sleep(0.2)


async def take(client: Client, name: str) -> tuple[float, str]:
    """Return how many milliseconds a booking took, and the phase in its answer."""
    spec = {"definition": "small:1.0.0", "duration_minutes": 60}
    began = time.monotonic()
    made: dict[str, Any] = await client.make(SESSIONS, "LabletSession", name, spec)
    return (time.monotonic() - began) * 1000, made["status"]["phase"]


async def bench_prebuilt() -> list[Figure]:
    took, missed = list[float](), 0
    with tempfile.TemporaryDirectory() as folder:
        async with served(folder) as (client, _):
            first = [f"s{number}" for number in range(OTHERS)]
            for name in first:
                await client.ask(name)
                await asyncio.sleep(0.1)
            await client.run_of(first)
            wanted = {"spec": {"prebuilt": {"count": READY}}}
            (await client.http.patch(DEFINITION, json=wanted)).raise_for_status()
            await until_ready(client, READY)
            for number in range(MEASURED):
                await until_ready(client, 1)
                spent, phase = await take(client, f"m{number}")
                missed += phase != "RUNNING"
                took.append(spent)
                await client.end(f"m{number}")
                await asyncio.sleep(EVERY_SECONDS)
            running = client.running
    p99 = statistics.quantiles(took, n=100, method="inclusive")[-1]
    note = f"ms from POST to RUNNING, {len(took)} bookings with a lab ready beside {running} that ran; {missed} missed"
    return [
        Figure("prebuilt_p99", p99, 1000, at_least=False, floor_ok=not missed, note=note),
        Figure("prebuilt_median", statistics.median(took), 250, at_least=False, floor_ok=True, note="ms"),
    ]
