"""Looking: what each phase needs to know of a session's worker and lab, asked for and put into a `View`.

No answer, or none in time, becomes `Unknown`, by the same rules as for workers; so does an answer that makes no sense
to us, since limits and ends must be decided all the same. A machine that was seen gone has no labs, and is not asked.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from lcm.control.cache import Cache
from lcm.control.plane import Plane, R, Ref
from lcm.controllers.session.line import ahead_of
from lcm.controllers.session.memory import Memory
from lcm.controllers.session.names import title_of
from lcm.controllers.session.progress import before_import, is_due, usual_start
from lcm.controllers.session.restarts import LAB_RUNS
from lcm.controllers.session.view import Rules, View, denied, machine_gone
from lcm.controllers.worker import look as at_workers
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import Unknown
from lcm.model.clock import Clock
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Refused
from lcm.model.session import ON_WORKER, LabletSession, SessionPhase
from lcm.model.worker import LabWorker
from lcm.providers.hosts import Hosts
from lcm.providers.labhost import LabHost, LabState, LabSummary

_P: Final = SessionPhase
_HORIZON: Final = timedelta(days=1)
_REFUSED: Final = "CmlRefused"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Eyes:
    """Looks at sessions' workers and labs."""

    plane: Plane
    cache: Cache
    hosts: Hosts
    clock: Clock
    occupants: Occupants
    memory: Memory

    async def look(self, session: LabletSession, rules: Rules) -> View:
        """See what a session's phase needs."""
        definition, worker = await self._definition(session), await self._worker(session)
        view = View(session, self.clock.now(), rules, definition, worker)
        if _looks_at_lab(view):
            seen = await self._lab(view)
            since = self.memory.unseen(session.metadata.uid, seen["lab"])
            view = replace(view, **seen, unseen_since=since, now=self.clock.now())
        return self._in_line(view) if _wants_to_start(view) else view

    def _in_line(self, view: View) -> View:
        assert view.worker is not None
        others = self.occupants.of(view.worker, view.now, _HORIZON)
        return replace(view, ahead=ahead_of(view.session, others, view.now))

    async def _definition(self, session: LabletSession) -> LabletDefinition | None:
        return await self._found(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))

    async def _worker(self, session: LabletSession) -> LabWorker | None:
        """Find a session's worker; None means that there is none of its uid any more."""
        status = session.status
        if status.worker_id is None:
            return None
        name, namespace = status.worker_name or status.worker_id, status.worker_namespace
        found = await self._found(Ref(LabWorker, name, namespace or session.metadata.namespace))
        return found if found is not None and found.metadata.uid == status.worker_id else None

    async def _found(self, ref: Ref[R]) -> R | None:
        """Look an object up; what is not known here, the plane must say: kinds are listed one after the other."""
        return self.cache.get(ref) or await self.plane.get(ref)

    async def _lab(self, view: View) -> Mapping[str, Any]:
        worker = view.worker
        if worker is None or machine_gone(worker):
            return {"lab": None}
        uid = worker.metadata.uid
        if (silent := self.memory.silence(uid)) is not None:
            return {"lab": silent}
        with self.memory.asking(uid):
            seen = await self._on_machine(view, worker)
        self.memory.heard(uid, seen["lab"], view.rules)
        return seen

    async def _on_machine(self, view: View, worker: LabWorker) -> Mapping[str, Any]:
        host = await answered(self.hosts.of(worker))
        if isinstance(host, Unknown):
            return {"lab": host}
        lab = await self._lab_on(host, view.session)
        if not isinstance(lab, LabSummary) or lab.state is not LabState.STARTED or not _comes_up(view):
            return {"lab": lab}
        return {"lab": lab, **await self._boot(host, lab, view)}

    async def _lab_on(self, host: LabHost, session: LabletSession) -> LabSummary | Unknown | None:
        """Find a session's lab by its id, and by its title: somebody may have given it another."""
        known = session.status.cml_lab_id
        lab = await answered(host.look(known)) if known else None
        return lab if lab is not None else await answered(host.find(title_of(session)))

    async def _boot(self, host: LabHost, lab: LabSummary, view: View) -> Mapping[str, Any]:
        converged = await answered(host.converged(lab.lab_id))
        if converged is not False or view.session.status.phase is _P.RUNNING or not is_due(view):
            return {"converged": converged}
        elements = await answered(host.elements(lab.lab_id))
        nodes = elements if isinstance(elements, Unknown) else elements.nodes
        name, namespace = view.session.spec.definition, view.session.metadata.namespace
        usual = self.memory.usual(namespace, name, lambda: usual_start(self.cache.all(LabletSession), namespace, name))
        return {"converged": converged, "nodes": nodes, "usual": usual}


async def answered(answer: Awaitable[T]) -> T | Unknown:
    """Await a host's answer for as long as one may take; a refusal is for a person to look at."""
    try:
        return await at_workers.answered(answer)
    except Refused as error:
        return Unknown(str(error), answered=True, reason=_REFUSED)


def _looks_at_lab(view: View) -> bool:
    if view.status.phase is _P.INSTANTIATING:
        return not before_import(view)
    return view.status.phase in ON_WORKER


def _wants_to_start(view: View) -> bool:
    """Tell whether it matters who else starts a lab there: its own is to be started now."""
    if view.worker is None:
        return False
    if view.status.phase is _P.SCHEDULED:
        return view.status.claim is not None and view.status.claim.start <= view.now
    return view.status.phase is _P.RUNNING and view.stopped


def _comes_up(view: View) -> bool:
    return view.status.phase is _P.INSTANTIATING or (view.status.phase is _P.RUNNING and denied(view.session, LAB_RUNS))
