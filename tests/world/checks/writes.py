"""Checks that acknowledged writes last: nothing is removed without a reason, and nothing is put back."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lcm.control.delivery.events import phase_of
from lcm.control.objects.records import key_of
from lcm.model.kinds.registry import KINDS, Resource
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import Commit, ObservedChange, ObservedState

LOST: Final = "acknowledged write lost"
RESTLESS: Final = "an object is changed to and fro"
MOST_CHANGES: Final = 600
"""The most changes of one object in an hour; a booting lab is reported every five seconds."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody was told that an object is as they wanted it; `removed`: that it is, or will be, gone."""

    at: datetime
    resource: Resource
    what: str
    removed: bool = False


def wish_is_not_put_back(_seen: ObservedState, turn: ObservedChange[Resource]) -> Sequence[Violation]:
    """Check that a spec changes only with its generation, which only grows, and that a deletion is not forgotten.

    Else an older spec was written over a newer one.
    """
    before, after = turn.before, turn.after
    if before is None or after is None or before.metadata.uid != after.metadata.uid:
        return ()
    old, new = before.metadata, after.metadata
    if new.generation < old.generation:
        return [violation(LOST, f"generation {old.generation} became {new.generation}", after)]
    if new.generation == old.generation and before.spec != after.spec:
        return [violation(LOST, f"its spec changed within generation {new.generation}", after)]
    if old.deletion_timestamp is not None and new.deletion_timestamp is None:
        return [violation(LOST, "it was to be deleted, and that is forgotten", after)]
    return ()


def nothing_goes_without_reason(_seen: ObservedState, commit: Commit) -> Sequence[Violation]:
    """Check that an object is removed only on request, after a requested deletion, or into the archive."""
    gone = [turn.before for turn in commit.turns if turn.after is None and turn.before is not None]
    asked = commit.archived or commit.audit is not None
    return [violation(LOST, "it was removed", one) for one in gone if not asked and not _had_ended(one)]


def is_kept(seen: ObservedState, told: Acknowledgement) -> Sequence[Violation]:
    """Check an acknowledgement: the object is there, no older than acknowledged, or was removed by a rule."""
    wanted = told.resource
    key, uid = key_of(wanted), wanted.metadata.uid
    found = seen.objects.get(key)
    if found is None or found.metadata.uid != uid:
        return () if uid in seen.removed else [violation(LOST, f"{told.what}: it is not there", wanted)]
    if told.removed and found.metadata.deletion_timestamp is None:
        return [violation(LOST, f"{told.what}: it is there and stays", wanted)]
    if seen.revisions[key] < wanted.metadata.resource_version:
        return [violation(LOST, f"{told.what}: no commit has made it so", wanted)]
    old = found.metadata.generation < wanted.metadata.generation
    other = found.metadata.generation == wanted.metadata.generation and found.spec != wanted.spec
    return [violation(LOST, f"{told.what}: it is {found.spec}", wanted)] if old or other else ()


def _had_ended(resource: Resource) -> bool:
    """Return whether an object that was to be deleted had ended, or ended with this very commit."""
    machine = KINDS[resource.kind].machine
    if resource.metadata.deletion_timestamp is None:
        return False
    phase = phase_of(resource)
    return machine is None or any(
        phase in machine.final
        or (step.source == phase and step.target in machine.final and "taken_by" not in step.needs)
        for step in machine.steps
    )


def object_comes_to_rest(seen: ObservedState, turn: ObservedChange[Resource]) -> Sequence[Violation]:
    """Check that no object is changed back and forth: even with mishaps, an hour needs no more than `MOST_CHANGES`."""
    hour = turn.at.replace(minute=0, second=0, microsecond=0)
    often = seen.changes[turn.latest.metadata.uid, hour]
    return (
        [violation(RESTLESS, f"changed {often} times from {hour:%H:%M} on", turn.latest)]
        if often == MOST_CHANGES
        else ()
    )
