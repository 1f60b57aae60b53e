"""`lcm connect` as people use it: at a terminal, in a pipe, as ssh's ProxyCommand, and when it cannot."""

import asyncio
import os
import pty
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.consoles import SOON
from harness.gateway import Gateway, gateway
from harness.servers import LOOPBACK, free_port
from lcm.model.kinds.session import SessionPhase

LCM = (sys.executable, "-c", "from lcm.cli.main import app; app()", "connect")


@pytest.fixture(name="gate")
async def open_gate() -> AsyncIterator[Gateway]:
    async with gateway() as it:
        yield it


def environment(gate: Gateway, home: Path, who: str = "ada") -> dict[str, str]:
    url = gate.url.replace("ws://", "http://")
    return {**os.environ, "XDG_CONFIG_HOME": str(home), "LCM_URL": url, "LCM_TOKEN": gate.desk.secrets[who]}


async def run(gate: Gateway, home: Path, *words: str, typed: bytes = b"", who: str = "ada") -> tuple[int, bytes, bytes]:
    pipe = subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        *LCM, *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment(gate, home, who)
    )
    out, err = await asyncio.wait_for(started.communicate(typed), SOON)
    assert b"Traceback" not in err, err.decode()
    return started.returncode or 0, out, err


async def test_a_console_in_a_pipe_says_what_it_says(gate: Gateway, tmp_path: Path) -> None:
    code, out, _ = await run(gate, tmp_path, "s1", "R1", typed=b"enable\nshow version\n")
    assert code == 0
    assert b"uptime is" in out
    assert out.rstrip().endswith(b"R1#")


async def test_what_a_node_says_slowly_is_shown_to_its_end(tmp_path: Path) -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"count\r")
        for number in range(6):
            await asyncio.sleep(0.4)
            writer.write(b"%d\r\n" % number)
        await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(count, LOOPBACK, 0) as node,
        gateway(ports={"R1_serial": node.sockets[0].getsockname()[1]}) as gate,
    ):
        code, out, _ = await run(gate, tmp_path, "s1", "R1", typed=b"count\n")
    assert (code, out.split()) == (0, [b"0", b"1", b"2", b"3", b"4", b"5"])


async def test_raw_bytes_pass_as_they_are(gate: Gateway, tmp_path: Path) -> None:
    every_byte = bytes(range(256)) * 400
    started = await asyncio.create_subprocess_exec(
        *LCM, "--raw", "s1", "PC:22", stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(gate, tmp_path)
    )
    assert started.stdin is not None
    assert started.stdout is not None
    started.stdin.write(every_byte)
    async with asyncio.timeout(SOON):
        assert await started.stdout.readuntil(b"\r\n") == b"PC port 22\r\n"
        assert await started.stdout.readexactly(len(every_byte)) == every_byte
        started.stdin.close()
        assert await started.wait() == 0


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("ada nowhere", 3, b"nowhere"),
        ("bob s1", 3, b"s1"),
        ("ada s1 R9", 3, b"R1_serial"),
        ("ada s1 PC_vnc", 5, b"--raw"),
        ("ada s1 R1 --look", 5, b"only staff"),
        ("ada --raw s1 R1:22", 3, b"PC_pat_tcp_22"),
        ("ada waits R1", 5, b"`lcm wait session waits --for phase=RUNNING`"),
        ("ada over R1", 5, b"session over is TERMINATED, its consoles are closed: `lcm explain over` says why"),
        ("ada --raw over PC:22", 5, b"session over is TERMINATED"),
        ("ada dark R1", 6, b"R1_serial (node R1 of session dark): R1_serial does not answer; try again in a minute"),
        ("ada --raw dark PC:22", 6, b"PC_pat_tcp_22 (node PC of session dark): PC_pat_tcp_22 does not answer"),
    ],
)
async def test_what_cannot_be_opened_is_told(gate: Gateway, tmp_path: Path, line: str, code: int, told: bytes) -> None:
    who, *words = line.split()
    await gate.put(
        gate.session("waits", phase=SessionPhase.PENDING, allocated_ports=None),
        gate.session("over", phase=SessionPhase.TERMINATED),
        gate.session("dark", allocated_ports=dict.fromkeys(gate.ports, free_port())),
    )
    ended, out, err = await run(gate, tmp_path, *words, who=who)
    assert (ended, out) == (code, b"")
    assert told in b" ".join(err.split())


async def test_a_session_that_ends_is_told(gate: Gateway, tmp_path: Path) -> None:
    started = await asyncio.create_subprocess_exec(
        *LCM, "s1", "R1", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(gate, tmp_path),
    )  # fmt: skip
    assert started.stdout is not None
    async with asyncio.timeout(SOON):
        await started.stdout.readuntil(b"R1>")
        await gate.end_session()
        _, err = await started.communicate()
    assert started.returncode == 5
    told = b"R1_serial (node R1 of session s1): the session no longer runs; `lcm explain s1` says why"
    assert told in b" ".join(err.split())


async def test_a_terminal_is_raw_while_connected_and_as_before_afterwards(gate: Gateway, tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    started = await asyncio.create_subprocess_exec(
        *LCM, "s1", "R1", stdin=inner, stdout=inner, stderr=inner, env=environment(gate, tmp_path)
    )
    screen = _Screen(outer)
    await screen.until(b"R1>")
    assert not termios.tcgetattr(inner)[3] & termios.ECHO
    os.write(outer, b"show ver\x03")
    await screen.until(b"^C")
    os.write(outer, b"\x1d")
    assert await asyncio.wait_for(started.wait(), SOON) == 0
    assert termios.tcgetattr(inner) == before
    screen.close()
    os.close(inner)


class _Screen:
    """What a terminal has shown so far."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._text = b""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(number, self._read)

    def _read(self) -> None:
        with suppress(OSError):
            self._text += os.read(self._number, 65_536)
        self._news.set()

    async def until(self, wanted: bytes) -> None:
        async with asyncio.timeout(SOON):
            while wanted not in self._text:
                self._news.clear()
                await self._news.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._number)
        os.close(self._number)
