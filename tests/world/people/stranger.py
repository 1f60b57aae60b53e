"""Somebody who owns nothing here and tries to reach what others own: every attempt must be refused."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final

from lcm.control.plane.local import LocalPlane
from lcm.control.plane.protocol import Drain, Extend, Ref, Terminate
from lcm.model.base.errors import LcmError, Unreachable
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.world import Violation
from world.checked import CheckedWorld
from world.checks.privacy import ANOTHERS
from world.people.person import Person

_EVERY_SECONDS: Final = 1_800
SessionRef = Ref[LabletSession]
_TRIES: Final[tuple[tuple[str, Callable[[LocalPlane, SessionRef], Coroutine[Any, Any, object]]], ...]] = (
    ("extend", lambda plane, ref: plane.act(ref, Extend(minutes=30))),
    ("end", lambda plane, ref: plane.act(ref, Terminate())),
    ("delete", lambda plane, ref: plane.delete(ref)),
    ("change", lambda plane, ref: plane.patch(ref, {"spec": {"priority": 5}})),
    ("read the log of", lambda plane, ref: plane.logs(ref)),
    ("see the files of", lambda plane, ref: plane.artifacts(ref)),
    ("have explained", lambda plane, ref: plane.explain(ref)),
)


class Stranger(Person):
    """Mallory, who tries to reach what belongs to others."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world, "mallory")

    async def pry(self) -> None:
        """Try something once in a while."""
        while True:
            await self.wait_about(_EVERY_SECONDS)
            if self.is_late:
                return
            await self._list_objects(LabletSession)
            await self._list_objects(Reservation)
            await self._try_to_change()
            await self._read_calendar()

    async def _list_objects(self, kind: type[LabletSession] | type[Reservation]) -> None:
        try:
            found: Any = await self.ask(lambda plane: plane.list(kind))
        except Unreachable:
            return
        self.witness.check_shown(self.caller, found.items)

    async def _try_to_change(self) -> None:
        theirs = list(self.witness.seen.live_sessions())
        if not theirs:
            return
        victim = self.dice.choice(theirs)
        what, attempt = self.dice.choice(_TRIES)
        ref = Ref(LabletSession, self.dice.choice((victim.metadata.name, victim.metadata.uid)))
        await self._expect_refusal(f"{what} {victim.metadata.name}", lambda plane: attempt(plane, ref), victim)
        workers = list(self.witness.seen.workers.values())
        if workers:
            worker = Ref(LabWorker, self.dice.choice(workers).metadata.name)
            await self._expect_refusal(f"drain {worker.name}", lambda plane: plane.act(worker, Drain()))
        found = await self._ask_or_none(lambda plane: plane.get(ref))
        if found is not None:
            self.witness.check_shown(self.caller, [victim])

    async def _expect_refusal(
        self, what: str, question: Callable[[LocalPlane], Coroutine[Any, Any, object]], *about: Resource
    ) -> None:
        try:
            await self.ask(question)
        except LcmError:
            return
        self._report(f"mallory may {what}", *about)

    async def _read_calendar(self) -> None:
        now = self.world.clock.now()
        shown = await self._ask_or_none(
            lambda plane: plane.calendar(since=now - timedelta(hours=2), until=now + timedelta(hours=6))
        )
        names = [one.metadata.name for one in self.witness.seen.live_sessions()]
        text = repr(shown)
        for name in names:
            if f"'{name}'" in text:
                self._report(f"mallory finds {name} in the calendar")

    async def _ask_or_none(self, question: Callable[[LocalPlane], Coroutine[Any, Any, object]]) -> object | None:
        try:
            return await self.ask(question)
        except LcmError:
            return None

    def _report(self, text: str, *about: Resource) -> None:
        self.witness.add_violations(
            [Violation(ANOTHERS, text, tuple(f"{one.kind}/{one.metadata.name}" for one in about))]
        )
