"""Looking: what each phase needs to know of a session's worker and lab, asked for and put into a `View`.

No answer, or none in time, becomes `Unknown`, by the same rules as for workers. A machine that was seen gone has no
labs, and is not asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from lcm.control.cache import Cache
from lcm.control.plane import Plane, R, Ref
from lcm.controllers.session.line import ahead_of
from lcm.controllers.session.names import title_of
from lcm.controllers.session.progress import before_import, is_due, usual_start
from lcm.controllers.session.view import LAB_RUNS, Rules, View, denied, machine_gone
from lcm.controllers.worker.look import answered
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import Unknown
from lcm.model.clock import Clock
from lcm.model.definition import LabletDefinition
from lcm.model.session import ON_WORKER, LabletSession, SessionPhase
from lcm.model.worker import LabWorker
from lcm.providers.hosts import Hosts
from lcm.providers.labhost import LabHost, LabState, LabSummary

_P: Final = SessionPhase
_STARTS: Final = frozenset({_P.SCHEDULED, _P.RUNNING})
_HORIZON: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Eyes:
    """Looks at sessions' workers and labs."""

    plane: Plane
    cache: Cache
    hosts: Hosts
    clock: Clock
    occupants: Occupants

    async def look(self, session: LabletSession, rules: Rules) -> View:
        """See what a session's phase needs."""
        view = View(session, self.clock.now(), rules)
        view = replace(view, definition=await self._definition(session), worker=await self._worker(session))
        if session.status.phase in _STARTS and view.worker is not None:
            others = self.occupants.of(view.worker, view.now, _HORIZON)
            view = replace(view, ahead=ahead_of(session, others, view.now))
        if not _looks_at_lab(view):
            return view
        seen = await self._lab(view)
        return replace(view, **seen, now=self.clock.now())

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
        usual = usual_start(self.cache.all(LabletSession), view.session.spec.definition)
        return {"converged": converged, "nodes": nodes, "usual": usual}


def _looks_at_lab(view: View) -> bool:
    if view.status.phase is _P.INSTANTIATING:
        return not before_import(view)
    return view.status.phase in ON_WORKER


def _comes_up(view: View) -> bool:
    return view.status.phase is _P.INSTANTIATING or (view.status.phase is _P.RUNNING and denied(view.session, LAB_RUNS))
