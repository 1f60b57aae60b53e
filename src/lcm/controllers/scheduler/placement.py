"""Places all who wait, again and again: looks, plans for all at once, carries the plan out. Run by `controller`.

The plan is only a proposal. The plane refuses what does not fit by what it knows: such a place is left alone for a
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
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.controllers.scheduler.effects import Hands, each, stays, told, untold, with_waiting
from lcm.controllers.scheduler.index import at_risk
from lcm.controllers.scheduler.licences import Lookout
from lcm.controllers.scheduler.queue_plan import Outcome, Rules, plan
from lcm.controllers.scheduler.risk import ALERT, NO_LICENCE, NO_WORKER, Risk, complaint, flagged, squeezed
from lcm.controllers.scheduler.seekers import Seeking, ends, latest_start, look
from lcm.controllers.scheduler.view import View
from lcm.model.base.clock import Clock, Stopwatch
from lcm.model.base.errors import Later, Stuck
from lcm.model.base.resource import condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import SESSION, LabletSession, LabletSessionStatus, SessionCondition, Waiting, is_asap
from lcm.model.kinds.settings import Strategy
from lcm.placement.places import session_holder

TELLING: Final = timedelta(seconds=5)
"""Those who wait are told of changes at most so often: when one leaves the queue, all behind it move up."""
_LONGEST_REST: Final = 1.0
_STANDING: Final = frozenset({NO_WORKER, NO_LICENCE})
"""What is so of a place whoever else leaves it."""
_UNCLEAR: Final = "its definition does not say what it needs"
_log: Final = structlog.get_logger()


class Placing:
    """The queue of one term."""

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
        self._plane = plane
        self._cache = cache
        self._clock = clock
        self._stopwatch = stopwatch
        self._chance = chance
        self._resync = resync
        self._hands = Hands(plane, cache)
        self._news = asyncio.Event()
        self._turn = 0
        self._due: datetime | None = None
        self._telling_due: datetime | None = None
        self._settled: set[str] = set()
        self._lookout = Lookout(plane, resync)
        self.passes = 0
        """How often it has planned, for `/metrics`."""

    def wake(self) -> None:
        """Have it look now."""
        self._news.set()

    async def run(self, view: View) -> None:
        """Place whoever waits whenever something changes, and at least once in an interval, until cancelled."""
        while True:
            self._news.clear()
            began = self._stopwatch.seconds()
            try:
                await self._look(view)
            except (Later, Stuck) as error:
                _log.warning("cannot place sessions", error=str(error))
                await asyncio.sleep((error.after if isinstance(error, Later) else self._resync()).total_seconds())
                continue
            assert self._due is not None, "each look says when the next is due"
            # Where planning takes long, changes come together before it is done again, and others get their turn.
            await asyncio.sleep(min(self._stopwatch.seconds() - began, _LONGEST_REST))
            left = max(self._due - self._clock.now(), timedelta(0))
            with suppress(TimeoutError):
                async with asyncio.timeout(left.total_seconds()):
                    await self._news.wait()

    async def _look(self, view: View) -> None:
        now = self._clock.now()
        if not view.refresh(now) and self._due is not None and now < self._due:
            return
        self._due = now + self._resync()
        self.passes += 1
        seeking = look(view, self._definition, now, await self._lookout.lacking(view, now))
        strategy = view.terms().strategy
        rules = Rules(strategy, self._stopwatch, self._drawn if strategy == Strategy.RANDOM else self._number)
        found = sorted(seeking.seekers.items())
        outcomes: Sequence[Outcome] = [
            one for namespace, several in found for one in plan(view.fleet(namespace), several, rules)
        ]
        outcomes = await self._hands.carry_out(view, outcomes, now, self._resync())
        await self._tell(view, outcomes, seeking.unclear, now)
        await self._warn(view, outcomes, seeking, now)

    async def _tell(
        self, view: View, outcomes: Sequence[Outcome], unclear: Sequence[LabletSession], now: datetime
    ) -> None:
        """Tell those who wait what has changed for them; the new ones at once, the others now and then."""
        due = self._telling_due is None or now >= self._telling_due
        news = [found for one in outcomes if (found := self._news_for(view, one, now))]
        last = sum(not one.now for one in outcomes)
        for position, session in enumerate(unclear, start=last + 1):
            waiting = Waiting(queue_position=position, estimated_start=None, basis=_UNCLEAR)
            if untold(session, waiting, now):
                news.append((session, with_waiting(session, waiting, None)))
        told_now = [one for one in news if due or one[0].status.waiting is None]
        if len(told_now) < len(news) and self._telling_due is not None and self._due is not None:
            self._due = min(self._due, self._telling_due)
        if told_now and due:
            self._telling_due = now + TELLING
        await each(told_now, lambda one: self._hands.step(*one))

    def _news_for(
        self, view: View, outcome: Outcome, now: datetime
    ) -> tuple[LabletSession, LabletSessionStatus] | None:
        session = self._cache.get(ref_of(outcome.seeker.session))
        if session is None or outcome.now or not is_asap(session) or session.status.worker_id is not None:
            return None
        waiting = told(outcome, view.boot(outcome.place.id if outcome.place else ""))
        if not untold(session, waiting, now):
            return None
        return session, msgspec.structs.replace(session.status, waiting=waiting, last_decision=outcome.explained)

    async def _warn(self, view: View, outcomes: Sequence[Outcome], seeking: Seeking, now: datetime) -> None:
        """Say which promises are in danger, and which no longer are."""
        risks = seeking.risks
        helped = [one for one in outcomes if (risk := risks.get(one.seeker.holder)) and _helps(view, one, risk, now)]
        unhelped = risks.keys() - {one.seeker.holder for one in helped}
        wrong = [one for several in seeking.seekers.values() for one in several if one.holder in unhelped]
        await each(wrong, lambda one: self._flag(one.session, risks[one.holder], now))
        misfits = squeezed(view, now)
        await each(list(misfits.values()), lambda one: self._flag(*one, now))
        # Who is to go elsewhere is safe when it is there, as the next look tells.
        known = (risks.keys() - {one.seeker.holder for one in helped if stays(one)}) | misfits.keys()
        over = [one for one in view.line_up.flagged.values() if session_holder(one) not in known]
        live = [one for one in over if one.status.phase not in SESSION.final and not ends(one, now)]
        await each(live, lambda one: self._flag(one, None, now))
        await self._settle([one for one in over if one.status.phase in SESSION.final])

    async def _settle(self, ended: Sequence[LabletSession]) -> None:
        """Have no alert about sessions that have ended. What they carry stays: it says what became of the promise."""
        self._settled &= {one.metadata.uid for one in ended}
        await each([one for one in ended if one.metadata.uid not in self._settled], self._settle_one)

    async def _settle_one(self, session: LabletSession) -> None:
        await self._plane.settle(ref_of(session), ALERT)
        self._settled.add(session.metadata.uid)

    async def _flag(self, session: LabletSession, risk: Risk | None, now: datetime) -> None:
        session = self._cache.get(ref_of(session)) or session
        known = condition(session.status.conditions, SessionCondition.AT_RISK)
        if at_risk(session) == (risk is not None) and (known is None or risk is None or known.reason == risk.reason):
            return
        if risk is not None:
            _log.warning("promise at risk", session=session.metadata.name, reason=risk.reason, message=risk.message)
            await self._plane.complain(ref_of(session), complaint(session, risk))
        else:
            await self._plane.settle(ref_of(session), ALERT)
        await self._hands.step(session, flagged(session, risk, now))

    def _definition(self, session: LabletSession) -> LabletDefinition | None:
        return self._cache.get(Ref(LabletDefinition, session.spec.definition, session.metadata.namespace))

    def _number(self) -> int:
        self._turn += 1
        return self._turn

    def _drawn(self) -> int:
        return int(self._chance() * 2**30)


def _helps(view: View, outcome: Outcome, risk: Risk, now: datetime) -> bool:
    """Tell whether a promise is kept by where it goes; where it is, only by others that leave."""
    latest = latest_start(view, outcome.seeker.session)
    if not outcome.now or outcome.at is None or (stays(outcome) and risk.reason in _STANDING):
        return False
    if risk.reason == NO_LICENCE and outcome.place is not None and outcome.place.seat:
        return False
    return latest is None or outcome.at <= max(now, latest)
