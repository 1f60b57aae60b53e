"""Keeps prebuilt labs: makes them, places them where nobody needs the room, and ends them when somebody does.

Run by the scheduler beside the placement of all others. What is wanted is decided in `placement.prebuilt` from what is
known now; nothing is remembered but what the sessions themselves tell, and what was wanted lately, which is read again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import count
from typing import Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import DefinitionRef, ObjectChange, Plane, Ref, SessionRef, Terminate, ref_of
from lcm.controllers.scheduler.prebuilt_facts import STARTING, PrebuiltFacts, PrebuiltHosts, definition_of, sum_needs
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.capacity import ZERO_AMOUNT
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Later, Refused, Stuck
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.prebuilt import AskedHour
from lcm.model.kinds.session import (
    PREBUILT_OWNER,
    SESSION_MACHINE,
    LabletSession,
    LabletSessionSpec,
    SessionPhase,
)
from lcm.model.kinds.worker import LabWorker
from lcm.placement.claims import asap_claim
from lcm.placement.prebuilt import (
    GIVES_WAY_BEFORE,
    choose_leaving,
    decide_prebuilt,
    hosts_of_waiting,
    is_current,
)

LOOK_INTERVAL: Final = timedelta(seconds=15)
"""So often hours, ages and claims that come nearer are looked at; what changes is looked at within a second."""
_REST_SECONDS: Final = 1.0
_ASKED_FOR: Final = timedelta(minutes=5)
"""So long what was wanted lately is not read again."""
_FAILED_FOR: Final = timedelta(minutes=30)
"""After one has failed, no other of its definition is made for so long."""
_PREFIX: Final = "prebuilt-"
_LONGEST_FAMILY: Final = 40
_P: Final = SessionPhase
_LIVE: Final = frozenset({_P.PENDING, _P.RUNNING}) | STARTING
_log: Final = structlog.get_logger()


class PrebuiltKeeper:
    """Keeps the prebuilt labs of all definitions during one term."""

    def __init__(self, plane: Plane, cache: Cache, view: SchedulerView, *, clock: Clock) -> None:
        self._plane = plane
        self._cache = cache
        self._view = view
        self._clock = clock
        self._wanting: dict[DefinitionRef, LabletDefinition] = {}
        self._sessions: dict[SessionRef, LabletSession] = {}
        """The prebuilt sessions that have not ended."""
        self._failed_at: dict[DefinitionRef, datetime] = {}
        self._asked: dict[DefinitionRef, tuple[datetime, Sequence[AskedHour]]] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Keep them until cancelled; without any, and without a definition that wants some, nothing is done."""
        stop = await self._cache.replay(self._on_change, (LabletDefinition, LabletSession, LabWorker))
        try:
            while True:
                self._woken.clear()
                try:
                    await self._look()
                except (Later, Stuck) as error:
                    _log.warning("cannot keep prebuilt labs", error=str(error))
                await self._rest()
        finally:
            stop()

    async def _rest(self) -> None:
        """Wait for a change, or for the next time to look, if there is anything to look at; never less than a while."""
        seconds = LOOK_INTERVAL.total_seconds() if self._has_any else None
        if self._has_any:
            await asyncio.sleep(_REST_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    @property
    def _has_any(self) -> bool:
        return bool(self._wanting or self._sessions)

    def _on_change(self, seen: ObjectChange) -> None:
        ref, now = seen.ref, seen.resource
        if ref.kind is LabletDefinition:
            self._wanting.pop(ref, None)
            if isinstance(now, LabletDefinition) and now.spec.prebuilt is not None:
                self._wanting[ref] = now
        elif ref.kind is LabletSession:
            self._sessions.pop(ref, None)
            if isinstance(now, LabletSession) and now.spec.prebuilt:
                self._note_session(ref, now)
        if self._has_any:
            self._woken.set()

    def _note_session(self, ref: SessionRef, session: LabletSession) -> None:
        if session.status.phase not in SESSION_MACHINE.final:
            self._sessions[ref] = session
        elif session.status.phase is _P.FAILED:
            self._failed_at[definition_of(session)] = session.status.history[-1].at

    async def _look(self) -> None:
        """Look once: first those end that must, then others are placed and made."""
        facts = PrebuiltFacts(self._cache, self._view, self._clock.now())
        for known in (self._asked, self._failed_at):
            for gone in [one for one in known if one not in self._wanting]:
                del known[gone]
        for namespace in sorted({ref.namespace for ref in self._wanting} | {ref.namespace for ref in self._sessions}):
            hosts, mine = facts.find_hosts(namespace, self._sessions.values()), self._live_in(namespace)
            ending = await self._find_ending(namespace, mine, hosts, facts)
            for ref, why in ending.items():
                await self._end(ref, why)
            if not any(True for _ in facts.find_waiting(namespace)):
                await self._supply(namespace, [one for one in mine if ref_of(one) not in ending], hosts, facts)

    def _live_in(self, namespace: str) -> Sequence[LabletSession]:
        """Return the prebuilt sessions that run, or come to run: those first that are not ready, then the oldest."""
        found = [one for ref, one in self._sessions.items() if ref.namespace == namespace]
        return sorted((one for one in found if one.status.phase in _LIVE), key=_leaving_key)

    async def _find_ending(
        self, namespace: str, mine: Sequence[LabletSession], hosts: PrebuiltHosts, facts: PrebuiltFacts
    ) -> Mapping[SessionRef, str]:
        """Return which prebuilt sessions must end, and why."""
        ending = {ref_of(one): why for one in mine if (why := self._why_outdated(one, hosts))}
        in_the_way = list(_find_in_the_way(namespace, mine, ending, hosts, facts))
        ending |= dict.fromkeys(in_the_way, "its room is needed")
        by_definition = defaultdict[DefinitionRef, list[LabletSession]](list)
        for one in mine:
            if ref_of(one) not in ending and facts.is_fresh(one):
                by_definition[definition_of(one)].append(one)
        for ref, several in by_definition.items():
            wanted = await self._count_wanted(ref, facts.now)
            surplus = several[: max(0, len(several) - wanted)]
            ending |= {ref_of(one): f"{wanted} are wanted now" for one in surplus}
        return ending

    def _why_outdated(self, session: LabletSession, hosts: PrebuiltHosts) -> str:
        """Return why a prebuilt session cannot stay whatever is wanted; "" if it can."""
        definition, status = self._wanting.get(definition_of(session)), session.status
        if definition is None or not is_current(session, definition):
            return "its definition is not what it was"
        if status.phase is not _P.PENDING and status.worker_id is not None and status.worker_id not in hosts.open:
            return f"{status.worker_name or status.worker_id} is to run for nobody else"
        return ""

    async def _count_wanted(self, ref: DefinitionRef, now: datetime) -> int:
        definition = self._wanting.get(ref)
        if definition is None:
            return 0
        return decide_prebuilt(definition.spec, await self._read_asked(definition, now), now).number

    async def _read_asked(self, definition: LabletDefinition, now: datetime) -> Sequence[AskedHour]:
        """Return what was wanted lately by hours, where that is to be learned from."""
        ref, policy = ref_of(definition), definition.spec.prebuilt
        if policy is None or not policy.learned:
            return ()
        known = self._asked.get(ref)
        if known is None or now >= known[0] + _ASKED_FOR:
            with suppress(Gone):
                known = self._asked[ref] = now, (await self._plane.prebuilt(ref)).asked
        return known[1] if known is not None else ()

    async def _supply(
        self, namespace: str, mine: Sequence[LabletSession], hosts: PrebuiltHosts, facts: PrebuiltFacts
    ) -> None:
        """Place what waits for a place, and make what is missing."""
        for session in mine:
            if session.status.phase is _P.PENDING:
                await self._place(session, hosts, facts)
        for ref, definition in [one for one in self._wanting.items() if one[0].namespace == namespace]:
            fresh = sum(definition_of(one) == ref and facts.is_fresh(one) for one in mine)
            failed = self._failed_at.get(ref)
            if failed is not None and facts.now < failed + _FAILED_FOR:
                continue
            for _ in range(await self._count_wanted(ref, facts.now) - fresh):
                if not await self._make(definition, hosts, facts):
                    break

    async def _make(self, definition: LabletDefinition, hosts: PrebuiltHosts, facts: PrebuiltFacts) -> bool:
        """Make a prebuilt session and place it. Return whether there was room for it."""
        session = self._new_session(definition)
        if facts.choose_worker(session, definition, hosts) is None:
            return False
        try:
            made = await self._plane.create(session)
        except (Conflict, Refused) as error:
            _log.warning("no prebuilt lab made", definition=definition.metadata.name, error=str(error))
            return False
        self._cache.accept(made)
        return await self._place(made, hosts, facts)

    def _new_session(self, definition: LabletDefinition) -> LabletSession:
        policy, namespace = definition.spec.prebuilt, definition.metadata.namespace
        assert policy is not None, "it wants prebuilt labs"
        family = definition.metadata.name.partition(":")[0][:_LONGEST_FAMILY].rstrip("-.")
        names = (f"{_PREFIX}{family}-{number}" for number in count(1))
        name = next(one for one in names if self._cache.get(Ref(LabletSession, one, namespace)) is None)
        spec = LabletSessionSpec(
            definition=definition.metadata.name,
            owner=PREBUILT_OWNER,
            lab_track=definition.spec.lab_track,
            duration_minutes=policy.max_age_minutes,
            prebuilt=True,
        )
        return LabletSession(metadata=Metadata(name=name, namespace=namespace), spec=spec)

    async def _place(self, session: LabletSession, hosts: PrebuiltHosts, facts: PrebuiltFacts) -> bool:
        """Put a prebuilt session on a worker, or end it where there is no room. Return whether it was placed."""
        definition = self._wanting.get(definition_of(session))
        found = facts.choose_worker(session, definition, hosts) if definition is not None else None
        if found is None:
            await self._end(ref_of(session), "no machine has room for it")
            return False
        uid, need = found
        claim = asap_claim(session, facts.now, need, self._view.terms())
        wanted = Assignment(start=claim.start, end=claim.end, worker_id=uid, reason="prebuilt where there is room")
        try:
            self._cache.accept(await self._plane.schedule(session, wanted))
        except (Conflict, Refused, Gone) as error:
            _log.info("prebuilt lab not placed", session=session.metadata.name, error=str(error))
            return False
        hosts.add(uid, need, starts=True)
        return True

    async def _end(self, ref: Ref[LabletSession], why: str) -> None:
        with suppress(Conflict, Gone, Refused):  # it was taken meanwhile, or has ended
            ended: LabletSession = await self._plane.act(ref, Terminate(reason=why))
            self._cache.accept(ended)
            _log.info("prebuilt lab ended", session=ref.name, reason=why)


def _find_in_the_way(
    namespace: str,
    mine: Sequence[LabletSession],
    ending: Mapping[SessionRef, str],
    hosts: PrebuiltHosts,
    facts: PrebuiltFacts,
) -> Iterator[SessionRef]:
    """Yield the prebuilt sessions whose room is claimed soon, or wanted by those who wait."""
    waiting, taken = facts.find_waiting(namespace), sum_needs(mine, ending)
    wanted = hosts_of_waiting(hosts.open, taken, waiting, facts.now)
    for uid, host in hosts.open.items():
        here = [one for one in mine if one.status.worker_id == uid and ref_of(one) not in ending]
        labs = [(ref_of(one), one.status.claim.need) for one in here if one.status.claim is not None]
        yield from choose_leaving(labs, host.left(facts.now, GIVES_WAY_BEFORE) - wanted.get(uid, ZERO_AMOUNT))


def _leaving_key(session: LabletSession) -> tuple[bool, str, str]:
    end = session.status.ends_at
    return session.status.phase is _P.RUNNING, end.isoformat() if end else "", session.metadata.name
