"""The life of an object outside: look, decide, do what is called for, report, and say when to look again.

`Lifecycle` is the one loop of the worker and session controllers. A kind adds its look, which fills a `LifeView`; its
deciders and reactions, pure functions that make a `Decision` of it; its effects; and what it complains of. A missing or
late answer to a question becomes `Unknown` in `ask`, a refused effect a `Failure` in `attempt`, each here and nowhere
else. Every other error rises to `Runtime`, which maps it: a Conflict means that the object is looked at again.

`RaisedAlerts` keeps the alerts of a kind as the findings say. What the providers do is checked there against the permit
of the leader's term.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, R, Ref, ref_of
from lcm.controllers.runtime.reconcile import DONE, Requeue, requeue_at
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Refused, Stuck
from lcm.model.base.resource import Status, shorten_text
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.providers.protocols.labhost import NotReady
from lcm.system.tasks import LimitTimer, TimeLimit

HOST_SECONDS: Final = 10.0
"""How long one question to a host may take, so that a silent host does not delay other objects.

After the first question without an answer, a look asks that host nothing more.
"""
_host_timer: Final[ContextVar[LimitTimer | None]] = ContextVar("_host_timer", default=None)
"""What the questions of one controller share."""
_NOT_PUT_OFF: Final = (0, datetime.min.replace(tzinfo=UTC))
_log: Final = structlog.get_logger()

T = TypeVar("T")
S = TypeVar("S", bound=Status)
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A missing observation: nobody asked, or no answer came.

    `answered` means that the machine is there and says that CML is not up. With a `reason` there was an answer
    that only a person can change: a wrong password, a missing permission.
    """

    why: str = "not asked"
    answered: bool = False
    reason: str = ""


NOT_ASKED: Final = Unknown()


def share_host_timer() -> None:
    """Use one timer for all questions to hosts, of this task and those that it starts."""
    _host_timer.set(LimitTimer(HOST_SECONDS, is_kept=True))


async def ask(answer: Awaitable[T]) -> T | Unknown:
    """Await an answer; return Unknown when there is none, or when only a person can change it."""
    try:
        return await answer
    except (Later, Stuck) as error:
        return _as_unknown(error)


async def ask_host(answer: Awaitable[T]) -> T | Unknown:
    """Await a host's answer for at most HOST_SECONDS; return Unknown after that."""
    try:
        with TimeLimit(HOST_SECONDS, _host_timer.get()):
            return await answer
    except TimeoutError:
        return Unknown(f"no answer within {HOST_SECONDS:g} s")
    except (Later, Stuck) as error:
        return _as_unknown(error)


def _as_unknown(error: Later | Stuck) -> Unknown:
    if isinstance(error, Stuck):
        return Unknown(str(error), answered=True, reason=error.reason)
    return Unknown(str(error), answered=isinstance(error, NotReady))


class Polling(Protocol):
    """The rules of a kind: how often it is worth looking, and whatever else its deciders need."""

    @property
    def poll(self) -> timedelta:
        """The time between two looks at something that is under way."""
        ...


class LifeView(msgspec.Struct, Generic[R, S], frozen=True):
    """An object, the rules that hold for it, and what was observed of it just now."""

    resource: R
    now: datetime
    rules: Polling

    @property
    def status(self) -> S:
        """The object's status as it was before this look."""
        return self.resource.status  # type: ignore[return-value]  # of the resource's own type; read too often to cast

    @property
    def is_deleted(self) -> bool:
        """Whether the object is marked for deletion."""
        return self.resource.metadata.deletion_timestamp is not None

    @property
    def entered_at(self) -> datetime:
        """When the object entered its present phase."""
        history = self.status.history
        return history[-1].at if history else self.now


V = TypeVar("V", bound=LifeView[Any, Any])


@dataclass(frozen=True, slots=True)
class Failure:
    """A refused effect: `reason` in one word, `message` in a sentence. `hopeless`: it would be refused anywhere."""

    reason: str
    message: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until a moment; None: until something changes."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Report(Generic[S]):
    """A new status. With a new phase it is a step, and `reason` is its entry in the history.

    What is written calls for another look at once, or, if `until` is given, for none before then.
    """

    status: S
    reason: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Do(Generic[E]):
    """Carry out an effect, then decide again by its outcome."""

    effect: E


LifeDecision = Wait | Report[S] | Do[E]


def enter_phase(view: LifeView[Any, S], phase: str, reason: str, **fields: Any) -> Report[S]:  # noqa: ANN401 - fields of a status
    """Return a report that enters a phase and sets further fields of the status."""
    return Report(msgspec.structs.replace(view.status, phase=phase, **fields), shorten_text(reason))


def update_status(view: LifeView[Any, S], **fields: Any) -> Report[S] | None:  # noqa: ANN401 - fields of a status
    """Return a report of other fields in the same phase; None when nothing differs."""
    status = msgspec.structs.replace(view.status, **fields)
    return None if status == view.status else Report(status)


def poll_again(view: LifeView[Any, Any]) -> Wait:
    """Return a wait until the next poll."""
    return Wait(view.now + view.rules.poll)


async def attempt(effect: Awaitable[T]) -> T | Failure | None:
    """Await an effect and return its outcome: a refusal is one too. What is gone is found out by the next look."""
    try:
        return await effect
    except Stuck as error:
        return Failure(error.reason, str(error))
    except Refused as error:
        return Failure(type(error).__name__, str(error))
    except Gone:
        return None


@dataclass(slots=True)
class _ObjectAlerts:
    """The alerts raised about one object, with the severity and reason that are raised again when they change."""

    uid: str
    raised: dict[str, tuple[Severity, str] | None]
    has_bug: bool = False
    """Whether its last look met a bug of ours. The alert of that bug is not cleared by the next look."""


class RaisedAlerts(Generic[R]):
    """The alerts about the objects of a kind. Raising and clearing may be repeated, so a new leader goes on."""

    def __init__(self, plane: Plane, kind: type[R], names: Iterable[str], *, stuck: str) -> None:
        """Keep the alerts `names`. `stuck` is the one about objects for which a person must first do something."""
        self._plane = plane
        self._kind = kind
        self._names = frozenset(names)
        self._stuck = stuck
        self._objects: dict[Ref[R], _ObjectAlerts] = {}
        self._assumed = self._names
        """The alerts that an object may have which nobody looked at in this term. All, unless they were read."""

    async def load(self) -> None:
        """Read the alerts that were raised before this term, where clearing them all once would take too long."""
        self._assumed = frozenset()
        for one in await self._plane.alerts():
            if one.kind == self._kind.__name__ and one.alert in self._names:
                ref = Ref(self._kind, one.name, one.namespace)
                self._objects.setdefault(ref, _ObjectAlerts(one.uid, {})).raised[one.alert] = None

    async def sync(
        self, resource: R, findings: Iterable[AlertFinding], unchanged: frozenset[str] = frozenset()
    ) -> None:
        """Raise what is wrong with an object and clear what no longer is; leave `unchanged` alerts as they are."""
        ref, wrong = ref_of(resource), {one.alert: one for one in findings}
        if not wrong and not self._assumed and ref not in self._objects:
            return
        known = self._find(resource)
        kept = unchanged | ({self._stuck} if known.has_bug else frozenset())
        for name in sorted(set(known.raised) - set(wrong) - kept):
            await self._plane.clear_alert(ref, name)
        for name, finding in wrong.items():
            if known.raised.get(name) != (finding.severity, finding.reason):
                await self._plane.raise_alert(ref, finding)
        known.raised = {name: gist for name, gist in known.raised.items() if name in kept}
        known.raised |= {name: (one.severity, one.reason) for name, one in wrong.items()}
        if not known.raised and not known.has_bug and not self._assumed:
            self.forget(ref)

    async def raise_bug(self, resource: R, error: Exception) -> None:
        """Raise an alert about a bug of ours that keeps an object from being reconciled."""
        ref, known, bug = ref_of(resource), self._find(resource), type(error).__name__
        known.has_bug, known.raised[self._stuck] = True, None
        why = f"a bug of ours, please report it: {bug}: {error}"
        await self._plane.raise_alert(ref, stuck_alert(self._stuck, ref.name, bug, why))

    def end_bug(self, ref: Ref[R]) -> None:
        """Mark the alert about a bug to be cleared by the next look, because this one succeeded."""
        if (known := self._objects.get(ref)) is not None:
            known.has_bug = False

    async def settle(self, resource: R) -> None:
        """Clear all alerts about an object of which there is nothing more to decide, and forget it."""
        ref = ref_of(resource)
        if ref in self._objects:
            self.end_bug(ref)
            await self.sync(resource, ())
            self.forget(ref)

    def has_any(self, ref: Ref[R]) -> bool:
        """Return whether an object may have alerts."""
        return ref in self._objects

    def forget(self, ref: Ref[R]) -> None:
        """Forget an object that is gone."""
        self._objects.pop(ref, None)

    def _find(self, resource: R) -> _ObjectAlerts:
        ref, uid = ref_of(resource), resource.metadata.uid
        known = self._objects.get(ref)
        if known is None or known.uid != uid:  # another object may have got the name
            known = self._objects[ref] = _ObjectAlerts(uid, dict.fromkeys(self._assumed))
        return known


def stuck_alert(alert: str, name: str, reason: str, why: str) -> AlertFinding:
    """Return the alert about an object that cannot be observed or helped before a person has fixed something."""
    message = shorten_text(f"{name}: {why}")
    return AlertFinding(alert=alert, severity=Severity.CRITICAL, reason=reason, message=message)


@dataclass(frozen=True, slots=True)
class Life(Generic[R, V, S, E]):
    """What a kind adds to the lifecycle: how its objects are observed, judged and acted on."""

    look: Callable[[R], Awaitable[V]]
    decide: Callable[[V], LifeDecision[S, E]]
    act: Callable[[V, E], Awaitable[object]]
    react: Callable[[V, E, Any], LifeDecision[S, E]]
    """Decides what follows from an effect's outcome: it may be another effect that the same phase calls for."""
    find_alerts: Callable[[V], Iterable[AlertFinding]]
    unchanged_alerts: Callable[[V], frozenset[str]] = lambda _: frozenset()
    """Names the alerts to leave as they are, though they are not among the findings."""
    complete: Callable[[V, Wait | Report[S]], Wait | Report[S]] = lambda _, decision: decision
    """Adds to a decision what follows from every status that is written."""
    is_concern: Callable[[R], bool] = lambda _: True
    """Tells whether anything can be decided about an object in its phase."""
    rest: Callable[[V], object] = lambda _: None
    """Called when there is nothing to do with an object for a while."""


class Lifecycle(Generic[R, V, S, E]):
    """Takes each object of a kind one step further."""

    def __init__(
        self, plane: Plane, cache: Cache, clock: Clock, life: Life[R, V, S, E], alerts: RaisedAlerts[R]
    ) -> None:
        self._plane = plane
        self._cache = cache
        self._clock = clock
        self._life = life
        self._alerts = alerts
        self._put_off: dict[Ref[R], tuple[int, datetime]] = {}
        """The objects that need no look before a moment unless they change again: the version, and the moment."""

    async def load_alerts(self) -> None:
        """Read the alerts that were raised before this term."""
        await self._alerts.load()

    def is_concerned(self, ref: Ref[R]) -> bool:
        """Return whether anything can follow from a change of an object: a decision, or that alerts are cleared."""
        resource = self._cache.get(ref)
        can_decide = resource is not None and self._life.is_concern(resource)
        return can_decide or self._alerts.has_any(ref) or ref in self._put_off

    async def reconcile(self, ref: Ref[R]) -> Requeue:
        """Look at an object, decide, do what is called for, and return when to look again."""
        resource = self._cache.get(ref)
        if resource is None:
            self._alerts.forget(ref)
            self._put_off.pop(ref, None)
            return DONE
        if not self._life.is_concern(resource):
            await self._alerts.settle(resource)
            return DONE
        version, until = self._put_off.pop(ref, _NOT_PUT_OFF)
        if version == resource.metadata.resource_version and self._clock.now() < until:
            self._put_off[ref] = (version, until)
            return requeue_at(until, self._clock.now())
        view = await self._life.look(resource)
        await self._alerts.sync(resource, self._life.find_alerts(view), self._life.unchanged_alerts(view))
        decision = self._life.decide(view)
        if isinstance(decision, Do):
            decision = await self._carry_out(view, decision.effect)
        decision = self._life.complete(view, decision)
        if isinstance(decision, Report):
            await self._write(view, decision)
            again = Requeue(view.rules.poll)
        else:
            self._life.rest(view)
            again = DONE if decision.until is None else requeue_at(decision.until, self._clock.now())
        self._alerts.end_bug(ref)
        return again

    async def report_bug(self, ref: Ref[R], error: Exception) -> None:
        """Raise an alert about a bug of ours that keeps an object from being reconciled."""
        resource = self._cache.get(ref)
        if resource is not None and self._life.is_concern(resource):
            await self._alerts.raise_bug(resource, error)

    async def _carry_out(self, view: V, effect: E) -> Wait | Report[S]:
        ref = ref_of(view.resource)
        outcome = await attempt(self._life.act(view, effect))
        refusal = outcome.reason if isinstance(outcome, Failure) else None
        _log.info("effect", object=str(ref), effect=type(effect).__name__, refused=refusal)
        answered = msgspec.structs.replace(view, now=self._clock.now())  # an effect may take minutes
        decision = self._life.react(answered, effect, outcome)
        if not isinstance(decision, Do):
            return decision
        known = self._cache.get(ref)
        if known is None or known.metadata.resource_version != view.resource.metadata.resource_version:
            return Wait(answered.now)  # it changed meanwhile
        return await self._carry_out(answered, decision.effect)

    async def _write(self, view: V, report: Report[S]) -> None:
        """Write a status at exactly the revision that was looked at."""
        written = await self._plane.step(view.resource, report.status, reason=report.reason)
        if report.until is not None:
            self._put_off[ref_of(written)] = (written.metadata.resource_version, report.until)
        self._cache.accept(written)
