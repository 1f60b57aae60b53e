"""A session's consoles, and where their ports are. Called by `control.plane.local_operations` and by `api.gateway`."""

from typing import NamedTuple

from lcm.control.objects.records import find_record
from lcm.control.objects.writer import Writer, missing_error
from lcm.control.plane.protocol import Ref, SessionRef
from lcm.model.base.errors import Gone, Refused
from lcm.model.kinds.console import Console, consoles_of
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, address_of
from lcm.store.base import Store


class ConsoleTarget(NamedTuple):
    """A console that can be opened: its session, and the address and number of its port on the worker."""

    session: LabletSession
    console: Console
    host: str
    port: int


async def list_consoles(writer: Writer, ref: SessionRef) -> tuple[Console, ...]:
    """List a session's consoles. Raise Gone when there is no such session for this caller."""
    session = await writer.read(ref)
    return await _read_consoles(writer, session)


async def find_console(writer: Writer, ref: SessionRef, port: str) -> ConsoleTarget:
    """Return a console of a session that runs.

    Raise Gone when there is no such session for this caller, or no such port; Refused when it cannot be opened now.
    """
    record = await writer.find(ref)
    if record is None:
        raise missing_error(ref)
    session = record.resource
    found = next((one for one in await _read_consoles(writer, session) if one.name == port), None)
    if session.status.phase is not SessionPhase.RUNNING:
        raise Refused(f"session {ref.name} is {session.status.phase}: its consoles are open while it is RUNNING")
    if found is None:
        raise Gone(f"session {ref.name} has no console {port!r}; list its consoles")
    worker = await _find_worker(writer, session)
    host = address_of(worker) if worker else ""
    if not host:
        raise Refused(f"the worker of session {ref.name} has no address now; try again in a minute")
    return ConsoleTarget(session, found, host, (session.status.allocated_ports or {})[port])


async def find_running(store: Store, ref: SessionRef, uid: str) -> LabletSession | None:
    """Read a session, whoever may see it; None when it is not the same any more, or does not run."""
    record = await find_record(store, ref)
    if record is None or record.resource.metadata.uid != uid:
        return None
    return record.resource if record.resource.status.phase is SessionPhase.RUNNING else None


async def _read_consoles(writer: Writer, session: LabletSession) -> tuple[Console, ...]:
    """Read the definition that says what the ports are; whoever sees the session sees that much of it."""
    ref = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    record = await find_record(writer.store, ref)
    template = as_continued(record.resource, session.status.continues).spec.port_template if record else None
    return consoles_of(session, template or {})


async def _find_worker(writer: Writer, session: LabletSession) -> LabWorker | None:
    """Read the session's worker, which most owners may not see; None when it is another one by now."""
    status = session.status
    ref = Ref(LabWorker, status.worker_name or "", status.worker_namespace or session.metadata.namespace)
    record = await find_record(writer.store, ref)
    return record.resource if record and record.resource.metadata.uid == status.worker_id else None
