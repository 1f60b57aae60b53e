"""The certificate with which a server proves who it is, and its reload when its files change.

Used by `compose.api` for the API, whose certificate is two files, and by `lcm cml-sim`, which makes its own.
"""

import asyncio
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from lcm.model.base.errors import Fault, Invalid

ServerTls = Callable[[], ssl.SSLContext]
"""Returns what the next connection is secured with."""

RELOAD_SECONDS: Final = 10.0
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM texts."""

    certificate: bytes
    key: bytes


def make_tls(certificate: Certificate) -> ServerTls:
    """Return what secures connections with a certificate that does not change."""
    with tempfile.TemporaryDirectory(prefix="lcm-") as folder:
        shown, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        shown.write_bytes(certificate.certificate)
        key.touch(0o600)
        key.write_bytes(certificate.key)
        context = _load_context(shown, key)
    return lambda: context


class CertificateFiles:
    """A certificate in two files. A new certificate is used for new connections, soon after it is written."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both files. Raises Invalid when they are no certificate and its key."""
        self._paths = certificate, key
        self._seen = self._stamps()
        try:
            self._context = _load_context(certificate, key)
        except (OSError, ValueError) as error:
            problem = f"{certificate} and {key} are no certificate and its key ({error})"
            raise Invalid(
                Fault("LCM_TLS_CERT_FILE", problem, "name PEM files: the whole chain, and the key")
            ) from error

    def context(self) -> ssl.SSLContext:
        """Return what the next connection is secured with."""
        return self._context

    async def follow(self) -> None:
        """Read the files again whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Read the files again if they changed; the certificate before stays in use while they cannot be read."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._context = _load_context(*self._paths)
        except (OSError, ValueError) as error:
            _log.error("certificate cannot be used; the one before stays", file=str(self._paths[0]), error=str(error))
        else:
            _log.info("certificate read again", file=str(self._paths[0]))

    def _stamps(self) -> tuple[object, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return str(error)
    return found.st_mtime_ns, found.st_ino, found.st_size


def _load_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def trusted_authority(file: Path | None) -> ssl.SSLContext | None:
    """Return what a client trusts: the authority in a file; None for the public ones. Raises Invalid."""
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ValueError) as error:
        raise Invalid(Fault("LCM_CA_FILE", f"{file} is no certificate ({error})", "name a PEM file")) from error


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to type it")
