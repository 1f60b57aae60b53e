"""Which of a worker's ports a session gets. Pure; whoever puts a session on a worker asks here, and commits it there.

A session's ports begin at a place of its own within the range, so that it gets the same ones when it is tried again,
also on another worker, unless somebody has them.
"""

from collections.abc import Collection, Iterable, Mapping
from zlib import crc32

from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.topology.ports import OPEN_PORTS


def taken_on(worker: LabWorker, sessions: Iterable[LabletSession]) -> frozenset[int]:
    """Say which ports of a worker are not free: given to sessions there, seen on their labs, or on strangers' labs.

    What a lab holds that it was not given drifted or was left behind, and is in use all the same.
    """
    status = (session.status for session in sessions)
    held = (ports for one in status for ports in (one.allocated_ports, one.observed_ports) if ports)
    return frozenset(worker.status.foreign_ports).union(*(ports.values() for ports in held))


def free_ports(taken: Collection[int]) -> int:
    """Count what is left of a worker's ports."""
    return len(OPEN_PORTS) - len({port for port in taken if port in OPEN_PORTS})


def allocate(
    names: Collection[str], *, taken: Collection[int], seed: str, preferred: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Give each name a port of its own; None if there are too few. What is preferred is given where it is free.

    The same question has the same answer; `seed` says whose ports they are.
    """
    used = set(taken)
    if len(names) > free_ports(used):
        return None
    given: dict[str, int] = {}
    for name in sorted(names):
        port = (preferred or {}).get(name, 0)
        if port in OPEN_PORTS and port not in used:
            given[name] = port
            used.add(port)
    first = crc32(seed.encode()) % len(OPEN_PORTS)
    rest = (port for port in (*OPEN_PORTS[first:], *OPEN_PORTS[:first]) if port not in used)
    for name in sorted(set(names) - set(given)):
        given[name] = next(rest)
    return given
