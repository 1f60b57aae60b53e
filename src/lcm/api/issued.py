"""Tokens of an OpenID Connect issuer at the door. One that was verified is remembered until it expires.

Used by `auth`; made by `app` where an issuer is configured.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from lcm.control.oidc_claims import Refusal
from lcm.control.tokens import Credential
from lcm.model.clock import Clock

if TYPE_CHECKING:
    from lcm.control.oidc import Verifier  # loads a library that most processes do not need

_DOTS: Final = 2
_REMEMBERED: Final = 1_000


class Issued:
    """What tokens of an issuer prove; the longest unused are forgotten first."""

    def __init__(self, verifier: "Verifier", clock: Clock, *, remembered: int = _REMEMBERED) -> None:
        self._verifier = verifier
        self._clock = clock
        self._most = remembered
        self._known: OrderedDict[str, Credential] = OrderedDict()

    def known(self, digest: str) -> Credential | None:
        """Find what a token proved before, by its hash; None when it must be verified."""
        found = self._known.get(digest)
        if found is None:
            return None
        if found.expires_at is not None and self._clock.now() >= found.expires_at:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return found

    async def verify(self, presented: str, digest: str) -> Credential | Refusal:
        """Verify a token. Raises Later or Stuck when the issuer could not be asked for its key."""
        found = await self._verifier.verify(presented)
        if isinstance(found, Refusal):
            return found
        credential = Credential(found.caller, found.expires_at)
        self._known[digest] = credential
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return credential


def looks_issued(presented: str) -> bool:
    """Tell whether a token could be an issuer's; ours have no dots."""
    return presented.count(".") == _DOTS
