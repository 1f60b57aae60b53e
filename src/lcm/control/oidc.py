"""Tokens of an OpenID Connect issuer: who holds one, and until when. Called by the API for bearers that are not ours.

Everything about a token is refused by value, see `oidc_claims`; only an issuer that cannot be asked for a key is an
error. The order of the checks does not matter to who is let in; the cheap ones come first, so that garbage, strangers'
tokens and old ones never make us ask anybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.util import urlsafe_b64decode

from lcm.control.oidc_claims import Claims, Reason, Refusal, Trust, accepted_until, caller_of, why_not
from lcm.control.oidc_keys import ALGORITHMS, IssuerKeys, PublicKey
from lcm.control.oidc_wire import Fetch, strict_json
from lcm.model.clock import Clock
from lcm.model.identity import Caller

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
