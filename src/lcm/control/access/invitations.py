"""Invitations, a link for whoever is to use one session, without an account; and calendar feeds.

Made by `api` for a session's owner and for staff. An invitation is a token of the role guest whose reach is one seat:
listed, revocable, expiring, and stored as its SHA-256 like every other. Whoever opens its link gets a browser's session
that ends with it. It is for the learner of the moment: once the session is for somebody else, it opens nothing.

A calendar feed is a token too, with the role of whoever made it. Its secret is part of an address that calendar
programs read; it opens nothing else, and it ends with the credential that it was made with.
"""

from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.access.tokens import Credential, Tokens
from lcm.control.objects.writer import Writer
from lcm.model.access.identity import OWN_CALENDAR, AccessToken, Reach, Role
from lcm.model.access.learner import learner_of
from lcm.model.access.secret import Secret
from lcm.model.base.errors import NoRoom, Refused
from lcm.model.kinds.reservation import Reservation
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


MOST_FEEDS: Final = 10
"""How many calendar feeds one person can have at once."""
FEED_LIFE: Final = timedelta(days=366)


async def make_feed_token(
    tokens: Tokens,
    whole: Reservation | None,
    *,
    writer: Writer,
    made_with: Credential | None,
    life: timedelta = FEED_LIFE,
) -> tuple[Secret, AccessToken]:
    """Make the token of a calendar feed of a class, or without one of all that is the caller's.

    It ends also with the credential that it is made with. Raise NoRoom when the caller has too many feeds.
    """
    caller = writer.caller
    if tokens.count_feeds(caller.name) >= MOST_FEEDS:
        raise NoRoom(f"{caller.name} has {MOST_FEEDS} calendar feeds; revoke one first: lcm feed list")
    until = writer.clock.now() + life
    secret, token = await tokens.make(
        caller.name,
        caller.role,
        expires_at=min(until, (made_with.bound if made_with else None) or until),
        made_by=caller.name,
        made_with=made_with,
        writer=writer,
        reach=Reach(email=caller.reach.email, calendar=whole.metadata.uid if whole else OWN_CALENDAR),
    )
    _log.info("calendar feed made", id=token.id, calendar=token.reach.calendar)
    return secret, token
