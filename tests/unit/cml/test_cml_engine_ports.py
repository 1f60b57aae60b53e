"""PATty on the simulated CML: which tags open which ports, for whom, and what answers there."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from random import SystemRandom

import pytest

from harness.clouds import LONG, Bench, link, node, one, text
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.patty import PortMapping
from lcm.sim.cml.patty_ports import PattyPorts
from lcm.sim.cml.rest.documents import NodeUpdate
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock

LOOPBACK = "127.0.0.1"


def opened(*tags: str, definition: str = "alpine") -> dict[tuple[str, int], tuple[str, int]]:
    """Boot a node with these tags behind NAT, and say which ports are open and where they lead."""
    bench = Bench()
    nodes = node("N", definition, tags=list(tags)), node("out", "external_connector")
    bench.booted(text(*nodes, links=[link("N/i0", "out/i0")]))
    ports = [*bench.cml.patty_ports("tcp").values(), *bench.cml.patty_ports("udp").values()]
    return {(port.protocol, port.outside): (port.kind, port.inside) for port in ports}


@pytest.mark.parametrize(
    ("tag", "port", "leads_to"),
    [
        ("serial:4001", ("tcp", 4001), ("serial", 0)),
        ("serial:4001:0", ("tcp", 4001), ("serial", 0)),
        ("vnc:4901", ("tcp", 4901), ("vnc", 0)),
        ("pat:4201:22", ("tcp", 4201), ("pat", 22)),
        ("pat:tcp:4201:22", ("tcp", 4201), ("pat", 22)),
        ("pat:udp:4201:161", ("udp", 4201), ("pat", 161)),
        ("pat:2000:22", ("tcp", 2000), ("pat", 22)),
        ("pat:7999:22", ("tcp", 7999), ("pat", 22)),
    ],
)
def test_a_tag_opens_a_port(tag: str, port: tuple[str, int], leads_to: tuple[str, int]) -> None:
    assert opened(tag) == {port: leads_to}


@pytest.mark.parametrize(
    "tag",
    [
        "serial:1999",
        "serial:8000",
        "serial:80",
        "serial:40010",
        "serial:4001:7",
        "vnc:abcd",
        "pat:4201",
        "pat:sctp:4201:22",
        "Serial:4001",
        " serial:4001",
        "serial:4001\n",
        "core",
        "",
    ],
)
def test_any_other_tag_is_just_text(tag: str) -> None:
    assert opened(tag) == {}


def test_a_line_or_a_screen_that_a_node_does_not_have_is_not_served() -> None:
    assert opened("serial:4001:1", definition="csr1000v") == {("tcp", 4001): ("serial", 1)}
    assert opened("vnc:4901", definition="csr1000v") == {}


def test_pat_needs_an_address_from_a_connector_in_nat_mode() -> None:
    for connector, open_ports in (("NAT", [4201]), ("bridge0", [])):
        bench = Bench()
        bench.booted(
            text(
                node("N", "alpine", tags=["pat:4201:22"]),
                node("S", "unmanaged_switch", 2),
                node("out", "external_connector", configuration=connector),
                links=[link("N/i0", "S/i0"), link("S/i1", "out/i0")],
            )
        )
        assert list(bench.cml.patty_ports()) == open_ports


def test_a_port_opens_some_seconds_after_the_node_runs_and_closes_with_it() -> None:
    bench = Bench()
    lab = bench.started(text(node("N", tags=["serial:4001"])))
    assert bench.cml.patty_ports() == {}
    bench.wait(10)
    only = one(lab, "N")
    assert bench.cml.patty_ports() == {4001: PortMapping("tcp", 4001, lab.id, only.id, "serial", 0)}
    bench.cml.labs.change_node(lab, only, NodeUpdate(tags=["serial:4002"]))
    assert list(bench.cml.patty_ports()) == [4002]
    bench.cml.labs.stop(lab)
    bench.wait(5)
    assert bench.cml.patty_ports() == {}


def test_of_two_nodes_that_want_a_port_the_first_has_it_until_it_stops() -> None:
    bench = Bench()
    first = bench.started(text(node("N", tags=["serial:4001"])))
    bench.wait(LONG)
    second = bench.started(text(node("N", tags=["serial:4001", "pat:udp:4001:1"])))
    bench.wait(LONG)
    assert bench.cml.patty_ports()[4001].lab_id == first.id
    bench.cml.labs.stop(first)
    bench.wait(5)
    assert bench.cml.patty_ports()[4001].lab_id == second.id


def test_a_machine_that_is_off_opens_nothing() -> None:
    bench = Bench()
    bench.booted(text(node("N", tags=["serial:4001"])))
    bench.cml.restart()
    assert bench.cml.patty_ports() == {}


@contextlib.asynccontextmanager
async def serving(*tags: str) -> AsyncIterator[tuple[Cml, PattyPorts, list[int]]]:
    """Boot a node with these tags and serve its ports, whichever are free on this machine."""
    cml = Cml(SystemClock(), Chance(1), speed=1_000_000)
    nodes = node("N", "alpine"), node("out", "external_connector")
    lab, _ = cml.import_lab(text(*nodes, links=[link("N/i0", "out/i0")]), cml.users.administrator)
    cml.labs.start(lab)
    while not lab.is_converged(cml.pace.age()):
        await asyncio.sleep(0.001)
    ports, chosen = PattyPorts(cml, LOOPBACK), list[int]()
    try:
        for _ in range(10):
            chosen = SystemRandom().sample(range(2000, 8000), len(tags))
            one(lab, "N").spec.tags = [tag.format(port) for tag, port in zip(tags, chosen, strict=True)]
            await ports.sync()
            if not ports.taken:
                break
        assert not ports.taken
        yield cml, ports, chosen
    finally:
        ports.close()


async def greeting(port: int, size: int) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        return await asyncio.wait_for(reader.read(size), 60)
    finally:
        writer.close()
        await writer.wait_closed()


async def first_greeting(port: int, size: int) -> bytes:
    """Knock until somebody opens."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return await greeting(port, size)
            await asyncio.sleep(0.01)


async def test_real_ports_greet_like_a_console_and_a_screen() -> None:
    async with serving("serial:{}", "vnc:{}") as (_, _, (serial, vnc)):
        assert b"N con0 is now available" in await greeting(serial, 200)
        assert await greeting(vnc, 12) == b"RFB 003.008\n"


async def test_a_real_port_of_a_node_echoes_and_ends_with_the_node() -> None:
    async with serving("pat:{}:22") as (cml, ports, (port,)):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.readexactly(16), 60) == b"N port 22\r\nhello"
        cml.power_off()
        await ports.sync()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(LOOPBACK, port)


async def test_a_real_udp_port_echoes() -> None:
    async with serving("pat:udp:{}:161") as (_, _, (port,)):
        loop = asyncio.get_running_loop()
        with socket.socket(type=socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)  # noqa: FBT003  the library's own signature
            asking.connect((LOOPBACK, port))
            await loop.sock_sendall(asking, b"hello")
            assert await asyncio.wait_for(loop.sock_recv(asking, 100), 60) == b"hello"


async def test_a_port_that_somebody_else_holds_is_reported_and_taken_when_it_is_free() -> None:
    async with serving("serial:{}") as (cml, first, (port,)):
        second = PattyPorts(cml, LOOPBACK)
        await second.sync()
        assert [found.outside for found in second.taken] == [port]
        following = asyncio.create_task(second.run(0.01))
        try:
            first.close()
            assert b"available" in await first_greeting(port, 200)
            assert second.taken == {}
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
