"""One member of an etcd cluster as `lcm doctor` sees it. Writes nothing, also where no store was ever begun."""

from operator import attrgetter
from typing import Final

import msgspec

from lcm.store.etcd_keys import EPOCH_KEY, Keys
from lcm.store.etcd_wire import RANGE, EtcdTls, Method, Wire, rpc

_STATUS: Final[Method] = attrgetter("status")


class Member(msgspec.Struct, frozen=True):
    """What a member said. `begun`: there is a store of ours under the root."""

    version: str
    revision: int
    begun: bool


async def look(
    endpoint: str, *, root: str, tls: EtcdTls | None = None, user: str = "", password: str = "", seconds: float
) -> Member:
    """Ask one member how it is. Raises Unreachable when it does not answer, or has no leader."""
    wire = Wire([endpoint], tls=tls, user=user, password=password, call_seconds=seconds)
    try:
        if user:
            await wire.sign_in()
        status = await wire.ask(_STATUS, rpc.StatusRequest())
        found = await wire.ask(RANGE, rpc.RangeRequest(key=Keys(root).raw(EPOCH_KEY), count_only=True))
    finally:
        await wire.close()
    return Member(status.version, found.header.revision, bool(found.count))
