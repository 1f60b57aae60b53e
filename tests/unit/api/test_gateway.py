"""The gateway: who reaches a console, what passes through it, what ends it, and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from harness import suite
from harness.api_world import ROLES
from harness.consoles import SOON
from harness.gateway import Gateway, gateway, read_until
from harness.plane_world import LIMITS
from lcm.api.http.auth import SESSION_COOKIE

WITHIN = 2.0
"""Seconds within which a console must be closed."""


@pytest.fixture(name="gate")
async def open_gate() -> AsyncIterator[Gateway]:
    async with gateway() as it:
        yield it


async def closed(socket: ClientConnection, within: float = WITHIN) -> tuple[int, str]:
    """Read until the other side closes, and give its code and reason."""
    async with suite.within(within):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as error:
            return (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "")


async def refused(gate: Gateway, who: str, console: str = "R1_serial", **more: Any) -> tuple[int, dict[str, Any]]:
    """Try to open a console that is refused; give the status and the problem."""
    with pytest.raises(InvalidStatus) as caught:
        async with gate.open(who, console, **more):
            pass
    return caught.value.response.status_code, json.loads(caught.value.response.body or b"{}")


async def audit(gate: Gateway, name: str = "s1") -> list[dict[str, Any]]:
    listed = await gate.desk.done("root", "GET", f"/api/audit?name={name}&limit=500")
    return [one for one in listed["items"] if "console" in one["deeds"][0]["verb"]]


async def test_an_owner_types_into_a_console_and_sees_no_telnet(gate: Gateway) -> None:
    async with gate.open("ada") as socket:
        greeting = await read_until(socket, b"R1>")
        assert b"\xff" not in greeting
        await socket.send(b"show version\r")
        assert b"uptime is" in await read_until(socket, b"R1>")


async def test_a_session_is_also_found_by_its_uid(gate: Gateway) -> None:
    async with gate.open("ada", session="uid-s1") as socket:
        await read_until(socket, b"R1>")


async def test_a_screen_and_a_port_pass_as_they_are(gate: Gateway) -> None:
    async with gate.open("ada", "PC_vnc") as socket:
        assert await read_until(socket, b"RFB 003.008\n") == b"RFB 003.008\n"
        await socket.send(b"RFB 003.008\n")
        assert await read_until(socket, b"\x01\x01") == b"\x01\x01"
    every_byte = bytes(range(256)) * 300
    async with gate.open("ada", "PC_pat_tcp_22") as socket:
        await read_until(socket, b"port 22\r\n")
        await socket.send(every_byte)
        echoed = b""
        while len(echoed) < len(every_byte):
            echoed += await _message(socket)
        assert echoed == every_byte


async def _message(socket: ClientConnection) -> bytes:
    message = await asyncio.wait_for(socket.recv(), SOON)
    assert isinstance(message, bytes)
    return message


async def test_consoles_are_listed_with_their_paths(gate: Gateway) -> None:
    listed = await gate.desk.done("ada", "GET", "/api/lablet-sessions/s1/consoles")
    found = {one["name"]: one for one in listed["items"]}
    assert set(found) == {"R1_serial", "R2_serial", "PC_serial", "PC_vnc", "PC_pat_tcp_22"}
    assert found["R1_serial"]["path"] == "/api/lablet-sessions/s1/consoles/R1_serial"
    assert (found["PC_pat_tcp_22"]["kind"], found["PC_pat_tcp_22"]["inside"]) == ("tcp", 22)
    assert all(one["is_open"] for one in found.values())


@pytest.mark.parametrize("who", ["", *ROLES, "bob"])
async def test_a_console_is_for_its_owner_and_staff_alone(gate: Gateway, who: str) -> None:
    if who in {"ada", "root", "otto"}:
        async with gate.open(who) as socket:
            await read_until(socket, b"R1>")
        return
    status, problem = await refused(gate, who)
    assert status == {"": 401, "service": 403, "vera": 403}.get(who, 404)
    if status == 404:
        missing = await refused(gate, who, session="s1-not-there")
        assert missing[0] == 404
        assert problem["detail"].replace("s1", "X") == missing[1]["detail"].replace("s1-not-there", "X")
        assert msgspec.json.encode(problem).replace(b"s1", b"X") == msgspec.json.encode(missing[1]).replace(
            b"s1-not-there", b"X"
        )


@pytest.mark.parametrize(
    ("console", "session", "status"), [("R9_serial", "s1", 404), ("PC_pat_udp_53", "s1", 404), ("R1_serial", "s0", 404)]
)
async def test_what_is_not_there_is_told(gate: Gateway, console: str, session: str, status: int) -> None:
    assert (await refused(gate, "ada", console, session=session))[0] == status


async def test_a_session_that_does_not_run_has_no_consoles(gate: Gateway) -> None:
    await gate.put(gate.session("waiting", phase="PENDING", worker_id=None))
    status, problem = await refused(gate, "ada", session="waiting")
    assert (status, problem["reason"]) == (409, "Refused")
    assert "RUNNING" in problem["detail"]


async def test_a_plain_request_is_told_to_upgrade(gate: Gateway) -> None:
    answer = await gate.desk.ask("ada", "GET", "/api/lablet-sessions/s1/consoles/R1_serial")
    assert (answer.status_code, answer.json()["reason"]) == (426, "UpgradeRequired")
    status, problem = await refused(gate, "ada", "R1_serial/more")
    assert (status, problem["reason"]) == (404, "NoRoute")


async def test_no_other_route_is_a_socket(gate: Gateway) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with gate.open("ada", session="s1/../..") as _:
            pass
    assert caught.value.response.status_code == 404


@pytest.mark.parametrize("origin", ["https://evil.example.org", "null", "http://127.0.0.1:1"])
async def test_pages_of_others_are_refused(gate: Gateway, origin: str) -> None:
    cookie = await _cookie(gate)
    assert (await refused(gate, "", headers={"Cookie": cookie, "Origin": origin}))[0] == 403
    assert (await refused(gate, "ada", headers={"Origin": origin}))[0] == 403
    assert (await refused(gate, "", headers={"Cookie": cookie}))[0] == 403


async def test_a_page_of_ours_opens_a_console_with_its_cookie(gate: Gateway) -> None:
    headers = {"Cookie": await _cookie(gate), "Origin": gate.url.replace("ws://", "http://")}
    async with gate.open("", headers=headers) as socket:
        await read_until(socket, b"R1>")


async def test_opening_and_closing_are_audited(gate: Gateway) -> None:
    await gate.put(gate.session("audited"))
    async with gate.open("ada", session="audited") as socket:
        await read_until(socket, b"R1>")
        await socket.send(b"\r")
        await read_until(socket, b"R1>")
    async with asyncio.timeout(SOON):
        while len(found := await audit(gate, "audited")) < 2:
            await asyncio.sleep(0.01)
    opening, closing = found
    assert [one["deeds"][0]["verb"] for one in found] == ["open-console", "close-console"]
    assert {one["who"] for one in found} == {"ada"}
    assert opening["detail"] == "R1_serial"
    assert closing["detail"].startswith("R1_serial: 1 bytes typed, ")
    assert closing["detail"].endswith("0 s; closed by the client")


async def test_staff_look_along_and_the_owner_is_told(gate: Gateway) -> None:
    async with gate.open("ada") as mine:
        await read_until(mine, b"R1>")
        async with gate.open("otto", query="?look=true") as looking:
            await read_until(looking, b"R1>")
            told = json.loads(await asyncio.wait_for(mine.recv(), SOON))
            assert told == {
                "type": "joined",
                "who": "otto",
                "role": "operator",
                "console": "R1_serial",
                "looking": True,
            }
            await looking.send(b"never typed\r")
            await mine.send(b"show version\r")
            assert b"uptime is" in await read_until(looking, b"R1>")
            assert b"never" not in await read_until(mine, b"R1>")
            async with gate.open("ada", "R2_serial") as second:
                first = await asyncio.wait_for(second.recv(), SOON)
                assert json.loads(first)["who"] == "otto"
        assert json.loads(await asyncio.wait_for(mine.recv(), SOON))["type"] == "left"


async def test_a_viewer_who_looks_cannot_type(gate: Gateway) -> None:
    async with gate.open("otto", "PC_vnc", query="?look=true") as socket:
        await read_until(socket, b"RFB 003.008\n")
        await socket.send(b"RFB 003.008\n")
        await read_until(socket, b"\x01\x01")
        await socket.send(b"\x01\x00")
        await read_until(socket, b"PC")
        await socket.send(b"\x04\x01\x00\x00\x00\x00\x00x" + b"\x2a")
        assert await closed(socket) == (4403, "message 42 of a viewer is not known")


async def test_only_staff_look_along_and_not_at_ports(gate: Gateway) -> None:
    assert (await refused(gate, "ada", query="?look=true"))[0] == 403
    assert (await refused(gate, "otto", "PC_pat_tcp_22", query="?look=true"))[0] == 422


async def test_a_console_ends_with_its_session(gate: Gateway) -> None:
    await gate.put(gate.session("ending"))
    async with gate.open("ada", session="ending") as socket, gate.open("ada") as other:
        await read_until(socket, b"R1>")
        await gate.end_session("ending")
        assert await closed(socket) == (4409, "the session no longer runs")
        await other.send(b"\r")
        await read_until(other, b"R1>")


async def test_a_console_ends_with_its_token(gate: Gateway) -> None:
    made = await gate.desk.done("ada", "POST", "/api/tokens", json={})
    async with gate.open("", headers={"Authorization": f"Bearer {made['token']}"}) as socket, gate.open("ada") as other:
        await read_until(socket, b"R1>")
        await gate.desk.done("ada", "DELETE", f"/api/tokens/{made['info']['id']}")
        assert await closed(socket) == (4401, "the token is no longer valid")
        await other.send(b"\r")
        await read_until(other, b"R1>")


async def test_a_text_message_is_no_input(gate: Gateway) -> None:
    async with gate.open("ada") as socket:
        await read_until(socket, b"R1>")
        await socket.send("hello")
        assert (await closed(socket))[0] == 1003


async def test_a_port_that_nobody_serves_is_told(gate: Gateway) -> None:
    await gate.put(gate.session("deaf", allocated_ports={**gate.ports, "R1_serial": 7999}))
    async with gate.open("ada", session="deaf") as socket:
        assert await closed(socket, SOON) == (4503, "R1_serial does not answer; try again in a minute")


async def _cookie(gate: Gateway) -> str:
    link = await gate.desk.done("ada", "POST", "/api/sign-in")
    signed = await gate.desk.ask("", "POST", link["path"], headers={"Origin": "http://desk"})
    assert signed.status_code == 303, signed.text
    name = SESSION_COOKIE.decode()
    return f"{name}={signed.cookies[name]}"


async def test_each_limit_of_number_holds_and_places_come_free() -> None:
    async with gateway(limits=replace(LIMITS, consoles=2, session_consoles=3, all_consoles=4)) as gate:
        await gate.put(gate.session("s2", owner="bob"), gate.session("s3", owner="root"))
        async with gate.open("ada"), gate.open("ada", "R2_serial"):
            assert (await refused(gate, "ada"))[0] == 429
            async with gate.open("otto"):
                assert (await refused(gate, "root"))[0] == 429
                async with gate.open("bob", session="s2"):
                    assert (await refused(gate, "root", session="s3"))[0] == 503
        async with asyncio.timeout(SOON):
            while gate.desk.api.consoles.total:
                await asyncio.sleep(0.01)
        async with gate.open("ada") as socket:
            await read_until(socket, b"R1>")


async def test_consoles_are_closed_when_the_api_stops() -> None:
    async with gateway() as gate, gate.open("ada") as socket:
        await read_until(socket, b"R1>")
        gate.stop.set()
        assert await closed(socket) == (1001, "the API stops")
