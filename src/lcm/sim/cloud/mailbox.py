"""A simulated mail server: it keeps what it is given, and can be down, refuse addresses, or lose its answers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage

from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError
from lcm.providers.protocols.mail import Mail, build_message
from lcm.providers.protocols.permit import check_permit

MailFault = Callable[[Mail], LcmError | None]
"""From a mail to what goes wrong with it."""


@dataclass(frozen=True, slots=True)
class ReceivedMail:
    """A mail as it was taken, and when."""

    at: datetime
    mail: Mail
    message: EmailMessage


class SimulatedMailbox:
    """Everybody's mailbox. It suspends on both sides of taking a mail, as a network does."""

    def __init__(self, clock: Clock, *, sender: str = "lcm@example.org", sender_name: str = "LCM") -> None:
        self._clock = clock
        self._sender = sender
        self._sender_name = sender_name
        self.received: list[ReceivedMail] = []
        self.trouble: MailFault = lambda _: None
        """What goes wrong before a mail is taken."""
        self.lost_answer: MailFault = lambda _: None
        """What goes wrong after it was taken."""
        self.asked = 0

    async def send(self, mail: Mail) -> None:
        await asyncio.sleep(0)
        self.asked += 1
        if (error := self.trouble(mail)) is not None:
            raise error
        now = self._clock.now()
        message = build_message(mail, sender=self._sender, sender_name=self._sender_name, now=now)
        check_permit()
        self.received.append(ReceivedMail(now, mail, message))
        await asyncio.sleep(0)
        if (error := self.lost_answer(mail)) is not None:
            raise error

    def of(self, recipient: str) -> Sequence[Mail]:
        """Return what one person got, in order."""
        return [one.mail for one in self.received if one.mail.recipient == recipient]
