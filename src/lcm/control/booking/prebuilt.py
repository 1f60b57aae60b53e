"""Prebuilt labs for those who want one at once: one commit creates the session, which runs, with the lab of another.

The prebuilt session's key is a precondition of that commit, so that nobody else can take the same lab, and it ends
without a teardown. What the taker claims is checked and guarded as for any session that is placed. Called by
`control.plane.local` for sessions without a slot; a definition without prebuilt labs costs no read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.accounts.stays import prebuilt_subject, read_spent
from lcm.control.booking.prebuilt_labs import COMING
from lcm.control.booking.promise import Promises
from lcm.control.booking.schedule import Proposal, check_proposal, fields_with_worker
from lcm.control.booking.step_records import NO_LIMITS, records_for_step
from lcm.control.objects.records import CODEC, Record, encode_checked, find_record, prebuilt_key
from lcm.control.objects.steps import take_plane_step
from lcm.control.objects.writer import Edit, Writer
from lcm.control.plane.protocol import DefinitionRef, R, SessionRef, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import NoRoom
from lcm.model.base.event import Event
from lcm.model.base.resource import Truth, has_condition
from lcm.model.kinds.console import consoles_of
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.prebuilt import PrebuiltRecord, PrebuiltUse, count_asked
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import (
    CLEAN_UP_TIME,
    LabletSession,
    PrebuiltLab,
    SchedulingDecision,
    Seat,
    SessionCondition,
    SessionPhase,
    is_asap,
)
from lcm.model.money.billing import start_of_month, to_usd
from lcm.placement.claims import asap_length, need_of
from lcm.placement.prebuilt import decide_prebuilt, is_current
from lcm.store.base import ABSENT, Entry, Op, Put, Store

MOST_TRIED: Final = 3
"""So many prebuilt labs are tried for one booking; what the first could not take, others nearly never can."""
_P: Final = SessionPhase
_NO_ACCESS: Final[Mapping[str, Any]] = {"access_url": None, "access_urls": {}, "nodes": (), "progress": None}
_LAB_CONDITIONS: Final = (SessionCondition.LAB_RUNS, SessionCondition.LAB_SEEN)


@dataclass(frozen=True, slots=True)
class Booked:
    """A new session as it is committed, and what is committed and told with it."""

    session: LabletSession
    ops: Sequence[Op] = ()
    told: Sequence[Event] = ()


async def book_at_once(
    writer: Writer, promises: Promises | None, edit: Edit[R], definition: Resource | None
) -> tuple[Edit[R], Sequence[Op], Sequence[Event]]:
    """Return the edit that creates an object, and what is committed and told with it.

    A session that is wanted at once has a prebuilt lab, if one is ready for it, and runs. Whether one was is counted.
    A prebuilt one keeps the epoch in which it is made.
    """
    session = edit.after
    if isinstance(session, LabletSession) and session.spec.prebuilt:
        status = msgspec.structs.replace(session.status, prebuilt_in=writer.store.epoch)
        return replace(edit, after=msgspec.structs.replace(session, status=status)), (), ()
    if promises is None or not (isinstance(session, LabletSession) and isinstance(definition, LabletDefinition)):
        return edit, (), ()
    wants = is_asap(session) and not session.spec.prebuilt and session.spec.continue_from is None
    if definition.spec.prebuilt is None or not wants:
        return edit, (), ()
    made = await _book_session(writer, promises, session, definition)
    assert isinstance(made.session, type(edit.after))
    return replace(edit, after=made.session), made.ops, made.told


async def _book_session(
    writer: Writer, promises: Promises, session: LabletSession, definition: LabletDefinition
) -> Booked:
    await promises.calendar.ready()
    now, ref = writer.clock.now(), ref_of(definition)
    record = await _UseRecord.read(writer.store, ref)
    for found in promises.prebuilt.of(ref)[:MOST_TRIED]:
        if (made := await _try_taking(writer, promises, session, definition, ref_of(found))) is not None:
            return Booked(made.session, [*made.ops, record.counting(now, taken=True)], made.told)
    wanted = decide_prebuilt(definition.spec, record.value.asked, now).number
    return Booked(session, [record.counting(now, taken=False, missed=wanted > 0)])


@dataclass(frozen=True, slots=True)
class _UseRecord:
    """What became of those who wanted a lab at once, as it was read."""

    key: str
    entry: Entry | None
    value: PrebuiltRecord = field(default_factory=PrebuiltRecord)

    @classmethod
    async def read(cls, store: Store, ref: DefinitionRef) -> "_UseRecord":
        key = prebuilt_key(ref)
        entry = await store.get(key)
        return cls(key, entry, CODEC.decode(entry.value, PrebuiltRecord)) if entry else cls(key, None)

    def counting(self, now: datetime, *, taken: bool, missed: bool = False) -> Op:
        """Return the write of the record with one who wanted a lab."""
        after = PrebuiltRecord(
            taken=self.value.taken + taken,
            missed=self.value.missed + missed,
            asked=count_asked(self.value.asked, now),
        )
        return Put(self.key, encode_checked(after), at=self.entry.revision if self.entry else ABSENT)


async def _try_taking(
    writer: Writer, promises: Promises, session: LabletSession, definition: LabletDefinition, ref: SessionRef
) -> Booked | None:
    """Return a session that takes a prebuilt lab over; None if it must not, or if the lab is not to be had."""
    record, now = await find_record(writer.store, ref), writer.clock.now()
    need = need_of(session, definition)
    if record is None or need is None or not _is_ready(record.resource, definition, writer.store.epoch):
        return None
    lab = record.resource
    assert lab.status.claim is not None, "what runs has a claim"
    if not need.within(lab.status.claim.need) or _is_given_up(promises, lab):
        return None
    claim = Claim(start=now, end=now + asap_length(session, now) + CLEAN_UP_TIME, need=need)
    proposal = _propose(promises, session, definition, lab, claim)
    try:
        snapshot = await check_proposal(writer, promises, proposal)
    except NoRoom:
        return None
    assert snapshot.worker is not None, "it was read"
    ports = lab.status.allocated_ports or {}
    fields = dict(fields_with_worker(session, snapshot.worker, ports, claim, now))
    fields |= {"claim": claim, "seat": proposal.assignment.seat, **_fields_of_lab(session, lab, definition)}
    fields |= {"ends_at": claim.end - CLEAN_UP_TIME, "last_decision": proposal.assignment.decision}
    why = f"it takes the prebuilt lab {lab.metadata.name} over"
    taker = take_plane_step(session, _P.RUNNING, author=writer.author, now=now, reason=why, **fields)
    held = snapshot.ops(session.metadata.uid)
    left = await _leave_lab(writer, record, session, now)
    return Booked(taker, [*held, *(op for op in left.ops if op.key not in {one.key for one in held})], left.told)


def _is_ready(lab: LabletSession, definition: LabletDefinition, epoch: str) -> bool:
    """Return whether a prebuilt session's lab may be taken over, and is of the definition as it is now.

    After a restore a lab of before may be somebody's who took it after the backup.
    """
    status = lab.status
    broken = any(has_condition(status.conditions, one, Truth.FALSE) for one in _LAB_CONDITIONS)
    runs = status.phase is _P.RUNNING and lab.metadata.deletion_timestamp is None and not broken
    return runs and lab.spec.prebuilt and status.prebuilt_in == epoch and is_current(lab, definition)


def _is_given_up(promises: Promises, lab: LabletSession) -> bool:
    """Return whether a lab is on a worker that its pool gives up: it would hold no planned worker."""
    worker_id = lab.status.worker_id or ""
    worker = promises.calendar.worker(worker_id)
    return worker is None or (worker.metadata.owner is not None and promises.calendar.pool_seat_of(worker_id) is None)


def _propose(
    promises: Promises, session: LabletSession, definition: LabletDefinition, lab: LabletSession, claim: Claim
) -> Proposal:
    """Return the proposal to put a session where a prebuilt lab is."""
    worker_id, name = lab.status.worker_id or "", lab.status.worker_name or ""
    fills = promises.calendar.pool_seat_of(worker_id)
    decision = SchedulingDecision(action="assign", worker_id=worker_id, reason=f"a prebuilt lab is ready on {name}")
    assignment = Assignment(
        start=claim.start,
        end=claim.end,
        worker_id=worker_id,
        seat=Seat(pool=fills[0].metadata.name, number=fills[1]) if fills else None,
        decision=decision,
    )
    return Proposal(session, definition, assignment, claim, lab)


def _fields_of_lab(session: LabletSession, lab: LabletSession, definition: LabletDefinition) -> Mapping[str, Any]:
    """Return the status fields that a session has of the lab that it takes over."""
    status = lab.status
    named = msgspec.structs.replace(
        session, status=msgspec.structs.replace(session.status, allocated_ports=status.allocated_ports)
    )
    paths = {one.name: one.path for one in consoles_of(named, definition.spec.port_template or {})}
    behind_gateway = any(url.startswith("/") for url in status.access_urls.values())
    urls = paths if behind_gateway else status.access_urls
    return {
        "cml_lab_id": status.cml_lab_id,
        "taken_from": PrebuiltLab(name=lab.metadata.name, uid=lab.metadata.uid),
        "access_urls": urls,
        "access_url": next(iter(urls.values()), None),
        "nodes": status.nodes,
        "progress": status.progress,
        "boot_use": status.boot_use,
    }


async def _leave_lab(writer: Writer, record: Record[LabletSession], taker: LabletSession, now: datetime) -> Booked:
    """Return a prebuilt session that ends without its lab, with what it cost until now."""
    lab, why = record.resource, f"{taker.metadata.name} takes its lab over"
    ended = take_plane_step(
        lab,
        _P.COMPLETED,
        author=writer.author,
        now=now,
        reason=why,
        outcome=_P.COMPLETED,
        outcome_reason=why,
        taken_by=taker.metadata.uid,
        **_NO_ACCESS,
    )
    made = await records_for_step(writer.store, NO_LIMITS, lab, ended, now)
    edit = Edit(record, made.after)
    return Booked(made.after, [*edit.ops(), *made.ops], edit.events(now))


async def read_use(writer: Writer, promises: Promises, ref: DefinitionRef) -> PrebuiltUse:
    """Return the prebuilt labs of a definition and their use. Raise Gone if there is no such definition."""
    definition, now = (await writer.require(ref)).resource, writer.clock.now()
    await promises.calendar.ready()
    used = (await _UseRecord.read(writer.store, ref_of(definition))).value
    wanted, phases = decide_prebuilt(definition.spec, used.asked, now), _phases_of(promises, definition)
    this_month = start_of_month(now)
    months = [start_of_month(this_month - CLEAN_UP_TIME), this_month]
    spent = await read_spent(writer.store, prebuilt_subject(ref.namespace, ref.name), months)
    return PrebuiltUse(
        wanted=wanted.number,
        reason=wanted.reason,
        ready=phases.count(_P.RUNNING),
        starting=sum(one in COMING for one in phases),
        taken=used.taken,
        missed=used.missed,
        cost_usd=to_usd(sum(spent)) if spent else None,
        asked=used.asked,
    )


def _phases_of(promises: Promises, definition: LabletDefinition) -> list[SessionPhase]:
    return [one.status.phase for one in promises.prebuilt.of(ref_of(definition))]
