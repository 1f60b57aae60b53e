"""Sign-in with a browser: a link that works once and for minutes, exchanged for a session of half a day.

The link of an invitation (`control.access.invitations`) works until it expires or is revoked.

Used by `api`, and by `cli`, which prints the first link; housekeeping removes unused codes. Only the SHA-256 of a
link's code is stored. A session is a token like others: listed, revocable, expiring. Who signed in at a provider gets
a session likewise; that this was done is noted until it could no longer be tried again.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from lcm.control.access.audit import AuditedAction
from lcm.control.access.tokens import (
    LINK_AUDIT_KIND,
    SIGN_INS_PREFIX,
    USED_SIGN_INS_PREFIX,
    Credential,
    Tokens,
    digest_of,
)
from lcm.control.objects.writer import Writer
from lcm.model.access.identity import NO_REACH, AccessToken, Caller, Reach, Role, SignInCode, UsedSignIn
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, NoRoom
from lcm.store.base import ABSENT, Delete, Entry, Put, Store, scan_all
from lcm.store.codec import Codec
from lcm.system.clock import new_token

LINK_LIFE: Final = timedelta(minutes=10)
SESSION_LIFE: Final = timedelta(hours=12)
MOST_BROWSERS: Final = 20
"""In how many browsers the invitations to one seat can be open at once."""
_MAX_CODE_LENGTH: Final = 200
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()


class SignInUse(NamedTuple):
    """One sign-in at a provider, which makes one session."""

    issuer: str
    state: str
    expires_at: datetime
    """Until when it could be tried again."""


class SignIns:
    """Makes sign-in links, and exchanges them for sessions."""

    def __init__(self, store: Store, tokens: Tokens, *, clock: Clock, secrets: Callable[[], str] = new_token) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._secrets = secrets

    async def make_code(
        self, name: str, role: Role, *, writer: Writer, made_with: Credential | None = None, reach: Reach = NO_REACH
    ) -> tuple[Secret, datetime]:
        """Make a code that signs a person in once; return it and when it expires.

        What comes of it ends with the credential that it is made with. Raises Forbidden when that was revoked.
        """
        text = self._secrets()
        bound, lineage = (made_with.bound, made_with.child_lineage()) if made_with else (None, ())
        expires_at = _earlier(self._clock.now() + LINK_LIFE, bound)
        code = SignInCode(name=name, role=role, expires_at=expires_at, bound=bound, lineage=lineage, reach=reach)
        put = Put(SIGN_INS_PREFIX + digest_of(text), _CODEC.encode(code), at=ABSENT)
        conditions = await self._tokens.require_stored(made_with)
        await writer.submit([put, *conditions], deeds=[AuditedAction(verb="create", kind=LINK_AUDIT_KIND, name=name)])
        _log.info("sign-in link made", name=name, role=role)
        return Secret(text), expires_at

    async def count_links(self, name: str) -> int:
        """Return how many links of a person could be used now."""
        page, now = await scan_all(self._store, SIGN_INS_PREFIX), self._clock.now()
        codes = (_CODEC.decode(entry.value, SignInCode) for entry in page.entries)
        return sum(code.name == name and now < code.expires_at for code in codes)

    async def exchange(self, text: str, writer_for: Callable[[Caller], Writer]) -> tuple[Secret, AccessToken] | None:
        """Exchange a code for a session, which uses it up; None for one that is unknown, used or expired.

        An invitation is not used up. Raises Forbidden when it was revoked meanwhile, NoRoom when too many use it.
        """
        if not text or len(text) > _MAX_CODE_LENGTH:
            return None
        entry = await self._store.get(SIGN_INS_PREFIX + digest_of(text))
        if entry is None:
            return await self._accept_invitation(text, writer_for)
        code, now = _CODEC.decode(entry.value, SignInCode), self._clock.now()
        if now >= code.expires_at:
            return None
        secret, token = self._tokens.draft(
            code.name,
            code.role,
            expires_at=_earlier(now + SESSION_LIFE, code.bound),
            session=True,
            bound=code.bound,
            made_by=code.name,
            lineage=code.lineage,
            reach=code.reach,
        )
        try:
            writer = writer_for(Caller(name=token.name, role=token.role, reach=token.reach))
            await self._tokens.write(token, Delete(entry.key, at=entry.revision), writer=writer, verb="sign-in")
        except Conflict:
            return None  # another request used the code at the same time
        _log.info("signed in", id=token.id, name=token.name, role=token.role)
        return secret, token

    async def _accept_invitation(
        self, text: str, writer_for: Callable[[Caller], Writer]
    ) -> tuple[Secret, AccessToken] | None:
        """Begin a session of whoever holds an invitation, which stays valid; None if it is none."""
        invitation = self._tokens.find_credential(text)
        if invitation is None or invitation.session or invitation.caller.role is not Role.GUEST:
            return None
        guest = invitation.caller
        if self._tokens.count(guest.name, session=True) >= MOST_BROWSERS:
            raise NoRoom(f"this invitation is open in {MOST_BROWSERS} browsers: sign out in one of them")
        secret, token = self._tokens.draft(
            guest.name,
            guest.role,
            expires_at=_earlier(self._clock.now() + SESSION_LIFE, invitation.bound),
            session=True,
            bound=invitation.bound,
            made_by=guest.name,
            lineage=invitation.child_lineage(),
            reach=guest.reach,
        )
        conditions = await self._tokens.require_stored(invitation)
        try:
            await self._tokens.write(token, *conditions, writer=writer_for(guest), verb="sign-in")
        except Conflict:
            return None  # it was revoked at the same time
        _log.info("signed in", id=token.id, name=token.name, role=token.role)
        return secret, token

    async def begin_session(
        self, caller: Caller, bound: datetime, use: SignInUse, writer_for: Callable[[Caller], Writer]
    ) -> tuple[Secret, AccessToken] | None:
        """Begin a session of somebody whom a provider identified; it ends by `bound`. None if that was done before."""
        secret, token = self._tokens.draft(
            caller.name,
            caller.role,
            expires_at=min(self._clock.now() + SESSION_LIFE, bound),
            session=True,
            bound=bound,
            made_by=use.issuer,
            reach=caller.reach,
        )
        note = Put(
            USED_SIGN_INS_PREFIX + digest_of(use.state), _CODEC.encode(UsedSignIn(expires_at=use.expires_at)), at=ABSENT
        )
        try:
            await self._tokens.write(token, note, writer=writer_for(caller), verb="sign-in")
        except Conflict:
            return None
        _log.info("signed in", id=token.id, name=token.name, role=token.role, issuer=use.issuer)
        return secret, token


def is_expired_use(entry: Entry, now: datetime) -> bool:
    """Return whether a sign-in at a provider could not be tried again any more."""
    return _CODEC.decode(entry.value, UsedSignIn).expires_at <= now


def is_expired_code(entry: Entry, now: datetime) -> bool:
    """Return whether a stored code has expired."""
    return _CODEC.decode(entry.value, SignInCode).expires_at <= now


def _earlier(moment: datetime, bound: datetime | None) -> datetime:
    return moment if bound is None else min(moment, bound)
