"""Invitations: a link for whoever is to use one session, without an account.

Made by `api` for a session's owner and for staff. An invitation is a token of the role guest whose reach is one seat:
listed, revocable, expiring, and stored as its SHA-256 like every other. Whoever opens its link gets a browser's session
that ends with it. It is for the learner of the moment: once the session is for somebody else, it opens nothing.
"""

from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.access.tokens import Credential, Tokens
from lcm.control.objects.writer import Writer
from lcm.model.access.identity import AccessToken, Reach, Role
from lcm.model.access.learner import learner_of
from lcm.model.access.secret import Secret
from lcm.model.base.errors import NoRoom, Refused
from lcm.model.kinds.session import CLEAN_UP_TIME, SESSION_MACHINE, LabletSession

MOST_INVITATIONS: Final = 10
"""How many invitations to one seat can be valid at once."""
_log: Final = structlog.get_logger()


def guest_name(session_id: str) -> str:
    """Return the name of whoever is invited to a session: it tells nothing about the person."""
    return f"guest+{session_id}"


async def invite(
    tokens: Tokens,
    session: LabletSession,
    *,
    writer: Writer,
    made_with: Credential | None,
    life: timedelta | None = None,
) -> tuple[Secret, AccessToken]:
    """Make an invitation to a session, which ends with its slot and the clean-up, or sooner.

    It ends also with the credential that it is made with. Raise Forbidden for a session that is another's to manage,
    Refused for one that is over, NoRoom when there are too many.
    """
    writer.require_managed(session, "invite")
    now, name = writer.clock.now(), guest_name(session.metadata.uid)
    until = _find_end(session, now)
    if session.status.phase in SESSION_MACHINE.final or until <= now:
        raise Refused(f"{session.metadata.name} is over: nobody can be invited to it")
    if tokens.count(name, session=False) >= MOST_INVITATIONS:
        raise NoRoom(f"{session.metadata.name} has {MOST_INVITATIONS} invitations; revoke one first: lcm token list")
    ends = [until, now + life if life else until, (made_with.bound if made_with else None) or until]
    secret, token = await tokens.make(
        name,
        Role.GUEST,
        expires_at=min(ends),
        made_by=writer.caller.name,
        made_with=made_with,
        writer=writer,
        reach=Reach(email=learner_of(session), seat=session.metadata.uid),
    )
    _log.info("invitation made", id=token.id, session=session.metadata.name)
    return secret, token


def _find_end(session: LabletSession, now: datetime) -> datetime:
    """Return when a session is cleaned up; of one that waits, when it would be if it began as late as it may."""
    spec, status = session.spec, session.status
    latest = max(now, spec.give_up_at or now) + timedelta(minutes=spec.duration_minutes or 0)
    return (status.ends_at or spec.timeslot_end or latest) + CLEAN_UP_TIME
