"""Requests to an API as a plane's verbs make them: paths, queries, and the term that a write is bound to.

What `client` and its parts have in common.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lcm.control.client_line import Line
from lcm.control.ledger import missing
from lcm.control.plane import Document, Ref
from lcm.control.records import nameable
from lcm.control.wire import FENCE, IDEMPOTENCY_KEY, check_request
from lcm.model.kinds import KINDS
from lcm.store.base import Fence

_MERGE_PATCH: Final = {"Content-Type": "application/merge-patch+json"}


class Requests:
    """Sends requests as one caller, under at most one fence."""

    def __init__(self, line: Line, fence: Fence | None) -> None:
        self._line = line
        self._fence = fence

    async def _ask(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        return await self._line.ask(method, path, query=query)

    async def _write(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: msgspec.Struct | Document | None = None,
        *,
        at: int | None = None,
        request: str | None = None,
        seconds: float | None = None,
    ) -> bytes:
        headers = _headers(self._fence, at, request) | (_MERGE_PATCH if method == "PATCH" else {})
        content = None if body is None else msgspec.json.encode(body)
        return await self._line.ask(method, path, query=query, headers=headers, body=content, seconds=seconds)

    async def _send(self, path: str, data: bytes, media: str) -> bytes:
        """Send a file."""
        headers = _headers(self._fence, None, None) | {"Content-Type": media}
        return await self._line.ask("POST", path, headers=headers, body=data)


def _headers(fence: Fence | None, at: int | None, request: str | None) -> dict[str, str]:
    if request is not None:
        check_request(request)
    return (
        ({FENCE: f"{fence.lease};{fence.term}"} if fence else {})
        | ({} if at is None else {"If-Match": f'"{at}"'})
        | ({} if request is None else {IDEMPOTENCY_KEY: request})
    )


def within(ref: Ref[Any]) -> dict[str, str]:
    """Say in which namespace an object is."""
    return {"namespace": ref.namespace}


def collection(kind: type[Any]) -> str:
    """Say where a kind is served."""
    return f"/api/{KINDS[kind.__name__].plural}"


def path_of(ref: Ref[Any]) -> str:
    """Say where an object is served."""
    return f"/api/{ref.known.plural}/{named(ref)}"


def internal(ref: Ref[Any]) -> str:
    """Say where our own processes report on an object."""
    return f"/api/internal/{ref.known.plural}/{named(ref)}"


def named(ref: Ref[Any]) -> str:
    """Name an object within a path; Gone for what no object can be called."""
    if not nameable(ref):  # some of that would be another path
        raise missing(ref)
    return ref.name
