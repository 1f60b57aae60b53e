"""The gateway of a real `lcm up`: its process killed and started again, and what was typed collected with the lab."""

import asyncio
import time
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from harness import suite
from harness.commands import Running, lcm, up
from lcm.compose.outside import SIM_FILE

EXAMPLES = suite.ROOT / "examples" / "first"
CONSOLE = "/api/lablet-sessions/mine/consoles/R1_serial"
PATIENCE = 120.0
CLOSED_WITHIN = 2.0


def opened(it: Running) -> connect:
    headers = {"Authorization": f"Bearer {it.token}"}
    return connect(it.url.replace("http", "ws", 1) + CONSOLE, additional_headers=headers, proxy=None)


async def until(socket: ClientConnection, wanted: bytes) -> bytes:
    text = b""
    async with asyncio.timeout(PATIENCE):
        while wanted not in text:
            message = await socket.recv()
            assert isinstance(message, bytes)
            text += message
    return text


async def prompted(it: Running) -> bytes:
    """Open the console as soon as its port answers, and read up to the prompt."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            async with opened(it) as socket:
                return await until(socket, b">")
        except ConnectionClosed:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


async def said(home: Path, *words: str) -> str:
    done = await asyncio.to_thread(lcm, home, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def sees_only_the_gateway(it: Running, home: Path) -> None:
    """With LAB_ACCESS=gateway no address of a worker is shown, wherever one looks; the gateway's is."""
    async with it.client() as client:
        session = (await client.get("/api/lablet-sessions/mine")).json()["status"]
        events = (await client.get("/api/events?limit=500")).json()["items"]
    assert session["access_urls"]["R1_serial"] == CONSOLE
    shown = [str(session["access_urls"]), str(session["access_url"])]
    shown += [str(event["data"]) for event in events if event["name"] == "mine"]
    shown.append(await said(home, "describe", "session", "mine"))
    assert CONSOLE in shown[-1]
    assert not [text for text in shown if "telnet://" in text or "vnc://" in text]


async def is_kept(file: Path, wanted: bytes) -> None:
    """Wait until the simulated cloud has written these bytes to its file."""
    async with asyncio.timeout(PATIENCE):
        while wanted not in await asyncio.to_thread(file.read_bytes):
            await asyncio.sleep(0.05)


async def test_a_killed_api_closes_its_consoles_and_serves_them_again(tmp_path: Path) -> None:
    with up(tmp_path, "--speed=120", "--first", EXAMPLES, LAB_ACCESS="gateway") as it:
        it.ready()
        await said(tmp_path, "book", "ccna-basics", "--now", "--for", "30m", "--name", "mine", "--watch")
        await sees_only_the_gateway(it, tmp_path)
        assert await prompted(it)
        async with opened(it) as socket:
            await until(socket, b"R1>")
            for typed, shown in ((b"enable", b"R1#"), (b"conf t", b"(config)#"), (b"hostname kept-by-kill", b"kept")):
                await socket.send(typed + b"\r")
                await until(socket, shown)
            await is_kept(tmp_path / "data" / SIM_FILE, b"kept-by-kill")
            it.kill()
            async with suite.within(CLOSED_WITHIN):
                await socket.wait_closed()
    with up(tmp_path, "--speed=120") as it:
        it.ready()
        assert b"kept-by-kill" in await prompted(it)
        await said(tmp_path, "cancel", "mine")
        await said(tmp_path, "wait", "session", "mine", "--for", "phase=TERMINATED", "--timeout", "2m")
        await said(tmp_path, "artifacts", "mine", "--download", str(tmp_path / "lab.yaml"))
        assert "hostname kept-by-kill" in (tmp_path / "lab.yaml").read_text()
        assert "Traceback" not in it.output, it.output
