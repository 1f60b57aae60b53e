"""Labs that carry our mark, but whose session the store does not know, or knows elsewhere: they are held, not removed.

After a restore, labs that were booked or started after the backup are like that, and people may be working in them.
Each is collected at once, under the uid in its title, and an alert names it. It is removed after a person's word
(`RemoveLab`), or after a long grace, and is collected once more before that. Used by `sweeping.LabSweep`. What is held
since when is in annotations of the worker, so that the next leader goes on counting.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from lcm.control.objects.actions import HELD_LAB, REMOVE_HELD_LAB
from lcm.control.plane.protocol import Plane, ref_of
from lcm.controllers.session.effects import EFFECT_SECONDS
from lcm.controllers.session.progress import held_name
from lcm.model.base.clock import Clock
from lcm.model.base.errors import TooLarge
from lcm.model.base.resource import shorten_text
from lcm.model.kinds.worker import LabWorker
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.providers.protocols.artifacts import Artifacts
from lcm.providers.protocols.labhost import LabHost, LabSummary
from lcm.providers.protocols.permit import check_permit

HOLD: Final = timedelta(days=7)
"""How long a lab of an unknown session is held unless a person says what becomes of it."""
UNKNOWN_LAB: Final = "LabOfUnknownSession"
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class HeldLabs:
    """Collects and holds labs whose session is unknown."""

    plane: Plane
    artifacts: Artifacts
    clock: Clock

    async def settle(self, host: LabHost, lab: LabSummary, worker: LabWorker) -> None:
        """Hold a lab, or remove it when its time is over or a person said so."""
        now, name = self.clock.now(), HELD_LAB + lab.lab_id
        said = worker.metadata.annotations.get(name, "")
        since = _read_moment(said)
        if said == REMOVE_HELD_LAB or (since is not None and now >= since + HOLD):
            await self._collect(host, lab)
            await remove_lab(host, lab, worker)
            return
        if since is None:
            await self._collect(host, lab)
            await self._annotate(worker, {name: f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"})
            _log.warning("lab of unknown session held", worker=worker.metadata.name, lab=lab.lab_id, title=lab.title)
        await self.plane.raise_alert(ref_of(worker), unknown_lab_alert(worker, lab))

    async def forget_others(self, worker: LabWorker, left: Collection[str]) -> None:
        """Forget the labs of a worker that are gone, or whose session is back; without any the alert is cleared."""
        held = {name for name in worker.metadata.annotations if name.startswith(HELD_LAB)}
        over = {name for name in held if name.removeprefix(HELD_LAB) not in left}
        if over and over == held:
            await self.plane.clear_alert(ref_of(worker), UNKNOWN_LAB)
        if over:
            await self._annotate(worker, dict.fromkeys(sorted(over)))

    async def _annotate(self, worker: LabWorker, annotations: dict[str, str] | dict[str, None]) -> None:
        await self.plane.patch(ref_of(worker), {"metadata": {"annotations": annotations}})

    async def _collect(self, host: LabHost, lab: LabSummary) -> None:
        """Save the lab with its present configurations. One that is too large to be saved is only logged."""
        async with asyncio.timeout(EFFECT_SECONDS):
            text = await host.topology(lab.lab_id)
        check_permit()
        try:
            await self.artifacts.put_temporary(held_name(lab), text.encode())
        except TooLarge as error:
            _log.warning("lab of unknown session not collected", title=lab.title, error=str(error))


async def remove_lab(host: LabHost, lab: LabSummary, worker: LabWorker) -> None:
    """Remove a lab that no session owns."""
    check_permit()
    async with asyncio.timeout(EFFECT_SECONDS):
        await host.remove(lab.lab_id)
    _log.warning("lab of no session removed", worker=worker.metadata.name, title=lab.title)


def unknown_lab_alert(worker: LabWorker, lab: LabSummary) -> AlertFinding:
    """Return the alert about the labs that are held on a worker; it names the first that was found."""
    name = worker.metadata.name
    text = (
        f"lab {lab.lab_id} on {name}, {lab.title}, is of a session that is not recorded here, as after a restore; it "
        f"is saved as {held_name(lab)} and held for {HOLD.days} days. `lcm remove-lab {name} {lab.lab_id}` removes it "
        f"now; rename it on CML to keep it. Annotations of the worker name all that are held"
    )
    return AlertFinding(
        alert=UNKNOWN_LAB, severity=Severity.CRITICAL, reason="SessionUnknown", message=shorten_text(text)
    )


def _read_moment(text: str) -> datetime | None:
    """Return since when a lab is held; None if that is not said, or not readable."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
