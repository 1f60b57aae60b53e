"""Checks that an upgrade loses nothing that a newer version wrote, and disturbs nobody."""

import re
from collections.abc import Sequence
from typing import Final

from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.sim.world.newer_version import NEWER_FIELD
from lcm.sim.world.world import Violation
from lcm.store.base import Change
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState

UPGRADE: Final = "something lost or restarted by an upgrade"
_FACT: Final = re.compile(rf'"{NEWER_FIELD}":"([^"]*)"'.encode())
_NEWER: Final = NEWER_FIELD.encode()
_HEAD: Final = re.compile(rb"(\d+)/\d+\n")
_STARTED: Final = frozenset({SessionPhase.INSTANTIATING, SessionPhase.RUNNING})
_AGAIN: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED})


def newer_fields_are_kept(seen: ObservedState, changes: Sequence[Change]) -> Sequence[Violation]:
    """Check that whoever changes an object keeps the fields and the schema that a newer version gave it."""
    found = []
    for change in changes:
        before = seen.newer_facts.pop(change.key, None)
        if change.entry is None or (before is None and _NEWER not in change.entry.value):
            continue
        head = _HEAD.match(change.entry.value)
        facts, schema = frozenset(_FACT.findall(change.entry.value)), int(head[1]) if head else 0
        same = before is not None and before[0] == change.entry.created
        if before is not None and same and (not before[1] <= facts or schema < before[2]):
            lost = f"fields {sorted(before[1] - facts)}, schema {before[2]} became {schema}"
            found.append(Violation(UPGRADE, f"{change.key}: {lost}", (change.key,)))
        if facts:
            seen.newer_facts[change.key] = (change.entry.created, facts, schema)
    return found


def upgrade_restarts_nothing(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check, in a world where nothing happens but to our processes, that a lab that was begun is not begun again."""
    before, after = turn.before, turn.after
    if not seen.undisturbed or before is None or after is None:
        return ()
    again = before.status.phase in _STARTED and after.status.phase in _AGAIN
    if not again and after.status.retry_count <= before.status.retry_count:
        return ()
    return [violation(UPGRADE, f"{before.status.phase} -> {after.status.phase}: {after.status.last_error}", after)]
