"""Looking: what each phase needs to know of a session's worker and lab, asked for and put into a `View`.

No answer, or none in time, becomes `Unknown`, by the same rules as for workers; so does an answer that makes no sense
to us, since limits and ends must be decided all the same. A machine that was seen gone has no labs, and is not asked.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, R, Ref
from lcm.controllers.session.progress import LAB_RUNS, before_import, coming_up, is_due, title_of, usual_start
from lcm.controllers.session.view import Rules, View, denied, machine_gone
from lcm.controllers.worker import look as at_workers
from lcm.controllers.worker.occupants import Occupants
from lcm.controllers.worker.view import Unknown
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Refused
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import ON_WORKER, LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.labhost import Hosts, LabHost, LabState, LabSummary

_DOUBLINGS: Final = 10
_FRESH: Final = timedelta(minutes=1)


@dataclass(slots=True)
class _Silence:
    """A worker that did not answer: what was heard instead, and until when nobody asks it again."""

    told: Unknown
    until: datetime
    failures: int = 0
    asked: bool = False


@dataclass(slots=True)
class Memory:
    """What the looks of one term have in common."""

    clock: Clock
    _silent: dict[str, _Silence] = field(default_factory=dict)
    _unseen: dict[str, datetime] = field(default_factory=dict)
    _usual: dict[tuple[str, str], tuple[datetime, timedelta | None]] = field(default_factory=dict)

    def silence(self, worker: str) -> Unknown | None:
        """Say what a worker answered last if it is not to be asked now: one at a time asks a silent one, in turn.

        Each who waits for an answer keeps a session waiting whose own worker would answer at once.
        """
        known = self._silent.get(worker)
        return known.told if known and (known.asked or self.clock.now() < known.until) else None

    @contextmanager
    def asking(self, worker: str) -> Iterator[None]:
        """Be the one who asks a worker, if it is silent."""
        known = self._silent.get(worker)
        if known is None:
            yield
            return
        known.asked = True
        try:
            yield
        finally:
            known.asked = False

    def heard(self, worker: str, answer: object, rules: Rules) -> None:
        """Take note of whether a worker answered; those who asked at the same time met the same silence."""
        if not isinstance(answer, Unknown) or answer.answered:
            self._silent.pop(worker, None)
            return
        now, known = self.clock.now(), self._silent.get(worker)
        if known is None:
            self._silent[worker] = _Silence(answer, now + rules.poll)
        elif now >= known.until:
            known.failures = min(known.failures + 1, _DOUBLINGS)
            known.told, known.until = answer, now + min(rules.poll * 2**known.failures, rules.seldom)

    def unseen(self, session: str, lab: object) -> datetime | None:
        """Say since when a session's lab has been asked for in vain; None if it was seen."""
        if isinstance(lab, Unknown):
            return self._unseen.setdefault(session, self.clock.now())
        self._unseen.pop(session, None)
        return None

    def usual(self, namespace: str, definition: str, find: Callable[[], timedelta | None]) -> timedelta | None:
        """Say how long labs of a definition take to start, as it was found within the last minute."""
        now, known = self.clock.now(), self._usual.get((namespace, definition))
        if known is None or now >= known[0] + _FRESH:
            known = self._usual[namespace, definition] = (now, find())
        return known[1]


def ahead_of(session: LabletSession, others: Iterable[LabletSession], now: datetime) -> int:
    """Count the labs on a session's worker that start now, or are to start before its own."""
    mine = _turn(session)
    rest = (one for one in others if one.metadata.uid != session.metadata.uid)
    return sum(_starts(one, now) or (_waits(one, now) and _turn(one) < mine) for one in rest)


def _starts(session: LabletSession, now: datetime) -> bool:
    """Tell whether its lab boots; one that runs and never comes up again keeps no place for ever."""
    phase = session.status.phase
    return phase is SessionPhase.INSTANTIATING or (phase is SessionPhase.RUNNING and coming_up(session, now))


def _waits(session: LabletSession, now: datetime) -> bool:
    status = session.status
    has_all = status.claim is not None and status.allocated_ports is not None
    return status.phase is SessionPhase.SCHEDULED and has_all and status.claim is not None and status.claim.start <= now


def _turn(session: LabletSession) -> tuple[str, str, str]:
    claim, made = session.status.claim, session.metadata.created_at
    return (
        claim.start.isoformat() if claim else "",
        made.isoformat() if made else "",
        session.metadata.uid,
    )


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
