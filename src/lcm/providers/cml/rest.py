"""One controller's REST API: reads and changes that return typed values or raise our errors. Used by `host`.

`CmlClient` holds the controller's one token. Every call has a time limit over all of it, its sign-in included,
because a server that sends a byte now and then never exceeds a read time-out.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import httpx
import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Stuck, Throttled, Unreachable
from lcm.providers.cml.connection import CmlConnection, CmlLimits, CmlRequest, CmlResponse
from lcm.providers.cml.errors import JSON_ERRORS, CmlFailure, CmlOperation, error_text, translate_refusal
from lcm.providers.protocols.labhost import CmlAnswerError, CmlAuthenticationError
from lcm.providers.protocols.permit import check_permit

T = TypeVar("T")

_SUCCESS: Final = range(200, 300)
_UNAUTHORIZED: Final = 401
_encode: Final = msgspec.json.Encoder().encode


class _SignedIn(msgspec.Struct):
    token: Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]+\Z")]
    """Checked here, because a header that cannot carry it would be shown in the error, and in logs."""
    admin: bool


_sign_in_decoder: Final = msgspec.json.Decoder(_SignedIn)
_string_decoder: Final = msgspec.json.Decoder(str)


@dataclass(slots=True)
class _TokenState:
    """The token in use, and how the last sign-in failed if it did."""

    value: Secret | None = None
    failures: int = 0
    failure: LcmError | None = None
    not_before: float = 0


class CmlClient:
    """Calls one controller's REST API, signing in when needed."""

    def __init__(
        self,
        url: str,
        username: str,
        password: Secret,
        *,
        pin: str | None = None,
        limits: CmlLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.limits = limits or CmlLimits()
        self._connection = CmlConnection(url, pin=pin, limits=self.limits, transport=transport)
        self._url = url
        self._username = username
        self._password = password
        self._token = _TokenState()
        self._signing_in = asyncio.Lock()

    async def read(
        self,
        path: str,
        answer: msgspec.json.Decoder[T],
        *,
        params: Mapping[str, str] | None = None,
        open_to_all: bool = False,
    ) -> T:
        """Read a typed value. `open_to_all` needs no sign-in."""
        request = self._connection.build_request("GET", path, params=params)
        got = await self._call(request, seconds=self.limits.question_seconds, open_to_all=open_to_all)
        return _decode_response(request, got, answer)

    async def read_text(self, path: str) -> str:
        """Read a text that may be long. Some controllers send it as a JSON string."""
        request = self._connection.build_request("GET", path)
        got = await self._call(request)
        if got.media_type == "application/json" and got.body[:1] == b'"':
            return _decode_response(request, got, _string_decoder)
        try:
            return got.body.decode()
        except UnicodeDecodeError as error:
            raise _not_understood(request, f"expected UTF-8: {error}") from error

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        asked: CmlOperation = CmlOperation.ANYTHING,
        hide: Secret | None = None,
    ) -> int:
        """Change something and return the status, which is a success. `hide` is removed from any error."""
        content = None if body is None else _encode(body)
        headers = None if body is None else {"Content-Type": "application/json"}
        request = self._connection.build_request(method, path, content=content, headers=headers)
        return (await self._call(request, asked=asked, hide=hide)).status

    async def submit_text(
        self, path: str, text: str, answer: msgspec.json.Decoder[T], *, params: Mapping[str, str], asked: CmlOperation
    ) -> T:
        """Post a text, without a content type as the official client does, and read the answer."""
        request = self._connection.build_request("POST", path, params=params, content=text.encode())
        return _decode_response(request, await self._call(request, asked=asked), answer)

    async def sign_in(self) -> None:
        """Sign in anew, even if there is a token."""
        seconds = self.limits.question_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._renew_token(self._token.value)
        except TimeoutError as error:
            raise Unreachable(f"no sign-in at {self._url} within {seconds:g} s") from error

    async def close(self) -> None:
        """Close connections. May be repeated."""
        await self._connection.close()

    async def _call(
        self,
        request: CmlRequest,
        *,
        seconds: float | None = None,
        asked: CmlOperation = CmlOperation.ANYTHING,
        hide: Secret | None = None,
        open_to_all: bool = False,
    ) -> CmlResponse:
        seconds = seconds or self.limits.effect_seconds
        try:
            async with asyncio.timeout(seconds):
                got = await (self._connection.exchange(request) if open_to_all else self._call_signed_in(request))
        except TimeoutError as error:
            raise Unreachable(f"no answer from {request.url} within {seconds:g} s") from error
        return _check_response(request, got, asked, hide)

    async def _call_signed_in(self, request: CmlRequest) -> CmlResponse:
        token = self._token.value or await self._renew_token(None)
        got = await self._send_with_token(request, token)
        if got.status == _UNAUTHORIZED:
            got = await self._send_with_token(request, await self._renew_token(token))
        return got

    async def _send_with_token(self, request: CmlRequest, token: Secret) -> CmlResponse:
        if request.method != "GET":
            check_permit()
        request.headers["Authorization"] = f"Bearer {token.reveal()}"
        return await self._connection.exchange(request)

    async def _renew_token(self, stale: Secret | None) -> Secret:
        """Return a token other than this one. Of many callers at once, one signs in for all."""
        held, seen = self._token, self._token.failures
        async with self._signing_in:
            if held.value is not None and held.value is not stale:
                return held.value
            now = asyncio.get_running_loop().time()
            if held.failure is not None and (held.failures != seen or now < held.not_before):
                raise held.failure.with_traceback(None)  # else the traceback grows with every caller
            try:
                held.value, held.failure = await self._fetch_token(), None
            except LcmError as error:
                held.value, held.failure, held.failures = None, error, held.failures + 1
                held.not_before = now + _sign_in_pause_seconds(error, self.limits)
                raise
            return held.value

    async def _fetch_token(self) -> Secret:
        body = {"username": self._username, "password": self._password.reveal()}
        request = self._connection.build_request(
            "POST", "auth_extended", content=_encode(body), headers={"Content-Type": "application/json"}
        )
        got = _check_response(request, await self._connection.exchange(request), CmlOperation.SIGN_IN, self._password)
        identity = _decode_response(request, got, _sign_in_decoder)
        if not identity.admin:
            # Such a user does not see others' labs, so their ports would look free.
            raise CmlAuthenticationError(
                "CmlUserNotAllowed", f"{self._username} is no administrator of {self._url}; make it one"
            )
        return Secret(identity.token)


def _sign_in_pause_seconds(error: LcmError, limits: CmlLimits) -> float:
    """Return for how long a sign-in that failed like this would only fail again, or make things worse."""
    if isinstance(error, Throttled):
        return error.after.total_seconds()
    return limits.refusal_seconds if isinstance(error, Stuck) else 0


def _check_response(request: CmlRequest, got: CmlResponse, asked: CmlOperation, hide: Secret | None) -> CmlResponse:
    if got.status in _SUCCESS:
        if got.media_type == "text/html":
            raise Unreachable(f"{request.url} answered with a web page: that is not CML")
        return got
    said = error_text(got.body, hide)
    raise translate_refusal(CmlFailure(asked, f"{request.method} {request.url}", got.status, said, got.retry_after))


def _decode_response(request: CmlRequest, got: CmlResponse, answer: msgspec.json.Decoder[T]) -> T:
    try:
        return answer.decode(got.body)
    except msgspec.ValidationError as error:
        raise _not_understood(request, str(error)) from error
    except JSON_ERRORS as error:
        raise Unreachable(f"{request.url} answered {len(got.body)} bytes that are not JSON: {error}") from error


def _not_understood(request: CmlRequest, problem: str) -> CmlAnswerError:
    return CmlAnswerError(
        "CmlAnswerNotUnderstood",
        f"{request.method} {request.url} answered in a form we do not know: {problem}; is CML newer than we are?",
    )
