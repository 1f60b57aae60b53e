"""Bearer tokens: made, revoked, and found again on every request without touching the store.

What is kept of a token is its SHA-256, under `tokens/`; a watch tells this process what others made and revoked.
Called by `api` for every request, by `sign_in`, which makes those of browsers, and by `compose` and `cli`.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Final

import msgspec
import structlog

from lcm.model.access.identity import AccessToken, Caller, Role, Subject
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Gone, Invalid, Later, Relist, Stuck
from lcm.model.base.machine import USER
from lcm.store.base import ABSENT, Changed, Delete, Entry, Op, Put, Store, everything
from lcm.store.codec import Codec
from lcm.system.clock import new_id, new_token

PREFIX: Final = "tokens/"
SERVICE_NAME: Final = "service"
_PAUSE_SECONDS: Final = 1.0
_SEEN_SECONDS: Final = 5.0
"""How long a change may take to come back by the watch; it is done all the same."""
_SWEPT: Final = 100
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()

Note = Callable[[AccessToken], Sequence[Op]]
"""Says what else to write in the commit that makes or revokes a token."""


def _nothing(_: AccessToken) -> Sequence[Op]:
    return ()


@dataclass(frozen=True, slots=True)
class Credential:
    """What proved who a caller is, and until when it does."""

    caller: Caller
    expires_at: datetime | None = None
    id: str = ""
    """The token's; empty for the key of services and for what an issuer signed."""
    digest: str = ""
    session: bool = False
    bound: datetime | None = None
    """What is made with it does not outlive this moment."""


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
        self._services = tuple(map(digest_of, keys_in(service_key)))
        self._ids = ids
        self._secrets = secrets
        self._known: dict[str, Credential] = {}
        self.version = 0
        """Grows whenever any token is made, changed or revoked."""
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
        found = self.look(presented, actor)
        return found.caller if found else None

    def look(self, presented: str, actor: str = "") -> Credential | None:
        """Find what a token proves; None for one that is unknown, revoked or past its time."""
        digest = digest_of(presented)
        if any(hmac.compare_digest(digest, key) for key in self._services):
            return Credential(Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=actor))
        known = self._known.get(digest)
        if known is None or (known.expires_at is not None and self._clock.now() >= known.expires_at):
            return None
        if known.caller.role is Role.SERVICE:
            return replace(known, caller=msgspec.structs.replace(known.caller, actor=actor))
        return known

    def holds(self, credential: Credential) -> bool:
        """Tell whether a credential that was found is still what it was; its time is for the caller to look at."""
        if not credential.digest:
            return True
        known = self._known.get(credential.digest)
        return known is not None and _essence(known) == _essence(credential)

    async def make(
        self,
        name: str,
        role: Role,
        *,
        expires_at: datetime | None = None,
        made_by: str = "",
        note: Note = _nothing,
    ) -> tuple[Secret, AccessToken]:
        """Make a token. The text is given out this once; only its hash is kept."""
        text, token = self.drafted(name, role, expires_at=expires_at, made_by=made_by)
        await self.write(token, note(token))
        _log.info("token made", id=token.id, name=name, role=role)
        return text, token

    def drafted(
        self,
        name: str,
        role: Role,
        *,
        expires_at: datetime | None = None,
        made_by: str = "",
        session: bool = False,
        bound: datetime | None = None,
    ) -> tuple[Secret, AccessToken]:
        """Make up a token that is not valid before it is written."""
        text = self._secrets()
        token = AccessToken(
            id=self._ids(),
            name=_subject(name),
            role=role,
            sha256=digest_of(text),
            created_at=self._clock.now(),
            expires_at=expires_at,
            session=session,
            bound=bound if session else expires_at,
            made_by=made_by,
        )
        return Secret(text), token

    async def write(self, token: AccessToken, also: Sequence[Op] = ()) -> None:
        """Make a token valid, in one commit with what else is to be written."""
        put = Put(PREFIX + token.sha256, _CODEC.encode(token), at=ABSENT)
        await self._reach(await self._store.commit(put, *also))

    async def revoke(self, token_id: str, *, note: Note = _nothing) -> None:
        """End a token's life at once. Raises Gone when there is none of this id."""
        for token in await self.list():
            if token.id == token_id:
                revision = await self._store.commit(Delete(PREFIX + token.sha256), *note(token))
                await self._reach(revision)
                _log.info("token revoked", id=token.id, name=token.name)
                return
        raise no_token(token_id)

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
        self._known[digest] = Credential(
            Caller(name=token.name, role=token.role, actor=actor),
            token.expires_at,
            token.id,
            digest,
            token.session,
            token.bound,
        )

    def _hear(self, revision: int) -> None:
        self._revision = revision
        self.version += 1
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


def keys_in(setting: Secret | None) -> Sequence[str]:
    """Read the keys of services, with commas between; clients send the first."""
    return [key for part in (setting.reveal() if setting else "").split(",") if (key := part.strip())]


def no_token(token_id: str) -> Gone:
    """Say that there is no such token; the same for what is somebody else's."""
    return Gone(f"there is no token {token_id}")


async def sweep(store: Store, now: datetime) -> int:
    """Forget the tokens whose time is over, and say how many those were. May be repeated."""
    swept, page = 0, await store.scan(PREFIX, limit=_SWEPT)
    while True:
        over = [entry for entry in page.entries if _is_over(_read(entry), now)]
        if over:
            await store.commit(*(Delete(entry.key, at=entry.revision) for entry in over))
        swept += len(over)
        if page.next is None:
            return swept
        page = await store.scan(PREFIX, limit=_SWEPT, cursor=page.next)


def _essence(credential: Credential) -> tuple[object, ...]:
    caller = credential.caller
    return credential.id, caller.name, caller.role, credential.expires_at


def _is_over(token: AccessToken | None, now: datetime) -> bool:
    return token is not None and token.expires_at is not None and token.expires_at <= now


def _read(entry: Entry) -> AccessToken | None:
    """Read a stored token; None for one that cannot be: nobody else's sign-in may hang on it."""
    try:
        return _CODEC.decode(entry.value, AccessToken)
    except Stuck as error:
        _log.error("token unreadable", key=entry.key, reason=error.reason)
        return None


@lru_cache(maxsize=1024)
def digest_of(text: str) -> str:
    """Give what is kept of a token."""
    return hashlib.sha256(text.encode()).hexdigest()


def _subject(name: str) -> Subject:
    try:
        return msgspec.convert(name, Subject)
    except msgspec.ValidationError as error:
        remedy = "use letters, digits and . _ @ + -, at most 128"
        raise Invalid(Fault("name", f"{name[:80]!r} is nobody's name", remedy)) from error


def _age(token: AccessToken) -> tuple[datetime, str]:
    return token.created_at, token.id
