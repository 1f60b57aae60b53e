"""Somebody who works in a lab, saves it or ends it, and continues from there, twice in a row."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from lcm.control.plane.protocol import Ref, Save, Terminate
from lcm.model.base.resource import Metadata
from lcm.model.kinds.saved_lab import ContinueFrom
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from world.people.visitors import Visitors

_EVERY_SECONDS: Final = 3 * 3_600
_LOOK_SECONDS: Final = 20
_PATIENCE: Final = timedelta(hours=1)
_MINUTES: Final = 30
_TIMES: Final = 3


class Returner(Visitors):
    """Ruth, who comes back."""

    async def come_back(self) -> None:
        """Begin a lab once in a while, and continue it."""
        while True:
            await self.wait_about(_EVERY_SECONDS)
            if self.is_late:
                return
            self._number += 1
            await self._work(f"{self.caller.name}-{self._number}")

    async def _work(self, name: str) -> None:
        source: ContinueFrom | None = None
        for turn in range(_TIMES):
            if self.is_late:
                return
            made = await self._book(f"{name}-{turn}", source)
            if made is None or await self._wait_for(made, lambda one: one.status.phase is SessionPhase.RUNNING) is None:
                return
            self._type_something(made.metadata.uid, f"hostname {name}-{turn}")
            source = await (self._save(made) if self.dice.random() < 0.5 else self._end(made))
            if source is None:
                return

    async def _book(self, name: str, source: ContinueFrom | None) -> LabletSession | None:
        lab: str = self._choose_lab() if source is None else self._family
        self._family: str = lab.partition(":")[0]
        give_up = self.world.clock.now() + _PATIENCE
        spec = LabletSessionSpec(definition=lab, duration_minutes=_MINUTES, give_up_at=give_up, continue_from=source)
        session = LabletSession(metadata=Metadata(name=name), spec=spec)
        return await self.want(f"continue as {name}", lambda plane: plane.create(session, request=name))

    async def _save(self, session: LabletSession) -> ContinueFrom | None:
        name, ref = session.metadata.name, Ref(LabletSession, session.metadata.name)
        asked = await self.want(
            f"save {name}", lambda plane: plane.act(ref, Save(name="half-way"), request=f"{name}-s")
        )
        if asked is None:
            return None
        found = await self._wait_for(session, lambda one: one.status.save_request is None)
        saved = found is not None and any(one.name == "save-half-way.yaml" for one in found.status.artifacts)
        return ContinueFrom(session=name, save="half-way") if saved else None

    async def _end(self, session: LabletSession) -> ContinueFrom | None:
        name, ref = session.metadata.name, Ref(LabletSession, session.metadata.name)
        await self.want(f"end {name}", lambda plane: plane.act(ref, Terminate(), request=f"{name}-t"))
        found = await self._wait_for(session, self.witness.seen.is_over)
        return ContinueFrom(session=name) if found is not None and found.status.artifacts else None

    async def _wait_for(self, session: LabletSession, so: Callable[[LabletSession], bool]) -> LabletSession | None:
        """Wait until something is so of a session; None if it ends first, or that takes too long."""
        until, uid = self.world.clock.now() + _PATIENCE, session.metadata.uid
        while self.world.clock.now() < until:
            found = self.witness.seen.sessions.get(uid)
            if found is None or so(found):
                return found
            if self.witness.seen.is_over(found):
                return None
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    def _type_something(self, uid: str, configuration: str) -> None:
        """Change the configuration of a node inside, as somebody does at its console."""
        found = self.witness.seen.sessions.get(uid)
        worker = self.witness.seen.workers.get(found.status.worker_id or "") if found else None
        cml = self.world.stage.cml(worker.status.ec2.instance_id) if worker else None
        lab = next((one for one in cml.labs if found and one.id == found.status.cml_lab_id), None) if cml else None
        for node in list(lab.nodes.values())[:1] if lab else ():
            node.running = [msgspec.structs.replace(one, content=configuration) for one in node.running or ()]
