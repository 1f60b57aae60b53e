"""Planted faults of what happens to an installation as a whole: its store fills up or is put back, it is upgraded."""

from typing import Any, Final

import pytest

from lcm.control.objects import writer
from lcm.control.upkeep.store_health import StoreHealth
from lcm.controllers.session import held_labs
from lcm.model.base.errors import StoreFull, Unreachable
from lcm.sim.world import process
from lcm.store.base import Store, went_back_error
from lcm.store.codec import Codec
from world.checks.restores import RESTORED
from world.checks.store import UNTOLD
from world.checks.versions import UPGRADE
from world.checks.writes import LOST
from world.planted.deeds import (
    backup_is_restored_later,
    both,
    people_want_a_lab_now,
    store_goes_back,
    store_is_full,
)
from world.planted.faults import BUSY, QUIET, Planted, changed, everywhere

UPGRADED: Final = changed(BUSY, processes=2, mishaps_an_hour=2, mishaps=("processes_are_upgraded",))
PUT_BACK: Final = changed(QUIET, hours=1.5, quiet_hours=1)
RESTORED_OVER_LABS: Final = both(backup_is_restored_later, people_want_a_lab_now(2, minutes=150))
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


def newer_fields_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Codec, "is_fully_known", lambda *_: True)


def newer_schema_is_written_over(patch: pytest.MonkeyPatch) -> None:
    real = Codec.encode

    def as_ours(self: Codec, value: Any, *, onto: bytes | None = None) -> bytes:
        return self._head + b"\n" + real(self, value, onto=onto).partition(b"\n")[2]

    patch.setattr(Codec, "encode", as_ours)


def unknown_labs_are_removed(patch: pytest.MonkeyPatch) -> None:
    async def remove(_self: held_labs.HeldLabs, host: Any, lab: Any, worker: Any) -> None:
        await held_labs.remove_lab(host, lab, worker)

    patch.setattr(held_labs.HeldLabs, "settle", remove)


def nobody_is_told_of_unknown_labs(patch: pytest.MonkeyPatch) -> None:
    async def hold(*_: Any) -> None:
        return

    patch.setattr(held_labs.HeldLabs, "settle", hold)


def store_that_went_back_is_away(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, went_back_error, lambda *_: Unreachable("the store cannot be reached"))
    patch.setattr(process, "went_back_error", lambda *_: Unreachable("the store cannot be reached"))


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
    Planted("unknown labs are removed", RESTORED, unknown_labs_are_removed, PUT_BACK, RESTORED_OVER_LABS),
    Planted("nobody is told of unknown labs", RESTORED, nobody_is_told_of_unknown_labs, PUT_BACK, RESTORED_OVER_LABS),
    Planted(
        "a store that went back is taken for away",
        RESTORED,
        store_that_went_back_is_away,
        PUT_BACK,
        store_goes_back,
    ),
    Planted("newer fields are dropped", UPGRADE, newer_fields_are_dropped, UPGRADED),
    Planted("a newer schema is written over", UPGRADE, newer_schema_is_written_over, UPGRADED),
)
