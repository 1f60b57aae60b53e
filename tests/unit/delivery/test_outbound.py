"""Posting to URLs that others chose: nothing forbidden is ever connected to, and answers mean what they should."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import httpcore
import pytest

from harness.http_answers import AnswerServer, Say, SelfSigned
from harness.servers import LOOPBACK, Authority, free_port
from lcm.model.access.webhook import Address, WebhookPolicy, parse_networks
from lcm.model.base.errors import Invalid, Later, LcmError, Refused, Throttled, Unreachable
from lcm.providers.local.outbound import Outbound, OutboundLimits, connect, resolve

HOME = WebhookPolicy(networks=parse_networks(["127.0.0.0/8"]), plain_http=True)
BODY = b'{"hush": 1}'
PUBLIC = "93.184.215.14"
MUST_BE_REFUSED = [
    *("127.0.0.1", "127.1", "0x7f000001", "169.254.169.254", "[::ffff:169.254.169.254]", "100.64.0.1", "10.0.0.1"),
    *("localhost", "2130706433", "017700000001", "[::1]", "0.0.0.0", "[fe80::1]", "[fd00:ec2::254]", "[::127.0.0.1]"),
]


class Names:
    """A resolver that answers as it is told, the last answer for ever; None: no answer."""

    def __init__(self, *answers: Sequence[str] | None) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is None:
            raise OSError("Name or service not known")
        return answer


class Sockets:
    """A connector that records and never sends."""

    def __init__(self) -> None:
        self.asked: list[tuple[Address, int]] = []

    async def __call__(self, address: Address, port: int, seconds: float) -> httpcore.AsyncNetworkStream:
        assert seconds > 0
        self.asked.append((address, port))
        raise ConnectionRefusedError("this is a test")


@asynccontextmanager
async def outbound(
    reach: WebhookPolicy = HOME,
    names: Names | None = None,
    sockets: Sockets | None = None,
    *,
    limits: OutboundLimits | None = None,
    trust: ssl.SSLContext | None = None,
) -> AsyncIterator[Outbound]:
    opened = Outbound(reach, resolver=names or resolve, connector=sockets or connect, limits=limits, trust=trust)
    try:
        yield opened
    finally:
        await opened.close()


async def failure(opened: Outbound, url: str) -> LcmError:
    with pytest.raises(LcmError) as caught:
        await opened.post(url, BODY, {"content-type": "application/json"})
    return caught.value


async def failure_of(say: Say, limits: OutboundLimits | None = None) -> LcmError:
    async with AnswerServer() as server, outbound(limits=limits) as opened:
        server.tell("hook", say)
        return await failure(opened, f"{server.url}/api/v0/hook")


@pytest.mark.parametrize("host", MUST_BE_REFUSED)
async def test_forbidden_hosts_are_refused_before_a_name_is_asked_for_or_a_socket_opened(host: str) -> None:
    names, sockets = Names([PUBLIC]), Sockets()
    for scheme, port in (("https", ""), ("http", ""), ("https", ":8443")):
        async with outbound(WebhookPolicy(plain_http=True), names, sockets) as opened:
            assert isinstance(await failure(opened, f"{scheme}://{host}{port}/hook"), Refused)
    assert (names.asked, sockets.asked) == ([], [])


@pytest.mark.parametrize("host", MUST_BE_REFUSED)
async def test_a_name_that_leads_there_is_refused(host: str) -> None:
    for answers in ([host.strip("[]")], [PUBLIC, host.strip("[]")], [host.strip("[]"), PUBLIC]):
        names, sockets = Names(answers), Sockets()
        async with outbound(WebhookPolicy(), names, sockets) as opened:
            assert isinstance(await failure(opened, "https://harmless.example/hook"), Refused)
        assert (names.asked, sockets.asked) == ([("harmless.example", 443)], [])


async def test_a_name_that_changes_its_answer_is_refused_when_it_does() -> None:
    names, sockets = Names([PUBLIC], ["169.254.169.254"], [PUBLIC], ["10.0.0.1"]), Sockets()
    async with outbound(WebhookPolicy(), names, sockets) as opened:
        kinds = [type(await failure(opened, "https://fickle.example/hook")) for _ in range(4)]
    assert kinds == [Unreachable, Refused, Unreachable, Refused]
    assert sockets.asked == [(ip_address(PUBLIC), 443)] * 2


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to() -> None:
    class Fickle(Names):
        async def __call__(self, host: str, port: int) -> Sequence[str]:
            return [PUBLIC] if not await super().__call__(host, port) else ["127.0.0.1"]

    names, sockets = Fickle([], ["x"]), Sockets()
    async with outbound(WebhookPolicy(), names, sockets) as opened:
        assert isinstance(await failure(opened, "https://fickle.example:8443/hook"), Unreachable)
    assert len(names.asked) == 1
    assert sockets.asked == [(ip_address(PUBLIC), 8443)]


async def test_a_few_addresses_are_tried_in_order() -> None:
    answers = [f"8.8.8.{number}" for number in range(10)]
    sockets = Sockets()
    async with outbound(WebhookPolicy(), Names(answers), sockets, limits=OutboundLimits(addresses=3)) as opened:
        assert isinstance(await failure(opened, "https://many.example/"), Unreachable)
    assert [address for address, _ in sockets.asked] == [IPv4Address(answer) for answer in answers[:3]]


@pytest.mark.parametrize("answer", [None, []])
async def test_a_name_without_an_answer_is_an_outage(answer: Sequence[str] | None) -> None:
    sockets = Sockets()
    async with outbound(WebhookPolicy(), Names(answer), sockets) as opened:
        assert isinstance(await failure(opened, "https://nobody.example/"), Unreachable)
    assert not sockets.asked


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    sockets = Sockets()
    async with outbound(WebhookPolicy(), Names([PUBLIC]), sockets) as opened:
        await failure(opened, "https://plain.example/")
    assert sockets.asked == [(ip_address(PUBLIC), 443)]


async def test_a_post_arrives_as_it_was_given() -> None:
    async with AnswerServer() as server, outbound() as opened:
        server.tell("hook", Say(204))
        await opened.post(f"{server.url}/api/v0/hook?a=b", BODY, {"content-type": "text/x", "webhook-id": "e.1.0"})
        await opened.post(f"{server.url}/api/v0/hook?a=b", BODY, {"content-type": "text/x", "webhook-id": "e.1.1"})
        (first, second), port = server.asked, server.port
    assert (first.method, first.path, first.query, first.body) == ("POST", "/api/v0/hook", "a=b", BODY)
    assert first.headers["content-type"] == "text/x"
    assert first.headers["host"] == f"{LOOPBACK}:{port}"
    assert (first.headers["webhook-id"], second.headers["webhook-id"]) == ("e.1.0", "e.1.1")
    assert server.connections == 1


async def test_cookies_are_not_kept() -> None:
    async with AnswerServer() as server, outbound() as opened:
        server.tell("hook", Say(200, headers={"Set-Cookie": "a=b; Path=/"}))
        for _ in range(2):
            await opened.post(f"{server.url}/api/v0/hook", BODY, {})
        assert not any("cookie" in one.headers for one in server.asked)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
@pytest.mark.parametrize("where", ["http://169.254.169.254/latest/meta-data", "/api/v0/elsewhere", "https://8.8.8.8/"])
async def test_a_redirect_is_refused_and_not_followed(status: int, where: str) -> None:
    async with AnswerServer() as server, outbound() as opened:
        server.tell("hook", Say(status, headers={"Location": where}))
        error = await failure(opened, f"{server.url}/api/v0/hook")
        assert isinstance(error, Refused)
        assert "redirect" in str(error)
        assert len(server.asked) == server.connections == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 451])
async def test_a_refusal_is_final(status: int) -> None:
    error = await failure_of(Say(status, b"no \x00\xffsuch\nthing"))
    assert type(error) is Refused
    assert f"answered {status}: no such thing" in " ".join(str(error).split())


@pytest.mark.parametrize("status", [500, 501, 502, 504, 599, 600, 999])
async def test_an_outage_is_not(status: int) -> None:
    assert isinstance(await failure_of(Say(status)), Unreachable)


@pytest.mark.parametrize("status", [408, 425, 429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0"}, 1),
        ({"Retry-After": "999999"}, 3600),
        ({"Retry-After": "99999999999999"}, 1),
        ({"Retry-After": "-5"}, 1),
        ({"Retry-After": "soon"}, 1),
        ({}, 1),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT"}, 1),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "yesterday"}, 1),
    ],
)
async def test_a_busy_receiver_says_when_again(status: int, headers: dict[str, str], seconds: int) -> None:
    error = await failure_of(Say(status, headers=headers))
    assert isinstance(error, Throttled)
    assert error.after == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "say", [Say(hang=True), Say(500, endless=True, headers={"X": "y"}), Say(200, b"x" * 100, cut=10), Say(200, after=5)]
)
async def test_a_receiver_that_hangs_or_hangs_up_is_an_outage(say: Say) -> None:
    async with asyncio.timeout(60):
        assert isinstance(await failure_of(say, OutboundLimits(post_seconds=0.3, silence_seconds=0.2)), Unreachable)


async def test_a_whole_post_has_a_limit() -> None:
    error = await failure_of(Say(hang=True), OutboundLimits(post_seconds=0.2, silence_seconds=10))
    assert isinstance(error, Unreachable)
    assert "within 0.2 s" in str(error)


async def test_an_endless_success_is_a_success() -> None:
    async with AnswerServer() as server, outbound() as opened, asyncio.timeout(60):
        server.tell("hook", Say(200, endless=True), Say(200))
        await opened.post(f"{server.url}/api/v0/hook", BODY, {})
        await opened.post(f"{server.url}/api/v0/hook", BODY, {})
        assert server.connections == 2


async def test_nothing_listening_is_an_outage() -> None:
    async with outbound() as opened:
        assert isinstance(await failure(opened, f"http://{LOOPBACK}:{free_port()}/"), Unreachable)


async def test_errors_show_neither_path_nor_body() -> None:
    for say in (Say(404, b"gone"), Say(500), Say(302), Say(429)):
        async with AnswerServer() as server, outbound() as opened:
            server.tell("hush", say)
            error = await failure(opened, f"{server.url}/api/v0/hush?token=hush")
            assert "hush" not in str(error)
            assert isinstance(error, Later | Refused)


async def test_a_header_that_cannot_be_written_is_refused() -> None:
    async with AnswerServer() as server, outbound() as opened:
        with pytest.raises(Refused):
            await opened.post(f"{server.url}/api/v0/hook", BODY, {"webhook-id": "a\r\nX: y"})
        assert not server.asked


class Issued(SelfSigned):
    """A certificate for NAME.test and the loopback, issued by an authority."""

    def __init__(self, folder: Path, authority: Authority, name: str) -> None:
        certificate, key = authority.issue(name)
        self._file = folder / f"{name}.pem"
        self._file.write_bytes(certificate + key)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


async def test_tls_proves_the_name_and_not_the_address(authority: Authority, tmp_path: Path) -> None:
    async with AnswerServer(Issued(tmp_path, authority, "hook")) as server:
        server.tell("hook", Say(204))
        async with outbound(HOME, Names([LOOPBACK]), trust=trusting(authority)) as opened:
            await opened.post(f"https://hook.test:{server.port}/api/v0/hook", BODY, {})
            assert server.asked[0].headers["host"] == f"hook.test:{server.port}"
            error = await failure(opened, f"https://other.test:{server.port}/api/v0/hook")
            assert isinstance(error, Unreachable)
            assert "certificate" in str(error)
        assert len(server.asked) == 1


async def test_a_stranger_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    async with AnswerServer(Issued(tmp_path, authority, "hook")) as server, outbound(HOME, Names([LOOPBACK])) as opened:
        assert isinstance(await failure(opened, f"https://hook.test:{server.port}/api/v0/hook"), Unreachable)
        assert not server.asked


async def test_the_systems_resolver_answers_with_addresses() -> None:
    assert LOOPBACK in await resolve("localhost", 80)


async def test_a_url_that_is_none_is_invalid() -> None:
    async with outbound() as opened:
        assert isinstance(await failure(opened, "mailto:hush@example.org"), Invalid)
