"""All that is asked of one CML when its worker is measured: few calls, one after the other. For `monitor`.

One connection carries them, so that a thousand workers cost a thousand sockets. What was answered before an error is
kept; an error that only concerns one question does not end the others.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from lcm.controllers.worker.measure import HostView, confirm_licence
from lcm.model.errors import Gone, Later, LcmError, Refused, Stuck, Unreachable
from lcm.model.worker import LabWorker
from lcm.providers.hosts import Hosts

HOST_SECONDS: Final = 20.0
"""How long all of it may take."""


async def ask(hosts: Hosts, worker: LabWorker, *, now: datetime, since: datetime, seldom: bool) -> HostView:
    """Ask a worker's CML; `since` is for what people did, `seldom` asks also for what hardly ever changes."""
    talk = _Talk(HostView(now))
    try:
        async with asyncio.timeout(HOST_SECONDS):
            await talk.hold(hosts, worker, since=since, seldom=seldom)
    except TimeoutError:
        talk.failed(Unreachable(f"{worker.status.cml.api_url} takes longer than {HOST_SECONDS:g} s to answer"))
    except (Later, Stuck, Refused, Gone) as error:
        talk.failed(error)
    return talk.view


class _Talk:
    """What one CML has said so far."""

    def __init__(self, view: HostView) -> None:
        self.view = view

    async def hold(self, hosts: Hosts, worker: LabWorker, *, since: datetime, seldom: bool) -> None:
        host, known = await hosts.of(worker), worker.status.cml
        await self._ask("stats", host.stats())
        await self._ask("health", host.health())
        await self._ask("nodes", host.all_nodes())
        await self._ask("activity", host.activity(since=since))
        if seldom or not known.version:
            await self._ask("system", host.system())
        if seldom or confirm_licence(worker.status, self.view.health):
            await self._ask("licence", host.licence())

    def failed(self, error: LcmError) -> None:
        self.view = replace(self.view, error=self.view.error or error)

    async def _ask(self, name: str, question: Awaitable[object]) -> None:
        try:
            answer: dict[str, Any] = {name: await question}
        except (Stuck, Refused, Gone) as error:
            self.failed(error)
        else:
            self.view = replace(self.view, **answer)
