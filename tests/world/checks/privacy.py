"""Checks that nobody sees or changes what is another's, and that no secret is shown to anybody."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from lcm.model.access.identity import Caller, Role
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation, ReservationPhase
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


def feed_shows_their_own(seen: ObservedState, owner: str, shown: Collection[str]) -> Sequence[Violation]:
    """Check that a person's feed shows every booking with a time that is theirs and is not over, and nothing else.

    Sessions of a class are shown by it. `shown` are uids.
    """
    mine = {uid: one for uid, one in seen.sessions.items() if one.spec.owner == owner}
    whole = {uid: one for uid, one in seen.reservations.items() if one.spec.owner == owner}
    timed = {
        uid for uid, one in mine.items() if uid in seen.live and one.spec.timeslot_start and not one.metadata.owner
    }
    booked = {uid for uid, one in whole.items() if one.status.phase is ReservationPhase.PROMISED}
    lacking = [f"{owner}'s feed lacks what they booked ({uid})" for uid in sorted((timed | booked) - {*shown})]
    foreign = [
        f"{owner}'s feed shows what is not theirs ({uid})" for uid in sorted({*shown} - mine.keys() - whole.keys())
    ]
    return [Violation(ANOTHERS, text, ()) for text in lacking + foreign]


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
