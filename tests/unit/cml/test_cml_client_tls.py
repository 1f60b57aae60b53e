"""Whom the CML client believes: the certificate pinned for a worker, and nobody else."""

from pathlib import Path

import pytest

from harness.http_answers import AnswerServer, Say, SelfSigned, says
from harness.servers import LOOPBACK, free_port
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, Unreachable
from lcm.providers.cml.connection import fetch_certificate
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import CmlCertificateError, NotReady

READY = says({"version": "2.9.0", "ready": True})


async def version(url: str, pin: str | None) -> str:
    host = CmlHost(url, "admin", Secret("admin"), pin=pin)
    try:
        return (await host.system()).version
    finally:
        await host.close()


async def test_the_certificate_fetched_at_first_contact_is_believed_from_then_on(tmp_path: Path) -> None:
    certificate = SelfSigned(tmp_path)
    async with AnswerServer(certificate) as server:
        server.tell("system_information", READY)
        pin = await fetch_certificate(LOOPBACK, server.port)
        assert pin.split() == certificate.pem.split()
        assert await version(server.url, pin) == "2.9.0"


@pytest.mark.parametrize("days", [(-20, -10), (10, 20)])
async def test_the_dates_of_a_pinned_certificate_do_not_matter(tmp_path: Path, days: tuple[int, int]) -> None:
    pinned, other = SelfSigned(tmp_path, days=days), SelfSigned(tmp_path)
    async with AnswerServer(pinned) as server:
        server.tell("system_information", READY)
        assert await version(server.url, await fetch_certificate(LOOPBACK, server.port)) == "2.9.0"
        with pytest.raises(CmlCertificateError):
            await version(server.url, other.pem)


async def test_a_changed_certificate_is_refused_with_what_to_do(tmp_path: Path) -> None:
    pinned, shown = SelfSigned(tmp_path), SelfSigned(tmp_path)
    async with AnswerServer(shown) as server:
        server.tell("system_information", READY)
        server.tell("auth_extended", Say(500))
        with pytest.raises(CmlCertificateError, match="forget the pinned one") as raised:
            await version(server.url, pinned.pem)
        assert raised.value.reason == "CertificateNotTrusted"
        assert server.asked == []


async def test_a_self_signed_certificate_is_refused_where_none_is_pinned(tmp_path: Path) -> None:
    async with AnswerServer(SelfSigned(tmp_path)) as server:
        server.tell("system_information", READY)
        with pytest.raises(CmlCertificateError, match="self-signed"):
            await version(server.url, None)


async def test_a_pin_that_is_no_certificate_is_refused() -> None:
    for pin in ("nonsense", " ", "prüfung", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(Invalid, match="pin"):
            CmlHost("https://127.0.0.1", "admin", Secret("admin"), pin=pin)


async def test_plain_http_cannot_be_pinned(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1", "HTTP://127.0.0.1"):
        with pytest.raises(Invalid, match="https"):
            CmlHost(url, "admin", Secret("admin"), pin=SelfSigned(tmp_path).pem)


async def test_fetching_from_where_nothing_listens_means_not_ready() -> None:
    with pytest.raises(NotReady):
        await fetch_certificate(LOOPBACK, free_port())


@pytest.mark.parametrize(
    ("host", "port"), [("", 443), ("a..b", 443), ("a" * 64, 443), ("a\0b", 443), ("\ud800", 443), (LOOPBACK, 65536)]
)
async def test_fetching_from_what_is_no_address_is_refused(host: str, port: int) -> None:
    with pytest.raises(Invalid, match="host"):
        await fetch_certificate(host, port, seconds=2)


async def test_fetching_from_a_server_without_tls_means_unreachable() -> None:
    async with AnswerServer() as server:
        with pytest.raises(Unreachable):
            await fetch_certificate(LOOPBACK, server.port, seconds=0.5)
