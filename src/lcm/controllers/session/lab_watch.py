"""Watches the labs that run: one question to each worker, whatever runs there, and only what changed is looked at.

A session whose lab runs undisturbed (`running.is_undisturbed`) rests. It is woken when its worker shows other nodes of
its lab, or in other states, or nothing at all, and when its worker is lost or has another address. What a worker's list
of nodes does not show, such as another link, is found by the look that the session itself takes now and then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import SessionRef, WorkerRef, ref_of
from lcm.controllers.runtime.lifecycle import Unknown
from lcm.controllers.runtime.reconcile import DONE, Requeue, Runtime, requeue_at
from lcm.controllers.session.look import ask_lab_host
from lcm.controllers.session.running import is_undisturbed
from lcm.controllers.session.view import SessionRules, SessionView, is_worker_lost
from lcm.model.base.clock import Clock
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import LabWorker, address_of
from lcm.providers.protocols.labhost import Hosts, NodeFacts

_CONCURRENCY: Final = 64
"""How many workers are asked at once: one that does not answer takes seconds."""
LabNodes = Mapping[str, Sequence[NodeFacts]]
"""The nodes of all labs of a worker, by the lab's id."""


@dataclass(slots=True)
class _WatchedWorker:
    """The sessions that rest on a worker, each as it last looked, and what the worker showed last."""

    due: datetime
    views: dict[SessionRef, SessionView] = field(default_factory=dict)
    shown: LabNodes = field(default_factory=dict)
    unchanged: tuple[LabWorker, SessionRules] | None = None
    """The worker and the rules for which what was shown was no news to any of these sessions; None if it was."""


class LabWatch:
    """Wakes the sessions whose lab changed."""

    def __init__(
        self,
        cache: Cache,
        hosts: Hosts,
        wake: Callable[[SessionRef], object],
        *,
        clock: Clock,
        chance: Callable[[], float],
        rules: Callable[[], SessionRules],
    ) -> None:
        """Watch the labs of sessions in a cache; `wake` is called with those that should look at theirs."""
        self._cache = cache
        self._hosts = hosts
        self._wake = wake
        self._clock = clock
        self._rules = rules
        self._workers: dict[WorkerRef, _WatchedWorker] = {}
        self._runtime = Runtime(
            "lab-watch",
            self._reconcile,
            cache,
            LabWorker,
            clock=clock,
            chance=chance,
            concurrency=_CONCURRENCY,
            resting=lambda _: DONE,
            concerns=lambda seen: seen.ref in self._workers,
        )

    async def run(self) -> None:
        """Watch until cancelled, or until an error ends the term."""
        await self._runtime.run()

    def follow(self, view: SessionView) -> None:
        """Watch the lab of a session, if it runs undisturbed."""
        if view.worker is None or not is_undisturbed(view):
            return
        ref = ref_of(view.worker)
        if ref not in self._workers:
            self._workers[ref] = _WatchedWorker(view.now + view.rules.watch)
            self._runtime.enqueue(ref)
        self._workers[ref].views[ref_of(view.session)] = view
        self._workers[ref].unchanged = None

    async def _reconcile(self, ref: WorkerRef) -> Requeue:
        """Ask a worker for its nodes when that is due, wake whom it concerns, and return when to ask again."""
        known, now = self._workers.get(ref), self._clock.now()
        if known is None:
            return DONE
        self._forget_moved(known)
        if not known.views:
            del self._workers[ref]
            return DONE
        if now < known.due:
            return requeue_at(known.due, now)
        await self._look(ref, known)
        known.due = self._clock.now() + self._rules().watch
        return requeue_at(known.due, self._clock.now())

    async def _look(self, ref: WorkerRef, known: _WatchedWorker) -> None:
        worker = self._cache.get(ref)
        lost = worker is None or is_worker_lost(worker)
        nodes = Unknown() if worker is None or lost else await ask_lab_host(self._read_nodes(worker))
        shown: LabNodes = {} if isinstance(nodes, Unknown) else nodes
        rules, before = self._rules(), known.unchanged
        if before is not None and before[0] is worker and before[1] is rules and shown == known.shown:
            return
        news = [
            one
            for one, view in known.views.items()
            if worker is None or _is_news(view, worker, rules, shown, known.shown)
        ]
        for session in news:
            self._wake(session)
        known.shown, known.unchanged = shown, None if news or worker is None else (worker, rules)

    async def _read_nodes(self, worker: LabWorker) -> LabNodes:
        return await (await self._hosts.of(worker)).all_nodes()

    def _forget_moved(self, known: _WatchedWorker) -> None:
        """Forget the sessions that no longer run where they rested."""
        for session, view in list(known.views.items()):
            now, before = self._cache.get(session), view.status
            if (
                now is None
                or now.status.phase is not SessionPhase.RUNNING
                or (now.status.worker_id, now.status.cml_lab_id) != (before.worker_id, before.cml_lab_id)
            ):
                del known.views[session]


def _is_news(view: SessionView, worker: LabWorker, rules: SessionRules, shown: LabNodes, before: LabNodes) -> bool:
    """Return whether a session's lab, its worker or its rules are other than when it looked."""
    lab_id = view.status.cml_lab_id or ""
    nodes = shown.get(lab_id, ())
    return (
        {one.node_id: one.state for one in nodes} != view.nodes
        or nodes != before.get(lab_id, nodes)
        or view.worker is None
        or address_of(worker) != address_of(view.worker)
        or worker.metadata.uid != view.worker.metadata.uid
        or rules is not view.rules
    )
