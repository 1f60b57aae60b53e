"""No worker holds more than it has, no seat more than its template, and no port is two sessions'."""

from collections.abc import Iterable, Sequence

from lcm.model.capacity import Profile, exceeded
from lcm.model.session import LabletSession
from lcm.model.worker import LabWorker
from lcm.sim.world.checks.violation import Violation, violation
from lcm.sim.world.seen import Seen, Turn

OVERCOMMIT = "over-committed worker"
SHARED_PORT = "port shared by two live sessions"


def worker_is_not_overcommitted(seen: Seen, turn: Turn[LabletSession]) -> Sequence[Violation]:
    """See that the claims of a worker's live sessions fit into what it has, at every moment."""
    worker = seen.workers.get(turn.now.status.worker_id or "")
    if turn.after is None or worker is None or worker.status.capacity is None:
        return ()
    sessions = seen.on_worker[worker.metadata.uid].values()
    over = _over(worker, [one for one in sessions if one.status.claim])
    return [violation(OVERCOMMIT, f"{worker.metadata.name}: {over}", worker, *sessions)] if over else ()


def _over(worker: LabWorker, sessions: Iterable[LabletSession]) -> str:
    assert worker.status.capacity is not None, "asked before"
    profile = Profile.of(one.status.claim for one in sessions if one.status.claim)
    for moment, level in zip(profile.moments, profile.levels, strict=False):
        if short := exceeded(level, worker.status.capacity):
            return f"{', '.join(short)} at {moment}"
    return ""


def ports_are_not_shared(seen: Seen, turn: Turn[LabletSession]) -> Sequence[Violation]:
    """See that no two live sessions on a worker have a port in common."""
    if turn.after is None or not turn.after.status.allocated_ports:
        return ()
    mine = set(turn.after.status.allocated_ports.values())
    return [
        violation(SHARED_PORT, f"{sorted(mine & theirs)}", turn.after, other)
        for uid, other in seen.on_worker[turn.after.status.worker_id or ""].items()
        if uid != turn.after.metadata.uid and mine & (theirs := set((other.status.allocated_ports or {}).values()))
    ]
