"""A process that delivers the events of a SQLite file until it is killed. It says when it begins."""

import asyncio
import os
import sys
from pathlib import Path

from lcm.control.delivery.outbox import Outbox
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import WebhookPolicy, parse_networks
from lcm.providers.local.outbound import Outbound
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock, random_fraction


async def reveal(ref: str) -> Secret:
    return Secret(ref)


async def deliver(path: Path) -> None:
    store = await SqliteStore.open(path)
    outbound = Outbound(WebhookPolicy(networks=parse_networks(["127.0.0.0/8"]), plain_http=True))
    outbox = Outbox(
        store,
        outbound.post,
        reveal,
        clock=SystemClock(),
        chance=random_fraction,
        source="https://lcm.test",
        ttl_seconds=2,
    )
    os.write(1, b"ready\n")
    await outbox.run()


if __name__ == "__main__":
    asyncio.run(deliver(Path(sys.argv[1])))
