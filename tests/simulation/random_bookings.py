"""Replicas of the control plane on one store, people who book at random, and a naive bookkeeper that checks them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any

import msgspec

from harness import given
from harness.plane_world import OTTO, service
from harness.workers import beside, spec
from lcm.control.objects.records import creation_ops, read_entry
from lcm.control.plane.booking_actions import Move, Resize
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Extend, Ref
from lcm.model.base.capacity import DIMENSIONS, Amount, Claim, Profile
from lcm.model.base.clock import Clock
from lcm.model.base.errors import NoRoom, Refused
from lcm.model.base.machine import POOL_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Condition, Metadata, Truth
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, PortUse, ResourceRequirements
from lcm.model.kinds.placement import Assignment, SeatChange
from lcm.model.kinds.pool import (
    FilledSeat,
    LabWorkerPool,
    LabWorkerPoolSpec,
    LabWorkerPoolStatus,
    PoolPhase,
    ScalingPolicy,
    WorkerTemplate,
    WorkerTemplateSpec,
)
from lcm.model.kinds.reservation import Reservation, ReservationPhase, ReservationSpec, held_slot
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, LabletSessionSpec, Seat, get_claim
from lcm.model.kinds.worker import CmlFacts, LabWorker, LabWorkerStatus, WorkerCondition, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms, asap_claim, need_of
from lcm.store.base import Store, scan_all
from lcm.system.clock import new_id

ROOM = declared_capacity(spec()) or Amount()
LABS = {
    "small:1.0.0": (2.0, 8.0, 3, 4),
    "middle:1.0.0": (6.0, 20.0, 12, 10),
    "large:1.0.0": (17.0, 60.0, 40, 20),
    "tall:1.0.0": (3.0, 70.0, 6, 100),
}
"""Cores, GB of memory, nodes, ports."""
TRACK = "ccna"
SEATS = 4
EXTRAS = 2
WORKERS: Sequence[tuple[str, Seat | None]] = [
    *((f"uid-w{number}", Seat(pool=TRACK, number=number)) for number in range(1, SEATS + 1)),
    *((f"uid-x{number}", None) for number in range(1, EXTRAS + 1)),
]


@cache
def definition(name: str) -> LabletDefinition:
    cores, memory, nodes, ports = LABS[name]
    made = given.definition(
        lab_track=TRACK,
        state=DefinitionState.ACTIVE,
        version="1.0.0",
        resource_requirements=ResourceRequirements(cpu_cores=cores, memory_gb=memory, storage_gb=5),
        node_count=nodes,
        port_template={f"n{place}_serial": PortUse(kind="serial", node=f"n{place}") for place in range(ports)},
    )
    return msgspec.structs.replace(made, metadata=Metadata(name=name, uid=f"uid-{name.partition(':')[0]}"))


def serving(name: str, at: datetime, **changes: Any) -> LabWorker:
    """Return a worker that takes sessions."""
    accepting = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=at)
    status = LabWorkerStatus(
        phase=WorkerPhase.READY,
        cml=CmlFacts(version="2.9.0", ready=True, licensed=True, license_status="IN_COMPLIANCE"),
        capacity=ROOM,
        conditions=(accepting,),
        **changes,
    )
    return LabWorker(metadata=Metadata(name=name, uid=f"uid-{name}", created_at=at), spec=spec(), status=status)


def pool(name: str, track: str, workers: Sequence[LabWorker], **changes: Any) -> LabWorkerPool:
    filled = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    wanted = LabWorkerPoolSpec(lab_track=track, template="metal", min_workers=0, **changes)
    status = LabWorkerPoolStatus(phase=PoolPhase.READY, seats=filled)
    return LabWorkerPool(metadata=Metadata(name=name, uid=f"uid-{name}"), spec=wanted, status=status)


async def furnish(store: Store, at: datetime) -> None:
    """Put a pool of workers that are up, workers outside of it, and labs into a store."""
    seated = [serving(f"w{number}", at) for number in range(1, SEATS + 1)]
    extras = [serving(f"x{number}", at) for number in range(1, EXTRAS + 1)]
    metal = WorkerTemplate(
        metadata=Metadata(name="metal", uid="uid-metal"), spec=WorkerTemplateSpec(worker=spec(), name_prefix="w")
    )
    row = pool(TRACK, TRACK, seated, max_workers=SEATS, policy=ScalingPolicy.SCHEDULED)
    every = (metal, row, *seated, *extras, *map(definition, LABS))
    for resource in every:
        await store.commit(*creation_ops(resource))  # type: ignore[arg-type]  # each is of a kind that is stored


@dataclass
class Books:
    """What the naive bookkeeper knows: for each place what is claimed there, for each worker its ports."""

    claims: dict[str, dict[str, Claim]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    ports: dict[str, dict[str, frozenset[int]]] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)

    def note(self, session: LabletSession) -> None:
        """Write down what a session claims, and raise an AssertionError if that is more than there is."""
        self.strike(session.metadata.name)
        claim, status = get_claim(session), session.status
        if claim is not None and (status.seat or status.worker_id):
            place = f"{status.seat.pool}/{status.seat.number}" if status.seat else str(status.worker_id)
            self.hold(session.metadata.name, place, claim)
        if status.worker_id is not None:
            self._open_ports(
                session.metadata.name, status.worker_id, frozenset((status.allocated_ports or {}).values())
            )

    def hold(self, name: str, place: str, claim: Claim) -> None:
        others = self.claims.setdefault(place, {})
        others[name], self.places[name] = claim, place
        moments = {claim.start, *(one.start for one in others.values() if claim.start <= one.start < claim.end)}
        for moment in moments:
            there = [one.need for one in others.values() if one.start <= moment < one.end]
            for dimension in DIMENSIONS:
                used = sum(getattr(need, dimension) for need in there)
                assert used <= getattr(ROOM, dimension), f"over-commit of {dimension} on {place} at {moment}: {used}"

    def strike(self, name: str) -> None:
        place, host = self.places.pop(name, None), self.hosts.pop(name, None)
        if place is not None:
            del self.claims[place][name]
        if host is not None:
            del self.ports[host][name]

    def _open_ports(self, name: str, worker_id: str, ports: frozenset[int]) -> None:
        others = self.ports.setdefault(worker_id, {})
        for other, theirs in others.items():
            assert not ports & theirs, f"{name} and {other} share ports {sorted(ports & theirs)[:3]} on {worker_id}"
        others[name], self.hosts[name] = ports, worker_id


async def audited(store: Store) -> tuple[int, int]:
    """Read all sessions from a store and add them up; give how many places are over-committed and ports shared."""
    page = await scan_all(store, "lablet-sessions/")
    sessions = [read_entry(entry, LabletSession) for entry in page.entries]
    claims: dict[str, list[Claim]] = {}
    ports: dict[str, list[int]] = {}
    for one in sessions:
        claim, status = get_claim(one), one.status
        if claim is not None and (status.seat or status.worker_id):
            place = f"{status.seat.pool}/{status.seat.number}" if status.seat else str(status.worker_id)
            claims.setdefault(place, []).append(claim)
        if claim is not None and status.worker_id is not None:
            ports.setdefault(status.worker_id, []).extend((status.allocated_ports or {}).values())
    over = sum(bool(Profile.of(several).find_overcommitted(ROOM)) for several in claims.values())
    shared = sum(len(several) - len(set(several)) for several in ports.values())
    return over, shared


TERMS = Terms()
QUARTER = timedelta(minutes=15)
FOR_GROUPS = ("small:1.0.0", "middle:1.0.0")


@dataclass(frozen=True)
class Group:
    """When a group begins, how many it is, and the numbers of those who have not come yet."""

    start: datetime
    count: int
    waiting: list[int]


@dataclass
class Market:
    """Replicas, people and the bookkeeper. `seed` decides everything that is left to chance."""

    store: Store
    clock: Clock
    seed: int
    replicas: int = 2

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.cores = [self._core() for _ in range(self.replicas)]
        self.books = Books()
        self.live: dict[str, LabletSession] = {}
        self.done: Counter[str] = Counter()
        self.numbers = 0
        self.groups: dict[str, Group] = {}

    def _core(self) -> ControlPlane:
        return ControlPlane(self.store, clock=self.clock, terms=TERMS, chance=self.chance.random, ids=new_id)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Market"]:
        async with AsyncExitStack() as undo:
            for core in self.cores:
                assert core.promises is not None
                await undo.enter_async_context(beside(core.promises.calendar.run()))
                await core.promises.calendar.ready()
            yield self

    @property
    def otto(self) -> LocalPlane:
        return self.chance.choice(self.cores).plane_for(OTTO)

    def by(self, actor: str) -> LocalPlane:
        return self.chance.choice(self.cores).plane_for(service(actor))

    async def trade(self, operations: int) -> None:
        """Do so many operations, one after another."""
        deeds: Sequence[tuple[Callable[[], Any], int]] = (
            (self.book, 17),
            (self.apply_a_timetable, 2),
            (self.want_now, 16),
            (self.extend, 18),
            (self.cancel, 30),
            (self.move, 5),
            (self.reserve, 11),
            (self.come_in_a_group, 4),
            (self.disband, 8),
            (self.change_a_group, 6),
            (self.shift, 6),
        )
        names, weights = [deed for deed, _ in deeds], [weight for _, weight in deeds]
        while self.done.total() < operations:
            await self.chance.choices(names, weights)[0]()
            if self.chance.random() < 0.03:
                await self.pass_time()

    async def book(self) -> None:
        """Book a slot in the next days, on the quarter of an hour."""
        await self._make(self._slot(), "booked")

    async def apply_a_timetable(self) -> None:
        """Book several slots at once, all or none."""
        wanted = {self._name("s"): self._slot() for _ in range(self.chance.randrange(2, 8))}
        documents = [
            {"kind": "LabletSession", "api_version": "lcm/v1", "metadata": {"name": name}, "spec": slot}
            for name, slot in wanted.items()
        ]
        try:
            await self.otto.apply([msgspec.to_builtins(one) for one in documents])
        except NoRoom:
            self.done["timetable refused"] += 1
            return
        for name in wanted:
            self._know(await self._found(name), "booked in a timetable")

    async def reserve(self) -> None:
        """Book for a group, all or none."""
        name, start = self._name("r"), self._start()
        wanted = ReservationSpec(
            definition=self.chance.choice(FOR_GROUPS),
            timeslot_start=start,
            timeslot_end=start + 4 * QUARTER,
            count=self.chance.randrange(2, 11),
        )
        try:
            made = await self.otto.create(Reservation(metadata=Metadata(name=name), spec=wanted))
        except NoRoom:
            self.done["group refused"] += 1
            return
        for one in made.status.held:
            assert one.seat is not None
            self.books.hold(f"{name}#{one.number}", f"{one.seat.pool}/{one.seat.number}", one.claim)
            self.done["booked in a group"] += 1
        self.groups[name] = Group(start, wanted.count, [one.number for one in made.status.held])

    async def come_in_a_group(self) -> None:
        """Let a session take over one of a group's claims."""
        if self.groups:
            await self._come(self.chance.choice(list(self.groups)))

    async def _come(self, name: str) -> None:
        waiting = self.groups[name].waiting
        number = waiting.pop()
        if not waiting:
            del self.groups[name]
        (session,) = await self.by(SCHEDULER).fulfil(Ref(Reservation, name), number)
        self.books.strike(f"{name}#{number}")
        self._know(session, "taken over")

    async def disband(self) -> None:
        """Let a group of which nobody has come yet let go of everything."""
        whole = [name for name, one in self.groups.items() if len(one.waiting) == one.count]
        if whole:
            name = self.chance.choice(whole)
            leaving = await self.otto.delete(Ref(Reservation, name))
            over = msgspec.structs.replace(leaving.status, phase=ReservationPhase.CANCELLED)
            await self.by(SCHEDULER).step(leaving, over)
            for number in self.groups.pop(name).waiting:
                self.books.strike(f"{name}#{number}")
                self.done["released by a group"] += 1

    async def change_a_group(self) -> None:
        """Move a group with those who have come, make it longer, or give it other seats; all or none."""
        if not self.groups:
            return
        name = self.chance.choice(list(self.groups))
        ref, quarters = Ref(Reservation, name), self.chance.choice((-8, -2, 1, 2, 12, 96))
        seats = self.chance.randrange(1, 13)
        action = self.chance.choice((Move(minutes=15 * quarters), Extend(minutes=30), Resize(seats=seats)))
        try:
            changed = await self.otto.act(ref, action)
        except Refused:
            self.done["group not changed"] += 1
            return
        for number in self.groups[name].waiting:
            self.books.strike(f"{name}#{number}")
        waiting = [one for one in changed.status.held if one.session is None]
        own = [
            one.metadata.name for one in self.live.values() if one.metadata.owner and one.metadata.owner.name == name
        ]
        for session in own:
            self.books.strike(session)
        for session in own:
            found = await self._found(session)
            if found.status.phase in SESSION_MACHINE.final:
                del self.live[session]
            else:
                self.live[session] = found
                self.books.note(found)
        for one in waiting:
            assert one.seat is not None
            self.books.hold(f"{name}#{one.number}", f"{one.seat.pool}/{one.seat.number}", one.claim)
        self.done["group changed"] += 1
        start = min((held_slot(changed.spec, one)[0] for one in waiting), default=self.clock.now())
        self.groups[name] = Group(start, changed.spec.count, [one.number for one in waiting])
        if not waiting:
            del self.groups[name]

    async def shift(self) -> None:
        """Move one session that has not started to another time."""
        name = self._any()
        if name is None or self.live[name].spec.timeslot_start is None:
            return
        quarters = self.chance.choice((-8, -2, 1, 2, 12, 96))
        try:
            self._know(await self.otto.act(Ref(LabletSession, name), Move(minutes=15 * quarters)), "shifted")
        except Refused:
            self.done["not shifted"] += 1

    async def want_now(self) -> None:
        """Ask for a session without a slot, and put it on any worker, seated or not."""
        made = await self._make(LabletSessionSpec(definition=self._lab(), duration_minutes=60), "wanted now")
        if made is None:
            return
        worker_id, seat = self.chance.choice(self._workers)
        need = need_of(made, definition(made.spec.definition))
        assert need is not None
        claim = asap_claim(made, self.clock.now(), need, TERMS)
        try:
            self._know(await self.by(SCHEDULER).schedule(made, _onto(claim, worker_id, seat)), "placed")
        except NoRoom:
            await self._drop(made.metadata.name, "not placed")

    async def extend(self) -> None:
        name = self._any()
        if name is None or self.live[name].status.ends_at is None:
            return
        minutes = self.chance.choice((15, 30, 60))
        try:
            self._know(await self.otto.act(Ref(LabletSession, name), Extend(minutes=minutes)), "extended")
        except NoRoom:
            self.done["not extended"] += 1

    async def cancel(self) -> None:
        name = self._any()
        if name is not None:
            await self._drop(name, "released")

    async def move(self) -> None:
        """Let a promise change its seat."""
        waiting = [one for one in self.live.values() if one.status.seat and one.status.worker_id is None]
        chosen = [one for one in waiting if one.status.claim and one.status.claim.start > self.clock.now()]
        if not chosen:
            return
        session = self.chance.choice(chosen)
        after = self.chance.randrange(1, SEATS + 1)
        change = SeatChange(booking=session.metadata.name, after=after)
        try:
            await self.by(POOL_CONTROLLER).reseat(Ref(LabWorkerPool, TRACK), [change])
        except (NoRoom, Refused):
            self.done["not moved"] += 1
            return
        self._know(await self._found(session.metadata.name), "moved")

    async def pass_time(self) -> None:
        """Let a quarter of an hour go by: whose time has come gets its worker, as promised; whose time is over goes."""
        await asyncio.sleep(QUARTER.total_seconds())
        now = self.clock.now()
        for name in [name for name, one in self.groups.items() if one.start <= now]:
            while name in self.groups:
                await self._come(name)
        for session in list(self.live.values()):
            if session.status.claim is not None and session.status.claim.end <= now:
                await self._drop(session.metadata.name, "ended")
        for session in list(self.live.values()):
            claim, seat = session.status.claim, session.status.seat
            if claim is not None and seat is not None and claim.start <= now and session.status.worker_id is None:
                worker_id = next(uid for uid, one in self._workers if one == seat)
                kept = await self.by(SCHEDULER).schedule(session, _onto(claim, worker_id, seat))
                self._know(kept, "kept")

    async def _make(self, wanted: LabletSessionSpec, deed: str) -> LabletSession | None:
        try:
            made = await self.otto.create(LabletSession(metadata=Metadata(name=self._name("s")), spec=wanted))
        except NoRoom:
            self.done["refused"] += 1
            return None
        self._know(made, deed)
        return made

    async def _found(self, name: str) -> LabletSession:
        found = await self.otto.get(Ref(LabletSession, name))
        assert found is not None
        return found

    def _know(self, session: LabletSession, deed: str) -> None:
        self.done[deed] += 1
        self.live[session.metadata.name] = session
        self.books.note(session)

    async def _drop(self, name: str, deed: str) -> None:
        await self.otto.delete(Ref(LabletSession, name))
        del self.live[name]
        self.books.strike(name)
        self.done[deed] += 1

    def _any(self) -> str | None:
        return self.chance.choice(list(self.live)) if self.live else None

    def _name(self, letter: str) -> str:
        self.numbers += 1
        return f"{letter}{self.numbers}"

    def _slot(self) -> LabletSessionSpec:
        start = self._start()
        end = start + self.chance.choice((2, 4, 8, 12)) * QUARTER
        return LabletSessionSpec(definition=self._lab(), timeslot_start=start, timeslot_end=end)

    def _start(self) -> datetime:
        return _quarter(self.clock.now()) + self.chance.randrange(3, 120) * QUARTER

    def _lab(self) -> str:
        return self.chance.choices(list(LABS), (2, 3, 4, 2))[0]

    @property
    def _workers(self) -> Sequence[tuple[str, Seat | None]]:
        return WORKERS


def _onto(claim: Claim, worker_id: str, seat: Seat | None) -> Assignment:
    return Assignment(start=claim.start, end=claim.end, worker_id=worker_id, seat=seat)


def _quarter(moment: datetime) -> datetime:
    return moment - timedelta(minutes=moment.minute % 15, seconds=moment.second, microseconds=moment.microsecond)
