"""The keys of this installation: given as a text, or in a file that may change while we run.

Made by `compose` for the plane, which seals and rotates, and for `secrets`, which opens. Nothing is read before it is
needed: where nobody seals, nobody needs keys. A file that changed is read anew, so that every process on it seals with
the new key at once.
"""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lcm.model.errors import Refused
from lcm.model.secret import Secret
from lcm.providers.seal_keys import add_key, keep_first_key, parse_keys, read_keys
from lcm.providers.sealed import KeyRing
from lcm.system import new_nonce, new_seal_key

VARIABLE: Final = "LCM_SEAL_KEYS"


class InstalledKeys:
    """Seals with the first key, opens with all of them."""

    def __init__(
        self,
        file: Path,
        *,
        given: Secret | None = None,
        new_key: Callable[[], bytes] = new_seal_key,
        new_nonce: Callable[[], bytes] = new_nonce,
    ) -> None:
        """Use the keys that are given, else those of a file. Raises Invalid when what is given is no keys."""
        self._file = file
        self._new_key = new_key
        self._new_nonce = new_nonce
        self._given = self._made(parse_keys(given.reveal(), VARIABLE)) if given else None
        self._read: KeyRing | None = None
        self._seen: tuple[int, ...] | None = None

    @property
    def current(self) -> str:
        return self._ring().current

    def seal(self, secret: Secret) -> str:
        return self._ring().seal(secret)

    def unseal(self, text: str) -> Secret:
        return self._ring().unseal(text)

    def grow(self) -> bool:
        if self._given is not None:
            return False
        add_key(self._file, self._new_key())
        return True

    def forget_others(self, *, settled_by: datetime) -> int:
        if self._given is not None:
            raise Refused(f"the keys are given by {VARIABLE}: take the old ones out there, and start again")
        count = len(read_keys(self._file)) - 1
        if not count:
            return 0
        changed = datetime.fromtimestamp(self._file.stat().st_mtime, UTC)
        if changed > settled_by:
            raise Refused(
                f"the newest key is of {changed:%H:%M:%S} UTC: something that is under way may still use an older one;"
                " ask again some minutes later"
            )
        keep_first_key(self._file)
        return count

    def _ring(self) -> KeyRing:
        if self._given is not None:
            return self._given
        seen = _signature(self._file)
        if self._read is None or seen is None or seen != self._seen:
            self._read, self._seen = self._made(read_keys(self._file)), seen
        return self._read

    def _made(self, keys: Sequence[bytes]) -> KeyRing:
        return KeyRing(keys, new_nonce=self._new_nonce)


def _signature(path: Path) -> tuple[int, ...] | None:
    """Tell states of a file apart; None when there is none, of which whoever reads it will say why."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - on the way of every secret
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
