"""Signing in with a browser: a link that is good once and for minutes, exchanged for a session of half a day.

What is kept of a link's code is its SHA-256. A session is a token like others: listed, revocable, expiring. Used by
`api`, and by `cli`, which prints the first link; `housekeeping` sweeps codes that nobody used.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.access.tokens import Note, Tokens, digest_of
from lcm.model.access.identity import AccessToken, Role, Subject
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict
from lcm.model.base.resource import Moment, Part
from lcm.store.base import ABSENT, Delete, Op, Put, Store
from lcm.store.codec import Codec
from lcm.system.clock import new_token

PREFIX: Final = "sign-ins/"
LINK_LIFE: Final = timedelta(minutes=10)
SESSION_LIFE: Final = timedelta(hours=12)
_LONGEST_CODE: Final = 200
_SWEPT: Final = 100
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()


class SignInCode(Part):
    """Whom a link signs in, and until when it can be used."""

    name: Subject
    role: Role
    expires_at: Moment
    bound: Moment | None = None
    """When all that comes of it must end: with the token it was made with."""


class SignIns:
    """Makes links, and sessions of them."""

    def __init__(self, store: Store, tokens: Tokens, *, clock: Clock, secrets: Callable[[], str] = new_token) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._secrets = secrets

    async def invite(
        self, name: str, role: Role, *, bound: datetime | None = None, also: Sequence[Op] = ()
    ) -> tuple[Secret, datetime]:
        """Make a code that signs somebody in once; return it and when it can no longer be used."""
        text = self._secrets()
        expires_at = _earlier(self._clock.now() + LINK_LIFE, bound)
        code = SignInCode(name=name, role=role, expires_at=expires_at, bound=bound)
        await self._store.commit(Put(PREFIX + digest_of(text), _CODEC.encode(code), at=ABSENT), *also)
        _log.info("sign-in link made", name=name, role=role)
        return Secret(text), expires_at

    async def exchange(self, text: str, note: Note) -> tuple[Secret, AccessToken] | None:
        """Make a session of a code, which is used up by that; None for one that is unknown, used or too old."""
        if not text or len(text) > _LONGEST_CODE:
            return None
        entry = await self._store.get(PREFIX + digest_of(text))
        if entry is None:
            return None
        code, now = _CODEC.decode(entry.value, SignInCode), self._clock.now()
        if now >= code.expires_at:
            return None
        secret, token = self._tokens.drafted(
            code.name,
            code.role,
            expires_at=_earlier(now + SESSION_LIFE, code.bound),
            session=True,
            bound=code.bound,
            made_by=code.name,
        )
        try:
            await self._tokens.write(token, [Delete(entry.key, at=entry.revision), *note(token)])
        except Conflict:
            return None  # somebody else used it in this very moment
        _log.info("signed in", id=token.id, name=token.name, role=token.role)
        return secret, token


async def sweep(store: Store, now: datetime) -> int:
    """Forget the codes that nobody used in time, and say how many those were. May be repeated."""
    swept, page = 0, await store.scan(PREFIX, limit=_SWEPT)
    while True:
        over = [entry for entry in page.entries if _CODEC.decode(entry.value, SignInCode).expires_at <= now]
        if over:
            await store.commit(*(Delete(entry.key, at=entry.revision) for entry in over))
        swept += len(over)
        if page.next is None:
            return swept
        page = await store.scan(PREFIX, limit=_SWEPT, cursor=page.next)


def _earlier(moment: datetime, bound: datetime | None) -> datetime:
    return moment if bound is None else min(moment, bound)
