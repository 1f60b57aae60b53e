"""Whose an object is: who sees a session, hears of it and manages it, and what a viewer is shown.

A session has an owner, who booked it, and may have a learner, whom it is for: `student_email`. A learner is whoever has
that address verified, or holds an invitation to this seat. Both see the session; only the owner manages it, except for
what `learner_may` allows. Used by `control` for every read and write, and by `api` for streams and consoles.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from lcm.model.access.identity import PERMISSIONS, SEES_ALL, Caller, Role, Verb
from lcm.model.access.mail_address import normalize_address
from lcm.model.access.secret import show_fingerprints
from lcm.model.base.event import Event
from lcm.model.base.machine import ACTORS, CONTROL_PLANE
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

R = TypeVar("R", bound=Resource)

LEARNER_VERBS: Final = frozenset({"observe-resources", "save"})
"""The actions of a session that every learner may request; others are in its `learner_may`."""
_SESSION: Final = LabletSession.__name__
_SOMEBODY: Final = "somebody"
_SESSION_NAME: Final = re.compile(r"\bsession [a-z0-9][^\s,;]*(?= is on it| on it)")
"""What people call their sessions, as the history of a worker tells it."""


def owner_of(resource: Resource) -> str | None:
    """Return the name of an object's owner; None for kinds that have no owner."""
    return resource.spec.owner if isinstance(resource, LabletSession | Reservation) else None


def learner_of(resource: Resource) -> str:
    """Return the address of the learner a session is for, as addresses are compared; empty if there is none."""
    return normalize_address(resource.spec.student_email) if isinstance(resource, LabletSession) else ""


def can_see(caller: Caller, resource: Resource) -> bool:
    """Return True if this caller may see the object.

    An object that the caller may not see is answered exactly like one that does not exist.
    """
    if caller.role not in PERMISSIONS[resource.kind][Verb.READ]:
        return False
    owner = owner_of(resource)
    return caller.role in SEES_ALL or owner is None or is_owner(caller, resource) or is_learner(caller, resource)


def is_owner(caller: Caller, resource: Resource) -> bool:
    """Return whether an object is the caller's own. Guests own nothing, whatever their name."""
    return caller.role is not Role.GUEST and owner_of(resource) == caller.name


def is_learner(caller: Caller, resource: Resource) -> bool:
    """Return whether a session is for this caller, by a verified address or by an invitation to this seat."""
    reach = caller.reach
    if not isinstance(resource, LabletSession) or not (reach.email or reach.seat):
        return False
    return reach.seat in ("", resource.metadata.uid) and learner_of(resource) == reach.email


def can_hear(caller: Caller, event: Event) -> bool:
    """Return whether a caller receives an event: of what is public, or of a session or reservation that it sees."""
    reach = caller.reach
    if caller.role is Role.GUEST:
        return bool(reach.seat) and event.session_id == reach.seat and event.learner == reach.email
    if caller.role in SEES_ALL or event.public:
        return True
    if caller.role not in PERMISSIONS[_SESSION][Verb.READ]:
        return False
    return event.owner == caller.name or (bool(event.learner) and event.learner == reach.email)


def can_manage(caller: Caller, resource: Resource, verb: str) -> bool:
    """Return whether a caller who sees an object may do this with it: a verb of the audit, such as `extend`."""
    if caller.role in SEES_ALL or not isinstance(resource, LabletSession) or is_owner(caller, resource):
        return True
    return verb in LEARNER_VERBS or verb in resource.spec.learner_may


def audience_of(resource: Resource) -> Iterator[str]:
    """Yield keys by which those who see an owned object find it; `audience_keys` has those of a caller."""
    yield f"owner {owner_of(resource)}"
    if isinstance(resource, LabletSession):
        learner = learner_of(resource)
        if learner:
            yield f"learner {learner}"
        yield f"seat {resource.metadata.uid} {learner}"


def audience_keys(caller: Caller) -> Iterator[str]:
    """Yield the keys of what a caller sees among what others own."""
    if caller.role is Role.GUEST:
        yield f"seat {caller.reach.seat} {caller.reach.email}"
    elif caller.role in PERMISSIONS[_SESSION][Verb.READ]:
        yield f"owner {caller.name}"
        if caller.reach.email:
            yield f"learner {caller.reach.email}"


def could_mention(caller: Caller, value: bytes) -> bool:
    """Return False if stored bytes certainly do not name a caller: a fast test that saves decoding most entries."""
    reach = caller.reach
    if reach.seat:
        return f'"{reach.seat}"'.encode() in value
    if f'"{caller.name}"'.encode() in value:
        return True
    # A domain may be stored in another script, and any part in another case; the part before it is ASCII.
    return bool(reach.email) and f'"{reach.email.rpartition("@")[0]}@'.encode() in value.lower()


def show_to(caller: Caller, resource: R) -> R:
    """Return an object as a caller is shown it: only services, which use secrets, see sealed texts."""
    if caller.role is Role.SERVICE:
        return resource
    shown = show_fingerprints(resource)
    return _hide_people(shown) if caller.role is Role.VIEWER else shown


def _hide_people(resource: R) -> R:
    """Return an object of the fleet without the names of those who changed it, and of sessions."""
    status: Any = resource.status
    changes = dict[str, object]()
    if history := getattr(status, "history", ()):
        changes["history"] = tuple(
            msgspec.structs.replace(one, by=_hide_name(one.by), reason=_SESSION_NAME.sub("a session", one.reason))
            for one in history
        )
    if pause := getattr(status, "pause", None):
        changes["pause"] = msgspec.structs.replace(pause, by=_hide_name(pause.by), reason="")
    return msgspec.structs.replace(resource, status=msgspec.structs.replace(status, **changes)) if changes else resource


def _hide_name(name: str) -> str:
    return name if name in ACTORS or name in ("", CONTROL_PLANE) else _SOMEBODY
