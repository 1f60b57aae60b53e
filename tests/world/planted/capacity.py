"""Planted faults of room: workers, seats, ports and promises."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import pytest

from harness import given
from lcm.control.booking import request, seat_moves
from lcm.control.booking.guards import Guards
from lcm.control.booking.seat_moves import BookingMove, refuse_unless_seat_takes
from lcm.controllers.pool import packing
from lcm.controllers.scheduler import risk
from lcm.controllers.scheduler.risk import Risk
from lcm.controllers.scheduler.view import SchedulerView
from lcm.controllers.worker import measure
from lcm.model.base import capacity
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.placement import SeatChange
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, RiskReason, SessionPhase, get_claim
from lcm.model.kinds.worker import LabWorker
from lcm.model.topology.ports import OPEN_PORTS, used_ports
from lcm.placement import claims, places, ports
from lcm.placement.limits import PromiseRules
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_problem import SeatedClaim
from lcm.placement.places import PoolSnapshot, SeatShapes, session_holder
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats
from lcm.placement.timeline import Lanes
from lcm.sim.world.scenario import ScenarioLab, ScenarioPool
from world.checks.capacity import NO_CAPACITY, OVERCOMMIT
from world.checks.ports import SHARED_PORT
from world.planted.deeds import (
    both,
    hole_comes_before_a_launch,
    machine_comes_back_smaller,
    more_is_booked_after_a_launch,
    people_want_a_lab_now,
    somebody_forwards_ports,
    three_fit_on_a_machine_and_four_book,
    two_book_the_last_room,
)
from world.planted.faults import BUSY, QUIET, Planted, changed, everywhere
from world.scenarios import CLASSROOM

LARGE: Final = (ScenarioLab(name="large", track="ccna", cpu_cores=2, memory_gb=60),)
BROAD: Final = (ScenarioLab(name="broad", track="ccna", cpu_cores=15, memory_gb=8),)
WHOLE: Final = (ScenarioLab(name="whole", track="ccna", cpu_cores=40),)
PORTS: Final = (ScenarioLab(name="ports", track="ccna", cpu_cores=1, memory_gb=2, nodes=10),)
RUSH: Final = changed(QUIET, labs=BROAD, quiet_hours=1.5)
SHRUNK: Final = changed(QUIET, hours=1.5, quiet_hours=1.5)
CROWD: Final = people_want_a_lab_now(6)
OPENING: Final = (ScenarioPool(track="ccna", most=3, least=0),)
MIXED: Final = (ScenarioPool(track="ccna", most=4, instance_type="m8i.12xlarge", smaller_types=("m8i.4xlarge",)),)
FULL: Final = changed(BUSY, pools=QUIET.pools, labs=BROAD, sessions_a_day=600)


def dimension_is_ignored(patch: pytest.MonkeyPatch, name: str) -> None:
    real, pack = capacity.find_exceeded, Lanes.pack

    def without(need: Amount, room: Amount) -> list[str]:
        return [one for one in real(need, room) if one != name]

    def packed(self: Lanes, need: Amount) -> int:
        return pack(self, msgspec.structs.replace(need, **{name: 0}))

    everywhere(patch, real, without)
    patch.setattr(Lanes, "pack", packed)


def memory_is_ignored(patch: pytest.MonkeyPatch) -> None:
    dimension_is_ignored(patch, "memory_mb")


def cpu_is_ignored(patch: pytest.MonkeyPatch) -> None:
    dimension_is_ignored(patch, "cpu_millis")


def running_session_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    def held(session: LabletSession) -> Claim | None:
        return None if session.status.phase is SessionPhase.RUNNING else get_claim(session)

    everywhere(patch, get_claim, held)


def taken_ports_are_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, ports.ports_in_use, lambda _worker, _sessions: frozenset())


def all_names_get_one_port(patch: pytest.MonkeyPatch) -> None:
    real = ports.allocate

    def one_port(
        names: Collection[str], *, taken: Collection[int], seed: str, preferred: Mapping[str, int] | None = None
    ) -> dict[str, int] | None:
        found = real(names, taken=taken, seed=seed, preferred=preferred)
        return dict.fromkeys(found, min(found.values())) if found else found

    everywhere(patch, real, one_port)


def ports_end_too_high(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, OPEN_PORTS, range(min(OPEN_PORTS), 4 * max(OPEN_PORTS)))


def seat_takes_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seats, "fits", lambda *_: True)


def pool_has_one_seat_more(patch: pytest.MonkeyPatch) -> None:
    real = Seats.__init__

    def larger(self: Seats, room: Amount, size: int, **rest: Any) -> None:
        real(self, room, size + 1, **rest)

    patch.setattr(Seats, "__init__", larger)


def claim_ends_with_its_slot(patch: pytest.MonkeyPatch) -> None:
    def short(start: datetime, end: datetime, need: Amount, by: claims.Terms) -> Claim:
        return Claim(start=start - by.instantiation, end=end, need=need)

    everywhere(patch, claims.slot_claim, short)


def claim_begins_with_its_slot(patch: pytest.MonkeyPatch) -> None:
    def short(start: datetime, end: datetime, need: Amount, _by: claims.Terms) -> Claim:
        return Claim(start=start, end=end + CLEAN_UP_TIME, need=need)

    everywhere(patch, claims.slot_claim, short)


def promise_has_no_seat(patch: pytest.MonkeyPatch) -> None:
    real = request.with_seats

    def unseated(booking: Any, found: request.ChosenSeats, now: datetime) -> Any:
        made = real(booking, found, now)
        if not isinstance(made, LabletSession):
            return made
        return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, seat=None))

    everywhere(patch, real, unseated)


def guard_is_not_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guards, "ops", lambda *_: [])


def moves_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Make the packer take machines for larger than they are, and the control plane believe it."""
    real = packing._make_terms

    def generous(shapes: SeatShapes, highest: int) -> PackTerms:
        terms = real(shapes, highest)
        return terms._replace(capacity=terms.capacity + terms.capacity)

    patch.setattr(packing, "_make_terms", generous)
    patch.setattr(seat_moves, "_try_moves", lambda *_: None)


def what_has_begun_is_moved(patch: pytest.MonkeyPatch) -> None:
    def movable(holder: str, claim: Claim, seat: int, _fixed: object) -> SeatedClaim:
        return SeatedClaim(holder, claim, seat, fixed=False)

    def planned(record: Any, change: SeatChange, _pool: str, _now: datetime) -> BookingMove:
        status, holder = record.resource.status, session_holder(record.resource)
        return BookingMove(record, HeldClaim(holder, status.claim), status.seat.number, change.after)

    def rest_fits(row: PoolSnapshot, seats: Seats, number: int, claim: Claim, rules: PromiseRules) -> None:
        rest = msgspec.structs.replace(claim, start=max(claim.start, rules.now))
        refuse_unless_seat_takes(row, seats, number, rest, rules)

    patch.setattr(packing, "SeatedClaim", movable)
    patch.setattr(seat_moves, "_plan_move", planned)
    patch.setattr(seat_moves, "refuse_unless_seat_takes", rest_fits)


def smaller_machine_limits_nothing(patch: pytest.MonkeyPatch) -> None:
    def unlimited(row: PoolSnapshot, terms: claims.Terms) -> SeatShapes | None:
        shapes = real(row, terms)
        return shapes._replace(limits={}) if shapes else None

    real = places.seat_shapes
    everywhere(patch, places.seat_shapes, unlimited)


def nobody_is_told_of_a_squeeze(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, risk.find_misfits, lambda _view, _now: {})


def everybody_is_told_of_a_squeeze(patch: pytest.MonkeyPatch) -> None:
    def told(view: SchedulerView, _now: datetime) -> Mapping[str, tuple[LabletSession, Risk]]:
        sessions = [one for uid in view._workers.uids() for one in view.sessions_on(uid)]
        return {session_holder(one): (one, Risk(RiskReason.TOO_SMALL, "it is smaller")) for one in sessions}

    everywhere(patch, risk.find_misfits, told)


def shrinking_is_not_measured(patch: pytest.MonkeyPatch) -> None:
    everywhere(patch, measure._current_capacity, lambda known, _stats: known)


def ports_of_strangers_are_given_away(patch: pytest.MonkeyPatch) -> None:
    real = ports.ports_in_use

    def ours(worker: LabWorker, sessions: Iterable[LabletSession]) -> frozenset[int]:
        return real(given.with_fields(worker, {"foreign_ports": ()}), sessions)

    everywhere(patch, real, ours)


def forwarded_ports_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    def serial(tags: Iterable[str]) -> frozenset[int]:
        return used_ports(tag for tag in tags if not tag.startswith("pat:"))

    everywhere(patch, used_ports, serial)


CAPACITY: Final = (
    Planted("memory is ignored", OVERCOMMIT, memory_is_ignored, changed(RUSH, labs=LARGE), CROWD),
    Planted("CPU is ignored", OVERCOMMIT, cpu_is_ignored, RUSH, CROWD),
    Planted("a running session holds nothing", OVERCOMMIT, running_session_holds_nothing, RUSH, CROWD),
    Planted(
        "taken ports are not asked for",
        SHARED_PORT,
        taken_ports_are_not_asked_for,
        changed(BUSY, pools=QUIET.pools, labs=PORTS, sessions_a_day=900),
    ),
    Planted("all names get one port", SHARED_PORT, all_names_get_one_port, QUIET, people_want_a_lab_now(1)),
    Planted("ports end too high", SHARED_PORT, ports_end_too_high, QUIET, people_want_a_lab_now(2)),
    Planted(
        "ports of strangers are given away",
        SHARED_PORT,
        ports_of_strangers_are_given_away,
        QUIET,
        both(somebody_forwards_ports, people_want_a_lab_now(6)),
    ),
    Planted("forwarded ports are not seen", SHARED_PORT, forwarded_ports_are_not_seen, QUIET, somebody_forwards_ports),
    Planted(
        "nobody is told of a squeeze",
        NO_CAPACITY,
        nobody_is_told_of_a_squeeze,
        SHRUNK,
        both(people_want_a_lab_now(3, minutes=60), machine_comes_back_smaller),
    ),
    Planted(
        "everybody is told of a squeeze",
        NO_CAPACITY,
        everybody_is_told_of_a_squeeze,
        SHRUNK,
        people_want_a_lab_now(1, minutes=60),
    ),
    Planted(
        "shrinking is not measured",
        OVERCOMMIT,
        shrinking_is_not_measured,
        SHRUNK,
        both(people_want_a_lab_now(3, minutes=60), machine_comes_back_smaller),
    ),
    Planted("a seat takes everything", NO_CAPACITY, seat_takes_everything, FULL),
    Planted(
        "a smaller machine limits nothing",
        NO_CAPACITY,
        smaller_machine_limits_nothing,
        changed(RUSH, pools=MIXED),
        more_is_booked_after_a_launch,
    ),
    Planted("a pool has one seat more", NO_CAPACITY, pool_has_one_seat_more, FULL),
    Planted("a claim ends with its slot", NO_CAPACITY, claim_ends_with_its_slot, BUSY),
    Planted("a claim begins with its slot", NO_CAPACITY, claim_begins_with_its_slot, BUSY),
    Planted("a promise has no seat", NO_CAPACITY, promise_has_no_seat, changed(BUSY, pools=CLASSROOM.pools)),
    Planted(
        "moves are not checked",
        NO_CAPACITY,
        moves_are_not_checked,
        changed(RUSH, pools=OPENING, quiet_hours=1.2),
        three_fit_on_a_machine_and_four_book,
    ),
    Planted(
        "what has begun is moved",
        NO_CAPACITY,
        what_has_begun_is_moved,
        changed(RUSH, pools=OPENING, hours=2.5),
        hole_comes_before_a_launch,
    ),
    Planted(
        "the guard is not taken",
        NO_CAPACITY,
        guard_is_not_taken,
        changed(QUIET, processes=2, labs=WHOLE, quiet_hours=0.8),
        two_book_the_last_room,
    ),
)
