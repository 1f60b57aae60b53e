"""Names of people in stored documents, and what stands there once a person is forgotten. Pure.

A pseudonym is made of the name with a key of this installation: the same for the same name, so that costs still add up,
and of no use to whoever has only a list of names. It has the form of an address, as it stands where addresses stood;
no mail server takes mail for it. Used by `control.upkeep.forgetting`.
"""

import hmac
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import msgspec

from lcm.model.access.mail_address import NO_MAIL_DOMAIN, find_mail_address, normalize_address
from lcm.model.base.machine import ACTORS, CONTROL_PLANE, USER

Rename = Callable[[str], str]
"""Returns what is to stand for a text: a pseudonym, or the text itself."""

_PREFIX: Final = "forgotten-"
_PSEUDONYM: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}@{re.escape(NO_MAIL_DOMAIN)}")
PERSON_FIELDS: Final = frozenset(
    {"by", "email", "learner", "made_by", "owner", "owner_id", "recipient", "requested_by", "student_email", "who"}
)
_PERSON_LISTS: Final = frozenset({"student_emails"})
_TEXT_FIELDS: Final = frozenset({"detail", "last_error", "message", "outcome_reason", "reason", "refused"})
"""Fields with words in which somebody may be named; an address is replaced in every field."""
_NO_PEOPLE: Final = ACTORS | {"", CONTROL_PLANE, USER, "service"}
_ADDRESS: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9.-]{1,189}[A-Za-z0-9]")
_HEADER: Final = re.compile(rb"[0-9]{1,6}/[0-9]{1,6}\n")
_SHORTEST_WORD: Final = 3


def make_pseudonym(key: bytes, name: str) -> str:
    """Return the pseudonym of a person; that of an address is the same however it is written."""
    known = normalize_address(name) or name
    return f"{_PREFIX}{hmac.new(key, known.encode(), sha256).hexdigest()[:16]}@{NO_MAIL_DOMAIN}"


def is_pseudonym(text: str) -> bool:
    """Return whether a text is a pseudonym."""
    return _PSEUDONYM.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Renaming:
    """How names are replaced: whole ones where people stand, and those in texts."""

    name: Rename
    text: Rename
    address: Rename
    """Replaces addresses within any other text."""


def rename_one(names: Collection[str], pseudonym: str) -> Renaming:
    """Return how one person is replaced who is known by these names, some of which may be addresses."""
    known = {normalize_address(one) or one for one in names}
    addresses = [one for one in known if find_mail_address(one)]
    words = [one for one in known if len(one) >= _SHORTEST_WORD]
    in_text, in_any = _find_words(words), _find_words(addresses)
    return Renaming(
        lambda text: pseudonym if (normalize_address(text) or text) in known else text,
        lambda text: in_text.sub(pseudonym, text),
        lambda text: in_any.sub(pseudonym, text),
    )


def rename_everybody(key: bytes, raw: bytes) -> Renaming:
    """Return how everybody in a document is replaced, each by a pseudonym of their own.

    Our own processes keep theirs. In texts, addresses are found, and names that stand elsewhere in the document.
    """

    def rename(text: str) -> str:
        return text if text in _NO_PEOPLE or is_pseudonym(text) else make_pseudonym(key, text)

    def rename_addresses(text: str) -> str:
        return _ADDRESS.sub(lambda found: rename(found[0]), text)

    known = {name.lower(): rename(name) for name in _find_names(raw)}
    words = _find_words([name for name, pseudonym in known.items() if name != pseudonym])
    return Renaming(
        rename,
        lambda text: rename_addresses(words.sub(lambda found: known[found[0].lower()], text)),
        rename_addresses,
    )


def _find_names(raw: bytes) -> Collection[str]:
    """Return who stands in the fields of people of a document."""
    found = set[str]()

    def note(name: str) -> str:
        found.add(name)
        return name

    rename_document(raw, Renaming(note, str, str))
    return {name for name in found if len(name) >= _SHORTEST_WORD and name not in _NO_PEOPLE and not is_pseudonym(name)}


def _find_words(words: Collection[str]) -> re.Pattern[str]:
    """Return what finds these words, in any case, where they are not part of others; nothing, without any."""
    several = "|".join(re.escape(one) for one in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![\w.+@-])(?:{several})(?![\w@-]|\.\w)" if several else r"(?!)", re.IGNORECASE)


def rename_document(raw: bytes, renaming: Renaming, drop: Mapping[str, Any] | None = None) -> bytes | None:
    """Return a stored document with names replaced, and with these fields of its status; None when nothing changes.

    What is no document of ours has no names.
    """
    if not _HEADER.match(raw):
        return None
    head, _, body = raw.partition(b"\n")
    before = msgspec.json.decode(body)
    after = _rename_value("", before, renaming)
    status = after.get("status") if isinstance(after, dict) else None
    if drop and isinstance(status, dict):
        status.update({name: value for name, value in drop.items() if name in status})
    return None if after == before else head + b"\n" + msgspec.json.encode(after)


def _rename_value(field: str, value: Any, renaming: Renaming) -> Any:  # noqa: ANN401 - any part of a JSON document
    if isinstance(value, str):
        if field in PERSON_FIELDS or field in _PERSON_LISTS:
            return renaming.name(value)
        return renaming.text(value) if field in _TEXT_FIELDS else renaming.address(value)
    if isinstance(value, list):
        return [_rename_value(field, one, renaming) for one in value]
    if isinstance(value, dict):
        named = {name: _rename_value(name, one, renaming) for name, one in value.items()}
        if value.get("kind") == _LINK_KIND and isinstance(value.get("name"), str):
            named["name"] = renaming.name(value["name"])
        if "who" in value and named["who"] != value["who"]:
            named["address"] = ""  # of the audit: from which machine they came
        return named
    return value


_LINK_KIND: Final = "SignInLink"
"""The kind under which the audit mentions a person by name."""
