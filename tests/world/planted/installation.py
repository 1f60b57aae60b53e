"""Planted faults of what happens to an installation as a whole: its store fills up."""

from typing import Any, Final

import pytest

from lcm.control.objects import writer
from lcm.control.upkeep.store_health import StoreHealth
from lcm.model.base.errors import StoreFull
from lcm.store.base import Store
from world.checks.store import UNTOLD
from world.checks.writes import LOST
from world.planted.deeds import people_want_a_lab_now, store_is_full
from world.planted.faults import QUIET, Planted, everywhere

FILLED: Final = people_want_a_lab_now(1, before=store_is_full)


def store_is_only_read(patch: pytest.MonkeyPatch) -> None:
    async def look(self: StoreHealth) -> None:
        await self._store.get("installation")

    patch.setattr(StoreHealth, "probe", look)


def full_store_stays_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreHealth, "_mark_writable", lambda _self: None)


def full_store_is_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    real = writer.commit_ops

    async def done(store: Store, *ops: Any, **rest: Any) -> int:
        try:
            return await real(store, *ops, **rest)
        except StoreFull:
            return 1

    everywhere(patch, real, done)


INSTALLATION: Final = (
    Planted("a store is only read", UNTOLD, store_is_only_read, QUIET, FILLED),
    Planted("a full store stays full", UNTOLD, full_store_stays_full, QUIET, FILLED),
    Planted(
        "a full store is taken for done",
        LOST,
        full_store_is_taken_for_done,
        QUIET,
        FILLED,
    ),
)
