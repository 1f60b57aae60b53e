"""Serves one side of the events bench: `python events_server.py ours|bare FOLDER`; prints its port and a token.

Each line on standard input, "COUNT PAUSE", publishes so many events with so many seconds between them.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.baseline.fan_out import FanOut
from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.api.routes.stream import frame
from lcm.control.access.tokens import Tokens
from lcm.control.delivery.feed import Position
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Role
from lcm.model.base.event import Event, encode_event
from lcm.store.base import Put
from lcm.store.sqlite.engine import SqliteStore
from lcm.system import log, serving
from lcm.system.clock import SystemClock

Publish = Callable[[Event, int], Awaitable[None]]
LIMITS = ApiLimits(requests_per_second=1e9, burst=10**9, streams=10**6)
PAD = "x" * 250


def event() -> Event:
    data = msgspec.Raw(msgspec.json.encode({"at": f"{time.time():.6f}", "pad": PAD}))
    now = SystemClock().now()
    return Event(type="bench", time=now, kind="LabWorker", name="w1", namespace="default", data=data)


async def commands() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def obey(publish: Publish) -> None:
    reader, number = await commands(), 0
    while line := await reader.readline():
        count, pause = line.split()
        for _ in range(int(count)):
            number += 1
            await publish(event(), number)
            await asyncio.sleep(float(pause))


async def bare() -> None:
    app, listening = FanOut(), serving.listen("127.0.0.1", 0)
    print(listening.getsockname()[1], "none", flush=True)

    async def publish(event: Event, number: int) -> None:
        app.publish(frame(event, Position(number, 0), "0a1b2c3d"))

    await together(serving.serve(app, listening, None, stop := asyncio.Event()), obey(publish), stop)


async def ours(folder: Path) -> None:
    clock, listening = SystemClock(), serving.listen("127.0.0.1", 0)
    store = await SqliteStore.open(folder / "events.db")
    tokens = Tokens(store, clock=clock)
    await tokens.start()
    token, _ = await tokens.make("bench", Role.ADMIN)
    app = Api(ControlPlane(store, clock=clock), tokens, clock=clock, limits=LIMITS)
    running = asyncio.create_task(app.run())
    print(listening.getsockname()[1], token.reveal(), flush=True)

    async def publish(event: Event, number: int) -> None:
        await store.commit(Put("bench/x", str(number).encode()), events=[encode_event(event)])

    await together(serving.serve(app, listening, None, stop := asyncio.Event()), obey(publish), stop)
    running.cancel()
    await tokens.close()
    await store.close()


async def together(serving_it: Awaitable[None], obeying: Awaitable[None], stop: asyncio.Event) -> None:
    task = asyncio.ensure_future(serving_it)
    await obeying
    stop.set()
    await task


if __name__ == "__main__":
    log.configure_logging("ERROR")
    asyncio.run(bare() if sys.argv[1] == "bare" else ours(Path(sys.argv[2])))
