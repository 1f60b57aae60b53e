"""Checks that sessions are only where they may be: in their region, and with a slot on no machine that is only lent."""

from collections.abc import Iterator, Sequence
from typing import Final

from lcm.model.kinds.session import LabletSession, is_asap
from lcm.model.kinds.worker import AwsSpec, LabWorker
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState

ELSEWHERE: Final = "a session outside of its required region"
LENT: Final = "a timed or unwilling session on a machine that is only lent"


def place_is_as_wished(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check the worker and the planned worker that a session gets: their region, and whether they are only lent."""
    after = turn.after
    if after is None:
        return ()
    return [found for aws in _new_places(seen, turn, after) for found in _check_place(after, aws)]


def suits_place(session: LabletSession, worker: LabWorker) -> bool:
    """Return whether a session may be on a worker, by its region and its market."""
    return not _check_place(session, worker.spec.aws)


def place_wishes(session: LabletSession) -> tuple[str | None, str | None, bool]:
    """Return what a session wishes of its place: where one fits, so does another of the same wishes."""
    return session.spec.region_required, session.spec.region_preferred, session.spec.allow_spot


def _new_places(seen: ObservedState, turn: ObservedChange[LabletSession], after: LabletSession) -> Iterator[AwsSpec]:
    status, before = after.status, turn.before.status if turn.before else None
    if status.worker_id is not None and (before is None or before.worker_id != status.worker_id):
        worker = seen.workers.get(status.worker_id)
        if worker is not None:
            yield worker.spec.aws
    if status.seat is not None and (before is None or before.seat != status.seat):
        known = seen.pool(status.seat.pool, after.metadata.namespace)
        if known is not None:
            yield known[1].spec.worker.aws


def _check_place(session: LabletSession, aws: AwsSpec) -> Sequence[Violation]:
    spec, found = session.spec, []
    if spec.region_required not in (None, aws.region):
        found.append(violation(ELSEWHERE, f"it must be in {spec.region_required}, and is in {aws.region}", session))
    if aws.market == "spot" and not (is_asap(session) and spec.allow_spot):
        found.append(violation(LENT, "its machine may be taken away at any time", session))
    return found
