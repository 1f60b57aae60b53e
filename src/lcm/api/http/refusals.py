"""Refused calls of people in the audit: what they may not do, and writes to what is not there for them.

Used by `api.http.app`. Whoever is refused all the time must not fill the audit: some refusals
of each caller are recorded, with the number of those that were not.
"""

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from typing import Final

import structlog

from lcm.api.http.limits import ApiLimits, TokenBuckets
from lcm.api.http.request import Request
from lcm.control.access.audit import AuditedAction, make_record
from lcm.control.objects.writer import commit_ops
from lcm.model.access.identity import GUESTS, PEOPLE
from lcm.model.base.errors import LcmError
from lcm.model.base.resource import shorten_text
from lcm.store.base import Put, Store

_BURST: Final = 20
_PER_HOUR: Final = 10
_TOTAL_BURST: Final = 500
_TOTAL_PER_HOUR: Final = 200
_HOUR_SECONDS: Final = 3600.0
_ALL: Final = "all"
_MAX_TEXT: Final = 200
_WRITE_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 2.0
_PER_COMMIT: Final = 50
_log: Final = structlog.get_logger()


class RefusalLog:
    """Records refusals in the audit, within limits for each caller and for all together.

    They are written a few seconds later, many in a commit: a refused call costs the store nothing.
    """

    def __init__(self, store: Store, limits: ApiLimits) -> None:
        self._store = store
        self._callers = TokenBuckets(limits, rate=_PER_HOUR / _HOUR_SECONDS, burst=_BURST)
        self._all = TokenBuckets(limits, rate=_TOTAL_PER_HOUR / _HOUR_SECONDS, burst=_TOTAL_BURST)
        self._left_out: OrderedDict[str, int] = OrderedDict()
        self._remembered = limits.remembered
        self._pending: deque[Put] = deque(maxlen=2 * _TOTAL_BURST)

    async def run(self) -> None:
        """Write what was noted, at intervals and at the end, until cancelled."""
        try:
            while True:
                await asyncio.sleep(_WRITE_SECONDS)
                await self.flush()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self.flush()

    def note(self, request: Request, error: LcmError, status: int) -> None:
        """Note a refusal if it is one of a person, and there are not too many."""
        if not _is_refusal(request, status):
            return
        name, now = request.signed_in.name, asyncio.get_running_loop().time()
        if self._callers.take(name, now) or self._all.take(_ALL, now):
            self._count(name)
            return
        route = request.route
        assert route is not None, "a caller is known by the policy of a route"
        about = shorten_text(request.params[0], _MAX_TEXT) if request.params else ""
        record = make_record(
            request.signed_in,
            request.origin,
            [AuditedAction(verb=route.operation, kind=route.path, name=about)],
            at=request.shared.clock.now(),
            name=request.shared.core.record_ids(),
            epoch=self._store.epoch,
            refused=shorten_text(str(error), _MAX_TEXT),
            left_out=self._left_out.pop(name, 0),
        )
        self._pending.append(record)

    async def flush(self) -> None:
        """Write what was noted; what the store does not take now stays for the next time."""
        while self._pending:
            some = list(islice(self._pending, _PER_COMMIT))
            try:
                await commit_ops(self._store, *some)
            except LcmError as error:
                _log.warning("refusals not recorded yet", count=len(self._pending), error=str(error))
                return
            for _ in some:
                self._pending.popleft()

    def _count(self, name: str) -> None:
        self._left_out[name] = self._left_out.get(name, 0) + 1
        self._left_out.move_to_end(name)
        if len(self._left_out) > self._remembered:
            self._left_out.popitem(last=False)


def _is_refusal(request: Request, status: int) -> bool:
    if request.caller is None or request.caller.role not in PEOPLE | GUESTS:
        return False
    is_write = request.route is not None and request.route.method != "GET"
    return status == HTTPStatus.FORBIDDEN or (is_write and status == HTTPStatus.NOT_FOUND)
