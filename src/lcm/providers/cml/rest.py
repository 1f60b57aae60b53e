"""One controller's REST API as questions and orders: typed values or errors of the tree come back. Used by `cml`.

It holds the controller's one token. Every call has a time limit over all of it, its sign-in included, because a server
that sends a byte now and then never trips a read time-out.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import httpx
import msgspec

from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Stuck, Throttled, Unreachable
from lcm.providers.cml.connection import Answer, Limits, Line
from lcm.providers.cml.errors import NOT_JSON, Asked, Failure, refused, words
from lcm.providers.protocols.labhost import CmlAnswerError, CmlAuthenticationError
from lcm.providers.protocols.permit import permit

T = TypeVar("T")

_SUCCESS: Final = range(200, 300)
_UNAUTHORIZED: Final = 401
_encode: Final = msgspec.json.Encoder().encode


class _Identity(msgspec.Struct):
    token: Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]+\Z")]
    """Checked here, because a header that cannot carry it would be shown in the error, and in logs."""
    admin: bool


_identity: Final = msgspec.json.Decoder(_Identity)
_string: Final = msgspec.json.Decoder(str)


@dataclass(slots=True)
class _Token:
    """The token in use, and how the last sign-in failed if it did."""

    value: Secret | None = None
    failures: int = 0
    failure: LcmError | None = None
    not_before: float = 0


class Wire:
    """Asks one controller, signing in when that is needed."""

    def __init__(
        self,
        url: str,
        username: str,
        password: Secret,
        *,
        pin: str | None = None,
        limits: Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._line = Line(url, pin=pin, limits=self.limits, transport=transport)
        self._url = url
        self._username = username
        self._password = password
        self._token = _Token()
        self._signing_in = asyncio.Lock()

    async def ask(
        self,
        path: str,
        answer: msgspec.json.Decoder[T],
        *,
        params: Mapping[str, str] | None = None,
        open_to_all: bool = False,
    ) -> T:
        """Read something. `open_to_all` needs no sign-in."""
        request = self._line.request("GET", path, params=params)
        got = await self._call(request, seconds=self.limits.question_seconds, open_to_all=open_to_all)
        return _decoded(request, got, answer)

    async def text(self, path: str) -> str:
        """Read a text that may be long. Some controllers send it as a JSON string."""
        request = self._line.request("GET", path)
        got = await self._call(request)
        if got.media_type == "application/json" and got.body[:1] == b'"':
            return _decoded(request, got, _string)
        try:
            return got.body.decode()
        except UnicodeDecodeError as error:
            raise _odd(request, f"expected UTF-8: {error}") from error

    async def tell(
        self, method: str, path: str, body: object = None, *, asked: Asked = Asked.ANYTHING, hide: Secret | None = None
    ) -> int:
        """Change something and return the status, which is a success. `hide` is blotted out of any error."""
        content = None if body is None else _encode(body)
        headers = None if body is None else {"Content-Type": "application/json"}
        request = self._line.request(method, path, content=content, headers=headers)
        return (await self._call(request, asked=asked, hide=hide)).status

    async def hand_in(
        self, path: str, text: str, answer: msgspec.json.Decoder[T], *, params: Mapping[str, str], asked: Asked
    ) -> T:
        """Hand in a text, without a content type as the official client does, and read the answer."""
        request = self._line.request("POST", path, params=params, content=text.encode())
        return _decoded(request, await self._call(request, asked=asked), answer)

    async def sign_in(self) -> None:
        """Sign in anew, even if there is a token."""
        seconds = self.limits.question_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._token_after(self._token.value)
        except TimeoutError as error:
            raise Unreachable(f"no sign-in at {self._url} within {seconds:g} s") from error

    async def close(self) -> None:
        """Let go of connections. May be repeated."""
        await self._line.close()

    async def _call(
        self,
        request: httpx.Request,
        *,
        seconds: float | None = None,
        asked: Asked = Asked.ANYTHING,
        hide: Secret | None = None,
        open_to_all: bool = False,
    ) -> Answer:
        seconds = seconds or self.limits.effect_seconds
        try:
            async with asyncio.timeout(seconds):
                got = await (self._line.exchange(request) if open_to_all else self._signed(request))
        except TimeoutError as error:
            raise Unreachable(f"no answer from {request.url} within {seconds:g} s") from error
        return _checked(request, got, asked, hide)

    async def _signed(self, request: httpx.Request) -> Answer:
        token = self._token.value or await self._token_after(None)
        got = await self._sent(request, token)
        if got.status == _UNAUTHORIZED:
            got = await self._sent(request, await self._token_after(token))
        return got

    async def _sent(self, request: httpx.Request, token: Secret) -> Answer:
        if request.method != "GET":
            permit()
        return await self._line.exchange(_with(request, token))

    async def _token_after(self, stale: Secret | None) -> Secret:
        """Return a token other than this one; of many who ask at once, one signs in for all."""
        held, seen = self._token, self._token.failures
        async with self._signing_in:
            if held.value is not None and held.value is not stale:
                return held.value
            now = asyncio.get_running_loop().time()
            if held.failure is not None and (held.failures != seen or now < held.not_before):
                raise held.failure.with_traceback(None)  # or it would grow with every caller
            try:
                held.value, held.failure = await self._new_token(), None
            except LcmError as error:
                held.value, held.failure, held.failures = None, error, held.failures + 1
                held.not_before = now + _pause(error, self.limits)
                raise
            return held.value

    async def _new_token(self) -> Secret:
        body = {"username": self._username, "password": self._password.reveal()}
        request = self._line.request(
            "POST", "auth_extended", content=_encode(body), headers={"Content-Type": "application/json"}
        )
        got = _checked(request, await self._line.exchange(request), Asked.SIGN_IN, self._password)
        identity = _decoded(request, got, _identity)
        if not identity.admin:
            # Others' labs would be invisible to it, and their ports would look free.
            raise CmlAuthenticationError(
                "CmlUserNotAllowed", f"{self._username} is no administrator of {self._url}; make it one"
            )
        return Secret(identity.token)


def _with(request: httpx.Request, token: Secret) -> httpx.Request:
    request.headers["Authorization"] = f"Bearer {token.reveal()}"
    return request


def _pause(error: LcmError, limits: Limits) -> float:
    """Say for how long a sign-in that failed like this would only fail again, or make things worse."""
    if isinstance(error, Throttled):
        return error.after.total_seconds()
    return limits.refusal_seconds if isinstance(error, Stuck) else 0


def _checked(request: httpx.Request, got: Answer, asked: Asked, hide: Secret | None) -> Answer:
    if got.status in _SUCCESS:
        if got.media_type == "text/html":
            raise Unreachable(f"{request.url} answered with a web page: that is not CML")
        return got
    said = words(got.body, hide)
    raise refused(Failure(asked, f"{request.method} {request.url}", got.status, said, got.retry_after))


def _decoded(request: httpx.Request, got: Answer, answer: msgspec.json.Decoder[T]) -> T:
    try:
        return answer.decode(got.body)
    except msgspec.ValidationError as error:
        raise _odd(request, str(error)) from error
    except NOT_JSON as error:
        raise Unreachable(f"{request.url} answered {len(got.body)} bytes that are not JSON: {error}") from error


def _odd(request: httpx.Request, problem: str) -> CmlAnswerError:
    return CmlAnswerError(
        "CmlAnswerNotUnderstood",
        f"{request.method} {request.url} answered in a form we do not know: {problem}; is CML newer than we are?",
    )
