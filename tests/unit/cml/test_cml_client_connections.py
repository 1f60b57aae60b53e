"""The CML client's line: which addresses it takes, and how calls share its connections."""

import asyncio
import traceback
from collections.abc import AsyncIterator

import pytest

from harness.http_answers import AnswerServer, Say, says
from harness.lab_hosts import NODE, host_of, served
from harness.servers import LOOPBACK, free_port
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Gone, Invalid, Unreachable
from lcm.providers.cml.host import CmlHost
from lcm.providers.cml.polling import gather_limited
from lcm.providers.cml.rest import CmlClient
from lcm.providers.protocols.labhost import NotReady


@pytest.fixture
async def server() -> AsyncIterator[AnswerServer]:
    async with served() as server:
        yield server


@pytest.fixture
async def host(server: AnswerServer) -> AsyncIterator[CmlHost]:
    async with host_of(server.url) as host:
        yield host


@pytest.mark.parametrize("name", [LOOPBACK, "localhost"])
async def test_nothing_listening_means_not_ready(name: str) -> None:
    async with host_of(f"http://{name}:{free_port()}") as host:
        with pytest.raises(NotReady):
            await host.system()
        with pytest.raises(NotReady):
            await host.labs()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host",
        "//host",
        "ftp://host",
        "https://",
        " https://host",
        "https://ho st",
        "https://host\n",
        "https://host:port",
        "https://host:0",
        "https://host:65536",
        "https://host:-1",
        "https://[::1",
        "https://::1]",
        "https://[host]",
        "https://a..b",
        f"https://{'a' * 64}",
        "https://host?x=1",
        "https://host?",
        "https://host#x",
    ],
)
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="url"):
        CmlHost(url, "admin", Secret("x"))


@pytest.mark.parametrize(
    "url",
    [
        "https://admin:hush@host",
        "https://:hush@host",
        "https://hush@host",
        "ftp://admin:hush@host",
        "https://admin:hush@[::1",
        "https://admin:hush@host:hush@",
        "https://host?token=hush",
    ],
)
async def test_an_address_that_holds_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Invalid, match="url") as raised:
        CmlHost(url, "admin", Secret("x"))
    assert "hush" not in "".join(traceback.format_exception(raised.value)).replace(f"{url!r}", "")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["https://host", "https://host/", "http://host:8080", "https://[::1]:8443", "https://ü"]
)
async def test_an_address_may_have_a_port_and_be_of_any_kind(url: str) -> None:
    await CmlHost(url, "admin", Secret("x")).close()


async def test_calls_that_wait_for_each_other_are_no_outage(server: AnswerServer, host: CmlHost) -> None:
    server.tell("nodes", says([NODE], after=0.1))
    await host.sign_in()
    started = asyncio.get_running_loop().time()
    got = await asyncio.gather(*(host.all_nodes() for _ in range(30)))
    assert asyncio.get_running_loop().time() - started > 0.3, "there was no waiting"
    assert {tuple(one) for one in got} == {("L1",)}


async def test_the_first_failure_ends_what_was_done_beside_it() -> None:
    over = []

    async def last() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            over.append("last")

    async def first() -> None:
        await asyncio.sleep(0)
        raise Gone("first")

    with pytest.raises(Gone):
        await gather_limited([last, first])
    assert over == ["last"]


async def test_one_connection_serves_call_after_call(server: AnswerServer, host: CmlHost) -> None:
    for _ in range(5):
        await host.stats()
    assert server.connections == 1


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(server: AnswerServer, host: CmlHost) -> None:
    server.tell("nodes", says([], headers={"Connection": "close"}), says([NODE]))
    assert await host.all_nodes() == {}
    assert list(await host.all_nodes()) == ["L1"]
    server.hang_up()
    await asyncio.sleep(0.05)
    assert list(await host.all_nodes()) == ["L1"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
async def test_an_effect_whose_connection_breaks_is_not_sent_again(server: AnswerServer, method: str) -> None:
    server.tell("labs/L1", Say(hang=True), says({}))
    client = CmlClient(server.url, "admin", Secret("x"))
    await client.sign_in()
    sending = asyncio.create_task(client.send(method, "labs/L1"))
    while not server.count("labs/L1"):
        await asyncio.sleep(0.01)
    server.hang_up()
    with pytest.raises(Unreachable):
        await sending
    assert server.count("labs/L1") == 1
    await client.close()


async def test_callers_who_give_up_leave_no_connection_behind(server: AnswerServer, host: CmlHost) -> None:
    server.tell("nodes", *[Say(hang=True)] * 30, says([NODE]))
    calls = [asyncio.create_task(host.all_nodes()) for _ in range(30)]
    await asyncio.sleep(0.2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    server.tell("nodes", says([NODE]))
    assert list(await host.all_nodes()) == ["L1"]
