"""A store, a simulated mailbox and processes that send notices between them; bookings are put into the store as is."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from harness import given
from harness.event_clients import SOURCE, reveal
from lcm.control.delivery.outbox import LEASE_SECONDS, Outbox
from lcm.control.notices.delivery import NoticeDelivery
from lcm.control.notices.texts import MailStyle
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import CODEC, key_of
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Owner, PhaseChange
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase, ReservationStatus, occurrences
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, SessionPhase
from lcm.providers.protocols.mail import Mail
from lcm.sim.cloud.mailbox import SimulatedMailbox
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import START, VirtualClock
from lcm.store.base import Delete, Put, Store
from lcm.store.memory import MemoryStore

ADA, BOB, TUTOR = "ada@example.org", "bob@example.org", "tutor@example.org"
STYLE = MailStyle(sender="lcm@example.org", public_url="https://lcm.test", time_zone="Europe/Berlin")


def at(hours: float) -> datetime:
    """Return a moment so many hours after the beginning of virtual time."""
    return START + timedelta(hours=hours)


def booking(name: str = "s1", *, start: float = 24, hours: float = 2, **fields: Any) -> LabletSession:
    """Return a session that is booked for Ada."""
    whole: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "owner": ADA,
        "timeslot_start": at(start),
        "timeslot_end": at(start + hours),
        "ends_at": at(start + hours),
        "created_at": START + timedelta(seconds=1),
    } | fields
    return given.session(**whole)


def running(session: LabletSession, **fields: Any) -> LabletSession:
    """Return a session whose lab runs."""
    now = VirtualClock().now()
    change = PhaseChange(phase=SessionPhase.RUNNING, at=now, by="lablet-controller")
    whole: dict[str, Any] = {
        "phase": SessionPhase.RUNNING,
        "worker_id": "uid-w1",
        "cml_lab_id": "lab-1",
        "access_urls": {"r1_serial": "telnet://192.0.2.7:2001"},
        "history": (*session.status.history, change),
    } | fields
    return with_status(session, **whole)


def ended(session: LabletSession, phase: SessionPhase, by: str = "root", reason: str = "") -> LabletSession:
    change = PhaseChange(phase=phase, at=VirtualClock().now(), by=by, reason=reason)
    return with_status(session, phase=phase, history=(*session.status.history, change), outcome_reason=reason)


def with_status(session: LabletSession, **fields: Any) -> LabletSession:
    return msgspec.structs.replace(session, status=msgspec.structs.replace(session.status, **fields))


def school_class(*people: str, name: str = "class", start: float = 24, **fields: Any) -> Reservation:
    """Return a promised class for these people."""
    made = given.reservation(
        name=name,
        uid=f"uid-{name}",
        owner=TUTOR,
        student_emails=people,
        count=max(len(people), 1),
        timeslot_start=at(start),
        timeslot_end=at(start + 2),
        created_at=START + timedelta(seconds=1),
        **fields,
    )
    return msgspec.structs.replace(made, status=promised(made))


def promised(whole: Reservation) -> ReservationStatus:
    """Return the status of a class whose slots are all promised."""
    slots = [slot for slot in occurrences(whole.spec) for _ in range(whole.spec.count)]
    held = tuple(
        ReservationClaim(number=number, claim=Claim(start=start, end=end + CLEAN_UP_TIME, need=given.amount()))
        for number, (start, end) in enumerate(slots, start=1)
    )
    return ReservationStatus(phase=ReservationPhase.PROMISED, held=held)


def with_sessions(whole: Reservation) -> tuple[Reservation, Sequence[LabletSession]]:
    """Return a class, and the sessions of its first occurrence."""
    owner = Owner(kind=whole.kind, name=whole.metadata.name, uid=whole.metadata.uid)
    several, held = list[LabletSession](), list[ReservationClaim]()
    for one in whole.status.held:
        name = f"{whole.metadata.name}-{one.number}"
        if one.number > whole.spec.count:
            held.append(one)
            continue
        end = one.claim.end - CLEAN_UP_TIME
        start = end - (whole.spec.timeslot_end - whole.spec.timeslot_start)
        email = whole.spec.student_emails[one.number - 1] if whole.spec.student_emails else None
        session = booking(name, owner=whole.spec.owner, student_email=email, timeslot_start=start, timeslot_end=end)
        metadata = msgspec.structs.replace(session.metadata, owner=owner)
        several.append(msgspec.structs.replace(with_status(session, ends_at=end), metadata=metadata))
        held.append(msgspec.structs.replace(one, session=name))
    status = msgspec.structs.replace(whole.status, held=tuple(held), phase=ReservationPhase.ACTIVE)
    return msgspec.structs.replace(whole, status=status), several


@dataclass
class NoticeWorld:
    """What outlives the processes that send."""

    store: Store = field(default_factory=MemoryStore)
    mailbox: SimulatedMailbox = field(default_factory=lambda: SimulatedMailbox(VirtualClock()))
    mails_per_minute: int = 6000

    async def put(self, *several: Resource) -> None:
        await self.store.commit(*(Put(key_of(one), CODEC.encode(one)) for one in several))

    async def remove(self, *several: Resource) -> None:
        await self.store.commit(*(Delete(key_of(one)) for one in several))

    def subjects(self, recipient: str = ADA) -> list[str]:
        return [one.subject for one in self.mailbox.of(recipient)]

    def kinds(self, recipient: str = ADA) -> list[str]:
        """Return the first word of each subject that somebody got."""
        return [one.partition(":")[0] for one in self.subjects(recipient)]

    def last(self, recipient: str = ADA) -> Mail:
        return self.mailbox.of(recipient)[-1]

    @asynccontextmanager
    async def process(self, name: str = "p1") -> AsyncIterator[Outbox]:
        """Run a process that sends notices, until the end of the block."""
        control = ControlPlane(self.store, clock=VirtualClock())
        plane = control.plane_for(Caller(name="service", role=Role.SERVICE))
        cache = Cache(plane, LabletSession, Reservation, LabWorkerPool)
        notices = NoticeDelivery(cache, self.mailbox, STYLE, mails_per_minute=self.mails_per_minute)
        outbox = Outbox(
            self.store,
            _post_nothing,
            reveal,
            clock=VirtualClock(),
            chance=Chance(1).random,
            source=SOURCE,
            holder=name,
            ttl_seconds=LEASE_SECONDS,
            notices=notices.run,
        )
        following, work = asyncio.create_task(cache.run()), asyncio.create_task(outbox.run())
        try:
            yield outbox
        finally:
            await outbox.close()
            following.cancel()
            await asyncio.gather(following, work, return_exceptions=True)


async def _post_nothing(*_: object) -> None:
    raise AssertionError("there are no sinks")
