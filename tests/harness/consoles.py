"""Simulated labs with real ports, and clients that speak to them as people's programs do: telnet and RFB."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import SystemRandom
from uuid import uuid4

from harness.clouds import link, node, text
from lcm.sim.cloud.patty_server import loopback_network
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.pace import FASTEST
from lcm.sim.cml.parts import Node, SimLab
from lcm.sim.cml.patty_ports import PattyPorts
from lcm.sim.time.chance import Chance
from lcm.system.clock import SystemClock

SOON = 60.0
IAC, WILL, DO = 255, 251, 253


@dataclass
class Telnet:
    """A telnet client that agrees to everything and keeps what it reads."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    text: bytes = b""

    async def until(self, wanted: str) -> str:
        """Read until these words come, and give everything up to them."""
        async with asyncio.timeout(SOON):
            while wanted.encode() not in self.text:
                data = await self.reader.read(65_536)
                if not data:
                    raise EOFError(self.text.decode())
                self.text += self._plain(data)
        end = self.text.index(wanted.encode()) + len(wanted)
        found, self.text = self.text[:end], self.text[end:]
        return found.decode()

    async def say(self, line: str, until: str) -> str:
        """Type a line, and read until these words come."""
        self.writer.write(line.encode() + b"\r\n")
        return await self.until(until)

    def press(self, keys: bytes) -> None:
        self.writer.write(keys)

    def _plain(self, data: bytes) -> bytes:
        out, place = bytearray(), 0
        while place < len(data):
            if data[place] == IAC and place + 2 < len(data) and data[place + 1] in (WILL, DO):
                self.writer.write(bytes([IAC, DO if data[place + 1] == WILL else WILL, data[place + 2]]))
                place += 3
            else:
                out.append(data[place])
                place += 1
        return bytes(out)


@contextlib.asynccontextmanager
async def telnet(address: str, port: int) -> AsyncIterator[Telnet]:
    """Connect to a serial port."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        yield Telnet(reader, writer)
    finally:
        writer.close()


@dataclass
class Viewer:
    """An RFB client that keeps a picture of 32-bit pixels, red first."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    width: int = 0
    height: int = 0
    name: str = ""
    picture: bytearray = field(default_factory=bytearray)

    async def shake_hands(self) -> None:
        assert await self.reader.readexactly(12) == b"RFB 003.008\n"
        self.writer.write(b"RFB 003.008\n")
        count = (await self.reader.readexactly(1))[0]
        assert 1 in await self.reader.readexactly(count)
        self.writer.write(b"\x01")
        assert await self.reader.readexactly(4) == bytes(4)
        self.writer.write(b"\x01")
        self.width, self.height = struct.unpack(">HH", await self.reader.readexactly(4))
        await self.reader.readexactly(16)
        self.name = (await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4), "big"))).decode()
        self.picture = bytearray(4 * self.width * self.height)
        self.writer.write(struct.pack(">B3xBBBBHHHBBB3x", 0, 32, 24, 0, 1, 255, 255, 255, 0, 8, 16))
        self.writer.write(struct.pack(">BxHi", 2, 1, 0))

    def ask(self, *, incremental: bool) -> None:
        self.writer.write(struct.pack(">BBHHHH", 3, incremental, 0, 0, self.width, self.height))

    def press(self, key: int) -> None:
        for down in (1, 0):
            self.writer.write(struct.pack(">BBxxI", 4, down, key))

    async def update(self) -> tuple[int, int, int, int]:
        """Read one update into the picture, and give its rectangle."""
        async with asyncio.timeout(SOON):
            kind, count = struct.unpack(">BxH", await self.reader.readexactly(4))
            assert (kind, count) == (0, 1)
            left, top, width, height, encoding = struct.unpack(">HHHHi", await self.reader.readexactly(12))
            assert encoding == 0
            pixels = await self.reader.readexactly(4 * width * height)
        for row in range(height):
            at = 4 * ((top + row) * self.width + left)
            self.picture[at : at + 4 * width] = pixels[4 * row * width : 4 * (row + 1) * width]
        return left, top, width, height


@contextlib.asynccontextmanager
async def viewer(address: str, port: int) -> AsyncIterator[Viewer]:
    """Connect to a screen."""
    reader, writer = await asyncio.open_connection(address, port)
    one = Viewer(reader, writer)
    try:
        async with asyncio.timeout(SOON):
            await one.shake_hands()
        yield one
    finally:
        writer.close()


@dataclass
class ConsoleLab:
    """A lab that runs: two routers and a desktop, with a port for each console."""

    cml: Cml
    lab: SimLab
    ports: dict[str, int]
    address: str
    patty: PattyPorts

    def node(self, label: str) -> Node:
        return next(one for one in self.lab.nodes.values() if one.spec.label == label)


@contextlib.asynccontextmanager
async def console_lab() -> AsyncIterator[ConsoleLab]:
    """Run a lab whose ports are open on the loopback address."""
    taken = {name: 5000 + number for number, name in enumerate(("R1", "R1_1", "R2", "PC", "PC_vnc", "PC_pat"))}
    address = str(loopback_network(uuid4().hex)[SystemRandom().randrange(2, 60_000)])
    nodes = (
        node("R1", "iosv", 2, tags=[f"serial:{taken['R1']}", f"serial:{taken['R1_1']}:1"]),
        node("R2", "iosv", tags=[f"serial:{taken['R2']}"]),
        node("PC", "alpine", tags=[f"serial:{taken['PC']}", f"vnc:{taken['PC_vnc']}", f"pat:{taken['PC_pat']}:22"]),
        node("out", "external_connector"),
    )
    cml = Cml(SystemClock(), Chance(7), speed=FASTEST)
    lab, _ = cml.import_lab(text(*nodes, links=[link("PC/i0", "out/i0")]), cml.users.administrator)
    cml.labs.start(lab)
    ports = PattyPorts(cml, address)
    try:
        async with asyncio.timeout(SOON):
            while ports.count < len(taken) or not lab.is_converged(cml.pace.age()):
                await ports.sync()
                await asyncio.sleep(0.005)
        yield ConsoleLab(cml, lab, taken, address, ports)
    finally:
        ports.close()
