"""The rows that a client of the event stream begins with: made once for all who ask at about the same time.

Encoding thousands of objects costs far more than sending them, and reading them even more, so those are taken that the
process knows. Whoever is given a snapshot goes on from the revision at which it was begun, so one that is a moment old
is as good as a new one: the events since then follow it.
Read by `api.routes.stream`.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from lcm.api.routes.snapshot import SNAPSHOT_FRAME, find_known, list_pages
from lcm.control.delivery.feed import Feed
from lcm.control.objects.deletion import PLANE_CALLER
from lcm.control.plane.local import ControlPlane
from lcm.control.telemetry.reports import list_newest_metrics
from lcm.model.access.identity import SEES_ALL, Caller, Role
from lcm.model.access.learner import audience_keys, audience_of, owner_of
from lcm.model.base.errors import Throttled
from lcm.model.base.event import WorkerMetrics
from lcm.model.base.resource import Part
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.rows import Row, row_of
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.telemetry.alert import Alert
from lcm.system.tasks import TimeSlice, cancel_and_wait

SHARED_SECONDS: Final = 1.0
"""How long a snapshot is given to others after it was made, at least."""
PAUSE_FACTOR: Final = 4
"""How many times as long as it took to make it: whoever asks again and again must not keep us at making them."""
MOST_HELD: Final = 8
"""While so many are still being sent to slow clients, no new one is made."""
MOST_OF_ONE: Final = 2
"""While so many are still being sent to the slow clients of one caller, no new one is made for it."""
OLDEST_SECONDS: Final = 30.0
"""How old a snapshot is given to others at most, while no new one may be made."""
_ROWS_PER_FRAME: Final = 200
_KINDS: Final[tuple[type[Resource], ...]] = (
    LabWorker,
    LabWorkerPool,
    WorkerTemplate,
    LabletDefinition,
    LabletSession,
    Reservation,
)
_encode: Final = msgspec.json.Encoder().encode


class RowSnapshot(Part, omit_defaults=True):
    """A part of the current state, for a client that asked for rows."""

    rows: tuple[Row, ...] = ()
    alerts: tuple[Alert, ...] = ()
    metrics: tuple[WorkerMetrics, ...] = ()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class EncodedRows:
    """The rows of every object, none older than `revision`, and for staff alerts and measurements."""

    epoch: str
    revision: int
    made_at: float
    """When it was finished, on the event loop's clock."""
    seconds: float
    """How long it took to make it."""
    everything: Sequence[bytes]
    """Frames for those who see all."""
    common: Sequence[bytes]
    """Rows that everybody sees."""
    owned: Mapping[str, Sequence[bytes]]
    """The other rows that somebody sees, by the keys of their audiences."""

    def frames_for(self, caller: Caller) -> Iterator[bytes]:
        """Return frames with all that a caller receives events of; for those who see all, they hold the snapshot."""
        if caller.role in SEES_ALL:
            return self._every_frame()
        common = () if caller.role is Role.GUEST else self.common
        mine = chain.from_iterable(self.owned.get(key, ()) for key in audience_keys(caller))
        return _frames(chain(common, dict.fromkeys(mine)))

    def _every_frame(self) -> Iterator[bytes]:
        yield from self.everything


class RowSnapshots:
    """Makes snapshots, one at a time, and gives each to all who ask while it is made and shortly after.

    Each is made in a task of its own: it is finished also when whoever asked first has lost patience.
    """

    def __init__(self, core: ControlPlane, feed: Feed) -> None:
        self._core = core
        self._feed = feed
        self._newest: asyncio.Task[EncodedRows] | None = None
        self._held: WeakSet[EncodedRows] = WeakSet()
        self._readers: WeakKeyDictionary[EncodedRows, set[str]] = WeakKeyDictionary()
        """Who was given the frames of all, which hold a snapshot for as long as they are sent."""

    def find(self, caller: Caller) -> asyncio.Task[EncodedRows]:
        """Return the making of a snapshot that is new enough, begun now if there is none; it raises as the store does.

        It is others' as well: wait for it with `asyncio.wait`, which does not cancel it. Raises Throttled when too many
        are still being sent, in all or to this caller.
        """
        newest = self._newest
        if newest is None or not self._is_shared(newest):
            newest = self._newest = None  # what nobody is given any more is held by those who read it only
            if sum(caller.name in names for names in self._readers.values()) >= MOST_OF_ONE:
                raise Throttled("your other clients are still reading their snapshots; come again")
            if len(self._held) >= MOST_HELD:
                raise Throttled("many clients are still reading their snapshots; come again")
            newest = self._newest = asyncio.create_task(self._make(), name="snapshot of rows")
            newest.add_done_callback(_retrieve_error)
        return newest

    def frames_for(self, caller: Caller, made: EncodedRows) -> Iterator[bytes]:
        """Return frames with all that a caller receives events of."""
        if caller.role in SEES_ALL:
            self._readers.setdefault(made, set()).add(caller.name)
        return made.frames_for(caller)

    def forget(self, revision: int) -> None:
        """Forget the newest one if it is of this revision: the events that follow it are gone."""
        newest = self._newest
        if newest is not None and _is_made(newest) and newest.result().revision == revision:
            self._newest = None

    async def end(self) -> None:
        """End what is being made."""
        if self._newest is not None:
            await cancel_and_wait([self._newest])

    def _is_shared(self, newest: asyncio.Task[EncodedRows]) -> bool:
        if not newest.done():
            return True
        if not _is_made(newest) or newest.result().epoch != self._feed.epoch:
            return False
        made = newest.result()
        fresh = min(max(SHARED_SECONDS, PAUSE_FACTOR * made.seconds), OLDEST_SECONDS)
        age = asyncio.get_running_loop().time() - made.made_at
        return age < (OLDEST_SECONDS if len(self._held) >= MOST_HELD else fresh)

    async def _make(self) -> EncodedRows:
        epoch, time = self._feed.epoch, asyncio.get_running_loop().time
        began, (known, revision) = time(), find_known(self._core.cache, self._feed)
        plane, time_slice = self._core.plane_for(PLANE_CALLER), TimeSlice()
        fleet, workers, common, booked = list[bytes](), list[LabWorker](), list[bytes](), list[bytes]()
        owned = dict[str, list[bytes]]()
        for kind in _KINDS:
            async for page in list_pages(plane, kind, known):
                for one in page:
                    await time_slice.yield_if_over()
                    if isinstance(one, LabWorker):
                        workers.append(one)
                    row = _encode(row_of(one))
                    if owner_of(one) is not None:
                        booked.append(row)
                        for key in audience_of(one):
                            owned.setdefault(key, []).append(row)
                    else:
                        (common if isinstance(one, LabletDefinition) else fleet).append(row)
        telemetry = RowSnapshot(
            alerts=tuple(await plane.alerts()), metrics=tuple(await list_newest_metrics(self._core.store, workers))
        )
        everything = [*_frames(chain(fleet, common, booked)), SNAPSHOT_FRAME % _encode(telemetry)]
        made = EncodedRows(epoch, revision, time(), time() - began, everything, common, owned)
        self._held.add(made)
        return made


def _is_made(newest: asyncio.Task[EncodedRows]) -> bool:
    return newest.done() and not newest.cancelled() and newest.exception() is None


def _retrieve_error(made: asyncio.Task[EncodedRows]) -> None:
    """Mark an error as retrieved: asyncio would log it if all who asked have left."""
    if not made.cancelled():
        made.exception()


def _frames(rows: Iterator[bytes]) -> Iterator[bytes]:
    """Yield frames of RowSnapshots, each with some of the rows."""
    while some := list(islice(rows, _ROWS_PER_FRAME)):
        yield SNAPSHOT_FRAME % (b'{"rows":[%s]}' % b",".join(some))
