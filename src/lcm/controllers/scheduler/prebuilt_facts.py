"""What the scheduler knows that prebuilt labs depend on: where they may be, and who waits for their room.

Pure but for the view and the cache that it reads; used by `controllers.scheduler.prebuilt`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import DefinitionRef, Ref, SessionRef, ref_of
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.capacity import ZERO_AMOUNT, Amount
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap, worker_of
from lcm.model.kinds.worker import LabWorker
from lcm.placement.claims import asap_claim, need_of, request_for
from lcm.placement.places import is_accepting, session_holder
from lcm.placement.prebuilt import STARTS_AT_ONCE, PrebuiltHost, choose_host
from lcm.placement.rules import static_rejection

_RENEWED_BEFORE: Final = timedelta(minutes=15)
"""So long before one is too old the next is made."""
STARTING: Final = frozenset({SessionPhase.SCHEDULED, SessionPhase.INSTANTIATING})


@dataclass(slots=True)
class PrebuiltHosts:
    """The workers that may have prebuilt labs at a moment, in one namespace, and what prebuilt labs have of each."""

    open: dict[str, PrebuiltHost] = field(default_factory=dict)
    taken: dict[str, Amount] = field(default_factory=dict)
    """Those included that are being removed."""
    starting: Counter[str] = field(default_factory=Counter)

    def add(self, uid: str, need: Amount, *, starts: bool) -> None:
        """Count one more prebuilt lab."""
        self.taken[uid] = self.taken.get(uid, ZERO_AMOUNT) + need
        self.starting[uid] += starts


@dataclass(frozen=True, slots=True)
class PrebuiltFacts:
    """Answers questions about the fleet at one moment."""

    cache: Cache
    view: SchedulerView
    now: datetime

    def find_hosts(self, namespace: str, prebuilt: Collection[LabletSession]) -> PrebuiltHosts:
        """Return where prebuilt labs may be, and what these sessions, all that are prebuilt, have of each worker."""
        mine = [one for one in prebuilt if one.metadata.namespace == namespace]
        found, fleet, holders = PrebuiltHosts(), self.view.fleet(namespace), set(map(session_holder, mine))
        for worker in self.cache.all(LabWorker):
            place = self.view.place_at(worker.metadata.uid)
            if worker.metadata.namespace == namespace and place is not None and self._is_open(worker):
                others = [one.claim for one in fleet.claims_on(place.id) if one.holder not in holders]
                found.open[worker.metadata.uid] = PrebuiltHost(place.capacity, others)
        for session in mine:
            claim, uid = session.status.claim, worker_of(session)
            if claim is not None and uid is not None:
                found.add(uid, claim.need, starts=session.status.phase in STARTING)
        return found

    def _is_open(self, worker: LabWorker) -> bool:
        """Return whether a worker goes on running for others: one that is let go, or about to be paused, does not."""
        idle = worker.status.idle
        pauses = idle is not None and idle.idle and idle.pause_at is not None and idle.pause_at <= self.now
        released = worker.metadata.owner is not None and not self.view.is_pooled(worker.metadata.uid)
        return is_accepting(worker) and not pauses and not released

    def find_waiting(self, namespace: str) -> Iterator[tuple[Amount, Callable[[str], bool]]]:
        """Yield what those need who wait for a place, and which workers suit each of them."""
        for session in self.view.session_index.pending.values():
            definition = self.cache.get(definition_of(session))
            waits = is_asap(session) and not session.spec.prebuilt and session.status.waiting is not None
            need = need_of(session, definition) if definition is not None else None
            if session.metadata.namespace == namespace and waits and definition is not None and need is not None:
                yield need, self._suits(session, definition, need)

    def _suits(self, session: LabletSession, definition: LabletDefinition, need: Amount) -> Callable[[str], bool]:
        """Return the check whether a worker is of the kind that a session asks for."""
        terms = self.view.terms()
        request = request_for(session, definition, asap_claim(session, self.now, need, terms), terms)

        def suits(uid: str) -> bool:
            place = self.view.place_at(uid)
            return place is not None and static_rejection(place, request) is None

        return suits

    def choose_worker(
        self, session: LabletSession, definition: LabletDefinition, hosts: PrebuiltHosts
    ) -> tuple[str, Amount] | None:
        """Return the worker that has room for a prebuilt session, and what it needs; None if none has."""
        need = need_of(session, definition)
        if need is None:
            return None
        suits = self._suits(session, definition, need)
        free = {uid: one for uid, one in hosts.open.items() if hosts.starting[uid] < STARTS_AT_ONCE and suits(uid)}
        uid = choose_host(free, hosts.taken, need, self.now)
        return (uid, need) if uid is not None else None

    def is_fresh(self, session: LabletSession) -> bool:
        """Return whether a prebuilt session is not to be replaced soon: the next is made before one is too old."""
        end, minutes = session.status.ends_at, session.spec.duration_minutes or 0
        return end is None or self.now < end - min(_RENEWED_BEFORE, timedelta(minutes=minutes) / 4)


def definition_of(session: LabletSession) -> DefinitionRef:
    """Return the definition of a session."""
    return Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)


def sum_needs(sessions: Iterable[LabletSession], without: Mapping[SessionRef, str]) -> Mapping[str, Amount]:
    """Return what sessions have of each worker, some excepted."""
    found: dict[str, Amount] = {}
    for one in sessions:
        uid, claim = worker_of(one), one.status.claim
        if uid is not None and claim is not None and ref_of(one) not in without:
            found[uid] = found.get(uid, ZERO_AMOUNT) + claim.need
    return found
