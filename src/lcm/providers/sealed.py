"""Secrets encrypted at rest: `sealed:KEYID:BASE64URL(nonce|ciphertext)`, by AES-256-GCM.

Admission seals what people write in clear, `secrets` opens it for whoever needs it, key rotation seals it anew.

A sealed text is bound to the installation by its key, not to the object or field that it stands in. A pool copies its
template's spec into the workers that it makes, people copy documents under other names, and a restore may bring them
back elsewhere; bound to an object, all those copies could not be opened.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lcm.model.errors import Fault, Invalid, Stuck, TooLarge
from lcm.model.secret import Secret

KEY_BYTES: Final = 32
MAX_BYTES: Final = 3000
"""The longest secret: sealed, it must still fit into a reference."""
UNSEALABLE: Final = "SecretUnsealable"
"""It was changed, or is not what was sealed."""
NO_SEAL_KEY: Final = "SealKeyMissing"
"""It was sealed with a key that we do not have."""

_NONCE_BYTES: Final = 12
_FORM: Final = re.compile(r"sealed:([0-9a-f]{12}):([A-Za-z0-9_-]+)")
_PURPOSE: Final = b"lcm sealed v1 "


class KeyRing:
    """Keys by their fingerprints. The first one seals, all of them open."""

    def __init__(self, keys: Sequence[bytes], *, new_nonce: Callable[[], bytes]) -> None:
        assert keys
        assert all(len(key) == KEY_BYTES for key in keys)
        self._ciphers = {fingerprint(key): AESGCM(key) for key in keys}
        self._current = fingerprint(keys[0])
        self._new_nonce = new_nonce

    @property
    def current(self) -> str:
        """The id of the key that seals."""
        return self._current

    def seal(self, secret: Secret) -> str:
        """Encrypt a secret; twice the same gives different texts. Raises Invalid, TooLarge."""
        clear = _encoded(secret)
        if len(clear) > MAX_BYTES:
            raise TooLarge(f"a secret to be sealed has at most {MAX_BYTES} bytes")
        nonce = self._new_nonce()
        assert len(nonce) == _NONCE_BYTES
        sealed = nonce + self._ciphers[self._current].encrypt(nonce, clear, _bound_to(self._current))
        return f"sealed:{self._current}:{base64.urlsafe_b64encode(sealed).rstrip(b'=').decode()}"

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        form = _FORM.fullmatch(text)
        if form is None:
            raise Stuck(UNSEALABLE, f"{shown(text)} is not a sealed text")
        if (cipher := self._ciphers.get(form[1])) is None:
            raise Stuck(
                NO_SEAL_KEY, f"{shown(text)} was sealed with a key that is not here; give its key besides the others"
            )
        sealed = _decoded(form[2])
        try:
            clear = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_to(form[1]))
        except (InvalidTag, ValueError):  # the latter for a text too short to hold anything
            raise Stuck(UNSEALABLE, f"{shown(text)} is not as it was sealed; write the secret again") from None
        return Secret(clear.decode())

    def reseal(self, text: str) -> str:
        """Seal with the current key what an older one sealed; unchanged when it is current. Raises as `unseal`."""
        return text if text.startswith(f"sealed:{self._current}:") else self.seal(self.unseal(text))


def fingerprint(key: bytes) -> str:
    """Name a key by itself, so that no two keys can have the same name by mistake."""
    return hashlib.sha256(b"lcm seal key " + key).hexdigest()[:12]


def shown(text: str) -> str:
    """Name a sealed text by its key; the rest would fill a screen."""
    form = _FORM.fullmatch(text)
    return f"sealed:{form[1]}:…" if form else "sealed:…"


def _bound_to(key_id: str) -> bytes:
    return _PURPOSE + key_id.encode()


def _encoded(secret: Secret) -> bytes:
    clear = secret.reveal().encode(errors="replace")
    if not clear or clear.decode() != secret.reveal():
        raise Invalid(Fault("secret", "empty, or not a text", "write the secret"))
    return clear


def _decoded(text: str) -> bytes:
    whole = len(text) % 4 != 1  # no bytes are written as four times so many characters and one
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if whole else b""
