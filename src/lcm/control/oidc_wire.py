"""What comes from an issuer of tokens over the wire: addresses, documents, and how long they are good. Pure.

Used by `oidc` and `oidc_keys`; `oidc_fetch` is the real way to an issuer.
"""

import json
import re
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

_LONGEST_URL: Final = 2048
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})\b", re.IGNORECASE)


class Fetched(NamedTuple):
    """A document, and what its server said about keeping it."""

    body: bytes
    cache_control: str = ""


class Fetch(Protocol):
    """The way to an issuer."""

    async def get(self, url: str) -> Fetched:
        """Read a document of limited size, within limited time, without following redirects. May be repeated.

        Raises Later when it did not come, Stuck when only a person can change that.
        """
        ...


def strict_json(text: bytes) -> dict[str, Any]:
    """Read a JSON object; raises ValueError for anything else, and where one name stands twice.

    Two readers of a name that stands twice may believe different things.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once_each, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  everything here is one kind of error
    return value


def is_loopback(url: str) -> bool:
    """Tell whether an address leads to this very machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_trustworthy(url: str) -> bool:
    """Tell whether what comes from an address is its owner's word: by https, or from this very machine."""
    try:
        parts = urlsplit(url)
        odd = parts.username is not None or parts.password is not None or parts.port == 0 or not parts.hostname
    except ValueError:
        return False
    if odd or parts.fragment or len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


def fresh_for(cache_control: str, *, default: timedelta, least: timedelta, most: timedelta) -> timedelta:
    """Tell how long a document need not be asked for again."""
    if re.search(r"\bno-(?:store|cache)\b", cache_control, re.IGNORECASE):
        return least
    said = _MAX_AGE.search(cache_control)
    return min(max(timedelta(seconds=int(said[1])), least), most) if said else default


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_number(_: str) -> None:
    raise ValueError("not a number")
