"""Which of a worker's ports a session gets. Pure; called when a session is placed on a worker, and committed there.

A session's ports begin at a position of its own within the range, so that it gets the same ones when it is tried
again, also on another worker, unless they are in use.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from zlib import crc32

from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.topology.ports import OPEN_PORTS


def ports_in_use(worker: LabWorker, sessions: Iterable[LabletSession]) -> frozenset[int]:
    """Return the ports of a worker in use: allocated to sessions, seen on their labs, or on labs no session made.

    A port that a lab has without an allocation drifted or was left behind, and is in use all the same.
    """
    status = (session.status for session in sessions)
    held = (ports for one in status for ports in (one.allocated_ports, one.observed_ports) if ports)
    return frozenset(worker.status.foreign_ports).union(*(ports.values() for ports in held))


def count_free_ports(taken: Collection[int]) -> int:
    """Return how many of a worker's ports are free."""
    return len(OPEN_PORTS) - len({port for port in taken if port in OPEN_PORTS})


def allocate(
    names: Collection[str], *, taken: Collection[int], seed: str, preferred: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Choose a port for each name; None if there are too few. A preferred port is used where it is free.

    The same arguments give the same result; `seed` identifies whose ports they are.
    """
    used = set(taken)
    if len(names) > count_free_ports(used):
        return None
    given: dict[str, int] = {}
    for name in sorted(names):
        port = (preferred or {}).get(name, 0)
        if port in OPEN_PORTS and port not in used:
            given[name] = port
            used.add(port)
    first = crc32(seed.encode()) % len(OPEN_PORTS)
    rest = (port for port in chain(OPEN_PORTS[first:], OPEN_PORTS[:first]) if port not in used)
    for name in sorted(set(names) - set(given)):
        given[name] = next(rest)
    return given
