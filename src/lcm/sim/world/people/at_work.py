"""Somebody who uses a lab while it runs: their activity there is all that CML knows of them."""

import asyncio
from typing import Final

from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.sim.time.chance import Chance
from lcm.sim.world.checked_world import CheckedWorld

_EVERY_SECONDS: Final = 900


async def use_lab(world: CheckedWorld, session: LabletSession, dice: Chance) -> None:
    """Use a session's lab once in a while, as long as the session lasts."""
    uid, seen = session.metadata.uid, world.witness.seen
    while not seen.is_over(seen.sessions[uid]):
        await asyncio.sleep(dice.expovariate(1 / _EVERY_SECONDS))
        found = seen.sessions[uid]
        worker = seen.workers.get(found.status.worker_id or "")
        cml = world.stage.cml(worker.status.ec2.instance_id) if worker else None
        if cml is not None and cml.is_up and found.status.phase is SessionPhase.RUNNING:
            cml.telemetry.record("export_lab", lab_id=found.status.cml_lab_id)
