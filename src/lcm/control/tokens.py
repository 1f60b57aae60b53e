"""Bearer tokens: made, revoked, and found again on every request without touching the store.

What is kept of a token is its SHA-256, under `tokens/`; a watch tells this process what others made and revoked.
Called by `api` for every request, and by `compose` and `cli`, which make and revoke them.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec
import structlog

from lcm.model.clock import Clock
from lcm.model.errors import Fault, Gone, Invalid, Later, Relist, Stuck
from lcm.model.identity import AccessToken, Caller, Role, Subject
from lcm.model.machine import USER
from lcm.model.secret import Secret
from lcm.store.base import ABSENT, Changed, Delete, Entry, Put, Store, everything
from lcm.store.codec import Codec
from lcm.system import new_id, new_token

PREFIX: Final = "tokens/"
SERVICE_NAME: Final = "service"
_PAUSE_SECONDS: Final = 1.0
_SEEN_SECONDS: Final = 5.0
"""How long a change may take to come back by the watch; it is done all the same."""
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()


class Tokens:
    """Every token that is valid now, by its hash."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        service_key: Secret | None = None,
        ids: Callable[[], str] = new_id,
        secrets: Callable[[], str] = new_token,
    ) -> None:
        self._store = store
        self._clock = clock
        self._service = _hash(service_key.reveal()) if service_key else None
        self._ids = ids
        self._secrets = secrets
        self._known: dict[str, tuple[Caller, datetime | None]] = {}
        self._revision = 0
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._current = False

    @property
    def caught_up(self) -> bool:
        """Whether what others make and revoke is heard of here."""
        return self._current and self._following is not None and not self._following.done()

    async def start(self) -> None:
        """Read every token, then follow what becomes of them. Raises what the store raises."""
        await self._list()
        self._following = asyncio.create_task(self._follow(), name="tokens")

    async def close(self) -> None:
        """Stop following. May be repeated."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following, self._current = None, False

    def find(self, presented: str, actor: str = "") -> Caller | None:
        """Tell who presented a token; None for one that is unknown, revoked or past its time."""
        digest = _hash(presented)
        if self._service is not None and hmac.compare_digest(digest, self._service):
            return Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=actor)
        known = self._known.get(digest)
        if known is None:
            return None
        caller, expires_at = known
        if expires_at is not None and self._clock.now() >= expires_at:
            return None
        return msgspec.structs.replace(caller, actor=actor) if caller.role is Role.SERVICE else caller

    async def make(self, name: str, role: Role, *, expires_at: datetime | None = None) -> tuple[Secret, AccessToken]:
        """Make a token. The text is given out this once; only its hash is kept."""
        text = self._secrets()
        token = AccessToken(
            id=self._ids(),
            name=_subject(name),
            role=role,
            sha256=_hash(text),
            created_at=self._clock.now(),
            expires_at=expires_at,
        )
        revision = await self._store.commit(Put(PREFIX + token.sha256, _CODEC.encode(token), at=ABSENT))
        await self._reach(revision)
        _log.info("token made", id=token.id, name=name, role=role)
        return Secret(text), token

    async def revoke(self, token_id: str) -> None:
        """End a token's life at once. Raises Gone when there is none of this id."""
        for token in await self.list():
            if token.id == token_id:
                revision = await self._store.commit(Delete(PREFIX + token.sha256))
                await self._reach(revision)
                _log.info("token revoked", id=token.id, name=token.name)
                return
        raise Gone(f"there is no token {token_id}")

    async def list(self) -> Sequence[AccessToken]:
        """Read every token that is kept, oldest first."""
        page = await everything(self._store, PREFIX)
        return sorted(filter(None, map(_read, page.entries)), key=_age)

    async def _list(self) -> None:
        page = await everything(self._store, PREFIX)
        self._known = {}
        for entry in page.entries:
            self._learn(entry)
        self._hear(page.revision)
        self._current = True

    async def _follow(self) -> None:
        while True:
            try:
                if not self._current:
                    await self._list()
                async with self._store.watch(PREFIX, after=self._revision) as watch:
                    async for changed in watch:
                        self._change(changed)
            except (Relist, Later) as error:
                if self._current:
                    _log.warning("tokens are listed anew", error=str(error))
                self._current = False
                await asyncio.sleep(_PAUSE_SECONDS)

    def _change(self, changed: Changed) -> None:
        for change in changed.changes:
            if change.entry is None:
                self._known.pop(change.key.removeprefix(PREFIX), None)
            else:
                self._learn(change.entry)
        self._hear(changed.revision)

    def _learn(self, entry: Entry) -> None:
        digest = entry.key.removeprefix(PREFIX)
        self._known.pop(digest, None)
        token = _read(entry)
        if token is None:
            return
        actor = "" if token.role is Role.SERVICE else USER
        self._known[digest] = (Caller(name=token.name, role=token.role, actor=actor), token.expires_at)

    def _hear(self, revision: int) -> None:
        self._revision = revision
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _reach(self, revision: int) -> None:
        """Wait until this process has heard of its own change, so that who made it can rely on it at once."""
        if self._following is None:
            return
        try:
            async with asyncio.timeout(_SEEN_SECONDS):
                while self._revision < revision:
                    await self._news.wait()
        except TimeoutError:
            _log.warning("tokens lag behind", revision=revision)


def _read(entry: Entry) -> AccessToken | None:
    """Read a stored token; None for one that cannot be: nobody else's sign-in may hang on it."""
    try:
        return _CODEC.decode(entry.value, AccessToken)
    except Stuck as error:
        _log.error("token unreadable", key=entry.key, reason=error.reason)
        return None


@lru_cache(maxsize=1024)
def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _subject(name: str) -> Subject:
    try:
        return msgspec.convert(name, Subject)
    except msgspec.ValidationError as error:
        remedy = "use letters, digits and . _ @ + -, at most 128"
        raise Invalid(Fault("name", f"{name[:80]!r} is nobody's name", remedy)) from error


def _age(token: AccessToken) -> tuple[datetime, str]:
    return token.created_at, token.id
