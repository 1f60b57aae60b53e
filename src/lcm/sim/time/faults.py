"""Failures on request, for everything made up that stands behind a protocol: `compute`, `artifacts`, `cml.direct`."""

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

from lcm.model.base.errors import LcmError, Unreachable
from lcm.sim.time.host import HOST


@dataclass(slots=True)
class _Failure:
    error: LcmError
    times: int
    after_effect: bool


class Ill(Enum):
    """What is wrong while a spell lasts."""

    SILENT = auto()
    """Nobody answers, and nothing happens."""
    HANGING = auto()
    """Nobody answers, and who calls learns it late."""
    SLOW = auto()
    """What is asked for happens later than it should."""
    HALF = auto()
    """Of several things that are asked about, some are not in the answer."""
    DEAF = auto()
    """What is asked for happens, and who asked hears nothing of it."""
    STILL = auto()
    """Who calls stands still before anything has happened, and goes on when somebody lets it."""
    STILL_AFTER = auto()
    """Who calls stands still when it has happened, and before it can tell anybody."""
    DEADLY_BEFORE = auto()
    """Who calls dies before anything has happened."""
    DEADLY_AFTER = auto()
    """Who calls dies when it has happened, and before it can tell anybody."""


_LINGERING = frozenset({Ill.HANGING, Ill.SLOW, Ill.STILL})


@dataclass(frozen=True, slots=True, eq=False)
class Spell:
    """A time in which something is wrong: for one host or for all, with some verbs or with all."""

    ill: Ill
    host: str | None = None
    verbs: frozenset[str] = frozenset()
    seconds: float = 45.0
    """How long a hanging or slow call lasts."""
    error: LcmError | None = None
    """What is heard instead of silence."""

    def meets(self, verb: str) -> bool:
        """Tell whether a call made here and now suffers from it."""
        caller = HOST.get()
        return (not self.verbs or verb in self.verbs) and (self.host is None or (caller or _NOBODY).name == self.host)


class _Nobody:
    name = ""


_NOBODY = _Nobody()


class Spells:
    """What is wrong with one thing now. Several things may share theirs."""

    def __init__(self) -> None:
        self.now: list[Spell] = []

    @contextmanager
    def under(self, spell: Spell) -> Iterator[Spell]:
        """Let something be wrong for as long as the block lasts."""
        self.now.append(spell)
        try:
            yield spell
        finally:
            self.now.remove(spell)

    async def linger(self, verb: str) -> None:
        """Hold up a call that hangs, until its caller gives up, or is slow, and a caller who stands still."""
        for spell in [one for one in self.now if one.ill in _LINGERING and one.meets(verb)] if self.now else ():
            if spell.ill is Ill.STILL:
                _stand_still(verb)
                await asyncio.sleep(0)
                continue
            await asyncio.sleep(spell.seconds)
            if spell.ill is Ill.HANGING:
                raise Unreachable(f"{verb}: no answer within {spell.seconds:.0f} s")

    def before(self, verb: str) -> None:
        """Raise what stands between a call and its effect."""
        for spell in [one for one in self.now if one.meets(verb)] if self.now else ():
            if spell.ill is Ill.DEADLY_BEFORE:
                _die(verb)
                raise Unreachable(f"{verb}: whoever called is dead")  # the dead go on to their next await
            if spell.ill in {Ill.SILENT, Ill.HANGING}:
                raise spell.error or Unreachable(f"{verb}: no answer")

    def halved(self, verb: str) -> bool:
        """Tell whether a call hears of some things only."""
        return any(one.ill is Ill.HALF and one.meets(verb) for one in self.now)

    def after(self, verb: str) -> None:
        """Raise what stands between an effect and its caller."""
        for spell in [one for one in self.now if one.meets(verb)] if self.now else ():
            if spell.ill is Ill.DEADLY_AFTER:
                _die(verb)
            elif spell.ill is Ill.STILL_AFTER:
                _stand_still(verb)  # from its next await on
            elif spell.ill is Ill.DEAF:
                raise Unreachable(f"{verb}: the answer is lost")


class Failures:
    """Failures that wait for the next calls of a protocol's verbs."""

    def __init__(self, protocol: type, *spells: Spells) -> None:
        asynchronous = {name for name, verb in vars(protocol).items() if inspect.iscoroutinefunction(verb)}
        self._waiting: dict[str, list[_Failure]] = {verb: [] for verb in asynchronous - {"close"}}
        self._spells = spells

    def fail_next(self, verb: str, error: LcmError, *, times: int = 1, after_effect: bool = False) -> None:
        """Let the next calls of a verb fail: before their effect, or after it, as when an answer is lost."""
        assert verb in self._waiting, f"there is no verb {verb}"
        self._waiting[verb].append(_Failure(error, times, after_effect))

    async def linger(self, verb: str) -> None:
        """Hold up a call that hangs."""
        for one in self._spells:
            if one.now:
                await one.linger(verb)

    def before(self, verb: str) -> None:
        """Raise what stands between a call and its effect."""
        for one in self._spells:
            if one.now:
                one.before(verb)
        self._raise(verb, after_effect=False)

    def after(self, verb: str) -> None:
        """Raise what stands between an effect and its caller."""
        for one in self._spells:
            if one.now:
                one.after(verb)
        self._raise(verb, after_effect=True)

    def _raise(self, verb: str, *, after_effect: bool) -> None:
        if not (waiting := self._waiting[verb]):
            return
        failure = next((one for one in waiting if one.times and one.after_effect is after_effect), None)
        if failure:
            failure.times -= 1
            raise failure.error


def _stand_still(verb: str) -> None:
    host = HOST.get()
    if host is not None:
        host.place = verb
        host.pause()


def _die(verb: str) -> None:
    """Let the process die that made this call; the world's own calls go on."""
    host = HOST.get()
    if host is not None:
        host.place = verb
        host.kill()
