"""Somebody who books without end at two API processes gets exactly what the quotas allow, and nobody else notices.

`make chaos` asks ten thousand times.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest

from harness.commands import Running
from harness.servers import EtcdServer
from harness.suite import TIMES
from lcm.control.access.tokens import Tokens
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Plane, ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, NoRoom
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.store.etcd.engine import EtcdStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock, new_id
from lcm.system.data_folder import STORE_FILE
from simulation.random_bookings import furnish

ATTEMPTS = 10_000 if TIMES > 1 else 200
GREEDY_AT_ONCE = 16
PENDING, AHEAD = 7, 40
ROUNDS = 20 if TIMES > 1 else 2
BASELINE = 8
HALF_HOUR = timedelta(minutes=30)
SLOWER, FLOOR = (2.0, 0.02) if TIMES > 1 else (6.0, 0.2)
"""How much slower another's booking may be meanwhile. What runs beside other tests says little about it."""


@pytest.mark.parametrize("engine", ["sqlite", "etcd"])
async def test_somebody_greedy_at_two_apis_gets_what_the_quotas_allow_and_no_more(
    tmp_path: Path, etcd: EtcdServer, tell: Callable[[str], None], engine: str
) -> None:
    root, folder = f"/{new_id()}/", tmp_path / "data"
    said = {"LCM_DATA_DIR": str(folder), "LCM_CLOUD": "simulated", "CONTROL_PLANE_API_KEY": new_id()}
    said |= {"ETCD_ENDPOINTS": etcd.endpoint, "ETCD_ROOT": root} if engine == "etcd" else {}
    said |= {"LCM_WRITES_PER_HOUR": "36000000"}
    said |= {"MAX_PENDING_PER_OWNER": str(PENDING), "MAX_AHEAD_PER_OWNER": str(AHEAD)}
    async with AsyncExitStack() as undo:
        folder.mkdir(mode=0o700)
        store = await (
            EtcdStore.open([etcd.endpoint], root=root) if engine == "etcd" else SqliteStore.open(folder / STORE_FILE)
        )
        undo.push_async_callback(store.close)
        now = SystemClock().now()
        await furnish(store, now)
        tokens = Tokens(store, clock=SystemClock(), service_key=None)
        await tokens.start()
        undo.push_async_callback(tokens.close)
        roles = {"gus": Role.USER, "ada": Role.USER, "otto": Role.OPERATOR}
        keys = {name: (await tokens.make(name, role))[0] for name, role in roles.items()}
        with (
            Running(tmp_path, "serve", "api", "--port=0", **said) as one,
            Running(tmp_path, "serve", "api", "--port=0", **said) as other,
        ):
            urls = [one.ready().url, other.ready().url]
            workers = undo.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            otto = await _plane(undo, urls[0], "otto", keys["otto"])
            ada = [await _plane(undo, url, "ada", keys["ada"]) for url in urls]
            alone, beside, answers = list[float](), list[float](), Counter[str]()
            loop, number = asyncio.get_running_loop(), iter(range(ATTEMPTS * 100))
            for first in range(0, ATTEMPTS, ATTEMPTS // ROUNDS):
                # By turns, so that whatever else the machine does counts for both.
                alone += [await _time_booking(ada, next(number), now) for _ in range(BASELINE)]
                # In a process of its own: what one waits for within this one would be no latency of the API.
                some = range(first, first + ATTEMPTS // ROUNDS)
                flood = loop.run_in_executor(workers, flood_apis, urls, keys["gus"].reveal(), now, some)
                while not flood.done():
                    beside.append(await _time_booking(ada, next(number), now))
                answers += await flood
            every = (await otto.list(LabletSession, limit=1000)).items
            found = [one for one in every if one.spec.owner == "gus"]
            assert (one.stop()[0], other.stop()[0]) == (0, 0)
        waiting = sum(one.spec.timeslot_start is None for one in found)
    ratio = median(beside) / median(alone)
    tell(
        f"greed at 2 APIs on {engine}: {ATTEMPTS} bookings asked for, {waiting} of {PENDING} waiting and "
        f"{len(found) - waiting} of {AHEAD} ahead; refused {dict(answers)}; another's booking took "
        f"{_describe(alone)} before and {_describe(beside)} meanwhile, {ratio:.2f} times"
    )
    assert (waiting, len(found) - waiting) == (PENDING, AHEAD)
    assert sum(answers.values()) == ATTEMPTS
    assert {why for why in answers if why} == {"pending_limit", "ahead_limit"}
    assert median(beside) <= max(SLOWER * median(alone), FLOOR)


def _describe(times: Sequence[float]) -> str:
    last = sorted(times)[-1 - len(times) // 100]
    return f"{1000 * median(times):.1f} ms (p99 {1000 * last:.1f} ms of {len(times)})"


async def _plane(undo: AsyncExitStack, url: str, name: str, token: Secret) -> Plane:
    return await undo.enter_async_context(HttpPlane.open(url, token, caller=Caller(name=name, role=Role.USER)))


def flood_apis(urls: Sequence[str], token: str, now: datetime, numbers: range) -> Counter[str]:
    """Ask for everything, now and ahead, as fast as one is heard; return how often each answer came."""

    async def main() -> Counter[str]:
        answers, wishes = Counter[str](), _wishes(now, numbers)
        async with AsyncExitStack() as undo:
            planes = [await _plane(undo, url, "gus", Secret(token)) for url in urls]

            async def ask(number: int) -> None:
                for place, wish in wishes:
                    answers[await _ask(planes[(place + number) % 2], wish)] += 1

            await asyncio.gather(*(ask(number) for number in range(GREEDY_AT_ONCE)))
        return answers

    return asyncio.run(main())


def _wishes(now: datetime, numbers: range) -> Iterator[tuple[int, LabletSession]]:
    day = now.replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
    for number in numbers:
        start = day + (number // 2 % 1500) * HALF_HOUR
        when: dict[str, Any] = {"timeslot_start": start, "timeslot_end": start + HALF_HOUR}
        if number % 2:
            when = {"duration_minutes": 30}
        spec = LabletSessionSpec(definition="small:1.0.0", **when)
        yield number, LabletSession(metadata=Metadata(name=f"g{number}"), spec=spec)


async def _ask(plane: Plane, wish: LabletSession) -> str:
    """Ask until there is an answer; return why it was refused, or nothing."""
    while True:
        try:
            await plane.create(wish)
        except NoRoom as error:
            return error.why
        except Later as error:
            await asyncio.sleep(error.after.total_seconds())
        else:
            return ""


async def _time_booking(planes: Sequence[Plane], number: int, now: datetime) -> float:
    """Return how many seconds another's booking takes; it is cancelled afterwards."""
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(days=40) + number % 24 * HALF_HOUR
    spec = LabletSessionSpec(definition="small:1.0.0", timeslot_start=start, timeslot_end=start + HALF_HOUR)
    begun = perf_counter()
    made = await planes[number % 2].create(LabletSession(metadata=Metadata(name=f"a{number}"), spec=spec))
    took = perf_counter() - begun
    await planes[number % 2].delete(ref_of(made))
    return took
