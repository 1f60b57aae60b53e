"""Mailers: SMTP to a real server on loopback, with STARTTLS and a password, and the simulated mailbox."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.mail_server import PASSWORD, Post, mail_server
from harness.servers import Authority
from lcm.model.access.mail_address import find_mail_address, to_header_text
from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Refused, Stuck, Throttled, Unreachable
from lcm.providers.mail.smtp import SmtpMailer, SmtpServer
from lcm.providers.protocols.mail import Mail, Mailer, RecipientBusy, build_message
from lcm.sim.cloud.mailbox import SimulatedMailbox
from lcm.system.clock import SystemClock

NOW = datetime(2026, 11, 2, 9, tzinfo=UTC)
ENTRY = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nMETHOD:REQUEST\r\nEND:VCALENDAR\r\n"
MAIL = Mail(
    "id-1", "ada@example.org", "Gebucht: Übung für Ada", "Hallo Ada,\nÜbung 1 … bis später.\n", "REQUEST", (ENTRY,)
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def ca(authority: Authority, tmp_path: Path) -> Path:
    return ca_file(authority, tmp_path)


def server_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate, key = authority.issue("mail")
    with NamedTemporaryFile() as file:
        file.write(certificate + key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def ca_file(authority: Authority, folder: Path) -> Path:
    path = folder / "ca.pem"
    path.write_bytes(authority.pem)
    return path


def mailer(port: int, ca: Path, **changes: Any) -> SmtpMailer:
    whole: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "user": "lcm",
        "password": Secret(PASSWORD),
        "ca_file": ca,
        "sender": "lcm@example.org",
        "sender_name": "Die Labs: „Übung“",
    } | changes
    return SmtpMailer(SmtpServer(**whole), clock=SystemClock(), timeout_seconds=10)


async def check_mailer(one: Mailer, taken: Callable[[], list[EmailMessage]]) -> None:
    """Check what every mailer does with a mail."""
    await one.send(MAIL)
    (message,) = taken()
    assert message["To"] == "ada@example.org"
    assert message["Subject"] == MAIL.subject
    assert message["Message-ID"] == "<id-1@example.org>"
    parts = {part.get_content_type(): part for part in message.walk() if not part.is_multipart()}
    assert parts["text/plain"].get_content().replace("\r\n", "\n") == MAIL.text
    files = [part for part in message.walk() if part.get_filename() == "entry.ics"]
    assert [part.get_payload(decode=True) for part in files] == [ENTRY.encode()]
    invitations = [part for part in message.walk() if part.get_param("method") == "REQUEST"]
    assert len(invitations) == 1
    with pytest.raises(Refused):
        await one.send(Mail("id-2", "no address", "x", "y"))


async def test_the_simulated_mailbox_takes_a_mail() -> None:
    box = SimulatedMailbox(SystemClock())
    await check_mailer(box, lambda: [one.message for one in box.received])


async def test_smtp_sends_with_starttls_and_a_password(authority: Authority, ca: Path) -> None:
    post = Post()
    async with mail_server(post, server_context(authority)) as port:
        await check_mailer(mailer(port, ca), lambda: post.taken)
    assert (post.envelopes[0].mail_from, post.envelopes[0].rcpt_tos) == ("lcm@example.org", ["ada@example.org"])


@pytest.mark.parametrize(
    ("verb", "answer", "error"),
    [
        ("RCPT", "550 no such user", Refused),
        ("RCPT", "451 greylisted", RecipientBusy),
        ("MAIL", "550 not you", Stuck),
        ("DATA", "554 spam", Refused),
        ("DATA", "452 full", Throttled),
    ],
)
async def test_answers_are_errors_of_ours(
    verb: str, answer: str, error: type[LcmError], authority: Authority, ca: Path
) -> None:
    post = Post()
    post.answer = lambda said, _: answer if said == verb else None
    async with mail_server(post, server_context(authority)) as port:
        with pytest.raises(error) as caught:
            await mailer(port, ca).send(MAIL)
    assert type(caught.value) is error
    assert answer[4:] in str(caught.value)
    assert post.taken == []


async def test_nothing_is_sent_to_a_server_that_is_not_trusted_or_has_no_tls(
    authority: Authority, ca: Path, tmp_path: Path
) -> None:
    post, other = Post(), tmp_path / "other.pem"
    other.write_bytes(Authority(tmp_path).pem)
    async with mail_server(post, server_context(authority)) as port:
        with pytest.raises((Stuck, Unreachable)):
            await mailer(port, ca, ca_file=other).send(MAIL)
    async with mail_server(post, None) as port:
        with pytest.raises(Stuck) as clear:
            await mailer(port, ca).send(MAIL)
    assert clear.value.reason == "MailWithoutTls"
    assert post.taken == []


async def test_a_wrong_password_is_for_a_person_and_is_not_shown(authority: Authority, ca: Path) -> None:
    async with mail_server(Post(), server_context(authority)) as port:
        with pytest.raises(Stuck) as caught:
            await mailer(port, ca, password=Secret("hush-hush")).send(MAIL)
    assert caught.value.reason == "MailSignInRefused"
    assert "hush-hush" not in str(caught.value)


async def test_a_server_that_is_not_there_is_tried_later(authority: Authority, ca: Path) -> None:
    async with mail_server(Post(), server_context(authority)) as port:
        pass
    with pytest.raises(Unreachable):
        await mailer(port, ca).send(MAIL)


@asynccontextmanager
async def scripted_server(
    answers: Mapping[str, str], greeting: str = "220 here"
) -> AsyncIterator[tuple[int, list[str]]]:
    """Serve answers by the first word of what is said, and silence to every other word."""
    said = list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{greeting}\r\n".encode())
        is_text = False
        while raw := await reader.readline():
            line = raw.decode().strip("\r\n")
            word = line.partition(" ")[0].upper()
            if not is_text:
                said.append(word)
            answer = ("250 taken" if line == "." else "") if is_text else answers.get(word, "")
            is_text = (is_text and line != ".") or word == "DATA"
            writer.write(f"{answer}\r\n".encode() if answer else b"")
        writer.close()
        await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], said
        await ended.wait()
    finally:
        server.close()


async def test_a_mail_that_was_taken_is_sent_even_if_the_server_never_says_goodbye(ca: Path) -> None:
    answers = {"EHLO": "250 here", "MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go on"}
    async with scripted_server(answers) as (port, said):
        plain = SmtpServer(host="127.0.0.1", port=port, starttls=False, ca_file=ca)
        await SmtpMailer(plain, clock=SystemClock(), timeout_seconds=3).send(MAIL)
    assert said[:4] == ["EHLO", "MAIL", "RCPT", "DATA"]


@pytest.mark.parametrize("greeting", ["554 no mail from you", "220 here"])
async def test_a_server_that_talks_to_nobody_refuses_no_mail(greeting: str, ca: Path) -> None:
    answers = {"EHLO": "550 no", "HELO": "550 no"}
    async with scripted_server(answers, greeting) as (port, _):
        plain = SmtpServer(host="127.0.0.1", port=port, starttls=False, ca_file=ca)
        with pytest.raises(Stuck):
            await SmtpMailer(plain, clock=SystemClock(), timeout_seconds=3).send(MAIL)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ada@example.org", "ada@example.org"),
        (" ada+lab@Example.org ", "ada+lab@Example.org"),
        ("ada@bücher.example", "ada@xn--bcher-kva.example"),
        ("ådå@example.org", None),
        ('"a b"@example.org', None),
        ("ada@example.org\r\nBcc: eve@example.org", None),
        ("ada@example.org, eve@example.org", None),
        ("<ada@example.org>", None),
        ("ada", None),
        ("@example.org", None),
        ("ada@", None),
        ("ada@-x.example", None),
        ("a" * 65 + "@example.org", None),
        ("a@" + "b." * 130 + "org", None),
        ("", None),
        (None, None),
    ],
)
def test_only_plain_addresses_are_addresses(text: str | None, address: str | None) -> None:
    assert find_mail_address(text) == address


@given(st.text(max_size=400), st.text(max_size=80), st.text(max_size=200))
@settings(max_examples=150, deadline=timedelta(seconds=5))
def test_hostile_texts_stay_within_their_header(subject: str, name: str, text: str) -> None:
    clean = "".join(one for one in text if not 0xD800 <= ord(one) <= 0xDFFF)
    mail = Mail("id", "ada@example.org", subject, clean)
    whole = build_message(mail, sender="lcm@example.org", sender_name=name, now=NOW)
    parsed = message_from_bytes(bytes(whole), policy=SMTP_POLICY)
    assert sorted(parsed.keys()) == sorted(whole.keys())
    assert str(parsed["To"]) == "ada@example.org"
    assert len(to_header_text(subject)) <= 150


def test_a_line_break_in_a_subject_adds_no_header() -> None:
    mail = Mail("id", "ada@example.org", "Ready\r\nBcc: eve@example.org\r\n\r\nhello", "x")
    whole = build_message(mail, sender="lcm@example.org", sender_name='"Eve" <eve@example.org>,', now=NOW)
    parsed = message_from_bytes(bytes(whole), policy=SMTP_POLICY)
    assert parsed["Bcc"] is None
    assert parsed["Subject"] == "Ready Bcc: eve@example.org hello"
    assert parsed["From"].addresses[0].addr_spec == "lcm@example.org"
    assert len(parsed["From"].addresses) == 1
