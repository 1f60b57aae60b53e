"""Sessions as soon as possible on warm workers while a hundred others run, in real time, over HTTP, on a file store.

Everything but the client is one process, as `lcm up` is; only the time of machines and labs is sped up. What counts is
the time from the POST until the watch tells that the session is RUNNING, less what is CML's: the calls about its lab,
and from the end of its start until the look that found it converged, of which what a look came late by is ours again.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from bench.bench_workers import process
from bench.figures import Figure
from bench.sessions_server import CALLS
from harness.session_world import SMALL

KEY = "the-key-of-the-sessions-bench"
WORKERS, CONCURRENT, MEASURED = 8, 105, 60
"""Of those that run, a few are always ending while their successors start: a hundred are left."""
EVERY_SECONDS = 0.3
SPEED = 15
POLL_SECONDS = 0.2
"""How often a lab that boots is looked at, at this speed; in real time it is a second."""
PATIENCE_SECONDS = 240
SESSIONS = "/api/lablet-sessions"
TEMPLATE = {"aws": {"ami_name_pattern": "CML-2.9*"}, "cml": {"license_token": "env:CML_LICENSE_TOKEN"}}
POOL = {"lab_track": "ccna", "template": "metal", "min_workers": WORKERS, "max_workers": WORKERS}


class Call(NamedTuple):
    """One call about a lab."""

    verb: str
    title: str
    began: float
    ended: float


class Took(NamedTuple):
    """Where the seconds of one session went; `calls` and `boot` are CML's."""

    ours: float
    calls: float
    boot: float


class Used(NamedTuple):
    """How long the server ran, and waited for a processor while it could have run."""

    ran: float
    waited: float


@dataclass
class Client:
    """Posts sessions, and sees on the watch when each runs."""

    http: httpx.AsyncClient
    uids: dict[str, str] = field(default_factory=dict)
    posted: dict[str, float] = field(default_factory=dict)
    ran: dict[str, float] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def make(self, path: str, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        document = {"api_version": "lcm/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        answer = await self.http.post(path, json=document)
        assert answer.status_code == httpx.codes.CREATED, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def furnish(self) -> None:
        """Publish a lab, open a pool, and wait until all of its workers take sessions."""
        text = {"content-type": "text/yaml"}
        stored = (await self.http.post("/api/topologies", content=SMALL, headers=text)).json()
        lab = {"version": "1.0.0", "state": "active", "lab_track": "ccna", "topology": {"uri": stored["uri"]}}
        needs = {"cpu_cores": 1, "memory_gb": 2}
        await self.make(
            "/api/lablet-definitions", "LabletDefinition", "small:1.0.0", {**lab, "resource_requirements": needs}
        )
        await self.make("/api/worker-templates", "WorkerTemplate", "metal", {"worker": TEMPLATE})
        await self.make("/api/worker-pools", "LabWorkerPool", "ccna", POOL)
        while (ready := await self._ready()) < WORKERS:
            await asyncio.sleep(0.5)
        assert ready == WORKERS

    async def _ready(self) -> int:
        workers = (await self.http.get("/api/workers")).json()["items"]
        return sum(one["status"]["phase"] == "READY" for one in workers)

    async def ask(self, name: str) -> None:
        self.posted[name] = time.monotonic()
        made = await self.make(SESSIONS, "LabletSession", name, {"definition": "small:1.0.0", "duration_minutes": 60})
        self.uids[name] = made["metadata"]["uid"]

    async def end(self, name: str) -> None:
        (await self.http.post(f"{SESSIONS}/{name}/terminate", json={})).raise_for_status()

    async def watch(self) -> None:
        after = (await self.http.get(SESSIONS)).json()["revision"]
        wanted = {"kinds": "LabletSession", "after": after}
        async with self.http.stream("GET", "/api/watch", params=wanted, timeout=None) as lines:
            lines.raise_for_status()
            async for line in lines.aiter_lines():
                self._note(line)

    def _note(self, line: str) -> None:
        now = time.monotonic()
        for one in json.loads(line)["seen"]:
            name, phase = one["name"], one["object"]["status"]["phase"] if one["object"] else ""
            self.phases[name] = phase
            if phase == "RUNNING":
                self.ran.setdefault(name, now)
        self.news.set()

    async def run_of(self, names: Sequence[str]) -> None:
        """Wait until these have run."""
        while left := [name for name in names if name not in self.ran]:
            self.news.clear()
            try:
                await asyncio.wait_for(self.news.wait(), 30)
            except TimeoutError:
                raise AssertionError({name: self.phases.get(name) for name in left}) from None

    @property
    def running(self) -> int:
        return sum(phase == "RUNNING" for phase in self.phases.values())


def took(posted: float, ran: float, calls: Sequence[Call]) -> Took:
    """Take the time of one session apart."""
    started = next(one.ended for one in calls if one.verb == "start")
    looks = [one for one in calls if one.verb in {"converged", "elements"} and one.ended <= ran]
    last = next(one for one in reversed(looks) if one.verb == "converged")
    before = max((one.ended for one in looks if one.ended <= last.began), default=started)
    boot = last.began - started - max(0.0, last.began - before - POLL_SECONDS)
    outside = [one for one in calls if one.ended <= started or last.began <= one.began]
    asked = sum(one.ended - one.began for one in outside if one.ended <= ran)
    return Took(ran - posted - asked - boot, asked, boot)


@asynccontextmanager
async def served(folder: str) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    async with process("sessions_server.py", folder, KEY, SPEED) as server:
        assert server.stdout is not None
        url = (await asyncio.wait_for(server.stdout.readline(), PATIENCE_SECONDS)).decode().strip()
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as http:
            client = Client(http)
            await asyncio.wait_for(client.furnish(), PATIENCE_SECONDS)
            watching = asyncio.create_task(client.watch())
            try:
                yield client, server
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)


async def used(server: asyncio.subprocess.Process) -> Used:
    """Hear what was used so far; what was asked of CML is in its file then."""
    assert server.stdin and server.stdout  # noqa: PT018 - both are pipes
    server.stdin.write(b"\n")
    said = await asyncio.wait_for(server.stdout.readline(), PATIENCE_SECONDS)
    return Used(*map(float, said.split()))


async def measured(client: Client) -> tuple[list[str], int]:
    """Ask for sessions at a steady rate, ending as many; tell the fewest that ran meanwhile."""
    names, fewest = [f"m{number}" for number in range(MEASURED)], CONCURRENT
    for number, name in enumerate(names):
        at = time.monotonic()
        await client.ask(name)
        await client.end(f"s{number}")
        fewest = min(fewest, client.running)
        await asyncio.sleep(max(0.0, at + EVERY_SECONDS - time.monotonic()))
    await client.run_of(names)
    return names, fewest


def figures(each: Sequence[Took], fewest: int, ran: float, waited: float) -> list[Figure]:
    """Print what was measured; nothing where the server waited for a processor for longer than it ran."""
    ours = [one.ours * 1000 for one in each]
    middle = Took(*(statistics.median(column) for column in zip(*each, strict=True)))
    told = f"ms from POST to RUNNING beyond CML's, {len(each)} sessions beside at least {fewest} that ran"
    deducted = f"deducted {middle.boot * 1000:.0f} ms of boot and {middle.calls * 1000:.1f} ms of calls (medians)"
    core = f"ms; {ran * 1000:.0f} ms of a core a session, and {waited * 1000:.0f} ms others were on it"
    quiet = waited <= ran
    p99 = statistics.quantiles(ours, n=100, method="inclusive")[-1]
    return [
        Figure("sessions_p99", p99, 250, at_least=False, floor_ok=quiet, note=f"{told}; {deducted}"),
        Figure("sessions_median", statistics.median(ours), 250, at_least=False, floor_ok=quiet, note=core),
    ]


async def bench_sessions() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        async with served(folder) as (client, server):
            first = [f"s{number}" for number in range(CONCURRENT)]
            for name in first:
                await client.ask(name)
                await asyncio.sleep(0.1)
            await client.run_of(first)
            before = await used(server)
            names, fewest = await measured(client)
            after = await used(server)
            calls = [Call(*one) for one in json.loads((Path(folder) / CALLS).read_bytes())]
    by_uid: dict[str, list[Call]] = {}
    for one in calls:
        by_uid.setdefault(one.title.rpartition("[")[2].rstrip("]"), []).append(one)
    each = [took(client.posted[name], client.ran[name], by_uid[client.uids[name]]) for name in names]
    ran, waited = ((late - early) / MEASURED for late, early in zip(after, before, strict=True))
    return figures(each, fewest, ran, waited)
