"""Sends mail by SMTP, with STARTTLS and a password. `compose` hands it to `control.notices`."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiosmtplib

from lcm.model.access.mail_address import IMPLICIT_TLS_PORT
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError, Refused, Stuck, Throttled, Unreachable
from lcm.model.base.resource import shorten_text, to_one_line
from lcm.providers.protocols.mail import Mail, RecipientBusy, build_message
from lcm.providers.protocols.permit import check_permit

TIMEOUT_SECONDS: Final = 30.0
_GOODBYE_SECONDS: Final = 1.0
SIGN_IN_REFUSED: Final = "MailSignInRefused"
SENDER_REFUSED: Final = "MailSenderRefused"
NO_STARTTLS: Final = "MailWithoutTls"
SERVER_REFUSES: Final = "MailServerRefuses"
NOT_TRUSTED: Final = "MailServerNotTrusted"
_MAX_ANSWER_LENGTH: Final = 300
_PERMANENT: Final = range(500, 600)
_STUCK_REASONS: Final[Mapping[type[Exception], str]] = {
    aiosmtplib.SMTPAuthenticationError: SIGN_IN_REFUSED,
    aiosmtplib.SMTPSenderRefused: SENDER_REFUSED,
}
"""Permanent answers that concern no particular mail: nothing can be sent until somebody changes the settings."""


@dataclass(frozen=True, slots=True)
class SmtpServer:
    """A mail server, and how to sign in to it. Port 465 has TLS from the first byte, all others by STARTTLS."""

    host: str
    port: int = 587
    starttls: bool = True
    user: str = ""
    password: Secret | None = None
    ca_file: Path | None = None
    sender: str = "lcm@localhost"
    sender_name: str = "Lablet Cloud Manager"


class SmtpMailer:
    """Sends each mail over a connection of its own: mails are few, and servers close those that say nothing."""

    def __init__(self, server: SmtpServer, *, clock: Clock, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._server = server
        self._clock = clock
        self._timeout = timeout_seconds
        self._trust: ssl.SSLContext | None = None

    async def send(self, mail: Mail) -> None:
        server = self._server
        message = build_message(mail, sender=server.sender, sender_name=server.sender_name, now=self._clock.now())
        if self._trust is None:
            self._trust = await asyncio.to_thread(_make_context, server.ca_file)
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            use_tls=server.port == IMPLICIT_TLS_PORT,
            start_tls=server.starttls and server.port != IMPLICIT_TLS_PORT,
            username=server.user or None,
            password=server.password.reveal() if server.user and server.password else None,
            tls_context=self._trust,
            timeout=self._timeout,
        )
        try:
            async with asyncio.timeout(self._timeout):
                await client.connect()
                check_permit()
                await client.send_message(message, sender=server.sender, recipients=[str(message["To"])])
        except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
            raise self._explain(error) from error
        finally:
            await _end_connection(client)

    def _explain(self, error: Exception) -> LcmError:
        """Return the error of ours for one of the library's, without the password."""
        said = to_one_line(str(error)) or type(error).__name__
        if self._server.password:
            said = self._server.password.hide_in(said)
        text = f"{self._server.host}: {shorten_text(said, _MAX_ANSWER_LENGTH)}"
        cause = _find_cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Stuck(NOT_TRUSTED, text)
        if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
            codes = [one.code for one in error.recipients]
            return Refused(text) if all(code in _PERMANENT for code in codes) else RecipientBusy(text)
        if isinstance(error, aiosmtplib.SMTPResponseException):
            if error.code not in _PERMANENT:
                return Throttled(text)
            is_about_mail = isinstance(error, aiosmtplib.SMTPDataError)
            return Refused(text) if is_about_mail else Stuck(_STUCK_REASONS.get(type(error), SERVER_REFUSES), text)
        if isinstance(error, aiosmtplib.SMTPNotSupported) or "STARTTLS" in said:
            return Stuck(NO_STARTTLS, text)
        return Unreachable(text)


async def _end_connection(client: aiosmtplib.SMTP) -> None:
    """Take leave of a server. A mail that it took stays sent, whatever it answers."""
    try:
        await client.quit(timeout=_GOODBYE_SECONDS)
    except aiosmtplib.SMTPException:
        pass  # it is gone, or does not answer
    finally:
        client.close()


def _find_cause(error: BaseException | None) -> BaseException | None:
    """Return the error of TLS behind another one; None if there is none."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


def _make_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return what trusts the system's authorities, or the one of a file."""
    return ssl.create_default_context(cafile=ca_file)
