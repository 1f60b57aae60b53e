"""Mail as notices are sent: the protocol of a mailer, and one mail with its message.

`control.notices` writes mails; `providers.mail` sends them by SMTP, and the simulated mailbox keeps them.
"""

from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, formataddr
from typing import Protocol

from lcm.model.access.mail_address import find_mail_address, to_header_text
from lcm.model.base.errors import Refused, Throttled
from lcm.model.base.resource import shorten_text


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail to one person. `id` is the same whenever the same notice is sent; `method` is that of its entries."""

    id: str
    recipient: str
    subject: str
    text: str
    method: str = ""
    entries: tuple[str, ...] = ()
    """Calendar objects (RFC 5545), each with one entry or series."""


class RecipientBusy(Throttled):
    """The server takes no mail for this recipient now, such as for a full mailbox; others may get theirs."""


class Mailer(Protocol):
    """Hands mails over to a server that delivers them."""

    async def send(self, mail: Mail) -> None:
        """Return once the server has taken the mail. May be repeated: the mail keeps its Message-ID.

        Raises Refused when the server will never take this mail, RecipientBusy when it takes none for this person now,
        Later and its other subclasses when it may take mail another time, and Stuck when nothing can be sent until a
        person changes the settings.
        """
        ...


def build_message(mail: Mail, *, sender: str, sender_name: str, now: datetime) -> EmailMessage:
    """Return a mail as a message with its text, its first entry as an invitation, and all entries as files.

    Raises Refused if its recipient is no address.
    """
    recipient = find_mail_address(mail.recipient)
    if recipient is None:
        raise Refused(f"{shorten_text(mail.recipient, 80)!r} is no address that mail can be sent to")
    message = EmailMessage(policy=SMTP)
    message["From"] = formataddr((to_header_text(sender_name), sender))
    message["To"] = recipient
    message["Subject"] = to_header_text(mail.subject)
    message["Date"] = format_datetime(now)
    message["Message-ID"] = f"<{mail.id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody answers it automatically
    message.set_content(mail.text)
    for number, entry in enumerate(mail.entries):
        if number == 0 and len(mail.entries) == 1:
            message.add_alternative(entry, subtype="calendar", params={"method": mail.method})
        name = "entry.ics" if number == 0 else f"entry-{number + 1}.ics"
        message.add_attachment(entry.encode(), maintype="text", subtype="calendar", filename=name)
    return message
