"""The records of licence seats: one for each worker that has, or may have, a seat.

A seat is recorded in the commit after which a registration is requested, and removed only in one in which CML was
seen without a licence. Read and written with workers' steps (`booking.step_records`), and by two calls of the plane:
`read_ledger` and `free_seat`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.access.audit import AuditedAction
from lcm.control.delivery.events import alert_raised_event
from lcm.control.objects.records import ALERTS, CODEC, NAME, encode_checked
from lcm.control.objects.writer import Writer
from lcm.control.telemetry.alert_records import ActiveAlert, Alerts, read_alerts
from lcm.model.base.errors import Gone, NoRoom, Refused
from lcm.model.base.event import Event, encode_event
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import UNRETURNED, LicenceLedger, LicenceSeat, SeatState, build_ledger, token_id
from lcm.model.telemetry.alert import Alert, Severity
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, scan_all
from lcm.system.tasks import TimeSlice

SEATS_PREFIX: Final = "licences/"
ORPHANED_ALERT: Final = "LicenceOrphaned"
SEAT_KIND: Final = "LicenceSeat"
"""The kind that events, alerts and the audit use for a seat.

Its name is the uid of its worker, which stays valid after the worker is gone.
"""

_GUARDS_PREFIX: Final = "licences-guard/"
_P: Final = WorkerPhase
_MACHINE_GONE: Final = frozenset({_P.TERMINATED, _P.PENDING})
_NOT_REGISTERED: Final = frozenset({_P.READY_UNLICENSED, _P.FAILED})
_ANSWERING: Final = frozenset({_P.READY_UNLICENSED, _P.DRAINING, _P.STOPPING})


@dataclass(frozen=True, slots=True)
class TokenSeats:
    """A licence token whose seats are counted: its guard entry and the seats that are taken."""

    name: str
    seats: int
    guard: Entry | None
    taken: Sequence[LicenceSeat]


def seat_key(worker_id: str) -> str:
    """Return the store key of a worker's seat."""
    return SEATS_PREFIX + worker_id


def decode_seat(entry: Entry | None) -> LicenceSeat | None:
    """Decode the entry of a seat; None stays None."""
    return CODEC.decode(entry.value, LicenceSeat) if entry else None


def starts_registration(before: LabWorker, after: LabWorker) -> bool:
    """Return whether a licence registration is requested after this step."""
    return after.status.phase is _P.LICENSING is not before.status.phase


async def read_token_seats(store: Store, worker: LabWorker, totals: Mapping[str, int]) -> TokenSeats | None:
    """Read which seats of a worker's token are taken; None when no number of seats is set for it."""
    name = token_id(worker.spec.cml.license_token)
    if name not in totals:
        return None
    guard = await store.get(_GUARDS_PREFIX + name)
    page = await scan_all(store, SEATS_PREFIX, labels={"token": name})
    return TokenSeats(name, totals[name], guard, [CODEC.decode(entry.value, LicenceSeat) for entry in page.entries])


def seat_after(before: LabWorker, after: LabWorker, seat: LicenceSeat | None, now: datetime) -> LicenceSeat | None:
    """Return the worker's seat after a step; None means that it has none."""
    if seat is None and (starts_registration(before, after) or after.status.cml.licensed):
        seat = _new_seat(after, now)
    if seat is None or seat.state is SeatState.ORPHANED:
        return seat
    if after.status.phase in _MACHINE_GONE or _is_unreturned(before, after):
        return msgspec.structs.replace(seat, state=SeatState.ORPHANED)
    if _is_returned(before, after, seat):
        return None
    token = token_id(after.spec.cml.license_token) if starts_registration(before, after) else seat.token
    return msgspec.structs.replace(seat, state=_seat_state(after, seat), token=token)


def seat_ops(entry: Entry | None, seat: LicenceSeat | None, worker_id: str) -> Sequence[Op]:
    """Return the operations that replace the entry that was read by this seat."""
    at = entry.revision if entry else ABSENT
    if seat is not None:
        value = encode_checked(seat)
        return (
            () if entry and entry.value == value else (Put(seat_key(worker_id), value, {"token": seat.token}, at=at),)
        )
    return (Delete(entry.key, at=at),) if entry else ()


def claim_seat(token: TokenSeats | None, before: LicenceSeat | None, after: LicenceSeat) -> Sequence[Op]:
    """Return the operations that keep two workers from taking a token's last seat at once.

    Raises NoRoom when all seats are taken, or when this worker's seat is orphaned and must be freed first.
    """
    if before is not None and before.state is SeatState.ORPHANED:
        raise NoRoom(
            f"the licence seat of {before.worker_name} was not returned: "
            f"free it at the licence server, then {_free_request(before)}"
        )
    if token is None or (before is not None and before.token == after.token):
        return ()
    others = [seat for seat in token.taken if seat.worker_id != after.worker_id]
    if len(others) >= token.seats:
        left = [seat.worker_name for seat in others if seat.state is SeatState.ORPHANED]
        remedy = f"free the seats of {', '.join(left)}" if left else "delete or pause a worker that has one"
        taken = f"{len(others)} of {token.seats} taken"
        raise NoRoom(f"no licence seat is free ({taken}): {remedy}, or raise CML_LICENSE_SEATS")
    return (
        Put(_GUARDS_PREFIX + token.name, after.worker_id.encode(), at=token.guard.revision if token.guard else ABSENT),
    )


def touch_guard(seat: LicenceSeat) -> Op:
    """Touch the token's guard, so that concurrent claims see a seat that was taken without being requested."""
    return Put(_GUARDS_PREFIX + seat.token, seat.worker_id.encode())


def orphan_alert(seat: LicenceSeat, now: datetime) -> tuple[Op, Event]:
    """Return the operation and the event that raise the alert about an orphaned seat."""
    alert = Alert(
        kind=SEAT_KIND,
        name=seat.worker_id,
        namespace=seat.namespace,
        uid=seat.worker_id,
        alert=ORPHANED_ALERT,
        severity=Severity.CRITICAL,
        reason=ORPHANED_ALERT,
        message=f"{seat.worker_name} ended without returning its licence: free the seat at the licence server, "
        f"then {_free_request(seat)}",
        since=now,
    )
    put = Put(_alert_key(seat), encode_checked(Alerts(standing=(ActiveAlert(alert=alert),))))
    return put, alert_raised_event(alert, now=now)


async def read_ledger(store: Store, totals: Mapping[str, int]) -> LicenceLedger:
    """Read all seats that are not free."""
    seats, time_slice = list[LicenceSeat](), TimeSlice()
    for entry in (await scan_all(store, SEATS_PREFIX)).entries:
        seats.append(CODEC.decode(entry.value, LicenceSeat))
        await time_slice.yield_if_over()
    return build_ledger(sorted(seats, key=lambda seat: (seat.namespace, seat.worker_name, seat.worker_id)), totals)


async def free_seat(writer: Writer, worker_id: str) -> None:
    """Remove an orphaned seat and its alert.

    Raises Gone when there is no such seat, Refused when it is not orphaned.
    """
    if not NAME.fullmatch(worker_id):
        raise Gone("no worker has such a uid")
    entry = await writer.store.get(seat_key(worker_id))
    seat = decode_seat(entry)
    if entry is None or seat is None:
        raise Gone(f"worker {worker_id} has no licence seat")
    if seat.state is not SeatState.ORPHANED:
        raise Refused(f"the seat of {seat.worker_name} is {seat.state}: its worker returns it when it ends")
    alerts = await read_alerts(writer.store, _alert_key(seat))
    events = alerts.change_events(Alerts(), writer.clock.now())
    deed = AuditedAction(verb="free", kind=SEAT_KIND, name=worker_id, namespace=seat.namespace)
    ops = [Delete(entry.key, at=entry.revision), *alerts.replace_ops(Alerts())]
    await writer.submit(ops, [encode_event(event) for event in events], deeds=[deed])


def _new_seat(worker: LabWorker, now: datetime) -> LicenceSeat:
    return LicenceSeat(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        token=token_id(worker.spec.cml.license_token),
        flavour=worker.spec.cml.license_flavour,
        state=SeatState.REGISTERING,
        since=now,
    )


def _seat_state(worker: LabWorker, seat: LicenceSeat) -> SeatState:
    if worker.status.phase is _P.UNLICENSING:
        return SeatState.RELEASING
    if worker.status.cml.licensed:
        return SeatState.REGISTERED
    return SeatState.REGISTERING if worker.status.phase is _P.LICENSING else seat.state


def _is_returned(before: LabWorker, after: LabWorker, seat: LicenceSeat) -> bool:
    """Return whether CML was seen without a licence after it had been asked to register.

    That it had none before the registration was asked for does not count.
    """
    source, target = before.status.phase, after.status.phase
    if after.status.cml.licensed is not False:
        return False
    held_before = before.status.cml.licensed is not False
    if source is _P.UNLICENSING:
        return target is _P.STOPPING or (target is _P.UNLICENSING and held_before)
    if source is _P.LICENSING:
        return target in _NOT_REGISTERED
    return seat.state is SeatState.REGISTERING and before.status.cml.licensed is None and target in _ANSWERING


def _is_unreturned(before: LabWorker, after: LabWorker) -> bool:
    """Return whether CML gave up its licence without returning the seat to the licence server."""
    left = before.status.phase is _P.UNLICENSING is not after.status.phase
    facts = after.status.cml
    return left and facts.licensed is False and facts.license_status in UNRETURNED


def _free_request(seat: LicenceSeat) -> str:
    return f"DELETE /api/licenses/{seat.worker_id}"


def _alert_key(seat: LicenceSeat) -> str:
    return f"{ALERTS}{SEATS_PREFIX}{seat.namespace}/{seat.worker_id}"
