"""Checks that nobody sees or changes what is another's, and that no secret is shown to anybody."""

from collections.abc import Iterable, Sequence
from typing import Final

from lcm.model.access.identity import Caller, Role
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import PREBUILT_OWNER, LabletSession
from lcm.sim.world.scenario import SECRET
from lcm.sim.world.world import Violation
from lcm.store.base import Change
from world.checks.violation import violation
from world.observed import Commit, ObservedState

ANOTHERS: Final = "a person seeing or touching another's session"
LEAK: Final = "a secret in any output"
_LEAKED: Final = SECRET.encode()


def shown_is_their_own(caller: Caller, resources: Iterable[Resource]) -> Sequence[Violation]:
    """Check that somebody without a staff role was shown only their own sessions and reservations."""
    if caller.role not in {Role.USER, Role.AUTHOR}:
        return ()
    return [
        violation(ANOTHERS, f"{caller.name} was shown what is {one.spec.owner}'s", one)
        for one in resources
        if isinstance(one, LabletSession | Reservation) and one.spec.owner != caller.name
    ]


def touched_is_their_own(_seen: ObservedState, commit: Commit) -> Sequence[Violation]:
    """Check that somebody without a staff role changes only their own sessions and reservations."""
    audit = commit.audit
    if audit is None or audit.role not in {Role.USER, Role.AUTHOR}:
        return ()
    owned = [turn.before or turn.latest for turn in commit.turns]
    return [
        violation(ANOTHERS, f"{audit.who} changed what is {one.spec.owner}'s", one)
        for one in owned
        if isinstance(one, LabletSession | Reservation) and one.spec.owner not in (audit.who, PREBUILT_OWNER)
    ]


def committed_no_secret(changes: Sequence[Change]) -> Sequence[Violation]:
    """Check that the secret of this world is in no key, document or event."""
    return [
        Violation(LEAK, f"a secret is stored in {change.key}", ())
        for change in changes
        if (change.entry is not None and _LEAKED in change.entry.value) or SECRET in change.key
    ]


def told_no_secret(where: str, text: str) -> Sequence[Violation]:
    """Check that the secret of this world is in no text that anybody reads."""
    return (
        [Violation(LEAK, f"a secret in {where}: {text.replace(SECRET, '(the secret)')[:200]}", ())]
        if SECRET in text
        else ()
    )
