"""The watch: every commit that touches the wanted kinds, a line of JSON each, for what the caller may see.

A line without anything seen is a sign of life. The caller's token is looked at again before every line: the stream ends
when the token does.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

import msgspec

from lcm.api.answers import NDJSON, Stream
from lcm.api.auth import Vigil
from lcm.api.http import Request, epoch_header
from lcm.api.problems import told
from lcm.api.routes import GET, SIGNED_IN, Route
from lcm.api.shapes import ObjectSeen, WatchLine, WatchQuery
from lcm.control.plane import Changes
from lcm.control.wire import LIFE_SECONDS
from lcm.model.errors import Fault, Forbidden, Invalid, LcmError
from lcm.model.identity import PERMITTED, Caller, Verb
from lcm.model.kinds import KINDS, Resource

_encode: Final = msgspec.json.Encoder().encode


async def _watch(request: Request) -> Stream:
    query = request.query(WatchQuery)
    kinds = _kinds(request.signed_in, query.kinds)
    return Stream(partial(_lines, request, kinds, query.after), NDJSON, (epoch_header(request),))


def _kinds(caller: Caller, text: str) -> list[type[Resource]]:
    names = text.split(",")
    strange = [name for name in names if name not in KINDS]
    if strange:
        remedy = f"use some of {', '.join(KINDS)}, with commas between"
        raise Invalid(*(Fault("kinds", f"{name!r} is no kind", remedy) for name in strange))
    for name in names:
        if caller.role not in PERMITTED[name][Verb.READ]:
            raise Forbidden(f"a caller of role {caller.role} may not {Verb.READ} {name} objects")
    return [KINDS[name].struct for name in dict.fromkeys(names)]


async def _lines(request: Request, kinds: list[type[Resource]], after: int) -> AsyncGenerator[bytes]:
    vigil = Vigil(request)
    async with request.plane.watch(*kinds, after=after) as watch:
        coming = asyncio.ensure_future(anext(watch))
        try:
            while True:
                await asyncio.wait({coming}, timeout=LIFE_SECONDS)
                vigil.check()
                if not coming.done():
                    yield _line(WatchLine(after, ()))
                    continue
                changes = coming.result()
                after = changes.revision
                yield _line(_written(changes))
                coming = asyncio.ensure_future(anext(watch))
        except LcmError as error:
            yield _line({"problem": told(error)})
        finally:
            coming.cancel()
            await asyncio.wait({coming})


def _written(changes: Changes) -> WatchLine:
    seen = [(one.ref, one.resource) for one in changes.seen]
    return WatchLine(
        changes.revision,
        tuple(ObjectSeen(ref.kind.__name__, ref.namespace, ref.name, resource) for ref, resource in seen),
    )


def _line(content: object) -> bytes:
    return _encode(content) + b"\n"


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/watch",
        _watch,
        "watch",
        "Follow changes, a line of JSON each",
        policy=SIGNED_IN,
        query=WatchQuery,
        answer=WatchLine,
        answer_media=NDJSON,
    ),
)
