"""Bearer tokens: made, revoked, and verified on every request without reading the store.

Called by `api` for every request, by `sign_in` for the sessions of browsers, and by `compose` and `cli`. Only the
SHA-256 of a token is stored, under `tokens/`; a watch tells this process what others made and revoked. A token knows
the tokens that it goes back to (its lineage): what was made with a token is revoked with it, however indirectly.
"""

import asyncio
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
import structlog

from lcm.control.access.audit import AuditedAction
from lcm.control.objects.records import CODEC
from lcm.control.objects.writer import Writer, commit_ops
from lcm.model.access.identity import NO_REACH, AccessToken, Caller, Reach, Role, SignInCode, Subject
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Fault, Forbidden, Gone, Invalid, Later, Refused, Relist, Stuck
from lcm.model.base.machine import USER
from lcm.model.base.resource import shorten_text
from lcm.store.base import ABSENT, CheckRevision, CommitChanges, Delete, Entry, Op, Put, Store, scan_all
from lcm.system.clock import new_id, new_token

T = TypeVar("T", AccessToken, SignInCode)
TOKENS_PREFIX: Final = "tokens/"
SIGN_INS_PREFIX: Final = "sign-ins/"
USED_SIGN_INS_PREFIX: Final = "used-sign-ins/"
LINK_AUDIT_KIND: Final = "SignInLink"
"""What the audit calls a sign-in link."""
SERVICE_NAME: Final = "service"
_PAUSE_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 5.0
"""How long to wait for an own change to arrive by the watch; the change is committed in any case."""

_LONGEST_LINEAGE: Final = 16
_REVOKED_AT_ONCE: Final = 50
"""How many tokens and links one commit revokes."""
_REVOKE_ROUNDS: Final = 1000

_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Credential:
    """What proved the identity of a caller, and until when it is valid."""

    caller: Caller
    expires_at: datetime | None = None
    id: str = ""
    """The token's id; empty for the key of services and for tokens of an issuer."""
    digest: str = ""
    session: bool = False
    bound: datetime | None = None
    """Nothing that is made with this credential outlives this moment."""
    lineage: tuple[str, ...] = ()
    """The ids of the tokens that this one goes back to."""

    def child_lineage(self) -> tuple[str, ...]:
        """Return the lineage of what is made with this credential. Raise Refused when it becomes too long."""
        made = (*self.lineage, self.id) if self.id else self.lineage
        if len(made) > _LONGEST_LINEAGE:
            raise Refused(f"this token goes back to {len(self.lineage)} others: use one of those to make a new one")
        return made


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
        self._service_digests = tuple(map(digest_of, service_keys(service_key)))
        self._ids = ids
        self._secrets = secrets
        self._credentials: dict[str, Credential] = {}
        self._held: Counter[tuple[str, bool]] = Counter()
        self.version = 0
        """Grows whenever a token is made, changed or revoked."""
        self._revision = 0
        self._advanced = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._current = False

    @property
    def caught_up(self) -> bool:
        """Whether this process receives the changes that others make to tokens."""
        return self._current and self._watching is not None and not self._watching.done()

    async def start(self) -> None:
        """Read every token, then follow all changes. Raises what the store raises."""
        await self._load()
        self._watching = asyncio.create_task(self._follow(), name="tokens")

    async def close(self) -> None:
        """Stop following. May be repeated."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching, self._current = None, False

    def find_caller(self, presented: str, actor: str = "") -> Caller | None:
        """Return whose token this is; None for one that is unknown, revoked or expired."""
        found = self.find_credential(presented, actor)
        return found.caller if found else None

    def find_credential(self, presented: str, actor: str = "") -> Credential | None:
        """Return what a token proves; None for one that is unknown, revoked or expired, and for a calendar feed's."""
        digest = digest_of(presented)
        for key in self._service_digests:
            if hmac.compare_digest(digest, key):
                return Credential(Caller(name=SERVICE_NAME, role=Role.SERVICE, actor=actor))
        known = self._find_valid(digest)
        if known is None or known.caller.reach.calendar:
            return None
        if known.caller.role is Role.SERVICE:
            return replace(known, caller=msgspec.structs.replace(known.caller, actor=actor))
        return known

    def find_feed(self, presented: str) -> Credential | None:
        """Return whose calendar feed a secret opens; None for one that is unknown, revoked, expired or no feed's."""
        known = self._find_valid(digest_of(presented))
        return known if known is not None and known.caller.reach.calendar else None

    def count_feeds(self, name: str) -> int:
        """Return how many valid calendar feeds somebody has, as far as this process knows."""
        now = self._clock.now()
        several = (one for one in self._credentials.values() if one.caller.name == name and one.caller.reach.calendar)
        return sum(one.expires_at is None or now < one.expires_at for one in several)

    def _find_valid(self, digest: str) -> Credential | None:
        """Return what is known of a hash. As only hashes are looked up, how long it takes tells nothing of a secret."""
        known = self._credentials.get(digest)
        is_over = known is not None and known.expires_at is not None and self._clock.now() >= known.expires_at
        return None if is_over else known

    def is_unchanged(self, credential: Credential) -> bool:
        """Return whether a credential still is what it was when found; the caller checks its expiry."""
        if not credential.digest:
            return True
        known = self._credentials.get(credential.digest)
        return known is not None and _identity(known) == _identity(credential)

    async def make(
        self,
        name: str,
        role: Role,
        *,
        expires_at: datetime | None = None,
        made_by: str = "",
        made_with: Credential | None = None,
        writer: Writer | None = None,
        reach: Reach = NO_REACH,
    ) -> tuple[Secret, AccessToken]:
        """Make a token. Its text is returned only here; only its hash is stored. No writer means nobody's action.

        It is revoked with the credential that it is made with. Raises Forbidden when that was revoked meanwhile.
        """
        lineage = made_with.child_lineage() if made_with else ()
        text, token = self.draft(name, role, expires_at=expires_at, made_by=made_by, lineage=lineage, reach=reach)
        await self.write(token, *await self.require_stored(made_with), writer=writer, verb="create")
        _log.info("token made", id=token.id, name=name, role=role)
        return text, token

    def draft(
        self,
        name: str,
        role: Role,
        *,
        expires_at: datetime | None = None,
        made_by: str = "",
        session: bool = False,
        bound: datetime | None = None,
        lineage: tuple[str, ...] = (),
        reach: Reach = NO_REACH,
    ) -> tuple[Secret, AccessToken]:
        """Make a token that is not valid until it is written."""
        text = self._secrets()
        token = AccessToken(
            id=self._ids(),
            name=_parse_subject(name),
            role=role,
            sha256=digest_of(text),
            created_at=self._clock.now(),
            expires_at=expires_at,
            session=session,
            bound=bound if session else expires_at,
            made_by=made_by,
            lineage=lineage,
            reach=reach,
        )
        return Secret(text), token

    async def require_stored(self, credential: Credential | None) -> Sequence[Op]:
        """Return the condition under which something may be made with a credential: that nobody has revoked it.

        Raises Forbidden when somebody has. A credential that is not stored here has no condition.
        """
        if credential is None or not credential.digest:
            return ()
        entry = await self._store.get(TOKENS_PREFIX + credential.digest)
        if entry is None:
            raise Forbidden("the token of this request was revoked meanwhile")
        return (CheckRevision(entry.key, at=entry.revision),)

    async def write(self, token: AccessToken, *ops: Op, writer: Writer | None, verb: str) -> None:
        """Make a token valid, in one commit with the other operations."""
        put = Put(TOKENS_PREFIX + token.sha256, CODEC.encode(token), at=ABSENT)
        await self._submit([put, *ops], [AuditedAction(verb=verb, kind=AccessToken.__name__, name=token.id)], writer)

    async def revoke(
        self, token_id: str, *, writer: Writer | None = None, verb: str = "revoke", alone: bool = False
    ) -> None:
        """Revoke a token at once, and everything that was made with it, unless `alone`.

        Raises Gone when there is none of this id, and Later when too much was made with it to revoke all in one go.
        """
        revoked = 0
        for _ in range(_REVOKE_ROUNDS):
            doomed = (await self._find_family(token_id, verb, alone=alone))[:_REVOKED_AT_ONCE]
            if not doomed:
                break
            ops = [Delete(entry.key, at=entry.revision) for entry, _ in doomed]
            try:
                await self._submit(ops, [deed for _, deed in doomed], writer)
            except Conflict:
                continue  # a link was used, or a token changed: look again
            revoked += len(doomed)
        else:
            raise Later("too much was made with this token to revoke it in one go: repeat it")
        if not revoked:
            raise no_such_token(token_id)
        _log.info("token revoked", id=token_id, made_with_it=revoked - 1)

    async def _find_family(self, token_id: str, verb: str, *, alone: bool) -> Sequence[tuple[Entry, AuditedAction]]:
        """Find a token, which comes first, and what was made with it.

        Links are read before tokens, so that a link that is used meanwhile is found as a session.
        """
        links = [] if alone else (await scan_all(self._store, SIGN_INS_PREFIX)).entries
        found: list[tuple[Entry, AuditedAction]] = []
        for entry in (await scan_all(self._store, TOKENS_PREFIX)).entries:
            token = _decode_part(entry, AccessToken)
            if token is not None and (token.id == token_id or (not alone and token_id in token.lineage)):
                deed = AuditedAction(verb=verb, kind=AccessToken.__name__, name=token.id)
                found.insert(0 if token.id == token_id else len(found), (entry, deed))
        for entry in links:
            code = _decode_part(entry, SignInCode)
            if code is not None and token_id in code.lineage:
                found.append((entry, AuditedAction(verb=verb, kind=LINK_AUDIT_KIND, name=code.name)))
        return found

    def count(self, name: str, *, session: bool) -> int:
        """Return how many tokens somebody has, or how many browser sessions, as far as this process knows."""
        return self._held[name, session]

    async def list(self) -> Sequence[AccessToken]:
        """Read every stored token, oldest first."""
        found = [_decode_part(entry, AccessToken) for entry in (await scan_all(self._store, TOKENS_PREFIX)).entries]
        return sorted(filter(None, found), key=lambda token: (token.created_at, token.id))

    async def _submit(self, ops: Sequence[Op], deeds: Sequence[AuditedAction], writer: Writer | None) -> None:
        await self._wait_for(
            await (commit_ops(self._store, *ops) if writer is None else writer.submit(ops, deeds=deeds))
        )

    async def _load(self) -> None:
        page = await scan_all(self._store, TOKENS_PREFIX)
        self._credentials, self._held = {}, Counter()
        for entry in page.entries:
            self._add_credential(entry)
        self._advance(page.revision)
        self._current = True

    async def _follow(self) -> None:
        while True:
            try:
                if not self._current:
                    await self._load()
                async with self._store.watch(TOKENS_PREFIX, after=self._revision) as watch:
                    async for changed in watch:
                        self._apply_change(changed)
            except (Relist, Later) as error:
                if self._current:
                    _log.warning("tokens are listed anew", error=str(error))
                self._current = False
                await asyncio.sleep(_PAUSE_SECONDS)

    def _apply_change(self, changed: CommitChanges) -> None:
        for change in changed.changes:
            if change.entry is None:
                self._remove_credential(change.key.removeprefix(TOKENS_PREFIX))
            else:
                self._add_credential(change.entry)
        self._advance(changed.revision)

    def _add_credential(self, entry: Entry) -> None:
        digest = entry.key.removeprefix(TOKENS_PREFIX)
        self._remove_credential(digest)
        token = _decode_part(entry, AccessToken)
        if token is None:
            return
        self._held[token.name, token.session] += 1
        actor = "" if token.role is Role.SERVICE else USER
        self._credentials[digest] = Credential(
            Caller(name=token.name, role=token.role, actor=actor, reach=token.reach),
            token.expires_at,
            token.id,
            digest,
            token.session,
            token.bound,
            token.lineage,
        )

    def _remove_credential(self, digest: str) -> None:
        known = self._credentials.pop(digest, None)
        if known is None:
            return
        holder = known.caller.name, known.session
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def _advance(self, revision: int) -> None:
        self._revision = revision
        self.version += 1
        news, self._advanced = self._advanced, asyncio.Event()
        news.set()

    async def _wait_for(self, revision: int) -> None:
        """Wait until this process has seen its own change, so that the caller can rely on it at once."""
        if self._watching is None:
            return
        try:
            async with asyncio.timeout(_WATCH_SECONDS):
                while self._revision < revision:
                    await self._advanced.wait()
        except TimeoutError:
            _log.warning("tokens lag behind", revision=revision)


def service_keys(setting: Secret | None) -> Sequence[str]:
    """Return the keys of services, which are separated by commas; clients send the first."""
    return [key for part in (setting.reveal() if setting else "").split(",") if (key := part.strip())]


def no_such_token(token_id: str) -> Gone:
    """Return the error that there is no such token; it is the same for another user's token."""
    return Gone(f"there is no token {token_id}")


def is_expired_token(entry: Entry, now: datetime) -> bool:
    """Return whether a stored token has expired."""
    token = _decode_part(entry, AccessToken)
    return token is not None and token.expires_at is not None and token.expires_at <= now


def _identity(credential: Credential) -> tuple[object, ...]:
    caller = credential.caller
    return credential.id, caller.name, caller.role, caller.reach, credential.expires_at


def _decode_part(entry: Entry, kind: type[T]) -> T | None:
    """Decode a stored token or link; None for an unreadable one, which must not break the sign-in of others."""
    try:
        return CODEC.decode(entry.value, kind)
    except Stuck as error:
        _log.error("token unreadable", key=entry.key, reason=error.reason)
        return None


@lru_cache(maxsize=1024)
def digest_of(text: str) -> str:
    """Return the hash of a token, which is all that is stored of it."""
    return hashlib.sha256(text.encode()).hexdigest()


def _parse_subject(name: str) -> Subject:
    try:
        return msgspec.convert(name, Subject)
    except msgspec.ValidationError as error:
        remedy = "use letters, digits and . _ @ + -, at most 128"
        raise Invalid(Fault("name", f"{shorten_text(name, 80)!r} is not a valid name", remedy)) from error
