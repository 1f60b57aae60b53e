"""What clients of the growth bench ask, and how long each answer takes.

A session as soon as possible is timed until the watch tells that it runs. The simulated CML boots its lab in a few
hundredths of a second at the bench's speed; that is not taken off.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

import httpx

from bench.growth_process import Used
from bench.growth_world import PAUSED, PLANNED, RUNNING, Size

GETS, LISTS, SEARCHES, BOOKINGS, CHANGES, EVENTS, ASAPS = 300, 60, 8, 150, 150, 40, 40
LISTENERS = 15
WARM_UPS = 3
SESSIONS, WORKERS = "/api/lablet-sessions", "/api/workers"
PATIENCE_SECONDS = 60


class Reading(NamedTuple):
    """What something took, often."""

    median: float
    p99: float
    unit: str = "ms"


def percentile(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


def reading_of(seconds: Sequence[float]) -> Reading:
    """Return a reading in milliseconds."""
    return Reading(statistics.median(seconds) * 1000, percentile(seconds) * 1000)


class GrowthClient:
    """Asks the API as its administrator."""

    def __init__(self, url: str, token: str, size: Size) -> None:
        headers = {"authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=PATIENCE_SECONDS)
        self._size = size
        self._chance = random.Random(11)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def measure_all(self, used: Callable[[], Used]) -> dict[str, Reading]:
        """Measure everything, one after the other."""
        return {
            "get": await self._time(GETS, self._get),
            "list": await self._time(LISTS, self._list),
            "search": await self._time(SEARCHES, self._search),
            "booking": await self._time(BOOKINGS, self._book),
            "change": await self._measure_changes(used),
            "fan_out": await self._measure_fan_out(),
            "asap": await self._measure_asap(),
        }

    async def longest_hold(self) -> tuple[float, str]:
        """Return the longest hold of the loop since the start, and by what."""
        for line in (await self._http.get("/metrics")).text.splitlines():
            if line.startswith("lcm_loop_longest_hold_seconds{"):
                return float(line.rpartition(" ")[2]), line.partition('"')[2].partition('"')[0]
        return 0.0, "nothing"

    async def _time(self, count: int, ask: Callable[[], Awaitable[object]]) -> Reading:
        for _ in range(WARM_UPS):
            await ask()
        taken = list[float]()
        for _ in range(count):
            began = time.monotonic()
            await ask()
            taken.append(time.monotonic() - began)
        return reading_of(taken)

    async def _send(self, method: str, path: str, **request: Any) -> Any:
        answer = await self._http.request(method, path, **request)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer.json()

    async def _get(self) -> None:
        await self._send("GET", f"{SESSIONS}/session-zz{self._chance.randrange(self._size.sessions):06}")

    async def _list(self) -> None:
        assert len((await self._send("GET", SESSIONS, params={"limit": 100}))["items"]) == 100

    async def _search(self) -> None:
        """List by a field that nothing has."""
        wanted = {"field_selector": "status.phase=FAILED", "limit": 100}
        assert not (await self._send("GET", SESSIONS, params=wanted))["items"]

    async def _book(self) -> None:
        start = datetime.now(UTC) + timedelta(days=self._chance.uniform(3, 60))
        slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=2)).isoformat()}
        name = f"booked-{self._chance.getrandbits(64):x}"
        body = {"metadata": {"name": name}, "spec": {"definition": self._lab(), **slot}}
        await self._send("POST", SESSIONS, json=body)

    def _lab(self) -> str:
        return f"lab-xq{self._chance.randrange(self._size.pools):02}:1.0.0"

    async def _measure_changes(self, used: Callable[[], Used]) -> Reading:
        """Measure what a change of one worker costs all of the process, in milliseconds of a core."""
        costs = list[float]()
        for number in range(CHANGES):
            pool, place = self._chance.randrange(self._size.pools), self._chance.randrange(PLANNED)
            name = f"w-xq{pool:02}-{place + 1}" if place < RUNNING else f"{PAUSED[:-5]}{pool * PLANNED + place:05}"
            before = used().ran
            await self._send("PATCH", f"{WORKERS}/{name}", json={"metadata": {"labels": {"turn": str(number)}}})
            await asyncio.sleep(0.05)
            costs.append(used().ran - before)
        tens = [sum(costs[at : at + 10]) / 10 for at in range(0, CHANGES, 10)]
        return Reading(statistics.median(tens) * 1000, max(tens) * 1000, "ms of a core")

    async def _measure_fan_out(self) -> Reading:
        """Measure how long after a booking was sent the last of many clients hears of it."""
        arrived: dict[str, list[float]] = {}
        listening = [asyncio.create_task(self._listen(arrived)) for _ in range(LISTENERS)]
        await asyncio.sleep(2)
        taken = list[float]()
        for number in range(EVENTS):
            name, began = f"heard-{number}", time.monotonic()
            body = {"metadata": {"name": name}, "spec": {"definition": self._lab(), **_slot(number)}}
            await self._send("POST", SESSIONS, json=body)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(arrived.get(name, ())) < LISTENERS:
                    await asyncio.sleep(0.001)
            taken.append(max(arrived[name]) - began)
        for one in listening:
            one.cancel()
        await asyncio.gather(*listening, return_exceptions=True)
        return reading_of(taken)

    async def _listen(self, arrived: dict[str, list[float]]) -> None:
        wanted = {"snapshot": "false", "event_types": "lablet.session.created"}
        async with self._http.stream("GET", "/api/events/stream", params=wanted, timeout=None) as lines:
            async for line in lines.aiter_lines():
                if line.startswith("data:") and "heard-" in line:
                    name = "heard-" + line.partition("heard-")[2].partition('"')[0]
                    arrived.setdefault(name, []).append(time.monotonic())

    async def _measure_asap(self) -> Reading:
        """Measure how long sessions take from the request until they run."""
        ran: dict[str, float] = {}
        after = (await self._send("GET", SESSIONS, params={"limit": 1}))["revision"]
        watching = asyncio.create_task(self._watch(after, ran))
        taken = list[float]()
        for number in range(ASAPS):
            name, began = f"now-{number}", time.monotonic()
            body = {"metadata": {"name": name}, "spec": {"definition": self._lab(), "duration_minutes": 60}}
            await self._send("POST", SESSIONS, json=body)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while name not in ran:
                    await asyncio.sleep(0.001)
            taken.append(ran[name] - began)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return reading_of(taken)

    async def _watch(self, after: int, ran: dict[str, float]) -> None:
        wanted = {"kinds": "LabletSession", "after": str(after)}
        async with self._http.stream("GET", "/api/watch", params=wanted, timeout=None) as lines:
            async for line in lines.aiter_lines():
                for one in json.loads(line)["seen"]:
                    if one["object"] and one["object"]["status"]["phase"] == "RUNNING":
                        ran.setdefault(one["name"], time.monotonic())


def _slot(number: int) -> dict[str, str]:
    start = datetime.now(UTC) + timedelta(days=3, hours=number)
    return {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=2)).isoformat()}
