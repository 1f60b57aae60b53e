"""Checks that no port of a worker is used by two sessions, nor by a session and a foreign or edited lab.

A port in use counts once it was seen: `foreign_ports` of a worker are those that its monitor found on labs and no
session was given, `observed_ports` of a session those that its lab held when it was last looked at. From then on
nobody else is given them. A port that somebody took by hand and nobody has seen yet may be given away;
`ports_in_use_are_seen` says how soon it must have been seen.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerCondition
from lcm.sim.cml.engine import Cml
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState, is_live

SHARED_PORT: Final = "port shared by two live sessions"
PORTS: Final = range(2000, 8000)
"""The ports that CML serves to the outside."""
SEEN_GRACE: Final = timedelta(minutes=20)
"""Several polls of a CML that answers, with a change of leaders between them."""
_EVERY_MINUTES: Final = 5
_TAG: Final = re.compile(r"(?:serial|vnc|pat(?::tcp|:udp)?):(\d+)(?::.*)?")


def ports_are_not_shared(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that no two live sessions on a worker were given the same port."""
    after, worker_id = turn.after, turn.latest.status.worker_id
    if after is None or not after.status.allocated_ports or not is_live(after) or worker_id is None:
        return ()
    mine = frozenset(after.status.allocated_ports.values())
    others = _other_sessions(seen, after)
    shared = [(other, sorted(mine.intersection((other.status.allocated_ports or {}).values()))) for other in others]
    return [violation(SHARED_PORT, f"{both}", after, other) for other, both in shared if both]


def ports_in_use_are_not_given(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a session's ports are distinct, such as CML serves, and not known to be used by anybody else.

    What was known when they were given counts: a port that is taken by hand afterwards is nobody's fault.
    """
    after, before = turn.after, turn.before
    given = after.status.allocated_ports if after else None
    if after is None or not given or not is_live(after):
        return ()
    if before is not None and _assignment_of(before) == _assignment_of(after):
        return ()
    found = [(text, ports) for text, ports in _port_faults(seen, after, list(given.values())) if ports]
    return [violation(SHARED_PORT, f"{ports} {text}", after) for text, ports in found]


def ports_in_use_are_seen(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that each port that a lab has held for a while is a session's there or a foreign port of the worker.

    A CML that has not answered all the time is excused: what cannot be looked at is not seen.
    """
    if now.minute % _EVERY_MINUTES:
        return ()
    found: list[Violation] = []
    for worker in seen.workers.values():
        cml = stage.cml(worker.status.ec2.instance_id) if is_answering(worker, now) else None
        unseen = _ports_in_use(cml) - _known_ports(seen, worker) if cml else frozenset()
        found += _check_unseen(seen, worker, unseen, now)
    return found


def _port_faults(
    seen: ObservedState, session: LabletSession, given: Sequence[int]
) -> Iterator[tuple[str, Sequence[int]]]:
    mine, worker = frozenset(given), seen.workers.get(session.status.worker_id or "")
    yield "are its own twice", sorted(port for port in mine if given.count(port) > 1)
    yield "are none that CML serves", sorted(port for port in mine if port not in PORTS)
    yield "were seen with a stranger's lab", sorted(mine.intersection(worker.status.foreign_ports if worker else ()))
    for other in _other_sessions(seen, session):
        drifted = sorted(mine.intersection((other.status.observed_ports or {}).values()))
        yield f"were seen with the lab of {other.metadata.name}", drifted


def _assignment_of(session: LabletSession) -> object:
    return session.status.worker_id, session.status.allocated_ports


def _other_sessions(seen: ObservedState, session: LabletSession) -> Iterable[LabletSession]:
    here = seen.on_worker[session.status.worker_id or ""]
    return [other for uid, other in here.items() if uid != session.metadata.uid]


def is_answering(worker: LabWorker, now: datetime) -> bool:
    """Return whether a worker serves, and its CML has answered for a while."""
    known = find_condition(worker.status.conditions, WorkerCondition.REACHABLE)
    answers = known is not None and known.status is Truth.TRUE and now - known.last_transition_at > SEEN_GRACE
    return worker.status.phase in HOSTING_PHASES and answers


def _ports_in_use(cml: Cml) -> frozenset[int]:
    tags = (tag for lab in cml.labs for node in lab.nodes.values() for tag in node.spec.tags)
    return frozenset(int(found[1]) for tag in tags if (found := _TAG.fullmatch(tag)))


def _known_ports(seen: ObservedState, worker: LabWorker) -> frozenset[int]:
    given = ((one.status.allocated_ports or {}).values() for one in seen.on_worker[worker.metadata.uid].values())
    return frozenset(worker.status.foreign_ports).union(*given)


def _check_unseen(seen: ObservedState, worker: LabWorker, ports: frozenset[int], now: datetime) -> Sequence[Violation]:
    """Record since when ports are unseen, and return a violation for those that have been so for long."""
    before = seen.unseen_ports.pop(worker.metadata.uid, {})
    since = {port: before.get(port, now) for port in sorted(ports)}
    if since:
        seen.unseen_ports[worker.metadata.uid] = since
    old = [port for port, at in since.items() if now - at > SEEN_GRACE]
    text = f"{old} are in use on {worker.metadata.name}, and nobody has seen it"
    return [violation(SHARED_PORT, text, worker)] if old else ()
