"""What a handler gives back, and how it is sent over ASGI: one message for the head, one for the body.

Made by every handler of `api`; sent by `app`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lcm.model.kinds.registry import Resource

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
PROBLEM: Final = b"application/problem+json"
_HEAD: Final[Headers] = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_JSON_HEAD: Final[Headers] = (*_HEAD, (b"content-type", JSON))
_NO_CONTENT: Final = 204
CLOSE: Final = (b"connection", b"close")
_SMALL_BYTES: Final = 8_192
_MOST_KEPT: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode


class Answer(msgspec.Struct):
    """A whole answer."""

    status: int = 200
    body: bytes = b""
    headers: Headers = ()
    media: bytes = JSON


@dataclass(slots=True)
class Stream:
    """An answer that goes on until one side ends it."""

    begin: Callable[[], AsyncGenerator[bytes]]
    """Called once the head is sent; never for HEAD."""
    media: bytes
    headers: Headers = ()
    status: int = 200


NOTHING: Final = Answer(_NO_CONTENT)
_kept: Final[dict[int, tuple[Resource, Answer]]] = {}
"""By identity, which is theirs for as long as they are kept here."""


def value(body: object, status: int = 200) -> Answer:
    """Answer a value as JSON."""
    return Answer(status, _encode(body))


def resource(found: Resource, status: int = 200, headers: Headers = ()) -> Answer:
    """Answer an object, with its revision as entity tag."""
    tag = (b"etag", b'"%d"' % found.metadata.resource_version)
    return Answer(status, _encode(found), (tag, *headers))


def stored(found: Resource) -> Answer:
    """Answer an object as it is; what was answered for this very object lately is given again."""
    kept = _kept.get(id(found))
    if kept is not None and kept[0] is found:
        return kept[1]
    answer = resource(found)
    if len(answer.body) <= _SMALL_BYTES:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[id(found)] = (found, answer)
    return answer


def head_of(answer: Answer) -> list[Header]:
    """Give the headers of an answer."""
    body = answer.body
    length = (b"content-length", b"%d" % len(body))
    if answer.media is JSON and body:
        return [*_JSON_HEAD, length, *answer.headers]
    if body:
        return [*_HEAD, (b"content-type", answer.media), length, *answer.headers]
    return [*_HEAD, *answer.headers, *(() if answer.status == _NO_CONTENT else (length,))]


async def send_answer(send: Send, answer: Answer) -> None:
    """Send an answer."""
    await send({"type": "http.response.start", "status": answer.status, "headers": head_of(answer)})
    await send({"type": "http.response.body", "body": answer.body})


async def send_head(send: Send, stream: Stream) -> None:
    """Begin a stream."""
    headers = [*_HEAD, (b"content-type", stream.media), *stream.headers]
    await send({"type": "http.response.start", "status": stream.status, "headers": headers})
