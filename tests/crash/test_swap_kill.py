"""Plans are swapped while people book, extend and cancel, by processes that are killed again and again on one store.

The store's history is read commit by commit: no seat ever has more than it holds, and each booking keeps its claims,
with their time and need, until somebody cancels it.
"""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from crash.busy_leader import open_store
from harness import suite
from harness.servers import EtcdServer
from lcm.control.objects.records import CODEC, ref_of_key
from lcm.model.base.capacity import Claim, Profile
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.placement.places import claims_of_booking
from lcm.store.base import Change, CommitChanges, Put, Store, scan_all
from lcm.system.clock import SystemClock
from simulation.random_bookings import ROOM, SEATS, furnish

SWAPPER = Path(__file__).with_name("seat_swapper.py")
LINES = 2
LIVES = 4 * suite.TIMES
"""Processes that are killed one after another in each of the lines, which run at the same time."""
MIN_DEEDS, MAX_DEEDS = 30, 60
"""What a process has said when it is killed, however long that takes on this machine."""
PATIENCE_SECONDS = 300 * suite.TIMES
PREFIXES = ("lablet-sessions/", "reservations/")
LAST = "end"

Seated = dict[str, tuple[int, Claim]]
"""By holder: where a claim is, and what."""


@dataclass
class History:
    """What every commit did to claims, and what was wrong with any of them."""

    claims: dict[str, Seated] = field(default_factory=dict)
    """By the key of the booking."""
    gone: set[str] = field(default_factory=set)
    counted: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def follow(self, watch: AsyncIterator[CommitChanges]) -> None:
        async for commit in watch:
            if commit.changes[-1].key == LAST:
                return
            touched = {seat for change in commit.changes for seat in self._apply(change, commit.revision)}
            self.counted["commits"] += 1
            self.wrong += [f"{commit.revision}: seat {seat} has too much" for seat in touched if self._is_over(seat)]

    def _apply(self, change: Change, revision: int) -> Iterable[int]:
        """Take a booking as it is now; return the seats on which something came."""
        before, after = self.claims.pop(change.key, None), seated_claims(change)
        if after:
            self.claims[change.key] = after
            self.counted["swapped"] += bool(before) and before != after
        elif before:
            self.gone.add(change.key)
        if before and after:
            broken = [holder for holder, old in before.items() if not keeps(old[1], after.get(holder))]
            self.wrong += [f"{revision}: {holder} was promised otherwise" for holder in broken]
        return {seat for seat, _ in after.values()}

    def _is_over(self, seat: int) -> bool:
        there = [claim for held in self.claims.values() for number, claim in held.values() if number == seat]
        return bool(Profile.of(there).find_overcommitted(ROOM)) or not 1 <= seat <= SEATS


def seated_claims(change: Change) -> Seated:
    ref = ref_of_key(change.key)
    if change.entry is None or ref is None:
        return {}
    booking = CODEC.decode(change.entry.value, ref.kind)
    assert isinstance(booking, LabletSession | Reservation)
    return {held.holder: (number, held.claim) for _, number, held in claims_of_booking(booking)}


def keeps(old: Claim, new: tuple[int, Claim] | None) -> bool:
    """Return whether a promise is kept: on any seat, from the same moment, for the same need, and as long or longer."""
    return new is not None and new[1].start == old.start and new[1].need == old.need and new[1].end >= old.end


async def start(place: Sequence[str], name: str) -> asyncio.subprocess.Process:
    pipe, paths = asyncio.subprocess.PIPE, [suite.ROOT / "src", suite.ROOT / "tests"]
    said = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return await asyncio.create_subprocess_exec(
        sys.executable, SWAPPER, *place, name, stdin=pipe, stdout=pipe, env=said
    )


async def live_in_line(place: Sequence[str], line: int) -> list[list[str]]:
    """Start one process after the other, and kill each in the middle of things; return what they said."""
    chance, told = random.Random(line), list[list[str]]()
    coming = await start(place, f"{line}-0")
    for life in range(LIVES):
        process, coming = coming, await start(place, f"{line}-{life + 1}")
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        process.stdin.write(b"go\n")
        for _ in range(chance.randrange(MIN_DEEDS, MAX_DEEDS)):
            told.append((await process.stdout.readline()).decode().split())
        await asyncio.sleep(chance.uniform(0, 0.05))
        process.kill()
        told += [text.split() for text in (await process.stdout.read()).decode().splitlines()]
        await process.wait()
    coming.kill()
    await coming.communicate()
    return told


@contextmanager
def opened(engine: str, folder: Path) -> Iterator[tuple[str, str]]:
    if engine == "sqlite":
        yield engine, str(folder / "store.db")
    else:
        with EtcdServer(folder) as server:
            yield engine, server.endpoint


async def watched_lives(store: Store, place: Sequence[str]) -> tuple[History, list[list[str]]]:
    history = History()
    await furnish(store, SystemClock().now())
    revision = (await store.scan("", limit=1)).revision
    following = asyncio.create_task(history.follow(store.watch(*PREFIXES, LAST, after=revision)))
    lines = await asyncio.gather(*(live_in_line(place, line) for line in range(LINES)))
    await store.commit(Put(LAST, b""))
    await following
    return history, [said for line in lines for said in line]


def lost_bookings(history: History, told: Sequence[Sequence[str]]) -> list[str]:
    """Return the bookings that somebody was told to have, and has not as told, though nobody wanted to cancel them."""
    wanted = {said[1] for said in told if said[0] == "cancel"}
    now = {key.rpartition("/")[2]: list(held.values()) for key, held in history.claims.items()}
    lost = [key for key in history.gone if key.rpartition("/")[2] not in wanted]
    for deed, name, figure in (said for said in told if said[0] in {"booked", "extended", "reserved"}):
        held = now.get(name)
        if held is None:
            lost += [] if name in wanted else [name]
        elif deed == "reserved":
            lost += [] if len(held) == int(figure) else [f"{name}: {len(held)} of {figure}"]
        elif held[0][1].end < datetime.fromisoformat(figure):
            lost.append(f"{name}: till {held[0][1].end}, and {deed} till {figure}")
    return lost


@pytest.mark.parametrize("engine", ["etcd", *(["sqlite"] if suite.TIMES > 1 else [])])
async def test_plans_are_swapped_under_those_who_book(engine: str, tmp_path: Path, tell: Callable[[str], None]) -> None:
    with opened(engine, tmp_path) as place:
        store = await open_store(*place)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                history, told = await watched_lives(store, place)
            kept = [one for prefix in PREFIXES for one in (await scan_all(store, prefix)).entries]
        finally:
            await store.close()
    lost, done = lost_bookings(history, told), Counter(said[0] for said in told)
    moved = sum(int(said[1]) for said in told if said[0] == "moved")
    tell(
        f"swaps on {engine}: {LINES * LIVES} kills; {done['booked'] + done['reserved']} booked, {done['extended']} "
        f"extended, {done['cancelled']} cancelled, {done['refused']} refused; {moved} claims moved in {done['moved']} "
        f"steps, {done['stayed']} steps refused; {history.counted['commits']} commits checked, "
        f"{len(history.wrong)} over-commits or broken promises, {len(lost)} bookings lost"
    )
    assert (history.wrong, lost) == ([], [])
    assert [said for said in told if said[0] == "confused"] == [], "seats differ from the bookings on them"
    assert {one.key for one in kept} >= history.claims.keys()
    assert min(done["booked"], done["extended"], done["cancelled"], done["moved"]) > LIVES
