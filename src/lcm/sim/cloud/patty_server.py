"""The ports of a simulated cloud's labs, for real: every machine has an address of its own, where PATty listens.

Made by `compose` for `lcm up` and for `lcm serve` on a simulated cloud. Linux answers on the whole of 127.0.0.0/8;
other systems only on 127.0.0.1, which all machines then share.
"""

import asyncio
import socket
from ipaddress import IPv4Network
from typing import Final
from zlib import crc32

import structlog

from lcm.sim.cloud.fleet import Fleet, Host
from lcm.sim.cml.patty_ports import MOST_PORTS, PattyPorts

EVERY_SECONDS: Final = 0.5
_SHARE: Final = 10
_SHOWN: Final = 10
_SHARED: Final = IPv4Network("127.0.0.1/32")
_FIRST, _NETWORKS = 100, 100
_log: Final = structlog.get_logger()


def home(owner: str) -> IPv4Network:
    """Say where an installation's machines get their addresses: two on one computer mostly have nothing in common."""
    network = IPv4Network(f"127.{_FIRST + crc32(owner.encode()) % _NETWORKS}.0.0/16")
    with socket.socket() as probe:
        try:
            probe.bind((str(network[1]), 0))
        except OSError as error:
            remedy = "all simulated machines are at 127.0.0.1: two of them cannot have the same port open"
            _log.warning("only one loopback address", wanted=str(network[1]), error=str(error), remedy=remedy)
            return _SHARED
    return network


class PattyServer:
    """Follows a fleet: opens what its labs have open, and closes what they have no more."""

    def __init__(self, fleet: Fleet, *, most: int = MOST_PORTS, every_seconds: float = EVERY_SECONDS) -> None:
        self._fleet = fleet
        self._most = most
        self._every_seconds = every_seconds
        self._machines: dict[str, PattyPorts] = {}
        self._told: dict[str, frozenset[int]] = {}

    async def run(self) -> None:
        """Follow until cancelled, and close everything then."""
        now = asyncio.get_running_loop().time
        try:
            while True:
                began = now()
                await self.sync()
                # However many labs there are, most of the time is others'.
                await asyncio.sleep(max(self._every_seconds, (now() - began) * _SHARE))
        finally:
            self.close()

    async def sync(self) -> None:
        """Open and close once."""
        hosts = {host.instance_id: host for host in self._fleet.hosts()}
        for instance_id in self._machines.keys() - hosts.keys():
            self._machines.pop(instance_id).close()
            self._told.pop(instance_id, None)
        for host in hosts.values():
            await self._follow(host)
            await asyncio.sleep(0)  # with many machines somebody else may wait

    def close(self) -> None:
        """Close every port of every machine."""
        for ports in self._machines.values():
            ports.close()
        self._machines.clear()

    async def _follow(self, host: Host) -> None:
        ports = self._machines.setdefault(host.instance_id, PattyPorts(host.cml, host.address))
        others = sum(one.count for one in self._machines.values()) - ports.count
        await ports.sync(max(0, self._most - others))
        self._tell(host, ports)

    def _tell(self, host: Host, ports: PattyPorts) -> None:
        """Log what could not be opened, once for every port."""
        closed = {port.outside: why for port, why in ports.taken.items()}
        known = self._told.get(host.instance_id, frozenset())
        if new := sorted(closed.keys() - known):
            _log.warning(
                "ports of a simulated machine stay closed",
                machine=host.instance_id,
                address=host.address,
                ports=new[:_SHOWN],
                count=len(new),
                error=closed[new[0]],
            )
        self._told[host.instance_id] = frozenset(closed)
