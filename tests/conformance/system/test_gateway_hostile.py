"""The gateway against clients that mean no good, and against its own end: real sockets, real processes of frames."""

import asyncio
import base64
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median

import pytest

from harness import suite
from harness.consoles import SOON
from harness.gateway import MESSAGE_BYTES, Gateway, gateway, read_until
from harness.plane_world import LIMITS
from harness.servers import LOOPBACK
from lcm.system.connection import HttpConnection
from lcm.system.limits import ConnectionLimits

CONSOLES = 300
CLOSE, BINARY, TEXT, CONT, PING = 8, 2, 1, 0, 9


class RawClient:
    """Speaks WebSocket by hand, so that it can speak it wrongly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, opcode: int, data: bytes = b"", *, fin: bool = True, mask: bool = True, rsv: int = 0) -> None:
        head = bytes([(fin << 7) | (rsv << 4) | opcode])
        length, bit = len(data), 128 if mask else 0
        if length < 126:
            head += bytes([bit | length])
        elif length < 65_536:
            head += bytes([bit | 126]) + struct.pack(">H", length)
        else:
            head += bytes([bit | 127]) + struct.pack(">Q", length)
        self.writer.write(head + (bytes(4) if mask else b"") + data)

    async def close_code(self) -> int:
        """Read until the server closes; give the code of its close frame, or 0."""
        data = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(SOON):
                while part := await self.reader.read(65_536):
                    data += part
        at = data.rfind(b"\x88")
        return int.from_bytes(data[at + 2 : at + 4], "big") if at >= 0 and data[at + 1] >= 2 else 0


@asynccontextmanager
async def raw(gate: Gateway, console: str = "R1_serial", token: str = "") -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection(LOOPBACK, gate.port)
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET /api/lablet-sessions/s1/consoles/{console} HTTP/1.1",
        f"Host: {LOOPBACK}:{gate.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        f"Authorization: Bearer {token or gate.desk.secrets['ada']}",
    ]
    writer.write("\r\n".join([*head, "", ""]).encode())
    try:
        async with asyncio.timeout(SOON):
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield RawClient(reader, writer)
    finally:
        writer.close()


@pytest.fixture(name="gate")
async def open_gate() -> AsyncIterator[Gateway]:
    async with gateway() as it:
        yield it


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(BINARY, b"x", {"mask": False})], 1002),
        ([(BINARY, b"x", {"rsv": 1})], 1002),
        ([(3, b"x", {})], 1002),
        ([(CONT, b"x", {})], 1002),
        ([(BINARY, b"x", {"fin": False}), (BINARY, b"y", {})], 1002),
        ([(PING, b"x" * 126, {})], 1002),
        ([(PING, b"", {"fin": False})], 1002),
        ([(CLOSE, b"\x00", {})], 1002),
        ([(TEXT, b"\xff\xfe", {})], 1007),
        ([(BINARY, bytes(MESSAGE_BYTES + 1), {})], 1009),
        ([(BINARY, bytes(MESSAGE_BYTES), {"fin": False}), (CONT, b"y", {})], 1009),
    ],
)
async def test_a_malformed_or_oversized_frame_closes_the_console(
    gate: Gateway, frames: list[tuple[int, bytes, dict[str, int]]], code: int
) -> None:
    async with raw(gate) as client, gate.open("ada", "R2_serial") as other:
        for opcode, data, how in frames:
            client.send(opcode, data, **how)  # type: ignore[arg-type]
        assert await client.close_code() == code
        await other.send(b"\r")
        await read_until(other, b"R2>")


@pytest.mark.parametrize(
    "change",
    [
        ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8"),
        ("Sec-WebSocket-Key: ", "X-Key: "),
        ("Connection: Upgrade\r\n", "Connection: Upgrade\r\nContent-Length: 5\r\n"),
        (" HTTP/1.1", " HTTP/1.0"),
        ("GET ", "POST "),
    ],
)
async def test_an_invalid_upgrade_is_refused(gate: Gateway, change: tuple[str, str]) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, gate.port)
    head = (
        f"GET /api/lablet-sessions/s1/consoles/R1_serial HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
        f"Sec-WebSocket-Version: 13\r\nAuthorization: {gate.desk.signed('ada')['Authorization']}\r\n\r\n"
    )
    assert change[0] in head
    writer.write(head.replace(*change).encode())
    async with asyncio.timeout(SOON):
        status = int((await reader.readline()).split()[1])
    assert 400 <= status < 510
    writer.close()


async def test_a_flood_of_tiny_frames_and_pings_keeps_nobody_waiting(gate: Gateway) -> None:
    async with raw(gate) as client, gate.open("ada", "R2_serial") as other:
        await read_until(other, b"R2>")
        flood = asyncio.create_task(_flood(client))
        try:
            seconds = []
            for _ in range(20):
                began = suite.own_time()
                await other.send(b"\r")
                await read_until(other, b"R2>")
                seconds.append(suite.own_time() - began)
        finally:
            flood.cancel()
            await asyncio.wait([flood])
        assert median(seconds) < 1.0


async def _flood(client: RawClient) -> None:
    """Send pings and empty messages, and read nothing."""
    frame = bytes([0x80 | PING, 0x80, 0, 0, 0, 0]) + bytes([0x80 | BINARY, 0x80, 0, 0, 0, 0])
    with suppress(ConnectionError):
        while True:
            client.writer.write(frame * 1_000)
            await client.writer.drain()


async def test_a_reader_that_does_not_read_holds_nobody_and_is_dropped() -> None:
    async with AsyncExitStack() as stack:
        source = await asyncio.start_server(_pour, LOOPBACK, 0)
        stack.callback(source.close)
        port = source.sockets[0].getsockname()[1]
        limits = ConnectionLimits(message_bytes=MESSAGE_BYTES, send_seconds=1.0)
        ports = {"R1_serial": port, "PC_pat_tcp_22": port}
        gate = await stack.enter_async_context(gateway(ports=ports, connections=limits))
        slow = await stack.enter_async_context(raw(gate, console="PC_pat_tcp_22"))
        async with gate.open("ada", "R1_serial") as quick:
            received = 0
            async with asyncio.timeout(SOON):
                while received < 20_000_000:
                    received += len(await quick.recv())
        await _until(lambda: not gate.desk.api.consoles.total)
        assert slow.reader is not None


async def test_a_client_that_reads_nothing_types_nothing_after_its_token_is_revoked() -> None:
    typed, is_stuck = bytearray(), asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                while True:
                    limit.reschedule(asyncio.get_running_loop().time() + 0.5)
                    writer.write(bytes(65_536))
                    await writer.drain()
        is_stuck.set()
        with suppress(ConnectionError):
            while data := await reader.read(1_000):
                typed.extend(data)
        writer.close()

    async with AsyncExitStack() as stack:
        source = await asyncio.start_server(pour, LOOPBACK, 0)
        stack.callback(source.close)
        quiet = await asyncio.start_server(_stay_quiet, LOOPBACK, 0)
        stack.callback(quiet.close)
        number, other = (one.sockets[0].getsockname()[1] for one in (source, quiet))
        gate = await stack.enter_async_context(gateway(ports={"PC_pat_tcp_22": number, "R1_serial": other}))
        made = await gate.desk.done("ada", "POST", "/api/tokens", json={})
        client = await stack.enter_async_context(raw(gate, "PC_pat_tcp_22", made["token"]))
        await asyncio.wait_for(is_stuck.wait(), SOON)
        reading = await stack.enter_async_context(gate.open("ada"))
        await stack.enter_async_context(gate.open("otto"))
        assert isinstance(await asyncio.wait_for(reading.recv(), SOON), str)  # the same is pending for the client
        client.send(BINARY, b"early")
        await _until(lambda: b"early" in typed)
        await gate.desk.done("ada", "DELETE", f"/api/tokens/{made['info']['id']}")
        async with suite.within(2.0):
            await _until(lambda: gate.desk.api.consoles.total == 2)
        client.send(BINARY, b"late")
        await client.close_code()
        assert typed == b"early"


async def _stay_quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not is_true():
            await asyncio.sleep(0.01)


async def _pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while True:
            writer.write(bytes(65_536))
            await writer.drain()


@pytest.mark.parametrize("token", ["mine", "wrong"])
async def test_who_takes_no_answers_gets_no_console_and_is_dropped(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be sent pauses sending; whoever takes the connection over is not told so."""
    served, made = list[HttpConnection](), HttpConnection.connection_made

    def note(connection: HttpConnection, transport: asyncio.Transport) -> None:
        served.append(connection)
        made(connection, transport)

    monkeypatch.setattr(HttpConnection, "connection_made", note)
    limits = ConnectionLimits(message_bytes=MESSAGE_BYTES, send_seconds=0.5, head_seconds=0.5)
    quiet = await asyncio.start_server(_stay_quiet, LOOPBACK, 0)
    port = quiet.sockets[0].getsockname()[1]
    async with quiet, gateway(connections=limits, ports={"R1_serial": port}) as gate:
        secret = gate.desk.secrets["ada"] if token == "mine" else "lcm_wrong"
        _, writer = await asyncio.open_connection(LOOPBACK, gate.port, limit=1_000)
        host, answers = f"Host: {LOOPBACK}:{gate.port}\r\n", count()
        while not served or not served[0].flow.write_paused:
            writer.write(f"GET /api/openapi.json HTTP/1.1\r\n{host}\r\n".encode())
            await _until(partial(_has_answered, served, next(answers)))
        writer.write(
            f"GET /api/lablet-sessions/s1/consoles/R1_serial HTTP/1.1\r\n{host}"
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
            f"Authorization: Bearer {secret}\r\n\r\n".encode()
        )
        transport = served[0].transport
        await _until(transport.is_closing)
        await _until(lambda: not transport.get_write_buffer_size())
        assert not gate.desk.api.consoles.total
        writer.close()


def _has_answered(served: list[HttpConnection], before: int) -> bool:
    return bool(served) and served[0].server_state.total_requests > before and served[0].cycle.response_complete


async def test_a_silent_client_is_asked_and_then_closed() -> None:
    limits = ConnectionLimits(message_bytes=MESSAGE_BYTES, ping_seconds=0.5, silent_seconds=1.5)
    async with gateway(connections=limits) as gate, raw(gate) as client:
        assert await client.close_code() == 1008


async def test_three_hundred_consoles_are_open_at_once_and_all_are_closed_with_their_session() -> None:
    limits = replace(LIMITS, consoles=CONSOLES, session_consoles=CONSOLES, all_consoles=CONSOLES)
    async with gateway(limits=limits) as gate, AsyncExitStack() as stack:
        sockets = []
        for number in range(CONSOLES):
            console = ("R1_serial", "R2_serial", "PC_serial")[number % 3]
            sockets.append(await stack.enter_async_context(gate.open("ada", console)))
        assert gate.desk.api.consoles.total == CONSOLES
        await asyncio.gather(*(_answered(one) for one in sockets))
        began = suite.own_time()
        await gate.end_session()
        await asyncio.gather(*(one.wait_closed() for one in sockets))
        assert suite.own_time() - began < 2.0
        assert {one.close_code for one in sockets} == {4409}


async def _answered(socket: object) -> None:
    await read_until(socket, b"is now available")  # type: ignore[arg-type]
