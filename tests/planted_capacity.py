"""Planted faults of room: workers, seats, ports and promises."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from pytest import MonkeyPatch

from lcm.control import bookings
from lcm.control.guards import Guards
from lcm.model import capacity
from lcm.model.capacity import Amount, Claim
from lcm.model.identity import Caller, Role
from lcm.model.resource import Metadata
from lcm.model.session import LabletSession, LabletSessionSpec, SessionPhase, holds
from lcm.model.topology_ports import OPEN_PORTS
from lcm.placement import ports, terms
from lcm.placement.lanes import Lanes
from lcm.placement.seats import Seats
from lcm.sim.world.checks.capacity import NO_CAPACITY, OVERCOMMIT, SHARED_PORT
from lcm.model.worker import WorkerPhase
from lcm.sim.world.ground import definition_name
from lcm.sim.world.scenario import Lab, Pool
from lcm.sim.world.world import World
from planted import Planted, everywhere, small

ONE: Final = (Pool(track="ccna", most=1, least=1),)
LARGE: Final = (Lab(name="large", track="ccna", cpu_cores=2, memory_gb=60),)
BROAD: Final = (Lab(name="broad", track="ccna", cpu_cores=15, memory_gb=8),)
PORTS: Final = (Lab(name="ports", track="ccna", cpu_cores=1, memory_gb=2, nodes=10),)
FULL: Final = small(pools=ONE, labs=BROAD, sessions_a_day=600)
RUSH: Final = small(pools=ONE, labs=BROAD, sessions_a_day=0, quiet_hours=1.0)
HEAVY_RUSH: Final = msgspec.structs.replace(RUSH, labs=LARGE)
CROWD: Final = 6


async def all_want_a_lab_now(world: World) -> None:
    """Let more people come to a worker that serves than it has room for, one after the other."""
    workers = world.witness.seen.workers
    while not any(one.status.phase is WorkerPhase.READY for one in workers.values()):
        await asyncio.sleep(60)
    spec = LabletSessionSpec(definition=definition_name(world.scenario.labs[0]), duration_minutes=30)
    for number in range(CROWD):
        session = LabletSession(metadata=Metadata(name=f"s{number}"), spec=spec)
        who = Caller(name=f"person-{number}", role=Role.USER)
        await world.insist(who, lambda plane, wanted=session: plane.create(wanted))
        await asyncio.sleep(120)


def dimension_is_ignored(patch: MonkeyPatch, name: str) -> None:
    real, pack = capacity.exceeded, Lanes.pack

    def without(need: Amount, room: Amount) -> list[str]:
        return [one for one in real(need, room) if one != name]

    def packed(self: Lanes, need: Amount) -> int:
        return pack(self, msgspec.structs.replace(need, **{name: 0}))

    everywhere(patch, real, without)
    patch.setattr(Lanes, "pack", packed)


def memory_is_ignored(patch: MonkeyPatch) -> None:
    dimension_is_ignored(patch, "memory_mb")


def cpu_is_ignored(patch: MonkeyPatch) -> None:
    dimension_is_ignored(patch, "cpu_millis")


def running_session_holds_nothing(patch: MonkeyPatch) -> None:
    def held(session: LabletSession) -> Claim | None:
        return None if session.status.phase is SessionPhase.RUNNING else holds(session)

    everywhere(patch, holds, held)


def taken_ports_are_not_asked_for(patch: MonkeyPatch) -> None:
    everywhere(patch, ports.taken_on, lambda _worker, _sessions: frozenset())


def all_names_get_one_port(patch: MonkeyPatch) -> None:
    real = ports.allocate

    def one_port(
        names: Collection[str], *, taken: Collection[int], seed: str, preferred: Mapping[str, int] | None = None
    ) -> dict[str, int] | None:
        found = real(names, taken=taken, seed=seed, preferred=preferred)
        return dict.fromkeys(found, min(found.values())) if found else found

    everywhere(patch, real, one_port)


def ports_end_too_high(patch: MonkeyPatch) -> None:
    everywhere(patch, OPEN_PORTS, range(min(OPEN_PORTS), 4 * max(OPEN_PORTS)))


def seat_takes_everything(patch: MonkeyPatch) -> None:
    patch.setattr(Seats, "fits", lambda *_: True)


def pool_has_one_seat_more(patch: MonkeyPatch) -> None:
    real = Seats.__init__

    def larger(self: Seats, room: Amount, size: int, **rest: Any) -> None:
        real(self, room, size + 1, **rest)

    patch.setattr(Seats, "__init__", larger)


def claim_ends_with_its_slot(patch: MonkeyPatch) -> None:
    def short(start: datetime, end: datetime, need: Amount, by: terms.Terms) -> Claim:
        return Claim(start=start - by.instantiation, end=end, need=need)

    everywhere(patch, terms.slot_claim, short)


def boot_takes_no_time(patch: MonkeyPatch) -> None:
    everywhere(patch, terms.boot_lead, lambda _pool, _terms: timedelta(0))


def promise_has_no_seat(patch: MonkeyPatch) -> None:
    real = bookings.seated

    def unseated(booking: Any, found: bookings.Found, now: datetime) -> Any:
        made = real(booking, found, now)
        if not isinstance(made, LabletSession):
            return made
        return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, seat=None))

    everywhere(patch, real, unseated)


def guard_is_not_taken(patch: MonkeyPatch) -> None:
    patch.setattr(Guards, "ops", lambda *_: [])


CAPACITY: Final = (
    Planted("memory is ignored", OVERCOMMIT, memory_is_ignored, HEAVY_RUSH, all_want_a_lab_now),
    Planted("CPU is ignored", OVERCOMMIT, cpu_is_ignored, RUSH, all_want_a_lab_now),
    Planted(
        "a running session holds nothing", OVERCOMMIT, running_session_holds_nothing, RUSH, all_want_a_lab_now
    ),
    Planted(
        "taken ports are not asked for",
        SHARED_PORT,
        taken_ports_are_not_asked_for,
        small(pools=ONE, labs=PORTS, sessions_a_day=900),
    ),
    Planted("all names get one port", SHARED_PORT, all_names_get_one_port, small()),
    Planted("ports end too high", SHARED_PORT, ports_end_too_high, small()),
    Planted("a seat takes everything", NO_CAPACITY, seat_takes_everything, FULL),
    Planted("a pool has one seat more", NO_CAPACITY, pool_has_one_seat_more, FULL),
    Planted("a claim ends with its slot", NO_CAPACITY, claim_ends_with_its_slot, small(pools=ONE)),
    Planted("a boot takes no time", NO_CAPACITY, boot_takes_no_time, small()),
    Planted("a promise has no seat", NO_CAPACITY, promise_has_no_seat, small()),
    Planted(
        "the guard is not taken",
        NO_CAPACITY,
        guard_is_not_taken,
        msgspec.structs.replace(
            FULL, processes=2, sessions_a_day=4000, mishaps_an_hour=60, mishaps=("process_stands_still",)
        ),
        neighbours=(OVERCOMMIT,),
    ),
)
