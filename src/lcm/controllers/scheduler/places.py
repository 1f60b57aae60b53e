"""A pool's seats as places: the worker that fills one, or what would be opened for it. Pure; for `view`."""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from lcm.controllers.scheduler.pace import Boot
from lcm.model.worker import LabWorker
from lcm.placement.limits import OPENING
from lcm.placement.request import BOOTING, Place
from lcm.placement.roster import Row, seat_place, template_room, usable_from, worker_place
from lcm.placement.terms import Terms, boot_lead, usual_boot

_BEYOND: Final = "its seat is beyond the pool's size"
_ENDING: Final = "its pool is being deleted"
_AS_IS: Final = "its pool opens no seats"


def places_of(row: Row, now: datetime, terms: Terms, claimed: Collection[int]) -> Iterator[tuple[int, Place]]:
    """Give the place that each seat of a pool is now, by its number; a seat that gets no worker is none.

    One that is claimed gets its worker even where none else would, and takes no others then: every pool launches for
    what it promised.
    """
    room, boot, most = template_room(row), boot_of(row, terms), row.pool.spec.max_workers
    ending = _ENDING if row.pool.metadata.deletion_timestamp is not None else ""
    idle = ending or ("" if row.pool.spec.policy in OPENING else _AS_IS)
    for number in sorted({*range(1, most + 1), *row.workers, *claimed}):
        worker = row.workers.get(number)
        if worker is not None and usable_from(worker, now, boot.usual) is not None:
            place = _promising(worker_place(worker, now, boot=boot.usual, room=room), worker)
            closed = ending or (_BEYOND if number > most else "")
            yield number, replace(place, closed=closed) if closed else place
        elif room is not None:
            closed = idle if number <= most else _BEYOND
            if not closed or number in claimed:
                yield number, seat_place(row, number, room, now + boot.lead, closed=closed)


def boot_of(row: Row | None, terms: Terms) -> Boot:
    """Say how long a pool's machines take to boot, or any if none is given."""
    usual = usual_boot(row.pool if row else None, terms)
    return Boot(usual, boot_lead(row.pool, terms) if row else terms.boot + terms.buffer)


def _promising(place: Place, worker: LabWorker) -> Place:
    """Let a machine that boots count as the seat it fills: what its template promises is not seen of it yet.

    Were it turned away for having no licence yet, another would be started for each who waits for it.
    """
    if place.closed != BOOTING:
        return place
    return replace(place, seat=True, licensed=None if worker.spec.cml.license_token else place.licensed)
