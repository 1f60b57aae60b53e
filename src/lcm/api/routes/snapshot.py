"""What a new client of the event stream is sent first: the current state that it may see, page by page.

Programs get lines about workers and sessions; who asks for rows gets those of `api.routes.row_snapshots`. Read by
`api.routes.stream`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, TypeVar

from lcm.control.delivery.feed import Feed
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import LONGEST_PAGE, Plane
from lcm.model.access.identity import PERMISSIONS, Verb
from lcm.model.access.learner import can_see
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, coarse_status

SNAPSHOT_FRAME: Final = b"event: snapshot\ndata: %s\n\n"
R = TypeVar("R", bound=Resource)


class WorkerLine(Part):
    """A worker in a snapshot."""

    worker_id: str
    worker_name: str
    namespace: str
    phase: str
    status: str
    resource_version: int


class SessionLine(Part):
    """A session in a snapshot."""

    session_id: str
    session_name: str
    namespace: str
    state: str
    worker_id: str | None
    resource_version: int


class Snapshot(Part):
    """A part of the current state that the client may see. What a later event says is newer."""

    workers: tuple[WorkerLine, ...] = ()
    sessions: tuple[SessionLine, ...] = ()


def find_known(cache: Cache | None, feed: Feed) -> tuple[Cache | None, int]:
    """Return what is known in this process, None if nothing is, and after which revision events have to follow it."""
    if cache is None or not cache.is_ready:
        return None, feed.revision
    return cache, min(feed.revision, cache.known_revision)


Wants = Callable[[LabWorker | LabletSession], bool]


async def read_snapshot(plane: Plane, known: Cache | None, wants: Wants) -> AsyncGenerator[Snapshot]:
    """Yield the workers and sessions that a caller may see and wants, from what is known, or else from the store.

    Each kind has one part at least, which may be empty.
    """
    if plane.caller.role in PERMISSIONS[LabWorker.__name__][Verb.READ]:
        async for workers in list_pages(plane, LabWorker, known):
            yield Snapshot(workers=tuple(_worker_line(one) for one in workers if wants(one)))
    if plane.caller.role not in PERMISSIONS[LabletSession.__name__][Verb.READ]:
        return
    async for sessions in list_pages(plane, LabletSession, known):
        yield Snapshot(sessions=tuple(_session_line(one) for one in sessions if wants(one)))


async def list_pages(plane: Plane, kind: type[R], known: Cache | None = None) -> AsyncGenerator[Sequence[R]]:
    """Yield every object of a kind that a caller may see, page by page. Raises what the store raises.

    Nothing need be read and decoded of what is `known` in this process.
    """
    if known is not None:
        objects = known.all(kind)
        for begin in range(0, max(1, len(objects)), LONGEST_PAGE):
            yield [one for one in objects[begin : begin + LONGEST_PAGE] if can_see(plane.caller, one)]
            await asyncio.sleep(0)
        return
    cursor = None
    while True:
        page = await plane.list(kind, limit=LONGEST_PAGE, cursor=cursor)
        yield page.items
        cursor = page.next
        if cursor is None:
            return


def _worker_line(worker: LabWorker) -> WorkerLine:
    return WorkerLine(
        worker_id=worker.metadata.uid,
        worker_name=worker.metadata.name,
        namespace=worker.metadata.namespace,
        phase=worker.status.phase,
        status=coarse_status(worker.status),
        resource_version=worker.metadata.resource_version,
    )


def _session_line(session: LabletSession) -> SessionLine:
    return SessionLine(
        session_id=session.metadata.uid,
        session_name=session.metadata.name,
        namespace=session.metadata.namespace,
        state=session.status.phase,
        worker_id=session.status.worker_id,
        resource_version=session.metadata.resource_version,
    )
