"""Sign-in of a browser at an OpenID Connect provider: authorization code with PKCE (RFC 7636), state and nonce.

Used by `api.routes.oidc`; made by `compose`. Nothing is kept here between the two halves of a sign-in: what the second
half needs is a `PendingSignIn`, which the browser keeps as a sealed cookie, so that any replica can finish what another
began. Who asks for a sign-in is not known yet, so nothing is written for them; that a sign-in happens only once is
made sure where its session is written, by `SignIns.begin_session`.
"""

import asyncio
import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import structlog

from lcm.control.access.oidc import TokenRefusal, TokenRefusalReason, VerifiedCaller, Verifier
from lcm.control.access.oidc_keys import FetchedDocument, FormFetch, discover, named_address, strict_json
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Later, LcmError, Stuck
from lcm.model.base.resource import Moment, Part
from lcm.system.clock import new_token

PENDING_LIFE: Final = timedelta(minutes=10)
"""How long somebody may take to sign in at the provider."""
_DISCOVERY_FRESH: Final = timedelta(minutes=10)
_FAILURE_FRESH: Final = timedelta(seconds=5)
"""For how long everybody is told that it does not answer, before it is asked again."""
_LONGEST_CODE: Final = 4096
_MOST_EXCHANGES: Final = 32
"""How many codes are being exchanged at once."""
_OK: Final = 200
_log: Final = structlog.get_logger()


class SignInFailure(StrEnum):
    """Why a sign-in came to nothing, as a stable word; the sign-in page says it in a sentence."""

    UNFINISHED = "unfinished"
    """It was begun too long ago, elsewhere, or not at all."""
    USED = "used"
    DENIED = "denied"
    """The provider says that the person, or somebody for them, declined."""
    PROVIDER = "provider"
    """The provider reports an error of its own."""
    UNREACHABLE = "unreachable"
    SETUP = "setup"
    """The provider and our settings do not fit together: only an administrator can help."""
    IDENTITY = "identity"
    """What the provider sent does not prove who it is."""
    NO_NAME = "no-name"
    """There is no name, or no verified e-mail address, that we can use."""
    NO_ROLE = "no-role"
    FULL = "full"
    """The person has too many tokens and sessions."""
    BUSY = "busy"
    """We cannot answer now, or too many sign-ins failed from this address."""


class SignInFailedError(Exception):
    """A sign-in came to nothing. The message is for the log; it holds no part of any secret."""

    def __init__(self, failure: SignInFailure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """As whom we ask the provider."""

    issuer: str
    client_id: str
    client_secret: Secret | None = None
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    name: str = ""
    """What people call the provider; its host, if that is empty."""
    redirect_url: str = ""
    """Where browsers come back to; where they came from, if that is empty."""
    ends_session: bool = False
    """Whether who signs out here is sent to the provider to sign out there as well."""

    @property
    def label(self) -> str:
        """What the sign-in page calls the provider."""
        return self.name or urlsplit(self.issuer).hostname or self.issuer


class PendingSignIn(Part):
    """A sign-in that was begun: what its end is compared with."""

    state: str
    nonce: str
    verifier: str
    redirect_url: str
    path: str
    """The page to show afterwards."""
    expires_at: Moment


class ProviderAnswer(NamedTuple):
    """What the provider has the browser bring back."""

    code: str = ""
    state: str = ""
    error: str = ""
    issuer: str = ""


class BrowserSignIn:
    """Signs people in at one provider. Every method raises SignInFailedError."""

    def __init__(
        self,
        client: ProviderClient,
        verifier: Verifier,
        *,
        fetch: FormFetch,
        clock: Clock,
        secrets: Callable[[], str] = new_token,
    ) -> None:
        self.client = client
        self._verifier = verifier
        self._fetch = fetch
        self._clock = clock
        self._secrets = secrets
        self._exchanging = asyncio.Semaphore(_MOST_EXCHANGES)
        self._discovering = asyncio.Lock()
        self._discovered: tuple[datetime | None, Mapping[str, Any] | LcmError] = (None, {})
        """When the provider was asked about itself, and what came of it."""

    async def begin(self, *, redirect_url: str, path: str) -> tuple[str, PendingSignIn]:
        """Return where the browser goes, and what it must bring back with the provider's answer."""
        pending = PendingSignIn(
            state=self._secrets(),
            nonce=self._secrets(),
            verifier=self._secrets(),
            redirect_url=self.client.redirect_url or redirect_url,
            path=path,
            expires_at=self._clock.now() + PENDING_LIFE,
        )
        query = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": pending.redirect_url,
            "scope": " ".join(dict.fromkeys(("openid", *self.client.scopes))),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge_of(pending.verifier),
            "code_challenge_method": "S256",
        }
        return _with_query(await self._address("authorization_endpoint"), query), pending

    async def finish(
        self, pending: PendingSignIn | None, answer: ProviderAnswer, *, admit: Callable[[], None]
    ) -> VerifiedCaller:
        """Return who signed in. The code is exchanged only for an answer to the request that was begun.

        `admit` is called before that, and raises to prevent it: anybody may bring codes to be asked about.
        """
        if pending is None or not hmac.compare_digest(pending.state.encode(), answer.state.encode()):
            raise SignInFailedError(SignInFailure.UNFINISHED, "the answer is to no sign-in of this browser")
        if self._clock.now() >= pending.expires_at:
            raise SignInFailedError(SignInFailure.UNFINISHED, "the sign-in took too long")
        await self._check_issuer(answer)
        if answer.error:
            raise _failure_of_error(answer.error)
        if not 0 < len(answer.code) <= _LONGEST_CODE:
            raise SignInFailedError(SignInFailure.PROVIDER, "the provider sent no code")
        admit()
        if self._exchanging.locked():
            raise SignInFailedError(SignInFailure.BUSY, "too many sign-ins are being finished")
        async with self._exchanging:
            token = await self._exchange_code(answer.code, pending)
        with _reaching():
            found = await self._verifier.verify_id_token(token, client_id=self.client.client_id, nonce=pending.nonce)
        if isinstance(found, TokenRefusal):
            raise SignInFailedError(_REFUSALS.get(found.reason, SignInFailure.IDENTITY), found.message)
        return found

    async def sign_out_url(self, back_to: str) -> str:
        """Return where a browser signs out at the provider; empty if it does not do so."""
        if not self.client.ends_session:
            return ""
        try:
            url = await self._address("end_session_endpoint")
        except SignInFailedError as error:
            _log.warning("the provider's sign-out is left out", problem=str(error))
            return ""
        return _with_query(url, {"client_id": self.client.client_id, "post_logout_redirect_uri": back_to})

    async def _check_issuer(self, answer: ProviderAnswer) -> None:
        """Refuse another provider's answer (RFC 9207), which would have our code sent to the wrong one."""
        must = (await self._discover()).get("authorization_response_iss_parameter_supported") is True
        if (answer.issuer or must) and answer.issuer != self.client.issuer:
            raise SignInFailedError(SignInFailure.IDENTITY, "the answer comes from another provider")

    async def _exchange_code(self, code: str, pending: PendingSignIn) -> str:
        """Exchange a code for an id token, directly with the provider."""
        client, secret = self.client, self.client.client_secret
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_url,
            "code_verifier": pending.verifier,
            "client_id": client.client_id,
        }
        methods = (await self._discover()).get("token_endpoint_auth_methods_supported")
        in_form = isinstance(methods, list) and "client_secret_basic" not in methods
        if secret is not None and in_form:
            form["client_secret"] = secret.reveal()
        credentials = (client.client_id, secret.reveal()) if secret is not None and not in_form else None
        url = await self._address("token_endpoint")
        with _reaching():
            answer = await self._fetch.post(url, form, credentials)
        return _read_id_token(answer)

    async def _address(self, name: str) -> str:
        found = await self._discover()
        with _reaching():
            return named_address(found, name)

    async def _discover(self) -> Mapping[str, Any]:
        """Read what the provider says about itself, once for several sign-ins."""
        async with self._discovering:
            now, (at, found) = self._clock.now(), self._discovered
            fresh = _FAILURE_FRESH if isinstance(found, LcmError) else _DISCOVERY_FRESH
            if at is None or not timedelta(0) <= now - at < fresh:
                try:
                    found = await discover(self.client.issuer, self._fetch)
                except (Later, Stuck) as error:
                    found = error
                self._discovered = self._clock.now(), found
            with _reaching():
                if isinstance(found, LcmError):
                    raise found.with_traceback(None)
            return found


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a PKCE verifier."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


@contextmanager
def _reaching() -> Iterator[None]:
    """Turn errors of the way to the provider into failures of the sign-in."""
    try:
        yield
    except Later as error:
        raise SignInFailedError(SignInFailure.UNREACHABLE, str(error)) from error
    except Stuck as error:
        raise SignInFailedError(SignInFailure.SETUP, str(error)) from error


_REFUSALS: Final[Mapping[TokenRefusalReason, SignInFailure]] = {
    TokenRefusalReason.ROLE: SignInFailure.NO_ROLE,
    TokenRefusalReason.SUBJECT: SignInFailure.NO_NAME,
}
_ERRORS: Final[Mapping[str, SignInFailure]] = {
    "access_denied": SignInFailure.DENIED,
    "consent_required": SignInFailure.DENIED,
    "interaction_required": SignInFailure.DENIED,
    "login_required": SignInFailure.DENIED,
    "invalid_client": SignInFailure.SETUP,
    "invalid_request": SignInFailure.SETUP,
    "invalid_scope": SignInFailure.SETUP,
    "unauthorized_client": SignInFailure.SETUP,
    "unsupported_response_type": SignInFailure.SETUP,
    "invalid_grant": SignInFailure.USED,
}


def _failure_of_error(error: str) -> SignInFailedError:
    word = error if error.isascii() and error.isprintable() else "?"
    return SignInFailedError(_ERRORS.get(error, SignInFailure.PROVIDER), f"the provider says {word[:60]}")


def _read_id_token(answer: FetchedDocument) -> str:
    try:
        found = strict_json(answer.body)
    except ValueError:
        raise SignInFailedError(SignInFailure.PROVIDER, "the provider's answer to a code is no JSON object") from None
    if answer.status != _OK:
        error = found.get("error")
        raise _failure_of_error(error if isinstance(error, str) else "?")
    token = found.get("id_token")
    if not isinstance(token, str):
        raise SignInFailedError(SignInFailure.SETUP, "the provider sent no id token: does it know the scope openid?")
    return token


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
