"""The placement loop: looks at all waiting sessions, plans for them together, and carries the plan out.

Run by the controller.

The plan is only a proposal. The plane refuses what does not fit by what it knows. A refused place is excluded for a
while, and the next plan does without it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.scheduler.effects import (
    SchedulerEffects,
    for_each,
    is_news,
    is_staying,
    waiting_status,
    with_waiting,
)
from lcm.controllers.scheduler.licences import LicenceWatch
from lcm.controllers.scheduler.queue_plan import PlacementOutcome, QueueRules, plan
from lcm.controllers.scheduler.risk import Risk, find_misfits, with_risk
from lcm.controllers.scheduler.seekers import PlacementNeeds, SuspectSeats, find_seekers, is_expired, latest_start
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.base.clock import Clock, Stopwatch
from lcm.model.base.errors import Later, Stuck
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.session import (
    SESSION_MACHINE,
    LabletSession,
    LabletSessionStatus,
    RiskReason,
    SessionCondition,
    Waiting,
    is_asap,
)
from lcm.model.kinds.settings import Strategy
from lcm.placement.places import session_holder

REPORT_INTERVAL: Final = timedelta(seconds=5)
"""Changes are written to waiting sessions at most this often: when one leaves the queue, all behind it move up."""
_MAX_REST_SECONDS: Final = 1.0
_PLACE_RISKS: Final = frozenset({RiskReason.NO_WORKER, RiskReason.NO_LICENCE})
"""Risks that stay with a place whoever else leaves it."""
_UNCLEAR: Final = "its definition does not say what it needs"
_log: Final = structlog.get_logger()


class PlacementLoop:
    """Plans the queue again and again during one term."""

    def __init__(
        self,
        plane: Plane,
        cache: Cache,
        *,
        clock: Clock,
        stopwatch: Stopwatch,
        chance: Callable[[], float],
        resync: Callable[[], timedelta],
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._stopwatch = stopwatch
        self._chance = chance
        self._resync = resync
        self._effects = SchedulerEffects(plane, cache)
        self._woken = asyncio.Event()
        self._turn = 0
        self._due: datetime | None = None
        self._report_due: datetime | None = None
        self._licence_watch = LicenceWatch(plane, resync)
        self._suspects = SuspectSeats()

    def wake(self) -> None:
        """Plan again now."""
        self._woken.set()

    async def run(self, view: SchedulerView) -> None:
        """Place waiting sessions whenever something changes, and at least once per interval, until cancelled."""
        while True:
            self._woken.clear()
            began = self._stopwatch.seconds()
            try:
                await self._plan_once(view)
            except (Later, Stuck) as error:
                _log.warning("cannot place sessions", error=str(error))
                await asyncio.sleep((error.after if isinstance(error, Later) else self._resync()).total_seconds())
                continue
            assert self._due is not None, "each look says when the next is due"
            # If planning takes long, wait as long again: changes accumulate, and other tasks get to run.
            await asyncio.sleep(min(self._stopwatch.seconds() - began, _MAX_REST_SECONDS))
            left = max(self._due - self._clock.now(), timedelta(0))
            with suppress(TimeoutError):
                async with asyncio.timeout(left.total_seconds()):
                    await self._woken.wait()

    async def _plan_once(self, view: SchedulerView) -> None:
        now = self._clock.now()
        if not await view.refresh(now) and self._due is not None and now < self._due:
            return
        self._due = now + self._resync()
        lacking = await self._licence_watch.find_shortages(view, now)
        await self._suspects.update(view, now)
        seeking = find_seekers(view, self._cache, now, lacking, self._suspects.find(view, now, lacking))
        if seeking.seekers:
            await view.shift_openings(now)
        strategy = view.terms().strategy
        random = strategy == Strategy.RANDOM
        turn = (lambda: int(self._chance() * 2**30)) if random else self._next_number
        rules = QueueRules(strategy, self._stopwatch, turn)
        found = sorted(seeking.seekers.items())
        outcomes: Sequence[PlacementOutcome] = [
            one for namespace, several in found for one in plan(view.fleet(namespace), several, rules)
        ]
        outcomes = await self._effects.apply(view, outcomes, now, self._resync())
        await self._report_waiting(view, outcomes, seeking.unclear, now)
        await self._report_risks(view, outcomes, seeking, now)

    async def _report_waiting(
        self, view: SchedulerView, outcomes: Sequence[PlacementOutcome], unclear: Sequence[LabletSession], now: datetime
    ) -> None:
        """Write to waiting sessions what changed for them; to new ones at once, to the others at intervals."""
        due = self._report_due is None or now >= self._report_due
        news = [found for one in outcomes if (found := self._waiting_update(view, one, now))]
        last = sum(not one.is_assigned for one in outcomes)
        for position, session in enumerate(unclear, start=last + 1):
            waiting = Waiting(queue_position=position, estimated_start=None, basis=_UNCLEAR)
            if is_news(session, waiting, now):
                news.append((session, with_waiting(session, waiting, None)))
        told_now = [one for one in news if due or one[0].status.waiting is None]
        if len(told_now) < len(news) and self._report_due is not None and self._due is not None:
            self._due = min(self._due, self._report_due)
        if told_now and due:
            self._report_due = now + REPORT_INTERVAL
        await for_each(told_now, lambda one: self._effects.step(*one))

    def _waiting_update(
        self, view: SchedulerView, outcome: PlacementOutcome, now: datetime
    ) -> tuple[LabletSession, LabletSessionStatus] | None:
        session = self._cache.get(ref_of(outcome.seeker.session))
        if session is None or outcome.is_assigned or not is_asap(session) or session.status.worker_id is not None:
            return None
        waiting = waiting_status(outcome, view.boot_time(outcome.place.id if outcome.place else ""))
        if not is_news(session, waiting, now):
            return None
        return session, msgspec.structs.replace(session.status, waiting=waiting, last_decision=outcome.full_decision)

    async def _report_risks(
        self, view: SchedulerView, outcomes: Sequence[PlacementOutcome], seeking: PlacementNeeds, now: datetime
    ) -> None:
        """Flag the promises that are in danger, and clear those that no longer are."""
        risks = seeking.risks
        helped = [
            one for one in outcomes if (risk := risks.get(one.seeker.holder)) and _keeps_promise(view, one, risk, now)
        ]
        unhelped = risks.keys() - {one.seeker.holder for one in helped}
        wrong = [one for several in seeking.seekers.values() for one in several if one.holder in unhelped]
        await for_each(wrong, lambda one: self._update_risk(one.session, risks[one.holder], now))
        misfits = find_misfits(view, now)
        await for_each(list(misfits.values()), lambda one: self._update_risk(*one, now))
        # A session that moves elsewhere is safe only once it is there; the next look shows it.
        known = (risks.keys() - {one.seeker.holder for one in helped if is_staying(one)}) | misfits.keys()
        over = [one for one in view.session_index.flagged.values() if session_holder(one) not in known]
        live = [one for one in over if one.status.phase not in SESSION_MACHINE.final and not is_expired(one, now)]
        # The condition of one that has ended stays: it tells what became of the promise.
        await for_each(live, lambda one: self._update_risk(one, None, now))

    async def _update_risk(self, session: LabletSession, risk: Risk | None, now: datetime) -> None:
        session = self._cache.get(ref_of(session)) or session
        known = find_condition(session.status.conditions, SessionCondition.AT_RISK)
        at_risk = known is not None and known.status is Truth.TRUE
        if at_risk == (risk is not None) and (known is None or risk is None or known.reason == risk.reason):
            return
        if risk is not None:
            _log.warning("promise at risk", session=session.metadata.name, reason=risk.reason, message=risk.message)
        await self._effects.step(session, with_risk(session, risk, now))

    def _next_number(self) -> int:
        self._turn += 1
        return self._turn


def _keeps_promise(view: SchedulerView, outcome: PlacementOutcome, risk: Risk, now: datetime) -> bool:
    """Return whether an outcome keeps a promise; a session that stays is helped only if others leave."""
    latest = latest_start(view, outcome.seeker.session)
    if not outcome.is_assigned or outcome.at is None or (is_staying(outcome) and risk.reason in _PLACE_RISKS):
        return False
    if risk.reason is RiskReason.NO_LICENCE and outcome.place is not None and outcome.place.seat:
        return False
    return latest is None or outcome.at <= max(now, latest)
