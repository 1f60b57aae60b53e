"""Serves the simulator's REST face on a real port: HTTPS with a certificate of its own making, or plain HTTP.

Called by `lcm cml-sim`, and by whoever runs simulated machines beside real clients.
"""

import asyncio
import ipaddress
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lcm.model.errors import Refused
from lcm.sim.cml.http import CmlApp, CmlFleet

_VALID: Final = timedelta(days=365)
_BACKLOG: Final = 512


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate and its key, as PEM texts."""

    certificate: bytes
    key: bytes


def self_signed(host: str, now: datetime) -> Certificate:
    """Make a certificate for a host, as a fresh CML has one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cml-controller")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), _name(host)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _VALID)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM), encoded)


def in_url(host: str) -> str:
    """Write a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """Take a port, any free one for 0; what connects from now on is served as soon as `serve` runs."""
    # asyncio sends small answers without delay only if the socket names its protocol, which create_server leaves out.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise Refused(f"cannot listen on {in_url(host)}:{port}: {error.strerror or error}") from error
    return listening


async def serve(
    app: CmlApp | CmlFleet, listening: socket.socket, certificate: Certificate | None, stop: asyncio.Event
) -> None:
    """Serve until told to stop."""
    settings = uvicorn.Config(
        app,
        log_level="critical",  # it would report every injected fault, and every client that left, as an error of ours
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    with tempfile.TemporaryDirectory(prefix="cml-sim-") as folder:
        if certificate:
            settings.ssl_certfile, settings.ssl_keyfile = _files(Path(folder), certificate)
        server = _Server(settings)
        stopping = asyncio.create_task(server.stop_after(stop))
        try:
            await server.serve([listening])
        finally:
            stopping.cancel()


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs the process; the library's own would end it by the signal once more."""

    async def stop_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _files(folder: Path, certificate: Certificate) -> tuple[Path, Path]:
    shown, key = folder / "cert.pem", folder / "key.pem"
    shown.write_bytes(certificate.certificate)
    key.touch(0o600)
    key.write_bytes(certificate.key)
    return shown, key


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
