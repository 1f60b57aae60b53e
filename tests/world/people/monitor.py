"""What an operator's monitoring does: it asks each process once a minute what is wrong."""

import asyncio
from typing import Final

from lcm.model.access.identity import Role
from lcm.model.base.errors import LcmError
from lcm.sim.world.process import Process
from world.checked import CheckedWorld
from world.checks.restores import process_notices
from world.checks.store import full_store_is_told
from world.people.person import Person

_EVERY_SECONDS: Final = 60.0


class Monitor(Person):
    """Asks every process for its alerts."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world, "monitor", Role.ADMIN)

    async def watch_processes(self) -> None:
        """Ask every process once a minute, also in the quiet time."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            for process in self.world.alive:
                await self._ask_process(process)

    async def _ask_process(self, process: Process) -> None:
        alerts = None
        if process.is_reachable:
            try:
                alerts = await process.ask(self.caller, lambda plane: plane.alerts())
            except LcmError as error:
                self.witness.tell(f"{process.name} does not say what is wrong: {type(error).__name__}")
        now, stage = self.world.clock.now(), self.world.stage
        self.witness.add_violations(process_notices(self.witness.seen, process, now))
        self.witness.add_violations(full_store_is_told(self.witness.seen, stage, now, process.name, alerts))
