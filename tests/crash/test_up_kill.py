"""`lcm up` killed at any moment loses no write it had an answer for, nor its events, nor the context of its user."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from harness import suite
from harness.api_world import Shell
from harness.commands import up
from harness.documents import document
from harness.stores import opened
from lcm.model.base import event
from lcm.store.base import Put, Store
from lcm.system.data_folder import STORE_FILE

KILLS = 4 * suite.TIMES
WRITERS = 4
ENOUGH = 40
MIN_SECONDS, MAX_SECONDS = 0.01, 0.2
END = b"end"
UNLIMITED = {"LCM_REQUESTS_PER_SECOND": "1000000", "LCM_REQUEST_BURST": "1000000", "LOG_LEVEL": "ERROR"}


@dataclass
class Writer:
    """Makes workers and labels them, one after the other; what had no answer is asked again after the next start."""

    name: str
    made: dict[str, str] = field(default_factory=dict)
    labelled: dict[str, str] = field(default_factory=dict)
    pending: str = ""
    repeated: int = 0

    async def write(self, client: httpx.AsyncClient) -> None:
        """Go on until the server is gone."""
        try:
            while True:
                await self._make(client)
                await self._label(client)
        except httpx.TransportError:
            return

    async def _make(self, client: httpx.AsyncClient) -> None:
        self.repeated += bool(self.pending)
        self.pending = self.pending or f"{self.name}-{len(self.made)}"
        wanted = document("LabWorker") | {"metadata": {"name": self.pending}}
        answer = await client.post("/api/workers", json=wanted, headers={"idempotency-key": self.pending})
        assert answer.status_code == 201, answer.text
        self.made[self.pending] = answer.json()["metadata"]["uid"]
        self.pending = ""

    async def _label(self, client: httpx.AsyncClient) -> None:
        name, turn = list(self.made)[-1], str(len(self.labelled))
        answer = await client.patch(f"/api/workers/{name}", json={"metadata": {"labels": {"turn": turn}}})
        assert answer.status_code == 200, answer.text
        self.labelled[name] = turn


async def created_in(store: Store) -> list[str | None]:
    """Read every event that was ever committed; returns whom those are about that say that a worker was made."""
    await store.commit(Put("end", b""), events=[END])
    found: list[bytes] = []
    async with asyncio.timeout(60), store.events(after=1) as reader:
        while END not in found:
            found += (await anext(reader)).events
    events = map(event.decode_event, found[:-1])
    return [one.worker_id for one in events if one.type == "worker.created"]


async def kill_at_work(home: Path, writers: Sequence[Writer], chance: random.Random, *, busy: bool) -> str:
    """Start, write, kill at any moment or when much was written; returns the token that the user was given."""
    with up(home, **UNLIMITED) as it:
        async with it.ready().client() as client:
            writing = [asyncio.create_task(writer.write(client)) for writer in writers]
            enough = acknowledged(writers) + (ENOUGH if busy else 0)
            async with asyncio.timeout(60):
                while acknowledged(writers) < enough:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(MIN_SECONDS, MAX_SECONDS))
            it.process.kill()
            await asyncio.gather(*writing)
        return it.token


async def kill_at_start(home: Path, chance: random.Random) -> None:
    """Start and kill before it is ready, or about then."""
    with up(home, **UNLIMITED):
        await asyncio.sleep(chance.uniform(0.2, 1))


def acknowledged(writers: Sequence[Writer]) -> int:
    return sum(len(writer.made) for writer in writers)


async def check_labels(client: httpx.AsyncClient, writer: Writer) -> None:
    for name, label in writer.labelled.items():
        worker = (await client.get(f"/api/workers/{name}")).json()
        assert worker["metadata"]["uid"] == writer.made[name]
        assert worker["metadata"]["labels"] == {"turn": label}


async def test_a_killed_up_starts_again_with_nothing_lost(tmp_path: Path, tell: Callable[[str], None]) -> None:
    chance, writers, tokens = random.Random(4), [Writer(f"w{number}") for number in range(WRITERS)], set[str]()
    for turn in range(KILLS):
        tokens.add(await kill_at_work(tmp_path, writers, chance, busy=turn % 2 == 0))
        await kill_at_start(tmp_path, chance)

    with up(tmp_path, **UNLIMITED) as it:
        tokens.add(it.ready().token)
        listed = await asyncio.to_thread(Shell(tmp_path / "config").out, "get", "workers", "-o", "name")
        async with it.client() as client:
            for writer in writers:
                await check_labels(client, writer)
        assert it.stop()[0] == 0
    async with opened(tmp_path / "data" / STORE_FILE) as store:
        created = await created_in(store)

    made = {name: uid for writer in writers for name, uid in writer.made.items()}
    lost = made.keys() - {line.rpartition("/")[2] for line in listed.split()}
    unheard = set(made.values()) - set(created)
    doubled = len(created) - len(set(created))
    tell(
        f"lcm up: {KILLS} kills under load and {KILLS} at its start; {len(made)} workers acknowledged, "
        f"{sum(writer.repeated for writer in writers)} asked again; {len(lost)} writes lost, "
        f"{len(unheard)} events lost, {doubled} doubled"
    )
    assert (lost, unheard, doubled) == (set(), set(), 0)
    assert len(tokens) == 1, "the context worked throughout"
