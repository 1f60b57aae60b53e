"""The way to an issuer, on a real wire: what does not come whole, in time and from whom we asked is an outage."""

import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.credentials import AUDIENCE, RSA, Issuer, signed
from harness.http_answers import HANG, Scripted, ScriptedRequest, http
from harness.servers import LOOPBACK, Authority
from lcm.control.access.oidc import IssuerTrust, VerifiedCaller, Verifier
from lcm.control.access.oidc_keys import FetchedDocument, HttpFetch
from lcm.model.base.errors import LcmError, Stuck, Throttled, Unreachable


def serving(*keys: str) -> Callable[[ScriptedRequest], bytes]:
    """Answer as an issuer does, by the name under which it is asked."""

    def answer(asked: ScriptedRequest) -> bytes:
        url = f"http://{asked.headers['host']}"
        if asked.path == "/jwks":
            return http(200, json.dumps({"keys": [json.loads(key) for key in keys]}).encode())
        assert asked.path == "/.well-known/openid-configuration"
        return http(200, json.dumps({"issuer": url, "jwks_uri": f"{url}/jwks"}).encode())

    return answer


async def test_a_token_of_a_real_issuer_is_accepted() -> None:
    made = Issuer()
    async with Scripted(serving(json.dumps(RSA.as_dict(private=False)))) as server:
        trust = IssuerTrust(issuer=server.url, audiences=frozenset({AUDIENCE}))
        verifier = Verifier(trust, fetch=HttpFetch(), clock=made.clock)
        answer = await verifier.verify(signed(RSA, made.claims(iss=server.url)))
        assert isinstance(answer, VerifiedCaller)
        assert [asked.path for asked in server.asked] == ["/.well-known/openid-configuration", "/jwks"]
        assert {asked.headers["accept-encoding"] for asked in server.asked} == {"identity"}


async def test_a_document_comes_with_its_cache_control(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{LOOPBACK}:1")  # it would lead nowhere
    async with Scripted(http(200, b"{}", headers={"Cache-Control": "max-age=5"})) as server:
        assert await HttpFetch().get(server.url) == FetchedDocument(b"{}", "max-age=5")
    async with Scripted(http(200, b"{}")) as server:
        assert await HttpFetch().get(server.url) == FetchedDocument(b"{}", "")


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (http(200, b"{", length=50), Unreachable),
        (b"", Unreachable),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Unreachable),
        (http(200, b"x" * 1001), Unreachable),
        (http(404), Unreachable),
        (http(500), Unreachable),
        (http(204), Unreachable),
        (http(302, headers={"Location": "/elsewhere"}), Unreachable),
        (http(429), Throttled),
    ],
)
async def test_a_bad_answer_is_an_outage(answer: bytes, want: type[LcmError]) -> None:
    async with Scripted(answer) as server:
        with pytest.raises(want) as caught:
            await HttpFetch(limit_bytes=1000, limit_seconds=30).get(server.url)
        assert type(caught.value) is want
        assert len(server.asked) == 1, "redirects are not followed"


@pytest.mark.parametrize("answer", [HANG, http(200, b"{", length=50) + HANG])
async def test_an_answer_that_does_not_come_in_time_is_an_outage(answer: bytes) -> None:
    async with Scripted(answer) as server:
        with pytest.raises(Unreachable):
            await HttpFetch(limit_seconds=0.2).get(server.url)


async def test_nobody_there_is_an_outage() -> None:
    with pytest.raises(Unreachable):
        await HttpFetch().get(f"http://{LOOPBACK}:1")


async def test_only_a_trusted_certificate_is_believed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("issuer")
    (tmp_path / "server.pem").write_bytes(certificate + key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem")
    trusted = ssl.create_default_context(cadata=authority.pem.decode())
    async with Scripted(http(200, b"{}"), tls=tls) as server:
        for url in (server.url, server.url.replace("https", "HTTPS")):
            assert (await HttpFetch(trusted=trusted).get(url)).body == b"{}"
            with pytest.raises(Stuck) as caught:
                await HttpFetch().get(url)
            assert caught.value.reason == "Certificate"


@pytest.mark.parametrize(
    "url", ["http://keys.example.org", "file:///etc/passwd", "ftp://127.0.0.1", "http://127.0.0.1@evil.org"]
)
async def test_nothing_is_asked_that_cannot_be_trusted(url: str) -> None:
    with pytest.raises(AssertionError):
        await HttpFetch().get(url)
