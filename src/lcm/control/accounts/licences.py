"""The ledger of licence seats: one entry for each worker that has, or may have, a seat.

An entry is opened in the commit in which a registration is about to be asked for, and closed only in one in which CML
was seen without a licence. Read and written in the commits of workers' steps (`companions`), and by two verbs of the
plane.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.access.audit import Deed
from lcm.control.delivery.events import raised
from lcm.control.objects.records import ALERTS, CODEC, NAME, written
from lcm.control.objects.writer import Ledger
from lcm.control.telemetry.alert_records import Alerts, Standing, board
from lcm.model.base.errors import Gone, NoRoom, Refused
from lcm.model.base.event import Event, encode
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import UNRETURNED, LicenceLedger, LicenceSeat, SeatState, ledger, token_id
from lcm.model.telemetry.alert import Alert, Severity
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, everything

SEATS: Final = "licences/"
ORPHANED: Final = "LicenceOrphaned"
KIND: Final = "LicenceSeat"
"""What events, alerts and the audit call a seat; its name is its worker's uid, which outlives the worker."""

_GUARDS: Final = "licences-guard/"
_P: Final = WorkerPhase
_MACHINE_GONE: Final = frozenset({_P.TERMINATED, _P.PENDING})
_NOT_REGISTERED: Final = frozenset({_P.READY_UNLICENSED, _P.FAILED})
_ANSWERING: Final = frozenset({_P.READY_UNLICENSED, _P.DRAINING, _P.STOPPING})


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token whose seats are counted: its guard, and who has its seats."""

    name: str
    seats: int
    guard: Entry | None
    taken: Sequence[LicenceSeat]


def seat_key(worker_id: str) -> str:
    """Say where a worker's seat is."""
    return SEATS + worker_id


def opened_seat(entry: Entry | None) -> LicenceSeat | None:
    """Read an entry."""
    return CODEC.decode(entry.value, LicenceSeat) if entry else None


def asks(before: LabWorker, after: LabWorker) -> bool:
    """Tell whether a step is one after which a registration is asked for."""
    return after.status.phase is _P.LICENSING is not before.status.phase


async def look_at_token(store: Store, worker: LabWorker, totals: Mapping[str, int]) -> Token | None:
    """Read who has the seats of a worker's token; None when nobody said how many it has."""
    name = token_id(worker.spec.cml.license_token)
    if name not in totals:
        return None
    guard = await store.get(_GUARDS + name)
    page = await everything(store, SEATS, labels={"token": name})
    return Token(name, totals[name], guard, [CODEC.decode(entry.value, LicenceSeat) for entry in page.entries])


def seat_after(before: LabWorker, after: LabWorker, seat: LicenceSeat | None, now: datetime) -> LicenceSeat | None:
    """Say what a step makes of a worker's seat; None means that it has none."""
    if seat is None and (asks(before, after) or after.status.cml.licensed):
        seat = _taken(after, now)
    if seat is None or seat.state is SeatState.ORPHANED:
        return seat
    if after.status.phase in _MACHINE_GONE or _unreturned(before, after):
        return msgspec.structs.replace(seat, state=SeatState.ORPHANED)
    if _returned(before, after, seat):
        return None
    token = token_id(after.spec.cml.license_token) if asks(before, after) else seat.token
    return msgspec.structs.replace(seat, state=_state(after, seat), token=token)


def ops_for(entry: Entry | None, seat: LicenceSeat | None, worker_id: str) -> Sequence[Op]:
    """Say how the store puts a seat in place of what was read."""
    at = entry.revision if entry else ABSENT
    if seat is not None:
        value = written(seat)
        return (
            () if entry and entry.value == value else (Put(seat_key(worker_id), value, {"token": seat.token}, at=at),)
        )
    return (Delete(entry.key, at=at),) if entry else ()


def guarded(token: Token | None, before: LicenceSeat | None, after: LicenceSeat) -> Sequence[Op]:
    """Let no two workers take a token's last seat at once; NoRoom when others have all."""
    if before is not None and before.state is SeatState.ORPHANED:
        raise NoRoom(
            f"the seat of {before.worker_name} was not given back: free it at the licence server, then {_say(before)}"
        )
    if token is None or (before is not None and before.token == after.token):
        return ()
    others = [seat for seat in token.taken if seat.worker_id != after.worker_id]
    if len(others) >= token.seats:
        raise NoRoom(_full(token, others))
    return (Put(_GUARDS + token.name, after.worker_id.encode(), at=token.guard.revision if token.guard else ABSENT),)


def noticed(seat: LicenceSeat) -> Op:
    """Let those know who count a token's seats that one is taken that nobody asked for."""
    return Put(_GUARDS + seat.token, seat.worker_id.encode())


def orphaned(seat: LicenceSeat, now: datetime) -> tuple[Op, Event]:
    """Raise the alert about a seat that its worker left behind."""
    alert = Alert(
        kind=KIND,
        name=seat.worker_id,
        namespace=seat.namespace,
        uid=seat.worker_id,
        alert=ORPHANED,
        severity=Severity.CRITICAL,
        reason=ORPHANED,
        message=f"{seat.worker_name} ended without giving its licence back: free the seat at the licence server, "
        f"then {_say(seat)}",
        since=now,
    )
    put = Put(_alert_key(seat), written(Alerts(standing=(Standing(alert=alert),))))
    return put, raised(alert, now=now)


async def read_ledger(store: Store, totals: Mapping[str, int]) -> LicenceLedger:
    """Read all seats that are not free."""
    page = await everything(store, SEATS)
    seats = [CODEC.decode(entry.value, LicenceSeat) for entry in page.entries]
    return ledger(sorted(seats, key=lambda seat: (seat.namespace, seat.worker_name, seat.worker_id)), totals)


def check_worker_id(worker_id: str) -> None:
    """Raise Gone for what no worker's uid can be."""
    if not NAME.fullmatch(worker_id):
        raise Gone("no worker has such a uid")


async def free(book: Ledger, worker_id: str) -> None:
    """Forget an orphaned seat, and its alert. Gone when there is no seat, Refused when it is not orphaned."""
    check_worker_id(worker_id)
    entry = await book.store.get(seat_key(worker_id))
    seat = opened_seat(entry)
    if entry is None or seat is None:
        raise Gone(f"worker {worker_id} has no licence seat")
    if seat.state is not SeatState.ORPHANED:
        raise Refused(
            f"the seat of {seat.worker_name} is {seat.state}: its worker gives it back by itself when it ends"
        )
    alerts = await board(book.store, _alert_key(seat))
    told = alerts.told(Alerts(), book.clock.now())
    deed = Deed(verb="free", kind=KIND, name=worker_id, namespace=seat.namespace)
    ops = [Delete(entry.key, at=entry.revision), *alerts.becoming(Alerts())]
    await book.submit(ops, [encode(event) for event in told], deeds=[deed])


def _taken(worker: LabWorker, now: datetime) -> LicenceSeat:
    return LicenceSeat(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        token=token_id(worker.spec.cml.license_token),
        flavour=worker.spec.cml.license_flavour,
        state=SeatState.REGISTERING,
        since=now,
    )


def _state(worker: LabWorker, seat: LicenceSeat) -> SeatState:
    if worker.status.phase is _P.UNLICENSING:
        return SeatState.RELEASING
    if worker.status.cml.licensed:
        return SeatState.REGISTERED
    return SeatState.REGISTERING if worker.status.phase is _P.LICENSING else seat.state


def _returned(before: LabWorker, after: LabWorker, seat: LicenceSeat) -> bool:
    """Tell whether CML was seen without a licence, and not merely was without one before it was asked to have one."""
    source, target = before.status.phase, after.status.phase
    if after.status.cml.licensed is not False:
        return False
    news = before.status.cml.licensed is not False
    if source is _P.UNLICENSING:
        return target is _P.STOPPING or (target is _P.UNLICENSING and news)
    if source is _P.LICENSING:
        return target in _NOT_REGISTERED
    return seat.state is SeatState.REGISTERING and before.status.cml.licensed is None and target in _ANSWERING


def _unreturned(before: LabWorker, after: LabWorker) -> bool:
    """Tell whether CML gave up its licence without giving back the seat."""
    left = before.status.phase is _P.UNLICENSING is not after.status.phase
    facts = after.status.cml
    return left and facts.licensed is False and facts.license_status in UNRETURNED


def _full(token: Token, taken: Sequence[LicenceSeat]) -> str:
    left = [seat.worker_name for seat in taken if seat.state is SeatState.ORPHANED]
    remedy = f"free what {', '.join(left)} left behind" if left else "delete or pause a worker that has one"
    return f"no licence seat is free ({len(taken)} of {token.seats} taken): {remedy}, or raise CML_LICENSE_SEATS"


def _say(seat: LicenceSeat) -> str:
    return f"DELETE /api/licenses/{seat.worker_id}"


def _alert_key(seat: LicenceSeat) -> str:
    return f"{ALERTS}{SEATS}{seat.namespace}/{seat.worker_id}"
