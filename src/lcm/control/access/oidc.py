"""Tokens of an OpenID Connect issuer: who holds one, with which role, and until when.

Called by `api` for bearer tokens that are not ours, and by `oidc_browser` for those that come of a browser's sign-in.
A refusal is a value, not an error: its reason goes to the log and the problem document, and neither contains any part
of the token. Only an issuer that cannot be asked for a key is an error. Cheap checks come first, so that garbage,
foreign and expired tokens never cause a request; the order does not change who is accepted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import ClaimError, JoseError, UnsupportedAlgorithmError
from joserfc.jwt import JWTClaimsRegistry
from joserfc.util import urlsafe_b64decode

from lcm.control.access.oidc_keys import ALGORITHMS, Fetch, IssuerKeys, PublicKey, is_trustworthy, strict_json
from lcm.model.access.identity import RANKS, Caller, Reach, Role, Subject
from lcm.model.access.mail_address import normalize_address
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Invalid

Claims = Mapping[str, Any]
SUB_PREFIX: Final = "oidc+"
"""Begins the name of a caller that only `sub` identifies: without it, the issuer's `ada` would be our `ada`."""

_MAX_TIMESTAMP: Final = 2**37
"""Some four thousand years ahead; it is still a valid datetime when a leeway is added."""


class TokenRefusalReason(StrEnum):
    """Why a token was refused, as a stable word."""

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
    NONCE = "TokenNonce"


@dataclass(frozen=True, slots=True)
class TokenRefusal:
    """A token is not accepted."""

    reason: TokenRefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class IssuerTrust:
    """Whose tokens are accepted, and how claims map to callers. Raises Invalid with every fault."""

    issuer: str
    audiences: frozenset[str]
    jwks_url: str = ""
    """Where the keys are; if empty, the issuer's discovery document says so."""
    subject_claim: str = "email"
    """The claim that names the caller; where a token does not have it, `sub` does, with SUB_PREFIX before it."""
    require_verified_email: bool = True
    """Whether an e-mail address needs `email_verified`. One marked as unverified is never accepted."""
    role_claim: str = "roles"
    """A text or a list of texts; dots lead into objects, as in `realm_access.roles`."""
    roles: Mapping[str, Role] = field(default_factory=lambda: {role.value: role for role in RANKS})
    """Which value of the claim gives which role; the highest role counts."""
    default_role: Role | None = None
    """The role of callers without any of these values; None refuses them."""
    leeway: timedelta = timedelta(seconds=60)
    """How far the issuer's clock may differ from ours."""
    outlive: timedelta = timedelta(0)
    """For how long what is made with a token may outlive it."""

    def __post_init__(self) -> None:
        if faults := list(_trust_faults(self)):
            raise Invalid(*faults)


_CLAIM_REFUSALS: Final = {
    "iss": TokenRefusal(TokenRefusalReason.ISSUER, "the token comes from another issuer"),
    "aud": TokenRefusal(TokenRefusalReason.AUDIENCE, "the token is meant for somebody else"),
    "exp": TokenRefusal(TokenRefusalReason.EXPIRED, "the token has expired"),
    "nbf": TokenRefusal(TokenRefusalReason.NOT_YET, "the token is not valid yet"),
    "iat": TokenRefusal(TokenRefusalReason.NOT_YET, "the token is not valid yet"),
}


def check_claims(claims: Claims, trust: IssuerTrust, now: datetime) -> TokenRefusal | None:
    """Return why claims are not meant for us, or not valid now; None when they are accepted."""
    if "events" in claims:
        return TokenRefusal(TokenRefusalReason.MALFORMED, "the token reports an event and identifies nobody")
    if not _is_time(claims.get("exp")) or not all(_is_time(claims[name]) for name in ("nbf", "iat") if name in claims):
        return TokenRefusal(
            TokenRefusalReason.MALFORMED, "the token does not say until when it is valid, or since when"
        )
    seconds: Any = now.timestamp(), trust.leeway.total_seconds()  # the library is typed for whole seconds only
    registry = JWTClaimsRegistry(
        *seconds,
        iss={"essential": True, "value": trust.issuer},
        aud={"essential": True, "values": sorted(trust.audiences)},
        exp={"essential": True},
    )
    try:
        registry.validate({name: claims[name] for name in _CLAIM_REFUSALS if name in claims})
    except ClaimError as error:
        return _CLAIM_REFUSALS[error.claim.rpartition(",")[2]]
    return None


def check_party(claims: Claims, *, client_id: str, nonce: str) -> TokenRefusal | None:
    """Return why an id token does not answer our request, made with this nonce; None when it does."""
    if claims.get("nonce") != nonce:
        return TokenRefusal(TokenRefusalReason.NONCE, "the token answers another sign-in")
    audience, party = claims.get("aud"), claims.get("azp")
    shared = isinstance(audience, list) and len(audience) > 1
    if (party is not None or shared) and party != client_id:
        return _CLAIM_REFUSALS["aud"]
    return None


def caller_of(claims: Claims, trust: IssuerTrust) -> Caller | TokenRefusal:
    """Return who a token identifies, with their role, or why it identifies no caller."""
    name = _find_subject(claims, trust)
    if isinstance(name, TokenRefusal):
        return name
    value = _find_claim(claims, trust.role_claim)
    values = value if isinstance(value, list) else [value]
    given = {trust.roles[one] for one in values if isinstance(one, str) and one in trust.roles}
    role = next((role for role in RANKS if role in given), trust.default_role)
    if role is None:
        return TokenRefusal(TokenRefusalReason.ROLE, f"the token gives no role: see the claim {trust.role_claim}")
    return Caller(name=name, role=role, reach=Reach(email=_find_verified_address(claims)))


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_TIMESTAMP


def _find_subject(claims: Claims, trust: IssuerTrust) -> str | TokenRefusal:
    used = trust.subject_claim if claims.get(trust.subject_claim) is not None else "sub"
    verified = claims.get("email_verified")
    if used == "email" and verified not in (True, "true") and (verified is not None or trust.require_verified_email):
        return TokenRefusal(TokenRefusalReason.SUBJECT, "the issuer has not verified the e-mail address")
    value = claims.get(used)
    fallback = used != trust.subject_claim
    if isinstance(value, str) and value.startswith(SUB_PREFIX) and not fallback:
        return TokenRefusal(TokenRefusalReason.SUBJECT, f"the claim {used} begins with {SUB_PREFIX}, which is reserved")
    try:
        return msgspec.convert(f"{SUB_PREFIX}{value}" if fallback and isinstance(value, str) else value, Subject)
    except msgspec.ValidationError:
        return TokenRefusal(TokenRefusalReason.SUBJECT, f"the claim {used} is not a name that we can use")


def _find_verified_address(claims: Claims) -> str:
    """Return the address by which the seats of a caller are found; empty unless the issuer has verified it."""
    address = claims.get("email")
    is_verified = claims.get("email_verified") in (True, "true")
    return normalize_address(address) if is_verified and isinstance(address, str) else ""


def _find_claim(claims: Claims, path: str) -> object:
    """Find a claim by its full name, which may itself contain dots, or else by following the dots."""
    if path in claims:
        return claims[path]
    found: object = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _trust_faults(trust: IssuerTrust) -> list[Fault]:
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
        faults.append(
            Fault("OIDC_ROLES, OIDC_DEFAULT_ROLE", "no token gives the roles service and guest", "use another role")
        )
    if not timedelta(0) <= trust.leeway <= timedelta(minutes=10):
        faults.append(Fault("OIDC_LEEWAY_SECONDS", "out of bounds", "use at most ten minutes"))
    return faults


MAX_TOKEN_LENGTH: Final = 16 * 1024

_TOKEN_TYPES: Final = frozenset({"jwt", "at+jwt"})
"""The types that a token may declare.

The same issuer also signs log-outs and other events, for the same audience.
"""
_ACCEPTED_ALGORITHMS: Final = tuple(ALGORITHMS)
"""Not a set: a token's header may hold any value, also one that cannot be hashed."""
_MALFORMED_TOKEN: Final = TokenRefusal(TokenRefusalReason.MALFORMED, "this is not a token that we can read")


class _SignatureRegistry(jws.JWSRegistry):
    max_header_length = 4096
    max_payload_length = MAX_TOKEN_LENGTH
    max_signature_length = 2048

    def get_alg(self, name: str) -> Any:  # noqa: ANN401 - the library's type is not public
        # Overridden because the library warns on each use of EdDSA, which issuers do use.
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(name)
        return self.algorithms[name]


_SIGNATURE_REGISTRY: Final = _SignatureRegistry(strict_check_header=False)


@dataclass(frozen=True, slots=True)
class VerifiedCaller:
    """A caller whose token is valid until a moment; a stream opened with it ends then."""

    caller: Caller
    expires_at: datetime
    bound: datetime
    """When everything that is made with the token ends."""


@dataclass(frozen=True, slots=True)
class _ParsedToken:
    jws: jws.CompactSignature
    algorithm: str
    kid: str | None
    claims: Claims


class Verifier:
    """Verifies the tokens of one issuer."""

    def __init__(self, trust: IssuerTrust, *, fetch: Fetch, clock: Clock) -> None:
        self._trust = trust
        self._clock = clock
        self._keys = IssuerKeys(trust.issuer, fetch=fetch, clock=clock, jwks_url=trust.jwks_url)

    async def verify(self, token: str) -> VerifiedCaller | TokenRefusal:
        """Return who holds a token, or why it is refused. May be repeated.

        Raises Later or Stuck when the token's key is not known and the issuer could not be asked for it.
        """
        read = _parse_token(token)
        return read if isinstance(read, TokenRefusal) else await self._verify(read, self._trust)

    async def verify_id_token(self, token: str, *, client_id: str, nonce: str) -> VerifiedCaller | TokenRefusal:
        """Return whom the issuer signed in for us, in answer to our own request, which the nonce proves.

        Raises as `verify` does.
        """
        read = _parse_token(token)
        if isinstance(read, TokenRefusal):
            return read
        meant = check_party(read.claims, client_id=client_id, nonce=nonce)
        return meant or await self._verify(read, replace(self._trust, audiences=frozenset({client_id})))

    async def _verify(self, read: _ParsedToken, trust: IssuerTrust) -> VerifiedCaller | TokenRefusal:
        refusal = check_claims(read.claims, trust, self._clock.now()) or await self._check_signature(read)
        if refusal:
            return refusal
        caller = caller_of(read.claims, self._trust)
        if isinstance(caller, TokenRefusal):
            return caller
        until = datetime.fromtimestamp(read.claims["exp"], UTC) + self._trust.leeway
        return VerifiedCaller(caller, until, until + self._trust.outlive)

    async def _check_signature(self, read: _ParsedToken) -> TokenRefusal | None:
        keys = await self._keys.find(read.kid, read.algorithm)
        if not keys:
            return TokenRefusal(TokenRefusalReason.KEY, "the issuer has no such key")
        if read.kid is None and len(keys) > 1:
            return TokenRefusal(TokenRefusalReason.KEY, "the token does not say which of the issuer's keys signed it")
        if not any(_is_signed_by(read, key) for key in keys):
            return TokenRefusal(TokenRefusalReason.SIGNATURE, "the token's signature does not fit")
        return None


def _parse_token(token: str) -> _ParsedToken | TokenRefusal:
    if len(token) > MAX_TOKEN_LENGTH:
        return _MALFORMED_TOKEN
    try:
        header = strict_json(urlsafe_b64decode(token.partition(".")[0].encode()))
        if header.get("alg") not in _ACCEPTED_ALGORITHMS:
            return TokenRefusal(TokenRefusalReason.ALGORITHM, "the token is not signed in a way that we accept")
        kind = str(header.get("typ", "jwt")).lower().removeprefix("application/")
        plain = not {"crit", "b64"} & header.keys() and isinstance(header.get("kid"), str | None)
        if not plain or kind not in _TOKEN_TYPES:
            return _MALFORMED_TOKEN
        signature = jws.extract_compact(token.encode(), registry=_SIGNATURE_REGISTRY)
        return _ParsedToken(signature, header["alg"], header.get("kid"), strict_json(signature.payload))
    except (JoseError, ValueError):
        return _MALFORMED_TOKEN


def _is_signed_by(read: _ParsedToken, key: PublicKey) -> bool:
    try:
        return jws.validate_compact(read.jws, key, registry=_SIGNATURE_REGISTRY)
    except (JoseError, ValueError):
        return False
