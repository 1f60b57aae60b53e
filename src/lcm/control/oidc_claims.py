"""Whom a token's claims make of its holder, once we know that the issuer wrote them. Pure; used by `oidc`.

A refusal is a value, not an error: a bad token is an everyday answer, and its reason is for the log and the problem
document. Neither holds anything of the token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec

from lcm.control.oidc_wire import is_trustworthy
from lcm.model.errors import Fault, Invalid
from lcm.model.identity import RANKS, Caller, Role, Subject

Claims = Mapping[str, Any]

_LAST_SECOND: Final = 2**37
"""Some four thousand years ahead; with a leeway added it is still a moment."""


class Reason(StrEnum):
    """Why a token was refused, in a word that does not change."""

    MALFORMED = "TokenMalformed"
    ALGORITHM = "TokenAlgorithm"
    ISSUER = "TokenIssuer"
    AUDIENCE = "TokenAudience"
    EXPIRED = "TokenExpired"
    NOT_YET = "TokenNotYetValid"
    KEY = "TokenKeyUnknown"
    SIGNATURE = "TokenSignature"
    SUBJECT = "TokenSubject"
    ROLE = "TokenRole"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A token is not accepted."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose tokens are accepted, and what they make of their holders. Raises Invalid with every fault."""

    issuer: str
    audiences: frozenset[str]
    jwks_url: str = ""
    """Where the keys are; without it, the issuer's discovery document says so."""
    subject_claim: str = "email"
    """Names the caller; where a token does not have it, `sub` does."""
    require_verified_email: bool = True
    """Whether an e-mail address must come with `email_verified`. One said to be unverified never names anybody."""
    role_claim: str = "roles"
    """A text or a list of texts; dots lead into objects, as in `realm_access.roles`."""
    roles: Mapping[str, Role] = field(default_factory=lambda: {role.value: role for role in RANKS})
    """Which value of the claim gives which role; the highest counts."""
    default_role: Role | None = None
    """For those without any of them; None refuses them."""
    leeway: timedelta = timedelta(seconds=60)
    """How far the issuer's clock may be from ours."""

    def __post_init__(self) -> None:
        if faults := list(_faults(self)):
            raise Invalid(*faults)


def why_not(claims: Claims, trust: Trust, now: datetime) -> Refusal | None:
    """Say why claims are not for us, or not now; None when nothing speaks against them."""
    if claims.get("iss") != trust.issuer:
        return Refusal(Reason.ISSUER, "the token comes from another issuer")
    if not _texts(claims.get("aud")) & trust.audiences:
        return Refusal(Reason.AUDIENCE, "the token is meant for somebody else")
    if "events" in claims:
        return Refusal(Reason.MALFORMED, "the token reports an event and identifies nobody")
    return _untimely(claims, trust, now)


def accepted_until(claims: Claims, trust: Trust) -> datetime:
    """Tell the moment from which a token is no longer accepted; only for claims that `why_not` let pass."""
    expiry = _moment(claims["exp"])
    assert expiry
    return expiry + trust.leeway


def caller_of(claims: Claims, trust: Trust) -> Caller | Refusal:
    """Tell whom a token identifies, and what they may do."""
    name = _subject(claims, trust)
    if isinstance(name, Refusal):
        return name
    role = _role(claims, trust)
    if role is None:
        return Refusal(Reason.ROLE, f"the token gives no role: see the claim {trust.role_claim}")
    return Caller(name=name, role=role)


def _untimely(claims: Claims, trust: Trust, now: datetime) -> Refusal | None:
    expiry, begins = _moment(claims.get("exp")), [_moment(claims[name]) for name in ("nbf", "iat") if name in claims]
    if expiry is None or None in begins:
        return Refusal(Reason.MALFORMED, "the token does not say until when it is valid, or since when")
    if now >= expiry + trust.leeway:
        return Refusal(Reason.EXPIRED, "the token has expired")
    if any(begin and now < begin - trust.leeway for begin in begins):
        return Refusal(Reason.NOT_YET, "the token is not valid yet")
    return None


def _moment(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LAST_SECOND:
        return None
    return datetime.fromtimestamp(value, UTC)


def _texts(value: object) -> frozenset[str]:
    values = value if isinstance(value, list) else [value]
    return frozenset(one for one in values if isinstance(one, str))


def _subject(claims: Claims, trust: Trust) -> str | Refusal:
    used = trust.subject_claim if claims.get(trust.subject_claim) is not None else "sub"
    if used == "email" and not _is_verified(claims, trust):
        return Refusal(Reason.SUBJECT, "the issuer has not verified the e-mail address")
    try:
        return msgspec.convert(claims.get(used), Subject)
    except msgspec.ValidationError:
        return Refusal(Reason.SUBJECT, f"the claim {used} is not a name that we can use")


def _is_verified(claims: Claims, trust: Trust) -> bool:
    said = claims.get("email_verified")
    return said in (True, "true") or (said is None and not trust.require_verified_email)


def _role(claims: Claims, trust: Trust) -> Role | None:
    given = {trust.roles[value] for value in _texts(_claim(claims, trust.role_claim)) if value in trust.roles}
    return next((role for role in RANKS if role in given), trust.default_role)


def _claim(claims: Claims, path: str) -> object:
    """Find a claim by its name, which may be an address with dots of its own, or else along the dots."""
    if path in claims:
        return claims[path]
    found: object = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _faults(trust: Trust) -> list[Fault]:
    addresses = {"OIDC_ISSUER": trust.issuer} | ({"OIDC_JWKS_URL": trust.jwks_url} if trust.jwks_url else {})
    faults = [
        Fault(name, "not an address to be trusted", "write https://…; plain http only for this machine itself")
        for name, url in addresses.items()
        if not is_trustworthy(url)
    ]
    if "?" in trust.issuer:
        faults.append(Fault("OIDC_ISSUER", "has a query", "write it as the issuer's discovery document does"))
    if not trust.audiences or not all(trust.audiences):
        faults.append(Fault("OIDC_AUDIENCE", "missing", "name the audience that tokens for us carry"))
    if not trust.subject_claim or not trust.role_claim:
        faults.append(Fault("OIDC_SUBJECT_CLAIM, OIDC_ROLE_CLAIM", "missing", "name the claims"))
    if {trust.default_role, *trust.roles.values()} - {None, *RANKS}:
        faults.append(Fault("OIDC_ROLES, OIDC_DEFAULT_ROLE", "no token gives the role service", "use another role"))
    if not timedelta(0) <= trust.leeway <= timedelta(minutes=10):
        faults.append(Fault("OIDC_LEEWAY_SECONDS", "out of bounds", "use at most ten minutes"))
    return faults
