"""Tokens of an OpenID Connect issuer: who holds one, and until when. Called by the API for bearers that are not ours.

Everything about a token is refused by value, see `oidc_claims`; only an issuer that cannot be asked for a key is an
error. The order of the checks does not matter to who is let in; the cheap ones come first, so that garbage, strangers'
tokens and old ones never make us ask anybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.util import urlsafe_b64decode

from lcm.control.access.oidc_keys import ALGORITHMS, Fetch, IssuerKeys, PublicKey, is_trustworthy, strict_json
from lcm.model.access.identity import RANKS, Caller, Role, Subject
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Invalid

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


LONGEST_TOKEN: Final = 16 * 1024

_TYPES: Final = frozenset({"jwt", "at+jwt"})
"""What a token may say that it is. The same issuer also signs log-outs and other events, for the same audience."""
_ACCEPTED: Final = tuple(ALGORITHMS)
"""Not a set: what a token says may be anything, also what cannot be in one."""
_MALFORMED: Final = Refusal(Reason.MALFORMED, "this is not a token that we can read")


class _Signatures(jws.JWSRegistry):
    max_header_length = 4096
    max_payload_length = LONGEST_TOKEN
    max_signature_length = 2048

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - the library's type is not public
        # Not the library's own way: it warns of EdDSA, which issuers use, each time.
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(name)
        return self.algorithms[name]


_SIGNATURES: Final = _Signatures(strict_check_header=False)


@dataclass(frozen=True, slots=True)
class Verified:
    """Somebody whose token is good until a moment; a stream that it opened ends then."""

    caller: Caller
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class _Read:
    jws: jws.CompactSignature
    algorithm: str
    kid: str | None
    claims: Claims


class Verifier:
    """Accepts the tokens of one issuer."""

    def __init__(self, trust: Trust, *, fetch: Fetch, clock: Clock) -> None:
        self._trust = trust
        self._clock = clock
        self._keys = IssuerKeys(trust.issuer, fetch=fetch, clock=clock, jwks_url=trust.jwks_url)

    async def verify(self, token: str) -> Verified | Refusal:
        """Tell who holds a token, or why it is refused. May be repeated.

        Raises Later or Stuck when the token's key is not known and the issuer could not be asked for it.
        """
        read = _read(token)
        if isinstance(read, Refusal):
            return read
        refusal = why_not(read.claims, self._trust, self._clock.now()) or await self._forged(read)
        if refusal:
            return refusal
        caller = caller_of(read.claims, self._trust)
        return caller if isinstance(caller, Refusal) else Verified(caller, accepted_until(read.claims, self._trust))

    async def _forged(self, read: _Read) -> Refusal | None:
        keys = await self._keys.find(read.kid, read.algorithm)
        if not keys:
            return Refusal(Reason.KEY, "the issuer has no such key")
        if read.kid is None and len(keys) > 1:
            return Refusal(Reason.KEY, "the token does not say which of the issuer's keys signed it")
        if not any(_is_signed_by(read, key) for key in keys):
            return Refusal(Reason.SIGNATURE, "the token's signature does not fit")
        return None


def _read(token: str) -> _Read | Refusal:
    if len(token) > LONGEST_TOKEN:
        return _MALFORMED
    try:
        header = strict_json(urlsafe_b64decode(token.partition(".")[0].encode()))
        if header.get("alg") not in _ACCEPTED:
            return Refusal(Reason.ALGORITHM, "the token is not signed in a way that we accept")
        if not _is_plain(header):
            return _MALFORMED
        signature = jws.extract_compact(token.encode(), registry=_SIGNATURES)
        return _Read(signature, header["alg"], header.get("kid"), strict_json(signature.payload))
    except (JoseError, ValueError):
        return _MALFORMED


def _is_plain(header: Mapping[str, Any]) -> bool:
    """Refuse what wants to be understood differently: extensions, other types of token, an id that is no text."""
    kind = str(header.get("typ", "jwt")).lower().removeprefix("application/")
    return not {"crit", "b64"} & header.keys() and kind in _TYPES and isinstance(header.get("kid"), str | None)


def _is_signed_by(read: _Read, key: PublicKey) -> bool:
    try:
        return jws.validate_compact(read.jws, key, registry=_SIGNATURES)
    except (JoseError, ValueError):
        return False
