"""How mail fares: its position and errors as those of a sink, its dead letters, and the alert that nothing can be sent.

Mail is listed among the sinks under the name MAIL_SINK. A mail that the server will never take becomes a dead letter,
which a person may replay (`lcm sink`). Used by `notices.delivery`.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from lcm.control.delivery.courier import FIRST_BACKOFF, DeliveryContext
from lcm.control.delivery.sinks import MAIL_SINK
from lcm.control.notices.decisions import NoticeKind, ToldBooking
from lcm.control.objects.records import ALERTS, ref_of_key
from lcm.control.objects.writer import commit_ops
from lcm.control.telemetry.alert_records import read_alerts
from lcm.model.base.errors import Later, LcmError, Refused, Stuck
from lcm.model.base.event import MailNotice, encode_data, encode_event
from lcm.model.base.resource import DEFAULT_NAMESPACE, shorten_text
from lcm.model.kinds.sink import DeadLetter, StoredEvent
from lcm.model.telemetry.alert import Alert, Severity
from lcm.providers.protocols.mail import Mail, Mailer

MAIL_ALERT: Final = "MailNotSent"
MAIL_KIND: Final = "Mail"
"""The kind that the alert about mail has. It is no object."""
ALERT_AFTER: Final = timedelta(minutes=5)
MAX_BACKOFF: Final = timedelta(minutes=5)
POSITION_INTERVAL: Final = timedelta(minutes=1)
NOTICE_TYPE: Final = "notice"

_MAIL_ALERTS_KEY: Final = f"{ALERTS}mail"
_MAX_DOUBLINGS: Final = 10
_MAX_ERROR: Final = 1000
_log: Final = structlog.get_logger()


class MailTrouble:
    """What goes wrong with mail during one lease."""

    def __init__(self, context: DeliveryContext) -> None:
        self._context = context
        self._failing_since: datetime | None = None
        self._is_alerted: bool | None = None
        """Whether the alert is raised; None means that nobody looked yet."""
        self._position_at: datetime | None = None

    async def open(self) -> None:
        """Read how mail fared before."""
        await self._context.ledger.open_sink(MAIL_SINK, None)
        self._failing_since = self._context.ledger[MAIL_SINK].last_error_at if self._failures else None

    @property
    def _failures(self) -> int:
        return self._context.ledger[MAIL_SINK].failures

    def record_position(self, revision: int) -> None:
        """Record up to where everything was looked at, now and then."""
        now = self._context.clock.now()
        if self._position_at is None or now - self._position_at >= POSITION_INTERVAL:
            self._position_at = now
            self._context.ledger.update(MAIL_SINK, epoch=self._context.store.epoch, revision=revision, n=0)

    async def record_success(self) -> None:
        """Record that a mail was taken, and clear the alert."""
        if self._failing_since is not None:
            _log.info("mail is sent again")
        self._failing_since = None
        self._context.ledger.update(MAIL_SINK, failures=0, last_success_at=self._context.clock.now())
        await self._keep_alert(None)

    async def back_off(self, error: Later | Stuck) -> None:
        """Record that nothing can be sent now, raise the alert if that lasts, and wait."""
        now, text = self._context.clock.now(), shorten_text(str(error), _MAX_ERROR)
        if self._failing_since is None:
            self._failing_since = now
            _log.warning("mail cannot be sent", error=text)
        failures = self._failures + 1
        self._context.ledger.update(MAIL_SINK, failures=failures, last_error=text, last_error_at=now)
        if isinstance(error, Stuck) or now - self._failing_since >= ALERT_AFTER:
            await self._keep_alert(_make_alert(error, now))
        pause = min(MAX_BACKOFF, FIRST_BACKOFF * 2 ** min(failures - 1, _MAX_DOUBLINGS))
        least = error.after if isinstance(error, Later) else timedelta()
        await asyncio.sleep(max(pause * (1 - self._context.chance() / 2), least).total_seconds())

    async def give_up(self, mail: Mail, kind: NoticeKind, told: ToldBooking, error: str) -> None:
        """Keep a mail that the server will never take as a dead letter."""
        now, ref = self._context.clock.now(), ref_of_key(told.key)
        event = StoredEvent(
            type=f"{NOTICE_TYPE}.{kind}",
            time=now,
            kind=ref.kind.__name__ if ref else "",
            name=told.name,
            namespace=ref.namespace if ref else DEFAULT_NAMESPACE,
            data=encode_data(_pack(mail)),
        )
        text = shorten_text(error, _MAX_ERROR)
        letter = DeadLetter(sink=MAIL_SINK, event_id=mail.id, event=event, attempts=1, last_error=text, at=now)
        await self._context.ledger.add_dead_letter(letter, last_error=text, last_error_at=now)
        _log.warning("notice became a dead letter", notice=mail.id, error=text)

    async def send_replays(self, mailer: Mailer) -> None:
        """Send dead letters again when somebody asks for it, until cancelled."""
        letters = self._context.letters
        while True:
            letter, entry = await letters.next_replay(MAIL_SINK)
            error = await self._replay(mailer, letter)
            left = letter
            if error is not None:
                now, text = self._context.clock.now(), shorten_text(str(error), _MAX_ERROR)
                left = msgspec.structs.replace(
                    letter, attempts=letter.attempts + 1, last_error=text, at=now, replay=False
                )
            await letters.finish_replay(entry, left, taken=error is None)

    async def _replay(self, mailer: Mailer, letter: DeadLetter) -> LcmError | None:
        self._context.check()
        try:
            await mailer.send(_unpack(msgspec.json.decode(letter.event.data, type=MailNotice)))
        except (Refused, Later, Stuck) as error:
            return error
        return None

    async def _keep_alert(self, alert: Alert | None) -> None:
        """Raise the alert, or clear it with None, if it is not as it should be."""
        if self._is_alerted is (alert is not None):
            return
        context, now = self._context, self._context.clock.now()
        kept = await read_alerts(context.store, _MAIL_ALERTS_KEY)
        after = kept.alerts.with_raised(alert) if alert else kept.alerts.without(MAIL_ALERT)
        if after != kept.alerts:
            events = [encode_event(event) for event in kept.change_events(after, now)]
            await commit_ops(context.store, *kept.replace_ops(after), events=events, fence=context.fence)
        self._is_alerted = alert is not None


def _make_alert(error: LcmError, now: datetime) -> Alert:
    reason = error.reason if isinstance(error, Stuck) else type(error).__name__
    return Alert(
        kind=MAIL_KIND,
        name="mail",
        namespace=DEFAULT_NAMESPACE,
        uid="mail",
        alert=MAIL_ALERT,
        severity=Severity.WARNING,
        reason=reason,
        message=shorten_text(f"notices cannot be sent: {error}; they wait, and attempts go on"),
        since=now,
    )


def _pack(mail: Mail) -> MailNotice:
    return MailNotice(
        mail_id=mail.id,
        recipient=mail.recipient,
        subject=mail.subject,
        text=mail.text,
        method=mail.method,
        entries=mail.entries,
    )


def _unpack(notice: MailNotice) -> Mail:
    return Mail(notice.mail_id, notice.recipient, notice.subject, notice.text, notice.method, notice.entries)
