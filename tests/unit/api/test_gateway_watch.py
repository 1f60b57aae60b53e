"""The watch over open consoles: which sessions are read, in which order, and what ends a console."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec

from harness import given
from harness.fleet_world import virtually
from harness.plane_world import LIMITS
from harness.stores import HandClock
from lcm.api.gateway.registry import OpenConsole, OpenConsoles
from lcm.api.http.sockets import SESSION_OVER
from lcm.control.delivery.events import CONSOLE_OPENED
from lcm.control.delivery.feed import Feed
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Unreachable
from lcm.model.base.event import Event
from lcm.model.kinds.session import LabletSession
from lcm.store.memory import MemoryStore

SESSIONS, READ_SECONDS = 500, 0.1
PLENTY = replace(LIMITS, consoles=10_000, session_consoles=10_000, all_consoles=10_000)


class Sessions:
    """Sessions of a slow store, and the consoles that are open of them."""

    def __init__(self) -> None:
        self.consoles = OpenConsoles(Feed(MemoryStore(), lambda *_: b""), PLENTY)
        self.ended: set[str] = set()
        self.reads: list[str] = []
        self.reading = self.most_reading = 0
        self.silent = False

    def enter(self, number: int, who: str = "ada", role: Role = Role.USER) -> OpenConsole:
        name = f"s{number}"

        async def find() -> LabletSession | None:
            return await self._read(name)

        caller = Caller(name=who, role=role)
        console = OpenConsole(
            given.session(name=name, uid=name, owner="ada"),
            caller,
            "R1_serial",
            looking=False,
            is_token_valid=lambda: True,
            find_session=find,
        )
        self.consoles.enter(console)
        return console

    async def _read(self, name: str) -> LabletSession | None:
        self.reads.append(name)
        self.reading += 1
        self.most_reading = max(self.reading, self.most_reading)
        await asyncio.sleep(READ_SECONDS)
        self.reading -= 1
        if self.silent:
            raise Unreachable("the store does not answer")
        return None if name in self.ended else given.session(name=name, uid=name, owner="ada")

    def end(self, name: str) -> None:
        self.ended.add(name)
        at = HandClock().now()
        data = msgspec.Raw(b"{}")
        self.consoles.hear(
            Event(
                type="session.ended",
                time=at,
                kind="LabletSession",
                name=name,
                namespace="default",
                data=data,
                session_id=name,
            )
        )


@asynccontextmanager
async def watched() -> AsyncIterator[Sessions]:
    it = Sessions()
    watch = asyncio.create_task(it.consoles.run())
    try:
        yield it
    finally:
        watch.cancel()
        await asyncio.wait([watch])


@virtually
async def test_a_session_that_ended_before_its_console_was_counted_ends_it_at_once() -> None:
    async with watched() as it:
        it.ended.add("s1")
        console = it.enter(1)
        async with asyncio.timeout(2 * READ_SECONDS):
            await console.wait_for_end()
        assert console.ending == (SESSION_OVER, "the session no longer runs")


@virtually
async def test_sessions_that_changed_are_read_before_all_others_once_each_and_some_at_a_time() -> None:
    async with watched() as it:
        consoles = [it.enter(number) for number in range(SESSIONS) for _ in range(2)]
        await asyncio.sleep(SESSIONS * READ_SECONDS)
        it.reads.clear()
        it.consoles.lose_track()
        await asyncio.sleep(READ_SECONDS / 2)
        it.end("s7")
        async with asyncio.timeout(2 * READ_SECONDS):
            await asyncio.gather(*(one.wait_for_end() for one in consoles if one.session_id == "s7"))
        await asyncio.sleep(SESSIONS * READ_SECONDS / it.most_reading + 2 * READ_SECONDS)
        assert sorted(set(it.reads)) == sorted({one.session_id for one in consoles})
        assert len(it.reads) <= SESSIONS + 1
        assert 1 < it.most_reading <= 16
        assert sum(one.ending is not None for one in consoles) == 2


@virtually
async def test_who_may_not_see_the_session_any_more_is_ended_and_others_stay() -> None:
    async with watched() as it:
        mine, staff, former = it.enter(1), it.enter(1, "otto", Role.OPERATOR), it.enter(1, "bob")
        await asyncio.sleep(2 * READ_SECONDS)
        assert [one.ending is None for one in (mine, staff, former)] == [True, True, False]


def joined(who: str, **more: object) -> Event:
    about = {"session_id": "s1", "instance_id": "s1", "session_name": "s1", "console": "R1_serial", "who": who}
    data = about | {"role": "operator", "looking": False, "is_open": True, "timestamp": "2026-01-01T00:00:00Z"} | more
    return Event(
        type=f"lablet.session.{CONSOLE_OPENED}",
        time=HandClock().now(),
        kind="LabletSession",
        name="s1",
        namespace="default",
        data=msgspec.Raw(msgspec.json.encode(data)),
        session_id="s1",
    )


async def count_notices(console: OpenConsole) -> int:
    """Return how often somebody was told of to a console."""
    found = 0
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(1):
                await console.next_notice()
            found += 1
    return found


@virtually
async def test_an_owner_is_told_once_of_whoever_joins_whichever_comes_first() -> None:
    async with watched() as it:
        it.enter(1, "otto", Role.OPERATOR)
        early = it.enter(1)
        it.consoles.hear(joined("otto"))
        late = it.enter(1)
        assert [await count_notices(one) for one in (early, late)] == [1, 1]


@virtually
async def test_an_owner_hears_nothing_of_staff_whose_opening_was_never_committed() -> None:
    async with watched() as it:
        staff = it.enter(1, "otto", Role.OPERATOR)
        mine = it.enter(1)
        it.consoles.leave(staff)
        assert await count_notices(mine) == 0


@virtually
async def test_what_a_newer_version_tells_of_who_joined_is_heard_as_far_as_it_is_known() -> None:
    async with watched() as it:
        mine = it.enter(1)
        it.consoles.hear(joined("otto", mood="curious"))
        assert await count_notices(mine) == 1


@virtually
async def test_a_session_that_cannot_be_read_is_read_again_later() -> None:
    async with watched() as it:
        it.silent = True
        console = it.enter(1)
        it.end("s1")
        await asyncio.sleep(2 * READ_SECONDS)
        assert console.ending is None
        it.silent = False
        async with asyncio.timeout(11):
            await console.wait_for_end()
