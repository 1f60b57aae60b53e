"""The ports of a simulated cloud's labs as people use them: real sockets, an address for each machine."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from random import SystemRandom
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from harness import given
from harness.clouds import link, node, text
from harness.plane_world import Standing
from lcm.compose.process import run_embedded
from lcm.model.kinds.worker import AwsSpec
from lcm.providers.protocols.compute import Instance, Launch
from lcm.settings.load import Settings
from lcm.sim.cloud.fleet import SimFleet
from lcm.sim.cloud.patty_server import PattyServer, loopback_network
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.pace import FASTEST
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock

REGION = "us-east-1"
SOON = 60
ALL_LOOPBACK = loopback_network("probe").num_addresses > 1
pytestmark = pytest.mark.skipif(not ALL_LOOPBACK, reason="this system has one loopback address only")


def launch(number: int) -> Launch:
    return Launch(
        worker_uid=f"uid-{number}",
        worker_name=f"w{number}",
        token=f"uid-{number}-1",
        aws=AwsSpec(region=REGION, ami_name_pattern="CML-2.9*"),
        instance_type="m5zn.metal",
    )


def fast(file: Path | None = None, network: IPv4Network | None = None) -> SimFleet:
    return SimFleet(
        SystemClock(), Chance(uuid4().hex), speed=FASTEST, file=file, network=network or loopback_network(uuid4().hex)
    )


async def booted(fleet: SimFleet, number: int = 1) -> tuple[Instance, DirectHost]:
    """Launch a machine and wait until its CML is up."""
    machine = await fleet.cloud.ensure(launch(number))
    async with asyncio.timeout(SOON):
        while not isinstance(cml := fleet.cloud.find_attached(machine.instance_id), Cml) or not cml.is_up:
            await asyncio.sleep(0.001)
    return machine, DirectHost(cml)


async def started(host: DirectHost, *tags: str, label: str = "R1") -> str:
    nodes = node(label, "alpine", tags=list(tags)), node("out", "external_connector")
    lab = await host.ensure(f"lab of {label}", text(*nodes, links=[link(f"{label}/i0", "out/i0")]))
    await host.start(lab.lab_id)
    async with asyncio.timeout(SOON):
        while not await host.converged(lab.lab_id):
            await asyncio.sleep(0.001)
    return lab.lab_id


def free_ports(count: int, *addresses: str | None) -> Sequence[int]:
    """Choose ports that nobody has at any of these addresses."""
    for _ in range(100):
        ports = SystemRandom().sample(range(2000, 8000), count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for address in addresses:
                for port in ports:
                    stack.enter_context(socket.socket()).bind((address, port))
            return ports
    raise AssertionError("no free ports")


@contextlib.asynccontextmanager
async def served(fleet: SimFleet) -> AsyncIterator[None]:
    task = asyncio.create_task(PattyServer(fleet, every_seconds=0.02).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def heard(address: str | None, port: int, until: bytes) -> bytes:
    """Knock until somebody opens, and listen until these words come."""
    async with asyncio.timeout(SOON):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                reader, writer = await asyncio.open_connection(address, port)
                try:
                    return await reader.readuntil(until)
                finally:
                    writer.close()
            await asyncio.sleep(0.01)


async def closed(address: str | None, port: int) -> None:
    """Knock until nobody opens."""
    async with asyncio.timeout(SOON):
        while True:
            try:
                _, writer = await asyncio.open_connection(address, port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # it closed while we knocked
                continue
            writer.close()
            await asyncio.sleep(0.01)


async def test_a_console_a_screen_and_a_port_answer_at_the_machines_own_address() -> None:
    fleet = fast()
    machine, host = await booted(fleet)
    serial, vnc, pat = free_ports(3, machine.public_ip)
    await started(host, f"serial:{serial}", f"vnc:{vnc}", f"pat:{pat}:22")
    async with served(fleet):
        assert b"R1 con0 is now available" in await heard(machine.public_ip, serial, b"R1:~$ ")
        assert await heard(machine.public_ip, vnc, b"\n") == b"RFB 003.008\n"
        assert await heard(machine.public_ip, pat, b"\n") == b"R1 port 22\r\n"
    await closed(machine.public_ip, serial)


async def test_two_machines_have_the_same_port_open_at_once() -> None:
    fleet = fast()
    (one, first), (two, second) = await booted(fleet, 1), await booted(fleet, 2)
    assert one.public_ip != two.public_ip
    (port,) = free_ports(1, one.public_ip, two.public_ip)
    await started(first, f"serial:{port}", label="A")
    await started(second, f"serial:{port}", label="B")
    async with served(fleet):
        assert b"A con0" in await heard(one.public_ip, port, b"A:~$ ")
        assert b"B con0" in await heard(two.public_ip, port, b"B:~$ ")


async def test_a_port_closes_when_its_lab_stops_and_who_was_there_is_cut_off() -> None:
    fleet = fast()
    machine, host = await booted(fleet)
    (port,) = free_ports(1, machine.public_ip)
    lab_id = await started(host, f"serial:{port}")
    async with served(fleet):
        await heard(machine.public_ip, port, b"R1:~$ ")
        reader, writer = await asyncio.open_connection(machine.public_ip, port)
        await reader.readuntil(b"R1:~$ ")
        await host.stop(lab_id)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), SOON) == b""
        writer.close()
        await closed(machine.public_ip, port)
        await host.start(lab_id)
        assert await heard(machine.public_ip, port, b"R1:~$ ")


async def test_a_machine_that_is_terminated_closes_its_ports() -> None:
    fleet = fast()
    machine, host = await booted(fleet)
    (port,) = free_ports(1, machine.public_ip)
    await started(host, f"serial:{port}")
    async with served(fleet):
        await heard(machine.public_ip, port, b"R1:~$ ")
        await fleet.cloud.remove(REGION, machine.instance_id)
        await closed(machine.public_ip, port)


async def test_a_udp_port_sends_back_what_it_gets() -> None:
    fleet = fast()
    machine, host = await booted(fleet)
    (port,) = free_ports(1, machine.public_ip)
    await started(host, f"pat:udp:{port}:161")
    await (server := PattyServer(fleet)).sync()
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)  # noqa: FBT003  the library's own signature
            asking.connect((machine.public_ip, port))
            await asyncio.get_running_loop().sock_sendall(asking, b"hello")
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(asking, 100), SOON) == b"hello"
    finally:
        server.close()


async def test_a_restart_keeps_addresses_and_opens_the_ports_again(tmp_path: Path) -> None:
    file, network = tmp_path / "sim.json", loopback_network(uuid4().hex)
    before = fast(file, network)
    machine, host = await booted(before)
    (port,) = free_ports(1, machine.public_ip)
    await started(host, f"serial:{port}")
    async with served(before):
        await heard(machine.public_ip, port, b"R1:~$ ")
    await before.save()
    after = fast(file, network)
    found = await after.cloud.find(REGION, machine.instance_id)
    assert found is not None
    assert (found.public_ip, found.private_ip) == (machine.public_ip, machine.public_ip)
    async with served(after):
        assert b"R1 con0" in await heard(machine.public_ip, port, b"R1:~$ ")


async def test_up_opens_the_ports_of_its_labs_by_itself(tmp_path: Path) -> None:
    async with run_embedded(Settings(data_dir=tmp_path, port=0), speed=FASTEST, controllers=()) as it:
        assert it.outside.fleet is not None
        machine, host = await booted(it.outside.fleet)
        (port,) = free_ports(1, machine.public_ip)
        await started(host, f"serial:{port}")
        assert await heard(machine.public_ip, port, b"R1:~$ ")
    await closed(machine.public_ip, port)


async def test_a_stopped_machine_starts_again_at_its_address() -> None:
    fleet = fast()
    machine, _ = await booted(fleet)
    async with asyncio.timeout(SOON):
        await fleet.cloud.stop(REGION, machine.instance_id)
        while (await fleet.cloud.find(REGION, machine.instance_id)).state != "stopped":  # type: ignore[union-attr]
            await asyncio.sleep(0.001)
    await fleet.cloud.start(REGION, machine.instance_id)
    found = await fleet.cloud.find(REGION, machine.instance_id)
    assert found is not None
    assert found.public_ip == machine.public_ip


async def test_machines_of_an_older_file_get_addresses_of_their_own(tmp_path: Path) -> None:
    file, network, at = tmp_path / "sim.json", loopback_network("mine"), given.moment("08:00")
    older = SimFleet(Standing(at), Chance(1), file=file)
    machines = [await older.cloud.ensure(launch(number)) for number in (1, 2)]
    newer = SimFleet(Standing(at + timedelta(minutes=1)), Chance(2), file=file, network=network)
    found = [await newer.cloud.find(REGION, one.instance_id) for one in machines]
    addresses = {one.public_ip for one in found if one is not None and one.public_ip is not None}
    assert len(addresses) == 2
    assert all(IPv4Address(one) in network for one in addresses)


async def test_an_address_is_nobody_elses_while_its_machine_lives() -> None:
    fleet = SimFleet(Standing(given.moment("08:00")), Chance(1), network=IPv4Network("127.100.0.0/29"))
    machines = [await fleet.cloud.ensure(launch(number)) for number in range(6)]
    assert len({one.private_ip for one in machines}) == 6
    fleet.cloud.account.die(REGION, machines[2].instance_id)
    assert (await fleet.cloud.ensure(launch(6))).private_ip == machines[2].private_ip


async def test_machines_share_the_only_address_of_a_system_that_has_one() -> None:
    fleet = SimFleet(Standing(given.moment("08:00")), Chance(1), network=IPv4Network("127.0.0.1/32"))
    assert {(await fleet.cloud.ensure(launch(number))).public_ip for number in (1, 2)} == {"127.0.0.1"}


async def test_a_port_that_somebody_else_has_is_logged_once_and_opened_when_it_is_free() -> None:
    fleet = fast()
    machine, host = await booted(fleet)
    (port,) = free_ports(1, machine.public_ip)
    await started(host, f"serial:{port}")
    server = PattyServer(fleet)
    try:
        with capture_logs() as logs, socket.create_server((machine.public_ip, port)):
            await server.sync()
            await server.sync()
        assert [(one["ports"], one["machine"]) for one in logs] == [([port], machine.instance_id)]
        await server.sync()
        assert await heard(machine.public_ip, port, b"R1:~$ ")
    finally:
        server.close()


async def test_no_more_ports_are_opened_than_allowed() -> None:
    fleet = fast()
    machine, host = await booted(fleet)
    ports = sorted(free_ports(3, machine.public_ip))
    await started(host, *(f"pat:{port}:22" for port in ports))
    server = PattyServer(fleet, most=2)
    try:
        with capture_logs() as logs:
            await server.sync()
        assert [(one["ports"], one["error"]) for one in logs] == [(ports[2:], "2 ports are open already")]
        await closed(machine.public_ip, ports[2])
    finally:
        server.close()


def test_installations_on_one_computer_have_networks_of_their_own() -> None:
    assert loopback_network("one") == loopback_network("one")
    assert len({loopback_network(str(number)) for number in range(20)}) > 10
