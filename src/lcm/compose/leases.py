"""Leases are kept beside the event loop, in a thread with a connection of its own: who is merely busy is not deposed.

A stopped process keeps nothing, as its threads stop with it. One whose loop does not react at all for a while is not
renewed either: it cannot act, so another one must.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from lcm.control.plane.leases import StoreLeases
from lcm.control.plane.protocol import LeaseLine, Tenure
from lcm.controllers.runtime.election import Beside, Keep
from lcm.model.base.errors import Deposed
from lcm.store.base import Store
from lcm.system.loop_watch import LoopWatch
from lcm.system.side_loop import SideLoop

LOOP_PATIENCE_SECONDS: Final = 60.0
"""A loop that has not reacted for so long is taken for one that never will."""


class ReactingLine(LeaseLine):
    """Renews leases while the loop of those who hold them reacts."""

    def __init__(self, line: LeaseLine, watch: LoopWatch) -> None:
        self._line = line
        self._watch = watch

    async def renew(self, *leases: Tenure) -> None:
        """Renew leases. Raises Deposed when one is over, or when nobody here could use them."""
        silence = self._watch.silence()
        if silence > LOOP_PATIENCE_SECONDS:
            first = leases[0]
            raise Deposed(f"{first.holder} has not reacted for {silence:.0f} s and cannot act as {first.name}")
        await self._line.renew(*leases)

    async def lease(self, name: str) -> Tenure | None:
        return await self._line.lease(name)

    async def wait_until_vacant(self, name: str) -> None:
        await self._line.wait_until_vacant(name)


class LeaseKeeper:
    """Runs beside the loop what keeps leases, with a store of its own."""

    def __init__(self, side: SideLoop[Store], watch: LoopWatch) -> None:
        self._side = side
        self._watch = watch

    def keep_term(self, keep: Keep) -> Coroutine[Any, Any, None]:
        """Keep a leader's term until it is lost."""
        return self._side.run(lambda store: keep(ReactingLine(StoreLeases(store), self._watch)))

    def run(self, keep: Callable[[Store], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, None]:
        """Keep any other lease by the store."""
        return self._side.run(keep)


@asynccontextmanager
async def open_lease_keeper(
    open_store: Callable[[], Coroutine[Any, Any, Store]], watch: LoopWatch
) -> AsyncIterator[LeaseKeeper]:
    """Open a store once more, in a thread of its own; raises as that does."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        store = await open_store()
        try:
            yield store
        finally:
            await store.close()

    async with SideLoop[Store].open("leases", opened) as side:
        yield LeaseKeeper(side, watch)


@asynccontextmanager
async def keep_by(
    open_line: Callable[[], AbstractAsyncContextManager[LeaseLine]], watch: LoopWatch
) -> AsyncIterator[Beside]:
    """Keep terms by a line that is opened in a thread of its own, for controllers of an API in another process."""
    async with SideLoop[LeaseLine].open("leases", open_line) as side:
        yield lambda keep: side.run(lambda line: keep(ReactingLine(line, watch)))
