"""Signatures of webhooks after the Standard Webhooks scheme, both ends of it.

A request carries `webhook-id` (the event's id, the same for every attempt), `webhook-timestamp` (seconds, of this
attempt) and `webhook-signature`: one `v1,BASE64` for each secret in use, with a space between, each the HMAC-SHA256 of
`id.timestamp.body`. A secret is `whsec_` and base64, or any other text as it is. `control.formats` signs; `verify` is
for receivers.
"""

import base64
import hmac
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from lcm.model.errors import Fault, Invalid, Refused
from lcm.model.secret import Secret

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = timedelta(minutes=5)

_VERSION: Final = "v1,"
_ENCODED: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,11}", re.ASCII)


def signed(event_id: str, body: bytes, secrets: Iterable[Secret], *, now: datetime) -> dict[str, str]:
    """Make the headers of one attempt; without secrets it has no signature."""
    seconds = str(int(now.timestamp()))
    headers = {ID: event_id, TIMESTAMP: seconds}
    signatures = [_VERSION + _mac(secret, event_id, seconds, body) for secret in secrets]
    return {**headers, SIGNATURE: " ".join(signatures)} if signatures else headers


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[Secret],
    *,
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> str:
    """Return the id of a request that one of the secrets signed a short while ago; Refused for any other.

    Names of headers count in any case. Keep the ids of late: an event may arrive more than once.
    """
    found = {name.lower(): value for name, value in headers.items()}
    event_id, seconds, signatures = (found.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not (event_id and _SECONDS.fullmatch(seconds)):
        raise Refused("the request names no id, or no time")
    if abs(datetime.fromtimestamp(int(seconds), UTC) - now) > tolerance:
        raise Refused("the request was signed too long ago, or by a wrong clock")
    given = [one for one in signatures.split() if one.startswith(_VERSION)]
    wanted = [_VERSION + _mac(secret, event_id, seconds, body) for secret in secrets]
    # All are compared, so that the time it takes tells nothing.
    same = [hmac.compare_digest(mine.encode(), theirs.encode(errors="replace")) for mine in wanted for theirs in given]
    if not any(same):
        raise Refused("no secret that we know made this signature")
    return event_id


def _mac(secret: Secret, event_id: str, seconds: str, body: bytes) -> str:
    content = f"{event_id}.{seconds}.".encode(errors="replace") + body
    return base64.b64encode(hmac.digest(_key(secret), content, "sha256")).decode()


def _key(secret: Secret) -> bytes:
    text = secret.reveal()
    try:
        key = (
            base64.b64decode(text.removeprefix(_ENCODED), validate=True) if text.startswith(_ENCODED) else text.encode()
        )
    except ValueError as error:
        raise Invalid(Fault("secret", "what follows whsec_ is not base64", "make a new one")) from error
    if not key:
        raise Invalid(Fault("secret", "it is empty, so that anybody could sign", "make a new one"))
    return key
