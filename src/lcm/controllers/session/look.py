"""Observes what each phase needs to know of a session's worker and lab, and puts it into a `SessionView`.

No answer, or none in time, becomes `Unknown`, by the same rules as for workers. So does an answer that makes no sense,
because deadlines must be decided all the same. A machine that was seen gone has no labs, and is not asked.

`LookMemory` remembers whose lab cannot be seen, which workers do not answer, and how long labs take. It is lost with
the term; only the polling rate and the start of a silence depend on it. `count_ahead` orders the starts on a worker:
twenty labs that boot at once take longer than four at a time.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, R, Ref
from lcm.controllers.runtime.lifecycle import Unknown, ask_host
from lcm.controllers.session.effects import node_stats
from lcm.controllers.session.progress import (
    LAB_RUNS,
    is_before_import,
    is_node_look_due,
    is_restarting,
    title_of,
    usual_start,
)
from lcm.controllers.session.view import SessionRules, SessionView, is_machine_gone
from lcm.controllers.worker.occupants import Occupants
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Refused
from lcm.model.base.resource import Truth, has_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.saved_lab import as_continued
from lcm.model.kinds.session import MAX_NODES, ON_WORKER_PHASES, LabletSession, NodeState, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.model.telemetry.observation import sum_use
from lcm.providers.protocols.labhost import Hosts, LabHost, LabState, LabSummary

_DOUBLINGS: Final = 10
_USUAL_TTL: Final = timedelta(minutes=1)


@dataclass(slots=True)
class _SilentWorker:
    """A worker that did not answer: what was returned instead, and until when it is not asked again."""

    told: Unknown
    until: datetime
    failures: int = 0
    asked: bool = False


@dataclass(slots=True)
class LookMemory:
    """What the looks of one term share."""

    clock: Clock
    _silent: dict[str, _SilentWorker] = field(default_factory=dict)
    _unseen_since: dict[str, datetime] = field(default_factory=dict)
    _usual_starts: dict[tuple[str, str], tuple[datetime, timedelta | None]] = field(default_factory=dict)
    _boot_seen_at: dict[str, datetime] = field(default_factory=dict)

    def cached_silence(self, worker: str) -> Unknown | None:
        """Return the last answer of a silent worker if it is not to be asked now. One session at a time asks it.

        Everybody who waits for its answer delays a session whose own worker would answer at once.
        """
        known = self._silent.get(worker)
        return known.told if known and (known.asked or self.clock.now() < known.until) else None

    @contextmanager
    def asking(self, worker: str) -> Iterator[None]:
        """Be the only one to ask a worker while it is silent."""
        known = self._silent.get(worker)
        if known is None:
            yield
            return
        known.asked = True
        try:
            yield
        finally:
            known.asked = False

    def record_answer(self, worker: str, answer: object, rules: SessionRules) -> None:
        """Record whether a worker answered; those that asked at the same time met the same silence."""
        if not isinstance(answer, Unknown) or answer.answered:
            self._silent.pop(worker, None)
            return
        now, known = self.clock.now(), self._silent.get(worker)
        if known is None:
            self._silent[worker] = _SilentWorker(answer, now + rules.poll)
        elif now >= known.until:
            known.failures = min(known.failures + 1, _DOUBLINGS)
            known.told, known.until = answer, now + min(rules.poll * 2**known.failures, rules.seldom)

    def unseen_since(self, session: str, lab: object) -> datetime | None:
        """Return since when a session's lab could not be seen; None if it was seen."""
        if isinstance(lab, Unknown):
            return self._unseen_since.setdefault(session, self.clock.now())
        self._unseen_since.pop(session, None)
        return None

    def take_boot_look(self, session: str, every: timedelta) -> bool:
        """Return whether the nodes of a lab that boots may be looked at now: so often at most; count it if so."""
        now, known = self.clock.now(), self._boot_seen_at.get(session)
        if known is not None and now < known + every:
            return False
        self._boot_seen_at[session] = now
        return True

    def end_boot(self, session: str) -> None:
        """Forget when the nodes of a lab were looked at: it has booted."""
        self._boot_seen_at.pop(session, None)

    def usual_start(self, namespace: str, definition: str, find: Callable[[], timedelta | None]) -> timedelta | None:
        """Return how long labs of a definition take to start; the value is at most a minute old."""
        now, known = self.clock.now(), self._usual_starts.get((namespace, definition))
        if known is None or now >= known[0] + _USUAL_TTL:
            known = self._usual_starts[namespace, definition] = (now, find())
        return known[1]


def count_ahead(session: LabletSession, others: Iterable[LabletSession], now: datetime) -> int:
    """Count the labs on a session's worker that start now, or are to start before its own."""
    mine = _start_order(session)
    rest = (one for one in others if one.metadata.uid != session.metadata.uid)
    return sum(_is_starting(one, now) or (_is_waiting(one, now) and _start_order(one) < mine) for one in rest)


def find_next_starts(others: Iterable[LabletSession], starts: int, now: datetime) -> Sequence[LabletSession]:
    """Return the sessions whose turn it is to start on their worker, where so many may start at once."""
    others = list(others)
    left = starts - sum(_is_starting(one, now) for one in others)
    waiting = [one for one in others if _is_waiting(one, now)] if left > 0 else []
    return waiting if len(waiting) <= left else sorted(waiting, key=_start_order)[:left]


def _is_starting(session: LabletSession, now: datetime) -> bool:
    """Return whether its lab boots. A running session whose lab never comes up does not count for ever."""
    phase = session.status.phase
    return phase is SessionPhase.INSTANTIATING or (phase is SessionPhase.RUNNING and is_restarting(session, now))


def _is_waiting(session: LabletSession, now: datetime) -> bool:
    status = session.status
    has_all = status.claim is not None and status.allocated_ports is not None
    return status.phase is SessionPhase.SCHEDULED and has_all and status.claim is not None and status.claim.start <= now


def _start_order(session: LabletSession) -> tuple[bool, str, str, str]:
    """Return the order in which labs start: those that somebody waits for first, then the oldest."""
    claim, made = session.status.claim, session.metadata.created_at
    return (
        session.spec.prebuilt,
        claim.start.isoformat() if claim else "",
        made.isoformat() if made else "",
        session.metadata.uid,
    )


_P: Final = SessionPhase
_HORIZON: Final = timedelta(days=1)
_REFUSED: Final = "CmlRefused"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionLook:
    """Observes sessions' workers and labs."""

    plane: Plane
    cache: Cache
    hosts: Hosts
    clock: Clock
    occupants: Occupants
    memory: LookMemory

    async def look(self, session: LabletSession, rules: SessionRules) -> SessionView:
        """Return a view with what a session's phase needs."""
        definition = await self._find(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))
        definition = as_continued(definition, session.status.continues) if definition else None
        worker = await self._find_worker(session)
        view = SessionView(session, self.clock.now(), rules, definition, worker)
        if view.status.phase in ON_WORKER_PHASES and not _is_decided_unseen(view):
            seen = await self._look_at_lab(view)
            since = self.memory.unseen_since(session.metadata.uid, seen["lab"])
            view = replace(view, **seen, unseen_since=since, now=self.clock.now())
        if view.worker is None or not _is_about_to_start(view):
            return view
        others = self.occupants.of(view.worker, view.now, _HORIZON)
        return replace(view, ahead=count_ahead(session, others, view.now))

    async def _find_worker(self, session: LabletSession) -> LabWorker | None:
        """Find a session's worker; None means that no worker with its uid exists any more."""
        status = session.status
        if status.worker_id is None:
            return None
        name, namespace = status.worker_name or status.worker_id, status.worker_namespace
        found = await self._find(Ref(LabWorker, name, namespace or session.metadata.namespace))
        return found if found is not None and found.metadata.uid == status.worker_id else None

    async def _find(self, ref: Ref[R]) -> R | None:
        """Look up an object; the plane is asked for what the cache lacks: kinds are listed one after the other."""
        return self.cache.get(ref) or await self.plane.get(ref)

    async def _look_at_lab(self, view: SessionView) -> Mapping[str, Any]:
        worker = view.worker
        if worker is None or is_machine_gone(worker):
            return {"lab": None}
        uid = worker.metadata.uid
        if (silent := self.memory.cached_silence(uid)) is not None:
            return {"lab": silent}
        with self.memory.asking(uid):
            seen = await self._ask_machine(view, worker)
        self.memory.record_answer(uid, seen["lab"], view.rules)
        return seen

    async def _ask_machine(self, view: SessionView, worker: LabWorker) -> Mapping[str, Any]:
        host = await ask_lab_host(self.hosts.of(worker))
        if isinstance(host, Unknown):
            return {"lab": host}
        lab = await self._find_lab(host, view.session)
        again = view.status.phase is _P.RUNNING and has_condition(view.status.conditions, LAB_RUNS, Truth.FALSE)
        boots = again or view.status.phase is _P.INSTANTIATING
        if not isinstance(lab, LabSummary):
            return {"lab": lab}
        seen = await self._look_at_boot(host, lab, view) if boots and lab.state is LabState.STARTED else {}
        if view.status.phase is _P.RUNNING or seen.get("converged") is True:
            seen = {**seen, **await self._look_at_nodes(host, lab, view)}
        return {"lab": lab, **seen}

    async def _find_lab(self, host: LabHost, session: LabletSession) -> LabSummary | Unknown | None:
        """Find a session's lab by its id, and then by its title: somebody may have changed the title."""
        known = session.status.cml_lab_id
        lab = await ask_lab_host(host.look(known)) if known else None
        return lab if lab is not None else await ask_lab_host(host.find(title_of(session)))

    async def _look_at_boot(self, host: LabHost, lab: LabSummary, view: SessionView) -> Mapping[str, Any]:
        converged, uid = await ask_lab_host(host.converged(lab.lab_id)), view.session.metadata.uid
        if converged is True:
            self.memory.end_boot(uid)
        if converged is not False or view.session.status.phase is _P.RUNNING:
            return {"converged": converged}
        seen = {"converged": converged, "usual": self._usual_start(view.session)}
        if not is_node_look_due(view) or not self.memory.take_boot_look(uid, view.rules.told_every):
            return seen
        nodes = await self._look_at_nodes(host, lab, view)
        stats = await ask_lab_host(host.simulation_stats(lab.lab_id))
        use = None if isinstance(stats, Unknown) else sum_use(node_stats(one) for one in stats.nodes.values())
        return {**seen, **nodes, "use": use}

    def _usual_start(self, session: LabletSession) -> timedelta | None:
        name, namespace = session.spec.definition, session.metadata.namespace
        return self.memory.usual_start(
            namespace, name, lambda: usual_start(self.cache.all(LabletSession), namespace, name)
        )

    async def _look_at_nodes(self, host: LabHost, lab: LabSummary, view: SessionView) -> Mapping[str, Any]:
        """Read the states of a lab's nodes. Their labels are read once: later they are those of the session."""
        elements = await ask_lab_host(host.elements(lab.lab_id))
        if isinstance(elements, Unknown):
            return {"nodes": elements}
        labels = {one.node_id: one.label for one in view.status.nodes}
        if len(elements.nodes) <= MAX_NODES and not elements.nodes.keys() <= labels.keys():
            facts = await ask_lab_host(host.nodes(lab.lab_id))
            labels = {} if isinstance(facts, Unknown) else {one.node_id: one.label for one in facts}
        return {"nodes": elements.nodes, "named_nodes": name_nodes(elements.nodes, labels)}


def name_nodes(states: Mapping[str, str], labels: Mapping[str, str]) -> tuple[NodeState, ...] | None:
    """Return the nodes of a lab by label; None where a label is not known, none at all if they are too many."""
    if len(states) > MAX_NODES:
        return ()
    if not states.keys() <= labels.keys():
        return None
    named = (NodeState(node_id=ref, label=labels[ref], state=state) for ref, state in states.items())
    return tuple(sorted(named, key=lambda one: (one.label, one.node_id)))


async def ask_lab_host(answer: Awaitable[T]) -> T | Unknown:
    """Await a host's answer for as long as it may take; a refusal is reported for a person to look at."""
    try:
        return await ask_host(answer)
    except Refused as error:
        return Unknown(str(error), answered=True, reason=_REFUSED)


def _is_decided_unseen(view: SessionView) -> bool:
    """Return whether what comes next does not depend on the lab: it is not there yet, or its time is over."""
    if view.status.phase is _P.RUNNING:
        return view.is_overdue
    return view.status.phase is _P.INSTANTIATING and is_before_import(view)


def _is_about_to_start(view: SessionView) -> bool:
    """Return whether the session's own lab is to be started now, so that other starts on the worker matter."""
    if view.status.phase is _P.SCHEDULED:
        return view.status.claim is not None and view.status.claim.start <= view.now
    return view.status.phase is _P.RUNNING and view.is_lab_stopped
