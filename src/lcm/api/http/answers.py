"""What a handler returns, and how it is sent over ASGI: one message for the headers, one for the body.

Made by every handler of `api.routes`; sent by `api.http.app`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lcm.model.kinds.registry import Resource
from lcm.system.connection import WHOLE_ANSWER

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]
Headers = Sequence[Header]

JSON: Final = b"application/json"
MERGE_PATCH: Final = b"application/merge-patch+json"
NDJSON: Final = b"application/x-ndjson"
SSE: Final = b"text/event-stream"
HTML: Final = b"text/html; charset=utf-8"
PROBLEM: Final = b"application/problem+json"
CSP: Final = b"content-security-policy"
_SAFE_HEADERS: Final[Headers] = ((b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY"))
_NOT_KEPT: Final = b"no-store"
_COMMON_HEADERS: Final[Headers] = (
    *_SAFE_HEADERS,
    (b"cache-control", _NOT_KEPT),
    (b"referrer-policy", b"no-referrer"),
    (CSP, b"default-src 'none'; frame-ancestors 'none'"),
)
"""Most answers are no pages, so that a browser that takes one for a page runs nothing of it."""
_PAGE_HEADERS: Final[Headers] = (*_SAFE_HEADERS, (b"referrer-policy", b"same-origin"))
"""With no-referrer, browsers would not say that a form comes from a page of ours."""
_HSTS: Final[Header] = (b"strict-transport-security", b"max-age=31536000")
_HSTS_LINE: Final = b"%s: %s\r\n" % _HSTS
_JSON_HEADERS: Final[Headers] = (*_COMMON_HEADERS, (b"content-type", JSON))
_NO_CONTENT_STATUS: Final = 204
_BODILESS: Final = frozenset({_NO_CONTENT_STATUS, 304})
CLOSE: Final = (b"connection", b"close")
_CACHED_BYTES: Final = 8_192
_CACHE_ENTRIES: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode


class Answer(msgspec.Struct):
    """A complete HTTP answer."""

    status: int = 200
    body: bytes = b""
    headers: Headers = ()
    media: bytes = JSON
    page_policy: bytes = b""
    """What a page may load and do (a Content-Security-Policy); nothing, if it is empty."""
    kept: bytes = _NOT_KEPT
    """How long a page, or what it loads, may be kept (Cache-Control). Nothing else may be kept at all."""
    head: bytes = b""
    """The status line and the headers as they are sent, of an answer that is sent again and again."""


@dataclass(slots=True)
class Stream:
    """A streamed answer; it ends when either side closes it."""

    begin: Callable[[], AsyncGenerator[bytes]]
    """Called after the headers were sent; never called for HEAD requests."""
    media: bytes
    headers: Headers = ()
    status: int = 200


NO_CONTENT: Final = Answer(_NO_CONTENT_STATUS)
_answer_cache: Final[dict[int, tuple[Resource, Answer]]] = {}
"""Answers for recently read objects, by `id()`. The entry holds the object, so that its id stays its own."""


def json_answer(body: object, status: int = 200) -> Answer:
    """Return a value as a JSON answer."""
    return Answer(status, _encode(body))


def resource_answer(found: Resource, status: int = 200, headers: Headers = ()) -> Answer:
    """Return the answer for an object, with its revision as entity tag."""
    tag = (b"etag", b'"%d"' % found.metadata.resource_version)
    return Answer(status, _encode(found), (tag, *headers))


def stored_answer(found: Resource) -> Answer:
    """Return the answer for an object as it is stored; small answers are cached by the object's identity."""
    kept = _answer_cache.get(id(found))
    if kept is not None and kept[0] is found:
        return kept[1]
    answer = resource_answer(found)
    if len(answer.body) <= _CACHED_BYTES:
        answer.head = _build_head(answer)
        if len(_answer_cache) >= _CACHE_ENTRIES:
            _answer_cache.clear()
        _answer_cache[id(found)] = (found, answer)
    return answer


def headers_of(answer: Answer) -> list[Header]:
    """Return the headers of an answer."""
    body = answer.body
    common: Headers = _COMMON_HEADERS
    if answer.page_policy:
        common = (*_PAGE_HEADERS, (b"cache-control", answer.kept), (CSP, answer.page_policy))
    length = (b"content-length", b"%d" % len(body))
    if answer.media is JSON and body:
        return [*_JSON_HEADERS, length, *answer.headers]
    if body:
        return [*common, (b"content-type", answer.media), length, *answer.headers]
    return [*common, *answer.headers, *(() if answer.status in _BODILESS else (length,))]


def _build_head(answer: Answer) -> bytes:
    """Return the status line and the headers of a success whose headers are all our own."""
    lines = (b"%s: %s\r\n" % header for header in headers_of(answer))
    return b"HTTP/1.1 %d OK\r\n%s" % (answer.status, b"".join(lines))


async def send_answer(
    scope: Scope, send: Send, answer: Answer, *, secure: bool = False, bodiless: bool = False
) -> None:
    """Send an answer: at once if its head is ready and the server takes a whole answer, else in two messages."""
    send_whole = scope.get("extensions", {}).get(WHOLE_ANSWER) if answer.head and not bodiless else None
    if send_whole is not None:
        await send_whole(answer.head + _HSTS_LINE if secure else answer.head, answer.body)
        return
    headers, body = headers_of(answer), b"" if bodiless else answer.body
    if secure:
        headers.append(_HSTS)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_stream_start(send: Send, stream: Stream) -> None:
    """Send the status and headers of a stream."""
    headers = [*_COMMON_HEADERS, (b"content-type", stream.media), *stream.headers]
    await send({"type": "http.response.start", "status": stream.status, "headers": headers})
