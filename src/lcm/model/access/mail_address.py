"""Which texts are addresses that mail can be sent to, and texts that can stand in the header of a mail.

Used by `settings`, by notices, and by whoever sends them. Whatever people write into a booking may end up here.
"""

import re
from typing import Final

from lcm.model.base.resource import shorten_text

MAX_SUBJECT_LENGTH: Final = 150
MAX_ADDRESS_LENGTH: Final = 254
IMPLICIT_TLS_PORT: Final = 465
"""The port of mail servers on which TLS begins with the first byte."""

NO_MAIL_DOMAIN: Final = "forgotten.invalid"
"""The domain of those who were forgotten. No such domain exists (RFC 2606), and nothing is sent to it."""
_MAX_LOCAL_LENGTH: Final = 64
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL_PART: Final = re.compile(rf"{_ATOM}(\.{_ATOM})*")
_DOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def find_mail_address(text: str | None) -> str | None:
    """Return a text as an address that can stand in a header as it is; None if it is no such address.

    Quoted local parts, comments, address literals and pseudonyms are not accepted.
    A domain in another script is written in ASCII.
    """
    local, mark, domain = (text or "").strip().rpartition("@")
    try:
        ascii_domain = domain.encode("idna").decode() if mark and not domain.isascii() else domain
    except UnicodeError:
        return None
    found = f"{local}@{ascii_domain}"
    if ascii_domain == NO_MAIL_DOMAIN:
        return None
    is_valid = _LOCAL_PART.fullmatch(local) and _DOMAIN.fullmatch(ascii_domain) and len(local) <= _MAX_LOCAL_LENGTH
    return found if is_valid and len(found) <= MAX_ADDRESS_LENGTH else None


def normalize_address(text: str | None) -> str:
    """Return an address in the one form in which addresses are compared; empty if it is none, which equals nobody's.

    Mail servers may tell capitals apart before the @; none in use does, and people do not.
    """
    return (find_mail_address(text) or "").lower()


def to_header_text(text: str, limit: int = MAX_SUBJECT_LENGTH) -> str:
    """Return a text that can stand in a header: one line, without control characters, not too long."""
    return shorten_text(" ".join(_CONTROL.sub(" ", text).split()), limit)
