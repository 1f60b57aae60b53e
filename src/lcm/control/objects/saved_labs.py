"""Lab files that bookings continue from: read once, kept under their digests, and remembered for a while.

`control.admission.continuation` asks for them. A booking is admitted while others wait for their turn, and is tried
again when it loses a race: a file that was read before is not fetched and parsed in that time. What a digest stands
for never changes, so nothing here is ever outdated; the least used are forgotten.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from lcm.control.admission.topologies import check_lab_file, run_on_file
from lcm.model.base.errors import Gone, Invalid, Stuck, TooLarge
from lcm.model.kinds.definition import PortTemplate, Topology
from lcm.model.topology.lab import ParsedLab, parse_lab
from lcm.model.topology.lab_text import MAX_BYTES
from lcm.model.topology.saved import restore_placeholders
from lcm.providers.protocols.artifacts import Artifacts

_LABS_KEPT: Final = 16
_HELD_FOR: Final = timedelta(hours=1)
"""How long a file counts as just stored: much less than the sweep of files leaves to who is to refer to one."""


@dataclass(frozen=True, slots=True)
class HeldLab:
    """A lab file that is stored under its digest, and its contents."""

    topology: Topology
    lab: ParsedLab
    stored_at: datetime


_L = TypeVar("_L", HeldLab, ParsedLab)


class SavedLabs:
    """Lab files that were read lately."""

    def __init__(self, most: int = _LABS_KEPT) -> None:
        self._most = most
        self._held: OrderedDict[str, HeldLab] = OrderedDict()
        self._defined: OrderedDict[str, ParsedLab] = OrderedDict()

    async def hold(
        self,
        key: str,
        read: Callable[[], Awaitable[bytes]],
        template: PortTemplate,
        artifacts: Artifacts,
        now: datetime,
    ) -> HeldLab:
        """Store a saved lab under its digest, with the names of its ports in `template`, and return its contents.

        The file is not removed within a day, nor while a session refers to it. Raise Invalid or TooLarge for one that
        could not be started.
        """
        known = self._held.get(key)
        if known is None or now - known.stored_at >= _HELD_FOR:
            data = await run_on_file(await read(), lambda saved: restore_placeholders(saved, template))
            lab = await run_on_file(data, check_lab_file)
            stored = await artifacts.put(data)
            known = HeldLab(Topology(uri=stored.uri, digest=stored.digest), lab, now)
        _keep(self._held, key, known, self._most)
        return known

    async def read_defined(self, artifacts: Artifacts, topology: Topology) -> ParsedLab | None:
        """Read the lab of a definition; None if its file cannot be read now."""
        key = topology.digest or topology.uri
        if key in self._defined:
            return self._defined[key]
        try:
            data = await artifacts.get(topology.uri, digest=topology.digest, limit_bytes=MAX_BYTES)
            lab = await run_on_file(data, parse_lab)
        except (Gone, Stuck, Invalid, TooLarge):
            return None
        _keep(self._defined, key, lab, self._most)
        return lab


def _keep(known: OrderedDict[str, _L], key: str, new: _L, most: int) -> None:
    known[key] = new
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)
