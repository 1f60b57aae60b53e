"""Lab files: checked without holding the loop; those that bookings continue from are remembered for a while.

`control.admission.topologies` has files checked, `control.admission.continuation` asks for saved ones. A booking is
admitted while others wait for their turn, and is tried again when it loses a race: a file that was read before is not
fetched and parsed in that time. What a digest stands for never changes, so nothing here is ever outdated; the least
used are forgotten.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from lcm.model.base.errors import Fault, Gone, Invalid, Stuck, TooLarge
from lcm.model.kinds.definition import PortTemplate, Topology
from lcm.model.topology.lab import ParsedLab, parse_lab, rewrite
from lcm.model.topology.lab_text import MAX_BYTES
from lcm.model.topology.ports import OPEN_PORTS
from lcm.model.topology.saved import restore_placeholders
from lcm.providers.protocols.artifacts import Artifacts

_INLINE_BYTES: Final = 4_000
"""Up to this size a lab file is checked at once, which takes about ten milliseconds."""
_CHECKING: Final = ThreadPoolExecutor(1, thread_name_prefix="lab-files")
"""Checks larger ones, one after the other: several at once would leave little time to everything else."""
_LABS_KEPT: Final = 16
_HELD_FOR: Final = timedelta(hours=1)
"""How long a file counts as just stored: much less than the sweep of files leaves to who is to refer to one."""


@dataclass(frozen=True, slots=True)
class HeldLab:
    """A lab file that is stored under its digest, and its contents."""

    topology: Topology
    lab: ParsedLab
    stored_at: datetime


_T = TypeVar("_T")
_L = TypeVar("_L", HeldLab, ParsedLab)


def check_lab_file(data: bytes) -> ParsedLab:
    """Read a lab file and rewrite it once as a trial. Raise TooLarge, or Invalid with the faults and their lines."""
    lab = parse_lab(data)
    if not lab.node_count:
        raise Invalid(Fault("nodes", "there are none, so its labs would never run", "add a node"))
    names = sorted(lab.port_template)
    if len(names) > len(OPEN_PORTS):
        raise Invalid(Fault("nodes", f"{len(names)} ports", f"a worker has {len(OPEN_PORTS)}; use fewer port tags"))
    rewrite(data, dict(zip(names, OPEN_PORTS, strict=False)))
    return lab


async def run_on_file(data: bytes, work: Callable[[bytes], _T]) -> _T:
    """Work on a lab file; on a large one in a thread, so that it does not block the event loop."""
    if len(data) <= _INLINE_BYTES:
        return work(data)
    return await asyncio.get_running_loop().run_in_executor(_CHECKING, work, data)


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
