"""From a reference to the secret: `env:NAME`, `file:/path`, `aws:NAME[#key]` or `sealed:…`.

Made by `compose`; controllers reveal a secret right before they send it, and keep nothing. People may write any
reference into a document, and its secret is sent to a machine of their choice: so variables, files and the secrets of
AWS must be allowed by name.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Stuck

MISSING: Final = "SecretMissing"
EMPTY: Final = "SecretEmpty"
UNREADABLE: Final = "SecretUnreadable"
EXPOSED: Final = "SecretExposed"
"""Others could change the secret."""
NOT_ALLOWED: Final = "SecretNotAllowed"


class Secrets(Protocol):
    """Reads secrets for those who use them."""

    async def reveal(self, ref: str) -> Secret:
        """Read the secret that a reference names; never empty. May be repeated.

        Raises Stuck when there is nothing, or nothing usable; it names the reference and never the secret. Raises
        Later while the other side does not answer.
        """
        ...


class SecretSources:
    """Asks the source that a reference's scheme names."""

    def __init__(self, sources: Mapping[str, Secrets]) -> None:
        self._sources = sources

    async def reveal(self, ref: str) -> Secret:
        source = self._sources.get(ref.partition(":")[0])
        if source is None:  # the text may be the secret itself, so it is not shown
            raise Stuck(NOT_ALLOWED, f"not a reference to a secret: use one of {', '.join(sorted(self._sources))}")
        return await source.reveal(ref)


class ClosableSecrets(Secrets, Protocol):
    """A source that holds connections."""

    async def close(self) -> None:
        """Close the connections. May be repeated."""
        ...


class LazySecrets:
    """A source that is made at its first use, as some take long to load."""

    def __init__(self, make: Callable[[], ClosableSecrets]) -> None:
        self._make = make
        self._source: ClosableSecrets | None = None

    async def reveal(self, ref: str) -> Secret:
        if self._source is None:
            self._source = self._make()
        return await self._source.reveal(ref)

    async def close(self) -> None:
        """Close the source if it was made. May be repeated."""
        if self._source is not None:
            await self._source.close()


class Unsealer(Protocol):
    """Keys that can decrypt sealed texts."""

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        ...


class SealedSecrets:
    """Secrets that were sealed with our keys."""

    def __init__(self, keys: Unsealer) -> None:
        self._keys = keys

    async def reveal(self, ref: str) -> Secret:
        return self._keys.unseal(ref)


def nonempty_secret(ref: str, text: str) -> Secret:
    """Make a secret of a text. Raise Stuck if it is empty: it would be sent as if it were meant."""
    if not text:
        raise Stuck(EMPTY, f"{ref} is empty")
    return Secret(text)
