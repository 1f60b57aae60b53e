"""Somebody of the staff who reads everything there is once in a while; every read must have an answer."""

from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Final

from lcm.control.plane.local import LocalPlane
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import Role
from lcm.model.base.errors import LcmError
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import PreviewRequest
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.ledger import CostGroup
from world.checked import CheckedWorld
from world.checks.bills import parts_add_up
from world.people.person import Person
from world.scenarios import definition_name

_EVERY_SECONDS: Final = 2_700
_A_DAY: Final = timedelta(days=1)
_MOST_ROWS: Final = 5_000
_KINDS: Final = (LabWorker, LabWorkerPool, LabletDefinition, LabletSession, Reservation)
Reading = Callable[[LocalPlane], Coroutine[Any, Any, object]]


class Auditor(Person):
    """Audrey, an administrator who reads everything."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world, "audrey", Role.ADMIN)

    async def audit(self) -> None:
        """Read something of everything once in a while."""
        while True:
            await self.wait_about(_EVERY_SECONDS)
            if self.is_late:
                return
            for reading in self._readings(self.world.clock.now()):
                await self._read(reading)
            await self._add_up()

    async def _read(self, reading: Reading) -> None:
        try:
            await self.ask(reading)
        except (
            LcmError
        ) as error:  # what is gone by now is no fault; unexpected errors are noticed where they are raised
            self.witness.tell(f"{self.caller.name} reads: {type(error).__name__}")

    async def _add_up(self) -> None:
        """Read the ledger by some group: its parts are the bill."""
        now, by = self.world.clock.now(), self.dice.choice(list(CostGroup))
        try:
            found = await self.ask(lambda plane: plane.ledger(by=by, since=now - _A_DAY, until=now, limit=_MOST_ROWS))
        except LcmError as error:
            self.witness.tell(f"{self.caller.name} reads the ledger: {type(error).__name__}")
        else:
            self.witness.add_violations(parts_add_up(found))

    def _readings(self, now: datetime) -> list[Reading]:
        kind = self.dice.choice(_KINDS)
        lab = definition_name(self.dice.choice(self.world.scenario.labs))
        hour = timedelta(hours=1)
        readings: list[Reading] = [
            lambda plane: plane.list(kind),
            lambda plane: plane.list(LabletSession, archived=True),
            lambda plane: plane.alerts(),
            lambda plane: plane.licences(),
            lambda plane: plane.costs(since=now - 3 * hour, until=now),
            lambda plane: plane.calendar(since=now - hour, until=now + 6 * hour),
            lambda plane: plane.observations(Ref(LabletDefinition, lab)),
            lambda plane: plane.preview(PreviewRequest(definition=lab, duration_minutes=60)),
        ]
        return readings + self._about_sessions() + self._about_workers(now - hour)

    def _about_sessions(self) -> list[Reading]:
        session = self._choose(list(self.witness.seen.live_sessions()))
        if session is None:
            return []
        ref = Ref(LabletSession, session.metadata.name)
        return [
            lambda plane: plane.explain(ref),
            lambda plane: plane.logs(ref),
            lambda plane: plane.artifacts(ref),
        ]

    def _about_workers(self, since: datetime) -> list[Reading]:
        worker = self._choose(list(self.witness.seen.workers.values()))
        if worker is None:
            return []
        ref = Ref(LabWorker, worker.metadata.name)
        return [lambda plane: plane.telemetry(ref), lambda plane: plane.history(ref, since=since)]

    def _choose(self, found: "list[Any]") -> Resource | None:
        return self.dice.choice(found) if found else None
