"""Real ports for a simulated cloud's labs: every machine has an address of its own, where PATty listens.

Made by `compose` for `lcm up` and for `lcm serve` on a simulated cloud. Linux answers on the whole of 127.0.0.0/8;
other systems only on 127.0.0.1, which all machines then share.
"""

import asyncio
import socket
from ipaddress import IPv4Network
from typing import Final
from zlib import crc32

import structlog

from lcm.sim.cloud.fleet import RunningMachine, SimFleet
from lcm.sim.cml.patty_ports import MOST_PORTS, PattyPorts
from lcm.system.tasks import TimeSlice

SYNC_SECONDS: Final = 0.5
_SLEEP_FACTOR: Final = 100
_SHOWN: Final = 10
_SHARED_NETWORK: Final = IPv4Network("127.0.0.1/32")
_FIRST, _NETWORKS = 100, 100
_log: Final = structlog.get_logger()


def loopback_network(owner: str) -> IPv4Network:
    """Return the network for an installation's machines; two installations on one computer rarely share one."""
    network = IPv4Network(f"127.{_FIRST + crc32(owner.encode()) % _NETWORKS}.0.0/16")
    with socket.socket() as probe:
        try:
            probe.bind((str(network[1]), 0))
        except OSError as error:
            remedy = "all simulated machines are at 127.0.0.1: two of them cannot have the same port open"
            _log.warning("only one loopback address", wanted=str(network[1]), error=str(error), remedy=remedy)
            return _SHARED_NETWORK
    return network


class PattyServer:
    """Follows a fleet: opens the ports that its labs have open, and closes those that they no longer have."""

    def __init__(self, fleet: SimFleet, *, most: int = MOST_PORTS, every_seconds: float = SYNC_SECONDS) -> None:
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
                # However many labs there are, leave most of the time to others.
                await asyncio.sleep(max(self._every_seconds, (now() - began) * _SLEEP_FACTOR))
        finally:
            self.close()

    async def sync(self) -> None:
        """Open and close ports once."""
        hosts, time_slice = dict[str, RunningMachine](), TimeSlice()
        for instance_id in self._fleet.machines_with_labs():
            if (host := self._fleet.find_running(instance_id)) is not None:
                hosts[instance_id] = host
            await time_slice.yield_if_over()
        for instance_id in self._machines.keys() - hosts.keys():
            self._machines.pop(instance_id).close()
            self._told.pop(instance_id, None)
        left = self._most - sum(one.count for one in self._machines.values())
        for host in hosts.values():
            left -= await self._sync_machine(host, left)
            await time_slice.yield_if_over()

    def close(self) -> None:
        """Close every port of every machine."""
        for ports in self._machines.values():
            ports.close()
        self._machines.clear()

    async def _sync_machine(self, host: RunningMachine, left: int) -> int:
        """Open and close a machine's ports, while some are `left`. Return how many more are open than before."""
        ports = self._machines.setdefault(host.instance_id, PattyPorts(host.cml, host.address))
        before = ports.count
        await ports.sync(max(0, left + before))
        self._log_closed_ports(host, ports)
        return ports.count - before

    def _log_closed_ports(self, host: RunningMachine, ports: PattyPorts) -> None:
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
