"""The gateway in an installation: behind TLS, on every store, twice, with people of an issuer, with ssh."""

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from harness import suite
from harness.consoles import SOON
from harness.credentials import RSA, Issuer
from harness.gateway import Gateway, gateway, read_until
from harness.servers import Authority
from harness.stores import Arena
from lcm.api.routes.table import ROUTES
from lcm.model.access.identity import Role
from lcm.system.clock import SystemClock
from lcm.system.tls import CertificateFiles

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WITHIN = 2.0
PASTED = 10_000_000
CALLERS = 15
CONSOLES_EACH = 20
MOST_KB_PER_CONSOLE = 400
"""Of the API, the clients and the simulated nodes together, which are one process here."""


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """Read until the other side closes, which it must soon, and give its code and reason."""
    async with suite.within(WITHIN):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "")


async def notice(socket: ClientConnection) -> tuple[str, str, bool]:
    """Wait for what is told to an owner next, which must be soon: that somebody came or left, who, and how."""
    async with suite.within(WITHIN):
        told = json.loads(await socket.recv())
    return told["type"], told["who"], told["looking"]


async def test_consoles_go_over_our_tls_and_only_pages_of_it_open_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name, text in zip(("cert.pem", "key.pem"), authority.issue("api"), strict=True):
        (tmp_path / name).write_bytes(text)
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    tls = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with gateway(tls=tls.context) as gate:
        page = gate.url.replace("wss://", "https://")
        async with gate.open("ada", ssl=trust, headers={"Origin": page}) as socket:
            await read_until(socket, b"R1>")
            await socket.send(b"show version\r")
            assert b"uptime is" in await read_until(socket, b"R1>")
        with pytest.raises(InvalidStatus) as caught:
            async with gate.open("ada", ssl=trust, headers={"Origin": page.replace("https", "http")}):
                pass
        assert caught.value.response.status_code == 403
        with pytest.raises(ssl.SSLCertVerificationError):
            async with gate.open("ada"):
                pass


async def test_a_token_revoked_or_a_session_ended_at_one_replica_closes_consoles_of_the_other(arena: Arena) -> None:
    async with (
        gateway(store=await arena.open()) as first,
        gateway(store=await arena.open(), ports=first.ports, is_replica=True) as second,
        first.open("ada") as mine,
    ):
        await read_until(mine, b"R1>")
        made = await second.desk.done("ada", "POST", "/api/tokens", json={})
        signed = {"Authorization": f"Bearer {made['token']}"}
        async with suite.within(WITHIN):
            while first.desk.tokens.find_caller(made["token"]) is None:  # it learns of it from the store
                await asyncio.sleep(0.005)
        async with first.open("", "R2_serial", headers=signed) as other:
            await read_until(other, b"R2>")
            await second.desk.done("ada", "DELETE", f"/api/tokens/{made['info']['id']}")
            assert await closed(other) == (4401, "the token is no longer valid")
        await second.end_session()
        assert await closed(mine) == (4409, "the session no longer runs")


async def test_staff_who_look_along_are_announced_to_the_owner_at_the_other_replica(arena: Arena) -> None:
    async with (
        gateway(store=await arena.open()) as first,
        gateway(store=await arena.open(), ports=first.ports, is_replica=True) as second,
        first.open("ada") as mine,
    ):
        await read_until(mine, b"R1>")
        async with second.open("otto", query="?look=true"):
            assert await notice(mine) == ("joined", "otto", True)
        assert await notice(mine) == ("left", "otto", True)


async def test_an_issuers_token_that_expires_closes_its_console() -> None:
    issuer = Issuer(RSA)
    issuer.clock = SystemClock()  # type: ignore[assignment]
    async with gateway(verifier=issuer.verifier(leeway=timedelta(0))) as gate:
        until = int(issuer.clock.now().timestamp()) + 2
        headers = {"Authorization": f"Bearer {issuer.token(exp=until, nbf=None)}"}
        async with gate.open("", headers=headers) as socket:
            await read_until(socket, b"R1>")
            async with suite.within(2 + WITHIN):
                await socket.wait_closed()
            assert socket.close_code == 4401
            assert issuer.clock.now().timestamp() >= until


def test_the_routes_that_are_sockets_are_those_that_are_tried_by_everybody() -> None:
    """Another one belongs into `test_a_console_is_for_its_owner_and_staff_alone` as well."""
    assert [route.path for route in ROUTES if route.socket] == ["/api/lablet-sessions/{id}/consoles/{port}"]


@contextlib.asynccontextmanager
async def own_port(gate: Gateway, serve: Serve) -> AsyncIterator[int]:
    """Serve a port of the worker."""
    server = await asyncio.start_server(serve, gate.address, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_who_pastes_ten_megabytes_waits_for_the_node_and_nobody_else_does() -> None:
    taken = asyncio.get_running_loop().create_future()

    async def take_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        while count < PASTED:
            count += len(await reader.read(65_536))
            await asyncio.sleep(0.001)
        taken.set_result(count)
        writer.close()

    async with gateway() as gate, own_port(gate, take_slowly) as port:
        await gate.put(gate.session("pasted", allocated_ports={**gate.ports, "PC_pat_tcp_22": port}))
        async with gate.open("ada", "PC_pat_tcp_22", session="pasted") as socket, gate.open("ada") as other:
            await read_until(other, b"R1>")
            pasting = asyncio.create_task(_paste(socket))
            slowest = 0.0
            while not taken.done():
                began = suite.own_time()
                await other.send(b"\r")
                await read_until(other, b"R1>")
                slowest = max(slowest, suite.own_time() - began)
            await pasting
            assert await taken == PASTED
            assert slowest < 1.0


async def _paste(socket: ClientConnection) -> None:
    for _ in range(PASTED // 100_000):
        await socket.send(bytes(100_000))


async def test_three_hundred_consoles_of_many_callers_fit_within_the_usual_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with gateway() as gate, contextlib.AsyncExitStack() as stack:
        headers = []
        for number in range(CALLERS):
            name = f"learner-{number}"
            secret, _ = await gate.desk.tokens.make(name, Role.USER)
            headers.append({"Authorization": f"Bearer {secret.reveal()}"})
            await gate.put(gate.session(f"of-{number}", owner=name))
        before = _resident_kb()
        sockets = [
            await stack.enter_async_context(gate.open("", session=f"of-{number}", headers=headers[number]))
            for number in range(CALLERS)
            for _ in range(CONSOLES_EACH)
        ]
        assert gate.desk.api.consoles.total == len(sockets) == 300
        with pytest.raises(InvalidStatus) as caught:
            async with gate.open("", session="of-0", headers=headers[0]):
                pass
        assert caught.value.response.status_code == 429
        await asyncio.gather(*(read_until(one, b"R1>") for one in sockets))
        for one in sockets:
            await one.send(b"\r")
        await asyncio.gather(*(read_until(one, b"R1>") for one in sockets))
        each = (_resident_kb() - before) / len(sockets)
        with capsys.disabled():
            print(f"\n300 consoles: {each:.0f} KB each, client and node included")
        assert each < MOST_KB_PER_CONSOLE


def _resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh on this machine")
async def test_ssh_reaches_a_port_through_lcm_connect(tmp_path: Path) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-behind-the-gateway\r\n")
        greeting = await reader.readline()
        heard.set_result((greeting, await reader.read(65_536)))
        writer.close()

    async with gateway() as gate, own_port(gate, greet) as port:
        await gate.put(gate.session("lab", allocated_ports={**gate.ports, "PC_pat_tcp_22": port}))
        environment = _environment(gate, tmp_path)
        proxy = f"{sys.executable} -m lcm.cli.main connect --raw lab PC:22"
        options = [f"ProxyCommand={proxy}", "BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        words = [word for option in options for word in ("-o", option)]
        pipe = asyncio.subprocess.PIPE
        ssh = await asyncio.create_subprocess_exec(
            "ssh", "-v", "-F", "/dev/null", *words, "lab", stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        async with asyncio.timeout(SOON):
            greeting, exchange = await heard
            _, said = await ssh.communicate()
        assert greeting.startswith(b"SSH-2.0-")
        assert b"curve25519" in exchange
        assert b"remote software version behind-the-gateway" in said


def _environment(gate: Gateway, home: Path) -> dict[str, str]:
    url = gate.url.replace("ws://", "http://")
    return {**os.environ, "XDG_CONFIG_HOME": str(home), "LCM_URL": url, "LCM_TOKEN": gate.desk.secrets["ada"]}
