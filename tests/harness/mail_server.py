"""A real SMTP server on loopback, and a process that sends notices to it."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from harness.event_clients import SOURCE, reveal
from lcm.control.delivery.outbox import Outbox
from lcm.control.notices.delivery import NoticeDelivery
from lcm.control.notices.texts import MailStyle
from lcm.control.plane.local import ControlPlane
from lcm.providers.mail.smtp import SmtpMailer, SmtpServer
from lcm.system.clock import SystemClock, random_fraction

PASSWORD = "correct horse"
SOON = 60


class Post:
    """Takes mails, or answers what it is told to."""

    def __init__(self) -> None:
        self.taken: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.answer: Callable[[str, str], str | None] = lambda _verb, _text: None

    def counts(self) -> Counter[tuple[str, str]]:
        """Return how many mails of each kind each recipient got: the first word of their subjects."""
        return Counter((one["To"], one["Subject"].partition(":")[0]) for one in list(self.taken))

    def wait_for(self, wanted: Counter[tuple[str, str]]) -> None:
        """Wait, in another thread, until exactly these mails have come, and a moment longer for more than these."""
        deadline = time.monotonic() + SOON
        while self.counts() < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        assert self.counts() == wanted

    async def handle_MAIL(self, _s: Any, _session: Session, envelope: Envelope, address: str, _o: Any) -> str:  # noqa: N802
        envelope.mail_from = address
        return self.answer("MAIL", address) or "250 OK"

    async def handle_RCPT(self, _s: Any, _session: Session, envelope: Envelope, address: str, _o: Any) -> str:  # noqa: N802
        envelope.rcpt_tos.append(address)
        return self.answer("RCPT", address) or "250 OK"

    async def handle_DATA(self, _s: Any, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        if refused := self.answer("DATA", ""):
            return refused
        assert isinstance(envelope.content, bytes)
        self.envelopes.append(envelope)
        made = message_from_bytes(envelope.content, policy=SMTP_POLICY)
        assert isinstance(made, EmailMessage)
        self.taken.append(made)
        return "250 taken"


def check_password(_server: Any, _session: Any, _envelope: Any, _method: str, data: Any) -> AuthResult:
    assert isinstance(data, LoginPassword)
    return AuthResult(success=(data.login, data.password) == (b"lcm", PASSWORD.encode()), handled=False)


@asynccontextmanager
async def mail_server(post: Post, context: ssl.SSLContext | None, **options: Any) -> AsyncIterator[int]:
    """Serve SMTP on a free port of loopback."""
    loop = asyncio.get_running_loop()
    is_safe = context is not None
    options = {"tls_context": context, "require_starttls": is_safe, "auth_required": is_safe} | options
    server = await loop.create_server(
        lambda: SMTP(post, hostname="localhost", authenticator=check_password, **options),
        "127.0.0.1",
        0,
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def deliver_notices(core: ControlPlane, post: Post) -> None:
    """Send the notices of a control plane that promises to a server of our own, without end."""
    cache = core.cache
    assert cache is not None, "it promises"
    async with mail_server(post, None) as port:
        mailer = SmtpMailer(SmtpServer("127.0.0.1", port, starttls=False), clock=SystemClock())
        style = MailStyle("lcm@example.org", "https://lcm.test", "Europe/Berlin")
        notices = NoticeDelivery(cache, mailer, style, mails_per_minute=60_000)
        outbox = Outbox(
            core.store,
            _post_nothing,
            reveal,
            clock=SystemClock(),
            chance=random_fraction,
            source=SOURCE,
            notices=notices.run,
        )
        await outbox.run()


async def _post_nothing(*_: object) -> None:
    raise AssertionError("there are no sinks")
