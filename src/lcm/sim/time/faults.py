"""Injected failures for simulated providers behind a protocol: cloud, artifacts, and CML's direct interface."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

from lcm.model.base.errors import LcmError, Unreachable
from lcm.sim.time.host import HOST


@dataclass(slots=True)
class _PlannedFailure:
    error: LcmError
    times: int
    after_effect: bool


class FaultKind(Enum):
    """What goes wrong during a fault."""

    SILENT = auto()
    """No answer, and no effect."""
    HANGING = auto()
    """No answer, and the caller learns it late."""
    SLOW = auto()
    """The effect happens later than it should."""
    HALF = auto()
    """A question about several things is answered for some of them only."""
    DEAF = auto()
    """The effect happens, but the answer is lost."""
    STILL = auto()
    """The caller is paused before the effect, until somebody resumes it."""
    STILL_AFTER = auto()
    """The caller is paused after the effect, before it can tell anybody."""
    DEADLY_BEFORE = auto()
    """The caller is killed before the effect."""
    DEADLY_AFTER = auto()
    """The caller is killed after the effect, before it can tell anybody."""


_DELAYING = frozenset({FaultKind.HANGING, FaultKind.SLOW, FaultKind.STILL})


@dataclass(frozen=True, slots=True, eq=False)
class FaultPeriod:
    """A period in which something goes wrong: for one host or all, with some verbs or all."""

    kind: FaultKind
    host: str | None = None
    verbs: frozenset[str] = frozenset()
    seconds: float = 45.0
    """How long a hanging or slow call takes."""
    error: LcmError | None = None
    """The error that is raised instead of Unreachable."""

    def applies_to(self, verb: str) -> bool:
        """Return whether it affects a call made here and now."""
        caller = HOST.get()
        return (not self.verbs or verb in self.verbs) and (self.host is None or (caller or _NO_HOST).name == self.host)


class _NoHost:
    name = ""


_NO_HOST = _NoHost()


class ActiveFaults:
    """What is going wrong with one thing now. Several things may share one."""

    def __init__(self) -> None:
        self.now: list[FaultPeriod] = []

    @contextmanager
    def inject(self, period: FaultPeriod) -> Iterator[FaultPeriod]:
        """Keep a fault active for as long as the block lasts."""
        self.now.append(period)
        try:
            yield period
        finally:
            self.now.remove(period)

    async def delay_call(self, verb: str) -> None:
        """Delay a call that hangs or is slow, and pause a caller."""
        for period in [one for one in self.now if one.kind in _DELAYING and one.applies_to(verb)] if self.now else ():
            if period.kind is FaultKind.STILL:
                _pause_caller(verb)
                await asyncio.sleep(0)
                continue
            await asyncio.sleep(period.seconds)
            if period.kind is FaultKind.HANGING:
                raise Unreachable(f"{verb}: no answer within {period.seconds:.0f} s")

    def raise_before_effect(self, verb: str) -> None:
        """Raise what prevents a call's effect."""
        for period in [one for one in self.now if one.applies_to(verb)] if self.now else ():
            if period.kind is FaultKind.DEADLY_BEFORE:
                _kill_caller(verb)
                raise Unreachable(f"{verb}: whoever called is dead")  # a killed host still runs to its next await
            if period.kind in {FaultKind.SILENT, FaultKind.HANGING}:
                raise period.error or Unreachable(f"{verb}: no answer")

    def is_partial(self, verb: str) -> bool:
        """Return whether a call is answered for some things only."""
        return any(one.kind is FaultKind.HALF and one.applies_to(verb) for one in self.now)

    def raise_after_effect(self, verb: str) -> None:
        """Raise what happens between an effect and its caller."""
        for period in [one for one in self.now if one.applies_to(verb)] if self.now else ():
            if period.kind is FaultKind.DEADLY_AFTER:
                _kill_caller(verb)
            elif period.kind is FaultKind.STILL_AFTER:
                _pause_caller(verb)  # from its next await on
            elif period.kind is FaultKind.DEAF:
                raise Unreachable(f"{verb}: the answer is lost")


class PlannedFailures:
    """Failures planned for the next calls of a protocol's verbs."""

    def __init__(self, protocol: type, *spells: ActiveFaults) -> None:
        asynchronous = {name for name, verb in vars(protocol).items() if inspect.iscoroutinefunction(verb)}
        self._waiting: dict[str, list[_PlannedFailure]] = {verb: [] for verb in asynchronous - {"close"}}
        self._spells = spells

    def fail_next(self, verb: str, error: LcmError, *, times: int = 1, after_effect: bool = False) -> None:
        """Make the next calls of a verb fail: before their effect, or after it, as when an answer is lost."""
        assert verb in self._waiting, f"there is no verb {verb}"
        self._waiting[verb].append(_PlannedFailure(error, times, after_effect))

    def is_active(self, verb: str) -> bool:
        """Return whether anything may go wrong with a call of a verb now."""
        if self._waiting[verb]:
            return True
        for one in self._spells:  # noqa: SIM110  asked for every question, where a generator would cost more
            if one.now:
                return True
        return False

    async def delay_call(self, verb: str) -> None:
        """Delay a call that hangs or is slow."""
        for one in self._spells:
            if one.now:
                await one.delay_call(verb)

    def raise_before_effect(self, verb: str) -> None:
        """Raise what prevents a call's effect."""
        for one in self._spells:
            if one.now:
                one.raise_before_effect(verb)
        self._raise(verb, after_effect=False)

    def raise_after_effect(self, verb: str) -> None:
        """Raise what happens between an effect and its caller."""
        for one in self._spells:
            if one.now:
                one.raise_after_effect(verb)
        self._raise(verb, after_effect=True)

    def _raise(self, verb: str, *, after_effect: bool) -> None:
        if not (waiting := self._waiting[verb]):
            return
        failure = next((one for one in waiting if one.times and one.after_effect is after_effect), None)
        if failure:
            failure.times -= 1
            raise failure.error


def _pause_caller(verb: str) -> None:
    host = HOST.get()
    if host is not None:
        host.place = verb
        host.pause()


def _kill_caller(verb: str) -> None:
    """Kill the host that made this call; calls from outside of all hosts go on."""
    host = HOST.get()
    if host is not None:
        host.place = verb
        host.kill()
