"""Whom we believe to be a worker's CML: the certificate pinned for it, or else the system's authorities.

A CML made from an image signs its own certificate, so at first contact `fetch_certificate` takes what it shows and
whoever calls keeps that with the worker; from then on nobody else is believed.
"""

import asyncio
import ssl
from functools import cache
from typing import Final

from lcm.model.errors import Fault, Invalid, Unreachable
from lcm.providers.cml_errors import unanswered

HTTPS_PORT: Final = 443
_FETCH_SECONDS: Final = 20.0
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name. What is pinned is believed until it is forgotten."""


def pinned(pem: str) -> ssl.SSLContext:
    """Trust whoever holds this certificate's key, under any name and at any time, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # workers get new addresses whenever they start; the key is the identity
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError says that it is not ASCII
        raise Invalid(Fault("pin", "not a certificate in PEM", "fetch the worker's certificate again")) from error
    return context


@cache
def system() -> ssl.SSLContext:
    """Trust the system's authorities. Reading them takes a while, so all hosts share them."""
    return ssl.create_default_context()


async def fetch_certificate(host: str, port: int = HTTPS_PORT, *, seconds: float = _FETCH_SECONDS) -> str:
    """Return the certificate that a machine shows, as PEM, without believing it.

    Raises NotReady while nothing listens, Unreachable when no TLS server answers, Invalid when it is no address.
    """
    if not host:
        raise _no_address(host, port)
    target = f"https://{host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=_anyone())
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.transport.abort()  # a farewell would wait for a machine that owes us nothing
    except TimeoutError as error:
        raise Unreachable(f"no answer from {target} within {seconds:g} s") from error
    except OSError as error:
        raise unanswered(target, error) from error
    except (ValueError, OverflowError) as error:
        raise _no_address(host, port) from error
    return ssl.DER_cert_to_PEM_cert(shown)


def _no_address(host: str, port: int) -> Invalid:
    return Invalid(Fault("host", f"{host!r} with port {port} is not an address", "give a name or an IP address"))


def _anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
